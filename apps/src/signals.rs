//! SIGINT, SIGTERM, SIGHUP: the first asks for an orderly end, the second ends the process at once.

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::thread;

use keyfence_mempool::sync::{Arc, AtomicBool, Ordering};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator::Signals as Arrivals;

use crate::exit::Exit;

/// What has arrived since the watch began.
pub struct Signals {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    interrupted: AtomicBool,
    /// Said on stdout before an end at once, behind the signal's number.
    last_words: Option<fn(i32) -> String>,
    /// Removed before an end at once.
    unfinished: Mutex<Option<PathBuf>>,
}

impl Signals {
    /// Watches from now on, on a thread of its own, so that a second signal works whatever the others do. It then writes `last_words` of its
    /// number to stdout.
    pub fn watch(last_words: Option<fn(i32) -> String>) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            last_words,
            ..Shared::default()
        });
        let mut arrivals = Arrivals::new([SIGINT, SIGTERM, SIGHUP])?;
        // A write beyond a limit of file sizes (`ulimit -f`) is to be an error like a full disk, and not the process's end.
        flag::register(libc::SIGXFSZ, Arc::new(AtomicBool::new(false)))?;
        let seen = Arc::clone(&shared);
        let thread = thread::Builder::new().name("signals".into());
        thread.spawn(move || {
            for signal in arrivals.forever() {
                // Relaxed: the flag stands for nothing but itself.
                if seen.interrupted.swap(true, Ordering::Relaxed) {
                    seen.end_at_once(signal);
                }
            }
        })?;
        Ok(Self { shared })
    }

    /// Whether a first one has come.
    pub fn interrupted(&self) -> bool {
        self.shared.interrupted.load(Ordering::Relaxed)
    }

    /// Names a file that a second signal removes; `None` when it is finished or gone.
    pub fn set_unfinished(&self, file: Option<PathBuf>) {
        *self.shared.unfinished() = file;
    }
}

impl Shared {
    fn unfinished(&self) -> std::sync::MutexGuard<'_, Option<PathBuf>> {
        self.unfinished
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn end_at_once(&self, signal: i32) -> ! {
        if let Some(file) = self.unfinished().take() {
            // Nobody is left to tell if it can't be removed.
            let _ = std::fs::remove_file(file);
        }
        if let Some(last_words) = self.last_words {
            let mut stdout = io::stdout().lock();
            // A reader that has gone away changes nothing.
            let _ = writeln!(stdout, "{}", last_words(signal)).and_then(|()| stdout.flush());
        }
        let number = u8::try_from(signal).unwrap_or(u8::MAX);
        std::process::exit(i32::from(Exit::Signal(number).code()))
    }
}
