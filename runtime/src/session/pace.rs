//! How long a lane may be busy, against how long the other side waits for it.

use core::fmt;

/// What an engine says of its lanes' traffic.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Pace {
    /// The most bytes posted and uncompleted on a lane.
    pub cap_bytes: u64,
    /// The slowest rate that it counts on.
    pub slowest_rate_bytes_per_s: u64,
    /// How long it waits for the answer to a Revoke.
    pub fence_timeout_ns: u64,
}

/// A lane's bytes in flight take longer than the other side's fence: a Revoke behind them would be answered too late.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PaceMisfit {
    /// `limits.lane_bytes_in_flight` of the one.
    pub cap_bytes: u64,
    /// Its `limits.slowest_rate`.
    pub slowest_rate_bytes_per_s: u64,
    /// `timeouts.fence` of the other.
    pub fence_timeout_ns: u64,
}

impl Pace {
    /// Whether what this side has in flight is through within the other's fence. Exact; at a rate of 0 nothing is.
    pub fn fits(&self, fence_timeout_ns: u64) -> Result<(), PaceMisfit> {
        let wanted = u128::from(self.cap_bytes) * 1_000_000_000;
        let there = u128::from(fence_timeout_ns) * u128::from(self.slowest_rate_bytes_per_s);
        (wanted <= there).then_some(()).ok_or(PaceMisfit {
            cap_bytes: self.cap_bytes,
            slowest_rate_bytes_per_s: self.slowest_rate_bytes_per_s,
            fence_timeout_ns,
        })
    }
}

impl PaceMisfit {
    /// How long the bytes take, rounded up; [`u64::MAX`] for ever.
    #[must_use]
    pub fn takes_ns(&self) -> u64 {
        let bytes = u128::from(self.cap_bytes) * 1_000_000_000;
        let rate = u128::from(self.slowest_rate_bytes_per_s);
        let takes_ns = bytes.checked_div(rate).map(|_| bytes.div_ceil(rate));
        takes_ns.map_or(u64::MAX, |ns| u64::try_from(ns).unwrap_or(u64::MAX))
    }
}

impl fmt::Display for PaceMisfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} bytes at {} bytes a second take {} ns, more than a fence of {} ns",
            self.cap_bytes,
            self.slowest_rate_bytes_per_s,
            self.takes_ns(),
            self.fence_timeout_ns
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r6_what_takes_a_nanosecond_longer_than_the_fence_does_not_fit() {
        let pace = |cap_bytes, slowest_rate_bytes_per_s| Pace {
            cap_bytes,
            slowest_rate_bytes_per_s,
            fence_timeout_ns: 0,
        };
        assert_eq!(pace(1_000, 1_000_000_000).fits(1_000), Ok(()));
        let misfit = pace(1_000, 1_000_000_000).fits(999).unwrap_err();
        assert_eq!(misfit.takes_ns(), 1_000);
        // Not rounded down.
        let misfit = pace(1, 3).fits(333_333_333).unwrap_err();
        assert_eq!(misfit.takes_ns(), 333_333_334);
        let text =
            "1 bytes at 3 bytes a second take 333333334 ns, more than a fence of 333333333 ns";
        assert_eq!(misfit.to_string(), text);
        assert_eq!(pace(1, 0).fits(u64::MAX).unwrap_err().takes_ns(), u64::MAX);
        assert_eq!(pace(u64::MAX, u64::MAX).fits(1_000_000_000), Ok(()));
        let most = pace(u64::MAX, 1).fits(u64::MAX).unwrap_err();
        assert_eq!(most.takes_ns(), u64::MAX);
    }
}
