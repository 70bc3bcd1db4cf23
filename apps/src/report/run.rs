//! The fields of `run`.

use serde::Serialize;

use super::{Latency, Quantiles};

/// What `run` did and saw.
#[derive(Serialize, Clone, PartialEq, Debug, Default)]
pub struct RunReport {
    /// The arenas.
    pub memory: MemoryReport,
    /// The lcores of the engines under load.
    pub lcores: Vec<LcoreReport>,
    /// Of the traffic.
    pub duration_s: f64,
    /// A cache line's way there and back between two CPUs: what the latencies are to be compared with. 0 with one CPU.
    pub probe_ns: u64,
    /// The phases in their order.
    pub phases: Vec<PhaseReport>,
    /// What was reclaimed.
    pub reclaim: ReclaimReport,
    /// How much of what can go wrong had a chance to.
    pub coverage: CoverageReport,
    /// What went wrong. All 0 and balanced in a good run.
    pub checks: ChecksReport,
    /// Whether a signal ended the run early; the minima then don't apply.
    pub interrupted: bool,
    /// The checks that failed, by the names of their fields.
    pub caught_by: Vec<String>,
    /// Lanes that broke.
    pub lanes: LanesReport,
    /// Peers that were lost.
    pub peers: PeersReport,
    /// Paced latency of contexts that nothing was done to, without and with something being done to others.
    pub bystanders: BystandersReport,
}

/// The arenas of all engines together.
#[derive(Serialize, Clone, PartialEq, Eq, Debug, Default)]
pub struct MemoryReport {
    /// `1GiB`, `2MiB`, `transparent` or `4KiB`; the smallest of the engines'.
    pub page_kind: String,
    /// Bytes mapped.
    pub bytes: u64,
    /// Whether all of them are locked.
    pub locked: bool,
}

/// One lcore.
#[derive(Serialize, Clone, PartialEq, Eq, Debug, Default)]
pub struct LcoreReport {
    /// The engine's name.
    pub engine: String,
    /// Its number in the engine.
    pub lcore: u16,
    /// The CPU that it is pinned to.
    pub cpu: u32,
    /// Poll steps.
    pub steps: u64,
    /// Operations completed.
    pub ops: u64,
    /// Steps that took longer than `step_max`.
    pub stalls: u64,
    /// The longest time from one poll step to the next.
    pub longest_pause_ns: u64,
}

/// One phase.
#[derive(Serialize, Clone, PartialEq, Eq, Debug, Default)]
pub struct PhaseReport {
    /// `paced` or `flat`.
    pub name: String,
    /// By kind.
    pub ops: OpsReport,
}

/// Operations by kind.
#[derive(Serialize, Clone, PartialEq, Eq, Debug, Default)]
pub struct OpsReport {
    /// Writes.
    pub write: OpReport,
    /// Reads.
    pub read: OpReport,
    /// Sends.
    pub send: OpReport,
}

/// Operations of one kind.
#[derive(Serialize, Clone, PartialEq, Eq, Debug, Default)]
pub struct OpReport {
    /// Operations completed with `Ok`.
    pub count: u64,
    /// Their bytes.
    pub bytes: u64,
    /// How many of them were timed.
    pub samples: u64,
    /// Samples beyond the histogram's bound.
    pub overflow: u64,
    /// Paced: from the intended start.
    pub latency_ns: Latency,
}

/// What was reclaimed.
#[derive(Serialize, Clone, PartialEq, Eq, Debug, Default)]
pub struct ReclaimReport {
    /// Contexts that ended as `Reclaimed`.
    pub contexts_reclaimed: u64,
    /// Grants that ended as `Zapped`.
    pub grants_zapped: u64,
    /// Contexts, keys and buffers in quarantine at the end.
    pub quarantined: u64,
    /// From the kill to `Reclaimed`.
    pub reclaim_ns: Quantiles,
}

/// How much of what can go wrong had a chance to.
#[derive(Serialize, Clone, PartialEq, Eq, Debug, Default)]
pub struct CoverageReport {
    /// Kills while operations of the context were in flight.
    pub reclaims_with_ops_in_flight: u64,
    /// Revokes while the holder's write was in flight.
    pub revokes_with_write_in_flight: u64,
    /// Buffers given to a new owner.
    pub reuses: u64,
    /// Bytes of them compared with their pattern.
    pub bytes_scanned: u64,
    /// Reads by a revoked key whose result was looked at.
    pub late_reads_checked: u64,
    /// Operations of which a broken lane left no known end.
    pub operations_cut_off: u64,
    /// Operations that were not sent behind those, until their context went on.
    pub operations_not_sent: u64,
    /// Accesses by keys that were revoked on their lane, each refused; what was not is a stale key.
    pub dead_keys_refused: u64,
    /// Contexts whose service panicked.
    pub panics: u64,
    /// Clients that hung and were reclaimed when their lease had run out.
    pub hangs: u64,
    /// Leases of grants that ran out.
    pub leases_ended: u64,
    /// Operations completed between the two engines under load and the third one.
    pub operations_with_third: u64,
}

/// What went wrong.
#[derive(Serialize, Clone, PartialEq, Eq, Debug, Default)]
pub struct ChecksReport {
    /// Bytes that changed in memory after it was given back.
    pub late_bytes: u64,
    /// Reads that saw memory after it was given back.
    pub late_reads: u64,
    /// Keys that the device still honoured at `Zapped`, at the end of a flush or at a reuse.
    pub stale_keys: u64,
    /// Own work requests that had not ended by then.
    pub open_wrs: u64,
    /// Operations of untouched contexts that failed.
    pub bystander_errors: u64,
    /// Operations without a completion.
    pub unfinished_ops: u64,
    /// Grants without `Zapped` or `GrantQuarantined`.
    pub leaked_grants: u64,
    /// Breaches of the device contract, by the device or by the runtime.
    pub contract_violations: u64,
    /// Reused buffers that were not scanned before their use or their owner's end.
    pub unscanned_reuses: u64,
    /// Reclaims that took longer than the bound that `check` prints, though no lcore stalled.
    pub late_reclaims: u64,
    /// Whether use and sum are equal for every quota and pool.
    pub books_balance: bool,
}

/// Lanes that broke.
#[derive(Serialize, Clone, PartialEq, Eq, Debug, Default)]
pub struct LanesReport {
    /// Repairs that came to their end at both ends.
    pub repairs: u64,
    /// From the break to the end of the repair at the later end.
    pub repair_ns: Quantiles,
}

/// Peers that were lost.
#[derive(Serialize, Clone, PartialEq, Eq, Debug, Default)]
pub struct PeersReport {
    /// Sessions that ended by loss, counted at each engine that was there to see it.
    pub down: u64,
    /// Times that the third engine was stopped for longer than `timeouts.reconnect`, and resumed.
    pub stops: u64,
    /// Times that it was gone without a word, and started anew.
    pub restarts: u64,
}

/// Latency of untouched contexts.
#[derive(Serialize, Clone, PartialEq, Eq, Debug, Default)]
pub struct BystandersReport {
    /// In the quiet part of the run, or, where it has none, while nobody was reclaimed.
    pub quiet: Latency,
    /// Behind it, or while somebody was.
    pub chaos: Latency,
}
