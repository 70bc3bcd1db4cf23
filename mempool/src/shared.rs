//! What pool, caches and buffers have in common: the side table, the depot, the way to the bytes.

use crate::arena::Arena;
use crate::buf::{BufId, BufIdError};
use crate::canary::{self, CANARY_BYTES};
use crate::depot::IndexStack;
use crate::dma::DmaSlice;
use crate::pool::PoolConfig;
use crate::state::{Refusal, StateWord};
use crate::sync::{Arc, AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Kept by the pool, by each cache and by each buffer outside the depot, so it outlives them all.
#[derive(Debug)]
pub(crate) struct Shared {
    arena: Arc<Arena>,
    config: PoolConfig,
    pub(crate) start: usize,
    pub(crate) stride: usize,
    pub(crate) slots: Box<[Slot]>,
    pub(crate) depot: IndexStack,
    pub(crate) cache_taken: Box<[AtomicBool]>,
    pub(crate) counters: Counters,
}

/// One buffer's entry in the side table.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) state: StateWord,
    /// Written while the buffer is being given out, before its state says so.
    owner: AtomicU32,
}

/// Only refused calls count here, so the lines are cold.
#[derive(Debug)]
pub(crate) struct Counters {
    pub(crate) stale_ids: AtomicU64,
    pub(crate) foreign_puts: AtomicU64,
    pub(crate) overruns: AtomicU64,
    pub(crate) empty_gets: AtomicU64,
}

impl Shared {
    /// Tables for a range that was checked to hold the pool; all buffers are in the depot.
    pub(crate) fn new(arena: Arc<Arena>, start: usize, config: PoolConfig) -> Shared {
        let count = config.count as u32;
        let shared = Shared {
            arena,
            config,
            start,
            stride: config.stride(),
            slots: (0..count).map(|_| Slot::new()).collect(),
            depot: IndexStack::new(count),
            cache_taken: (0..config.caches).map(|_| AtomicBool::new(false)).collect(),
            counters: Counters::new(),
        };
        if config.canary {
            (0..count).for_each(|index| canary::plant(shared.canary_line(index), index));
        }
        shared.depot.push_many((0..count).rev());
        shared
    }

    pub(crate) fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }

    pub(crate) fn config(&self) -> &PoolConfig {
        &self.config
    }

    #[inline]
    pub(crate) fn slot(&self, index: u32) -> &Slot {
        &self.slots[index as usize]
    }

    /// Offset of a buffer in the arena.
    #[inline]
    pub(crate) fn offset(&self, index: u32) -> usize {
        self.start + index as usize * self.stride
    }

    #[inline]
    pub(crate) fn dma(&self, index: u32) -> DmaSlice<'_> {
        self.arena
            .dma(self.offset(index), self.config.buf_bytes)
            .expect("a pool's buffers lie in its arena")
    }

    /// The slot of an id, if there is one with this index.
    #[inline]
    pub(crate) fn slot_of(&self, id: BufId) -> Result<&Slot, BufIdError> {
        match self.slots.get(id.index as usize) {
            Some(slot) => Ok(slot),
            None => Err(self.no_such_index(id)),
        }
    }

    #[cold]
    fn no_such_index(&self, id: BufId) -> BufIdError {
        self.counters.stale_ids.fetch_add(1, Ordering::Relaxed);
        BufIdError::NoSuchIndex {
            index: id.index,
            count: self.slots.len(),
        }
    }

    /// Counts a stale id, and says so.
    #[cold]
    pub(crate) fn stale(&self, id: BufId, generation: u32) -> BufIdError {
        self.counters.stale_ids.fetch_add(1, Ordering::Relaxed);
        BufIdError::Stale { id, generation }
    }

    /// `None` for a refusal that is not about the id.
    #[cold]
    pub(crate) fn id_error(&self, id: BufId, refusal: Refusal) -> Option<BufIdError> {
        match refusal {
            Refusal::Stale { generation } => Some(self.stale(id, generation)),
            _ => None,
        }
    }

    /// Looks at the canary of a free buffer that the caller alone has; quarantines it if somebody wrote there.
    #[inline(always)]
    pub(crate) fn is_fit(&self, index: u32) -> bool {
        !self.config.canary || self.canary_shows_fit(index)
    }

    #[inline(never)]
    fn canary_shows_fit(&self, index: u32) -> bool {
        if self.canary_is_intact(index) {
            return true;
        }
        self.slot(index).state.quarantine();
        self.counters.overruns.fetch_add(1, Ordering::Relaxed);
        false
    }

    /// Brings a buffer home that became free outside any cache, on whichever thread.
    pub(crate) fn bring_home(&self, index: u32) {
        if self.is_fit(index) {
            self.depot.push_many([index]);
        }
    }

    pub(crate) fn free_cache(&self, index: usize) {
        self.cache_taken[index].store(false, Ordering::Release);
    }

    #[inline]
    pub(crate) fn canary_is_intact(&self, index: u32) -> bool {
        canary::is_intact(self.canary_line(index), index)
    }

    #[inline]
    fn canary_line(&self, index: u32) -> DmaSlice<'_> {
        let offset = self.offset(index) + self.stride - CANARY_BYTES;
        self.arena
            .dma(offset, CANARY_BYTES)
            .expect("a pool's canaries lie in its arena")
    }
}

impl Slot {
    fn new() -> Slot {
        Slot {
            state: StateWord::new(),
            owner: AtomicU32::new(0),
        }
    }

    /// The owner that the buffer was last given out to.
    pub(crate) fn owner(&self) -> u32 {
        self.owner.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn give_out(&self, owner: u32) -> u32 {
        self.owner.store(owner, Ordering::Relaxed);
        self.state.give_out()
    }
}

impl Counters {
    fn new() -> Counters {
        Counters {
            stale_ids: AtomicU64::new(0),
            foreign_puts: AtomicU64::new(0),
            overruns: AtomicU64::new(0),
            empty_gets: AtomicU64::new(0),
        }
    }
}
