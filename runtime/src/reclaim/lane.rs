//! Lanes: their end, and what it ends.

use super::action::{Action, Actions};
use super::epoch::Phase;
use super::event::{Note, Timer};
use super::key::{KeyIx, KeyState, Removal, Scope};
use super::list::ListId;
use super::machine::Machine;
use super::strand::{OwnOps, StrandState, Target};
use crate::ids::LaneId;

/// Where a lane's QP is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum LaneState {
    /// Work may be posted. An index that nobody uses is up too.
    Up,
    /// Found sick: its break is ordered. Nothing is started on it any more.
    Breaking,
    /// In error.
    Broken,
    /// Gone.
    Destroyed,
}

/// Whether the target of operations flushed by the break has answered, or is lost.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum TargetState {
    Unknown,
    Answered,
}

/// The lane's protection domain.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Domain {
    Alive,
    Destroyed,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Lane {
    pub state: LaneState,
    pub target: TargetState,
    pub domain: Domain,
    /// Keys of the lane that are not dead.
    pub keys: u32,
    /// Those of them that are parked.
    pub parked: u32,
}

impl Lane {
    pub(super) const NEW: Self = Self {
        state: LaneState::Up,
        target: TargetState::Unknown,
        domain: Domain::Alive,
        keys: 0,
        parked: 0,
    };

    /// R8: whether no value of `scope` can be valid on this lane again.
    pub(super) const fn has_outlived(&self, scope: Scope) -> bool {
        match scope {
            Scope::Queue => matches!(self.state, LaneState::Destroyed),
            Scope::Domain => matches!(self.domain, Domain::Destroyed),
        }
    }
}

impl Machine {
    /// Orders the lane's break, once.
    pub(super) fn request_break(&mut self, lane: LaneId, out: &mut Actions) {
        let record = self.lane_mut(lane);
        if record.state == LaneState::Up {
            record.state = LaneState::Breaking;
            out.order(Action::BreakLane { lane });
        }
    }

    pub(super) fn lane_broken(&mut self, lane: LaneId, out: &mut Actions) -> Note {
        if self.lane(lane).state >= LaneState::Broken {
            return Note::Late;
        }
        self.lane_mut(lane).state = LaneState::Broken;
        self.open_break(lane, out);
        for slot in self.capacity.all_slots() {
            if !self.epoch(slot).is_under_way() || !self.strand(slot, lane).is_open() {
                continue;
            }
            if self.strand(slot, lane).own_ops == OwnOps::Running {
                self.want_confirmation(slot, lane);
            }
            self.strand_mut(slot, lane).state = StrandState::AwaitDestroy;
            self.doom_all(self.capacity.due(slot, lane), lane);
            self.doom_all(self.capacity.rest(slot, lane), lane);
        }
        self.doom_failed(lane);
        self.order_dealloc(lane, out);
        Note::Applied
    }

    /// Retires the lane's keys that no sealed epoch carries, under one of their own.
    fn open_break(&mut self, lane: LaneId, out: &mut Actions) {
        let open = self.batch.slot;
        let unsealed = [
            self.capacity.live(lane),
            self.capacity.due(open, lane),
            self.capacity.rest(open, lane),
        ];
        if unsealed.iter().all(|&list| self.homes.is_empty(list)) {
            return;
        }
        let slot = self.capacity.break_slot(lane);
        self.open_epoch(slot, Phase::Final);
        out.order(Action::Arm(Timer::Final(self.epoch(slot).number)));
        for list in unsealed {
            while let Some(key) = self.homes.first(list) {
                self.claim(slot, key, out);
            }
        }
    }

    fn doom_all(&mut self, list: ListId, lane: LaneId) {
        while let Some(key) = self.homes.first(list) {
            self.homes.move_to(self.capacity.doomed(lane), key);
        }
    }

    /// A broken QP makes a deallocation possible where there was none, or another one.
    fn doom_failed(&mut self, lane: LaneId) {
        let mut next = self.homes.first(self.capacity.aside(lane));
        while let Some(key) = next {
            next = self.homes.next(key);
            let record = self.key(key);
            if !record.state.is_proven() && record.removal != Removal::Deallocating {
                self.homes.move_to(self.capacity.doomed(lane), key);
            }
        }
    }

    pub(super) fn order_dealloc(&mut self, lane: LaneId, out: &mut Actions) {
        if !self.homes.is_empty(self.capacity.doomed(lane)) {
            out.order(Action::Dealloc { lane });
        }
    }

    pub(super) fn qp_destroyed(&mut self, lane: LaneId, out: &mut Actions) -> Note {
        assert!(
            self.lane(lane).state == LaneState::Broken,
            "{lane:?} is destroyed in state {:?}",
            self.lane(lane).state
        );
        self.lane_mut(lane).state = LaneState::Destroyed;
        self.release_parked(lane, out);
        for slot in self.capacity.all_slots() {
            if self.strand(slot, lane).own_ops == OwnOps::Running {
                self.end_own_ops(slot, lane, out);
            }
        }
        self.try_free_lane(lane, out);
        Note::Applied
    }

    pub(super) fn domain_destroyed(&mut self, lane: LaneId, out: &mut Actions) -> Note {
        self.lane_mut(lane).domain = Domain::Destroyed;
        self.release_parked(lane, out);
        self.try_free_lane(lane, out);
        Note::Applied
    }

    /// R8: values of what is gone can't come back to life.
    fn release_parked(&mut self, lane: LaneId, out: &mut Actions) {
        let mut next = self.homes.first(self.capacity.aside(lane));
        while let Some(key) = next {
            next = self.homes.next(key);
            let record = self.key(key);
            if record.state == KeyState::Parked && self.lane(lane).has_outlived(record.scope) {
                self.unpark(key, out);
            }
        }
    }

    pub(super) fn unpark(&mut self, key: KeyIx, out: &mut Actions) {
        let lane = self.key(key).lane;
        self.homes.remove(key);
        let record = self.lane_mut(lane);
        record.parked -= 1;
        record.keys -= 1;
        self.set_state(key, KeyState::Dead, out);
    }

    pub(super) fn target_answered(&mut self, lane: LaneId, out: &mut Actions) -> Note {
        if self.lane(lane).target == TargetState::Answered {
            return Note::Late;
        }
        self.lane_mut(lane).target = TargetState::Answered;
        for slot in self.capacity.all_slots() {
            if self.strand(slot, lane).target == Target::Unconfirmed {
                self.strand_mut(slot, lane).target = Target::Clear;
                self.epoch_mut(slot).unconfirmed -= 1;
                self.try_end(slot, out);
            }
        }
        self.try_free_lane(lane, out);
        Note::Applied
    }

    pub(super) fn try_free_lane(&mut self, lane: LaneId, out: &mut Actions) {
        let record = self.lane_mut(lane);
        if record.state == LaneState::Destroyed
            && record.keys == 0
            && record.target == TargetState::Answered
        {
            *record = Lane::NEW;
            out.order(Action::LaneFree { lane });
        }
    }
}
