//! The protection domain of one session, in key mode `region`: its regions, and which values they must not have (R8).

use std::collections::{BTreeMap, BTreeSet};

use keyfence_mempool::{Arena, sync::Arc};
use keyfence_pmd::{Access, Control, ControlError, PdId, Region, RegionId, Rights, Rkey};

use crate::engine::command::KeyRequest;
use crate::error::KeyRefusal;
use crate::grant::keys::KeyId;
use crate::ids::{LcoreId, SessionId};

/// How an arena is registered where no windows are bound to it: its own key opens nothing (R12).
pub(super) const CLOSED: Access = Access {
    remote: Rights::NONE,
    bind: false,
};

/// What queue pairs are made in: a protection domain with the arena registered in it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Home {
    pub pd: PdId,
    pub arena: Region,
}

/// A key, by its name in this engine.
pub(super) type Holder = (LcoreId, KeyId);

/// What there is, or may be, of a grant's region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Standing {
    /// Registered.
    Region(RegionId),
    /// Its registration did not come back: it may be there, and nobody can name it.
    Unnamed,
    /// Deregistered. The holder may still know the value.
    Ended,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Key {
    pub standing: Standing,
    value: Option<Rkey>,
}

/// The domain of one session.
#[derive(Debug)]
pub(super) struct Domain {
    pub session: SessionId,
    pd: PdId,
    arena: Option<Region>,
    /// Queue pairs that are not destroyed.
    pub qps: u32,
    /// From the registration until the lcore says that the key is dead.
    pub keys: BTreeMap<Holder, Key>,
    /// The values of those keys (R8).
    values: BTreeSet<Rkey>,
    /// Regions that no key has: those that keep a value from coming back, and open nothing.
    spare: Vec<(RegionId, Rkey)>,
    /// Whether a key was ever made in it, or may have been.
    was_keyed: bool,
    /// Whether queue pairs may still be made in it: its session stands, or is made.
    pub stands: bool,
    /// Whether its end is under way.
    pub ending: bool,
}

impl Domain {
    /// The session's own: one that is vacant, or one that is not complete.
    pub fn new(session: SessionId, pd: PdId, arena: Option<Region>) -> Self {
        Self {
            session,
            pd,
            arena,
            qps: 0,
            keys: BTreeMap::new(),
            values: BTreeSet::new(),
            spare: Vec::new(),
            was_keyed: false,
            stands: true,
            ending: false,
        }
    }

    /// Where queue pairs are made, with the arena registered if it is not yet.
    pub fn home(
        &mut self,
        device: &impl Control,
        arena: &Arc<Arena>,
    ) -> Result<Home, ControlError> {
        let region = match self.arena {
            Some(region) => region,
            None => device.register(self.pd, arena, 0..arena.bytes(), CLOSED)?,
        };
        self.arena = Some(region);
        Ok(Home {
            pd: self.pd,
            arena: region,
        })
    }

    /// Whether nothing of its session can be valid in it any more: the session is over, no queue pair is left to come in by, and no key's region that has a name.
    pub fn is_over(&self) -> bool {
        let stands = |key: &Key| matches!(key.standing, Standing::Region(_));
        !self.ending && !self.stands && self.qps == 0 && !self.keys.values().any(stands)
    }

    /// What another session may have of one that is over: no value of it was ever known to anybody (R8).
    pub fn vacant(&self) -> Option<Home> {
        let pd = self.pd;
        let arena = self.arena.filter(|_| !self.was_keyed)?;
        Some(Home { pd, arena })
    }

    /// Registers the bytes of a grant under a value that nobody can know. One that comes back while its holder may know it is given up at once, and a region that
    /// opens nothing takes its place, so that the next try finds another.
    pub fn register(
        &mut self,
        device: &impl Control,
        arena: &Arc<Arena>,
        holder: Holder,
        request: &KeyRequest,
    ) -> Result<Rkey, KeyRefusal> {
        const TRIES: u32 = 8;
        self.was_keyed = true;
        let access = Access {
            remote: request.rights,
            bind: false,
        };
        for _ in 0..TRIES {
            let range = request.offset..request.offset + request.len;
            let region = match device.register(self.pd, arena, range, access) {
                Ok(region) => region,
                Err(error) => return Err(self.not_registered(holder, &error)),
            };
            let value = region.rkey;
            let standing = Standing::Region(region.id);
            if self.values.insert(value) {
                let value = Some(value);
                self.keys.insert(holder, Key { standing, value });
                return Ok(region.rkey);
            }
            if device.deregister(region.id).is_err() {
                // It is ended as the key's own, which nobody is told.
                let value = None;
                self.keys.insert(holder, Key { standing, value });
                break;
            }
            if let Ok(spare) = device.register(self.pd, arena, 0..1, CLOSED)
                && (self.values.contains(&spare.rkey) || !ended(device.deregister(spare.id)))
            {
                self.spare.push((spare.id, spare.rkey));
            }
        }
        Err(KeyRefusal::ValuesKnown { tries: TRIES })
    }

    fn not_registered(&mut self, holder: Holder, error: &ControlError) -> KeyRefusal {
        // The refusal has less to say.
        tracing::warn!(%error, "a grant's region was not registered");
        let why = KeyRefusal::of(error);
        if why == KeyRefusal::Late {
            let (standing, value) = (Standing::Unnamed, None);
            self.keys.insert(holder, Key { standing, value });
        }
        why
    }

    /// The key is dead: its value may come back, and need not be kept from it.
    pub fn forget(&mut self, device: &impl Control, holder: Holder) {
        let Some(key) = self.keys.remove(&holder) else {
            return;
        };
        let Some(value) = key.value else {
            return;
        };
        self.values.remove(&value);
        let stays = |&(id, kept): &(RegionId, Rkey)| kept != value || !ended(device.deregister(id));
        self.spare.retain(stays);
        if let Standing::Region(id) = key.standing {
            // With a planted fault alone.
            self.spare.push((id, value));
        }
    }

    /// Whether nothing is left of it.
    pub fn end(&mut self, device: &impl Control) -> bool {
        self.spare.retain(|&(id, _)| !ended(device.deregister(id)));
        self.arena = self
            .arena
            .filter(|arena| !ended(device.deregister(arena.id)));
        self.spare.is_empty()
            && self.arena.is_none()
            && matches!(
                device.dealloc_pd(self.pd),
                Ok(()) | Err(ControlError::NoSuchPd(_))
            )
    }
}

/// Whether a region is gone. What is not there was ended by a call that came back late.
pub(super) fn ended(result: Result<(), ControlError>) -> bool {
    matches!(result, Ok(()) | Err(ControlError::NoSuchRegion(_)))
}

#[cfg(test)]
mod tests;
