//! Planted faults: switches in the shipped path that break one rule each, to prove that the checks see it.
//!
//! Without the feature `plant` there are no switches: [`active`] is `false` at compile time.

use core::fmt;
use core::str::FromStr;

/// A rule to break. Each is a step skipped or an order swapped in the shipped path, never a path of its own.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Plant {
    /// An explicit flush believes its counters.
    FlushCounters,
    /// A key below its reuse limit counts as flushed.
    FlushFreeList,
    /// The holder acknowledges before its operations have ended.
    AckBeforeDrain,
    /// An invalidation counts as done when it is posted.
    AckBeforeInvalidate,
    /// A context's memory is reused before its epoch is flushed.
    ReuseBeforeFlush,
    /// A context's epoch forgets its own operations.
    OwnOpsForgotten,
}

impl Plant {
    /// Every plant.
    pub const ALL: [Self; 6] = [
        Self::FlushCounters,
        Self::FlushFreeList,
        Self::AckBeforeDrain,
        Self::AckBeforeInvalidate,
        Self::ReuseBeforeFlush,
        Self::OwnOpsForgotten,
    ];

    /// The name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::FlushCounters => "flush-counters",
            Self::FlushFreeList => "flush-free-list",
            Self::AckBeforeDrain => "ack-before-drain",
            Self::AckBeforeInvalidate => "ack-before-invalidate",
            Self::ReuseBeforeFlush => "reuse-before-flush",
            Self::OwnOpsForgotten => "own-ops-forgotten",
        }
    }

    /// The fault that it stands for.
    #[must_use]
    pub const fn stands_for(self) -> &'static str {
        match self {
            Self::FlushCounters => {
                "the kernel's fmr_pool: a watermark flush runs in between, so an explicit flush finds the counters equal and does nothing"
            }
            Self::FlushFreeList => {
                "the kernel's fmr_pool: a freed mapping below its reuse limit of 32 is not on the list that the flush walks, and stays valid"
            }
            Self::AckBeforeDrain => {
                "a holder that answers a revocation while its operations with the key are still in flight"
            }
            Self::AckBeforeInvalidate => {
                "an invalidation that counts as done when it is posted, not when it has completed"
            }
            Self::ReuseBeforeFlush => {
                "a dead client's memory that is given to the next one before its keys are invalidated"
            }
            Self::OwnOpsForgotten => {
                "a reclaim that ends a client's keys but not the operations that the client itself had posted"
            }
        }
    }
}

impl fmt::Display for Plant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that no plant has.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "no plant is named {name:?}; allowed: flush-counters, flush-free-list, ack-before-drain, ack-before-invalidate, reuse-before-flush, own-ops-forgotten"
)]
pub struct UnknownPlant {
    /// The name.
    pub name: String,
}

impl FromStr for Plant {
    type Err = UnknownPlant;

    fn from_str(name: &str) -> Result<Self, UnknownPlant> {
        Self::ALL
            .into_iter()
            .find(|plant| plant.name() == name)
            .ok_or_else(|| UnknownPlant {
                name: name.to_owned(),
            })
    }
}

#[cfg(feature = "plant")]
mod switch {
    use keyfence_mempool::sync::{AtomicU8, Ordering};

    use super::Plant;

    /// 0: none; else the plant's number and 1.
    static ACTIVE: AtomicU8 = AtomicU8::new(0);

    /// Breaks `plant`'s rule from now on, in the whole process; `None` heals it. Any thread, before the engines start.
    pub fn set(plant: Option<Plant>) {
        // Relaxed: a switch, set before the threads that read it start.
        ACTIVE.store(plant.map_or(0, |plant| plant as u8 + 1), Ordering::Relaxed);
    }

    /// Whether `plant`'s rule is broken.
    #[inline]
    #[must_use]
    pub fn active(plant: Plant) -> bool {
        ACTIVE.load(Ordering::Relaxed) == plant as u8 + 1
    }
}

#[cfg(feature = "plant")]
pub use switch::{active, set};

/// Whether `plant`'s rule is broken: never, in this build.
#[cfg(not(feature = "plant"))]
#[inline]
#[must_use]
pub const fn active(_plant: Plant) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for plant in Plant::ALL {
            assert_eq!(plant.to_string().parse(), Ok(plant));
            assert!(!plant.stands_for().is_empty());
        }
        let error = "flush".parse::<Plant>().unwrap_err().to_string();
        for plant in Plant::ALL {
            assert!(error.contains(plant.name()), "{error}");
        }
    }
}
