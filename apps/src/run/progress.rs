//! What a run says of itself on stderr while it lasts: a bar on a terminal, a line a stage elsewhere.

use std::io::{IsTerminal, stderr};

use indicatif::{ProgressBar, ProgressStyle};

/// Progress of a run.
pub struct Progress {
    bar: Option<ProgressBar>,
    length_ns: u64,
}

const PER_SECOND: u64 = 1_000_000_000;

impl Progress {
    /// Says nothing yet.
    pub fn new() -> Self {
        let bar = stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template("{msg:24} [{bar:40}] {percent} %");
            ProgressBar::new(1).with_style(style.expect("a constant template"))
        });
        Self { bar, length_ns: 0 }
    }

    /// A stage begins, which takes `length_ns`; 0 if nobody knows.
    pub fn stage(&mut self, name: &'static str, length_ns: u64) {
        self.length_ns = length_ns;
        match &self.bar {
            Some(bar) => {
                bar.set_length(length_ns.max(1));
                bar.set_position(0);
                bar.set_message(name);
            }
            None if length_ns == 0 => tracing::info!("{name}"),
            None => {
                let seconds = length_ns as f64 / PER_SECOND as f64;
                tracing::info!("{name} for {seconds:.1} s");
            }
        }
    }

    /// Where the stage is.
    pub fn at(&self, now_ns: u64, end_ns: u64) {
        if let Some(bar) = &self.bar {
            bar.set_position(self.length_ns.saturating_sub(end_ns.saturating_sub(now_ns)));
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
