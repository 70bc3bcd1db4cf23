//! A pool of buffers of one size, in a range of an arena.

use core::ops::Range;

use crate::arena::Arena;
use crate::buf::{BufId, LookupError};
use crate::cache::PoolCache;
use crate::canary::CANARY_BYTES;
use crate::error::RangeError;
use crate::shared::Shared;
use crate::state::State;
use crate::sync::{Arc, Ordering};

/// Buffers begin at multiples of this many bytes: a cache line.
pub const BUF_ALIGN_BYTES: usize = 64;
/// The most buffers a pool can have.
pub const MAX_BUFFERS: u32 = u32::MAX - 1;
/// The most caches a pool can have.
pub const MAX_CACHES: usize = 1024;

/// Shape of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolConfig {
    /// Bytes of each buffer, at least 1.
    pub buf_bytes: usize,
    /// Buffers, 1 to [`MAX_BUFFERS`].
    pub count: usize,
    /// Caches, one for each lcore: 1 to [`MAX_CACHES`].
    pub caches: usize,
    /// Free buffers that a cache keeps for itself, at most `count`. 0 sends each one through the shared depot.
    pub cache_size: usize,
    /// Whether a line behind each buffer shows that somebody wrote past its end.
    pub canary: bool,
}

/// Why a pool or one of its caches could not be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    /// A value is outside its limits.
    #[error("{name} = {value}: {name} must be {low} to {high}")]
    OutOfLimits {
        /// The value's name in [`PoolConfig`].
        name: &'static str,
        /// The value.
        value: usize,
        /// The smallest legal value.
        low: usize,
        /// The largest legal value.
        high: usize,
    },
    /// Buffers times stride exceed the address space.
    #[error("{count} buffers of {buf_bytes} bytes exceed the address space: lower one of them")]
    TooLarge {
        /// Buffers wanted.
        count: usize,
        /// Bytes of each.
        buf_bytes: usize,
    },
    /// The range does not lie in the arena.
    #[error(transparent)]
    OutsideArena(#[from] RangeError),
    /// The range begins inside a cache line.
    #[error("the pool's range begins at {start}, which is no multiple of {BUF_ALIGN_BYTES}")]
    Misaligned {
        /// First byte of the range.
        start: usize,
    },
    /// The range is too small.
    #[error(
        "{count} buffers take {wanted} bytes, the range has {have}: lower count or buf_bytes, or carve out more"
    )]
    Short {
        /// Buffers wanted.
        count: usize,
        /// Bytes they take.
        wanted: usize,
        /// Bytes of the range.
        have: usize,
    },
    /// There is no such cache.
    #[error("cache {index}: the pool has {caches}, from 0")]
    NoSuchCache {
        /// Cache asked for.
        index: usize,
        /// Caches of the pool.
        caches: usize,
    },
    /// The cache has an owner already.
    #[error("cache {index} is taken: each has one owner")]
    CacheTaken {
        /// Cache asked for.
        index: usize,
    },
}

/// A pool. Its buffers keep the arena mapped, so that pool, caches, buffers and arena can be dropped in any order.
///
/// ```
/// use keyfence_mempool::{Arena, ArenaConfig, Pool, PoolConfig, sync::Arc};
/// let arena = Arc::new(Arena::map(&ArenaConfig::new(1 << 20))?);
/// let config = PoolConfig { buf_bytes: 2048, count: 16, caches: 1, cache_size: 4, canary: true };
/// let pool = Pool::new(arena, 0..config.arena_bytes()?, config)?;
/// let mut cache = pool.cache(0)?;
/// let buf = cache.get(7).expect("16 are free");
/// buf.write_at(0, b"hello")?;
/// assert_eq!((buf.owner(), pool.in_use(), pool.free()), (7, 1, 15));
/// cache.put(buf)?;
/// assert_eq!((pool.in_use(), pool.free()), (0, 16));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Pool {
    shared: Arc<Shared>,
}

/// Where every buffer of a pool is. At rest `in_use + free + quarantined == count`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PoolBooks {
    /// Buffers of the pool.
    pub count: usize,
    /// Buffers that something keeps.
    pub in_use: usize,
    /// Buffers that can be given out.
    pub free: usize,
    /// Buffers set aside for good, since somebody wrote past their end.
    pub quarantined: usize,
    /// Of those in use: with a handle.
    pub handles: usize,
    /// Of those in use: with open holds.
    pub held: usize,
    /// Of those in use: retained.
    pub retained: usize,
}

/// Refused calls, since the pool was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Calls with an id that no longer, or never, meant a buffer in use.
    pub stale_ids: u64,
    /// Buffers of another pool that were put here.
    pub foreign_puts: u64,
    /// Buffers found with a broken canary when they came home or were to be given out.
    pub overruns: u64,
    /// Gets with nothing free.
    pub empty_gets: u64,
}

/// What [`Pool::check_canaries`] found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CanaryReport {
    /// Lines looked at.
    pub checked: usize,
    /// Lines that somebody wrote to, those of quarantined buffers included.
    pub broken: usize,
    /// Index of the first buffer with a broken line.
    pub first: Option<u32>,
}

impl PoolConfig {
    /// Bytes of an arena that the pool takes.
    pub fn arena_bytes(&self) -> Result<usize, PoolError> {
        let limits = [
            ("buf_bytes", self.buf_bytes, 1, isize::MAX as usize),
            ("count", self.count, 1, MAX_BUFFERS as usize),
            ("caches", self.caches, 1, MAX_CACHES),
            ("cache_size", self.cache_size, 0, self.count),
        ];
        for (name, value, low, high) in limits {
            if !(low..=high).contains(&value) {
                return Err(PoolError::OutOfLimits {
                    name,
                    value,
                    low,
                    high,
                });
            }
        }
        let too_large = PoolError::TooLarge {
            count: self.count,
            buf_bytes: self.buf_bytes,
        };
        self.stride().checked_mul(self.count).ok_or(too_large)
    }

    /// Bytes from one buffer to the next; `buf_bytes` is at most `isize::MAX`.
    pub(crate) fn stride(&self) -> usize {
        let canary = if self.canary { CANARY_BYTES } else { 0 };
        self.buf_bytes.next_multiple_of(BUF_ALIGN_BYTES) + canary
    }
}

impl Pool {
    /// A pool of free buffers in `range` of the arena, whose start is a multiple of 64. All tables are allocated here.
    pub fn new(
        arena: Arc<Arena>,
        range: Range<usize>,
        config: PoolConfig,
    ) -> Result<Pool, PoolError> {
        let wanted = config.arena_bytes()?;
        let have = range.len();
        arena.dma(range.start, have)?;
        if !range.start.is_multiple_of(BUF_ALIGN_BYTES) {
            return Err(PoolError::Misaligned { start: range.start });
        }
        if wanted > have {
            return Err(PoolError::Short {
                count: config.count,
                wanted,
                have,
            });
        }
        let shared = Shared::new(arena, range.start, config);
        Ok(Pool {
            shared: Arc::new(shared),
        })
    }

    /// The cache of one lcore, from 0. Each has one owner at a time; dropping it makes it free to be taken again.
    pub fn cache(&self, index: usize) -> Result<PoolCache, PoolError> {
        let caches = self.shared.cache_taken.len();
        let taken = self
            .shared
            .cache_taken
            .get(index)
            .ok_or(PoolError::NoSuchCache { index, caches })?;
        if taken.swap(true, Ordering::AcqRel) {
            return Err(PoolError::CacheTaken { index });
        }
        Ok(PoolCache::new(Arc::clone(&self.shared), index))
    }

    /// The arena that the buffers are in.
    pub fn arena(&self) -> &Arc<Arena> {
        self.shared.arena()
    }

    /// Shape of the pool.
    pub fn config(&self) -> &PoolConfig {
        self.shared.config()
    }

    /// Buffers that something keeps. Exact at rest; looks at every buffer, so not for the data path.
    pub fn in_use(&self) -> usize {
        self.books().in_use
    }

    /// Buffers that can be given out, whichever cache has them. As exact as [`Pool::in_use`].
    pub fn free(&self) -> usize {
        self.books().free
    }

    /// Buffers set aside for good. As exact as [`Pool::in_use`].
    pub fn quarantined(&self) -> usize {
        self.books().quarantined
    }

    /// Where every buffer is. Exact at rest; looks at every buffer.
    pub fn books(&self) -> PoolBooks {
        let mut books = PoolBooks {
            count: self.shared.slots.len(),
            ..PoolBooks::default()
        };
        for state in self.shared.slots.iter().map(|slot| slot.state.read()) {
            books.add(state);
        }
        // Each state was counted in one place.
        assert_eq!(
            books.in_use + books.free + books.quarantined,
            books.count,
            "R7: the pool's books do not balance"
        );
        books
    }

    /// Refused calls so far.
    pub fn stats(&self) -> PoolStats {
        let counters = &self.shared.counters;
        PoolStats {
            stale_ids: counters.stale_ids.load(Ordering::Relaxed),
            foreign_puts: counters.foreign_puts.load(Ordering::Relaxed),
            overruns: counters.overruns.load(Ordering::Relaxed),
            empty_gets: counters.empty_gets.load(Ordering::Relaxed),
        }
    }

    /// Looks at the line behind every buffer, in use or not. Nothing is looked at in a pool without canaries.
    pub fn check_canaries(&self) -> CanaryReport {
        let mut report = CanaryReport::default();
        if !self.shared.config().canary {
            return report;
        }
        for index in 0..self.shared.slots.len() as u32 {
            report.checked += 1;
            if !self.shared.canary_is_intact(index) {
                report.broken += 1;
                report.first.get_or_insert(index);
            }
        }
        report
    }

    /// The buffer in use that begins at exactly `offset` of the arena.
    pub fn id_at(&self, offset: usize) -> Result<BufId, LookupError> {
        let inside = offset
            .checked_sub(self.shared.start)
            .filter(|inside| inside / self.shared.stride < self.shared.slots.len());
        let inside = inside.ok_or(LookupError::OutsidePool { offset })?;
        let index = (inside / self.shared.stride) as u32;
        let nearest = self.shared.offset(index);
        if offset != nearest {
            return Err(LookupError::NotAStart { offset, nearest });
        }
        let state = self.shared.slots[index as usize].state.read();
        if !state.is_live() {
            return Err(LookupError::NotInUse { index });
        }
        Ok(BufId {
            index,
            generation: state.generation(),
        })
    }
}

impl PoolBooks {
    fn add(&mut self, state: State) {
        self.free += usize::from(state.is_free());
        self.quarantined += usize::from(state.is_quarantined());
        if state.is_live() {
            self.in_use += 1;
            self.handles += usize::from(state.handle_is_out());
            self.held += usize::from(state.holds() > 0);
            self.retained += usize::from(state.is_retained());
        }
    }
}
