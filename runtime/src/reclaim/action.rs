//! What the machine tells the engine.

use super::event::Timer;
use super::key::{ContextIx, KeyIx, KeyState, TicketIx};
use super::lane_set::LaneSet;
use crate::ids::{Epoch, LaneId};

/// What the engine must do, or may announce. One a strand, a lane or an epoch; never one a key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Action {
    /// Start the timer, for its fixed time from now.
    Arm(
        /// Which.
        Timer,
    ),
    /// Stop the timer.
    Disarm(
        /// Which.
        Timer,
    ),
    /// Name the strand's keys to the holder on the lane: pull them with [`super::Machine::next_to_revoke`]; the frame with
    /// the last of them asks for the acknowledgement.
    Revoke {
        /// The epoch.
        epoch: Epoch,
        /// The lane.
        lane: LaneId,
    },
    /// There are keys to invalidate: pull them with [`super::Machine::next_to_invalidate`], at most `reclaim_budget` a step,
    /// or answer [`super::Event::ChainRefused`] for those that are not pulled yet.
    Invalidate {
        /// The epoch.
        epoch: Epoch,
        /// The lane.
        lane: LaneId,
    },
    /// No key is left there to invalidate, but own operations are posted: post one signaled WR behind them.
    Close {
        /// The context's epoch.
        epoch: Epoch,
        /// The lane.
        lane: LaneId,
    },
    /// There are keys to deallocate: pull them with [`super::Machine::next_to_dealloc`]. On a broken lane only after its QP is
    /// in error and drained. One whose registration is under way is deregistered behind that.
    Dealloc {
        /// The lane.
        lane: LaneId,
    },
    /// The lane is sick. Move its QP to error, report [`super::Event::LaneBroken`], drain, deallocate its windows, destroy it.
    BreakLane {
        /// The lane.
        lane: LaneId,
    },
    /// The epoch's only end. A context's memory is given back here, never earlier.
    EpochEnded {
        /// The epoch.
        epoch: Epoch,
        /// The context, if the epoch is a context's.
        context: Option<ContextIx>,
        /// How it ended.
        outcome: Outcome,
    },
    /// Everything that the flush captured is proven or quarantined, own operations of cordoned contexts included. The ticket is
    /// free.
    FlushEnded {
        /// The ticket.
        ticket: TicketIx,
        /// How many of the captured keys are in quarantine now, and on how many lanes own operations of contexts in quarantine.
        quarantined: u32,
    },
    /// Nothing of the context is left, not even in quarantine: its slot may be used again. With or after its epoch's end.
    ContextFree {
        /// The context.
        context: ContextIx,
    },
    /// The QP is destroyed, each key of the lane is dead, and the target has answered: the index may be used for a new QP.
    LaneFree {
        /// The lane.
        lane: LaneId,
    },
}

/// How an epoch ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Outcome {
    /// Each member is proven ended.
    Flushed,
    /// Some could not be proven.
    Quarantined(
        /// What.
        Quarantine,
    ),
}

/// What could not be proven by an epoch's end.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Quarantine {
    /// Keys, each in state [`KeyState::Unproven`].
    pub keys: u32,
    /// Lanes on which own operations may still change or read the context's memory.
    pub own_ops: LaneSet,
    /// Lanes whose target has neither confirmed nor been lost. Says nothing about our memory.
    pub unconfirmed: LaneSet,
    /// Whether handles on the context's bytes were still out.
    pub handles_held: bool,
}

impl Quarantine {
    /// The one reason to name first: what holds most memory back.
    #[must_use]
    pub const fn why(&self) -> Why {
        if self.keys > 0 {
            Why::Unproven
        } else if !self.own_ops.is_empty() {
            Why::OwnOps
        } else if self.handles_held {
            Why::HandleHeld
        } else {
            Why::Unconfirmed
        }
    }
}

/// Why an epoch ended in quarantine.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Why {
    /// A key may still be valid.
    Unproven,
    /// An own operation may still touch the context's memory.
    OwnOps,
    /// A handle on the context's bytes is still out.
    HandleHeld,
    /// All our memory is proven, but a target has not confirmed the end of operations against its own.
    Unconfirmed,
}

/// A key has changed its state. The trace's record, and the answer about one key: see its methods.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Transition {
    /// The key's slot.
    pub key: KeyIx,
    /// The state before.
    pub from: KeyState,
    /// The state after.
    pub to: KeyState,
    /// The epoch that carries the key, if it is retired.
    pub epoch: Option<Epoch>,
}

/// How a key's end was reported.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum KeyEnd {
    /// In time. With the last key of a grant that was taken back: `Zapped`.
    Zapped,
    /// After it was quarantined. Releases, and is counted.
    LateProof,
}

impl Transition {
    /// Whether this is the key's proof (R3), and what to report.
    #[must_use]
    pub const fn ended(&self) -> Option<KeyEnd> {
        if !self.to.is_proven() || self.from.is_proven() {
            None
        } else if matches!(self.from, KeyState::Unproven) {
            Some(KeyEnd::LateProof)
        } else {
            Some(KeyEnd::Zapped)
        }
    }

    /// Whether the key went into quarantine: with the last one of a grant that was taken back, `GrantQuarantined`.
    #[must_use]
    pub const fn quarantined(&self) -> bool {
        matches!(self.to, KeyState::Unproven)
    }

    /// Whether window and slot may be used again (R4, R8).
    #[must_use]
    pub const fn freed(&self) -> bool {
        matches!(self.to, KeyState::Dead)
    }
}

/// The answer to one event: first the keys' changes, then what to do. Sized once, for one machine; never grows.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Actions {
    transitions: Vec<Transition>,
    orders: Vec<Action>,
    bound: Bound,
}

/// The most that one event can answer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Bound {
    /// Changes of keys: one event changes a key at most once.
    pub transitions: usize,
    /// Orders and announcements.
    pub orders: usize,
}

impl Actions {
    /// An empty list with room for `bound`, see [`super::Capacity::bound`].
    #[must_use]
    pub fn new(bound: Bound) -> Self {
        Self {
            transitions: Vec::with_capacity(bound.transitions),
            orders: Vec::with_capacity(bound.orders),
            bound,
        }
    }

    /// The keys' changes, in order. To be acted on before the orders, so that `Zapped` precedes `Reclaimed`.
    #[must_use]
    pub fn transitions(&self) -> &[Transition] {
        &self.transitions
    }

    /// The orders and announcements, in order.
    #[must_use]
    pub fn orders(&self) -> &[Action] {
        &self.orders
    }

    /// Whether there is nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.transitions.is_empty() && self.orders.is_empty()
    }

    /// Makes room for the next event. Everything in the list must have been acted on.
    pub fn clear(&mut self) {
        self.transitions.clear();
        self.orders.clear();
    }

    pub(super) fn order(&mut self, action: Action) {
        assert!(
            self.orders.len() < self.bound.orders,
            "an event answered more than {} orders",
            self.bound.orders
        );
        self.orders.push(action);
    }

    pub(super) fn changed(&mut self, transition: Transition) {
        assert!(
            self.transitions.len() < self.bound.transitions,
            "an event changed a key twice"
        );
        self.transitions.push(transition);
    }
}
