//! The lcore's part of key mode `region`: the control side is asked for a grant's key and for its end, and answers by ring. The other part is `engine/domains.rs`.

use keyfence_pmd::{QpId, Rkey};

use crate::engine::command::{KeyRequest, ToControl};
use crate::engine::state::Core;
use crate::error::KeyRefusal;
use crate::event::Event;
use crate::grant::keys::KeyId;
use crate::ids::LaneId;
use crate::lane::queue::Request;
use crate::plant::{self, Plant};
use crate::reclaim;

impl Core {
    /// Has the region of a grant registered, off the lcore.
    pub(super) fn ask_for_region(&mut self, key: KeyId) {
        let grant = self.grants.at(self.keys.at(key.ix()).grant);
        let request = KeyRequest {
            offset: (grant.address - self.memory.arena.address()) as usize,
            len: grant.len as usize,
            rights: grant.rights,
        };
        let lane = grant.lane;
        self.outbox.push(ToControl::MakeKey { lane, key, request });
    }

    /// Has a key ended by the deregistration of its region, off the lcore: the one proof there is for it.
    pub(super) fn end_region(&mut self, key: KeyId) {
        self.outbox.push(ToControl::EndKey(key));
        self.stats.regions_ended += 1;
        if plant::active(Plant::AckBeforeInvalidate) {
            self.drive(reclaim::Event::Deallocated { key: key.ix() });
        }
    }

    /// Does so for those that wait on a lane, at most what is left of the step's budget (R5). Nothing is posted, so a lane that stands still holds up none.
    pub(super) fn end_regions(&mut self, lane: LaneId) {
        while self.reclaim_budget_wrs > 0 {
            let Some(key) = self.machine.next_to_dealloc(lane) else {
                self.lane_mut(lane).regions_due = false;
                return;
            };
            self.reclaim_budget_wrs -= 1;
            self.end_region(self.keys.id(key));
        }
    }

    /// The control side has registered a grant's region, or not. It is told to the holder unless it was taken back meanwhile.
    pub(super) fn key_made(&mut self, key: KeyId, made: Result<Rkey, KeyRefusal>) {
        let Some(entry) = self.keys.get(key) else {
            self.stats.reclaim_notes += 1;
            return;
        };
        let (slot, lane, listed) = (entry.grant, entry.lane, entry.listed);
        let (grant, key) = (self.grants.id(slot), key.ix());
        match made {
            Ok(rkey) => {
                self.keys.at_mut(key).rkey = rkey;
                let wanted = !self.grants.at(slot).retired;
                self.drive(reclaim::Event::BindDone { key });
                if !self.lane(lane).is_up() {
                    // It is told to nobody, so its holder has forgotten it.
                    self.drive(reclaim::Event::ImportDropped { key });
                } else if wanted {
                    self.ask(lane, Request::Grant(grant));
                }
            }
            Err(why) => {
                self.stats.keys_refused += 1;
                let context = self.grants.at(slot).context;
                self.stats.grants_retired += u64::from(self.take_back(slot));
                self.tell(context, Event::KeyRefused { grant, why });
                self.drive(reclaim::Event::BindFailed { key });
            }
        }
        if listed {
            self.listed_key_made(lane);
        }
    }

    /// Nothing can come into the protection domain of a lane's session any more: all values that were valid in it are worthless (R8).
    pub(super) fn domain_over(&mut self, lane: LaneId, qp: QpId) {
        let entry = self.lanes[lane.0 as usize].as_deref();
        if entry.is_some_and(|entry| entry.qp == qp) {
            self.drive(reclaim::Event::DomainDestroyed { lane });
        }
    }
}
