//! Two threads on two cores.

use std::hint;
use std::thread;
use std::time::{Duration, Instant};

use keyfence_mempool::sync::{AtomicBool, Ordering};

use crate::probe::{SPINS, pin};

/// Time of `timed` while `other` runs on another core: both are pinned, to the first two cores that this process may use. With one core
/// the two share it.
///
/// # Panics
/// If one of the two does.
pub fn beside(other: impl FnOnce() + Send, timed: impl FnOnce() + Send) -> Duration {
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    let ready = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            pin(cores.get(1));
            ready.store(true, Ordering::Release);
            other();
        });
        let timer = scope.spawn(|| {
            pin(cores.first());
            // Not the other thread's start is timed.
            until(|| ready.load(Ordering::Acquire).then_some(()));
            let start = Instant::now();
            timed();
            start.elapsed()
        });
        timer.join().expect("the timed side does not panic")
    })
}

/// Spins until there is something, and yields now and then so that one core is enough for both threads.
pub fn until<T>(mut poll: impl FnMut() -> Option<T>) -> T {
    loop {
        for _ in 0..SPINS {
            if let Some(value) = poll() {
                return value;
            }
            hint::spin_loop();
        }
        thread::yield_now();
    }
}
