//! Lanes: one queue pair between an lcore here and an lcore of a peer, shared by all contexts of both.

pub mod backlog;
pub mod byes;
pub mod credits;
pub mod greeting;
pub mod inflight;
pub mod link;
pub mod queue;
pub mod reminders;
pub mod remote;
pub mod repair;
pub mod senders;
#[cfg(test)]
mod tests;
pub mod windows;

use std::collections::VecDeque;

use keyfence_mempool::buf::Buf;
use keyfence_pmd::{QpId, ReceiveRequest, Region, Window, WorkRequest};

use crate::ids::{LcoreId, PeerId, SessionId};
use crate::lane::backlog::Backlog;
use crate::lane::byes::Byes;
use crate::lane::credits::{Class, SendCredits};
use crate::lane::greeting::Greeting;
use crate::lane::inflight::Inflight;
use crate::lane::link::{Link, LinkName, Listed};
use crate::lane::queue::Closing;
use crate::lane::windows::{LaneWindow, lane_windows};

/// Where a lane is in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LanePhase {
    /// Its receives are posted; the connection is being made.
    Attached,
    /// Connected; our hello is under way, the peer's has not come or is not admitted.
    Greeting,
    /// Admitted: it carries traffic.
    Up,
    /// It broke, or its session ended: posted requests are being flushed.
    Draining {
        /// When draining gives up waiting for completions.
        until_ns: u64,
    },
    /// It is to carry the link of a lane that broke, and is admitted; that one is not drained yet.
    Admitted,
    /// Drained: its windows and its queue pair are being ended by the control side.
    Ending,
}

/// Sizes of a lane's tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LaneSizes {
    /// Work requests posted.
    pub send_depth: usize,
    /// Receives posted.
    pub receive_depth: usize,
    /// Contexts of this lcore.
    pub contexts: usize,
    /// Epochs that may be fenced at a time.
    pub fences: usize,
    /// Requests that may wait, look-ups apart.
    pub requests: usize,
    /// Look-ups that may wait.
    pub lookups: usize,
    /// Answers that may wait.
    pub answers: usize,
}

/// What a lane is told at its making.
#[derive(Clone, Debug)]
pub struct LaneSetup {
    /// Its queue pair.
    pub qp: QpId,
    /// The peer.
    pub peer: PeerId,
    /// The session.
    pub session: SessionId,
    /// Its number as agreed with the peer.
    pub agreed_session: u32,
    /// Its number between the two lcores.
    pub number: u16,
    /// The lcore at the other end.
    pub peer_lcore: LcoreId,
    /// The number of the repair that it is made for; 0 if it is the session's first.
    pub repair: u32,
    /// The arena in the queue pair's protection domain.
    pub arena: Region,
    /// Writes and sends up to so many bytes are posted inline.
    pub inline_bytes: u64,
    /// Its windows, allocated after the queue pair; none if a key is a region.
    pub windows: Vec<Window>,
    /// Sizes.
    pub sizes: LaneSizes,
}

/// One lane, owned by its lcore.
#[derive(Debug)]
pub struct Lane {
    /// Its queue pair.
    pub qp: QpId,
    /// The peer.
    pub peer: PeerId,
    /// The session.
    pub session: SessionId,
    /// Its number as agreed with the peer.
    pub agreed_session: u32,
    /// Its number between the two lcores.
    pub number: u16,
    /// The lcore at the other end.
    pub peer_lcore: LcoreId,
    /// The number of the repair that it is made for; 0 if it is the session's first.
    pub repair: u32,
    /// The arena in the queue pair's protection domain.
    pub arena: Region,
    /// Writes and sends up to so many bytes are posted inline.
    pub inline_bytes: u64,
    /// What was said of its session's orderly end.
    pub byes: Byes,
    /// What outlives the queue pair.
    pub link: Link,
    /// Where it is in its life.
    pub phase: LanePhase,
    /// What is posted.
    pub inflight: Inflight,
    /// What is to be posted, in order: noted in `inflight` already, not yet taken by the device.
    pub staged: Vec<WorkRequest>,
    /// Bytes of operations posted and not proven executed.
    pub posted_bytes: u64,
    /// Work requests of each context of this lcore posted and not proven executed.
    pub posted: Box<[u32]>,
    /// How that goes down.
    pub backlog: Backlog,
    /// Receives at the peer.
    pub credits: SendCredits,
    /// Receives that the peer keeps posted, as its hello said.
    pub peer_receive_depth: u32,
    /// Messages that a context of the peer takes, as its hello said.
    pub peer_messages: u32,
    /// Bytes of the longest frame that the peer takes.
    pub peer_frame_bytes: u32,
    /// Receives posted here, ever, modulo 2^32.
    pub receives_posted: u32,
    /// What the peer was told of that last.
    pub receives_announced: u32,
    /// The buffers of the posted receives.
    pub receives: Box<[Option<Buf>]>,
    /// Receive slots without a buffer.
    pub empty_receives: Vec<u32>,
    /// What ends epochs, to be posted in this order.
    pub closing: VecDeque<Closing>,
    /// Whether keys wait for the deregistration of their regions.
    pub regions_due: bool,
    /// Windows.
    pub windows: Box<[LaneWindow]>,
    /// Windows that are not bound, and whose last key is dead.
    pub free_windows: Vec<u32>,
    /// Windows that were deallocated while the lane is sound, and whose last key is dead: to be replaced.
    pub spent_windows: Vec<u32>,
    /// All that were deallocated so, and not yet replaced.
    pub deallocated_windows: u32,
    /// Receives to be posted, not yet taken by the device.
    pub staged_receives: Vec<ReceiveRequest>,
    /// When it was given ours.
    pub kept_alive_ns: u64,
    /// For how long it has been listened to in vain, at least.
    pub silent_ns: u64,
    /// Its hellos, and what came too early.
    pub greeting: Greeting,
    /// Receives that were flushed.
    pub flushed_receives: u32,
    /// What the peer has named so far of its live grants, in a repair that is under way. Made by the control side.
    pub listed: Vec<Listed>,
    /// Grants of our own list whose keys are not made yet.
    pub keys_to_list: u32,
    /// Whether it was ever up.
    pub has_been_up: bool,
    /// Whether it has broken with a link, or taken one over: its destruction is part of a repair.
    pub has_carried: bool,
    /// Whether operations could be posted on it: on one that broke before that there is none that its target might execute.
    pub has_resumed: bool,
    /// Contexts of this lcore whose operations a break has cut off, while its target has not said that it executes none of them any more (R2).
    pub unconfirmed: Box<[bool]>,
    /// Whether the queue pair is in error.
    pub in_error: bool,
    /// Whether the queue pair is destroyed.
    pub destroyed: bool,
    /// Whether the reclaim machine has nothing more to do with it.
    pub free: bool,
}

impl Lane {
    /// A lane whose queue pair exists. Everything is allocated here, by the control thread.
    pub fn new(setup: LaneSetup, tag_seed: u64) -> Self {
        let LaneSizes {
            send_depth,
            receive_depth,
            contexts,
            fences,
            ..
        } = setup.sizes;
        let windows = lane_windows(setup.windows, tag_seed);
        Self {
            qp: setup.qp,
            peer: setup.peer,
            session: setup.session,
            agreed_session: setup.agreed_session,
            byes: Byes::default(),
            number: setup.number,
            peer_lcore: setup.peer_lcore,
            repair: setup.repair,
            arena: setup.arena,
            inline_bytes: setup.inline_bytes,
            link: Link::new(&setup.sizes),
            phase: LanePhase::Attached,
            inflight: Inflight::new(send_depth),
            staged: Vec::with_capacity(send_depth),
            posted_bytes: 0,
            posted: vec![0; contexts].into_boxed_slice(),
            backlog: Backlog::default(),
            credits: SendCredits::new(0),
            peer_receive_depth: 0,
            peer_messages: 0,
            peer_frame_bytes: 0,
            receives_posted: 0,
            receives_announced: 0,
            receives: (0..receive_depth).map(|_| None).collect(),
            empty_receives: (0..receive_depth as u32).rev().collect(),
            closing: VecDeque::with_capacity(2 * fences),
            regions_due: false,
            free_windows: (0..windows.len() as u32).rev().collect(),
            spent_windows: Vec::with_capacity(windows.len()),
            deallocated_windows: 0,
            windows,
            staged_receives: Vec::with_capacity(receive_depth),
            kept_alive_ns: 0,
            silent_ns: 0,
            greeting: Greeting::new(receive_depth),
            flushed_receives: 0,
            listed: Vec::new(),
            keys_to_list: 0,
            has_been_up: false,
            has_carried: false,
            has_resumed: false,
            unconfirmed: vec![false; contexts].into_boxed_slice(),
            in_error: false,
            destroyed: false,
            free: false,
        }
    }

    /// From which request on nothing is proven executed, and the bytes of the operations there.
    pub fn unproven(&self) -> (u64, u64) {
        (self.inflight.first(), self.posted_bytes)
    }

    /// Whether so many bytes more may be posted: what is posted must run down within the fence timeout.
    #[inline]
    pub fn has_room_for(&self, bytes: u64, most: u64) -> bool {
        self.posted_bytes == 0 || self.posted_bytes + bytes <= most
    }

    /// Whether operations may be posted on it.
    #[inline]
    pub fn is_up(&self) -> bool {
        self.phase == LanePhase::Up
    }

    /// Which of its lcore's lanes it is.
    pub fn name(&self) -> LinkName {
        LinkName {
            peer: self.peer,
            lcore: self.peer_lcore,
            number: self.number,
        }
    }

    /// Whether contexts may give it work: it is up, or its repair is under way.
    #[inline]
    pub fn takes_work(&self) -> bool {
        self.is_up() || self.link.repair.is_adrift()
    }

    /// Whether messages that came before it broke are still taken: the other end is told which the last one was.
    pub fn takes_last_messages(&self) -> bool {
        let drains = matches!(self.phase, LanePhase::Draining { .. });
        drains && self.has_been_up && self.link.repair.is_adrift()
    }

    /// Whether it still works or will: it has not broken.
    #[inline]
    pub fn is_sound(&self) -> bool {
        matches!(
            self.phase,
            LanePhase::Attached | LanePhase::Greeting | LanePhase::Admitted | LanePhase::Up
        )
    }

    /// Whether a quarter of the receives is posted again and the peer was not told. A notice takes a receive itself: of one alone two lanes
    /// would tell each other for ever.
    #[inline]
    pub fn has_receives_to_tell(&self) -> bool {
        let untold = self.receives_posted.wrapping_sub(self.receives_announced);
        untold as usize >= (self.receives.len() / 4).max(2)
    }

    /// Whether no request, answer, notice, invalidation or deregistration waits, and no context's operation or refused sender.
    #[inline]
    pub fn has_nothing_to_post(&self) -> bool {
        self.link.turns.is_empty()
            && self.link.control.is_empty()
            && self.closing.is_empty()
            && !self.regions_due
            && self.link.starved.is_empty()
            && self.link.refused.nobody_is_due()
            && !self.has_receives_to_tell()
    }

    /// Whether a visit would find nothing to do: nothing to post, no receive to post or to find a buffer for, nobody to greet.
    #[inline]
    pub fn is_at_rest(&self) -> bool {
        self.phase == LanePhase::Up
            && self.staged.is_empty()
            && self.staged_receives.is_empty()
            && self.empty_receives.is_empty()
            && self.has_nothing_to_post()
    }

    /// Puts a context into the turn queue, once.
    #[inline]
    pub fn enqueue_turn(&mut self, context: u16) {
        let on_lane = &mut self.link.contexts[context as usize];
        if !on_lane.queued {
            on_lane.queued = true;
            self.link.turns.push(context);
        }
    }

    /// Queues what ends an epoch; the same once only.
    pub fn close_with(&mut self, closing: Closing) {
        if !self.closing.contains(&closing) {
            self.closing.push_back(closing);
        }
    }

    /// Whether each posted request and each receive has been flushed or completed.
    pub fn is_flushed(&self) -> bool {
        let posted = self.receives.iter().flatten().count();
        self.inflight.is_drained() && self.flushed_receives as usize >= posted
    }

    /// Lets one context try again, if it waits for a credit.
    pub fn unstarve(&mut self, context: u16) {
        // Who has nothing queued is spared the search.
        if self.link.contexts[context as usize].queued && self.link.starved.strike(context) {
            self.link.turns.push(context);
        }
    }

    /// Lets the context that waited longest for a credit of the lane try again, with `credits` that nobody else takes.
    pub fn wake_starved(&mut self, credits: u32) {
        let context = self.link.starved.pop().expect("the caller saw it wait");
        self.link.contexts[context as usize].promised = Some(credits);
        self.link.promised += credits;
        self.link.turns.push(context);
    }

    /// Takes back what is left of the credits that are kept for a context: its turn is over.
    pub fn end_promise(&mut self, context: u16) {
        let left = self.link.contexts[context as usize].promised.take();
        self.link.promised -= left.unwrap_or(0);
    }

    /// Takes a credit of the lane for a message of `context`; false if there is none for it now.
    pub fn spend_message_credit(&mut self, context: u16) -> bool {
        let room = self
            .credits
            .room_for(Class::Message, self.peer_receive_depth);
        match &mut self.link.contexts[context as usize].promised {
            None if room > self.link.promised => {}
            Some(left) if room > 0 && *left > 0 => {
                *left -= 1;
                self.link.promised -= 1;
            }
            _ => return false,
        }
        self.credits.spend();
        true
    }

    /// Credits of the lane for messages that are kept for nobody.
    pub fn free_message_credits(&self) -> u32 {
        let depth = self.peer_receive_depth;
        let room = self.credits.room_for(Class::Message, depth);
        room.saturating_sub(self.link.promised)
    }
}
