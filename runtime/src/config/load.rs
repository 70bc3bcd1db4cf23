//! `[load]`: what `run` does to its engines, and what it must have seen to call the run good.

use super::reader::{Item, Key, Kind, read_list, read_table};
use super::report::{Path, Report};
use super::value;

/// The load of a run.
#[derive(Clone, PartialEq, Debug)]
pub struct LoadConfig {
    /// `seed`: of every random choice.
    pub seed: u64,
    /// `duration`: of the traffic, both phases together. If the minima are not reached by then, the load goes on for as long again at most.
    pub duration_ns: u64,
    /// `contexts`: live contexts on each side.
    pub contexts: u32,
    /// `sizes`: bytes of an operation, 1 to 16 of them, each as likely as the other. A send is cut to what a message carries.
    pub sizes_bytes: Vec<u64>,
    /// `large`: bytes of the operation that is cut into many slices.
    pub large_bytes: u64,
    /// `mix`: how often each operation is chosen; 0 for one that it doesn't name.
    pub mix: OperationMix,
    /// `paced_share`: the part of `duration` that goes to the paced phase, 0 to 1; the rest is flat out.
    pub paced_share: f64,
    /// `paced_rate`: operations a second of each side in the paced phase.
    pub paced_rate_per_s: f64,
    /// `kills_per_s`: contexts killed and reborn, a second.
    pub kills_per_s: f64,
    /// `revokes_per_s`: single grants revoked, a second.
    pub revokes_per_s: f64,
    /// `quiet_share`: the part of `duration` at its beginning in which nothing is done to anybody, 0 to `paced_share`.
    pub quiet_share: f64,
    /// `bystanders`: contexts on each side that nothing is done to; the rest are victims in turn.
    pub bystanders: u32,
    /// What else is done than kills and revokes.
    pub troubles: Troubles,
    /// The coverage that the run must reach.
    pub minima: Minima,
}

/// What a load may do beside kills and revokes; nothing of it by default. Each kind that is asked for needs its minimum.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Troubles {
    /// `lane_breaks_per_s`: queue pairs of the two engines moved to error, a second, one at a time. Lanes must be repaired: `limits.rebuilds`.
    pub lane_breaks_per_s: f64,
    /// `dead_keys_per_s`: accesses with keys that were revoked on their lane, a second. Each breaks its lane.
    pub dead_keys_per_s: f64,
    /// `panics_per_s`: contexts whose service panics, a second.
    pub panics_per_s: f64,
    /// `hangs_per_s`: clients that make a grant and hang until their lease runs out, a second.
    pub hangs_per_s: f64,
    /// `peer_stops`: how often a third engine is stopped for longer than `timeouts.reconnect`, and resumed.
    pub peer_stops: u32,
    /// `peer_restarts`: how often it is gone without a word, and starts anew.
    pub peer_restarts: u32,
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

/// What a run must have covered, else it exits 1. Each must be in the file, those of [`Troubles`] where they are asked for: a run that proves nothing must not look good.
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
    /// `min_lane_repairs`: lanes that broke, for whatever reason, and were repaired.
    pub lane_repairs: u64,
    /// `min_dead_keys`: accesses with dead keys, each of which was refused.
    pub dead_keys: u64,
    /// `min_panics`: contexts that panicked and were reclaimed.
    pub panics: u64,
    /// `min_hangs`: clients that hung and were reclaimed when their lease had run out.
    pub hangs: u64,
    /// `min_peers_down`: sessions that were lost, counted at each engine that was there to see it.
    pub peers_down: u64,
    /// `min_leases_ended`: leases of grants that ran out.
    pub leases_ended: u64,
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
            quiet_share: 0.0,
            bystanders: 0,
            troubles: Troubles::default(),
            minima: Minima::default(),
        }
    }
}

pub(super) const KEYS: &[Key<LoadConfig>] = &[
    Key::optional("seed", Kind::Count64(0, i64::MAX as u64, |l| &mut l.seed)),
    Key::optional(
        "duration",
        Kind::DurationNs(1_000_000, 86_400_000_000_000, |l| &mut l.duration_ns),
    ),
    Key::optional(
        "contexts",
        Kind::Count(1, u16::MAX as u32, |l| &mut l.contexts),
    ),
    Key::optional("sizes", Kind::Nested(read_sizes)),
    Key::optional("large", Kind::Bytes(1, 1 << 30, 1, |l| &mut l.large_bytes)),
    Key::optional("mix", Kind::Nested(read_mix)),
    Key::optional(
        "paced_share",
        Kind::Number(0.0, 1.0, |l| &mut l.paced_share),
    ),
    Key::optional(
        "paced_rate",
        Kind::Number(1.0, 1e9, |l| &mut l.paced_rate_per_s),
    ),
    Key::optional(
        "kills_per_s",
        Kind::Number(0.0, 1e6, |l| &mut l.kills_per_s),
    ),
    Key::optional(
        "revokes_per_s",
        Kind::Number(0.0, 1e6, |l| &mut l.revokes_per_s),
    ),
    Key::optional(
        "quiet_share",
        Kind::Number(0.0, 1.0, |l| &mut l.quiet_share),
    ),
    Key::optional(
        "bystanders",
        Kind::Count(0, u16::MAX as u32, |l| &mut l.bystanders),
    ),
    Key::optional(
        "lane_breaks_per_s",
        Kind::Number(0.0, 1e3, |l| &mut l.troubles.lane_breaks_per_s),
    ),
    Key::optional(
        "dead_keys_per_s",
        Kind::Number(0.0, 1e3, |l| &mut l.troubles.dead_keys_per_s),
    ),
    Key::optional(
        "panics_per_s",
        Kind::Number(0.0, 1e6, |l| &mut l.troubles.panics_per_s),
    ),
    Key::optional(
        "hangs_per_s",
        Kind::Number(0.0, 1e6, |l| &mut l.troubles.hangs_per_s),
    ),
    Key::optional(
        "peer_stops",
        Kind::Count(0, 1000, |l| &mut l.troubles.peer_stops),
    ),
    Key::optional(
        "peer_restarts",
        Kind::Count(0, 1000, |l| &mut l.troubles.peer_restarts),
    ),
    Key::required(
        "min_operations",
        Kind::Count64(0, u64::MAX, |l| &mut l.minima.operations),
    ),
    Key::required(
        "min_reclaims",
        Kind::Count64(0, u64::MAX, |l| &mut l.minima.reclaims),
    ),
    Key::required(
        "min_kills_with_ops_in_flight",
        Kind::Number(0.0, 100.0, |l| {
            &mut l.minima.kills_with_ops_in_flight_percent
        }),
    ),
    Key::required(
        "min_revokes_with_write_in_flight",
        Kind::Count64(0, u64::MAX, |l| &mut l.minima.revokes_with_write_in_flight),
    ),
    Key::required(
        "max_quarantined",
        Kind::Count64(0, u64::MAX, |l| &mut l.minima.max_quarantined),
    ),
    Key::required(
        "min_share_percent",
        Kind::Number(0.0, 100.0, |l| &mut l.minima.share_percent),
    ),
    Key::optional(
        "min_lane_repairs",
        Kind::Count64(0, u64::MAX, |l| &mut l.minima.lane_repairs),
    ),
    Key::optional(
        "min_dead_keys",
        Kind::Count64(0, u64::MAX, |l| &mut l.minima.dead_keys),
    ),
    Key::optional(
        "min_panics",
        Kind::Count64(0, u64::MAX, |l| &mut l.minima.panics),
    ),
    Key::optional(
        "min_hangs",
        Kind::Count64(0, u64::MAX, |l| &mut l.minima.hangs),
    ),
    Key::optional(
        "min_peers_down",
        Kind::Count64(0, u64::MAX, |l| &mut l.minima.peers_down),
    ),
    Key::optional(
        "min_leases_ended",
        Kind::Count64(0, u64::MAX, |l| &mut l.minima.leases_ended),
    ),
];

pub(super) const MIX_KEYS: &[Key<OperationMix>] = &[
    Key::optional("write", Kind::Count(0, 1000, |m| &mut m.write)),
    Key::optional("read", Kind::Count(0, 1000, |m| &mut m.read)),
    Key::optional("send", Kind::Count(0, 1000, |m| &mut m.send)),
];

fn read_sizes(load: &mut LoadConfig, item: &Item<'_>, path: &Path, report: &mut Report<'_>) {
    load.sizes_bytes = read_list(report, path, item, (1, 16), |value| {
        value::bytes(value, 1, 1 << 30, 1)
    });
}

fn read_mix(load: &mut LoadConfig, item: &Item<'_>, path: &Path, report: &mut Report<'_>) {
    // What the mix doesn't name, the load doesn't do.
    let mut mix = OperationMix {
        write: 0,
        read: 0,
        send: 0,
    };
    read_table(report, path, item, MIX_KEYS, &mut mix);
    let is_empty = mix
        == OperationMix {
            write: 0,
            read: 0,
            send: 0,
        };
    if item.get_ref().is_table() && is_empty && report.is_sound(path) {
        report.refuse(
            path,
            "has no operation".into(),
            "{ write = 2, read = 1, send = 1 } with one above 0".into(),
        );
    }
    load.mix = mix;
}
