//! A buffer's handle and its id.

use core::fmt;

use crate::dma::DmaSlice;
use crate::error::RangeError;
use crate::shared::Shared;
use crate::state::Outcome;
use crate::sync::Arc;

/// Names a buffer without keeping it: index in its pool and generation. Once the buffer has gone home the id is stale
/// and every call refuses it.
///
/// The generation has 32 bits: an id kept while its buffer is given out 2^32 times would be taken for the current one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufId {
    /// Index in the pool.
    pub index: u32,
    /// How often the buffer had gone home before.
    pub generation: u32,
}

/// The one handle of a buffer. Dropped on any thread; the buffer then goes home if nothing else keeps it.
///
/// A handle keeps the arena mapped, whatever becomes of pool and engine.
///
/// ```compile_fail,E0382
/// # fn twice(cache: &mut keyfence_mempool::PoolCache, buf: keyfence_mempool::Buf) {
/// let _ = cache.put(buf);
/// let _ = cache.put(buf);
/// # }
/// ```
///
/// Once is right:
///
/// ```
/// # fn once(cache: &mut keyfence_mempool::PoolCache, buf: keyfence_mempool::Buf) {
/// let _ = cache.put(buf);
/// # }
/// ```
pub struct Buf {
    /// Gone only while a put takes the handle apart.
    core: Option<Core>,
}

/// What handle and cache pass to and fro: a buffer and the reference that keeps its pool.
pub(crate) struct Core {
    pub(crate) shared: Arc<Shared>,
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// Why an id was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BufIdError {
    /// The pool has no buffer of this index.
    #[error("buffer {index}: the pool has {count}, from 0")]
    NoSuchIndex {
        /// Index of the id.
        index: u32,
        /// Buffers of the pool.
        count: usize,
    },
    /// The buffer has gone home since, or is quarantined.
    #[error("buffer {} of generation {} is stale: it is at generation {generation} now", .id.index, .id.generation)]
    Stale {
        /// The id.
        id: BufId,
        /// Generation of the buffer now.
        generation: u32,
    },
}

/// Why an offset names no buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LookupError {
    /// The offset is outside the pool.
    #[error("offset {offset} is outside the pool")]
    OutsidePool {
        /// The offset.
        offset: usize,
    },
    /// The offset is inside a buffer or behind it.
    #[error("no buffer begins at offset {offset}, the one before begins at {nearest}")]
    NotAStart {
        /// The offset.
        offset: usize,
        /// Start of the buffer it falls into.
        nearest: usize,
    },
    /// The buffer is free or quarantined.
    #[error("buffer {index} is not in use")]
    NotInUse {
        /// Index of the buffer.
        index: u32,
    },
}

impl Buf {
    #[inline]
    pub(crate) fn new(core: Core) -> Buf {
        Buf { core: Some(core) }
    }

    /// Takes the handle apart; its state word must then be told.
    #[inline]
    pub(crate) fn into_core(mut self) -> Core {
        self.core.take().expect("a handle is taken apart once")
    }

    /// The buffer's id.
    #[inline]
    pub fn id(&self) -> BufId {
        let core = self.core();
        BufId {
            index: core.index,
            generation: core.generation,
        }
    }

    /// Who the buffer was given out to.
    #[inline]
    pub fn owner(&self) -> u32 {
        let core = self.core();
        core.shared.slot(core.index).owner()
    }

    /// Offset of the first byte in the arena.
    #[inline(always)]
    pub fn offset(&self) -> usize {
        let core = self.core();
        core.shared.offset(core.index)
    }

    /// Address of the first byte.
    #[inline(always)]
    pub fn address(&self) -> u64 {
        self.core().shared.arena().address() + self.offset() as u64
    }

    /// Bytes of the buffer.
    #[inline(always)]
    pub fn capacity(&self) -> usize {
        self.core().shared.config().buf_bytes
    }

    /// The buffer's bytes, all of them.
    #[inline(always)]
    pub fn dma(&self) -> DmaSlice<'_> {
        let core = self.core();
        core.shared.dma(core.index)
    }

    /// Copies `source` into the buffer at `offset`.
    #[inline(always)]
    pub fn write_at(&self, offset: usize, source: &[u8]) -> Result<(), RangeError> {
        self.dma().slice(offset, source.len())?.write_from(source)
    }

    /// Copies bytes of the buffer at `offset` into all of `sink`.
    #[inline(always)]
    pub fn read_at(&self, offset: usize, sink: &mut [u8]) -> Result<(), RangeError> {
        self.dma().slice(offset, sink.len())?.read_into(sink)
    }

    #[inline]
    pub(crate) fn core(&self) -> &Core {
        self.core
            .as_ref()
            .expect("a handle has its core until it is taken apart")
    }
}

impl Drop for Buf {
    // Inlined so that a put, which has emptied the handle, pays nothing for its end.
    #[inline]
    fn drop(&mut self) {
        if let Some(core) = self.core.take() {
            core.end();
        }
    }
}

impl Core {
    #[inline(never)]
    fn end(self) {
        let slot = self.shared.slot(self.index);
        if slot.state.drop_handle(self.generation) == Outcome::Free {
            self.shared.bring_home(self.index);
        }
    }
}

impl fmt::Debug for Buf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Buf");
        if let Some(core) = &self.core {
            shown
                .field("index", &core.index)
                .field("generation", &core.generation);
        }
        shown.finish()
    }
}
