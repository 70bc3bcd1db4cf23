//! What the control side and an lcore tell each other, over two rings of fixed size.

use std::collections::VecDeque;

use keyfence_mempool::ring::spsc::Producer;
use keyfence_mempool::sync::{Arc, AtomicBool, Ordering};
use keyfence_pmd::{QpId, Rights, Rkey, Window, WindowId};

use crate::client::ClientSide;
use crate::engine::census::GrantRecord;
use crate::error::KeyRefusal;
use crate::event::EngineEvent;
use crate::grant::import::PeerGrant;
use crate::grant::keys::KeyId;
use crate::ids::{ContextId, LaneId, LcoreId, PeerId, SessionId};
use crate::lane::Lane;
use crate::lane::credits::SendCredits;
use crate::lane::greeting::HelloBytes;
use crate::lane::link::Listed;
use crate::lane::remote::RemoteSlot;
use crate::limits::LimitError;
use crate::service::Code;

/// Why the session of a lane can't go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum Unrepairable {
    /// The two ends do not speak of the same lane.
    #[error("the peer says that it has taken other messages than can have reached it")]
    Contradiction,
    /// Where a part of the grants has no key, the peer would take those for dead.
    #[error(
        "the lane that replaces a broken one has fewer windows than there are live grants on it"
    )]
    Windows,
    /// No lane's end makes a region's value worthless.
    #[error("the peer has acknowledged too few revoked keys (limits.peer.parked_keys)")]
    Parked,
    /// It has had the time that a repair would have.
    #[error("the peer has given no sign of life for timeouts.reconnect")]
    Silent,
}

/// From the control side to an lcore.
pub(super) enum Command {
    /// Open a context.
    Open(Box<OpenContext>),
    /// Reclaim a context.
    Kill(ContextId),
    /// A lane's queue pair exists: post its receives.
    AttachLane {
        /// Where it goes in the table.
        lane: LaneId,
        /// Lanes between the two lcores.
        siblings: u16,
        /// The lane.
        entry: Box<Lane>,
    },
    /// The lane's connection stands: say hello.
    LaneConnected {
        /// The lane.
        lane: LaneId,
        /// What to say.
        hello: Box<HelloBytes>,
    },
    /// The peer's hello on the lane is admitted.
    LaneAdmitted {
        /// The lane.
        lane: LaneId,
        /// The peer's receives.
        credits: SendCredits,
        /// What its hello said.
        peer: PeerSizes,
        /// Per context of the peer's lcore.
        peer_contexts: Box<[RemoteSlot]>,
        /// Per grant of the peer's lcore.
        peer_grants: Box<[PeerGrant]>,
        /// Room for the grants that the peer names in a repair.
        listed: Vec<Listed>,
    },
    /// The session with a peer stands on all lanes.
    SessionUp(PeerId),
    /// The session with a peer is over; the queue pairs of all its lanes go to error.
    SessionOver {
        /// The peer.
        peer: PeerId,
        /// The session.
        session: SessionId,
    },
    /// Leave a session in order.
    Leave {
        /// The peer.
        peer: PeerId,
        /// The session.
        session: SessionId,
    },
    /// The lane's queue pair is in error.
    QpInError(LaneId),
    /// The answer to [`ToControl::MakeKey`].
    KeyMade {
        /// The key.
        key: KeyId,
        /// Its value, or why it has none.
        made: Result<Rkey, KeyRefusal>,
    },
    /// A key's window was deallocated, or its region deregistered, or could not be in time.
    Deallocated {
        /// The key. By now its slot may be another's.
        key: KeyId,
        /// Whether it was.
        done: bool,
    },
    /// A window was allocated for [`ToControl::ReplaceWindow`].
    WindowReplaced {
        /// The lane. By now its slot may be another's.
        lane: LaneId,
        /// The lane's queue pair.
        qp: QpId,
        /// Which of its windows is replaced.
        place: u32,
        /// The new one.
        window: Window,
    },
    /// The lane's queue pair is destroyed.
    QpDestroyed(LaneId),
    /// No queue pair and no key's region is left in the protection domain of the lane's session, and none will be made there.
    DomainOver {
        /// The lane. By now its slot may be another's.
        lane: LaneId,
        /// What was its queue pair.
        qp: QpId,
    },
    /// Another lcore's context asks for a flush.
    FlushFor {
        /// The asking lcore.
        origin: LcoreId,
        /// Its ticket there.
        ticket: u16,
    },
    /// The answer to that.
    FlushPart {
        /// The ticket here.
        ticket: u16,
        /// Keys in quarantine.
        quarantined: u32,
    },
    /// Fill this with the census; it has room for every grant of the lcore.
    Census(Vec<GrantRecord>),
    /// Reclaim all contexts; open no more.
    CloseAll,
}

/// What a peer's hello says of its end of a lane.
#[derive(Clone, Copy, Debug)]
pub(super) struct PeerSizes {
    /// Receives that it keeps posted.
    pub receive_depth: u32,
    /// Messages that a context of it takes.
    pub messages: u32,
    /// Bytes of the longest frame that it takes.
    pub frame_bytes: u32,
}

/// What a region is registered for.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeyRequest {
    /// Of the first byte in the arena.
    pub offset: usize,
    /// Bytes.
    pub len: usize,
    /// What the holder may do.
    pub rights: Rights,
}

/// What opening a context takes.
pub(super) struct OpenContext {
    /// Its name for look-ups.
    pub name: String,
    /// Its share of a lane against others.
    pub weight: u32,
    /// Its code.
    pub code: Code,
}

/// Why an lcore opened no context.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum OpenRefusal {
    /// No slot is free.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// [`Command::CloseAll`] came before.
    #[error("all contexts are being closed, and no more are opened; start the engine anew")]
    Closing,
}

/// From an lcore to the control side.
pub(super) enum ToControl {
    /// Something for the engine's owner.
    Event(EngineEvent),
    /// A context could not be opened; its service comes back to be dropped.
    NotOpened {
        /// What was asked.
        request: Box<OpenContext>,
        /// What was in the way.
        why: OpenRefusal,
    },
    /// The lane's receives are posted: it may be connected.
    LaneAttached(LaneId),
    /// The peer's hello on the lane has come, and ours has arrived.
    HelloCame {
        /// The lane.
        lane: LaneId,
        /// The hello.
        hello: Box<HelloBytes>,
    },
    /// The lane broke, or must be broken.
    LaneBroken(LaneId),
    /// A repair has ended: operations are posted on this lane, which was made for it.
    LaneRepaired(LaneId),
    /// The peer has said on this lane that it leaves the session.
    ByeCame(LaneId),
    /// All is said that there was to say in a session that is left, or it took too long.
    Left {
        /// The peer.
        peer: PeerId,
        /// The session.
        session: SessionId,
    },
    /// The session of a lane can't go on.
    Unrepairable {
        /// The lane.
        lane: LaneId,
        /// Why.
        why: Unrepairable,
    },
    /// End a key by deallocating its window.
    Dealloc {
        /// The lane.
        lane: LaneId,
        /// The key.
        key: KeyId,
        /// The window.
        window: WindowId,
    },
    /// Register the region of a key, in the domain of the lane's session.
    MakeKey {
        /// The lane.
        lane: LaneId,
        /// The key.
        key: KeyId,
        /// What it opens.
        request: KeyRequest,
    },
    /// End a key by deregistering its region, behind the [`ToControl::MakeKey`] of it.
    EndKey(KeyId),
    /// A key that was asked for is dead: its value may come back.
    KeyDead(KeyId),
    /// Allocate a window for a lane in the place of one that was deallocated.
    ReplaceWindow {
        /// The lane.
        lane: LaneId,
        /// Its queue pair.
        qp: QpId,
        /// Which of its windows.
        place: u32,
    },
    /// The lane is drained and given up: end its windows, destroy its queue pair.
    EndLane {
        /// The lane.
        lane: LaneId,
        /// Its queue pair.
        qp: QpId,
    },
    /// The lane is over; its memory is dropped outside the poll step.
    LaneGone {
        /// The lane.
        lane: LaneId,
        /// What was left of it.
        entry: Box<Lane>,
    },
    /// The context of a client has ended; the memory of its side is dropped outside the poll step.
    ClientGone(Box<ClientSide>),
    /// A peer's session has ended on this lcore.
    PeerDown(PeerId),
    /// Ask the other lcores for a flush.
    FlushOthers {
        /// The ticket here.
        ticket: u16,
    },
    /// The answer to a [`Command::FlushFor`].
    FlushDone {
        /// The asking lcore.
        origin: LcoreId,
        /// Its ticket.
        ticket: u16,
        /// Keys in quarantine.
        quarantined: u32,
    },
    /// No context is left after [`Command::CloseAll`].
    AllClosed,
}

/// Tells the control side when the thread that owns an lcore ends by a panic. The rings can't: a report may be half sent.
#[derive(Debug)]
pub(super) struct DeathNotice(Arc<AtomicBool>);

impl DeathNotice {
    /// A notice, and what it sets.
    pub fn new() -> (Self, Arc<AtomicBool>) {
        let died = Arc::new(AtomicBool::new(false));
        (Self(Arc::clone(&died)), died)
    }
}

impl Drop for DeathNotice {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // Release: whoever sees it sees what the lcore reported before.
            self.0.store(true, Ordering::Release);
        }
    }
}

/// The lcore's end of the ring to the control side. What finds no room waits here, in order: nothing is lost when the control side is slow.
pub(super) struct Outbox {
    ring: Producer<ToControl>,
    waiting: VecDeque<ToControl>,
}

impl Outbox {
    /// An outbox in front of `ring`, with room for `waiting` more.
    pub fn new(ring: Producer<ToControl>, waiting: usize) -> Self {
        Self {
            ring,
            waiting: VecDeque::with_capacity(waiting),
        }
    }

    /// Sends, or queues.
    pub fn push(&mut self, message: ToControl) {
        if !self.waiting.is_empty() {
            self.waiting.push_back(message);
        } else if let Err(message) = self.ring.push(message) {
            self.waiting.push_back(message);
        }
    }

    /// Sends what waits, as far as there is room.
    #[inline]
    pub fn flush(&mut self) {
        while let Some(message) = self.waiting.pop_front() {
            if let Err(message) = self.ring.push(message) {
                self.waiting.push_front(message);
                return;
            }
        }
    }
}

impl core::fmt::Debug for Outbox {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Outbox")
            .field("waiting", &self.waiting.len())
            .finish_non_exhaustive()
    }
}
