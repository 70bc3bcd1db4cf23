//! Progress on stderr: a bar on a terminal, a line a second elsewhere, nothing for what is over within a second.

use std::io::{IsTerminal, Write, stderr};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use keyfence::config::show_bytes;

/// How long nothing is shown, and how often a line is.
const INTERVAL: Duration = Duration::from_secs(1);

/// How far something that counts bytes has come.
pub struct Progress {
    what: &'static str,
    total_bytes: u64,
    on_terminal: bool,
    bar: Option<ProgressBar>,
    next: Instant,
}

impl Progress {
    /// Nothing done yet.
    pub fn new(what: &'static str, total_bytes: u64) -> Self {
        Self {
            what,
            total_bytes,
            on_terminal: stderr().is_terminal(),
            bar: None,
            next: Instant::now() + INTERVAL,
        }
    }

    /// So many bytes are done. Cheap enough for a control loop.
    pub fn set(&mut self, bytes: u64) {
        if let Some(bar) = &self.bar {
            // It limits its own drawing.
            bar.set_position(bytes);
            return;
        }
        let now = Instant::now();
        if now < self.next {
            return;
        }
        if self.on_terminal {
            self.bar = Some(bar(self.what, self.total_bytes));
            return;
        }
        self.next = now + INTERVAL;
        let mib = |bytes: u64| show_bytes(bytes >> 20 << 20);
        let (done, total) = (mib(bytes), mib(self.total_bytes));
        // A reader that has gone away changes nothing about the work.
        let _ = writeln!(stderr(), "{}: {done} of {total}", self.what);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn bar(what: &'static str, total_bytes: u64) -> ProgressBar {
    let template =
        "{msg} {wide_bar} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta}";
    let style = ProgressStyle::with_template(template).expect("a constant template");
    ProgressBar::new(total_bytes)
        .with_style(style)
        .with_message(what)
}
