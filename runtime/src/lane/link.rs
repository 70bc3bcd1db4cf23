//! What of a lane outlives its queue pair: what waits, who is known at the other end, and what was said.

use crate::context::ops::OpQueue;
use crate::grant::import::PeerGrant;
use crate::ids::{Epoch, LcoreId, PeerId};
use crate::lane::LaneSizes;
use crate::lane::credits::ReceiveWindow;
use crate::lane::queue::{ControlQueue, TurnQueue};
use crate::lane::reminders::Reminders;
use crate::lane::remote::RemoteSlot;
use crate::lane::repair::{Cut, Repair};
use crate::lane::senders::Refused;
use crate::wire::{self, Header};

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
    /// Set while a break has left an operation of it with an unknown end: nothing more is posted for it on this lane until it resumes. That counts when it was told so many events.
    pub stalled: Option<u64>,
    /// Messages for it.
    pub window: ReceiveWindow,
    /// The generation that `window` belongs to.
    pub window_generation: u32,
}

impl Link {
    /// Takes all contexts out of the turn queue.
    pub fn end_turns(&mut self) {
        while let Some(context) = self.turns.pop() {
            self.contexts[context as usize].queued = false;
        }
    }
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

/// Who of a lane's own traffic posts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    /// Frames that answer the peer.
    Answers,
    /// Frames that ask it for something.
    Requests,
    /// Invalidations, and what ends epochs otherwise.
    Closings,
}

impl Turn {
    /// Whether it must leave room to `first`, which has gone first and found none. Invalidations wait for nobody: what requests wait for may be the peer's to give.
    pub fn waits_for(self, first: Self) -> bool {
        match first {
            Self::Closings => self != Self::Closings,
            Self::Requests => self == Self::Answers,
            Self::Answers => false,
        }
    }

    /// This one, then the others in their usual order.
    pub fn and_the_others(self) -> [Self; 3] {
        match self {
            Self::Answers => [Self::Answers, Self::Requests, Self::Closings],
            Self::Requests => [Self::Requests, Self::Answers, Self::Closings],
            Self::Closings => [Self::Closings, Self::Answers, Self::Requests],
        }
    }
}

/// Which of the lanes of an lcore, whatever queue pair it has now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinkName {
    /// The peer.
    pub peer: PeerId,
    /// The lcore at the other end.
    pub lcore: LcoreId,
    /// Its number between the two lcores.
    pub number: u16,
}

/// A live grant that the peer has named in a repair.
#[derive(Clone, Copy, Debug)]
pub struct Listed {
    /// Of the frame that named it.
    pub header: Header,
    /// The grant with its new key.
    pub grant: wire::Grant,
}

/// What outlives a lane's queue pair.
#[derive(Debug)]
pub struct Link {
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
    /// Which of its frames and requests are posted first.
    pub first_turn: Turn,
    /// Keys that are named again.
    pub reminders: Reminders,
    /// Messages sent on it, modulo 2^32: the number of the last one.
    pub messages_sent: u32,
    /// Of these, up to which the device has told that they arrived.
    pub messages_proven: u32,
    /// The number of the last message that came, modulo 2^32.
    pub messages_received: u32,
    /// Where its repair is, if its queue pair broke.
    pub repair: Repair,
    /// What was posted on queue pairs that broke, and not proven executed, until it is judged.
    pub cut: Vec<Cut>,
    /// Number of the last keep-alive.
    pub keepalives: u32,
}

impl Link {
    /// One on which nothing was said yet.
    pub fn new(sizes: &LaneSizes) -> Self {
        let contexts = sizes.contexts;
        let on_lane = ContextOnLane {
            queue: OpQueue::EMPTY,
            queued: false,
            turn_bytes: 0,
            promised: None,
            stalled: None,
            window: ReceiveWindow::default(),
            window_generation: 0,
        };
        Self {
            turns: TurnQueue::new(contexts),
            starved: TurnQueue::new(contexts),
            promised: 0,
            refused: Refused::new(contexts),
            contexts: vec![on_lane; contexts].into_boxed_slice(),
            peer_contexts: Box::default(),
            peer_grants: Box::default(),
            fences: Vec::with_capacity(sizes.fences),
            control: ControlQueue::new(sizes.requests, sizes.lookups, sizes.answers),
            first_turn: Turn::Answers,
            reminders: Reminders::new(),
            messages_sent: 0,
            messages_proven: 0,
            messages_received: 0,
            repair: Repair::default(),
            cut: Vec::with_capacity(sizes.send_depth),
            keepalives: 0,
        }
    }
}
