//! The list of what is live that a repair says (REQUIREMENTS section 5, "Repair n"): grants with new keys. It waits until there is a key for each: those before may not be proven ended yet.
//!
//! In key mode `region` keys are registered off the lcore, so the list ends when the last one is; and the values of those before outlive their queue pair, so it waits for the
//! other end's `Begin`: from there on nothing is posted there before the list is in force, and then by the keys in it alone. So that is its word that it has forgotten the values
//! before (R8).

use crate::engine::command::Unrepairable;
use crate::engine::state::Core;
use crate::grant::table::Grant;
use crate::ids::LaneId;
use crate::lane::queue::Request;
use crate::reclaim::{self, KeyIx, KeyState};

/// How often the lists that wait for keys are looked through: a walk over the table of grants for each (R5).
const LOOK_INTERVAL_NS: u64 = 1_000_000;

/// The lists of repairs that are not said yet.
#[derive(Debug, Default)]
pub(super) struct Lists {
    /// The slots of their lanes.
    due: u128,
    /// Keys that those wait for which could be said otherwise: nobody else gets these.
    awaited: usize,
    /// When they were last looked through.
    looked_ns: u64,
}

impl Lists {
    fn is_due(&self, lane: LaneId) -> bool {
        self.due & 1 << lane.0 != 0
    }

    fn said(&mut self, lane: LaneId) {
        self.due &= !(1 << lane.0);
    }
}

impl Core {
    /// Has the grants of the lane before named with new keys, as soon as there is one for each.
    pub(super) fn list_when_keyed(&mut self, old: LaneId, new: LaneId) {
        for slot in 0..self.grants.touched() {
            let live = |grant: &&Grant| grant.lane == old && !grant.retired;
            if self.grants.in_slot(slot).filter(live).is_some() {
                self.grants.at_mut(slot).lane = new;
            }
        }
        self.lists.due |= 1 << new.0;
        self.list_if_due(new);
    }

    /// The lane has broken: the next one has a list of its own.
    pub(super) fn drop_list(&mut self, lane: LaneId) {
        self.lists.said(lane);
    }

    /// Whether a new grant has its key at once, and not with the others in a list.
    pub(super) fn takes_keys(&self, lane: LaneId) -> bool {
        self.lane(lane).is_up() && !self.lists.is_due(lane)
    }

    /// Whether a key is free that no list waits for.
    pub(super) fn has_spare_key(&self) -> bool {
        let awaited = if self.lists.due == 0 {
            0
        } else {
            self.lists.awaited
        };
        self.keys.free() > awaited
    }

    /// Looks now and then whether keys have come free that lists wait for.
    pub(super) fn look_at_lists(&mut self) {
        let since_ns = self.now_ns.saturating_sub(self.lists.looked_ns);
        if self.lists.due != 0 && since_ns >= LOOK_INTERVAL_NS {
            self.say_lists_due();
        }
    }

    /// Says the lists for which all is there: keys, and in key mode `region` the other end's `Begin`.
    pub(super) fn say_lists_due(&mut self) {
        self.lists.looked_ns = self.now_ns;
        self.lists.awaited = 0;
        let mut due = self.lists.due;
        while due != 0 {
            let lane = due.trailing_zeros() as u16;
            due &= due - 1;
            self.list_if_due(LaneId(lane));
        }
    }

    fn list_if_due(&mut self, lane: LaneId) {
        let regions = self.caps.regions;
        if regions && !self.lane(lane).link.repair.has_begun_there() {
            return;
        }
        let wanted = self.unkeyed_on(lane).count();
        if !regions && wanted > self.lane(lane).free_windows.len() {
            // Said of a part, the rest would be dead at the other end; and nothing may be posted here before the session is over.
            return self.give_up_session(lane, Unrepairable::Windows);
        }
        if wanted > self.keys.free() {
            self.lists.awaited += wanted;
            return;
        }
        self.lists.said(lane);
        for slot in 0..self.grants.touched() {
            if self.is_unkeyed(slot, lane) {
                self.begin_key(self.grants.id(slot));
                self.list_key(lane, slot);
            }
        }
        self.end_list_if_keyed(lane);
    }

    /// Live grants of the lane that have no key on it.
    fn unkeyed_on(&self, lane: LaneId) -> impl Iterator<Item = u32> {
        (0..self.grants.touched()).filter(move |slot| self.is_unkeyed(*slot, lane))
    }

    fn is_unkeyed(&self, slot: u32, lane: LaneId) -> bool {
        let keyed = |key| self.keys.at(key).lane == lane;
        let grant = self.grants.in_slot(slot);
        grant.is_some_and(|grant| {
            grant.lane == lane && !grant.retired && !grant.key.is_some_and(keyed)
        })
    }

    /// A region's key is not there before it is registered.
    fn list_key(&mut self, lane: LaneId, slot: u32) {
        if self.caps.regions {
            let key = self.grants.at(slot).key.expect("it was begun just now");
            self.keys.at_mut(key).listed = true;
            self.lane_mut(lane).keys_to_list += 1;
        }
    }

    /// A key that the list waits for was made, or not.
    pub(super) fn listed_key_made(&mut self, lane: LaneId) {
        self.lane_mut(lane).keys_to_list -= 1;
        if self.lane(lane).is_up() {
            self.end_list_if_keyed(lane);
        }
    }

    fn end_list_if_keyed(&mut self, lane: LaneId) {
        if self.lane(lane).keys_to_list == 0 {
            self.ask(lane, Request::Ended { from: 0 });
            self.ask(lane, Request::End);
        }
    }

    /// The other end has begun the repair: the values of the lanes before are forgotten there.
    pub(super) fn values_forgotten(&mut self, lane: LaneId) {
        if !self.caps.regions {
            return;
        }
        let entry = self.lane(lane);
        let (name, session) = (entry.name(), entry.session);
        for slot in 0..self.keys.capacity() {
            let key = KeyIx(slot);
            let Some(known) = self.keys.in_slot(key) else {
                continue;
            };
            let on = self.lane(known.lane);
            let before = known.lane != lane && (on.name(), on.session) == (name, session);
            // One that is not registered yet was told to nobody.
            if before && self.machine.key_state(key) != KeyState::Binding {
                self.drive(reclaim::Event::ImportDropped { key });
            }
        }
    }
}
