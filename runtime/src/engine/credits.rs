//! Credits of messages: kept at the submission, spent at the post, given back by what is never posted; and who is told when there are some again.
//!
//! A message that is accepted has its credit at its receiver, so it waits for nothing but its lane, and a receiver that takes none costs its senders a
//! refusal and nobody anything else (REQUIREMENTS section 4). Credits of the lane come back whatever contexts do; who waits for one is served in order.

use crate::context::ops::Op;
use crate::engine::state::Core;
use crate::error::SubmitError;
use crate::event::Event;
use crate::ids::{ContextId, LaneId};
use crate::lane::remote::{Senders, Standing};
use crate::lane::senders::Look;

impl Core {
    /// A lane is admitted: what its sisters were told of remote contexts before holds on it too.
    pub(super) fn learn_from_sisters(&mut self, lane: LaneId) {
        let entry = self.lane(lane);
        let (peer, lcore, initial) = (entry.peer, entry.peer_lcore, entry.peer_messages);
        let sisters = self.peers[peer.0 as usize].lanes.get(lcore.0 as usize);
        let up = |sister: &LaneId| *sister != lane && self.lane(*sister).is_up();
        let sister = sisters.and_then(|known| known.iter().flatten().copied().find(up));
        let Some(sister) = sister else {
            return;
        };
        let mut slots = core::mem::take(&mut self.lane_mut(lane).link.peer_contexts);
        for (slot, known) in slots.iter_mut().zip(&self.lane(sister).link.peer_contexts) {
            slot.take_over(known, initial);
        }
        self.lane_mut(lane).link.peer_contexts = slots;
    }

    /// Whether the receiver of an operation of context `slot` takes one more message; if not, the context is told when it does.
    pub(super) fn admit_message_to(
        &mut self,
        lane: LaneId,
        slot: u16,
        to: ContextId,
    ) -> Result<(), SubmitError> {
        let entry = self.lane_mut(lane);
        let known = entry.link.peer_contexts.get(to.slot as usize);
        // R5: a name that the application made up says nothing of the one that lives there.
        let room = match known.map(|known| (known.standing(to.generation), known)) {
            Some((Standing::Lives, known)) => known.credits.room(),
            Some((Standing::Gone, _)) => return Err(SubmitError::ContextGone),
            Some((Standing::Unknown, _)) | None => return Err(SubmitError::UnknownContext),
        };
        if room > 0 {
            return Ok(());
        }
        let messages = entry.peer_messages;
        entry.refuse(slot, to.slot);
        self.stats.submits_refused += 1;
        Err(SubmitError::NoCredit { messages })
    }

    /// Keeps the credit of an operation that has just been admitted.
    pub(super) fn keep_credit(&mut self, lane: LaneId, to: ContextId) {
        self.lane_mut(lane).link.peer_contexts[to.slot as usize]
            .credits
            .reserve();
    }

    /// Gives back the credit of an operation whose message, or notice, is never posted.
    pub(super) fn give_credit_back(&mut self, op: &Op) {
        if let Some(to) = op.receiver() {
            let entry = self.lane_mut(op.lane);
            let known = &mut entry.link.peer_contexts[to.slot as usize];
            if let Some(credits) = known.credits_of(to.generation) {
                credits.give_back();
            }
            entry.room_again(to.slot);
        }
    }

    /// Spends the credit that was kept for a message, and one of the lane; false if the lane has none for this context now.
    pub(super) fn spend_message_credit(
        &mut self,
        lane: LaneId,
        context: u16,
        to: ContextId,
    ) -> bool {
        let entry = self.lane_mut(lane);
        let known = &mut entry.link.peer_contexts[to.slot as usize];
        let kept = known.credits_of(to.generation);
        if !kept.is_some_and(|kept| kept.can_spend()) || !entry.spend_message_credit(context) {
            return false;
        }
        entry.link.peer_contexts[to.slot as usize].credits.spend();
        true
    }

    /// Lets as many contexts that wait for credits of the lane try again as there are credits for: those that waited longest, with one for each and the
    /// rest by weight. What does not divide goes to the first in line in the next step, so it goes round.
    pub(super) fn wake_starved(&mut self, lane: LaneId) {
        let entry = self.lanes[lane.0 as usize].as_deref_mut();
        let entry = entry.expect("the lane being pumped exists");
        let credits = entry.free_message_credits();
        let count = entry.link.starved.len().min(credits as usize);
        let weight = |context: u16| u64::from(self.contexts.get(context).weight);
        let weights: u64 = entry.link.starved.iter().take(count).map(weight).sum();
        let rest = u64::from(credits) - count as u64;
        for _ in 0..count {
            let first = entry.link.starved.iter().next().expect("counted above");
            entry.wake_starved(1 + (rest * weight(first) / weights) as u32);
        }
    }

    /// Tells senders that were refused of the room that their receivers have again: as many as it is enough for. Who was told may not use its
    /// chance, so the next ones are told in the next step, as long as there is room.
    pub(super) fn tell_senders(&mut self, lane: LaneId) {
        let mut due = self.lane_mut(lane).take_due();
        while let Some(remote) = due {
            due = self.lane_mut(lane).next_due(remote);
            self.tell_senders_to(lane, remote);
        }
    }

    fn tell_senders_to(&mut self, lane: LaneId, remote: u16) {
        let entry = self.lane_mut(lane);
        let known = &entry.link.peer_contexts[remote as usize];
        // Of one that is gone they are to hear that too.
        let mut room = if known.is_vacant() {
            u32::MAX
        } else {
            known.credits.room()
        };
        if room == 0 {
            return;
        }
        let mut more = false;
        for _ in 0..entry.link.refused.len() {
            match self
                .lane_mut(lane)
                .link
                .refused
                .look_at_next(remote, room > 0)
            {
                Look::Woken(context) => {
                    room -= 1;
                    self.tell_writable(context);
                }
                Look::Waits => more = true,
                Look::Other => {}
            }
        }
        let entry = self.lane_mut(lane);
        if more {
            entry.room_again(remote);
        } else {
            entry.link.peer_contexts[remote as usize].senders = Senders::None;
        }
    }

    /// Tells a context that there is room again; once until it has heard it.
    pub(super) fn tell_writable(&mut self, slot: u16) {
        let context = self.contexts.get_mut(slot);
        if context.is_live() && !core::mem::replace(&mut context.writable_untold, true) {
            self.tell(slot, Event::Writable);
        }
    }
}
