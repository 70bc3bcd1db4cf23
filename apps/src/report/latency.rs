//! Latencies, from histograms.

use hdrhistogram::Histogram;
use serde::Serialize;

/// A histogram's summary. All 0 where there is no sample.
#[derive(Serialize, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Latency {
    /// The shortest.
    pub min: u64,
    /// Half were no longer.
    pub p50: u64,
    /// 9 of 10 were no longer.
    pub p90: u64,
    /// 99 of 100 were no longer.
    pub p99: u64,
    /// 999 of 1000 were no longer.
    pub p99_9: u64,
    /// The longest, as it was and not as the histogram rounds it.
    pub max: u64,
}

/// The quantiles of something rare.
#[derive(Serialize, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Quantiles {
    /// Half were no longer.
    pub p50: u64,
    /// 99 of 100 were no longer.
    pub p99: u64,
    /// The longest.
    pub max: u64,
}

impl Latency {
    /// The summary of a histogram of ns whose longest sample was `max_ns`. A sample beyond the histogram's bound is counted there at the
    /// bound, so no quantile exceeds `max_ns` but by rounding, which is undone here.
    pub fn of(histogram: &Histogram<u64>, max_ns: u64) -> Self {
        if histogram.is_empty() {
            return Self::default();
        }
        let quantile = |q: f64| histogram.value_at_quantile(q).min(max_ns);
        Self {
            min: histogram.min().min(max_ns),
            p50: quantile(0.5),
            p90: quantile(0.9),
            p99: quantile(0.99),
            p99_9: quantile(0.999),
            max: max_ns,
        }
    }
}

impl From<Latency> for Quantiles {
    fn from(latency: Latency) -> Self {
        Self {
            p50: latency.p50,
            p99: latency.p99,
            max: latency.max,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_sample_is_all_zero() {
        let histogram = Histogram::new(3).expect("3 digits");
        assert_eq!(Latency::of(&histogram, 0), Latency::default());
    }

    #[test]
    fn quantiles_ascend_to_the_true_maximum() {
        let mut histogram = Histogram::new_with_bounds(1, 1_000_000, 3).expect("legal bounds");
        for ns in 1..=10_000 {
            histogram.record(ns).expect("within the bounds");
        }
        let latency = Latency::of(&histogram, 10_000);
        assert_eq!((latency.min, latency.max), (1, 10_000));
        assert_eq!(
            [latency.p50, latency.p90, latency.p99].map(|ns| ns / 100),
            [50, 90, 99]
        );
        assert!(latency.p99 <= latency.p99_9 && latency.p99_9 <= latency.max);
    }

    #[test]
    fn b19_a_stall_beyond_the_bound_shows_its_true_maximum() {
        let mut histogram = Histogram::new_with_bounds(1, 1_000_000, 3).expect("legal bounds");
        histogram.saturating_record(10);
        histogram.saturating_record(3_600_000_000_000);
        let latency = Latency::of(&histogram, 3_600_000_000_000);
        assert_eq!(
            (latency.min, latency.p50, latency.max),
            (10, 10, 3_600_000_000_000)
        );
    }
}
