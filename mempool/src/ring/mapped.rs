//! Words of a segment: the only place that turns an offset into an atomic that outlives a call.
//!
//! Unsafe because the words are reached by address, kept valid by a counted reference to the memory's owner; and
//! because a prefetch is an intrinsic.

use core::fmt;
use core::ops::Range;
use core::ptr::NonNull;
use core::slice;

use crate::arena::Segment;
use crate::error::RangeError;
use crate::ring::words::Words;
use crate::sync::{Arc, AtomicU64};

const LINE_BYTES: usize = 64;

/// Why a byte range cannot be used as words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MapWordsError {
    /// The range does not lie inside the memory.
    #[error(transparent)]
    Range(#[from] RangeError),
    /// Start or length is no multiple of a cache line.
    #[error(
        "bytes {start}..{end} are no whole cache lines: both ends must be multiples of {LINE_BYTES}"
    )]
    Misaligned {
        /// First byte.
        start: usize,
        /// One past the last byte.
        end: usize,
    },
}

/// Atomic words in a segment, which they keep mapped. Cloning gives a second view of the same words.
#[derive(Clone)]
pub struct MappedWords {
    start: NonNull<AtomicU64>,
    words: usize,
    _segment: Arc<Segment>,
}

// SAFETY: the words are atomics in memory that `_segment` keeps mapped; a segment can be used and dropped by any thread.
unsafe impl Send for MappedWords {}
// SAFETY: as above; a shared reference gives out shared references to atomics.
unsafe impl Sync for MappedWords {}

impl MappedWords {
    /// The words in `bytes` of a segment; both ends are multiples of 64.
    pub fn in_segment(
        segment: &Arc<Segment>,
        bytes: Range<usize>,
    ) -> Result<MappedWords, MapWordsError> {
        let (start, end) = (bytes.start, bytes.end);
        let limit = segment.mapping().bytes();
        if start > end || end > limit {
            return Err(RangeError {
                offset: start,
                len: end.saturating_sub(start),
                limit,
            }
            .into());
        }
        if start % LINE_BYTES != 0 || end % LINE_BYTES != 0 {
            return Err(MapWordsError::Misaligned { start, end });
        }
        // SAFETY: `start` is at most the mapping's size.
        let start = unsafe { segment.mapping().start().add(start) };
        Ok(MappedWords {
            start: start.cast(),
            words: bytes.len() / size_of::<AtomicU64>(),
            _segment: Arc::clone(segment),
        })
    }
}

impl Words for MappedWords {
    #[inline]
    fn as_slice(&self) -> &[AtomicU64] {
        // SAFETY: the words were checked to lie inside a mapping that `_segment` keeps; mappings begin at a page, so the
        // address is a multiple of 64. Nothing but atomics ever refers to these bytes.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.words) }
    }

    #[inline]
    fn prefetch(&self, index: usize) {
        #[cfg(target_arch = "x86_64")]
        if let Some(word) = self.as_slice().get(index) {
            use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            // SAFETY: a prefetch reads nothing and cannot fault, and every x86-64 processor has it.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(core::ptr::from_ref(word).cast()) };
        }
    }
}

impl fmt::Debug for MappedWords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MappedWords")
            .field("start", &self.start)
            .field("words", &self.words)
            .finish()
    }
}
