//! The holder's side: imports come, are fenced and buried (REQUIREMENTS section 4, step 2).

use crate::context::ops::{Op, Target};
use crate::engine::state::Core;
use crate::event::{Event, Import};
use crate::grant::import::{ImportEntry, ImportPhase, PeerGrant};
use crate::ids::{Epoch, GrantId, ImportId, LaneId, RemoteContext};
use crate::lane::link::Fence;
use crate::lane::queue::Answer;
use crate::limits::Limits;
use crate::op::Status;
use crate::plant::{self, Plant};
use crate::wire;

/// Untold events beside one for each import, with which a context still gets grants.
const GRANT_EVENTS: usize = 64;

/// Untold events of a context at most: as many as its other limits allow to pile up while it takes none.
pub(super) fn events_limit(limits: &Limits, lanes: u16) -> usize {
    let context = &limits.context;
    // Each operation may be followed by a Writable; each import, once granted, is revoked at most once; a grant whose key is refused ends, too.
    let own = 2 * context.ops_in_flight as usize + 2 * (context.imports + context.grants) as usize;
    let messages = context.messages as usize * usize::from(lanes.max(1));
    own + messages + GRANT_EVENTS + ANSWERS
}

/// Room for the answers to look-ups and flushes, and for news of peers and of remote contexts.
const ANSWERS: usize = 512;

impl Core {
    /// Grants of a peer's have come: new ones, or those that it lists in a repair.
    pub(super) fn grants_came(
        &mut self,
        lane: LaneId,
        header: &wire::Header,
        grants: impl Iterator<Item = wire::Grant>,
    ) {
        let listing = self.is_listing(lane);
        for grant in grants {
            if listing {
                self.list_grant(lane, header, grant);
            } else {
                self.grant_came(lane, header, &grant);
            }
        }
    }

    /// A peer's grant has come, behind the bind of its key.
    pub(super) fn grant_came(&mut self, lane: LaneId, header: &wire::Header, grant: &wire::Grant) {
        let known = self.known_grant(lane, grant.grant);
        let entry = self.lane(lane);
        let owner = entry.link.peer_contexts.get(header.src.slot as usize);
        let (Some(known), Some(_)) = (known, owner) else {
            self.stats.frames_refused += 1;
            return;
        };
        if !known.admits(grant.grant.generation) {
            // Taken back before its key came.
            self.stats.grants_dead_on_arrival += 1;
            return;
        }
        let (peer, listed) = (entry.peer.0 as usize, entry.link.repair.number());
        // A grant is two events in the end. A context that does not take its events gets no more of them.
        let holder = self
            .contexts
            .live(header.dst.slot, header.dst.generation)
            .filter(|&slot| self.contexts.get(slot).events.len() < self.grant_events())
            .filter(|_| self.peers[peer].quota.imports.admits(1).is_ok())
            // Else its imports would not be dead when `Bye` says so.
            .filter(|_| self.peers[peer].leaving.is_none());
        let admitted =
            holder.filter(|&slot| self.contexts.get_mut(slot).quota.imports.take(1).is_ok());
        let owner = self.remote_on(lane, header.src.slot, header.src.generation);
        let id = admitted.and_then(|context| {
            let inserted = self.imports.insert(ImportEntry {
                context,
                lane,
                grant: grant.grant,
                owner,
                address: grant.address,
                len: grant.len,
                rkey: grant.rkey,
                rights: grant.rights,
                phase: ImportPhase::Live,
                in_flight: 0,
                users: 0,
                fence: None,
                listed,
                tell_owner: false,
            });
            if inserted.is_none() {
                self.contexts.get_mut(context).quota.imports.give(1);
            }
            inserted.map(|id| (context, id))
        });
        let Some((context, id)) = id else {
            self.stats.grants_refused += 1;
            self.bury_grant(lane, grant.grant);
            self.answer(lane, Answer::Refused(grant.grant));
            return;
        };
        // Notices behind writes go to it.
        self.learn(&owner);
        let imports = &mut self.peers[peer].quota.imports;
        imports.take(1).expect("R9: seen above");
        self.lane_mut(lane).link.peer_grants[grant.grant.slot as usize] = PeerGrant::Imported {
            generation: grant.grant.generation,
            import: id.slot,
        };
        self.tell_granted(context, id, owner, grant);
    }

    fn tell_granted(&mut self, context: u16, id: ImportId, owner: RemoteContext, of: &wire::Grant) {
        let import = Import {
            id,
            owner,
            len: of.len,
            rights: of.rights,
        };
        self.tell(context, Event::Granted(import));
    }

    /// Untold events of a context with which it still gets grants. What follows is bounded by its other limits.
    fn grant_events(&self) -> usize {
        GRANT_EVENTS + self.limits.context.imports as usize
    }

    /// The peer takes grants back: they are dead here from now on, and it is told when nothing of theirs is on its way.
    pub(super) fn revoke_came(
        &mut self,
        lane: LaneId,
        epoch: Epoch,
        last: bool,
        grants: impl Iterator<Item = GrantId>,
    ) {
        // A peer with more fences open than it may gets no answer to this one; the imports are dead all the same.
        let fence = self.fence_of(lane, epoch);
        if fence.is_none() {
            self.stats.frames_refused += 1;
        }
        for grant in grants {
            match self.known_grant(lane, grant) {
                Some(PeerGrant::Imported { generation, import })
                    if generation == grant.generation =>
                {
                    self.fence_import(import);
                    if let Some(fence) = fence
                        && self.must_wait(import)
                        && self.imports.at(import).fence != Some(fence)
                    {
                        self.wait_for(lane, import, fence);
                    }
                    self.import_ran_down(import);
                }
                Some(PeerGrant::Unknown | PeerGrant::Tombstone { .. }) => {
                    self.bury_grant(lane, grant)
                }
                // One before that which lives in the slot; or one behind it, where no lane is repaired and an honest owner gives the slot again only after our acknowledgement.
                Some(PeerGrant::Imported { .. }) | None => self.stats.frames_refused += 1,
            }
        }
        if let Some(fence) = fence {
            let entry = &mut self.lane_mut(lane).link.fences[fence as usize];
            entry.complete |= last;
            self.answer_fence(lane, fence);
        }
    }

    /// Makes a fence wait for an import; an earlier one, which the peer has given up by naming the import again, waits no longer.
    fn wait_for(&mut self, lane: LaneId, import: u32, fence: u16) {
        let earlier = self.imports.at_mut(import).fence.replace(fence);
        self.lane_mut(lane).link.fences[fence as usize].waiting += 1;
        if let Some(earlier) = earlier {
            self.fence_lost_one(lane, earlier);
        }
    }

    /// Marks an import dead: new operations fail, queued ones end without having been posted.
    pub(super) fn fence_import(&mut self, slot: u32) {
        if self.imports.at(slot).phase == ImportPhase::Fencing {
            return;
        }
        self.imports.at_mut(slot).phase = ImportPhase::Fencing;
        let ImportEntry { context, lane, .. } = *self.imports.at(slot);
        if self.imports.at(slot).in_flight > 0 {
            self.stats.fences_with_ops_in_flight += 1;
        }
        let id = self.imports.id(slot);
        while let Some(op) = self.take_queued(lane, context, |op| op.names_import(slot)) {
            // A fate decided here keeps the import until the operation has ended.
            self.end_unposted(op, Status::Revoked);
            if !self.imports.is_used(slot) {
                break;
            }
        }
        // The one that waited for a credit may have been at the head.
        self.lane_mut(lane).unstarve(context);
        self.tell(context, Event::Revoked(id));
    }

    fn must_wait(&self, import: u32) -> bool {
        if plant::active(Plant::AckBeforeDrain) {
            return false;
        }
        self.imports.is_used(import) && self.imports.at(import).in_flight > 0
    }

    /// A context that held imports has died: they are fenced, and their owners are told.
    pub(super) fn fence_imports_of(&mut self, context: u16) {
        let mut next = self.imports.first_of(context);
        while let Some(slot) = next {
            // It may be buried, and no other is.
            next = self.imports.next_of(slot);
            self.imports.at_mut(slot).tell_owner = true;
            self.fence_import(slot);
            self.import_ran_down(slot);
        }
    }

    /// Removes an import that nothing uses; its grant's name stays dead.
    pub(super) fn bury_import(&mut self, slot: u32) {
        let import = self.imports.remove(slot);
        self.contexts.get_mut(import.context).quota.imports.give(1);
        self.peers[import.owner.peer.0 as usize]
            .quota
            .imports
            .give(1);
        self.bury_grant(import.lane, import.grant);
        if import.tell_owner && self.lane(import.lane).is_up() {
            self.answer(import.lane, Answer::ImportDropped(import.grant));
        }
    }

    /// What is known of the slot of a grant that the peer names. Where lanes are repaired a grant's keys end without our answer, so its slot may have a new one already: then the one that we
    /// still have is dead.
    pub(super) fn known_grant(&mut self, lane: LaneId, grant: GrantId) -> Option<PeerGrant> {
        let known = *self.lane(lane).link.peer_grants.get(grant.slot as usize)?;
        let PeerGrant::Imported { generation, import } = known else {
            return Some(known);
        };
        let newer = grant.generation.wrapping_sub(generation) as i32 > 0;
        if !newer || !self.repairs() {
            return Some(known);
        }
        let dead = PeerGrant::Tombstone { generation };
        self.lane_mut(lane).link.peer_grants[grant.slot as usize] = dead;
        self.fence_import(import);
        self.import_ran_down(import);
        Some(dead)
    }

    fn bury_grant(&mut self, lane: LaneId, grant: GrantId) {
        let known = &mut self.lane_mut(lane).link.peer_grants[grant.slot as usize];
        let newest = match *known {
            PeerGrant::Tombstone { generation }
                if generation.wrapping_sub(grant.generation) as i32 > 0 =>
            {
                generation
            }
            // Another one has the slot already.
            PeerGrant::Imported { generation, .. } if generation != grant.generation => return,
            _ => grant.generation,
        };
        *known = PeerGrant::Tombstone { generation: newest };
    }

    /// Takes the first queued operation that fits out of a context's queue on a lane.
    pub(super) fn take_queued(
        &mut self,
        lane: LaneId,
        context: u16,
        fits: impl FnMut(&Op) -> bool,
    ) -> Option<u32> {
        let entry = self.lanes[lane.0 as usize].as_deref_mut()?;
        entry.link.contexts[context as usize]
            .queue
            .take_first(&mut self.ops, fits)
    }

    /// The open fence of a peer's epoch, a new one if need be; `None` if the peer has more open than it may.
    fn fence_of(&mut self, lane: LaneId, epoch: Epoch) -> Option<u16> {
        let fences = &mut self.lane_mut(lane).link.fences;
        let open = |fence: &Fence| !(fence.complete && fence.waiting == 0);
        if let Some(at) = fences
            .iter()
            .position(|fence| fence.epoch == epoch && open(fence))
        {
            return Some(at as u16);
        }
        let fence = Fence {
            epoch,
            waiting: 0,
            complete: false,
        };
        if let Some(at) = fences.iter().position(|fence| !open(fence)) {
            fences[at] = fence;
            return Some(at as u16);
        }
        if fences.len() == fences.capacity() {
            return None;
        }
        fences.push(fence);
        Some(fences.len() as u16 - 1)
    }

    /// An import of a fence has run down.
    pub(super) fn fence_lost_one(&mut self, lane: LaneId, fence: u16) {
        self.lane_mut(lane).link.fences[fence as usize].waiting -= 1;
        self.answer_fence(lane, fence);
    }

    fn answer_fence(&mut self, lane: LaneId, fence: u16) {
        let entry = self.lane(lane).link.fences[fence as usize];
        if entry.complete && entry.waiting == 0 && self.lane(lane).is_up() {
            self.answer(lane, Answer::Revoked(entry.epoch));
        }
    }

    /// Ends all imports of a lane whose session is over.
    pub(super) fn fence_imports_on(&mut self, lane: LaneId) {
        for slot in 0..self.imports.capacity() {
            if self.imports.is_used(slot) && self.imports.at(slot).lane == lane {
                self.fence_import(slot);
                self.import_ran_down(slot);
            }
        }
    }

    /// Queues an answer. A peer that asks faster than it reads loses answers, and with them its own progress, not ours.
    pub(super) fn answer(&mut self, lane: LaneId, answer: Answer) {
        if !self.lane_mut(lane).link.control.answer(answer) {
            self.stats.answers_dropped += 1;
        }
    }
}

impl Op {
    fn names_import(&self, slot: u32) -> bool {
        matches!(self.target, Target::Memory { import, .. } if import == slot)
    }
}
