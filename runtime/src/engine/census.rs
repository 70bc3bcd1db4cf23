//! The census: every grant that is not dead, and whose it is.

use crate::engine::lcore::Lcore;
use crate::engine::state::Core;
use crate::ids::{ContextId, GrantId, LaneId, RemoteContext};
use crate::reclaim::{KeyIx, KeyState};

/// A grant that is not dead.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct GrantRecord {
    /// Its name.
    pub grant: GrantId,
    /// Whose memory it opens.
    pub owner: ContextId,
    /// To whom.
    pub holder: RemoteContext,
    /// The lane that its last key is, or was, bound on, by its place in the lcore's table.
    pub lane: LaneId,
    /// Bytes that it opens, or opened.
    pub bytes: u64,
    /// Since it was made, in nanoseconds.
    pub age_ns: u64,
    /// Its last key that is not dead, as the trace names it; none while its lane is being repaired.
    pub key: Option<KeyIx>,
    /// Where that key is in its life; [`KeyState::Dead`] if there is none.
    pub state: KeyState,
}

impl Core {
    pub(super) fn census(&self) -> impl Iterator<Item = GrantRecord> + '_ {
        self.grants.iter().map(|(id, grant)| {
            let key = grant.key.or_else(|| self.keys.of_grant(id.slot).next());
            GrantRecord {
                grant: id,
                owner: self.contexts.id(grant.context),
                holder: grant.holder,
                lane: grant.lane,
                bytes: grant.len,
                age_ns: self.now_ns.saturating_sub(grant.made_ns),
                key,
                state: key.map_or(KeyState::Dead, |key| self.machine.key_state(key)),
            }
        })
    }
}

impl<P> Lcore<P> {
    /// Every grant of this lcore that is not dead, by slot. For the lcore's thread, between steps; another asks by
    /// [`Engine::census`](crate::Engine::census).
    pub fn census(&self) -> impl Iterator<Item = GrantRecord> + '_ {
        self.core.census()
    }
}
