//! Errors of a context's calls: what, which limit, what to do. All are found before anything has changed.

use keyfence_pmd::ControlError;

use crate::limits::LimitError;

/// Why no buffer was given.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AllocError {
    /// The context is closed or being reclaimed.
    #[error("the context is closed")]
    ContextClosed,
    /// No pool has buffers of that size.
    #[error(
        "{len} bytes wanted, the largest buffers have {largest}; use several, or configure memory.pools"
    )]
    TooLarge {
        /// Bytes asked for.
        len: usize,
        /// Bytes of the largest buffers.
        largest: usize,
    },
    /// A limit of the context.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// The pool has none left, nor has a larger one.
    #[error(
        "no buffer of {buffer_bytes} bytes or more is free; give some back, or raise its count in memory.pools"
    )]
    PoolEmpty {
        /// Bytes of the smallest buffers that would have done.
        buffer_bytes: usize,
    },
}

/// Why a grant was not made.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GrantError {
    /// The context is closed or being reclaimed.
    #[error("the context is closed")]
    ContextClosed,
    /// The range has no byte, or leaves the buffer.
    #[error(
        "bytes {start}..{end} of a buffer of {buffer_bytes}; a grant opens at least one byte inside it"
    )]
    BadRange {
        /// First byte.
        start: usize,
        /// One past the last byte.
        end: usize,
        /// Bytes of the buffer.
        buffer_bytes: usize,
    },
    /// Rights that allow nothing.
    #[error("a grant without any right; give read, write or atomic")]
    NoRights,
    /// The right to atomics, which the device does not give through a grant.
    #[error("the device has no atomics through a grant; leave that right out")]
    NoAtomics,
    /// The buffer is another context's, or another engine's.
    #[error("the buffer does not belong to this context")]
    ForeignBuffer,
    /// The holder's session has ended, or its lane is down.
    #[error("no session stands with the holder's engine; look its context up again after PeerUp")]
    NoSession,
    /// The holder is gone.
    #[error("the holder is gone")]
    HolderGone,
    /// A lease that ends between two signs of life of a healthy holder.
    #[error("a lease of {lease_ns} ns; give at least {least_ns}, twice timeouts.keepalive")]
    LeaseTooShort {
        /// The lease asked for.
        lease_ns: u64,
        /// The shortest.
        least_ns: u64,
    },
    /// A limit.
    #[error(transparent)]
    Limit(#[from] LimitError),
}

/// Why a grant could not be revoked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RevokeError {
    /// The grant has ended.
    #[error("the grant has ended already")]
    Stale,
    /// The grant is of another context.
    #[error("the grant belongs to another context")]
    NotOwner,
}

/// Why a flush was not started.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FlushError {
    /// The context is closed or being reclaimed.
    #[error("the context is closed")]
    ContextClosed,
    /// As many flushes as the engine follows are under way.
    #[error("{limit} flushes are under way; wait for one to end")]
    TooMany {
        /// The most.
        limit: usize,
    },
}

/// Why an operation was not accepted. It gets no completion.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// The context is closed or being reclaimed.
    #[error("the context is closed")]
    ContextClosed,
    /// The import was taken back.
    #[error("the import was revoked")]
    Revoked,
    /// The import is not this context's, or its name is stale.
    #[error("no such import of this context")]
    NoSuchImport,
    /// The import does not allow this.
    #[error("the import does not allow {0}")]
    NotAllowed(&'static str),
    /// The remote range leaves the import.
    #[error("{len} bytes at {offset} leave the import of {import_bytes} bytes")]
    OutsideImport {
        /// First byte, in the import.
        offset: u64,
        /// Bytes.
        len: u64,
        /// Bytes of the import.
        import_bytes: u64,
    },
    /// The local range leaves the buffer.
    #[error("bytes {start}..{end} of a buffer of {buffer_bytes}")]
    OutsideBuffer {
        /// First byte.
        start: usize,
        /// One past the last byte.
        end: usize,
        /// Bytes of the buffer.
        buffer_bytes: usize,
    },
    /// More local ranges than an operation has.
    #[error("{given} local ranges, at most {most} fit")]
    TooManyRanges {
        /// How many were given.
        given: usize,
        /// How many fit.
        most: usize,
    },
    /// The buffer is another context's, or another engine's.
    #[error("the buffer does not belong to this context")]
    ForeignBuffer,
    /// An atomic's address is not a multiple of 8.
    #[error("an atomic at {address:#x}; its address must be a multiple of 8")]
    Misaligned {
        /// The address at the owner.
        address: u64,
    },
    /// The device of this engine has no atomics.
    #[error("the device has no atomics")]
    NoAtomics,
    /// The message is longer than its receiver takes.
    #[error("a message of {len} bytes, {most} fit; {remedy}")]
    TooLong {
        /// Bytes of the message.
        len: usize,
        /// Bytes that fit.
        most: usize,
        /// What to do.
        remedy: &'static str,
    },
    /// More bytes than any number of completions would make room for.
    #[error(
        "an operation of {len} bytes, bytes_in_flight allows {most}; split it, or raise the limit"
    )]
    TooLarge {
        /// Bytes of the operation.
        len: u64,
        /// The least of the context's limit and the lcore's.
        most: u64,
    },
    /// The target context is gone.
    #[error("the target context is gone")]
    ContextGone,
    /// No frame of the peer has named the target context to this lcore, at least not in this generation.
    #[error("no such context is known of the peer; look it up on this lcore")]
    UnknownContext,
    /// No session stands with the target's engine.
    #[error("no session stands with the target's engine; look its context up again after PeerUp")]
    NoSession,
    /// The receiver of the message, or of the notice behind a write with immediate, has not given back as many as it takes at a time. Other
    /// targets are not concerned. [`Event::Writable`](crate::Event::Writable) tells when it takes more.
    #[error(
        "the target has {messages} messages that it has not given back, as many as it takes at a time; wait for Event::Writable"
    )]
    NoCredit {
        /// What the target takes at a time on a lane: `limits.context.messages` of its engine.
        messages: u32,
    },
    /// A limit: wait for completions. [`Event::Writable`](crate::Event::Writable) tells when there is room.
    #[error(transparent)]
    Limit(#[from] LimitError),
}

impl SubmitError {
    /// Whether the same call may succeed later: there is no room now, and [`Event::Writable`](crate::Event::Writable) will tell when there is.
    #[must_use]
    pub const fn is_back_pressure(&self) -> bool {
        matches!(self, Self::NoCredit { .. } | Self::Limit(_))
    }
}

/// Why the key of a grant could not be made off the lcore (key mode `region`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyRefusal {
    /// The device has no more of something.
    #[error("the device is out of {what}: {limit} in use; raise its limit or revoke some grants")]
    Exhausted {
        /// The kind of object.
        what: &'static str,
        /// How many the device has.
        limit: u64,
    },
    /// The memory must be locked once more for its region, and this process may not lock so much.
    #[error(
        "the region needs {needed_bytes} bytes of locked memory, the limit is {limit_bytes} (RLIMIT_MEMLOCK); raise it or revoke some grants"
    )]
    LockedMemory {
        /// The limit of the process, over all its locked memory.
        limit_bytes: u64,
        /// What this region needs.
        needed_bytes: u64,
    },
    /// The device gives out values that the peer may still know (R8).
    #[error(
        "{tries} regions in a row had a key that the peer has not acknowledged as dead; try again when it answers"
    )]
    ValuesKnown {
        /// How often it was tried.
        tries: u32,
    },
    /// The registration did not come back. The grant's memory is kept until its session has ended.
    #[error(
        "the registration did not come back in time; its memory is kept until the session with the peer has ended"
    )]
    Late,
    /// The session ended meanwhile.
    #[error("the session with the peer ended before the key was made")]
    SessionOver,
    /// The device refused for another reason.
    #[error("the device refused the registration; the log of the control side says why")]
    Device,
}

impl KeyRefusal {
    /// By what the device says.
    pub(crate) fn of(error: &ControlError) -> Self {
        match *error {
            ControlError::Exhausted { what, limit } => Self::Exhausted { what, limit },
            ControlError::LockedMemory {
                limit_bytes,
                needed_bytes,
            } => Self::LockedMemory {
                limit_bytes,
                needed_bytes,
            },
            ControlError::Late { .. } => Self::Late,
            _ => Self::Device,
        }
    }
}
