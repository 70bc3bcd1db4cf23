//! The fields of `perf`.

use serde::Serialize;

use super::Latency;
use crate::perf::Op;

/// The one field of `perf`.
#[derive(Serialize, Clone, PartialEq, Debug)]
pub struct PerfBody {
    /// What was measured.
    pub perf: PerfReport,
}

/// What `perf` measured.
#[derive(Serialize, Clone, PartialEq, Debug)]
pub struct PerfReport {
    /// The operation.
    pub op: Op,
    /// Bytes of each.
    pub size: u64,
    /// Operations measured.
    pub iters: u64,
    /// Operations in flight at most.
    pub depth: u32,
    /// Whether they began at a rate and not each when one ended.
    pub open_loop: bool,
    /// Whether the latency is half of an operation's way there and back.
    pub one_way: bool,
    /// CPUs of the two lcores.
    pub cpus: [u32; 2],
    /// Of all rounds.
    pub latency_ns: Latency,
    /// Median over the rounds.
    pub rate_per_s: f64,
    /// A cache line's way there and back between the same threads; median.
    pub probe_ns: f64,
    /// Rounds measured.
    pub rounds: usize,
    /// Rounds whose ping-pongs before and after agree.
    pub rounds_kept: usize,
    /// Median latency of a round to the ping-pongs around it, over those rounds.
    pub latency_to_probe: Middle,
}

/// The middle of some values.
#[derive(Serialize, Clone, Copy, PartialEq, Debug, Default)]
pub struct Middle {
    /// A quarter is below.
    pub p25: f64,
    /// Half are below.
    pub p50: f64,
    /// Three quarters are below.
    pub p75: f64,
}
