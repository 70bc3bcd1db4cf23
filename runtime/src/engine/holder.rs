//! What a holder's engine says of our grants.

use crate::engine::state::Core;
use crate::grant::table::Grant;
use crate::ids::{GrantId, LaneId};
use crate::reclaim;

impl Core {
    /// A grant that the other end of a lane may speak of. One that was taken back is not moved when its lane's link is, and another peer's lane may have the place by now (R12).
    pub(super) fn grant_of_peer(&self, lane: LaneId, grant: GrantId) -> Option<&Grant> {
        let on = self.lane(lane);
        let entry = self.grants.get(grant)?;
        let holder = (entry.holder.peer, entry.holder.session);
        (entry.lane == lane && holder == (on.peer, on.session)).then_some(entry)
    }

    /// A holder has died, or does not live there.
    pub(super) fn import_dropped(&mut self, lane: LaneId, grant: GrantId) {
        match self.grant_of_peer(lane, grant) {
            Some(entry) => {
                let key = entry.key;
                self.take_back(grant.slot);
                if let Some(key) = key {
                    self.drive(reclaim::Event::ImportDropped { key });
                }
            }
            _ => self.stats.frames_refused += 1,
        }
    }
}
