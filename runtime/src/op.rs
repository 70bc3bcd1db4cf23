//! Operations and how they end, as an application sees them.

/// What an operation does.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum OpKind {
    /// Local bytes to a peer's memory.
    Write,
    /// A write that tells the grant's owner, after the data has landed, a number of 32 bits.
    WriteImmediate,
    /// A peer's memory to local bytes.
    Read,
    /// A message to a context.
    Send,
    /// Add to 8 aligned bytes of a peer.
    FetchAdd,
    /// Compare 8 aligned bytes of a peer and swap them if equal.
    CompareSwap,
}

/// How an operation ended. Each submitted operation gets exactly one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Status {
    /// Done: the peer's adapter has acknowledged all of it.
    Ok,
    /// The grant was taken back first. Nothing of it was executed.
    Revoked,
    /// The context was closed first. Nothing of it was executed.
    Cancelled,
    /// It was not posted, since an earlier operation of the context had an unknown end. Nothing of it was executed.
    NotSent,
    /// It may have been executed, in whole, in part, or not at all.
    Indeterminate,
    /// The session with the peer ended before its end was known. It may have been executed.
    PeerLost,
    /// The target context is gone. Nothing of it was executed.
    ContextGone,
}

impl Status {
    /// Whether no byte of the operation can have reached the peer.
    #[must_use]
    pub const fn surely_not_executed(self) -> bool {
        matches!(
            self,
            Self::Revoked | Self::Cancelled | Self::NotSent | Self::ContextGone
        )
    }
}

/// The end of one operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpDone {
    /// The caller's token.
    pub token: u64,
    /// What it was.
    pub kind: OpKind,
    /// How it ended.
    pub status: Status,
    /// Bytes surely transferred: all of them if `status` is [`Status::Ok`].
    pub bytes: u64,
    /// The former value, for a successful atomic; else 0.
    pub value: u64,
}
