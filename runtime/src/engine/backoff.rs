//! Exponential back-off with jitter: what failed is tried again later each time, and those who failed together not together.

use crate::random::Random;

/// How long to wait between two tries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Bounds {
    /// After the first failure.
    least_ns: u64,
    /// After many.
    most_ns: u64,
}

impl Bounds {
    /// From `least_ns` up to `most_ns`, which is at least 1 and wins over a greater `least_ns`.
    pub fn new(least_ns: u64, most_ns: u64) -> Self {
        let most_ns = most_ns.max(1);
        Self {
            least_ns: least_ns.clamp(1, most_ns),
            most_ns,
        }
    }

    /// The shortest that a wait is before its jitter.
    pub fn least_ns(self) -> u64 {
        self.least_ns
    }
}

/// How often something has failed in a row.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// Notes a failure. The wait doubles with each, up to the bound; up to half of it is taken off at random.
    pub fn failed(&mut self, bounds: Bounds, random: &mut Random) -> u64 {
        let factor = 1_u64.checked_shl(self.failures).unwrap_or(u64::MAX);
        self.failures = self.failures.saturating_add(1);
        let whole_ns = bounds.least_ns.saturating_mul(factor).min(bounds.most_ns);
        whole_ns - random.up_to(whole_ns / 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_bound_and_lose_at_most_half() {
        let bounds = Bounds::new(5, 1_000);
        let (mut backoff, mut random) = (Backoff::default(), Random::new(7));
        let mut whole_ns = 5;
        for _ in 0..200 {
            let wait_ns = backoff.failed(bounds, &mut random);
            assert!((whole_ns - whole_ns / 2..=whole_ns).contains(&wait_ns));
            whole_ns = (whole_ns * 2).min(1_000);
        }
    }

    #[test]
    fn those_who_fail_together_wait_apart() {
        let bounds = Bounds::new(1_000_000, 1_000_000);
        let wait_ns = |seed| Backoff::default().failed(bounds, &mut Random::new(seed));
        let waits: std::collections::BTreeSet<_> = (0..32).map(wait_ns).collect();
        assert!(waits.len() > 30, "{waits:?}");
    }

    #[test]
    fn bounds_that_cross_are_the_upper_one() {
        let (mut backoff, mut random) = (Backoff::default(), Random::new(1));
        assert_eq!(backoff.failed(Bounds::new(9, 0), &mut random), 1);
        assert!(backoff.failed(Bounds::new(9, 4), &mut random) <= 4);
    }
}
