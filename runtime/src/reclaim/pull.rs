//! What the engine pulls, one key at a time, so that a poll step does no more than its budget.

use super::capacity::SlotIx;
use super::key::{KeyIx, KeyState, Removal};
use super::lane::LaneState;
use super::machine::Machine;
use super::strand::StrandState;
use crate::ids::{Epoch, LaneId};

impl Machine {
    /// The next key of the strand to name to its holder, or `None` when each was named or the fence is over.
    pub fn next_to_revoke(&mut self, epoch: Epoch, lane: LaneId) -> Option<KeyIx> {
        let slot = self.strand_in(epoch, lane, StrandState::Fencing)?;
        let key = self.homes.first(self.capacity.due(slot, lane))?;
        self.homes.move_to(self.capacity.rest(slot, lane), key);
        Some(key)
    }

    /// The next key of the strand whose invalidation must be posted now: it becomes [`KeyState::Invalidating`]. `None` when
    /// there is none to post, or the lane is not up. No key is ever returned twice.
    pub fn next_to_invalidate(&mut self, epoch: Epoch, lane: LaneId) -> Option<KeyIx> {
        let slot = self.strand_in(epoch, lane, StrandState::Closing)?;
        let key = self.homes.first(self.capacity.due(slot, lane))?;
        self.homes.move_to(self.capacity.rest(slot, lane), key);
        let record = *self.key(key);
        assert!(
            record.state == KeyState::Fencing && record.removal == Removal::None,
            "R3: {key:?} would be invalidated twice"
        );
        self.key_mut(key).removal = Removal::Posted;
        self.change(key, KeyState::Invalidating);
        Some(key)
    }

    /// The next key of the lane whose window must be deallocated, or region deregistered, off the lcore.
    pub fn next_to_dealloc(&mut self, lane: LaneId) -> Option<KeyIx> {
        let key = self.homes.first(self.capacity.doomed(lane))?;
        self.homes.move_to(self.capacity.aside(lane), key);
        let up = self.lane(lane).state < LaneState::Broken;
        let record = self.key_mut(key);
        assert!(
            !up || (record.state != KeyState::Invalidating && record.removal != Removal::Posted),
            "R3: {key:?} has an invalidation posted on a QP that is not in error"
        );
        record.removal = Removal::Deallocating;
        Some(key)
    }

    /// Looks at the key of the lane that has waited longest, among those that no strand carries any more, and lets it wait anew: it is given if the
    /// holder may still know its value, and so is to be named again. As many calls as [`Machine::aside`] counts look at each.
    pub fn next_to_remind(&mut self, lane: LaneId) -> Option<KeyIx> {
        let aside = self.capacity.aside(lane);
        let key = self.homes.first(aside)?;
        self.homes.move_to(aside, key);
        let record = self.key(key);
        let left = matches!(record.state, KeyState::Parked | KeyState::Unproven);
        // A revoke of its epoch that is still under way names it anyway.
        let fenced = record.epoch.is_none_or(|epoch| {
            let state = self.strand_state(epoch, lane);
            matches!(state, StrandState::Idle | StrandState::Ended)
        });
        (left && fenced && !self.is_acknowledged(key)).then_some(key)
    }

    fn strand_in(&self, epoch: Epoch, lane: LaneId, state: StrandState) -> Option<SlotIx> {
        let slot = self.slot_of(epoch)?;
        let up = self.lane(lane).state == LaneState::Up;
        (up && self.strand(slot, lane).state == state).then_some(slot)
    }
}
