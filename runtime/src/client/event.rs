//! What a client is told.

use keyfence_mempool::Buf;

use crate::client::Locals;
use crate::engine::LookupError;
use crate::error::{AllocError, FlushError, GrantError, RevokeError, SubmitError};
use crate::event::Event;
use crate::ids::{ContextId, GrantId};
use crate::op::OpDone;

/// What a client is told: the ends of its commands, and the events of its context, in the order in which they happened on the lcore.
#[derive(Debug)]
#[non_exhaustive]
pub enum ClientEvent {
    /// The context stands. Comes first; an [`Event::PeerUp`] for each session that stands already follows.
    Opened {
        /// Its name in the engine.
        context: ContextId,
    },
    /// An operation ended. Its buffers come back: nothing of it touches them any more.
    Completed {
        /// How it ended; the token is the caller's.
        done: OpDone,
        /// The buffers that were moved into it.
        locals: Locals,
    },
    /// An operation was not accepted; it gets no completion.
    Refused {
        /// The caller's token.
        token: u64,
        /// What was in the way.
        why: SubmitError,
        /// The buffers that were moved into it.
        locals: Locals,
    },
    /// The answer to [`Client::alloc`](crate::Client::alloc).
    Allocated {
        /// The caller's token.
        token: u64,
        /// The buffer, or what was in the way.
        result: Result<Buf, AllocError>,
    },
    /// The answer to [`Client::grant`](crate::Client::grant).
    GrantMade {
        /// The caller's token.
        token: u64,
        /// The buffer. A granted range of it changes as its holder writes.
        buf: Buf,
        /// The grant, or what was in the way.
        result: Result<GrantId, GrantError>,
    },
    /// A revoke that could not be right.
    RevokeRefused {
        /// The grant.
        grant: GrantId,
        /// What was in the way.
        why: RevokeError,
    },
    /// A flush that was not started.
    FlushRefused {
        /// The caller's token.
        token: u64,
        /// What was in the way.
        why: FlushError,
    },
    /// A look-up that was not started.
    LookupRefused {
        /// The caller's token.
        token: u64,
        /// What was in the way.
        why: LookupError,
    },
    /// The answer to [`Client::max_message_bytes`](crate::Client::max_message_bytes).
    MaxMessageBytes {
        /// The caller's token.
        token: u64,
        /// Bytes of payload; `None` while no session stands.
        bytes: Option<usize>,
    },
    /// Something else that the context was told. Never [`Event::Completed`], which is [`ClientEvent::Completed`] here.
    Event(Event),
}
