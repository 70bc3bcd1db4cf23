//! Rules that a world can break on purpose: what a checker of the runtime, and the suite, must notice.

/// One rule of the contract, broken.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Breach {
    /// An invalidation succeeds while accepted packets of its key have not landed.
    InvalidationDoesNotFence,
    /// `dealloc_window` returns while they have not.
    DeallocDoesNotFence,
    /// `deregister` returns while they have not.
    DeregisterDoesNotFence,
    /// `destroy_qp` returns while packets of its queue pair have not landed, in its own memory or in what its keys open.
    DestroyDoesNotFence,
    /// A flushed request's sink, and a flushed receive's buffer, are still written.
    FlushDoesNotFence,
    /// A request's source is read when its packets arrive, and not when they leave.
    ReadsSourcesLate,
    /// A request is acknowledged when it is accepted, and not when it has landed.
    AcknowledgesBeforeLanding,
    /// A read completes when its data has come, and not when it has landed.
    CompletesReadsEarly,
    /// A window's key stays live when it is invalidated.
    InvalidationEndsNothing,
    /// The key is checked for the first packet of a request alone.
    ChecksKeysOnce,
}

impl Breach {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::InvalidationDoesNotFence,
        Self::DeallocDoesNotFence,
        Self::DeregisterDoesNotFence,
        Self::DestroyDoesNotFence,
        Self::FlushDoesNotFence,
        Self::ReadsSourcesLate,
        Self::AcknowledgesBeforeLanding,
        Self::CompletesReadsEarly,
        Self::InvalidationEndsNothing,
        Self::ChecksKeysOnce,
    ];
}
