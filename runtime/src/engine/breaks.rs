//! Lanes that come up, lanes that break, and sessions that end. A lane that broke is drained, its windows are deallocated and its queue pair destroyed; what that proves ends
//! the epochs. Then its link goes to another lane (`repair.rs`); or the session is over, the same happens to each of its lanes, and then comes `PeerDown`.

use keyfence_pmd::QpId;

use crate::engine::command::{PeerSizes, ToControl, Unrepairable};
use crate::engine::complete::receive_slot;
use crate::engine::state::Core;
use crate::event::Event;
use crate::ids::{LaneId, PeerId, SessionId};
use crate::lane::credits::SendCredits;
use crate::lane::greeting::HelloBytes;
use crate::lane::queue::Request;
use crate::lane::{Lane, LanePhase};
use crate::reclaim;

impl Core {
    /// A lane's queue pair exists: its receives are posted before it is connected.
    pub(super) fn attach_lane(&mut self, lane: LaneId, siblings: u16, entry: Box<Lane>) {
        if entry.repair == 0 {
            let peer = &mut self.peers[entry.peer.0 as usize];
            let lcore = entry.peer_lcore.0 as usize;
            if peer.lanes.len() <= lcore {
                peer.lanes.resize(lcore + 1, Vec::new());
            }
            let route = &mut peer.lanes[lcore];
            route.resize(siblings as usize, None);
            route[entry.number as usize] = Some(lane);
            peer.session = Some(entry.session);
            peer.leaving = None;
            peer.down_told = false;
        }
        let slot = &mut self.lanes[lane.0 as usize];
        assert!(slot.is_none(), "the control side gives out free slots");
        assert!(
            self.machine.lane_is_new(lane),
            "R2: what was said of a lane is not said of the next one in its place"
        );
        *slot = Some(entry);
        self.lanes_taken |= 1 << lane.0;
        self.refill_receives(lane);
    }

    /// The connection stands: say hello.
    pub(super) fn lane_connected(&mut self, lane: LaneId, hello: Box<HelloBytes>) {
        let entry = self.lane_mut(lane);
        if entry.phase == LanePhase::Attached {
            entry.phase = LanePhase::Greeting;
            entry.greeting.ours = Some(hello);
            entry.link.control.ask(Request::Hello);
        }
    }

    /// Gives the peer's hello to the control side, when ours is proven to have arrived: whoever refuses the other, both have what they need to see why.
    pub(super) fn tell_hello(&mut self, lane: LaneId) {
        let entry = self.lane_mut(lane);
        let arrived = entry.inflight.next_sequence() > 0 && entry.inflight.len() == 0;
        if entry.phase == LanePhase::Greeting
            && arrived
            && let Some(hello) = entry.greeting.take_came()
        {
            self.outbox.push(ToControl::HelloCame { lane, hello });
        }
    }

    /// The control side has admitted the peer's hello: traffic may begin, with what has come already.
    pub(super) fn lane_admitted(&mut self, lane: LaneId, credits: SendCredits, peer: PeerSizes) {
        let entry = self.lane_mut(lane);
        // It may have broken meanwhile.
        if entry.phase != LanePhase::Greeting {
            return;
        }
        entry.peer_receive_depth = peer.receive_depth;
        entry.peer_messages = peer.messages;
        entry.peer_frame_bytes = peer.frame_bytes;
        entry.credits = credits;
        if entry.repair > 0 {
            return self.repair_admitted(lane);
        }
        entry.phase = LanePhase::Up;
        entry.has_been_up = true;
        entry.has_resumed = true;
        self.learn_from_sisters(lane);
        while let Some(frame) = self.lane_mut(lane).greeting.held.pop_front() {
            self.take_frame(lane, frame);
        }
    }

    /// The session stands on all lanes.
    pub(super) fn session_up(&mut self, peer: PeerId) {
        self.peers[peer.0 as usize].was_up = true;
        self.tell_all(|| Event::PeerUp(peer));
    }

    /// Stops all traffic on a lane and has its queue pair moved to error.
    pub(super) fn break_lane(&mut self, lane: LaneId) {
        let until_ns = self.now_ns.saturating_add(self.timeouts.drain_timeout_ns);
        let Some(entry) = self.lanes[lane.0 as usize].as_deref_mut() else {
            return;
        };
        if !entry.is_sound() {
            return;
        }
        let was_admitted = entry.phase == LanePhase::Admitted;
        entry.phase = LanePhase::Draining { until_ns };
        self.lanes_draining += 1;
        entry.link.control.clear();
        entry.closing.clear();
        // What the device has not taken is never posted; it counts as flushed.
        let untaken = entry.staged.len();
        entry.staged.clear();
        entry.inflight.note_untaken(untaken as u64);
        let receives = core::mem::take(&mut entry.staged_receives);
        for receive in &receives {
            entry.receives[receive_slot(receive.id) as usize] = None;
        }
        // Completed long since: nothing lands in them.
        entry.greeting.held.clear();
        self.drop_list(lane);
        // One of a session that is left ends with it.
        let is_left = self.peers[self.lane(lane).peer.0 as usize]
            .leaving
            .is_some();
        self.stats.lanes_broken += u64::from(!is_left);
        self.outbox.push(ToControl::LaneBroken(lane));
        self.repair_broke(lane, was_admitted);
    }

    /// Breaks a lane whose session can't go on.
    pub(super) fn give_up_session(&mut self, lane: LaneId, why: Unrepairable) {
        self.break_lane(lane);
        self.outbox.push(ToControl::Unrepairable { lane, why });
    }

    /// The queue pair is in error: keys of the lane are retired.
    pub(super) fn qp_in_error(&mut self, lane: LaneId) {
        self.break_lane(lane);
        self.lane_mut(lane).in_error = true;
        let (peer, session) = (self.lane(lane).peer, self.lane(lane).session);
        if self.peers[peer.0 as usize].session != Some(session) {
            // Before the machine hears of it: what ends of keys then ends their grants.
            self.take_grants_back(lane);
        }
        self.drive(reclaim::Event::LaneBroken { lane });
    }

    /// The grants of a lane end with its session.
    fn take_grants_back(&mut self, lane: LaneId) {
        for slot in 0..self.grants.touched() {
            let here = |grant: &crate::grant::table::Grant| grant.lane == lane;
            if self.grants.in_slot(slot).is_some_and(here) {
                self.take_back(slot);
            }
        }
    }

    /// The session is over: its imports are dead, and what waits for a repair waits no more.
    pub(super) fn session_over(&mut self, peer: PeerId, session: SessionId) {
        let view = &mut self.peers[peer.0 as usize];
        if view.session != Some(session) {
            return;
        }
        view.session = None;
        for lane in self.lane_ids() {
            if self.lane(lane).peer == peer {
                self.break_lane(lane);
                self.fence_imports_on(lane);
            }
        }
        while let Some((context, generation, token)) = self.lookups.take_of(peer) {
            if self.contexts.live(context, generation).is_some() {
                self.tell(
                    context,
                    Event::Resolved {
                        token,
                        context: None,
                    },
                );
            }
        }
        // Keys of the others are live until their queue pairs are in error: what is revoked meanwhile is retired like any (R3).
        for lane in self.lane_ids() {
            if self.lane(lane).peer == peer && self.lane(lane).in_error {
                self.take_grants_back(lane);
            }
        }
        let destroyed = |lane: &Lane| lane.peer == peer && lane.destroyed;
        // All of them before any is over: `PeerDown` comes behind the end of every operation (R2).
        for lane in self.lane_ids() {
            if destroyed(self.lane(lane)) {
                self.end_link(lane);
            }
        }
        for lane in self.lane_ids() {
            if self.lanes[lane.0 as usize]
                .as_deref()
                .is_some_and(destroyed)
            {
                self.target_lost(lane);
                self.lane_may_be_over(lane);
            }
        }
        self.peer_may_be_down(peer);
    }

    /// Ends what waits on a lane whose queue pair is destroyed and whose session is over.
    fn end_link(&mut self, lane: LaneId) {
        self.end_all_cut(lane);
        self.end_queued_on(lane);
    }

    /// A lane that is drained, or has had its time: its queue pair is to be given up by the path.
    pub(super) fn drained_lane(&self) -> Option<(LaneId, QpId)> {
        let drained = |lane: &Lane| match lane.phase {
            LanePhase::Draining { until_ns } => {
                lane.in_error && (lane.is_flushed() || self.now_ns >= until_ns)
            }
            _ => false,
        };
        self.lane_ids().find_map(|id| {
            let lane = self.lane(id);
            drained(lane).then_some((id, lane.qp))
        })
    }

    /// The path has given the queue pair up: its windows are deallocated, then it is destroyed.
    pub(super) fn lane_released(&mut self, lane: LaneId) {
        let entry = self.lane_mut(lane);
        if !entry.is_flushed() {
            self.stats.drains_cut_short += 1;
        }
        let entry = self.lane_mut(lane);
        entry.phase = LanePhase::Ending;
        let qp = entry.qp;
        self.lanes_draining -= 1;
        self.dealloc_keys(lane);
        self.outbox.push(ToControl::EndLane { lane, qp });
        self.repair_drained(lane);
    }

    /// The queue pair is destroyed: that ends everything that was posted on it. In a session that goes on, what became of it is judged later.
    pub(super) fn qp_destroyed(&mut self, lane: LaneId) {
        let entry = self.lane(lane);
        let (name, session, served) = (entry.name(), entry.session, entry.has_carried);
        let stands = self.peers[name.peer.0 as usize].session == Some(session);
        let carrier = self.carrier(name, session).filter(|_| stands && served);
        while let Some((_, flight)) = self.lane_mut(lane).inflight.take_first() {
            match carrier {
                Some(carrier) => self.cut_off(carrier, lane, flight),
                None => self.destroyed(lane, flight),
            }
        }
        if !stands {
            self.end_link(lane);
        }
        // The operations have given back what they held: what the machine ends now can be released.
        self.drive(reclaim::Event::QpDestroyed { lane });
        let entry = self.lane_mut(lane);
        entry.destroyed = true;
        for buf in &mut entry.receives {
            *buf = None;
        }
        let may_execute = entry.has_resumed;
        if carrier.is_some() {
            self.repair_destroyed(lane);
        }
        if carrier.is_none() || !may_execute {
            // The session has ended for good, or nothing was ever sent here: no operation that was flushed here waits for its target any more (R2).
            self.target_lost(lane);
        }
        self.lane_may_be_over(lane);
    }

    /// Nothing that was flushed on the lane can be executed by its target any more, or waits for that. A lane of which the machine keeps nothing has a next user there.
    fn target_lost(&mut self, lane: LaneId) {
        if !self.lane(lane).free {
            self.drive(reclaim::Event::TargetLost { lane });
        }
    }

    /// The machine is done with the lane; so is everybody once its memory is gone.
    pub(super) fn lane_free(&mut self, lane: LaneId) {
        self.lane_mut(lane).free = true;
        self.lane_may_be_over(lane);
    }

    pub(super) fn lane_may_be_over(&mut self, lane: LaneId) {
        let Some(entry) = self.lanes[lane.0 as usize].as_deref() else {
            return;
        };
        let peer = entry.peer;
        self.peer_may_be_down(peer);
        // Its link goes to another one first.
        let over = |entry: &Lane| entry.free && entry.destroyed;
        if !self.carries(lane)
            && self.lanes[lane.0 as usize].as_deref().is_some_and(over)
            && let Some(entry) = self.lanes[lane.0 as usize].take()
        {
            self.lanes_taken &= !(1 << lane.0);
            for route in &mut self.peers[peer.0 as usize].lanes {
                for known in route.iter_mut().filter(|known| **known == Some(lane)) {
                    *known = None;
                }
            }
            self.outbox.push(ToControl::LaneGone { lane, entry });
        }
    }

    /// A key's proof or quarantine may have been the last that the end of a session waited for.
    pub(super) fn look_for_ended_sessions(&mut self) {
        for peer in self.peer_ids() {
            self.peer_may_be_down(peer);
        }
    }

    /// Announces the end of a session, once, when all its lanes are destroyed and each of their keys is proven ended or in quarantine.
    pub(super) fn peer_may_be_down(&mut self, peer: PeerId) {
        let view = &self.peers[peer.0 as usize];
        if view.session.is_some() || view.down_told || view.lanes.is_empty() {
            return;
        }
        let unsettled = |lane: LaneId| {
            let lane = self.lane(lane);
            lane.peer == peer && !lane.destroyed
        };
        if self.lane_ids().any(unsettled) {
            return;
        }
        let view = &self.peers[peer.0 as usize];
        if view.quota.open_keys > 0 {
            return;
        }
        self.peers[peer.0 as usize].down_told = true;
        if core::mem::take(&mut self.peers[peer.0 as usize].was_up) {
            self.stats.peers_down += 1;
            self.tell_all(|| Event::PeerDown(peer));
        }
        self.outbox.push(ToControl::PeerDown(peer));
    }
}
