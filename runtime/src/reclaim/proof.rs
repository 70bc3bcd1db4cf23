//! Steps 2 and 3 for keys: acknowledgements, invalidations, deallocations, and what each proves.

use super::action::{Action, Actions};
use super::capacity::SlotIx;
use super::event::Note;
use super::key::{Ack, Key, KeyIx, KeyState, Removal, Scope};
use super::lane::LaneState;
use super::machine::Machine;
use super::strand::{OwnOps, StrandState};
use crate::ids::{Epoch, LaneId};

impl Machine {
    pub(super) fn acked(&mut self, epoch: Epoch, lane: LaneId, out: &mut Actions) -> Note {
        let mut known = false;
        if let Some(slot) = self.slot_of(epoch)
            && self.strand(slot, lane).state != StrandState::Idle
        {
            known = true;
            self.strand_mut(slot, lane).ack = Ack::Received;
            if self.strand(slot, lane).state == StrandState::Fencing {
                self.begin_closing(slot, lane, out);
            }
        }
        let mut next = self.homes.first(self.capacity.aside(lane));
        while let Some(key) = next {
            next = self.homes.next(key);
            if self.key(key).epoch == Some(epoch) {
                known = true;
                self.acknowledge(key, out);
            }
        }
        self.try_free_lane(lane, out);
        if known {
            Note::Applied
        } else {
            Note::UnknownEpoch
        }
    }

    pub(super) fn import_dropped(&mut self, key: KeyIx, out: &mut Actions) -> Note {
        if self.key(key).state == KeyState::Dead {
            return Note::AlreadyProven;
        }
        let lane = self.key(key).lane;
        let parked = self.key(key).state == KeyState::Parked;
        self.acknowledge(key, out);
        if parked {
            self.try_free_lane(lane, out);
            return Note::Applied;
        }
        self.retire(key, out)
    }

    /// R8: the holder has forgotten the value. Not a proof of anything (R3).
    fn acknowledge(&mut self, key: KeyIx, out: &mut Actions) {
        self.key_mut(key).ack = Ack::Received;
        if self.key(key).state == KeyState::Parked {
            self.unpark(key, out);
        }
    }

    pub(super) fn is_acknowledged(&self, key: KeyIx) -> bool {
        let key = self.key(key);
        key.ack == Ack::Received
            || key
                .epoch
                .and_then(|epoch| self.slot_of(epoch))
                .is_some_and(|slot| self.strand(slot, key.lane).ack == Ack::Received)
    }

    /// Step 3 of one strand. The others of its epoch may still be fencing.
    pub(super) fn begin_closing(&mut self, slot: SlotIx, lane: LaneId, out: &mut Actions) {
        self.strand_mut(slot, lane).state = StrandState::Closing;
        let (due, rest) = (
            self.capacity.due(slot, lane),
            self.capacity.rest(slot, lane),
        );
        let mut has_regions = false;
        for (list, other) in [(due, rest), (rest, due)] {
            let mut next = self.homes.first(list);
            while let Some(key) = next {
                next = self.homes.next(key);
                let record = self.key(key);
                has_regions |= record.scope == Scope::Domain;
                let postable = record.state == KeyState::Fencing;
                // A region has no invalidation. One that is being registered is not waited for: the control side does both in order.
                if record.scope == Scope::Domain || (postable && record.removal == Removal::Failed)
                {
                    self.homes.move_to(self.capacity.doomed(lane), key);
                } else if postable != (list == due) {
                    self.homes.move_to(other, key);
                }
            }
        }
        self.order_dealloc(lane, out);
        #[cfg(feature = "plant")]
        self.spare_below_reuse_limit(slot, lane, out);
        self.order_invalidate(slot, lane, out);
        if has_regions {
            self.close_beside_regions(slot, lane, out);
        }
    }

    /// A region's end is not posted, so it serves as no closing WR, and none must wait for it: the control side may be long, and the lane is not to blame.
    fn close_beside_regions(&self, slot: SlotIx, lane: LaneId, out: &mut Actions) {
        let (due, rest) = (
            self.capacity.due(slot, lane),
            self.capacity.rest(slot, lane),
        );
        if self.homes.is_empty(due)
            && self.homes.is_empty(rest)
            && self.strand(slot, lane).own_ops == OwnOps::Running
            && self.lane(lane).state == LaneState::Up
        {
            let epoch = self.epoch(slot).number;
            out.order(Action::Close { epoch, lane });
        }
    }

    fn order_invalidate(&mut self, slot: SlotIx, lane: LaneId, out: &mut Actions) {
        let epoch = self.epoch(slot).number;
        if self.lane(lane).state == LaneState::Up
            && !self.homes.is_empty(self.capacity.due(slot, lane))
        {
            out.order(Action::Invalidate { epoch, lane });
        }
    }

    pub(super) fn bind_done(&mut self, key: KeyIx, out: &mut Actions) -> Note {
        if let Some(note) = self.after_the_bind(key) {
            return note;
        }
        if self.is_unsealed(key) {
            self.set_state(key, KeyState::Live, out);
        } else {
            self.set_state(key, KeyState::Fencing, out);
            self.resume_bound(key, out);
        }
        Note::Applied
    }

    pub(super) fn bind_failed(&mut self, key: KeyIx, out: &mut Actions) -> Note {
        if let Some(note) = self.after_the_bind(key) {
            return note;
        }
        if self.key(key).removal == Removal::None {
            self.key_mut(key).removal = Removal::Failed;
        }
        self.set_state(key, KeyState::Fencing, out);
        if self.key(key).epoch.is_none() {
            return self.retire(key, out);
        }
        self.resume_bound(key, out);
        Note::Applied
    }

    /// What to answer if the bind's completion comes when the key has gone on without it.
    fn after_the_bind(&self, key: KeyIx) -> Option<Note> {
        match self.key(key).state {
            KeyState::Binding => None,
            KeyState::Parked | KeyState::Dead => Some(Note::AlreadyProven),
            KeyState::Unproven => Some(Note::Late),
            state => panic!("R4: a bind of {key:?} completes in state {state:?}"),
        }
    }

    /// Lets a key whose bind has ended join the step that its strand is in.
    fn resume_bound(&mut self, key: KeyIx, out: &mut Actions) {
        let record = *self.key(key);
        if record.scope == Scope::Domain {
            // Step 3 takes it as it is.
            return;
        }
        let Some(slot) = record.epoch.and_then(|epoch| self.slot_of(epoch)) else {
            return;
        };
        let failed = record.removal == Removal::Failed;
        match self.strand(slot, record.lane).state {
            StrandState::Closing if !failed => {
                self.homes
                    .move_to(self.capacity.due(slot, record.lane), key);
                self.order_invalidate(slot, record.lane, out);
            }
            StrandState::Closing | StrandState::Deallocating => {
                self.homes.move_to(self.capacity.doomed(record.lane), key);
                self.order_dealloc(record.lane, out);
            }
            // Named in step 2 as it is; or given up with its lane.
            StrandState::Fencing | StrandState::AwaitDestroy => {}
            state => panic!("{key:?} is pending in a strand in state {state:?}"),
        }
    }

    pub(super) fn chain_refused(&mut self, epoch: Epoch, lane: LaneId, out: &mut Actions) -> Note {
        let strand = self
            .slot_of(epoch)
            .map(|slot| (slot, self.strand(slot, lane).state));
        let Some((slot, StrandState::Closing)) = strand else {
            return Note::Late;
        };
        self.strand_mut(slot, lane).state = StrandState::Deallocating;
        while let Some(key) = self.homes.first(self.capacity.due(slot, lane)) {
            self.homes.move_to(self.capacity.doomed(lane), key);
        }
        self.order_dealloc(lane, out);
        Note::Applied
    }

    pub(super) fn invalidated(&mut self, key: KeyIx, out: &mut Actions) -> Note {
        if let Some(note) = self.after_the_proof(key) {
            return note;
        }
        let Key { epoch, lane, .. } = *self.key(key);
        // Posted behind the last own operation, so that its success ends them too.
        if let Some(slot) = epoch.and_then(|epoch| self.slot_of(epoch))
            && self.strand(slot, lane).own_ops == OwnOps::Running
        {
            self.end_own_ops(slot, lane, out);
        }
        self.prove(key, out);
        Note::Applied
    }

    pub(super) fn invalidate_failed(&mut self, key: KeyIx, out: &mut Actions) -> Note {
        if let Some(note) = self.after_the_proof(key) {
            return note;
        }
        let record = self.key_mut(key);
        if record.removal == Removal::Posted {
            record.removal = Removal::Failed;
        }
        let lane = record.lane;
        self.request_break(lane, out);
        Note::Applied
    }

    /// What to answer if the invalidation's completion comes when the key was proven on another way.
    fn after_the_proof(&self, key: KeyIx) -> Option<Note> {
        match self.key(key).state {
            KeyState::Parked | KeyState::Dead => Some(Note::AlreadyProven),
            KeyState::Invalidating | KeyState::Unproven => None,
            state => panic!("R3: an invalidation of {key:?} completes in state {state:?}"),
        }
    }

    pub(super) fn deallocated(&mut self, key: KeyIx, out: &mut Actions) -> Note {
        let record = *self.key(key);
        if record.state.is_proven() {
            return Note::AlreadyProven;
        }
        assert!(
            matches!(
                record.removal,
                Removal::Deallocating | Removal::DeallocFailed
            ),
            "R3: {key:?} is deallocated without an order, in state {:?}",
            record.state
        );
        self.prove(key, out);
        Note::Applied
    }

    pub(super) fn dealloc_failed(&mut self, key: KeyIx, out: &mut Actions) -> Note {
        let record = *self.key(key);
        if record.state.is_proven() {
            return Note::AlreadyProven;
        }
        if record.removal == Removal::DeallocFailed {
            return Note::Late;
        }
        assert!(
            record.removal == Removal::Deallocating,
            "{key:?} was not to be deallocated"
        );
        self.key_mut(key).removal = Removal::DeallocFailed;
        if record.scope == Scope::Domain {
            // No QP's end makes that possible: the call may still return, within the epoch's deadline or as a late proof.
            return Note::Applied;
        }
        if self.lane(record.lane).state < LaneState::Broken {
            // The QP's end makes another attempt possible.
            self.request_break(record.lane, out);
        } else if record.is_pending() {
            self.quarantine(key, out);
            self.settle(key, out);
        }
        Note::Applied
    }

    /// R3: the device has proven that the key opens nothing.
    pub(super) fn prove(&mut self, key: KeyIx, out: &mut Actions) {
        let Key {
            lane,
            scope,
            context,
            state: from,
            epoch,
            ..
        } = *self.key(key);
        let slot = epoch.and_then(|epoch| self.slot_of(epoch));
        self.homes.remove(key);
        self.members.remove(key);
        if from == KeyState::Unproven {
            self.context_mut(context).quarantined -= 1;
            if let Some(slot) = slot.filter(|&slot| self.epoch(slot).is_under_way()) {
                self.epoch_mut(slot).quarantined -= 1;
            }
        } else {
            self.leave_strand(key);
            self.context_mut(context).pending -= 1;
        }
        let dead = self.is_acknowledged(key) || self.lane(lane).has_outlived(scope);
        if dead {
            self.lane_mut(lane).keys -= 1;
            self.set_state(key, KeyState::Dead, out);
        } else {
            self.lane_mut(lane).parked += 1;
            self.homes.push_back(self.capacity.aside(lane), key);
            self.set_state(key, KeyState::Parked, out);
        }
        self.count_in_flushes(key, from);
        if let Some(slot) = slot.filter(|_| from != KeyState::Unproven)
            // A region's closing WR was ordered beside it.
            && (scope == Scope::Queue || self.strand(slot, lane).state != StrandState::Closing)
        {
            self.close_behind(slot, lane, out);
        }
        self.settle(key, out);
        self.try_free_lane(lane, out);
    }

    /// Gives up waiting for the key's proof (R6). Its work stays valid: a late proof releases it.
    pub(super) fn quarantine(&mut self, key: KeyIx, out: &mut Actions) {
        let Key {
            lane,
            context,
            state: from,
            ..
        } = *self.key(key);
        if self.is_acknowledged(key) {
            self.key_mut(key).ack = Ack::Received;
        }
        let doomed = self.capacity.doomed(lane);
        if self.homes.list_of(key) != Some(doomed) {
            self.homes.move_to(self.capacity.aside(lane), key);
        }
        let slot = self.leave_strand(key);
        self.epoch_mut(slot).quarantined += 1;
        let record = self.context_mut(context);
        record.pending -= 1;
        record.quarantined += 1;
        self.set_state(key, KeyState::Unproven, out);
        self.count_in_flushes(key, from);
    }

    /// Takes a pending key out of its strand's and epoch's counts.
    fn leave_strand(&mut self, key: KeyIx) -> SlotIx {
        let Key { lane, epoch, .. } = *self.key(key);
        let slot = epoch
            .and_then(|epoch| self.slot_of(epoch))
            .expect("a pending key's epoch is under way");
        self.retired -= 1;
        self.epoch_mut(slot).pending -= 1;
        let strand = self.strand_mut(slot, lane);
        strand.pending -= 1;
        if !strand.is_open() {
            strand.state = StrandState::Ended;
        }
        slot
    }

    /// No invalidation is left to serve as the closing WR of own operations that still run.
    fn close_behind(&mut self, slot: SlotIx, lane: LaneId, out: &mut Actions) {
        let strand = self.strand(slot, lane);
        if strand.pending == 0
            && strand.own_ops == OwnOps::Running
            && self.lane(lane).state == LaneState::Up
        {
            let epoch = self.epoch(slot).number;
            self.strand_mut(slot, lane).state = StrandState::Closing;
            out.order(Action::Close { epoch, lane });
        }
    }

    /// Ends what the key's end allows to end.
    fn settle(&mut self, key: KeyIx, out: &mut Actions) {
        let Key { context, epoch, .. } = *self.key(key);
        if let Some(slot) = epoch.and_then(|epoch| self.slot_of(epoch)) {
            self.try_end(slot, out);
        }
        let slot = self.capacity.context_slot(context);
        self.try_end(slot, out);
        self.try_free_context(slot, out);
    }
}
