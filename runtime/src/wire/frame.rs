//! The frames as plain values.

use keyfence_pmd::{Rights, Rkey};

use super::{CreditLimit, Kind, List, Name, WireContext};
use crate::ids::{ContextId, Epoch, GrantId, Incarnation, LcoreId};

/// A lease that never ends.
pub const NO_LEASE: u64 = u64::MAX;

/// One frame. Borrows names, lists and payload from the bytes that it was decoded from, or from its maker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Frame<'a> {
    /// The first frame of a lane, from both sides. No other is read before it.
    Hello(Hello<'a>),
    /// An application's message, from the header's `src` to its `dst`: each byte after the header.
    Message(&'a [u8]),
    /// Asks for the context of this name.
    Lookup {
        /// The asker's number for the question.
        request: u32,
        /// The name asked for.
        name: Name<'a>,
    },
    /// Answers a [`Frame::Lookup`].
    LookupReply {
        /// The asker's number.
        request: u32,
        /// The context, or `None` if no live one has the name.
        found: Option<Found>,
    },
    /// Opens memory of the header's `src` to its `dst`. Sent on the lane that the keys are bound on, behind their binds.
    Grants {
        /// At most [`MAX_GRANTS`](super::MAX_GRANTS).
        grants: List<'a, Grant>,
    },
    /// Asks the holder to let go of these grants and to answer [`Frame::Revoked`] with the epoch.
    Revoke {
        /// The owner's epoch. A holder only gives it back.
        epoch: Epoch,
        /// Whether the epoch has no further grants on this lane: the answer follows once, for all of them.
        last: bool,
        /// At most [`MAX_REVOKE_GRANTS`](super::MAX_REVOKE_GRANTS).
        grants: List<'a, GrantId>,
    },
    /// The holder's operations by all grants of the epoch's Revokes have ended, and it will start none (R8).
    Revoked {
        /// The epoch of the Revokes.
        epoch: Epoch,
    },
    /// A grant came for a context that does not live here.
    Refused {
        /// The grant.
        grant: GrantId,
    },
    /// The header's `src` died while it held these grants: their imports are fenced. The owner retires them under an epoch; this
    /// frame alone releases nothing.
    ImportsDropped {
        /// At most [`MAX_DROPPED_GRANTS`](super::MAX_DROPPED_GRANTS).
        grants: List<'a, GrantId>,
    },
    /// How far the sender's contexts take messages.
    Credit {
        /// At most [`MAX_CREDIT_LIMITS`](super::MAX_CREDIT_LIMITS).
        limits: List<'a, CreditLimit>,
    },
    /// A context of the sender is gone, and its epoch flushed or what could not be proven quarantined (R2).
    ContextGone(ContextGone),
    /// The sender's lcore still steps.
    KeepAlive {
        /// Counts up by one, modulo 2^32.
        number: u32,
    },
    /// The header's `src` has written to memory of the grant, whose owner is `dst`; the bytes are in place. Behind the writes, on their lane.
    Landed {
        /// The grant.
        grant: GrantId,
        /// The writer's number.
        immediate: u32,
        /// Bytes written.
        bytes: u64,
    },
    /// The first frame behind the hello of a lane that repairs another: what the sender's lcore has for the receiver's follows, up to [`Frame::End`].
    Begin {
        /// The repair's number, as the hello has it.
        repair: u32,
        /// The number of the last message ([`Header::sequence`](super::Header::sequence)) that the sender took on the lane before; 0 if none. It takes no other of that lane.
        received: u32,
    },
    /// Contexts of the sender's lcore whose reclaim has ended (R2), the last one of each slot: these, and all that were in their slots before, are gone.
    Ended {
        /// At most [`MAX_ENDED_CONTEXTS`](super::MAX_ENDED_CONTEXTS).
        contexts: List<'a, WireContext>,
    },
    /// What the sender began with [`Frame::Begin`] is complete.
    End {
        /// The repair's number.
        repair: u32,
    },
    /// The sender's own operations have completed and its imports are dead.
    Bye {
        /// The session that ends.
        session: u32,
    },
}

impl Frame<'_> {
    /// Its kind.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        match self {
            Self::Hello(_) => Kind::Hello,
            Self::Message(_) => Kind::Message,
            Self::Lookup { .. } => Kind::Lookup,
            Self::LookupReply { .. } => Kind::LookupReply,
            Self::Grants { .. } => Kind::Grants,
            Self::Revoke { .. } => Kind::Revoke,
            Self::Revoked { .. } => Kind::Revoked,
            Self::Refused { .. } => Kind::Refused,
            Self::ImportsDropped { .. } => Kind::ImportsDropped,
            Self::Credit { .. } => Kind::Credit,
            Self::ContextGone(_) => Kind::ContextGone,
            Self::KeepAlive { .. } => Kind::KeepAlive,
            Self::Begin { .. } => Kind::Begin,
            Self::Ended { .. } => Kind::Ended,
            Self::End { .. } => Kind::End,
            Self::Bye { .. } => Kind::Bye,
            Self::Landed { .. } => Kind::Landed,
        }
    }
}

/// Which side of a lane made the connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Role {
    /// It asked for the lane.
    Connecting = 1,
    /// It listened.
    Accepting = 2,
}

/// What an engine says of itself and of a lane, first of all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hello<'a> {
    /// Its side of the lane.
    pub role: Role,
    /// This start of the engine.
    pub incarnation: Incarnation,
    /// The session that the lane belongs to.
    pub session: u32,
    /// The lane's number between the two engines.
    pub lane: u16,
    /// The lcore of the sender.
    pub source_lcore: LcoreId,
    /// The lcore of the receiver.
    pub target_lcore: LcoreId,
    /// Lanes between two lcores.
    pub siblings: u16,
    /// Lcores of the sender's engine.
    pub lcores: u16,
    /// How often the lane was made anew in this session: 0 as its session is made, `n` of the lane of its n-th repair.
    pub repair: u32,
    /// The sender's own name for its queue pair.
    pub qp: u32,
    /// Contexts that an lcore of the sender has room for.
    pub contexts: u32,
    /// Grants that an lcore of the sender has room for.
    pub grants: u32,
    /// Bytes of each receive that the sender posts: the longest frame that it takes, header included.
    pub frame_bytes: u32,
    /// Receives that the sender keeps posted on this lane.
    pub receive_depth: u32,
    /// Messages that a context of the sender takes ahead of its reading.
    pub messages_per_context: u32,
    /// The most bytes that the sender has posted and uncompleted on this lane.
    pub lane_bytes_cap: u64,
    /// The slowest rate that the sender counts on, in bytes per second.
    pub slowest_rate: u64,
    /// How long the sender waits for an answer to a Revoke, in nanoseconds.
    pub fence_timeout_ns: u64,
    /// Proves that the sender has the secret that it shares with the receiver, and that the receiver has heard what it said (`session`).
    pub mac: [u8; 16],
    /// The engine's configured name.
    pub name: Name<'a>,
}

/// The context that a [`Frame::LookupReply`] found.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Found {
    /// Its name, with the lcore that it lives on, which need not be this lane's.
    pub context: ContextId,
    /// How many messages it takes in all, counted from its start, modulo 2^32.
    pub credit: u32,
}

/// A key and what it opens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grant {
    /// The owner's name for it.
    pub grant: GrantId,
    /// The key, valid on the lane that this frame came on, and nowhere else (R12).
    pub rkey: Rkey,
    /// What the holder may do.
    pub rights: Rights,
    /// First byte, in the owner's process.
    pub address: u64,
    /// Bytes, at least 1.
    pub len: u64,
    /// How long it lives without renewal, in nanoseconds, or [`NO_LEASE`].
    pub lease_ns: u64,
}

impl Grant {
    /// None: what an array of grants is filled with before its entries are known.
    pub(crate) const EMPTY: Self = Self {
        grant: GrantId {
            slot: 0,
            generation: 0,
        },
        rkey: Rkey(0),
        rights: Rights::NONE,
        address: 0,
        len: 0,
        lease_ns: 0,
    };

    /// Whether the range has bytes and ends within the address space.
    pub(super) const fn range_is_sound(&self) -> bool {
        self.len > 0 && self.address.checked_add(self.len - 1).is_some()
    }
}

/// The notice that a context is gone.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ContextGone {
    /// The context; it lived on the lcore of this frame's sender.
    pub context: WireContext,
    /// Keys of it that could not be proven dead.
    pub quarantined_keys: u32,
    /// Bytes of it that are kept for that.
    pub quarantined_bytes: u64,
}
