//! How far the seeds have come, on stderr: a bar on a terminal, a line now and then elsewhere.

use std::io::{IsTerminal, Write, stderr};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// From one line to the next.
const INTERVAL: Duration = Duration::from_secs(5);

pub struct Progress {
    seeds: u64,
    bar: Option<ProgressBar>,
    next: Instant,
}

impl Progress {
    pub fn new(seeds: u64) -> Self {
        let template = "seeds {wide_bar} {pos}/{len} {per_sec} {eta}";
        let style = || ProgressStyle::with_template(template).expect("a constant template");
        let on_terminal = stderr().is_terminal();
        Self {
            seeds,
            bar: on_terminal.then(|| ProgressBar::new(seeds).with_style(style())),
            next: Instant::now() + INTERVAL,
        }
    }

    /// So many are done, and so many of them have failed.
    pub fn set(&mut self, done: u64, failed: usize) {
        if let Some(bar) = &self.bar {
            bar.set_position(done);
        } else if Instant::now() >= self.next {
            self.next = Instant::now() + INTERVAL;
            // A reader that has gone away changes nothing about the work.
            let _ = writeln!(stderr(), "{done} of {} seeds, {failed} failed", self.seeds);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
