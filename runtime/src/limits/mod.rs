//! Every count and byte size that bounds an engine, and the error that names one (R9).
//!
//! All tables are sized from [`Limits`] at start and never grow. A limit that is reached is an error for whoever asked, and
//! nobody else notices: that is promise R9, and [`Limit::admit`] is where it is decided.

mod budget;

pub use budget::{BUDGET_ALIGN_BYTES, budget, budget_bytes, lane_slots_a_lane, receive_buffers};

use core::fmt;

/// The most bytes of a control frame: what a lane's own traffic needs a send slot. Messages may be longer
/// ([`MemoryConfig::receive_buffer_bytes`](crate::config::MemoryConfig::receive_buffer_bytes)).
pub const FRAME_BYTES: u64 = crate::wire::MAX_CONTROL_BYTES as u64;

/// All limits of one engine (`[limits]`).
///
/// Counts without another word are of the whole engine; [`Limits::share_of_lcore`] splits them over its lcores. Read by the
/// control thread at start; lcores keep the numbers they need.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Limits {
    /// `contexts`: contexts at a time, quarantined ones included. 1 to 65535.
    pub contexts: u32,
    /// `grants`: grants that are not dead. The reclaim bound counts with as many keys.
    pub grants: u32,
    /// `imports`: grants of peers held here, tombstones included.
    pub imports: u32,
    /// `buffers`: buffers handed out. As many as the pools have if the file doesn't say.
    pub buffers: u32,
    /// `ops_in_flight`: operations submitted and not completed.
    pub ops_in_flight: u32,
    /// `bytes_in_flight`: bytes of operations submitted and not completed.
    pub bytes_in_flight: u64,
    /// `lanes`: lanes between an lcore here and an lcore of a peer. 1 to 16.
    pub lanes: u32,
    /// `send_depth`: work requests posted and not completed, a lane; requests and answers together.
    pub send_depth: u32,
    /// `receive_depth`: receives posted, a lane.
    pub receive_depth: u32,
    /// `windows`: memory windows allocated, a lane.
    pub windows: u32,
    /// `lane_bytes_in_flight`: bytes posted and not completed, a lane; reads count in full. An invalidation waits for
    /// these at most, so they bound how long a reclaim takes.
    pub lane_bytes_in_flight: u64,
    /// `slowest_rate`: bytes a second that a healthy lane moves at least.
    pub slowest_rate_bytes_per_s: u64,
    /// `slice`: bytes of one work request; a larger operation is cut into slices.
    pub slice_bytes: u64,
    /// `flush_watermark`: single revokes that wait before a batch is sealed.
    pub flush_watermark: u32,
    /// `reclaim_budget`: work requests that reclaims post in one poll step of an lcore.
    pub reclaim_budget_wrs: u32,
    /// `zero_budget`: bytes that are zeroed in one poll step of an lcore.
    pub zero_budget_bytes: u64,
    /// `epochs`: epochs that have not ended, an lcore.
    pub epochs: u32,
    /// `rebuilds`: how often a lane that breaks is rebuilt at once; beyond that it waits, so that it is rebuilt as often in `timeouts.reconnect`. 0: it is not, and each break ends its session.
    pub rebuilds: u32,
    /// `trace_records`: records that an lcore's trace ring keeps; 0 for no trace.
    pub trace_records: u32,
    /// `[limits.context]`: of each context.
    pub context: ContextLimits,
    /// `[limits.peer]`: of each peer.
    pub peer: PeerLimits,
}

/// What one context may use (`[limits.context]`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ContextLimits {
    /// `grants`: its grants that are not dead.
    pub grants: u32,
    /// `imports`: grants of peers that it holds.
    pub imports: u32,
    /// `exposed_bytes`: bytes of its grants, overlaps counted each time.
    pub exposed_bytes: u64,
    /// `buffers`: buffers handed out to it.
    pub buffers: u32,
    /// `ops_in_flight`: operations submitted and not completed.
    pub ops_in_flight: u32,
    /// `bytes_in_flight`: bytes of operations submitted and not completed.
    pub bytes_in_flight: u64,
    /// `messages`: messages received for it and not given back; its senders' credits come from here.
    pub messages: u32,
    /// `offences`: operations of it that break a lane, by a dead key or out of bounds, within `timeouts.reconnect`, before it is reclaimed for that. 0: it never is.
    pub offences: u32,
}

/// What the contexts of one peer may cost one lcore together, in all sessions (`[limits.peer]`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeerLimits {
    /// `grants`: grants made to it that are not dead.
    pub grants: u32,
    /// `imports`: its grants held here. Tombstones lie in a table as large as the peer's own of grants, made with the lane.
    pub imports: u32,
    /// `exposed_bytes`: bytes of the grants made to it.
    pub exposed_bytes: u64,
    /// `parked_keys`: keys proven dead whose value it has not acknowledged (R8). Past it the lane breaks: it is repaired, or its session ends; in key mode `region` the session ends.
    pub parked_keys: u32,
}

impl Limits {
    /// The least of each that is legal: a test engine in which every queue is short and every race common.
    pub const TEST_MIN: Self = Self {
        contexts: 1,
        grants: 1,
        imports: 1,
        buffers: 1,
        ops_in_flight: 1,
        bytes_in_flight: 4096,
        lanes: 1,
        // One request, one answer, and one closing request each for a chain and for a repair.
        send_depth: 4,
        receive_depth: 4,
        windows: 1,
        lane_bytes_in_flight: 4096,
        slowest_rate_bytes_per_s: 1_000_000,
        slice_bytes: 4096,
        flush_watermark: 1,
        reclaim_budget_wrs: 1,
        zero_budget_bytes: 4096,
        // A batch and a context's end must be able to run side by side, and a break beside both.
        epochs: 4,
        rebuilds: 0,
        trace_records: 0,
        context: ContextLimits {
            grants: 1,
            imports: 1,
            exposed_bytes: 1,
            buffers: 1,
            ops_in_flight: 1,
            bytes_in_flight: 1,
            messages: 1,
            offences: 0,
        },
        peer: PeerLimits {
            grants: 1,
            imports: 1,
            exposed_bytes: 1,
            parked_keys: 1,
        },
    };

    /// The limits of one of `lcores` equal lcores: the engine's counts divided, rounded up; what is said of a lane, a step, an
    /// lcore, a context or a peer stays. `lcores` of 0 counts as 1.
    #[must_use]
    pub fn share_of_lcore(&self, lcores: u32) -> Self {
        let lcores = lcores.max(1);
        let bytes_in_flight = self.bytes_in_flight.div_ceil(u64::from(lcores));
        Self {
            contexts: self.contexts.div_ceil(lcores),
            grants: self.grants.div_ceil(lcores),
            imports: self.imports.div_ceil(lcores),
            buffers: self.buffers.div_ceil(lcores),
            ops_in_flight: self.ops_in_flight.div_ceil(lcores),
            bytes_in_flight,
            ..self.clone()
        }
    }

    /// Keys that are not dead, at most: one a grant, and where lanes are rebuilt one more of the queue pair before.
    #[must_use]
    pub const fn keys(&self) -> u32 {
        let each = if self.rebuilds > 0 { 2 } else { 1 };
        self.grants.saturating_mul(each)
    }

    /// How long a full lane takes at the slowest rate: what a fence must be able to wait for, in ns.
    #[must_use]
    pub fn lane_drain_ns(&self) -> u64 {
        let rate = u128::from(self.slowest_rate_bytes_per_s.max(1));
        let ns = u128::from(self.lane_bytes_in_flight) * 1_000_000_000;
        u64::try_from(ns.div_ceil(rate)).unwrap_or(u64::MAX)
    }

    /// The value of a limit.
    #[must_use]
    pub const fn value(&self, limit: Limit) -> u64 {
        match limit {
            Limit::Contexts => self.contexts as u64,
            Limit::Grants => self.grants as u64,
            Limit::Imports => self.imports as u64,
            Limit::Buffers => self.buffers as u64,
            Limit::OpsInFlight => self.ops_in_flight as u64,
            Limit::BytesInFlight => self.bytes_in_flight,
            Limit::Windows => self.windows as u64,
            Limit::ContextGrants => self.context.grants as u64,
            Limit::ContextImports => self.context.imports as u64,
            Limit::ContextExposedBytes => self.context.exposed_bytes,
            Limit::ContextBuffers => self.context.buffers as u64,
            Limit::ContextOpsInFlight => self.context.ops_in_flight as u64,
            Limit::ContextBytesInFlight => self.context.bytes_in_flight,
            Limit::ContextMessages => self.context.messages as u64,
            Limit::PeerGrants => self.peer.grants as u64,
            Limit::PeerImports => self.peer.imports as u64,
            Limit::PeerExposedBytes => self.peer.exposed_bytes,
            Limit::PeerParkedKeys => self.peer.parked_keys as u64,
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            contexts: 256,
            grants: 4096,
            imports: 4096,
            buffers: 4096,
            ops_in_flight: 8192,
            bytes_in_flight: 256 << 20,
            lanes: 1,
            send_depth: 256,
            receive_depth: 256,
            windows: 1024,
            lane_bytes_in_flight: 4 << 20,
            slowest_rate_bytes_per_s: 64_000_000,
            slice_bytes: 64 << 10,
            flush_watermark: 32,
            reclaim_budget_wrs: 16,
            zero_budget_bytes: 64 << 10,
            epochs: 256,
            rebuilds: 16,
            trace_records: 4096,
            context: ContextLimits::default(),
            peer: PeerLimits::default(),
        }
    }
}

impl Default for ContextLimits {
    fn default() -> Self {
        Self {
            grants: 64,
            imports: 64,
            exposed_bytes: 64 << 20,
            buffers: 128,
            ops_in_flight: 64,
            bytes_in_flight: 16 << 20,
            messages: 16,
            offences: 0,
        }
    }
}

impl Default for PeerLimits {
    fn default() -> Self {
        Self {
            grants: 4096,
            imports: 4096,
            exposed_bytes: 1 << 30,
            parked_keys: 1024,
        }
    }
}

/// Names a limit; displayed as its key in the configuration.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[expect(
    missing_docs,
    reason = "each is the field of Limits with the same name"
)]
pub enum Limit {
    Contexts,
    Grants,
    Imports,
    Buffers,
    OpsInFlight,
    BytesInFlight,
    Windows,
    ContextGrants,
    ContextImports,
    ContextExposedBytes,
    ContextBuffers,
    ContextOpsInFlight,
    ContextBytesInFlight,
    ContextMessages,
    PeerGrants,
    PeerImports,
    PeerExposedBytes,
    PeerParkedKeys,
}

impl Limit {
    /// The key that sets it.
    #[must_use]
    pub const fn key(self) -> &'static str {
        match self {
            Self::Contexts => "limits.contexts",
            Self::Grants => "limits.grants",
            Self::Imports => "limits.imports",
            Self::Buffers => "limits.buffers",
            Self::OpsInFlight => "limits.ops_in_flight",
            Self::BytesInFlight => "limits.bytes_in_flight",
            Self::Windows => "limits.windows",
            Self::ContextGrants => "limits.context.grants",
            Self::ContextImports => "limits.context.imports",
            Self::ContextExposedBytes => "limits.context.exposed_bytes",
            Self::ContextBuffers => "limits.context.buffers",
            Self::ContextOpsInFlight => "limits.context.ops_in_flight",
            Self::ContextBytesInFlight => "limits.context.bytes_in_flight",
            Self::ContextMessages => "limits.context.messages",
            Self::PeerGrants => "limits.peer.grants",
            Self::PeerImports => "limits.peer.imports",
            Self::PeerExposedBytes => "limits.peer.exposed_bytes",
            Self::PeerParkedKeys => "limits.peer.parked_keys",
        }
    }

    /// R9: whether `wanted` more fit beside `in_use` under `value`; if not, the error that says all three. For the poll path:
    /// allocates and formats nothing.
    ///
    /// ```
    /// use keyfence::limits::Limit;
    /// assert!(Limit::ContextGrants.admit(64, 63, 1).is_ok());
    /// let error = Limit::ContextGrants.admit(64, 64, 1).unwrap_err();
    /// assert_eq!((error.value, error.in_use), (64, 64));
    /// assert!(error.to_string().starts_with("limits.context.grants is 64 with 64 in use"));
    /// ```
    pub const fn admit(self, value: u64, in_use: u64, wanted: u64) -> Result<(), LimitError> {
        match in_use.checked_add(wanted) {
            Some(sum) if sum <= value => Ok(()),
            _ => Err(LimitError {
                limit: self,
                value,
                in_use,
                wanted,
            }),
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.key())
    }
}

/// A request went past a limit (R9). Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "{limit} is {value} with {in_use} in use, {wanted} more wanted; give some back first, or raise it"
)]
pub struct LimitError {
    /// The limit.
    pub limit: Limit,
    /// Its value.
    pub value: u64,
    /// How much of it is in use.
    pub in_use: u64,
    /// How much more was asked for.
    pub wanted: u64,
}
