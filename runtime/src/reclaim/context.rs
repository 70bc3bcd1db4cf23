//! A context's part: the cordon, its own operations, its handles, and when its slot is free.

use super::action::{Action, Actions, Outcome};
use super::capacity::{Kind, SlotIx};
use super::epoch::Phase;
use super::event::{Note, Timer};
use super::key::{ContextIx, KeyIx, KeyState};
use super::lane::{LaneState, TargetState};
use super::lane_set::LaneSet;
use super::list::ListId;
use super::machine::Machine;
use super::strand::{OwnOps, StrandState, Target};
use crate::ids::{Epoch, LaneId};
use crate::plant::{self, Plant};

/// Handles that can name the context's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Handles {
    In,
    /// Waited for, to the end of the fence.
    Out,
    /// Waited for long enough: the epoch may end in quarantine for them.
    Held,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Context {
    pub handles: Handles,
    /// Keys ever bound for it, neither proven nor quarantined, whatever carries them.
    pub pending: u32,
    /// Keys ever bound for it in quarantine.
    pub quarantined: u32,
}

impl Context {
    pub(super) const FREE: Self = Self {
        handles: Handles::In,
        pending: 0,
        quarantined: 0,
    };
}

/// Where a context is, as its keys can see it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ContextState {
    /// Not cordoned: may bind. A slot that nobody uses is open too.
    Open,
    /// Its epoch is under way.
    Cordoned,
    /// Its epoch has ended, but its slot is not free.
    Quarantined,
}

impl Machine {
    pub(super) const fn member_list(context: ContextIx) -> ListId {
        ListId(context.0 as u32)
    }

    /// Step 1: takes everything that the context ever bound and that is not proven into its epoch.
    pub(super) fn cordon(
        &mut self,
        context: ContextIx,
        own_ops: LaneSet,
        flushed_ops: LaneSet,
        handles_out: bool,
        out: &mut Actions,
    ) -> Note {
        let slot = self.capacity.context_slot(context);
        assert!(
            self.epoch(slot).phase == Phase::Free,
            "{context:?} is cordoned twice"
        );
        self.open_epoch(slot, Phase::Fence);
        let epoch = self.epoch(slot).number;
        out.order(Action::Arm(Timer::Fence(epoch)));
        self.context_mut(context).handles = if handles_out {
            Handles::Out
        } else {
            Handles::In
        };
        let mut next = self.members.first(Self::member_list(context));
        while let Some(key) = next {
            next = self.members.next(key);
            if self.is_unsealed(key) {
                self.claim(slot, key, out);
            }
        }
        let own_ops = if plant::active(Plant::OwnOpsForgotten) {
            LaneSet::EMPTY
        } else {
            own_ops
        };
        self.take_own_ops(slot, own_ops, flushed_ops);
        for lane in self.capacity.all_lanes() {
            self.start_strand(slot, lane, out);
        }
        if plant::active(Plant::ReuseBeforeFlush) {
            out.order(Action::EpochEnded {
                epoch,
                context: Some(context),
                outcome: Outcome::Flushed,
            });
        }
        self.try_end(slot, out);
        Note::Applied
    }

    /// Takes a key that no sealed epoch carries into `slot`'s epoch, out of the open batch too: a context's or a lane's end
    /// waits for no batch.
    pub(super) fn claim(&mut self, slot: SlotIx, key: KeyIx, out: &mut Actions) {
        self.homes.remove(key);
        if self.key(key).epoch.is_some() {
            let lane = self.key(key).lane;
            let batch = self.batch.slot;
            self.strand_mut(batch, lane).pending -= 1;
            self.epoch_mut(batch).pending -= 1;
        } else {
            self.mark_retired(key);
        }
        self.attach(slot, key);
        if self.key(key).state == KeyState::Live {
            self.set_state(key, KeyState::Fencing, out);
        }
    }

    fn take_own_ops(&mut self, slot: SlotIx, own_ops: LaneSet, flushed_ops: LaneSet) {
        for lane in self.capacity.all_lanes() {
            let record = *self.lane(lane);
            assert!(
                record.state != LaneState::Up || !flushed_ops.contains(lane),
                "{lane:?} is up, but operations were flushed on it"
            );
            let running = own_ops.contains(lane) && record.state != LaneState::Destroyed;
            if running {
                self.strand_mut(slot, lane).own_ops = OwnOps::Running;
                let flushes = self.flushes;
                let epoch = self.epoch_mut(slot);
                epoch.running += 1;
                epoch.cordoned_at = flushes;
            }
            let broken = matches!(record.state, LaneState::Broken | LaneState::Destroyed);
            if flushed_ops.contains(lane) || (own_ops.contains(lane) && broken) {
                self.want_confirmation(slot, lane);
            }
        }
    }

    /// Makes the epoch wait for the lane's target, unless that has answered.
    pub(super) fn want_confirmation(&mut self, slot: SlotIx, lane: LaneId) {
        let known = self.lane(lane).target == TargetState::Answered;
        let strand = self.strand_mut(slot, lane);
        if !known && strand.target == Target::Clear {
            strand.target = Target::Unconfirmed;
            self.epoch_mut(slot).unconfirmed += 1;
        }
    }

    pub(super) fn own_ops_ended(&mut self, slot: SlotIx, lane: LaneId, out: &mut Actions) -> Note {
        if self.strand(slot, lane).own_ops == OwnOps::Ended {
            return Note::Late;
        }
        self.end_own_ops(slot, lane, out);
        Note::Applied
    }

    /// Own operations that were running on the lane can't touch the context's memory any more.
    pub(super) fn end_own_ops(&mut self, slot: SlotIx, lane: LaneId, out: &mut Actions) {
        let strand = self.strand_mut(slot, lane);
        strand.own_ops = OwnOps::Ended;
        if !strand.is_open() {
            strand.state = StrandState::Ended;
        }
        self.epoch_mut(slot).running -= 1;
        self.count_own_ops_in_flushes(slot);
        self.try_end(slot, out);
        self.try_free_context(slot, out);
    }

    /// The closing WR's success ends everything posted before it, a swallowed completion included (R3).
    pub(super) fn closing_done(&mut self, epoch: Epoch, lane: LaneId, out: &mut Actions) -> Note {
        match self.slot_of(epoch) {
            Some(slot) => self.own_ops_ended(slot, lane, out),
            None => Note::Late,
        }
    }

    pub(super) fn closing_failed(&mut self, epoch: Epoch, lane: LaneId, out: &mut Actions) -> Note {
        let waits = self
            .slot_of(epoch)
            .is_some_and(|slot| self.strand(slot, lane).own_ops == OwnOps::Running);
        if !waits {
            return Note::Late;
        }
        self.request_break(lane, out);
        Note::Applied
    }

    pub(super) fn handles_returned(&mut self, context: ContextIx, out: &mut Actions) -> Note {
        let slot = self.capacity.context_slot(context);
        let record = self.context_mut(context);
        if record.handles == Handles::In {
            return Note::Late;
        }
        record.handles = Handles::In;
        self.try_end(slot, out);
        self.try_free_context(slot, out);
        Note::Applied
    }

    /// R4, R7: the slot of a context is free when nothing can name it any more.
    pub(super) fn try_free_context(&mut self, slot: SlotIx, out: &mut Actions) {
        let Kind::Context(context) = self.capacity.kind(slot) else {
            return;
        };
        let record = *self.context(context);
        let epoch = self.epoch(slot);
        if epoch.phase == Phase::Lingering
            && record.quarantined == 0
            && epoch.running == 0
            && record.handles == Handles::In
        {
            assert!(record.pending == 0 && self.members.is_empty(Self::member_list(context)));
            self.free_slot(slot);
            *self.context_mut(context) = Context::FREE;
            out.order(Action::ContextFree { context });
        }
    }
}
