//! Look-ups of a peer's contexts by name. Every lcore of the peer is asked; the first that knows the name wins.

use std::collections::VecDeque;

use crate::engine::state::Core;
use crate::event::Event;
use crate::ids::{LaneId, LcoreId, PeerId, RemoteContext};
use crate::lane::queue::Request;
use crate::wire::{self, MAX_NAME_BYTES, Name, NameError};

/// Open look-ups of an lcore.
pub(super) const LOOKUPS: u16 = 256;

/// Why a look-up was not started.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LookupError {
    /// The name can't be one.
    #[error(transparent)]
    Name(#[from] NameError),
    /// No session stands with the peer.
    #[error("no session stands with the peer; wait for PeerUp")]
    NoSession,
    /// As many look-ups as an lcore follows are open.
    #[error("{limit} look-ups are open on this lcore; wait for an answer")]
    TooMany {
        /// The most.
        limit: usize,
    },
    /// The context is closed or being reclaimed.
    #[error("the context is closed")]
    ContextClosed,
}

/// A name, held in place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InlineName {
    bytes: [u8; MAX_NAME_BYTES],
    len: u8,
}

impl InlineName {
    /// A copy of `name`.
    pub fn new(name: &Name<'_>) -> Self {
        let mut bytes = [0; MAX_NAME_BYTES];
        bytes[..name.as_str().len()].copy_from_slice(name.as_str().as_bytes());
        Self {
            bytes,
            len: name.as_str().len() as u8,
        }
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        core::str::from_utf8(&self.bytes[..self.len as usize]).expect("made from a str")
    }
}

#[derive(Clone, Copy, Debug)]
struct Pending {
    context: u16,
    generation: u32,
    token: u64,
    peer: PeerId,
    name: InlineName,
    /// Lcores of the peer that have not answered, a bit each.
    waiting: u64,
}

/// Open look-ups of one lcore.
#[derive(Debug)]
pub(super) struct Lookups {
    pending: Box<[Option<Pending>]>,
    /// The wire's request number is the slot and how often it was used.
    rounds: Box<[u16]>,
    /// The slots without a question, the one that has been so for longest first: the later a number comes again, the better.
    free: VecDeque<u16>,
}

impl Lookups {
    /// Room for `capacity` open look-ups, at most 65535.
    pub fn new(capacity: u16) -> Self {
        Self {
            pending: vec![None; capacity as usize].into_boxed_slice(),
            rounds: vec![0; capacity as usize].into_boxed_slice(),
            free: (0..capacity).collect(),
        }
    }

    /// The name asked for under this request number, while it is open.
    pub fn name(&self, request: u32) -> Option<InlineName> {
        let slot = self.slot(request)?;
        self.pending[slot].map(|pending| pending.name)
    }

    /// Drops the questions of a context.
    pub fn forget(&mut self, context: u16) {
        for slot in 0..self.pending.len() {
            if self.pending[slot].is_some_and(|open| open.context == context) {
                self.close(slot);
            }
        }
    }

    /// Takes an open question that was put to `peer`.
    pub fn take_of(&mut self, peer: PeerId) -> Option<(u16, u32, u64)> {
        let at = self
            .pending
            .iter()
            .position(|open| open.is_some_and(|open| open.peer == peer))?;
        self.close(at)
            .map(|open| (open.context, open.generation, open.token))
    }

    fn slot(&self, request: u32) -> Option<usize> {
        let (slot, round) = ((request & 0xffff) as usize, (request >> 16) as u16);
        let open = self.pending.get(slot)?.is_some() && self.rounds[slot] == round;
        open.then_some(slot)
    }

    fn open(&mut self, pending: Pending) -> Option<u32> {
        let slot = usize::from(self.free.pop_front()?);
        self.pending[slot] = Some(pending);
        self.rounds[slot] = self.rounds[slot].wrapping_add(1);
        Some(u32::from(self.rounds[slot]) << 16 | slot as u32)
    }

    /// The request numbers of the open questions to `peer` that its lcore has not answered.
    fn unanswered(&self, peer: PeerId, lcore: LcoreId) -> impl Iterator<Item = u32> {
        let open = self.pending.iter().zip(&self.rounds).zip(0_u32..);
        open.filter_map(move |((open, round), slot)| {
            let open = open.as_ref()?;
            let waits = open.peer == peer && open.waiting & 1 << lcore.0 != 0;
            waits.then_some(u32::from(*round) << 16 | slot)
        })
    }

    /// Notes one lcore's answer; gives the question if that decides it.
    fn answered(
        &mut self,
        peer: PeerId,
        lcore: LcoreId,
        request: u32,
        found: bool,
    ) -> Option<Pending> {
        let slot = self.slot(request)?;
        // R12: another peer's answer changes nothing.
        let pending = self.pending[slot].as_mut()?;
        if pending.peer != peer {
            return None;
        }
        pending.waiting &= !(1 << lcore.0);
        if found || pending.waiting == 0 {
            return self.close(slot);
        }
        None
    }

    /// Takes the question of a slot, which is free then.
    fn close(&mut self, slot: usize) -> Option<Pending> {
        let pending = self.pending[slot].take()?;
        self.free.push_back(slot as u16);
        Some(pending)
    }
}

impl Core {
    pub(super) fn start_lookup(
        &mut self,
        slot: u16,
        peer: PeerId,
        name: &str,
        token: u64,
    ) -> Result<(), LookupError> {
        let name = Name::new(name)?;
        if !self.contexts.get(slot).is_live() {
            return Err(LookupError::ContextClosed);
        }
        let first_lanes = |core: &Self| -> Option<(u64, bool)> {
            let view = core.peers.get(peer.0 as usize)?;
            let asked = Some(view)
                .filter(|view| view.stands())?
                .lanes
                .iter()
                .filter_map(|route| route.first().copied().flatten());
            let (mut lcores, mut up, mut room) = (0_u64, true, true);
            for lane in asked {
                let entry = core.lane(lane);
                lcores |= 1 << entry.peer_lcore.0;
                up &= entry.takes_work();
                room &= entry.link.control.takes_lookup();
            }
            (lcores > 0 && up).then_some((lcores, room))
        };
        let (waiting, room) = first_lanes(self).ok_or(LookupError::NoSession)?;
        let limit = self.lookups.pending.len();
        if !room {
            return Err(LookupError::TooMany { limit });
        }
        let pending = Pending {
            context: slot,
            generation: self.contexts.id(slot).generation,
            token,
            peer,
            name: InlineName::new(&name),
            waiting,
        };
        let request = self
            .lookups
            .open(pending)
            .ok_or(LookupError::TooMany { limit })?;
        for lcore in 0..self.peers[peer.0 as usize].lanes.len() {
            if let Some(&Some(lane)) = self.peers[peer.0 as usize].lanes[lcore].first() {
                self.ask(lane, Request::Lookup { pending: request });
            }
        }
        Ok(())
    }

    pub(super) fn lookup_answered(
        &mut self,
        lane: LaneId,
        request: u32,
        found: Option<&wire::Found>,
    ) {
        let (peer, lcore) = (self.lane(lane).peer, self.lane(lane).peer_lcore);
        let pending = self.lookups.answered(peer, lcore, request, found.is_some());
        let Some(pending) = pending else {
            return;
        };
        if self
            .contexts
            .live(pending.context, pending.generation)
            .is_none()
        {
            self.stats.frames_refused += 1;
            return;
        }
        let session = self.lane(lane).session;
        let context = found.map(|found| RemoteContext {
            peer,
            session,
            id: found.context,
        });
        // What waited for long behind other frames may name one that has ended: nobody would be told of that again.
        let context = context.filter(|remote| !self.is_gone(remote));
        if let Some(remote) = context {
            self.acquaint(pending.context, remote);
        }
        let token = pending.token;
        self.tell(pending.context, Event::Resolved { token, context });
    }

    /// Asks what was asked on a lane before it broke, and not answered.
    pub(super) fn look_up_again(&mut self, lane: LaneId) {
        let entry = self.lane(lane);
        let (peer, lcore) = (entry.peer, entry.peer_lcore);
        if entry.number != 0 {
            return;
        }
        let entry = self.lanes[lane.0 as usize].as_deref_mut();
        let control = &mut entry.expect("seen above").link.control;
        for pending in self.lookups.unanswered(peer, lcore) {
            control.ask(Request::Lookup { pending });
        }
    }
}
