//! What an lcore's thread does between steps that find nothing: the only place that sleeps.

use core::time::Duration;

use keyfence_mempool::sync::spin_loop;

use crate::config::IdlePolicy;

/// Idle steps after which a backing-off lcore pauses between steps.
const SPIN_STEPS: u32 = 64;

/// Idle steps after which it yields its CPU.
const PAUSE_STEPS: u32 = 256;

/// Idle steps after which it sleeps.
const YIELD_STEPS: u32 = 512;

/// The first sleep; each further one is twice as long, up to the configured bound.
const FIRST_SLEEP_NS: u64 = 1_000;

/// How long a lcore has been idle, and what it does about it.
#[derive(Debug)]
pub(super) struct Pace {
    policy: IdlePolicy,
    idle_steps: u32,
}

/// What is done after an idle step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Rest {
    Spin,
    Pause,
    Yield,
    Sleep(u64),
}

impl Pace {
    /// A lcore that has just found work.
    pub fn new(policy: IdlePolicy) -> Self {
        Self {
            policy,
            idle_steps: 0,
        }
    }

    /// A step found work.
    pub fn busy(&mut self) {
        self.idle_steps = 0;
    }

    /// A step found none.
    pub fn idle(&mut self) {
        match self.rest() {
            Rest::Spin => {}
            Rest::Pause => spin_loop(),
            Rest::Yield => std::thread::yield_now(),
            Rest::Sleep(ns) => std::thread::sleep(Duration::from_nanos(ns)),
        }
        self.idle_steps = self.idle_steps.saturating_add(1);
    }

    fn rest(&self) -> Rest {
        let IdlePolicy::Backoff { max_sleep_ns } = self.policy else {
            return Rest::Pause;
        };
        match self.idle_steps {
            0..SPIN_STEPS => Rest::Spin,
            SPIN_STEPS..PAUSE_STEPS => Rest::Pause,
            PAUSE_STEPS..YIELD_STEPS => Rest::Yield,
            steps => {
                let doublings = (steps - YIELD_STEPS).min(40);
                Rest::Sleep((FIRST_SLEEP_NS << doublings).min(max_sleep_ns))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b01_a_backing_off_lcore_spins_pauses_yields_and_then_sleeps_no_longer_than_its_bound() {
        let mut pace = Pace::new(IdlePolicy::Backoff {
            max_sleep_ns: 5_000,
        });
        let mut seen = Vec::new();
        for steps in 0..2_000 {
            pace.idle_steps = steps;
            let rest = pace.rest();
            if seen.last() != Some(&rest) {
                seen.push(rest);
            }
        }
        let sleeps = [1_000, 2_000, 4_000, 5_000].map(Rest::Sleep);
        assert_eq!(seen[..3], [Rest::Spin, Rest::Pause, Rest::Yield]);
        assert_eq!(seen[3..], sleeps);
        pace.busy();
        assert_eq!(pace.rest(), Rest::Spin);
    }

    #[test]
    fn a_spinning_lcore_never_enters_the_kernel() {
        let mut pace = Pace::new(IdlePolicy::Spin);
        pace.idle_steps = u32::MAX;
        assert_eq!(pace.rest(), Rest::Pause);
    }
}
