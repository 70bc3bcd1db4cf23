//! The rules of the contract that can be broken, one variant a rule.

macro_rules! rules {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What a [`Wrong`](super::Wrong) device does against the contract. Each breaks one rule and keeps the others as far as that
        /// goes.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[non_exhaustive]
        pub enum Rule {
            $($(#[$doc])* $name,)*
        }

        impl Rule {
            /// Every rule.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];
        }
    };
}

rules! {
    /// Two successes of a queue pair change places.
    CompletesOutOfOrder,
    /// Each third success is lost.
    LosesCompletions,
    /// Unsignaled requests fail in silence.
    LosesFailedUnsignaled,
    /// Unsignaled requests succeed aloud.
    ReportsUnsignaledSuccess,
    /// A zero-length request completes twice.
    ZeroLengthCompletesTwice,
    /// What is flushed is said to have succeeded.
    FlushReportsSuccess,
    /// What is flushed is not reported.
    FlushIsSilent,
    /// What is flushed together comes in reverse.
    FlushesInReverse,
    /// Completions name the wrong queue pair.
    NamesWrongQueuePair,
    /// Successes name the wrong kind.
    NamesWrongKind,
    /// Receives are said to be a byte longer than they are.
    MiscountsBytes,
    /// Immediates are dropped.
    LosesImmediate,
    /// A dead peer is waited for without end.
    RetriesForEver,
    /// Refused accesses give no reason.
    HidesTheReason,
    /// A completion comes after the release of its queue pair.
    CompletesAfterRelease,
    /// A completion comes after `destroy_qp` has returned.
    CompletesAfterDestroy,
    /// Fetch-add returns the new value.
    AtomicReturnsNewValue,
    /// A write with immediate changes the receive it takes.
    ImmediateTouchesReceive,
    /// A message is sent before the write it was posted behind.
    MessageOvertakesData,
    /// The immediate comes before its data.
    ImmediateOvertakesData,
    /// A write of nothing succeeds before what was posted in front of it.
    SucceedsEarly,
    /// Requests are flushed some polls before they are stopped.
    FlushesEarly,
    /// Atomics and messages are executed twice.
    ExecutesTwice,
    /// Messages are acknowledged and lost.
    LosesMessages,
    /// Inline bytes are taken some polls after the post.
    InlineReadsLate,
    /// A request over a limit stops the post in place of failing.
    RefusesOverlongInline,
    /// Entries over the limit are left out.
    CutsEntries,
    /// A full queue takes the end of a burst, not its beginning.
    TakesSuffix,
    /// A full queue takes more.
    TakesBeyondDepth,
    /// Of a long burst the end is taken and forgotten.
    ForgetsBacklog,
    /// A full queue in error takes more.
    TakesAllInError,
    /// Completions for which a poll has no room are lost.
    LosesWhatDoesNotFit,
    /// A queue pair in error takes no posts.
    RefusesPostsInError,
    /// A released queue pair takes posts.
    TakesPostsAfterRelease,
    /// An unconnected queue pair takes posts.
    TakesPostsUnconnected,
    /// Invalidations complete at the post, and take effect later.
    CompletesInvalidateEarly,
    /// Invalidations end nothing.
    AcceptsDeadKey,
    /// Windows and regions open everything but atomics, whatever rights were asked for.
    IgnoresRights,
    /// Windows and regions open some bytes more at both ends.
    IgnoresBounds,
    /// A key works on any queue pair.
    IgnoresScope,
    /// A key works with any tag.
    IgnoresTag,
    /// An arena's own key opens it.
    ArenaKeyOpens,
    /// After a refusal the requester's queue pair goes on.
    RefusalLeavesRequesterRunning,
    /// After a refusal the responder's queue pair goes on.
    RefusalLeavesResponderRunning,
    /// Moving a queue pair to error moves its peer's, too.
    ErrorSpreadsToPeer,
    /// Moving a queue pair to error ends the keys of its peer's.
    ErrorEndsPeersKeys,
    /// A flushed invalidation ends its key.
    FlushEndsKey,
    /// `dealloc_window` returns some polls before it takes effect.
    DeallocDoesNotFence,
    /// `deregister` returns some polls before it takes effect.
    DeregisterDoesNotFence,
    /// `destroy_qp` returns some polls before it takes effect.
    DestroyDoesNotFence,
    /// `destroy_qp` ends a queue pair that its lcore has.
    DestroysUnreleased,
    /// A bind outside its region succeeds.
    BindIgnoresRegion,
    /// A bind on another queue pair than its window's succeeds.
    BindIgnoresQueuePair,
    /// A bind of a bound window succeeds.
    BindsTwice,
    /// A failed bind does not stop what is behind it.
    ChainRunsOn,
    /// A region with bound windows can be ended.
    DeregistersUnderWindows,
    /// A zero-length access checks its key.
    ZeroLengthChecksKey,
    /// A message is cut to the length of its receive.
    TruncatesMessages,
    /// A misaligned atomic is executed on the aligned word.
    AlignsAtomics,
    /// An unknown local key is taken for a known one.
    IgnoresLocalKey,
    /// A local key of another domain is taken for one of its own.
    IgnoresLocalDomain,
    /// A region's key works from any domain.
    IgnoresRegionDomain,
    /// A bind to a region of another domain succeeds.
    BindIgnoresDomain,
    /// An invalidation on another queue pair than the key's succeeds.
    InvalidateIgnoresQueuePair,
    /// An invalidation ends a window's key whatever its tag.
    InvalidateIgnoresTag,
    /// A queue pair that was moved to error while it connected is said to be connected.
    ConnectsInError,
    /// An event names a queue pair after its destruction.
    EventAfterDestroy,
    /// What `accept` carries is lost.
    LosesPrivateData,
    /// A call that ends an object says that it has ended one that is gone.
    EndsWhatIsGone,
}
