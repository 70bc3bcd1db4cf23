//! What a context, and what the engine's owner, is told.

use keyfence_mempool::buf::Buf;

use crate::engine::GrantRecord;
use crate::error::KeyRefusal;
use crate::ids::{ContextId, Epoch, GrantId, ImportId, LcoreId, PeerId, RemoteContext};
use crate::op::OpDone;
use crate::session::JoinRefusal;
use keyfence_pmd::Rights;

/// A peer's grant, as its holder sees it. The key itself stays with the runtime.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Import {
    /// Its name here.
    pub id: ImportId,
    /// Whose memory it is.
    pub owner: RemoteContext,
    /// Bytes that it opens.
    pub len: u64,
    /// What it allows.
    pub rights: Rights,
}

/// A received message. The bytes stay in the buffer they landed in; dropping the message gives the buffer back and lets its
/// sender send one more.
#[derive(Debug)]
pub struct Message {
    from: RemoteContext,
    buf: Buf,
    start: usize,
    len: usize,
}

impl Message {
    pub(crate) fn new(from: RemoteContext, buf: Buf, start: usize, len: usize) -> Self {
        assert!(
            start + len <= buf.capacity(),
            "a message lies in its buffer"
        );
        Self {
            from,
            buf,
            start,
            len,
        }
    }

    /// The sender. Good for an answer.
    #[must_use]
    pub fn from(&self) -> RemoteContext {
        self.from
    }

    /// Bytes of payload.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no payload.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies `into.len()` bytes from `offset` on, or returns false and copies nothing if the message has fewer.
    pub fn read_at(&self, offset: usize, into: &mut [u8]) -> bool {
        let fits = offset
            .checked_add(into.len())
            .is_some_and(|end| end <= self.len);
        fits && self.buf.read_at(self.start + offset, into).is_ok()
    }
}

/// What a context is told, on its lcore, in the order in which it happened there.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// An operation ended.
    Completed(OpDone),
    /// A message came.
    Message(Message),
    /// A peer's write with immediate has landed in memory of this grant.
    Landed {
        /// Whose range.
        grant: GrantId,
        /// The writer's number.
        immediate: u32,
        /// Bytes written.
        bytes: u64,
    },
    /// A peer's context opened memory to this one.
    Granted(Import),
    /// An import was taken back: new operations by it fail, those in flight run down. Says nothing about memory.
    Revoked(ImportId),
    /// This grant's key could not be made; its holder hears nothing of it. Its end follows as any grant's. In key mode `region` alone.
    KeyRefused {
        /// The grant.
        grant: GrantId,
        /// What was in the way.
        why: KeyRefusal,
    },
    /// No access by this grant's key goes on or comes. Its memory may be reused.
    Zapped(GrantId),
    /// The end of this grant's key could not be proven in time; its memory is not reused.
    GrantQuarantined(GrantId),
    /// A flush ended: everything retired before it, keys and own operations of contexts that ended, is proven ended but for
    /// `quarantined` of them. The caller's grants among those were named one by one before this, by [`Event::GrantQuarantined`]; the census
    /// ([`Engine::census`](crate::Engine::census)) lists all.
    Flushed {
        /// The caller's token.
        token: u64,
        /// What it could not prove ended: keys, and lanes of contexts with operations on them.
        quarantined: u32,
    },
    /// The answer to a look-up; `None` if no such context lives there.
    Resolved {
        /// The caller's token.
        token: u64,
        /// The context.
        context: Option<RemoteContext>,
    },
    /// There is room again after a refused submission. Said once for all refusals before it; another context may be quicker.
    Writable,
    /// A context of a peer is gone, its memory proven ended but for what the peer says is in quarantine. Sends to it end as `ContextGone`.
    ContextGone {
        /// The context.
        context: RemoteContext,
        /// Keys of it that its engine could not prove ended.
        quarantined_keys: u32,
        /// Bytes that its engine does not reuse.
        quarantined_bytes: u64,
    },
    /// A session with a peer stands.
    PeerUp(PeerId),
    /// A session ended for good, everything that was granted in it is proven ended or in quarantine.
    PeerDown(PeerId),
}

/// Why something ended in quarantine rather than proven.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum QuarantineReason {
    /// A key or an operation was not proven ended within the bound.
    Unproven,
    /// A buffer, message or client of the context is still held somewhere.
    HandleHeld,
    /// All its memory is proven, but a target of its operations has neither confirmed their end nor been lost.
    Unconfirmed {
        /// The target; the first if there are several.
        peer: PeerId,
        /// Own operations that were under way at the cordon, so at most as many may still execute there.
        operations: u32,
    },
}

/// What the engine's owner is told, by [`Engine::poll_event`](crate::Engine::poll_event).
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum EngineEvent {
    /// A context was opened.
    Opened {
        /// Its name in the engine.
        context: ContextId,
        /// Its name for look-ups.
        name: String,
    },
    /// A context could not be opened.
    OpenFailed {
        /// Its name for look-ups.
        name: String,
        /// What was in the way, and the limit.
        why: String,
    },
    /// A context's memory is proven free of late accesses and was given back.
    Reclaimed {
        /// The context.
        context: ContextId,
        /// Its epoch.
        epoch: Epoch,
        /// From its cordon to now.
        took_ns: u64,
        /// Own operations posted and not completed at its cordon.
        ops_in_flight: u32,
    },
    /// A context ended, but some of it stays in quarantine.
    Quarantined {
        /// The context.
        context: ContextId,
        /// Its epoch.
        epoch: Epoch,
        /// Keys not proven ended.
        keys: u32,
        /// Bytes not reused.
        bytes: u64,
        /// Why.
        why: QuarantineReason,
    },
    /// A service panicked; its context is being reclaimed.
    ServicePanicked {
        /// The context.
        context: ContextId,
    },
    /// An operation of a context has failed in a way that no right one does, by a key that is dead or out of its bounds, and the lane that it shares with others has broken. At most one for each break.
    Offence {
        /// The context.
        context: ContextId,
        /// The peer.
        peer: PeerId,
        /// How many of it there were within `timeouts.reconnect`.
        offences: u32,
        /// Whether that was one too many (`limits.context.offences`): it is being reclaimed.
        is_expelled: bool,
    },
    /// A session with a peer stands on all its lanes.
    PeerUp(PeerId),
    /// A session ended for good.
    PeerDown(PeerId),
    /// A session with a peer did not come about. The engine whose name sorts first asks, and tries again by itself, later each time; a session that
    /// stands ends that. The other one tells what it refuses and what fails on its side, more and more rarely while that goes on.
    JoinRefused {
        /// The peer.
        peer: PeerId,
        /// Why.
        why: JoinRefusal,
        /// When it is tried again at the earliest, by the clock of [`Engine::control`](crate::Engine::control): what was made for this try has to
        /// be taken down first. `None` if it is the peer that asks, or this engine is being closed.
        retry_ns: Option<u64>,
    },
    /// A lane of a session that goes on has broken and was repaired.
    LaneRepaired {
        /// The peer.
        peer: PeerId,
        /// The lcore.
        lcore: LcoreId,
        /// From the break to the first operation that could be posted again.
        took_ns: u64,
    },
    /// An lcore's thread ended by a panic.
    LcoreDied(LcoreId),
    /// The answer to [`Engine::census`](crate::Engine::census).
    Census {
        /// The lcore.
        lcore: LcoreId,
        /// Its grants that are not dead, by slot.
        grants: Vec<GrantRecord>,
    },
}
