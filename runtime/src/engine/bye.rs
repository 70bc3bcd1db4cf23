//! The orderly end of a session on its lcore (REQUIREMENTS section 5, "An orderly end"). On each lane `Bye` is said when own operations there have completed and its imports are dead; what the peer asks is answered until
//! it has said the same, or the fence timeout is over. When that is the control side's part is `engine/leave.rs`.

use crate::engine::command::ToControl;
use crate::engine::state::Core;
use crate::grant::keys::Key;
use crate::ids::{LaneId, PeerId, SessionId};
use crate::lane::queue::Request;
use crate::op::Status;
use crate::reclaim::{self, KeyIx, KeyState, StrandState};
use crate::wire::Frame;

/// A session that this lcore is leaving.
#[derive(Clone, Copy, Debug)]
pub struct Leaving {
    /// When it is left whatever the peer has said.
    until_ns: u64,
    /// Whether the control side knows that nothing is left to be said.
    told: bool,
}

impl Core {
    /// Leaves a session: nothing new begins in it, and what is under way is brought to its end.
    pub(super) fn leave(&mut self, peer: PeerId, session: SessionId) {
        let until_ns = self.now_ns.saturating_add(self.timeouts.fence_timeout_ns);
        let view = &mut self.peers[peer.0 as usize];
        if view.session != Some(session) || view.leaving.is_some() {
            return;
        }
        view.leaving = Some(Leaving {
            until_ns,
            told: false,
        });
        for lane in self.lane_ids() {
            if self.lane(lane).peer == peer && self.carries(lane) {
                self.fence_imports_on(lane);
                self.end_queued_on(lane);
            }
        }
        for slot in 0..self.grants.touched() {
            let theirs = self
                .grants
                .in_slot(slot)
                .is_some_and(|grant| (grant.holder.peer, grant.holder.session) == (peer, session));
            if theirs {
                self.retire(slot);
            }
        }
    }

    /// Ends what waits to be posted on a lane.
    pub(super) fn end_queued_on(&mut self, lane: LaneId) {
        for context in 0..self.contexts.capacity() {
            while let Some(op) = self.take_queued(lane, context, |_| true) {
                self.end_unposted(op, Status::PeerLost);
            }
        }
    }

    /// Says what can be said of sessions that are being left, and tells the control side when nothing is left to say. Called with the housekeeping.
    pub(super) fn say_byes(&mut self) {
        for peer in self.peer_ids() {
            let view = &self.peers[peer.0 as usize];
            if let (Some(session), Some(leaving)) = (view.session, view.leaving)
                && !leaving.told
            {
                self.say_byes_to(peer, session, leaving.until_ns);
            }
        }
    }

    fn say_byes_to(&mut self, peer: PeerId, session: SessionId, until_ns: u64) {
        let mut done = true;
        for lane in self.lane_ids() {
            if self.lane(lane).peer == peer && self.carries(lane) {
                done &= self.say_bye(lane);
            }
        }
        if done || self.now_ns >= until_ns {
            self.stats.sessions_left += u64::from(done);
            let view = &mut self.peers[peer.0 as usize];
            if let Some(leaving) = &mut view.leaving {
                leaving.told = true;
            }
            self.outbox.push(ToControl::Left { peer, session });
        }
    }

    /// Whether both ends of a lane have said all, and ours is known to have arrived.
    fn say_bye(&mut self, lane: LaneId) -> bool {
        if !self.lane(lane).is_up() {
            return false;
        }
        if !self.lane(lane).byes.asked && self.is_done_with(lane) {
            self.lane_mut(lane).byes.asked = true;
            self.ask(lane, Request::Bye);
        }
        let entry = self.lane(lane);
        let arrived = |sequence| entry.inflight.first() > sequence;
        entry.byes.heard && entry.byes.said.is_some_and(arrived)
    }

    /// Whether own operations on a lane have completed and its imports are dead.
    fn is_done_with(&self, lane: LaneId) -> bool {
        let entry = self.lane(lane);
        let waits = |context: usize| entry.link.contexts[context].queue.head().is_some();
        let held = |slot| self.imports.is_used(slot) && self.imports.at(slot).lane == lane;
        entry.posted.iter().all(|posted| *posted == 0)
            && entry.link.cut.is_empty()
            && !(0..entry.link.contexts.len()).any(waits)
            && !(0..self.imports.capacity()).any(held)
    }

    /// The request's turn has come.
    pub(super) fn post_bye(&mut self, lane: LaneId) {
        let entry = self.lane_mut(lane);
        let session = entry.agreed_session;
        entry.byes.said = Some(entry.inflight.next_sequence());
        self.post_frame(lane, None, &Frame::Bye { session });
    }

    /// The peer's own operations on a lane have completed and its imports of it are dead. That stands for each `Revoked` that is owed, and proves no key ended (R3).
    pub(super) fn bye_came(&mut self, lane: LaneId, agreed_session: u32) {
        let entry = self.lane_mut(lane);
        let again = entry.byes.heard;
        if agreed_session != entry.agreed_session || again {
            self.stats.frames_refused += 1;
            return;
        }
        entry.byes.heard = true;
        self.outbox.push(ToControl::ByeCame(lane));
        let (name, session) = (self.lane(lane).name(), self.lane(lane).session);
        for slot in 0..self.keys.capacity() {
            let key = KeyIx(slot);
            if let Some(known) = self.keys.in_slot(key).copied()
                && (self.lane(known.lane).name(), self.lane(known.lane).session) == (name, session)
            {
                self.acknowledge(key, known);
            }
        }
    }

    /// What was revoked is acknowledged, and what was not has no holder any more. Of what is revoked from here on nothing is asked (`retire.rs`).
    fn acknowledge(&mut self, key: KeyIx, known: Key) {
        let lane = known.lane;
        if let Some(epoch) = self.machine.key_epoch(key)
            && self.machine.strand_state(epoch, lane) == StrandState::Fencing
        {
            self.drive(reclaim::Event::Acked { epoch, lane });
        }
        // The engine may be done with it now; and one that is being made is told of behind this, and refused.
        let state = self.keys.in_slot(key).map(|_| self.machine.key_state(key));
        if state.is_some_and(|state| state != KeyState::Binding) {
            self.take_back(known.grant);
            self.drive(reclaim::Event::ImportDropped { key });
        }
    }
}
