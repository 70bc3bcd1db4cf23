//! Lanes: one queue pair between an lcore here and an lcore of a peer, shared by all contexts of both.

pub mod backlog;
pub mod credits;
pub mod greeting;
pub mod inflight;
pub mod queue;
pub mod reminders;
pub mod remote;
pub mod senders;
#[cfg(test)]
mod tests;
pub mod windows;

use std::collections::VecDeque;

use keyfence_mempool::buf::Buf;
use keyfence_pmd::{QpId, ReceiveRequest, Region, Window, WorkRequest};

use crate::context::ops::OpQueue;
use crate::grant::import::PeerGrant;
use crate::ids::{Epoch, LcoreId, PeerId, SessionId};
use crate::lane::backlog::Backlog;
use crate::lane::credits::{Class, ReceiveWindow, SendCredits};
use crate::lane::greeting::Greeting;
use crate::lane::inflight::Inflight;
use crate::lane::queue::{Closing, ControlQueue, TurnQueue};
use crate::lane::reminders::Reminders;
use crate::lane::remote::RemoteSlot;
use crate::lane::senders::Refused;
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
    /// Drained: its windows and its queue pair are being ended by the control side.
    Ending,
}

/// What a lane keeps of one context that lives on its lcore.
#[derive(Clone, Copy, Debug)]
pub struct ContextOnLane {
    /// Operations that wait, in order.
    pub queue: OpQueue,
    /// Whether the context stands in the lane's turn queue.
    pub queued: bool,
    /// Bytes that it may still post in its turn; negative: what its last turn overran, owed by the next.
    pub turn_bytes: i64,
    /// Credits of the lane that are kept for its messages, since it waited for them; it takes no others in this turn.
    pub promised: Option<u32>,
    /// Own work requests posted and not proven executed.
    pub posted: u32,
    /// Messages for it.
    pub window: ReceiveWindow,
    /// The generation that `window` belongs to.
    pub window_generation: u32,
}

impl ContextOnLane {
    /// Begins a turn of `bytes`, unless the last one was cut short by a full lane and goes on.
    pub fn begin_turn(&mut self, bytes: u64) {
        if self.turn_bytes <= 0 {
            let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
            self.turn_bytes = self.turn_bytes.saturating_add(bytes);
        }
    }

    /// Counts what was posted.
    pub fn use_turn(&mut self, bytes: u64) {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        self.turn_bytes = self.turn_bytes.saturating_sub(bytes);
    }

    /// Gives up what is left of the turn: nothing can be posted. What was overrun is still owed.
    pub fn leave_turn(&mut self) {
        self.turn_bytes = self.turn_bytes.min(0);
    }
}

/// A fence that the peer asked for: an epoch of its grants, of which some are imports here with operations posted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fence {
    /// The peer's epoch.
    pub epoch: Epoch,
    /// Imports whose operations still run down.
    pub waiting: u32,
    /// Whether the peer has named all grants of it.
    pub complete: bool,
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
    /// Its number between the two lcores.
    pub number: u16,
    /// The lcore at the other end.
    pub peer_lcore: LcoreId,
    /// The arena in the queue pair's protection domain.
    pub arena: Region,
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
    /// Its number between the two lcores.
    pub number: u16,
    /// The lcore at the other end.
    pub peer_lcore: LcoreId,
    /// The arena in the queue pair's protection domain.
    pub arena: Region,
    /// Where it is in its life.
    pub phase: LanePhase,
    /// What is posted.
    pub inflight: Inflight,
    /// What is to be posted, in order: noted in `inflight` already, not yet taken by the device.
    pub staged: Vec<WorkRequest>,
    /// Bytes of operations posted and not proven executed.
    pub posted_bytes: u64,
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
    /// Contexts with operations that may be posted.
    pub turns: TurnQueue,
    /// Contexts whose oldest operation waits for a credit of the lane.
    pub starved: TurnQueue,
    /// Credits of the lane that are kept for contexts that waited and now stand among `turns`.
    pub promised: u32,
    /// Contexts whose messages were refused, and the remote ones that may take some again.
    pub refused: Refused,
    /// Per context of this lcore.
    pub contexts: Box<[ContextOnLane]>,
    /// Per context of the peer's lcore.
    pub peer_contexts: Box<[RemoteSlot]>,
    /// Per grant of the peer's lcore.
    pub peer_grants: Box<[PeerGrant]>,
    /// Epochs of the peer under fence.
    pub fences: Vec<Fence>,
    /// Control frames that wait.
    pub control: ControlQueue,
    /// Keys that are named again.
    pub reminders: Reminders,
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
    /// Messages sent on it, modulo 2^32.
    pub messages_sent: u32,
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
    /// Whether the queue pair is in error.
    pub in_error: bool,
    /// Whether the queue pair is destroyed.
    pub destroyed: bool,
    /// Whether the reclaim machine has nothing more to do with it.
    pub free: bool,
    /// Number of the last keep-alive.
    pub keepalives: u32,
}

impl Lane {
    /// A lane whose queue pair exists. Everything is allocated here, by the control thread.
    pub fn new(setup: LaneSetup, tag_seed: u64) -> Self {
        let LaneSizes {
            send_depth,
            receive_depth,
            contexts,
            fences,
            requests,
            lookups,
            answers,
        } = setup.sizes;
        let on_lane = ContextOnLane {
            queue: OpQueue::EMPTY,
            queued: false,
            turn_bytes: 0,
            promised: None,
            posted: 0,
            window: ReceiveWindow::default(),
            window_generation: 0,
        };
        let windows = lane_windows(setup.windows, tag_seed);
        Self {
            qp: setup.qp,
            peer: setup.peer,
            session: setup.session,
            number: setup.number,
            peer_lcore: setup.peer_lcore,
            arena: setup.arena,
            phase: LanePhase::Attached,
            inflight: Inflight::new(send_depth),
            staged: Vec::with_capacity(send_depth),
            posted_bytes: 0,
            backlog: Backlog::default(),
            credits: SendCredits::new(0),
            peer_receive_depth: 0,
            peer_messages: 0,
            peer_frame_bytes: 0,
            receives_posted: 0,
            receives_announced: 0,
            receives: (0..receive_depth).map(|_| None).collect(),
            empty_receives: (0..receive_depth as u32).rev().collect(),
            turns: TurnQueue::new(contexts),
            starved: TurnQueue::new(contexts),
            promised: 0,
            refused: Refused::new(contexts),
            contexts: vec![on_lane; contexts].into_boxed_slice(),
            peer_contexts: Box::default(),
            peer_grants: Box::default(),
            fences: Vec::with_capacity(fences),
            control: ControlQueue::new(requests, lookups, answers),
            reminders: Reminders::new(),
            closing: VecDeque::with_capacity(2 * fences),
            regions_due: false,
            free_windows: (0..windows.len() as u32).rev().collect(),
            spent_windows: Vec::with_capacity(windows.len()),
            deallocated_windows: 0,
            windows,
            messages_sent: 0,
            staged_receives: Vec::with_capacity(receive_depth),
            kept_alive_ns: 0,
            silent_ns: 0,
            greeting: Greeting::new(receive_depth),
            flushed_receives: 0,
            in_error: false,
            destroyed: false,
            free: false,
            keepalives: 0,
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

    /// Whether it still works or will: it has not broken.
    #[inline]
    pub fn is_sound(&self) -> bool {
        matches!(
            self.phase,
            LanePhase::Attached | LanePhase::Greeting | LanePhase::Up
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
        self.turns.is_empty()
            && self.control.is_empty()
            && self.closing.is_empty()
            && !self.regions_due
            && self.starved.is_empty()
            && self.refused.nobody_is_due()
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
        let on_lane = &mut self.contexts[context as usize];
        if !on_lane.queued {
            on_lane.queued = true;
            self.turns.push(context);
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
        if self.contexts[context as usize].queued && self.starved.strike(context) {
            self.turns.push(context);
        }
    }

    /// Lets the context that waited longest for a credit of the lane try again, with `credits` that nobody else takes.
    pub fn wake_starved(&mut self, credits: u32) {
        let context = self.starved.pop().expect("the caller saw it wait");
        self.contexts[context as usize].promised = Some(credits);
        self.promised += credits;
        self.turns.push(context);
    }

    /// Takes back what is left of the credits that are kept for a context: its turn is over.
    pub fn end_promise(&mut self, context: u16) {
        let left = self.contexts[context as usize].promised.take();
        self.promised -= left.unwrap_or(0);
    }

    /// Takes a credit of the lane for a message of `context`; false if there is none for it now.
    pub fn spend_message_credit(&mut self, context: u16) -> bool {
        let room = self
            .credits
            .room_for(Class::Message, self.peer_receive_depth);
        match &mut self.contexts[context as usize].promised {
            None if room > self.promised => {}
            Some(left) if room > 0 && *left > 0 => {
                *left -= 1;
                self.promised -= 1;
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
        room.saturating_sub(self.promised)
    }
}
