//! The cache-line ping-pong that other numbers are measured against.
//!
//! The round trip of one cache line shows in which of its moods the machine is. A benchmark takes it between what it
//! measures and reports the ratio.

use std::hint;
use std::thread;
use std::time::Instant;

use core_affinity::CoreId;
use keyfence_mempool::sync::{AtomicBool, AtomicU64, Ordering};

/// Round trips of one probe: about a millisecond when the cores are near each other.
const ROUND_TRIPS: u64 = 10_000;
/// Spins before a waiting side yields, which only matters when both sides have one core.
pub(crate) const SPINS: u32 = 4096;

/// A line that nothing else shares, nor its neighbour that the processor fetches with it.
#[repr(align(128))]
struct Line(AtomicU64);

/// Nanoseconds for a cache line to go from one core to another and back, pinned to the first two cores that this
/// process may use. With one core it measures the scheduler instead. 0 if the two threads can't be started. Takes about a millisecond; the
/// caller's affinity stays as it was.
pub fn cache_line_round_trip_ns() -> f64 {
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    let (ping, pong) = (Line(AtomicU64::new(0)), Line(AtomicU64::new(0)));
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let pong_thread = thread::Builder::new().spawn_scoped(scope, || {
            pin(cores.get(1));
            let mut expected = 1;
            while wait_for(&ping.0, expected, &stop) {
                pong.0.store(expected, Ordering::Release);
                expected += 1;
            }
        });
        let timer = thread::Builder::new().spawn_scoped(scope, || {
            pin(cores.first());
            let nanoseconds = time_round_trips(&ping.0, &pong.0, &stop);
            stop.store(true, Ordering::Release);
            nanoseconds
        });
        match (pong_thread, timer) {
            (Ok(_), Ok(timer)) => timer.join().expect("the timing thread does not panic"),
            // Whichever was started must not wait for the other.
            _ => {
                stop.store(true, Ordering::Release);
                0.0
            }
        }
    })
}

fn time_round_trips(ping: &AtomicU64, pong: &AtomicU64, stop: &AtomicBool) -> f64 {
    // The first trips pay for the thread's start.
    const WARM_UP: u64 = 100;
    let trip = |number| {
        ping.store(number, Ordering::Release);
        wait_for(pong, number, stop);
    };
    (1..=WARM_UP).for_each(trip);
    let start = Instant::now();
    (WARM_UP + 1..=WARM_UP + ROUND_TRIPS).for_each(trip);
    start.elapsed().as_nanos() as f64 / ROUND_TRIPS as f64
}

/// `false` if there is nothing more to wait for.
fn wait_for(line: &AtomicU64, expected: u64, stop: &AtomicBool) -> bool {
    loop {
        for _ in 0..SPINS {
            if line.load(Ordering::Acquire) == expected {
                return true;
            }
            hint::spin_loop();
        }
        if stop.load(Ordering::Acquire) {
            return false;
        }
        thread::yield_now();
    }
}

/// Moves this thread to a core; only speed depends on it.
pub(crate) fn pin(core: Option<&CoreId>) {
    if let Some(core) = core {
        core_affinity::set_for_current(*core);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b09_the_probe_leaves_the_callers_affinity_alone() {
        let before = core_affinity::get_core_ids();
        let nanoseconds = cache_line_round_trip_ns();
        assert!(nanoseconds > 1.0, "{nanoseconds} ns");
        assert_eq!(core_affinity::get_core_ids(), before);
    }
}
