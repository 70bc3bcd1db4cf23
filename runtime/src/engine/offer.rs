//! Grants on their way out: each key's bind if it is a window, and a frame for several.

use keyfence_pmd::{SgeList, WorkOp};

use crate::engine::state::Core;
use crate::grant::keys::Key;
use crate::grant::table::Grant;
use crate::ids::{ContextId, GrantId, LaneId};
use crate::lane::credits::Class;
use crate::lane::inflight::Flight;
use crate::lane::queue::Request;
use crate::reclaim::KeyIx;
use crate::wire::{self, Frame, List, MAX_GRANTS};

impl Core {
    /// The binds of keys and, behind them on the same lane, the grants: this one, and those behind it in the queue that are from the same context to
    /// the same one.
    pub(super) fn post_grants(&mut self, lane: LaneId, first: GrantId) {
        let mut grants = [wire::Grant::EMPTY; MAX_GRANTS];
        let (mut len, mut ends, mut next) = (0, None, Some(first));
        while let Some(id) = next {
            let grant = self.grants.get(id).copied();
            if let Some((grant, ix)) = grant.and_then(|grant| Some((grant, grant.key?))) {
                let key = *self.keys.at(ix);
                ends = Some(self.ends_of(&grant));
                self.post_bind(ix, &key, &grant);
                // One that was taken back since is told to nobody: its key may be dead before the frame comes, and the holder's use of it would break the lane.
                if !grant.retired {
                    grants[len] = wire::Grant {
                        grant: id,
                        rkey: key.rkey,
                        rights: grant.rights,
                        address: grant.address,
                        len: grant.len,
                        lease_ns: grant.lease_ns.unwrap_or(wire::NO_LEASE),
                    };
                    len += 1;
                }
            }
            next = self.next_grant(lane, ends, len);
        }
        if len > 0 {
            let grants = List::from(&grants[..len]);
            self.post_frame(lane, ends, &Frame::Grants { grants });
        }
    }

    /// The owner and the holder of a grant.
    fn ends_of(&self, grant: &Grant) -> (ContextId, ContextId) {
        (self.contexts.id(grant.context), grant.holder.id)
    }

    /// Takes the next request out of the queue if it is a grant that fits into a frame with `len` others between `ends`.
    fn next_grant(
        &mut self,
        lane: LaneId,
        ends: Option<(ContextId, ContextId)>,
        len: usize,
    ) -> Option<GrantId> {
        let Some(Request::Grant(id)) = self.lane(lane).link.control.peek_request() else {
            return None;
        };
        let fits = match (self.grants.get(id), ends) {
            (Some(grant), Some(ends)) => self.ends_of(grant) == ends,
            _ => true,
        };
        let has_room = self.send_room(lane, Class::Request) >= self.slots_of_next_request(lane);
        if len == MAX_GRANTS || !fits || !has_room {
            return None;
        }
        self.lane_mut(lane).link.control.next_request();
        Some(id)
    }

    fn post_bind(&mut self, ix: KeyIx, key: &Key, grant: &Grant) {
        let lane = key.lane;
        let Some(window) = key.window else {
            // A region, which stands already.
            return;
        };
        self.invalidate_late(lane, window);
        let entry = self.lane(lane);
        let bind = WorkOp::Bind {
            window: entry.windows[window as usize].window.id,
            region: entry.arena.id,
            address: grant.address,
            len: grant.len,
            rights: grant.rights,
            rkey: key.rkey,
        };
        self.stage(lane, Flight::Bind { key: ix.0 }, bind, SgeList::EMPTY);
    }
}
