//! The part of an epoch on one lane.

use super::key::Ack;

/// How far an epoch has come on one lane.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum StrandState {
    /// The epoch has nothing there, or is an open batch.
    Idle,
    /// Step 2: the holder was told; its acknowledgement, or the end of the fence, is awaited.
    Fencing,
    /// Step 3: a chain of invalidations, a closing WR, or both.
    Closing,
    /// Step 3 off the lcore: the lane's backlog can't clear, its windows are deallocated.
    Deallocating,
    /// The lane is broken: drain, deallocation, destruction.
    AwaitDestroy,
    /// Keys proven or quarantined, own operations ended.
    Ended,
}

/// Own operations of a cordoned context on the lane, as far as the context's own memory goes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum OwnOps {
    Ended,
    Running,
}

/// The same operations, as far as the target's memory goes (second half of R2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Target {
    Clear,
    Unconfirmed,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Strand {
    pub state: StrandState,
    pub ack: Ack,
    pub own_ops: OwnOps,
    pub target: Target,
    /// Its keys that are neither proven nor quarantined.
    pub pending: u32,
}

impl Strand {
    pub(super) const IDLE: Self = Self {
        state: StrandState::Idle,
        ack: Ack::Awaited,
        own_ops: OwnOps::Ended,
        target: Target::Clear,
        pending: 0,
    };

    /// Whether the lane still owes the epoch a proof about our own memory.
    pub(super) fn is_open(&self) -> bool {
        self.pending > 0 || self.own_ops == OwnOps::Running
    }
}
