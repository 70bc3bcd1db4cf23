//! Epochs: opening, the steps' deadlines, and the one end.

use super::action::{Action, Actions, Outcome, Quarantine};
use super::capacity::{Kind, SlotIx};
use super::context::Handles;
use super::event::{Note, Timer};
use super::key::{ContextIx, Key, KeyIx, Scope};
use super::lane::LaneState;
use super::lane_set::LaneSet;
use super::machine::Machine;
use super::strand::{OwnOps, Strand, StrandState, Target};
use crate::ids::{Epoch, LaneId};
use crate::plant::{self, Plant};

/// Where an epoch is. While it is in one of the three steps, the timer of that name is armed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) enum Phase {
    /// The slot has no epoch.
    Free,
    /// The open batch.
    Collecting,
    Fence,
    Invalidate,
    Final,
    /// Ended in quarantine; its context's slot is not free yet.
    Lingering,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct EpochSlot {
    pub number: Epoch,
    pub phase: Phase,
    /// Keys in its strands that are neither proven nor quarantined.
    pub pending: u32,
    /// Keys of its strands in quarantine.
    pub quarantined: u32,
    /// Lanes with own operations running.
    pub running: u16,
    /// Flushes asked for before the cordon, if own operations were running then.
    pub cordoned_at: u64,
    /// Lanes whose target has to confirm.
    pub unconfirmed: u16,
}

impl EpochSlot {
    pub(super) const FREE: Self = Self {
        number: Epoch(0),
        phase: Phase::Free,
        pending: 0,
        quarantined: 0,
        running: 0,
        cordoned_at: 0,
        unconfirmed: 0,
    };

    /// Whether the epoch is sealed and has not ended.
    pub(super) const fn is_under_way(&self) -> bool {
        matches!(self.phase, Phase::Fence | Phase::Invalidate | Phase::Final)
    }
}

impl Machine {
    pub(super) fn open_epoch(&mut self, slot: SlotIx, phase: Phase) {
        self.sequence += 1;
        let number = slot.number(self.sequence);
        let record = self.epoch_mut(slot);
        assert!(
            record.phase == Phase::Free,
            "R6: slot {slot:?} has an epoch under way"
        );
        *record = EpochSlot {
            number,
            phase,
            ..EpochSlot::FREE
        };
    }

    /// The slot of an epoch that was sealed and whose slot still knows it.
    pub(super) fn slot_of(&self, epoch: Epoch) -> Option<SlotIx> {
        let slot = SlotIx::of(epoch);
        let record = self.epochs.get(slot.0 as usize)?;
        (record.number == epoch && !matches!(record.phase, Phase::Free | Phase::Collecting))
            .then_some(slot)
    }

    /// Step 2 of a strand, or what takes its place on a lane that is not up.
    pub(super) fn start_strand(&mut self, slot: SlotIx, lane: LaneId, out: &mut Actions) {
        let epoch = self.epoch(slot).number;
        let up = self.lane(lane).state == LaneState::Up;
        let strand = self.strand_mut(slot, lane);
        if !strand.is_open() {
            return;
        }
        strand.state = match (up, strand.pending) {
            (true, 0) => {
                out.order(Action::Close { epoch, lane });
                StrandState::Closing
            }
            (true, _) => {
                out.order(Action::Revoke { epoch, lane });
                StrandState::Fencing
            }
            // Nothing is posted on a lane that is about to break: its break does the rest.
            (false, _) => StrandState::AwaitDestroy,
        };
    }

    pub(super) fn expired_fence(&mut self, epoch: Epoch, out: &mut Actions) -> Note {
        let Some(slot) = self.in_phase(epoch, Phase::Fence) else {
            return Note::StaleTimer;
        };
        self.epoch_mut(slot).phase = Phase::Invalidate;
        out.order(Action::Arm(Timer::Invalidate(epoch)));
        for lane in self.capacity.all_lanes() {
            if self.strand(slot, lane).state == StrandState::Fencing {
                self.begin_closing(slot, lane, out);
            }
        }
        if let Kind::Context(context) = self.capacity.kind(slot)
            && self.context(context).handles == Handles::Out
        {
            self.context_mut(context).handles = Handles::Held;
        }
        self.try_end(slot, out);
        Note::Applied
    }

    pub(super) fn expired_invalidate(&mut self, epoch: Epoch, out: &mut Actions) -> Note {
        let Some(slot) = self.in_phase(epoch, Phase::Invalidate) else {
            return Note::StaleTimer;
        };
        self.epoch_mut(slot).phase = Phase::Final;
        out.order(Action::Arm(Timer::Final(epoch)));
        for lane in self.capacity.all_lanes() {
            if self.is_stuck(slot, lane) {
                self.request_break(lane, out);
            }
        }
        if let Kind::Context(context) = self.capacity.kind(slot) {
            self.hurry_members(context, out);
        }
        Note::Applied
    }

    /// Keys of the context that a batch carries wait for the same lanes. Its own deadline was earlier, unless timers ran late: then a region's need not wait
    /// for it any more, and a window's lane is sick.
    fn hurry_members(&mut self, context: ContextIx, out: &mut Actions) {
        let mut doomed = LaneSet::EMPTY;
        let mut next = self.members.first(Self::member_list(context));
        while let Some(key) = next {
            next = self.members.next(key);
            if !self.waits(key) {
                continue;
            }
            let Key { lane, scope, .. } = *self.key(key);
            match scope {
                Scope::Queue => self.request_break(lane, out),
                Scope::Domain => {
                    self.homes.move_to(self.capacity.doomed(lane), key);
                    doomed = doomed.with(lane);
                }
            }
        }
        for lane in doomed.iter() {
            self.order_dealloc(lane, out);
        }
    }

    /// Whether the strand waits for something that only the lane can give: a hanging deallocation is not the lane's fault.
    fn is_stuck(&self, slot: SlotIx, lane: LaneId) -> bool {
        self.strand(slot, lane).own_ops == OwnOps::Running
            || !self.homes.is_empty(self.capacity.due(slot, lane))
            || !self.homes.is_empty(self.capacity.rest(slot, lane))
    }

    /// Whether the control side was not asked yet to end the key, and has not failed to.
    fn waits(&self, key: KeyIx) -> bool {
        let lane = self.key(key).lane;
        let home = self.homes.list_of(key);
        home != Some(self.capacity.doomed(lane)) && home != Some(self.capacity.aside(lane))
    }

    pub(super) fn expired_final(&mut self, epoch: Epoch, out: &mut Actions) -> Note {
        let Some(slot) = self.in_phase(epoch, Phase::Final) else {
            return Note::StaleTimer;
        };
        match self.capacity.kind(slot) {
            Kind::Context(context) => {
                let mut next = self.members.first(Machine::member_list(context));
                while let Some(key) = next {
                    next = self.members.next(key);
                    if self.key(key).is_pending() {
                        self.quarantine(key, out);
                    }
                }
            }
            Kind::Batch | Kind::Break(_) => {
                for lane in self.capacity.all_lanes() {
                    self.quarantine_strand(slot, lane, out);
                }
            }
        }
        self.end(slot, out);
        // Keys that other epochs carry may have been quarantined with it.
        for slot in self.capacity.all_slots() {
            self.try_end(slot, out);
        }
        Note::Applied
    }

    fn quarantine_strand(&mut self, slot: SlotIx, lane: LaneId, out: &mut Actions) {
        let epoch = self.epoch(slot).number;
        let capacity = self.capacity;
        for list in [
            capacity.due(slot, lane),
            capacity.rest(slot, lane),
            capacity.doomed(lane),
            capacity.aside(lane),
        ] {
            let mut next = self.homes.first(list);
            while let Some(key) = next {
                next = self.homes.next(key);
                if self.key(key).epoch == Some(epoch) && self.key(key).is_pending() {
                    self.quarantine(key, out);
                }
            }
        }
        assert!(self.strand(slot, lane).pending == 0);
    }

    fn in_phase(&self, epoch: Epoch, phase: Phase) -> Option<SlotIx> {
        self.slot_of(epoch)
            .filter(|&slot| self.epoch(slot).phase == phase)
    }

    /// Ends the epoch if each member is proven or quarantined (step 4): it waits for no other epoch.
    pub(super) fn try_end(&mut self, slot: SlotIx, out: &mut Actions) {
        let record = *self.epoch(slot);
        if !record.is_under_way() {
            return;
        }
        let done = match self.capacity.kind(slot) {
            Kind::Batch | Kind::Break(_) => record.pending == 0,
            Kind::Context(context) => {
                let context = self.context(context);
                context.pending == 0
                    && record.running == 0
                    && record.unconfirmed == 0
                    && context.handles != Handles::Out
            }
        };
        if done {
            out.order(Action::Disarm(match record.phase {
                Phase::Fence => Timer::Fence(record.number),
                Phase::Invalidate => Timer::Invalidate(record.number),
                _ => Timer::Final(record.number),
            }));
            self.end(slot, out);
        }
    }

    /// R6: the epoch's one end.
    fn end(&mut self, slot: SlotIx, out: &mut Actions) {
        let record = *self.epoch(slot);
        assert!(record.is_under_way(), "R6: {:?} ends twice", record.number);
        let kind = self.capacity.kind(slot);
        let context = match kind {
            Kind::Context(context) => Some(context),
            Kind::Batch | Kind::Break(_) => None,
        };
        if context.is_none() || !plant::active(Plant::ReuseBeforeFlush) {
            out.order(Action::EpochEnded {
                epoch: record.number,
                context,
                outcome: self.outcome(slot),
            });
        }
        for lane in self.capacity.all_lanes() {
            // The notice has named them; they say nothing about our memory.
            self.strand_mut(slot, lane).target = Target::Clear;
        }
        self.epoch_mut(slot).unconfirmed = 0;
        if context.is_some() {
            self.give_up_own_ops_in_flushes(slot);
            self.epoch_mut(slot).phase = Phase::Lingering;
            self.try_free_context(slot, out);
        } else {
            self.free_slot(slot);
            self.seal_if_due(out);
        }
    }

    fn outcome(&self, slot: SlotIx) -> Outcome {
        let lanes_where = |test: fn(&Strand) -> bool| -> LaneSet {
            self.capacity
                .all_lanes()
                .filter(|&lane| test(self.strand(slot, lane)))
                .collect()
        };
        let (keys, handles) = match self.capacity.kind(slot) {
            Kind::Context(context) => {
                let context = self.context(context);
                assert!(context.pending == 0, "R3: an epoch ends with a pending key");
                (context.quarantined, context.handles)
            }
            Kind::Batch | Kind::Break(_) => (self.epoch(slot).quarantined, Handles::In),
        };
        let left = Quarantine {
            keys,
            own_ops: lanes_where(|strand| strand.own_ops == OwnOps::Running),
            unconfirmed: lanes_where(|strand| strand.target == Target::Unconfirmed),
            handles_held: handles != Handles::In,
        };
        if left.keys == 0
            && left.own_ops.is_empty()
            && left.unconfirmed.is_empty()
            && !left.handles_held
        {
            Outcome::Flushed
        } else {
            Outcome::Quarantined(left)
        }
    }

    pub(super) fn free_slot(&mut self, slot: SlotIx) {
        for lane in self.capacity.all_lanes() {
            let strand = self.strand_mut(slot, lane);
            assert!(!strand.is_open(), "R7: a strand of a free slot is open");
            *strand = Strand::IDLE;
        }
        *self.epoch_mut(slot) = EpochSlot::FREE;
    }

    /// Puts a key that is in no list into the strand of its lane.
    pub(super) fn attach(&mut self, slot: SlotIx, key: KeyIx) {
        let lane = self.key(key).lane;
        let record = self.epoch_mut(slot);
        record.pending += 1;
        let number = record.number;
        self.strand_mut(slot, lane).pending += 1;
        self.key_mut(key).epoch = Some(number);
        let due = self.capacity.due(slot, lane);
        self.homes.push_back(due, key);
    }
}
