//! What the engine tells the machine.

use super::capacity::SlotIx;
use super::key::{ContextIx, KeyIx, Scope, TicketIx};
use super::lane_set::LaneSet;
use crate::ids::{Epoch, LaneId};

/// A deadline that the engine keeps for the machine, which has no clock. Each is armed for a fixed time from the arming.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Timer {
    /// `flush_interval`: the longest that a retired key waits in the open batch.
    FlushInterval,
    /// `fence_timeout`: the longest that the epoch waits for holders and for handles that are out.
    Fence(Epoch),
    /// `invalidate_timeout`: the longest from there to the last proof, before a lane counts as sick.
    Invalidate(Epoch),
    /// `drain_timeout` and three control timeouts: the longest that the sacrifice of a lane takes. The epoch ends here
    /// at the latest.
    Final(Epoch),
}

impl Timer {
    /// Its place among [`Capacity::timers`](super::Capacity::timers): an epoch has one armed at a time.
    #[must_use]
    pub const fn place(self) -> usize {
        match self {
            Self::FlushInterval => 0,
            Self::Fence(epoch) | Self::Invalidate(epoch) | Self::Final(epoch) => {
                1 + SlotIx::of(epoch).0 as usize
            }
        }
    }
}

/// What has happened. Each is a fact that the engine has in hand, never an intention.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Event {
    /// A bind is about to be posted, or a registration asked for, for a grant of `context` on `lane`. The key's slot is dead, the context not cordoned,
    /// the lane up.
    Bind {
        /// The key's slot.
        key: KeyIx,
        /// The owner.
        context: ContextIx,
        /// Where the key will be valid.
        lane: LaneId,
        /// What must be destroyed before the value may come back unacknowledged.
        scope: Scope,
    },
    /// The bind has completed with success, or the region is registered.
    BindDone {
        /// The key's slot.
        key: KeyIx,
    },
    /// The bind was flushed or has failed, or the registration has. The key may be valid all the same: it is retired, and deallocated, never
    /// invalidated.
    BindFailed {
        /// The key's slot.
        key: KeyIx,
    },
    /// The grant was revoked, or its lease has ended.
    Retire {
        /// The key's slot.
        key: KeyIx,
    },
    /// The holder's engine says that the context it was granted to is gone. Retires the key and counts as the
    /// acknowledgement of R8; it proves nothing.
    ImportDropped {
        /// The key's slot.
        key: KeyIx,
    },
    /// The context takes no new work; what was queued and not posted has been cancelled.
    Cordon {
        /// The context.
        context: ContextIx,
        /// Lanes on which operations of it are posted and not completed.
        own_ops: LaneSet,
        /// Lanes that broke, where operations of it were flushed and the target has not answered for them. None of them
        /// is up. May overlap `own_ops`.
        flushed_ops: LaneSet,
        /// Whether a `Buf`, a received buffer or a `Client` can still name its bytes.
        handles_out: bool,
    },
    /// The last own operation of a cordoned context on the lane has completed, with whatever status. If the lane broke,
    /// [`Event::LaneBroken`] comes first.
    OwnOpsEnded {
        /// The context.
        context: ContextIx,
        /// The lane.
        lane: LaneId,
    },
    /// The last handle that could name bytes of a cordoned context was dropped.
    HandlesReturned {
        /// The context.
        context: ContextIx,
    },
    /// The holder's `Revoked{epoch}` came in on the lane. It may come late, twice, or be made up.
    Acked {
        /// The epoch that it names.
        epoch: Epoch,
        /// The lane it came on.
        lane: LaneId,
    },
    /// The lane's backlog can't clear in time: the keys of the strand that are not posted yet are deallocated off the
    /// lcore instead.
    ChainRefused {
        /// The epoch.
        epoch: Epoch,
        /// The lane.
        lane: LaneId,
    },
    /// The key's invalidation has completed with success (in a chain: its last has, where the device stops a queue at the
    /// first failure).
    Invalidated {
        /// The key's slot.
        key: KeyIx,
    },
    /// The key's invalidation was flushed or has failed. Never a proof; the lane is sick.
    InvalidateFailed {
        /// The key's slot.
        key: KeyIx,
    },
    /// The closing WR of [`super::Action::Close`] has completed with success.
    ClosingDone {
        /// The epoch.
        epoch: Epoch,
        /// The lane.
        lane: LaneId,
    },
    /// The closing WR was flushed or has failed. The lane is sick.
    ClosingFailed {
        /// The epoch.
        epoch: Epoch,
        /// The lane.
        lane: LaneId,
    },
    /// The key's window is deallocated, or its region deregistered: the call has returned.
    Deallocated {
        /// The key's slot.
        key: KeyIx,
    },
    /// That call has failed or missed its deadline. A late return is reported as [`Event::Deallocated`] all the same.
    DeallocFailed {
        /// The key's slot.
        key: KeyIx,
    },
    /// The lane's QP was moved to error, for whatever reason, an orderly end included. Nothing is posted on it again.
    LaneBroken {
        /// The lane.
        lane: LaneId,
    },
    /// The destruction of the lane's QP has returned.
    QpDestroyed {
        /// The lane.
        lane: LaneId,
    },
    /// The protection domain of the lane is deallocated, or nothing can come into it any more: values of regions ([`Scope::Domain`]) may come back.
    DomainDestroyed {
        /// The lane.
        lane: LaneId,
    },
    /// The lane's peer says that its end is dead, so nothing flushed here can execute there any more.
    TargetConfirmed {
        /// The lane.
        lane: LaneId,
    },
    /// The lane's peer is lost.
    TargetLost {
        /// The lane.
        lane: LaneId,
    },
    /// Somebody asked for a flush: everything retired so far.
    Flush {
        /// A free ticket, below [`super::Capacity::tickets`].
        ticket: TicketIx,
    },
    /// A timer that was armed has run out. One that was disarmed meanwhile is ignored.
    Expired(
        /// Which.
        Timer,
    ),
}

/// What became of an event. Everything but [`Note::Applied`] is harmless, and counted by the engine under its name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[must_use]
pub enum Note {
    /// It was expected.
    Applied,
    /// An acknowledgement of an epoch that has no strand and no key left on that lane.
    UnknownEpoch,
    /// The key is retired already: a revocation, a lease's end and a dropped import can cross.
    AlreadyRetired,
    /// The key was proven ended before, on another way.
    AlreadyProven,
    /// What the event reports was known: operations ended, handles back, lane broken, step over.
    Late,
    /// A timer of an epoch that has left that step.
    StaleTimer,
}
