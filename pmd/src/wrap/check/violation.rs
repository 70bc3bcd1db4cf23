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
    /// A success says what it is of.
    WrongKind: Device, "success is of another kind than its request";
    /// Posting has prefix semantics.
    TookTooMany: Device, "device says it took more requests than it was given";
    /// `QpConfig` bounds what is posted and not completed.
    BeyondDepth: Device, "device took more requests than the queue is deep";
    /// Posts to such a queue pair return 0.
    TookOnUnknownQp: Device, "device took posts to a queue pair that is unknown or was released";
    /// An invalidation of a dead key must fail.
    DeadInvalidated: Device, "invalidation of a key that is not bound succeeded";
    /// A bind of a window that is bound must fail.
    BoundTwice: Device, "bind of a window that is bound succeeded";
    /// A bind outside the indexes that the device gave out.
    UnknownIndex: Device, "bind of a key whose index is no window's succeeded";
    /// `destroy_qp` needs the lcore's release first.
    DestroyedUnreleased: Device, "queue pair destroyed that its lcore has not released";
    /// Numbers of queue pairs are used once; of windows and regions not while in use.
    NameReused: Device, "name handed out twice";
    /// On Soft-RoCE that panics the host.
    InvalidateTwice: Caller, "invalidation of one key posted twice";
    /// The same.
    InvalidateNotBound: Caller, "invalidation of a key that is not bound posted";
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
