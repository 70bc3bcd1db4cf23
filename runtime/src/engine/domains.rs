//! Key mode `region`: a protection domain a session, in it the session's queue pairs, the arena (which its own key opens to nobody) and a region a grant.
//!
//! A region's key is valid on every queue pair of its domain and outlives each of them, so two things prove here: the return of a region's deregistration
//! ends its key (R3), and the end of the domain makes its values worthless (R8). That a domain can be ended proves too that nothing is registered in it: the only
//! proof there is for a registration that never came back with the region's name.

use keyfence_mempool::{Arena, sync::Arc};
use keyfence_pmd::{Control, ControlError, Device, QpId, Rkey};

use crate::engine::backoff::Backoff;
use crate::engine::calls::{Call, KeyObject};
use crate::engine::command::{Command, KeyRequest};
use crate::engine::control::ControlSide;
use crate::engine::domain::{Domain, Holder, Home, Key, Standing};
use crate::error::KeyRefusal;
use crate::grant::keys::KeyId;
use crate::ids::{LaneId, LcoreId, PeerId, SessionId};

/// The protection domains of key mode `region`, a gauge. Read by [`Engine::domains`](crate::Engine::domains).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct DomainUsage {
    /// Those of sessions, until their last queue pair and region are ended.
    pub sessions: usize,
    /// Those that wait for a session, with the arena registered. At most as many as peers.
    pub vacant: usize,
    /// Those of ended sessions that the device was asked to end and has not. Nothing can come in by them any more; each keeps what the device has not given back of it:
    /// its own place, the arena's registration, and bytes whose registration never came back (in quarantine). More than none for long is a device that is stuck.
    pub ending: usize,
}

impl DomainUsage {
    /// With so many that are ending no session begins in a new one: its join is refused with [`ControlError::Exhausted`], until the device has ended one.
    pub const MOST_ENDING: usize = 16;
}

/// All domains.
#[derive(Debug, Default)]
pub(super) struct Domains {
    /// Those of sessions; those of ended ones as long as something stands in them.
    all: Vec<Domain>,
    /// Those of no session, which no key was ever made in: the next sessions have them. So who is no peer, and knocks, has nothing made or registered.
    vacant: Vec<Home>,
}

impl Domains {
    /// With domains for the first sessions.
    pub fn new(vacant: Vec<Home>) -> Self {
        Self {
            all: Vec::new(),
            vacant,
        }
    }

    fn of(&mut self, session: SessionId) -> Option<&mut Domain> {
        self.all.iter_mut().find(|domain| domain.session == session)
    }

    /// The one that has a key.
    fn with(&mut self, holder: Holder) -> Option<&mut Domain> {
        let mut domains = self.all.iter_mut();
        domains.find(|domain| domain.keys.contains_key(&holder))
    }

    /// How many there are of each kind.
    pub fn usage(&self) -> DomainUsage {
        let ending = self.all.iter().filter(|domain| domain.ending).count();
        DomainUsage {
            sessions: self.all.len() - ending,
            vacant: self.vacant.len(),
            ending,
        }
    }

    /// A queue pair of the session was made.
    pub fn qp_made(&mut self, session: SessionId) {
        if let Some(domain) = self.of(session) {
            domain.qps += 1;
        }
    }

    /// Where the session's queue pairs are made: where its others are, in a vacant domain, or in a new one.
    fn home(
        &mut self,
        session: SessionId,
        device: &impl Control,
        arena: &Arc<Arena>,
    ) -> Result<Home, ControlError> {
        if self.of(session).is_none() {
            let domain = match self.vacant.pop() {
                Some(home) => Domain::new(session, home.pd, Some(home.arena)),
                // An adapter that ends none must not be made to hold ever more of them.
                None if self.usage().ending >= DomainUsage::MOST_ENDING => {
                    return Err(ControlError::Exhausted {
                        what: "protection domains (it does not end those of ended sessions)",
                        limit: DomainUsage::MOST_ENDING as u64,
                    });
                }
                None => Domain::new(session, device.alloc_pd()?, None),
            };
            self.all.push(domain);
        }
        let domain = self.of(session).expect("it is there, or was made");
        domain.home(device, arena)
    }
}

impl<D: Device> ControlSide<D> {
    /// Where the queue pairs of the peer's session are made.
    pub fn home(&mut self, peer: PeerId) -> Result<Home, ControlError> {
        if let Some(home) = self.identity.home {
            return Ok(home);
        }
        let session = self.peers.get(peer).session;
        let arena = &self.identity.arena;
        self.domains.home(session, &*self.device, arena)
    }

    /// Makes a key.
    pub fn make_key(&mut self, lcore: LcoreId, lane: LaneId, key: KeyId, request: &KeyRequest) {
        let made = self.try_make_key(lcore, lane, key, request);
        if let Err(why) = made {
            tracing::warn!(%why, bytes = request.len, "a grant has no key");
        }
        self.send(lcore, Command::KeyMade { key, made });
    }

    fn try_make_key(
        &mut self,
        lcore: LcoreId,
        lane: LaneId,
        key: KeyId,
        request: &KeyRequest,
    ) -> Result<Rkey, KeyRefusal> {
        let record = self.peers.lane_mut(lcore, lane);
        let session = record
            .filter(|record| !record.broken)
            .map(|record| record.session);
        let domain = session.and_then(|session| self.domains.of(session));
        let domain = domain.ok_or(KeyRefusal::SessionOver)?;
        domain.register(&*self.device, &self.identity.arena, (lcore, key), request)
    }

    /// Ends a key, behind its making.
    pub fn end_key(&mut self, lcore: LcoreId, key: KeyId) {
        let holder = (lcore, key);
        let domain = self.domains.with(holder);
        match domain.map(|domain| domain.keys[&holder].standing) {
            Some(Standing::Region(region)) => {
                self.dealloc(lcore, key, KeyObject::Region(region));
            }
            // Proven by the end of its domain alone.
            Some(Standing::Unnamed) => self.send(lcore, Command::Deallocated { key, done: false }),
            // It was never made, or is gone with its domain.
            Some(Standing::Ended) | None => {
                self.send(lcore, Command::Deallocated { key, done: true });
            }
        }
    }

    /// A key's region is deregistered.
    pub fn key_ended(&mut self, lcore: LcoreId, key: KeyId) {
        let holder = (lcore, key);
        if let Some(domain) = self.domains.with(holder) {
            let ended = |key: &mut Key| key.standing = Standing::Ended;
            domain.keys.entry(holder).and_modify(ended);
            let session = domain.session;
            self.end_domain_if_over(session);
        }
    }

    /// A key is dead: its value may come back.
    pub fn forget_key(&mut self, lcore: LcoreId, key: KeyId) {
        let holder = (lcore, key);
        if let Some(domain) = self.domains.with(holder) {
            domain.forget(&*self.device, holder);
        }
    }

    /// The peer's session is over, or did not come about.
    pub fn session_left(&mut self, peer: PeerId) {
        let session = self.peers.get(peer).session;
        if let Some(domain) = self.domains.of(session) {
            domain.stands = false;
            self.end_domain_if_over(session);
        }
    }

    /// A queue pair of the session is destroyed.
    pub fn qp_gone(&mut self, session: SessionId) {
        if let Some(domain) = self.domains.of(session) {
            domain.qps -= 1;
            self.end_domain_if_over(session);
        }
    }

    /// Settles a session's domain when no queue pair and no key's region is left in it: it is vacant if no key was ever made there, else it is ended. Nothing
    /// waits for that end but what may be registered there without a name: who has no queue pair to come in by has no use for a value.
    pub fn end_domain_if_over(&mut self, session: SessionId) {
        let over = |domain: &Domain| domain.session == session && domain.is_over();
        let Some(at) = self.domains.all.iter().position(over) else {
            return;
        };
        let lanes: Vec<(LcoreId, LaneId, QpId)> = self.peers.lanes_of(session).collect();
        for (lcore, lane, qp) in lanes {
            // A grant may be parked there although no key was made: it came too late to get one.
            self.send(lcore, Command::DomainOver { lane, qp });
        }
        let domain = &mut self.domains.all[at];
        if let Some(home) = domain.vacant() {
            self.domains.all.swap_remove(at);
            self.domains.vacant.push(home);
            return;
        }
        domain.ending = true;
        if !self.call(Call::EndDomain(session), Backoff::default()) {
            let stuck = self.domains.usage().ending;
            tracing::warn!(stuck, "a protection domain can't be ended yet");
        }
    }

    /// Whether the domain is ended.
    pub fn try_end_domain(&mut self, session: SessionId) -> bool {
        let domain = self.domains.of(session);
        domain.is_none_or(|domain| domain.end(&*self.device))
    }

    /// The domain is ended: nothing is registered in it any more, not without a name either.
    pub fn domain_ended(&mut self, session: SessionId) {
        let its = |domain: &Domain| domain.session == session;
        let Some(at) = self.domains.all.iter().position(its) else {
            return;
        };
        let domain = self.domains.all.swap_remove(at);
        for ((lcore, key), entry) in domain.keys {
            if entry.standing == Standing::Unnamed {
                self.send(lcore, Command::Deallocated { key, done: true });
            }
        }
    }
}
