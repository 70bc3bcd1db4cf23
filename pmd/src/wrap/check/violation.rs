//! What the oracle found wrong.

use core::fmt;

use keyfence_mempool::sync::{AtomicU64, Ordering};

use crate::ids::QpId;

/// Who broke the contract.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Party {
    /// The device under the checker.
    Device,
    /// Who posts to it and calls it: the runtime.
    Caller,
}

macro_rules! violations {
    ($($(#[$doc:meta])* $name:ident: $party:ident, $text:literal;)*) => {
        /// A broken rule of the contract.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[non_exhaustive]
        pub enum Violation {
            $($(#[$doc])* $name,)*
        }

        impl Violation {
            /// Every kind.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// Who broke it.
            #[must_use]
            pub const fn party(self) -> Party {
                match self { $(Self::$name => Party::$party),* }
            }
        }

        impl fmt::Display for Violation {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Self::$name => $text),* })
            }
        }
    };
}

violations! {
    /// Rule 9, or a queue pair that never was.
    UnknownQp: Device, "completion of a queue pair that is unknown or was released";
    /// One completion too many, or of a request that was never posted.
    UnknownWork: Device, "completion of a request that is not open";
    /// Rules 1 and 2: in order, and each failed or signaled one reported.
    SkippedRequest: Device, "completion passes a signaled request that has none yet";
    /// Rule 2.
    UnsignaledSuccess: Device, "success of an unsignaled request reported";
    /// Rule 5.
    SuccessAfterFailure: Device, "success on a queue after a failure on it";
    /// Rules 3 and 5: behind the first failure, and posted in error, everything is flushed.
    NotFlushed: Device, "request behind a failure, or posted in error, ended as something else than flushed";
    /// Rule 5.
    SuccessInError: Device, "success of a request that was posted in error";
    /// Rule 8.
    ZeroLengthRefused: Device, "access of no bytes refused for a key";
    /// A success says what it is of.
    WrongKind: Device, "success is of another kind than its request";
    /// It also says how many bytes were read, or received into a buffer that holds them.
    WrongBytes: Device, "success names more or fewer bytes than its request can have moved";
    /// `poll_burst` writes up to the array's length.
    PolledTooMany: Device, "poll says that it wrote more completions than it had room for";
    /// Posting has prefix semantics.
    TookTooMany: Device, "device says it took more requests than it was given";
    /// `QpConfig` bounds what is posted and not completed.
    BeyondDepth: Device, "device took more requests than the queue is deep";
    /// Posts to such a queue pair return 0.
    TookOnUnknownQp: Device, "device took posts to a queue pair that is unknown or was released";
    /// The same, of one that nobody has begun to connect.
    TookUnconnected: Device, "device took posts to a queue pair that was never to be connected";
    /// An invalidation of a dead key must fail.
    DeadInvalidated: Device, "invalidation of a key that is not bound succeeded";
    /// A bind of a window that is bound must fail.
    BoundTwice: Device, "bind of a window that is bound succeeded";
    /// Rule 6: a window belongs to one queue pair, and its key has its index.
    BoundElsewhere: Device, "bind succeeded on a queue pair or with a key that is not its window's";
    /// Rule 6: so does its invalidation.
    InvalidatedElsewhere: Device, "invalidation succeeded on a queue pair that is not its window's";
    /// A bind outside the indexes that the device gave out.
    UnknownIndex: Device, "bind of a key whose index is no window's succeeded";
    /// `destroy_qp` needs the lcore's release first.
    DestroyedUnreleased: Device, "queue pair destroyed that its lcore has not released";
    /// `deregister` is refused meanwhile.
    DeregisteredBound: Device, "region ended while a window was bound to it";
    /// `dealloc_pd` is refused meanwhile.
    DomainEndedInUse: Device, "protection domain ended while a region or queue pair used it";
    /// After `destroy_qp` no event names the queue pair.
    StrayEvent: Device, "event about a queue pair that is unknown or destroyed";
    /// Numbers of queue pairs are used once; of windows and regions not while in use.
    NameReused: Device, "name handed out twice";
    /// On Soft-RoCE that panics the host.
    InvalidateTwice: Caller, "invalidation of one key posted twice";
    /// The same.
    InvalidateNotBound: Caller, "invalidation of a key that is not bound on the queue pair posted";
    /// A window ends either way, but not both at a time.
    DeallocInvalidating: Caller, "window ended while its invalidation is posted on a queue pair not in error";
}

/// One finding.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Report {
    /// The rule.
    pub violation: Violation,
    /// On which queue pair; `QpId(u32::MAX)` if none.
    pub qp: QpId,
    /// The request's id, or the window's, region's or key's number.
    pub detail: u64,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?}: {} (qp {}, detail {:#x})",
            self.violation.party(),
            self.violation,
            self.qp,
            self.detail
        )
    }
}

const KEPT: usize = 64;
const READY: u64 = 1 << 63;

/// Counts by kind, and the first findings in full; filled from any thread without a lock.
pub(super) struct Findings {
    counts: Box<[AtomicU64]>,
    next: AtomicU64,
    first: Box<[[AtomicU64; 2]]>,
}

impl Findings {
    pub fn new() -> Self {
        Self {
            counts: Violation::ALL.iter().map(|_| AtomicU64::new(0)).collect(),
            next: AtomicU64::new(0),
            first: (0..KEPT)
                .map(|_| [AtomicU64::new(0), AtomicU64::new(0)])
                .collect(),
        }
    }

    pub fn report(&self, violation: Violation, qp: QpId, detail: u64) {
        self.counts[violation as usize].fetch_add(1, Ordering::Relaxed);
        let at = self.next.fetch_add(1, Ordering::Relaxed) as usize;
        let Some(slot) = self.first.get(at) else {
            return;
        };
        slot[1].store(detail, Ordering::Relaxed);
        let head = READY | (violation as u64) << 32 | u64::from(qp.0);
        slot[0].store(head, Ordering::Release);
    }

    pub fn count(&self, violation: Violation) -> u64 {
        self.counts[violation as usize].load(Ordering::Relaxed)
    }

    pub fn first(&self) -> Vec<Report> {
        let slots = self.first.iter();
        slots
            .filter_map(|slot| {
                let head = slot[0].load(Ordering::Acquire);
                (head & READY != 0).then(|| Report {
                    violation: Violation::ALL[(head >> 32) as usize & 0xff],
                    qp: QpId(head as u32),
                    detail: slot[1].load(Ordering::Relaxed),
                })
            })
            .collect()
    }
}
