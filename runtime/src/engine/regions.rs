//! The lcore's part of key mode `region`: the control side is asked for a grant's key and for its end, and answers by ring. The other part is `engine/domains.rs`.

use keyfence_pmd::{QpId, Rkey};

use crate::engine::command::{KeyRequest, ToControl};
use crate::engine::state::Core;
use crate::error::KeyRefusal;
use crate::event::Event;
use crate::ids::{GrantId, LaneId};
use crate::lane::queue::Request;
use crate::plant::{self, Plant};
use crate::reclaim::{self, KeyIx};

impl Core {
    /// Has the region of a grant registered, off the lcore.
    pub(super) fn ask_for_region(&mut self, id: GrantId) {
        let grant = self.grants.at(id.slot);
        let key = KeyRequest {
            offset: (grant.address - self.memory.arena.address()) as usize,
            len: grant.len as usize,
            rights: grant.rights,
        };
        let lane = grant.lane;
        self.outbox.push(ToControl::MakeKey {
            lane,
            grant: id,
            key,
        });
    }

    /// Has a key ended by the deregistration of its region, off the lcore: the one proof there is for it.
    pub(super) fn end_region(&mut self, grant: GrantId) {
        self.outbox.push(ToControl::EndKey(grant));
        self.stats.regions_ended += 1;
        if plant::active(Plant::AckBeforeInvalidate) {
            let key = KeyIx(grant.slot);
            self.drive(reclaim::Event::Deallocated { key });
        }
    }

    /// Does so for those that wait on a lane, at most what is left of the step's budget (R5). Nothing is posted, so a lane that stands still holds up none.
    pub(super) fn end_regions(&mut self, lane: LaneId) {
        while self.reclaim_budget_wrs > 0 {
            let Some(KeyIx(key)) = self.machine.next_to_dealloc(lane) else {
                self.lane_mut(lane).regions_due = false;
                return;
            };
            self.reclaim_budget_wrs -= 1;
            self.end_region(self.grants.id(key));
        }
    }

    /// The control side has registered a grant's region, or not. It is told to the holder unless it was taken back meanwhile.
    pub(super) fn key_made(&mut self, grant: GrantId, made: Result<Rkey, KeyRefusal>) {
        if self.grants.get(grant).is_none() {
            self.stats.reclaim_notes += 1;
            return;
        }
        let key = KeyIx(grant.slot);
        match made {
            Ok(rkey) => {
                let entry = self.grants.at_mut(grant.slot);
                entry.rkey = rkey;
                let (lane, wanted) = (entry.lane, !entry.retired);
                self.drive(reclaim::Event::BindDone { key });
                if wanted && self.lane(lane).is_up() {
                    self.ask(lane, Request::Grant(grant));
                }
            }
            Err(why) => {
                self.stats.keys_refused += 1;
                let entry = self.grants.at_mut(grant.slot);
                let context = entry.context;
                let retired = core::mem::replace(&mut entry.retired, true);
                self.stats.grants_retired += u64::from(!retired);
                self.tell(context, Event::KeyRefused { grant, why });
                self.drive(reclaim::Event::BindFailed { key });
            }
        }
    }

    /// The protection domain of a lane's session is gone, and with it the worth of all values that were valid in it (R8).
    pub(super) fn domain_destroyed(&mut self, lane: LaneId, qp: QpId) {
        let entry = self.lanes[lane.0 as usize].as_deref();
        if entry.is_some_and(|entry| entry.qp == qp) {
            self.drive(reclaim::Event::DomainDestroyed { lane });
        }
    }
}
