//! The fields of `sim`.

use std::collections::BTreeMap;

use serde::Serialize;

/// The one field of `sim`.
#[derive(Serialize, Clone, PartialEq, Debug)]
pub struct SimBody {
    /// What was simulated, and what was found.
    pub sim: SimReport,
}

/// What `sim` did and found.
#[derive(Serialize, Clone, PartialEq, Debug)]
pub struct SimReport {
    /// Seeds run.
    pub seeds: u64,
    /// Seeds that broke a promise, in order, each with the first check that saw it.
    pub failed: Vec<FailedSeed>,
    /// Operations of contexts that ended.
    pub ops: u64,
    /// Contexts reclaimed.
    pub reclaims: u64,
    /// Sessions lost, each side counted.
    pub sessions_lost: u64,
    /// Work requests that the adapters of a seed took; the median.
    pub device_ops_p50: u64,
    /// Contexts reclaimed in a seed; the median.
    pub reclaims_p50: u64,
    /// In how many seeds each kind of fault struck.
    pub faults: BTreeMap<&'static str, u64>,
    /// (event, state) pairs of the reclaim machine that were met, in all key modes together.
    pub pairs: usize,
    /// What should have been reached and was not; empty if fewer seeds were run than that can be asked of.
    pub unreached: Vec<String>,
    /// Whether a signal ended it early.
    pub interrupted: bool,
    /// Fault kinds and checks that wait for what is not built.
    pub held_back: Vec<&'static str>,
    /// Of everything that happened in all seeds: the same in each process.
    pub trace_hash: String,
    /// Seeds a second, all threads together.
    pub seeds_per_s: f64,
}

/// A seed that broke a promise.
#[derive(Serialize, Clone, PartialEq, Eq, Debug)]
pub struct FailedSeed {
    /// The seed.
    pub seed: u64,
    /// The check.
    pub check: &'static str,
}
