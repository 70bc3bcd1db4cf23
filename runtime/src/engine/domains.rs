//! Key mode `region`: a protection domain a session, in it the session's queue pairs, the arena (which its own key opens to nobody) and a region a grant.
//!
//! A region's key is valid on every queue pair of its domain and outlives each of them, so two things prove here: the return of a region's deregistration
//! ends its key (R3), and the end of the domain makes its values worthless (R8). That a domain can be ended proves too that nothing is registered in it: the only
//! proof there is for a registration that never came back with the region's name.

use std::collections::{BTreeMap, BTreeSet};

use keyfence_mempool::{Arena, sync::Arc};
use keyfence_pmd::{
    Access, Control, ControlError, Device, PdId, QpId, Region, RegionId, Rights, Rkey,
};

use crate::engine::backoff::Backoff;
use crate::engine::calls::{Call, KeyObject};
use crate::engine::command::{Command, KeyRequest};
use crate::engine::control::ControlSide;
use crate::error::KeyRefusal;
use crate::ids::{GrantId, LaneId, LcoreId, PeerId, SessionId};

/// How an arena is registered where no windows are bound to it: its own key opens nothing (R12).
const CLOSED: Access = Access {
    remote: Rights::NONE,
    bind: false,
};

/// What queue pairs are made in: a protection domain with the arena registered in it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Home {
    pub pd: PdId,
    pub arena: Region,
}

/// The key of a grant, by the grant's name in this engine.
type Holder = (LcoreId, GrantId);

/// What there is, or may be, of a grant's region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Standing {
    /// Registered.
    Region(RegionId),
    /// Its registration did not come back: it may be there, and nobody can name it.
    Unnamed,
    /// Deregistered. The holder may still know the value.
    Ended,
}

#[derive(Clone, Copy, Debug)]
struct Key {
    standing: Standing,
    value: Option<Rkey>,
}

/// The domain of one session.
#[derive(Debug)]
pub(super) struct Domain {
    session: SessionId,
    pd: PdId,
    arena: Option<Region>,
    /// Queue pairs that are not destroyed.
    qps: u32,
    /// From the registration until the lcore says that the key is dead.
    keys: BTreeMap<Holder, Key>,
    /// The values of those keys (R8).
    values: BTreeSet<Rkey>,
    /// Regions that no key has: those that keep a value from coming back, and open nothing.
    spare: Vec<(RegionId, Rkey)>,
    /// Whether its end is under way.
    ending: bool,
}

/// All domains, those of ended sessions included as long as something stands in them.
#[derive(Debug, Default)]
pub(super) struct Domains(Vec<Domain>);

impl Domains {
    fn of(&mut self, session: SessionId) -> Option<&mut Domain> {
        self.0.iter_mut().find(|domain| domain.session == session)
    }

    /// The one that has a key.
    fn with(&mut self, holder: Holder) -> Option<&mut Domain> {
        let mut domains = self.0.iter_mut();
        domains.find(|domain| domain.keys.contains_key(&holder))
    }

    /// A queue pair of the session was made.
    pub fn qp_made(&mut self, session: SessionId) {
        if let Some(domain) = self.of(session) {
            domain.qps += 1;
        }
    }
}

impl Domain {
    fn is_over(&self) -> bool {
        let stands = |key: &Key| matches!(key.standing, Standing::Region(_));
        !self.ending && self.qps == 0 && !self.keys.values().any(stands)
    }

    /// Registers the bytes of a grant under a value that nobody can know. One that comes back while its holder may know it is given up at once, and a region that
    /// opens nothing takes its place, so that the next try finds another.
    fn register(
        &mut self,
        device: &impl Control,
        arena: &Arc<Arena>,
        holder: Holder,
        request: &KeyRequest,
    ) -> Result<Rkey, KeyRefusal> {
        const TRIES: u32 = 8;
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
    fn forget(&mut self, device: &impl Control, holder: Holder) {
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
    fn end(&mut self, device: &impl Control) -> bool {
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

impl<D: Device> ControlSide<D> {
    /// Where the queue pairs of the peer's session are made.
    pub fn home(&mut self, peer: PeerId) -> Result<Home, ControlError> {
        if let Some(home) = self.identity.home {
            return Ok(home);
        }
        let session = self.peers.get(peer).session;
        if self.domains.of(session).is_none() {
            let pd = self.device.alloc_pd()?;
            self.domains.0.push(Domain {
                session,
                pd,
                arena: None,
                qps: 0,
                keys: BTreeMap::new(),
                values: BTreeSet::new(),
                spare: Vec::new(),
                ending: false,
            });
        }
        let domain = self.domains.of(session).expect("it is there, or was made");
        let (pd, arena) = (domain.pd, &self.identity.arena);
        if let Some(arena) = domain.arena {
            return Ok(Home { pd, arena });
        }
        let region = self.device.register(pd, arena, 0..arena.bytes(), CLOSED)?;
        domain.arena = Some(region);
        Ok(Home { pd, arena: region })
    }

    /// Makes the key of a grant.
    pub fn make_key(&mut self, lcore: LcoreId, lane: LaneId, grant: GrantId, key: &KeyRequest) {
        let made = self.try_make_key(lcore, lane, grant, key);
        if let Err(why) = made {
            tracing::warn!(%why, bytes = key.len, "a grant has no key");
        }
        self.send(lcore, Command::KeyMade { grant, made });
    }

    fn try_make_key(
        &mut self,
        lcore: LcoreId,
        lane: LaneId,
        grant: GrantId,
        key: &KeyRequest,
    ) -> Result<Rkey, KeyRefusal> {
        let record = self.peers.lane_mut(lcore, lane);
        let session = record
            .filter(|record| !record.broken)
            .map(|record| record.session);
        let domain = session.and_then(|session| self.domains.of(session));
        let domain = domain.ok_or(KeyRefusal::SessionOver)?;
        domain.register(&*self.device, &self.identity.arena, (lcore, grant), key)
    }

    /// Ends the key of a grant, behind its making.
    pub fn end_key(&mut self, lcore: LcoreId, grant: GrantId) {
        let holder = (lcore, grant);
        let domain = self.domains.with(holder);
        match domain.map(|domain| domain.keys[&holder].standing) {
            Some(Standing::Region(region)) => {
                self.dealloc(lcore, grant, KeyObject::Region(region));
            }
            // Proven by the end of its domain alone.
            Some(Standing::Unnamed) => {
                self.send(lcore, Command::Deallocated { grant, done: false })
            }
            // It was never made, or is gone with its domain.
            Some(Standing::Ended) | None => {
                self.send(lcore, Command::Deallocated { grant, done: true });
            }
        }
    }

    /// A key's region is deregistered.
    pub fn key_ended(&mut self, lcore: LcoreId, grant: GrantId) {
        let holder = (lcore, grant);
        if let Some(domain) = self.domains.with(holder) {
            let ended = |key: &mut Key| key.standing = Standing::Ended;
            domain.keys.entry(holder).and_modify(ended);
            let session = domain.session;
            self.end_domain_if_over(session);
        }
    }

    /// A key is dead: its value may come back.
    pub fn forget_key(&mut self, lcore: LcoreId, grant: GrantId) {
        let holder = (lcore, grant);
        if let Some(domain) = self.domains.with(holder) {
            domain.forget(&*self.device, holder);
        }
    }

    /// A queue pair of the session is destroyed.
    pub fn qp_gone(&mut self, session: SessionId) {
        if let Some(domain) = self.domains.of(session) {
            domain.qps -= 1;
            self.end_domain_if_over(session);
        }
    }

    /// Ends a session's domain when no queue pair and no key's region is left in it.
    pub fn end_domain_if_over(&mut self, session: SessionId) {
        if let Some(domain) = self.domains.of(session)
            && domain.is_over()
        {
            domain.ending = true;
            self.call(Call::EndDomain(session), Backoff::default());
        }
    }

    /// Whether the domain is ended.
    pub fn try_end_domain(&mut self, session: SessionId) -> bool {
        let domain = self.domains.of(session);
        domain.is_none_or(|domain| domain.end(&*self.device))
    }

    /// The domain is ended: nothing is registered in it any more, and no value of it is worth anything.
    pub fn domain_ended(&mut self, session: SessionId) {
        let Some(at) = self
            .domains
            .0
            .iter()
            .position(|domain| domain.session == session)
        else {
            return;
        };
        let domain = self.domains.0.swap_remove(at);
        for ((lcore, grant), key) in domain.keys {
            if key.standing == Standing::Unnamed {
                self.send(lcore, Command::Deallocated { grant, done: true });
            }
        }
        let lanes: Vec<(LcoreId, LaneId, QpId)> = self.peers.lanes_of(session).collect();
        for (lcore, lane, qp) in lanes {
            self.send(lcore, Command::DomainDestroyed { lane, qp });
        }
    }
}

#[cfg(test)]
mod tests;
