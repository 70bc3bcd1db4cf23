//! A latency histogram that never fails: what is beyond its range is counted, and the true maximum is kept.

use hdrhistogram::Histogram;

/// The longest time that is recorded exactly: a minute.
pub const MAX_TRACKED_NS: u64 = 60_000_000_000;

/// Latencies in nanoseconds, to three digits. Recording allocates nothing.
#[derive(Clone, Debug)]
pub struct LatencyHistogram {
    histogram: Histogram<u64>,
    overflowed: u64,
    max_ns: u64,
}

impl LatencyHistogram {
    /// An empty histogram.
    #[must_use]
    pub fn new() -> Self {
        Self {
            histogram: Histogram::new_with_bounds(1, MAX_TRACKED_NS, 3)
                .expect("constant bounds are valid"),
            overflowed: 0,
            max_ns: 0,
        }
    }

    /// Records one latency. One beyond [`MAX_TRACKED_NS`] counts as that much, and as an overflow.
    pub fn record(&mut self, latency_ns: u64) {
        self.max_ns = self.max_ns.max(latency_ns);
        if latency_ns > MAX_TRACKED_NS {
            self.overflowed += 1;
        }
        self.histogram
            .saturating_record(latency_ns.min(MAX_TRACKED_NS));
    }

    /// Records the time from `start_ns` to `end_ns`. A clock that went back in between gives no sample of 2^64 ns but one of 0.
    pub fn record_between(&mut self, start_ns: u64, end_ns: u64) {
        self.record(end_ns.saturating_sub(start_ns));
    }

    /// Latencies recorded.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// Latencies longer than this, to the histogram's three digits.
    #[must_use]
    pub fn count_above(&self, ns: u64) -> u64 {
        self.count() - self.histogram.count_between(0, ns)
    }

    /// Latencies beyond the range.
    #[must_use]
    pub fn overflowed(&self) -> u64 {
        self.overflowed
    }

    /// The least; 0 if there is none.
    #[must_use]
    pub fn min_ns(&self) -> u64 {
        self.histogram.min()
    }

    /// The greatest, exactly, also beyond the range.
    #[must_use]
    pub fn max_ns(&self) -> u64 {
        self.max_ns
    }

    /// The latency that `quantile` (0 to 1) of all do not exceed; 0 if there is none.
    #[must_use]
    pub fn quantile_ns(&self, quantile: f64) -> u64 {
        if quantile >= 1.0 {
            return self.max_ns;
        }
        self.histogram.value_at_quantile(quantile).min(self.max_ns)
    }

    /// Adds another histogram's latencies.
    pub fn merge(&mut self, other: &Self) {
        self.histogram
            .add(&other.histogram)
            .expect("all histograms have the same bounds");
        self.overflowed += other.overflowed;
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    /// The histogram itself, for log files.
    #[must_use]
    pub fn as_hdr(&self) -> &Histogram<u64> {
        &self.histogram
    }
}

impl Default for LatencyHistogram {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b19_a_stall_beyond_the_range_is_counted_and_the_true_maximum_shown() {
        let mut latencies = LatencyHistogram::new();
        latencies.record(1_000);
        latencies.record(MAX_TRACKED_NS * 7);
        assert_eq!(latencies.count(), 2);
        assert_eq!(latencies.overflowed(), 1);
        assert_eq!(latencies.max_ns(), MAX_TRACKED_NS * 7);
        assert_eq!(latencies.quantile_ns(1.0), MAX_TRACKED_NS * 7);
        assert_eq!(
            (latencies.count_above(999), latencies.count_above(2_000)),
            (2, 1)
        );
        let mut sum = LatencyHistogram::new();
        sum.merge(&latencies);
        assert_eq!((sum.overflowed(), sum.max_ns()), (1, MAX_TRACKED_NS * 7));
    }

    #[test]
    fn b26_a_clock_that_goes_back_gives_no_huge_sample() {
        let mut latencies = LatencyHistogram::new();
        latencies.record_between(1_000, 400);
        assert_eq!(latencies.max_ns(), 0);
        assert_eq!(latencies.count(), 1);
    }
}
