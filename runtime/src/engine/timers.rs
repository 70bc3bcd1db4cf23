//! The timers of one lcore. They are few (a handful for each epoch under way), so a list will do.

use crate::reclaim::Timer;

/// Armed timers.
#[derive(Debug)]
pub struct Timers {
    armed: Vec<(u64, Timer)>,
    earliest_ns: u64,
}

impl Timers {
    /// Room for `capacity` timers.
    pub fn new(capacity: usize) -> Self {
        Self {
            armed: Vec::with_capacity(capacity),
            earliest_ns: u64::MAX,
        }
    }

    /// Arms a timer; one that is armed already gets the new deadline.
    pub fn arm(&mut self, timer: Timer, deadline_ns: u64) {
        self.disarm(timer);
        assert!(
            self.armed.len() < self.armed.capacity(),
            "the number of epochs bounds the timers"
        );
        self.armed.push((deadline_ns, timer));
        self.earliest_ns = self.earliest_ns.min(deadline_ns);
    }

    /// Disarms a timer, if it is armed.
    pub fn disarm(&mut self, timer: Timer) {
        if let Some(at) = self.armed.iter().position(|(_, armed)| *armed == timer) {
            self.armed.swap_remove(at);
        }
    }

    /// A timer whose deadline has come, disarmed; the earliest first.
    pub fn expired(&mut self, now_ns: u64) -> Option<Timer> {
        if now_ns < self.earliest_ns {
            return None;
        }
        let earliest = self
            .armed
            .iter()
            .enumerate()
            .min_by_key(|(_, (deadline, _))| *deadline);
        let Some((at, &(deadline_ns, timer))) = earliest else {
            self.earliest_ns = u64::MAX;
            return None;
        };
        self.earliest_ns = deadline_ns;
        if now_ns < deadline_ns {
            return None;
        }
        self.armed.swap_remove(at);
        Some(timer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Epoch;

    #[test]
    fn timers_expire_in_the_order_of_their_deadlines_and_once() {
        let mut timers = Timers::new(3);
        timers.arm(Timer::Fence(Epoch(1)), 30);
        timers.arm(Timer::Fence(Epoch(2)), 10);
        timers.arm(Timer::FlushInterval, 20);
        assert_eq!(timers.expired(9), None);
        assert_eq!(timers.expired(40), Some(Timer::Fence(Epoch(2))));
        assert_eq!(timers.expired(40), Some(Timer::FlushInterval));
        timers.disarm(Timer::Fence(Epoch(1)));
        assert_eq!(timers.expired(u64::MAX), None);
    }

    #[test]
    fn b26_a_clock_that_goes_back_expires_nothing() {
        let mut timers = Timers::new(1);
        timers.arm(Timer::FlushInterval, 100);
        assert_eq!(timers.expired(50), None);
        assert_eq!(timers.expired(0), None);
        assert_eq!(timers.expired(100), Some(Timer::FlushInterval));
    }
}
