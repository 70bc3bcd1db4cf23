//! `[load]`: what `run` does to its engines, and what it must have seen to call the run good.

/// The load of a run.
#[derive(Clone, PartialEq, Debug)]
pub struct LoadConfig {
    /// `seed`: of every random choice.
    pub seed: u64,
    /// `duration`: of the traffic, both phases together.
    pub duration_ns: u64,
    /// `contexts`: live contexts on each side.
    pub contexts: u32,
    /// `sizes`: bytes of an operation; each is as likely as the other.
    pub sizes_bytes: Vec<u64>,
    /// `large`: bytes of the operation that is cut into many slices.
    pub large_bytes: u64,
    /// `mix`: how often each operation is chosen.
    pub mix: OperationMix,
    /// `paced_share`: the part of `duration` that goes to the paced phase, 0 to 1; the rest is flat out.
    pub paced_share: f64,
    /// `paced_rate`: operations a second of each side in the paced phase.
    pub paced_rate_per_s: f64,
    /// `kills_per_s`: contexts killed and reborn, a second.
    pub kills_per_s: f64,
    /// `revokes_per_s`: single grants revoked, a second.
    pub revokes_per_s: f64,
    /// The coverage that the run must reach.
    pub minima: Minima,
}

/// Weights of the operations of a load; at least one is not 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OperationMix {
    /// `write`
    pub write: u32,
    /// `read`
    pub read: u32,
    /// `send`
    pub send: u32,
}

/// What a run must have covered, else it exits 1. Each must be in the file: a run that proves nothing must not look good.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Minima {
    /// `min_operations`: completed.
    pub operations: u64,
    /// `min_reclaims`: contexts reclaimed.
    pub reclaims: u64,
    /// `min_kills_with_ops_in_flight`: percent of the kills.
    pub kills_with_ops_in_flight_percent: f64,
    /// `min_revokes_with_write_in_flight`: revokes of single grants while the holder's write was in flight.
    pub revokes_with_write_in_flight: u64,
    /// `max_quarantined`: keys, contexts and buffers in quarantine at the end.
    pub max_quarantined: u64,
    /// `min_share_percent`: of an equal share of the operations, for each live context in each phase.
    pub share_percent: f64,
}

impl Default for LoadConfig {
    fn default() -> Self {
        Self {
            seed: 1,
            duration_ns: 10_000_000_000,
            contexts: 64,
            sizes_bytes: vec![64, 1024, 4096],
            large_bytes: 1 << 20,
            mix: OperationMix {
                write: 2,
                read: 1,
                send: 1,
            },
            paced_share: 0.3,
            paced_rate_per_s: 20_000.0,
            kills_per_s: 40.0,
            revokes_per_s: 40.0,
            minima: Minima::default(),
        }
    }
}
