//! What a client asks of its context, with all that the context needs for it.

use core::ops::Range;

use keyfence_mempool::Buf;
use keyfence_pmd::Rights;

use crate::context::ops::MAX_RANGES;
use crate::engine::{InlineName, Lease, Local, MAX_COPIED_MESSAGE_BYTES};
use crate::event::Import;
use crate::ids::{GrantId, PeerId, RemoteContext};

/// Ranges of buffers for one operation, with the buffers: up to two, moved in and given back with the operation's end.
#[derive(Debug, Default)]
pub struct Locals {
    ranges: [Option<(Buf, Range<usize>)>; MAX_RANGES],
}

impl Locals {
    /// Bytes `range` of one buffer.
    #[must_use]
    pub fn one(buf: Buf, range: Range<usize>) -> Self {
        Self {
            ranges: [Some((buf, range)), None],
        }
    }

    /// Bytes of two buffers, one behind the other.
    #[must_use]
    pub fn two(first: (Buf, Range<usize>), second: (Buf, Range<usize>)) -> Self {
        Self {
            ranges: [Some(first), Some(second)],
        }
    }

    /// The buffers, in order.
    pub fn into_bufs(self) -> impl Iterator<Item = Buf> {
        self.ranges.into_iter().flatten().map(|(buf, _)| buf)
    }

    /// The first buffer, if there is any; the other one is dropped.
    #[must_use]
    pub fn into_buf(self) -> Option<Buf> {
        self.into_bufs().next()
    }

    /// Calls `submit` with the ranges as a context takes them.
    pub(super) fn with<R>(&self, submit: impl FnOnce(&[Local<'_>]) -> R) -> R {
        match &self.ranges {
            [Some(first), Some(second)] => submit(&[local(first), local(second)]),
            [Some(only), None] | [None, Some(only)] => submit(&[local(only)]),
            [None, None] => submit(&[]),
        }
    }
}

/// Bytes of a short message, held in place.
#[derive(Clone, Copy, Debug)]
pub(super) struct InlineMessage {
    bytes: [u8; MAX_COPIED_MESSAGE_BYTES],
    len: u8,
}

impl InlineMessage {
    /// A copy of `bytes`; `None` if they are too many.
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let mut copy = [0; MAX_COPIED_MESSAGE_BYTES];
        copy.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(Self {
            bytes: copy,
            len: bytes.len() as u8,
        })
    }

    /// The message.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len as usize]
    }
}

/// What an operation does; its buffers and token are beside it.
#[derive(Debug)]
pub(super) enum Submit {
    Write {
        import: Import,
        offset: u64,
        idempotent: bool,
    },
    WriteImmediate {
        import: Import,
        offset: u64,
        immediate: u32,
    },
    Read {
        import: Import,
        offset: u64,
    },
    FetchAdd {
        import: Import,
        offset: u64,
        add: u64,
    },
    CompareSwap {
        import: Import,
        offset: u64,
        expected: u64,
        desired: u64,
    },
    Send {
        to: RemoteContext,
        message: InlineMessage,
    },
    SendFrom {
        to: RemoteContext,
    },
}

/// One command.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "a box would be an allocation a command"
)]
pub(super) enum Command {
    Submit {
        what: Submit,
        locals: Locals,
        token: u64,
    },
    Alloc {
        len: usize,
        token: u64,
    },
    Free(Buf),
    Grant {
        buf: Buf,
        range: Range<usize>,
        rights: Rights,
        holder: RemoteContext,
        lease: Lease,
        token: u64,
    },
    Revoke(GrantId),
    Flush {
        token: u64,
    },
    Resume {
        /// Events that the client had taken.
        taken: u64,
    },
    Lookup {
        peer: PeerId,
        name: InlineName,
        token: u64,
    },
    MaxMessageBytes {
        to: RemoteContext,
        token: u64,
    },
    Close,
}

fn local((buf, range): &(Buf, Range<usize>)) -> Local<'_> {
    Local::new(buf, range.clone())
}
