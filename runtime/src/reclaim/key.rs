//! A key's states and what the machine remembers of it.

use crate::ids::{Epoch, LaneId};

/// A key's slot in the table of its lcore.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct KeyIx(pub u32);

/// A context's slot in the table of its lcore.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ContextIx(pub u16);

/// A slot for an explicit flush under way. The caller of [`super::Event::Flush`] picks a free one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TicketIx(pub u16);

/// R4: the one state of a key. The machine is its only writer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum KeyState {
    /// Its bind is posted, or its registration asked for.
    Binding,
    /// Bound; the holder may use it.
    Live,
    /// Retired under a sealed epoch, its invalidation not posted. A region's key stays here until it is proven ended.
    Fencing,
    /// Its invalidation is posted.
    Invalidating,
    /// Quarantined: it could not be proven ended, and may be valid.
    Unproven,
    /// Proven ended, but the holder may still know the value (R8).
    Parked,
    /// Proven ended and acknowledged, or never bound. The only state from which its slot may be bound.
    Dead,
}

impl KeyState {
    /// Each state, in the order of a key's life.
    pub const ALL: [Self; 7] = [
        Self::Binding,
        Self::Live,
        Self::Fencing,
        Self::Invalidating,
        Self::Unproven,
        Self::Parked,
        Self::Dead,
    ];

    /// Whether the device has proven that the key opens nothing.
    #[must_use]
    pub const fn is_proven(self) -> bool {
        matches!(self, Self::Parked | Self::Dead)
    }

    /// Whether the state may follow `self`. Every other change is a bug of this crate.
    #[must_use]
    pub const fn may_become(self, next: Self) -> bool {
        use KeyState::{Binding, Dead, Fencing, Invalidating, Live, Parked, Unproven};
        matches!(
            (self, next),
            (Dead, Binding)
                | (Binding, Live | Fencing | Unproven | Parked | Dead)
                | (Live, Fencing)
                | (Fencing, Invalidating | Unproven | Parked | Dead)
                | (Invalidating, Unproven | Parked | Dead)
                | (Unproven, Parked | Dead)
                | (Parked, Dead)
        )
    }
}

/// How far a key's value reaches: what must be destroyed before it may come back without an acknowledgement (R8).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Scope {
    /// A memory window: valid on its QP only.
    Queue,
    /// A memory region: valid on every QP of its protection domain. It has no invalidation: its deregistration, off the lcore, is its one proof.
    Domain,
}

/// What was done about a retired key. Chosen once: a posted invalidation excludes a deallocation until the QP is in
/// error, and nothing is invalidated twice.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Removal {
    /// Nothing yet.
    None,
    /// An invalidation is posted.
    Posted,
    /// The bind, the registration or the invalidation failed: only a deallocation can prove it.
    Failed,
    /// A deallocation was handed out.
    Deallocating,
    /// That has failed or is late. It may still return, and a broken lane makes another attempt.
    DeallocFailed,
}

/// Whether the holder can still know a value.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Ack {
    Awaited,
    Received,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Key {
    pub state: KeyState,
    pub removal: Removal,
    pub ack: Ack,
    pub scope: Scope,
    pub context: ContextIx,
    pub lane: LaneId,
    /// The epoch whose strand carries it. Kept after the proof, for the acknowledgement.
    pub epoch: Option<Epoch>,
    /// The number of flushes before its retirement.
    pub retired_at: u64,
    #[cfg(feature = "plant")]
    pub reuse: super::planted::Reuse,
}

impl Key {
    pub(super) const NEVER_BOUND: Self = Self {
        state: KeyState::Dead,
        removal: Removal::None,
        ack: Ack::Received,
        scope: Scope::Queue,
        context: ContextIx(0),
        lane: LaneId(0),
        epoch: None,
        retired_at: 0,
        #[cfg(feature = "plant")]
        reuse: super::planted::Reuse::NEW,
    };

    /// Whether its end is still to be proven, in time.
    pub(super) const fn is_pending(&self) -> bool {
        self.epoch.is_some() && !self.state.is_proven() && !matches!(self.state, KeyState::Unproven)
    }
}
