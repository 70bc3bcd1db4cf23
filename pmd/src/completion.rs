//! Completions: what a poll path hands back.

use crate::ids::{QpId, WorkId};

/// How a work request ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum WcStatus {
    /// It was executed, and so was every request posted before it on its queue pair.
    Success,
    /// The message is longer than the receive buffer, or a length is over a limit of the device.
    LocalLength,
    /// A local key is wrong, or the range leaves its region.
    LocalProtection,
    /// A bind or invalidation was refused: window not free, not of this queue pair, range outside the region.
    MemoryWindowBind,
    /// The queue pair was in error, or came into error, before this request was done. It may have been executed in part.
    Flushed,
    /// The peer found the request malformed: a misaligned atomic, a length over its limit.
    RemoteInvalidRequest,
    /// The peer's key check refused: unknown or dead key, other queue pair, outside the range, right missing.
    RemoteAccess,
    /// The peer failed to do it.
    RemoteOperation,
    /// The peer's queue pair does not answer. Says nothing about why, nor that the peer is dead.
    RetryExceeded,
    /// The peer posted no receive in time.
    RnrRetryExceeded,
    /// Anything else.
    General,
}

/// What kind of request a completion is of. Undefined unless the status is `Success`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CompletionKind {
    /// A write, with or without immediate.
    Write,
    /// A read.
    Read,
    /// A send.
    Send,
    /// A fetch-and-add or compare-and-swap.
    Atomic,
    /// A window bind.
    Bind,
    /// An invalidation.
    Invalidate,
    /// A receive, consumed by a send.
    Receive,
    /// A receive, consumed by a write with immediate: no byte of its buffer was touched.
    ReceiveWriteImmediate,
}

/// One completion. If `status` is not `Success`, only `id`, `qp` and `status` mean anything (ibv_poll_cq(3)).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// The request's name, as posted.
    pub id: WorkId,
    /// The queue pair it was posted to.
    pub qp: QpId,
    /// How it ended.
    pub status: WcStatus,
    /// What it was.
    pub kind: CompletionKind,
    /// Bytes received (receives) or read (reads).
    pub bytes: u32,
    /// The immediate data, if the message carried any.
    pub immediate: Option<u32>,
}

impl Completion {
    /// A filler for the array that `poll_burst` writes into.
    pub const EMPTY: Self = Self {
        id: WorkId(u64::MAX),
        qp: QpId(u32::MAX),
        status: WcStatus::General,
        kind: CompletionKind::Send,
        bytes: 0,
        immediate: None,
    };

    /// Whether the request succeeded.
    #[must_use]
    pub fn is_success(&self) -> bool {
        self.status == WcStatus::Success
    }
}
