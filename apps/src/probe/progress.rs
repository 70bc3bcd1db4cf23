//! How far a probe has come, on stderr: a bar on a terminal, elsewhere a line a second at most, and none within the first.

use std::io::{IsTerminal, Write, stderr};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use keyfence::pmd::probe::Finding;

const INTERVAL: Duration = Duration::from_secs(1);

/// Progress over tests.
pub struct Progress {
    bar: Option<ProgressBar>,
    total: usize,
    done: usize,
    next: Instant,
}

impl Progress {
    /// Nothing done yet.
    pub fn new(total: usize) -> Self {
        let bar = stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template("{msg:24} [{bar:40}] {pos} of {len}");
            let bar = ProgressBar::new(total as u64);
            bar.with_style(style.expect("a constant template"))
        });
        Self {
            bar,
            total,
            done: 0,
            next: Instant::now() + INTERVAL,
        }
    }

    /// One more is done.
    pub fn did(&mut self, finding: &Finding) {
        self.done += 1;
        let name = finding.check.name();
        if let Some(bar) = &self.bar {
            bar.set_position(self.done as u64);
            bar.set_message(name);
            return;
        }
        let now = Instant::now();
        if now < self.next {
            return;
        }
        self.next = now + INTERVAL;
        // A reader that has gone away changes nothing about the work.
        let _ = writeln!(stderr(), "probe: {name}, {} of {}", self.done, self.total);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
