//! One lcore's share of a pool: the free buffers at hand, and the calls that change what keeps a buffer.

use core::cell::Cell;
use core::fmt;
use core::marker::PhantomData;

use crate::buf::{Buf, BufId, BufIdError, Core};
use crate::shared::Shared;
use crate::state::{Outcome, Refusal};
use crate::sync::{Arc, Ordering};

/// Free buffers of one lcore. One thread owns it; it can be sent to another, but not shared. Allocates nothing after
/// it was made.
pub struct PoolCache {
    shared: Arc<Shared>,
    number: usize,
    /// Free buffers, the last used on top.
    home: Vec<u32>,
    /// One reference to the pool for each buffer at home, so that giving one out or taking it back counts none.
    /// Apart from the indices, since a processor cannot forward two narrow stores to the wide load of a pair.
    references: Vec<Arc<Shared>>,
    not_sync: PhantomData<Cell<()>>,
}

/// Why a buffer that was put is not free now.
#[derive(Debug, thiserror::Error)]
pub enum PutError {
    /// The buffer belongs to another pool and is given back.
    #[error("the buffer belongs to another pool")]
    Foreign(Buf),
    /// Somebody wrote past the buffer's end: it is quarantined.
    #[error("buffer {index} was written past its end and is quarantined")]
    Overrun {
        /// Index of the buffer.
        index: u32,
    },
}

/// Why a hold was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HoldError {
    /// The id names no buffer in use.
    #[error(transparent)]
    Id(#[from] BufIdError),
    /// The count of holds is at its end.
    #[error("buffer {index} has 2^29 - 1 holds, which is the most that are counted")]
    TooMany {
        /// Index of the buffer.
        index: u32,
    },
}

/// Why a hold was not released.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReleaseError {
    /// The id names no buffer in use.
    #[error(transparent)]
    Id(#[from] BufIdError),
    /// Every hold was released before.
    #[error("buffer {index} has no open hold")]
    NotHeld {
        /// Index of the buffer.
        index: u32,
    },
}

/// Why a retained buffer was not brought home.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReclaimError {
    /// The id names no buffer in use: it was reclaimed before, for one.
    #[error(transparent)]
    Id(#[from] BufIdError),
    /// Its handle still exists.
    #[error("buffer {index} has a handle that was not dropped")]
    HandleOut {
        /// Index of the buffer.
        index: u32,
    },
    /// Work requests or grants still use it.
    #[error("buffer {index} has {holds} open holds")]
    Held {
        /// Index of the buffer.
        index: u32,
        /// Open holds.
        holds: u32,
    },
    /// It goes home by itself.
    #[error("buffer {index} is not retained")]
    NotRetained {
        /// Index of the buffer.
        index: u32,
    },
    /// Somebody wrote past its end: it is quarantined.
    #[error("buffer {index} was written past its end and is quarantined")]
    Overrun {
        /// Index of the buffer.
        index: u32,
    },
}

impl PoolCache {
    pub(crate) fn new(shared: Arc<Shared>, number: usize) -> PoolCache {
        // One more: what comes home is there before the rest is sent on, and a cache of size 0 needs a place too.
        let room = shared.config().cache_size + 1;
        PoolCache {
            shared,
            number,
            home: Vec::with_capacity(room),
            references: Vec::with_capacity(room),
            not_sync: PhantomData,
        }
    }

    /// A free buffer for `owner`; `None` if the depot is empty too. Its bytes are what the last owner left.
    #[inline]
    pub fn get(&mut self, owner: u32) -> Option<Buf> {
        loop {
            let Some(index) = self.home.pop() else {
                if self.refill() {
                    continue;
                }
                self.shared
                    .counters
                    .empty_gets
                    .fetch_add(1, Ordering::Relaxed);
                return None;
            };
            let shared = self
                .references
                .pop()
                .expect("as many references as buffers");
            let slot = shared.slot(index);
            if shared.is_fit(index) {
                let generation = slot.give_out(owner);
                return Some(Buf::new(Core {
                    shared,
                    index,
                    generation,
                }));
            }
        }
    }

    /// Gives a buffer back. If holds are open or it is retained, only the handle ends here.
    #[inline]
    pub fn put(&mut self, buf: Buf) -> Result<(), PutError> {
        if !Arc::ptr_eq(&buf.core().shared, &self.shared) {
            self.shared
                .counters
                .foreign_puts
                .fetch_add(1, Ordering::Relaxed);
            return Err(PutError::Foreign(buf));
        }
        let Core {
            shared,
            index,
            generation,
        } = buf.into_core();
        match self.shared.slot(index).state.drop_handle(generation) {
            Outcome::Kept => Ok(()),
            Outcome::Free if self.bring_home(index, shared) => Ok(()),
            Outcome::Free => Err(PutError::Overrun { index }),
        }
    }

    /// Appends up to `count` buffers to `sink`, never more than fit its capacity. Returns how many.
    pub fn get_bulk(&mut self, owner: u32, count: usize, sink: &mut Vec<Buf>) -> usize {
        let room = sink.capacity() - sink.len();
        for got in 0..count.min(room) {
            match self.get(owner) {
                Some(buf) => sink.push(buf),
                None => return got,
            }
        }
        count.min(room)
    }

    /// Puts all of `bufs`, the last first. Stops at the first error, with the rest still in `bufs`.
    pub fn put_bulk(&mut self, bufs: &mut Vec<Buf>) -> Result<(), PutError> {
        while let Some(buf) = bufs.pop() {
            self.put(buf)?;
        }
        Ok(())
    }

    /// Counts a work request or a grant that uses the buffer: it does not go home before the matching release.
    #[inline(always)]
    pub fn hold(&mut self, id: BufId) -> Result<(), HoldError> {
        let held = self.shared.slot_of(id)?.state.hold(id.generation);
        held.map_err(|refusal| match self.shared.id_error(id, refusal) {
            Some(error) => error.into(),
            None => HoldError::TooMany { index: id.index },
        })
    }

    /// Ends one hold. The last one brings the buffer home if its handle was dropped and it is not retained.
    #[inline(always)]
    pub fn release(&mut self, id: BufId) -> Result<(), ReleaseError> {
        match self.shared.slot_of(id)?.state.release(id.generation) {
            Ok(outcome) => {
                self.settle(id, outcome);
                Ok(())
            }
            Err(refusal) => Err(match self.shared.id_error(id, refusal) {
                Some(error) => error.into(),
                None => ReleaseError::NotHeld { index: id.index },
            }),
        }
    }

    /// From now on only [`PoolCache::reclaim`] brings the buffer home. Called at the cordon of its owner; again is
    /// harmless. A stale id means that it went home before.
    pub fn retain(&mut self, id: BufId) -> Result<(), BufIdError> {
        let retained = self.shared.slot_of(id)?.state.retain(id.generation);
        retained.map_err(|refusal| match self.shared.id_error(id, refusal) {
            Some(error) => error,
            None => unreachable!("a retention is refused for a stale id only"),
        })
    }

    /// Brings a retained buffer home that neither handle nor hold keeps.
    pub fn reclaim(&mut self, id: BufId) -> Result<(), ReclaimError> {
        let index = id.index;
        match self.shared.slot_of(id)?.state.reclaim(id.generation) {
            Ok(outcome) if self.settle(id, outcome) => Ok(()),
            Ok(_) => Err(ReclaimError::Overrun { index }),
            Err(refusal) => Err(match (self.shared.id_error(id, refusal), refusal) {
                (Some(error), _) => error.into(),
                (None, Refusal::HandleOut) => ReclaimError::HandleOut { index },
                (None, Refusal::Held(holds)) => ReclaimError::Held { index, holds },
                (None, _) => ReclaimError::NotRetained { index },
            }),
        }
    }

    /// Whether the buffer's handle exists.
    #[inline]
    pub fn handle_is_out(&self, id: BufId) -> Result<bool, BufIdError> {
        let state = self.shared.slot_of(id)?.state.read();
        if state.is_live() && state.generation() == id.generation {
            Ok(state.handle_is_out())
        } else {
            Err(self.shared.stale(id, state.generation()))
        }
    }

    /// Whether neither a handle nor a hold keeps the buffer: of one that is retained, whether [`PoolCache::reclaim`] would
    /// bring it home.
    pub fn is_idle(&self, id: BufId) -> Result<bool, BufIdError> {
        let state = self.shared.slot_of(id)?.state.read();
        if state.is_live() && state.generation() == id.generation {
            Ok(!state.handle_is_out() && state.holds() == 0)
        } else {
            Err(self.shared.stale(id, state.generation()))
        }
    }

    /// Free buffers at hand.
    pub fn cached(&self) -> usize {
        self.home.len()
    }

    /// Ends a change of state made by id; `false` if the buffer is quarantined by it.
    #[inline]
    fn settle(&mut self, id: BufId, outcome: Outcome) -> bool {
        match outcome {
            Outcome::Kept => true,
            Outcome::Free => {
                let reference = Arc::clone(&self.shared);
                self.bring_home(id.index, reference)
            }
        }
    }

    /// `false` if the buffer is unfit and quarantined.
    #[inline]
    fn bring_home(&mut self, index: u32, reference: Arc<Shared>) -> bool {
        if !self.shared.is_fit(index) {
            return false;
        }
        self.home.push(index);
        self.references.push(reference);
        if self.home.len() > self.shared.config().cache_size {
            self.spill();
        }
        true
    }

    /// Half a cache goes to or comes from the depot at once, so that a lcore that swings about the limit does not go
    /// there each time.
    fn batch(&self) -> usize {
        (self.shared.config().cache_size / 2).max(1)
    }

    #[cold]
    fn refill(&mut self) -> bool {
        let batch = self.batch();
        let home = &mut self.home;
        let got = self.shared.depot.pop_many(batch, |index| home.push(index));
        self.references
            .extend((0..got).map(|_| Arc::clone(&self.shared)));
        got > 0
    }

    /// The buffers used longest ago go first: those on top are warm.
    #[cold]
    fn spill(&mut self) {
        let batch = self.batch().min(self.home.len());
        self.shared.depot.push_many(self.home.drain(..batch));
        self.references.truncate(self.home.len());
    }
}

impl Drop for PoolCache {
    fn drop(&mut self) {
        self.shared.depot.push_many(self.home.drain(..));
        self.shared.free_cache(self.number);
    }
}

impl fmt::Debug for PoolCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolCache")
            .field("number", &self.number)
            .field("cached", &self.home.len())
            .finish()
    }
}
