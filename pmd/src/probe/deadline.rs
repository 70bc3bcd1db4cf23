//! A deadline for work that may hang, in the kernel too.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

/// Why work gave no result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NoResult {
    /// It has not ended. Its thread goes on, and what it holds stays held.
    Late,
    /// It panicked.
    Panicked,
    /// No thread could be started.
    NoThread,
}

/// Does `work` on a thread of its own and waits for its result up to `limit`.
pub(super) fn within<T: Send + 'static>(
    limit: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, NoResult> {
    let (done, result) = mpsc::channel();
    let thread = thread::Builder::new().name("probe".into());
    let started = thread.spawn(move || {
        // Nobody waits any more if it is late.
        let _ = done.send(work());
    });
    let Ok(worker) = started else {
        return Err(NoResult::NoThread);
    };
    match result.recv_timeout(limit) {
        Ok(result) => {
            // What it holds is given up before the next check begins.
            let _ = worker.join();
            Ok(result)
        }
        Err(RecvTimeoutError::Timeout) => Err(NoResult::Late),
        Err(RecvTimeoutError::Disconnected) => Err(NoResult::Panicked),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_comes_through_and_a_hang_or_a_panic_does_not() {
        assert_eq!(within(Duration::from_secs(60), || 7), Ok(7));
        let (never, wait) = mpsc::channel::<()>();
        let hung = within(Duration::from_millis(1), move || wait.recv());
        assert_eq!(hung, Err(NoResult::Late));
        drop(never);
        let quiet = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        let panicked = within::<()>(Duration::from_secs(60), || panic!("on purpose"));
        std::panic::set_hook(quiet);
        assert_eq!(panicked, Err(NoResult::Panicked));
    }
}
