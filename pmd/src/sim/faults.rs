//! What goes wrong on demand, and how often it did.

use super::config::Nanos;
use crate::error::ControlError;

/// Something that strikes now and then, and lasts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sometimes {
    /// How often, of a million chances; 0 is never.
    pub per_million: u32,
    /// How long.
    pub ns: Nanos,
}

/// The knobs. All are off by default; each is of real adapters.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SimFaults {
    /// An invalidation whose turn has come takes so long. A chance each invalidation.
    pub slow_invalidation: Sometimes,
    /// An invalidation fails: its queue pair goes to error, and the key may be dead or live. A chance each invalidation.
    pub failed_invalidation_per_million: u32,
    /// The queue pair goes to error, its peer's does not. A chance each packet that leaves, arrives or lands.
    pub error_here_per_million: u32,
    /// The peer's queue pair goes to error, this one does not. A chance as above.
    pub error_there_per_million: u32,
    /// Both go to error. A chance as above.
    pub error_both_per_million: u32,
    /// The queue pair sends and takes nothing for a time, so queues fill up. A chance as above.
    pub stall: Sometimes,
    /// A packet that is accepted lands so much later. A chance each packet.
    pub late_landing: Sometimes,
    /// What a failed completion leaves undefined is garbage. A chance each failed completion.
    pub garbage_per_million: u32,
    /// The completion of a signaled request that succeeded never comes; one of a later request of its queue does. A chance each.
    pub swallowed_completion_per_million: u32,
    /// A completion comes so much later, and those behind it on its queue with it. A chance each.
    pub late_completion: Sometimes,
    /// A completion waits for the end of a period of that length, as others do: they come in a bunch. A chance each.
    pub bunched_completion: Sometimes,
    /// A control call is refused with [`ControlError::System`], and nothing was done. A chance each call.
    pub failed_call_per_million: u32,
    /// A control call is [`ControlError::Late`], and nothing was done. A chance each call.
    pub late_call_undone_per_million: u32,
    /// A control call is [`ControlError::Late`] although it was done. The same call made again (one that returns nothing) finds it done; what
    /// one that makes something made stays, unknown. A chance each call.
    pub late_call_done_per_million: u32,
    /// A connection does not come about: `Rejected`, and nobody was asked. A chance each start.
    pub refused_connection_per_million: u32,
    /// A step of connecting takes so much longer. A chance each step.
    pub slow_connection: Sometimes,
    /// A message waits so long for a receive, and then ends as `RnrRetryExceeded`. A chance each message that must wait; the others wait for ever.
    pub no_receive: Sometimes,
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident $name:literal),* $(,)?) => {
        /// A kind of fault, as it is counted.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum SimFault {
            $($(#[$doc])* $kind),*
        }

        impl SimFault {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$kind),*];

            /// Its name in reports.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$kind => $name),*
                }
            }
        }
    };
}

kinds! {
    /// [`SimFaults::slow_invalidation`].
    SlowInvalidation "slow_invalidation",
    /// [`SimFaults::failed_invalidation_per_million`].
    FailedInvalidation "failed_invalidation",
    /// [`SimFaults::error_here_per_million`].
    ErrorHere "error_here",
    /// [`SimFaults::error_there_per_million`].
    ErrorThere "error_there",
    /// [`SimFaults::error_both_per_million`].
    ErrorBoth "error_both",
    /// [`SimFaults::stall`].
    Stall "stall",
    /// [`SimFaults::late_landing`]; counted when the packet has landed at its late time.
    LateLanding "late_landing",
    /// [`SimFaults::garbage_per_million`].
    Garbage "garbage",
    /// [`SimFaults::swallowed_completion_per_million`].
    SwallowedCompletion "swallowed_completion",
    /// [`SimFaults::late_completion`].
    LateCompletion "late_completion",
    /// [`SimFaults::bunched_completion`].
    BunchedCompletion "bunched_completion",
    /// [`SimFaults::failed_call_per_million`].
    FailedCall "failed_call",
    /// [`SimFaults::late_call_undone_per_million`].
    LateCallUndone "late_call_undone",
    /// [`SimFaults::late_call_done_per_million`].
    LateCallDone "late_call_done",
    /// [`SimFaults::refused_connection_per_million`].
    RefusedConnection "refused_connection",
    /// [`SimFaults::slow_connection`].
    SlowConnection "slow_connection",
    /// [`SimFaults::no_receive`]; counted when the message has failed.
    NoReceive "no_receive",
}

/// How often each kind of fault struck.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Fired {
    counts: [u64; SimFault::ALL.len()],
}

impl Fired {
    /// Of one kind.
    #[must_use]
    pub fn count(&self, fault: SimFault) -> u64 {
        self.counts[fault as usize]
    }

    /// Each kind with its count, in the order of [`SimFault::ALL`].
    pub fn iter(&self) -> impl Iterator<Item = (SimFault, u64)> + '_ {
        SimFault::ALL.iter().map(|kind| (*kind, self.count(*kind)))
    }

    pub(super) fn add(&mut self, fault: SimFault) {
        self.counts[fault as usize] += 1;
    }
}

impl SimFaults {
    /// Checks every range; the error names the first that is wrong.
    pub(super) fn check(&self) -> Result<(), ControlError> {
        for (what, fault) in [
            ("slow_invalidation", self.slow_invalidation),
            ("stall", self.stall),
            ("late_landing", self.late_landing),
            ("late_completion", self.late_completion),
            ("bunched_completion", self.bunched_completion),
            ("slow_connection", self.slow_connection),
            ("no_receive", self.no_receive),
        ] {
            fault.ns.check(what)?;
        }
        Ok(())
    }
}
