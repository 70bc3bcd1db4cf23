//! `[timeouts]`: how long each step may take, and the sum that bounds a reclaim.

use super::reader::{Key, Kind};

/// All times of one engine, in ns. The control thread and each lcore keep a copy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Timeouts {
    /// `fence`: how long a holder may take to answer a Revoke, and own operations to run down (step 2 of a reclaim).
    pub fence_timeout_ns: u64,
    /// `invalidate`: how long the invalidations of an epoch may take after the fence, before the lane is sacrificed (step 3).
    pub invalidate_timeout_ns: u64,
    /// `drain`: how long a sacrificed lane is drained before its queue pair is destroyed.
    pub drain_timeout_ns: u64,
    /// `control`: deadline of one control call, counted from its submission.
    pub control_timeout_ns: u64,
    /// `per_key`: what each key of the engine adds to a reclaim: the control thread makes and ends them one by one, whoever's they are.
    pub per_key_ns: u64,
    /// `keepalive`: interval of keep-alives to a peer.
    pub keepalive_interval_ns: u64,
    /// `reconnect`: how long a peer may be silent or unreachable before it is lost; also how long start waits for it.
    pub reconnect_timeout_ns: u64,
    /// `lease`: how long a grant lives without renewal; `None` ("none" in the file): as long as its context.
    pub lease_ns: Option<u64>,
    /// `client_lease`: how long a client may not beat before its context is reclaimed.
    pub client_lease_ns: u64,
    /// `flush_interval`: how long a single revoke waits for others before its batch is sealed.
    pub flush_interval_ns: u64,
    /// `shutdown`: bound of an orderly end after a signal.
    pub shutdown_timeout_ns: u64,
}

impl Timeouts {
    /// R6: within how many ns a reclaim ends in an engine with `keys` keys, which is [`Limits::grants`](crate::limits::Limits::grants) of them at most. Others' keys
    /// count: one control thread serves all contexts, and a context's calls may stand behind those of all.
    ///
    /// Two rounds of control calls lie on the path (deallocating a lane's windows, destroying its queue pair), and moving it to error
    /// is a third.
    ///
    /// ```
    /// use keyfence::config::Timeouts;
    /// let timeouts = Timeouts { per_key_ns: 10, ..Timeouts::default() };
    /// assert_eq!(timeouts.reclaim_bound_ns(100) - timeouts.reclaim_bound_ns(0), 1_000);
    /// ```
    #[must_use]
    pub fn reclaim_bound_ns(&self, keys: u32) -> u64 {
        self.fence_timeout_ns
            .saturating_add(self.invalidate_timeout_ns)
            .saturating_add(self.final_timeout_ns(keys))
    }

    /// The part of it behind fence and invalidate: what the control side needs at most.
    pub(crate) fn final_timeout_ns(&self, keys: u32) -> u64 {
        self.drain_timeout_ns
            .saturating_add(self.control_timeout_ns.saturating_mul(3))
            .saturating_add(self.per_key_ns.saturating_mul(u64::from(keys)))
    }
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            fence_timeout_ns: 200_000_000,
            invalidate_timeout_ns: 200_000_000,
            drain_timeout_ns: 200_000_000,
            control_timeout_ns: 200_000_000,
            per_key_ns: 20_000,
            keepalive_interval_ns: 100_000_000,
            reconnect_timeout_ns: 5_000_000_000,
            lease_ns: Some(10_000_000_000),
            client_lease_ns: 1_000_000_000,
            flush_interval_ns: 1_000_000,
            shutdown_timeout_ns: 2_000_000_000,
        }
    }
}

pub(super) const KEYS: &[Key<Timeouts>] = &[
    Key::optional(
        "fence",
        Kind::DurationNs(100 * US, 60 * S, |t| &mut t.fence_timeout_ns),
    ),
    Key::optional(
        "invalidate",
        Kind::DurationNs(100 * US, 60 * S, |t| &mut t.invalidate_timeout_ns),
    ),
    Key::optional(
        "drain",
        Kind::DurationNs(100 * US, 60 * S, |t| &mut t.drain_timeout_ns),
    ),
    Key::optional(
        "control",
        Kind::DurationNs(MS, 60 * S, |t| &mut t.control_timeout_ns),
    ),
    Key::optional(
        "per_key",
        Kind::DurationNs(1, 100 * MS, |t| &mut t.per_key_ns),
    ),
    Key::optional(
        "keepalive",
        Kind::DurationNs(MS, 60 * S, |t| &mut t.keepalive_interval_ns),
    ),
    Key::optional(
        "reconnect",
        Kind::DurationNs(MS, HOUR, |t| &mut t.reconnect_timeout_ns),
    ),
    Key::optional(
        "lease",
        Kind::DurationOrNone(MS, 24 * HOUR, |t| &mut t.lease_ns),
    ),
    Key::optional(
        "client_lease",
        Kind::DurationNs(MS, HOUR, |t| &mut t.client_lease_ns),
    ),
    Key::optional(
        "flush_interval",
        Kind::DurationNs(US, S, |t| &mut t.flush_interval_ns),
    ),
    Key::optional(
        "shutdown",
        Kind::DurationNs(MS, HOUR, |t| &mut t.shutdown_timeout_ns),
    ),
];

const US: u64 = 1_000;
const MS: u64 = 1_000 * US;
const S: u64 = 1_000 * MS;
const HOUR: u64 = 3_600 * S;
