//! Quiescence: how a control call knows that a lcore uses nothing that the call has just marked dead.
//!
//! A [`PathClock`] is odd while its lcore is inside a post or a poll and even outside. The lcore enters (odd, then a fence) and reads
//! marks after that; a control call marks, fences, and reads the clock after that. With both fences sequentially consistent at
//! least one of the two sees the other (Dekker): either the lcore finds the object dead, or the call finds the lcore inside and
//! waits until the clock moves. One more step then begins after the mark, so it finds the object dead.

use std::time::{Duration, Instant};

use crossbeam_utils::CachePadded;
use keyfence_mempool::sync::{AtomicU64, Ordering, fence};

use crate::error::ControlError;

/// Whether one lcore is inside a post or poll. Written by that lcore alone.
#[derive(Debug)]
pub(crate) struct PathClock {
    steps: CachePadded<AtomicU64>,
}

impl PathClock {
    pub(crate) fn new() -> Self {
        Self {
            steps: CachePadded::new(AtomicU64::new(0)),
        }
    }

    /// The lcore enters. Marks are to be read only after this.
    #[inline]
    pub(crate) fn enter(&self) {
        let steps = self.steps.load(Ordering::Relaxed);
        assert!(steps.is_multiple_of(2), "a path was entered twice");
        // Release: a wait that misses `leave` and sees this step has seen what the step before did (loom found it missing).
        self.steps.store(steps + 1, Ordering::Release);
        fence(Ordering::SeqCst);
    }

    /// The lcore leaves: everything it did inside happens before a wait that sees this.
    #[inline]
    pub(crate) fn leave(&self) {
        let steps = self.steps.load(Ordering::Relaxed);
        assert!(!steps.is_multiple_of(2), "a path was left twice");
        self.steps.store(steps + 1, Ordering::Release);
    }

    /// Called after marking: the start of a wait for this lcore.
    pub(crate) fn start_wait(&self) -> Wait<'_> {
        fence(Ordering::SeqCst);
        Wait {
            clock: self,
            seen: self.steps.load(Ordering::Acquire),
        }
    }
}

/// A wait for one lcore, begun after the mark.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wait<'a> {
    clock: &'a PathClock,
    seen: u64,
}

impl Wait<'_> {
    /// Whether the step that was running when the wait began, if any, has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.seen.is_multiple_of(2) || self.clock.steps.load(Ordering::Acquire) != self.seen
    }
}

/// Waits, yielding, until each clock has passed a quiescent point or `timeout_ns` is over. Never waits if all lcores are outside, so that
/// one thread can step everything.
pub(crate) fn wait_for<'a>(
    clocks: impl Iterator<Item = &'a PathClock>,
    timeout_ns: u64,
) -> Result<(), ControlError> {
    let waits: Vec<Wait<'a>> = clocks.map(PathClock::start_wait).collect();
    let mut started = None;
    for wait in waits {
        while !wait.is_over() {
            let started = *started.get_or_insert_with(Instant::now);
            let waited = started.elapsed();
            if waited >= Duration::from_nanos(timeout_ns) {
                return Err(ControlError::Late {
                    waited_ns: waited.as_nanos() as u64,
                });
            }
            std::thread::yield_now();
        }
    }
    Ok(())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_call_never_waits_for_a_path_that_is_outside() {
        let clock = PathClock::new();
        wait_for([&clock].into_iter(), 0).unwrap();
        clock.enter();
        clock.leave();
        wait_for([&clock].into_iter(), 0).unwrap();
    }

    #[test]
    fn a_path_that_stays_inside_makes_the_call_late_and_any_move_ends_the_wait() {
        let clock = PathClock::new();
        clock.enter();
        let late = wait_for([&clock].into_iter(), 0);
        assert!(matches!(late, Err(ControlError::Late { .. })), "{late:?}");
        let wait = clock.start_wait();
        assert!(!wait.is_over());
        clock.leave();
        assert!(wait.is_over());
        clock.enter();
        assert!(wait.is_over(), "a later step began after the mark");
        clock.leave();
    }
}

/// `RUSTFLAGS="--cfg loom" cargo test -p keyfence-pmd --lib --release quiesce`
#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use keyfence_mempool::sync::{Arc, AtomicBool};

    struct Model {
        clock: PathClock,
        dead: AtomicBool,
        busy: AtomicBool,
    }

    #[test]
    fn r3_after_the_wait_no_step_uses_what_was_marked() {
        loom::model(|| {
            let model = Arc::new(Model {
                clock: PathClock::new(),
                dead: AtomicBool::new(false),
                busy: AtomicBool::new(false),
            });
            let path = {
                let model = Arc::clone(&model);
                loom::thread::spawn(move || {
                    for _ in 0..2 {
                        model.clock.enter();
                        if !model.dead.load(Ordering::Relaxed) {
                            model.busy.store(true, Ordering::Relaxed);
                            model.busy.store(false, Ordering::Relaxed);
                        }
                        model.clock.leave();
                    }
                })
            };
            model.dead.store(true, Ordering::Relaxed);
            let wait = model.clock.start_wait();
            while !wait.is_over() {
                loom::thread::yield_now();
            }
            assert!(
                !model.busy.load(Ordering::Relaxed),
                "a step still uses the object after the wait"
            );
            path.join().unwrap();
        });
    }
}
