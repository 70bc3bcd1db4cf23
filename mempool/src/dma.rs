//! Bytes that a peer, a device or another thread can write at the same time.
//!
//! Unsafe because such bytes must never be behind a `&[u8]` or `&mut [u8]`: they are viewed as atomics in place,
//! and this is where an address becomes a slice of them. Copies are relaxed atomics of eight bytes with a byte head
//! and tail. A copy that races with a peer's store may be torn between words: it returns some mixture of old and
//! new.
//!
//! What this relies on: where one copy begins or ends inside a word that a racing one takes whole (a peer's write of three
//! bytes against a read of that word), unsynchronised atomics of one and of eight bytes meet. Rust's documentation of
//! atomics calls that undefined unless both only load. So there the file leaves the language, as vm-memory's
//! `VolatileSlice` does, and relies on the hardware: on every supported processor each of these accesses is one plain load
//! or store, which leaves each byte old or new, and today's compilers emit relaxed atomics as they are written.

use core::fmt;
use core::marker::PhantomData;
use core::ptr::NonNull;
use core::slice;

use crate::error::{AtomicError, RangeError};
use crate::sync::mapped::{AtomicU8, AtomicU64, Ordering};
use crate::sys::Mapping;

const WORD_BYTES: usize = 8;
const WORDS_A_BLOCK: usize = 8;
const BLOCK_BYTES: usize = WORD_BYTES * WORDS_A_BLOCK;

/// A range of an arena or a segment. Copying the handle copies no bytes. Usable from any thread.
///
/// Every method checks its bounds before it touches a byte.
#[derive(Clone, Copy)]
pub struct DmaSlice<'a> {
    start: NonNull<u8>,
    len: usize,
    memory: PhantomData<&'a Mapping>,
}

/// A slice cut at the eight-byte boundaries of its addresses.
struct Parts<'a> {
    head: &'a [AtomicU8],
    words: &'a [AtomicU64],
    tail: &'a [AtomicU8],
}

// SAFETY: the handle stands for a borrow of a `Mapping`, which is `Sync`; all access through it is atomic.
unsafe impl Send for DmaSlice<'_> {}
// SAFETY: as above; no method needs exclusive access.
unsafe impl Sync for DmaSlice<'_> {}

impl<'a> DmaSlice<'a> {
    pub(crate) fn of(mapping: &'a Mapping) -> DmaSlice<'a> {
        DmaSlice {
            start: mapping.start(),
            len: mapping.bytes(),
            memory: PhantomData,
        }
    }

    /// Bytes of the slice.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the slice has no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The part `offset..offset + len`.
    #[inline]
    pub fn slice(&self, offset: usize, len: usize) -> Result<DmaSlice<'a>, RangeError> {
        self.check(offset, len)?;
        // SAFETY: `offset` is at most `self.len`, which lies inside one mapping.
        let start = unsafe { self.start.add(offset) };
        Ok(DmaSlice {
            start,
            len,
            memory: PhantomData,
        })
    }

    /// Copies the first `sink.len()` bytes into private memory.
    #[inline(always)]
    pub fn read_into(&self, sink: &mut [u8]) -> Result<(), RangeError> {
        let part = self.slice(0, sink.len())?;
        if let Some(words) = part.whole_words() {
            load_words(words, sink);
            return Ok(());
        }
        let parts = part.parts();
        let (head, rest) = sink.split_at_mut(parts.head.len());
        let (middle, tail) = rest.split_at_mut(parts.words.len() * WORD_BYTES);
        load_bytes(parts.head, head);
        load_words(parts.words, middle);
        load_bytes(parts.tail, tail);
        Ok(())
    }

    /// Copies private memory over the first `source.len()` bytes.
    #[inline(always)]
    pub fn write_from(&self, source: &[u8]) -> Result<(), RangeError> {
        let part = self.slice(0, source.len())?;
        if let Some(words) = part.whole_words() {
            store_words(words, source);
            return Ok(());
        }
        let parts = part.parts();
        let (head, rest) = source.split_at(parts.head.len());
        let (middle, tail) = rest.split_at(parts.words.len() * WORD_BYTES);
        store_bytes(parts.head, head);
        store_words(parts.words, middle);
        store_bytes(parts.tail, tail);
        Ok(())
    }

    /// Copies the whole slice over the first bytes of `sink`. Where the two overlap, what arrives is unspecified.
    #[inline(always)]
    pub fn copy_to(&self, sink: DmaSlice<'_>) -> Result<(), RangeError> {
        let sink = sink.slice(0, self.len)?;
        if let (Some(source), Some(sink)) = (self.whole_words(), sink.whole_words()) {
            copy_words(source, sink);
            return Ok(());
        }
        self.copy_parts_to(sink)
    }

    /// What is not whole words on both sides.
    fn copy_parts_to(&self, sink: DmaSlice<'_>) -> Result<(), RangeError> {
        if self.misalignment() == sink.misalignment() {
            let (source, sink) = (self.parts(), sink.parts());
            copy_bytes(source.head, sink.head);
            copy_words(source.words, sink.words);
            copy_bytes(source.tail, sink.tail);
            Ok(())
        } else {
            self.copy_through_private(sink)
        }
    }

    /// Stores `value` in every byte.
    #[inline]
    pub fn fill(&self, value: u8) {
        let parts = self.parts();
        let word = u64::from_ne_bytes([value; WORD_BYTES]);
        parts
            .head
            .iter()
            .for_each(|byte| byte.store(value, Ordering::Relaxed));
        let (blocks, rest) = parts.words.as_chunks::<WORDS_A_BLOCK>();
        for block in blocks {
            block
                .iter()
                .for_each(|cell| cell.store(word, Ordering::Relaxed));
        }
        rest.iter()
            .for_each(|cell| cell.store(word, Ordering::Relaxed));
        parts
            .tail
            .iter()
            .for_each(|byte| byte.store(value, Ordering::Relaxed));
    }

    /// Stores zero in every byte.
    #[inline]
    pub fn zero(&self) {
        self.fill(0);
    }

    /// The word at `offset`, with acquire order.
    #[inline]
    pub fn load_u64(&self, offset: usize) -> Result<u64, AtomicError> {
        Ok(self.word(offset)?.load(Ordering::Acquire))
    }

    /// Stores the word at `offset`, with release order.
    #[inline]
    pub fn store_u64(&self, offset: usize, value: u64) -> Result<(), AtomicError> {
        self.word(offset)?.store(value, Ordering::Release);
        Ok(())
    }

    /// Adds to the word at `offset`, wrapping; returns what was there before.
    #[inline]
    pub fn fetch_add_u64(&self, offset: usize, addend: u64) -> Result<u64, AtomicError> {
        Ok(self.word(offset)?.fetch_add(addend, Ordering::AcqRel))
    }

    /// Stores `new` at `offset` if `expected` is there; returns what was there before, as RDMA's compare-and-swap.
    #[inline]
    pub fn compare_exchange_u64(
        &self,
        offset: usize,
        expected: u64,
        new: u64,
    ) -> Result<u64, AtomicError> {
        let word = self.word(offset)?;
        let before = word.compare_exchange(expected, new, Ordering::AcqRel, Ordering::Acquire);
        Ok(before.unwrap_or_else(|found| found))
    }

    /// Whether the slice is exactly these words, which are looked at all and once each.
    #[inline]
    pub(crate) fn is_words<const N: usize>(&self, expected: &[u64; N]) -> bool {
        let Some(words) = self.whole_words() else {
            return false;
        };
        let Ok(words) = <&[AtomicU64; N]>::try_from(words) else {
            return false;
        };
        let pairs = words.iter().zip(expected);
        pairs.fold(0, |differs, (word, expected)| {
            differs | (word.load(Ordering::Relaxed) ^ expected)
        }) == 0
    }

    /// Offset of the first byte that differs from `expected`, over the first `expected.len()` bytes.
    pub fn first_difference(&self, expected: &[u8]) -> Result<Option<usize>, RangeError> {
        self.check(0, expected.len())?;
        let mut block = [0; BLOCK_BYTES];
        for (number, expected) in expected.chunks(BLOCK_BYTES).enumerate() {
            let found = &mut block[..expected.len()];
            self.slice(number * BLOCK_BYTES, found.len())?
                .read_into(found)?;
            if let Some(at) = found
                .iter()
                .zip(expected)
                .position(|(found, expected)| found != expected)
            {
                return Ok(Some(number * BLOCK_BYTES + at));
            }
        }
        Ok(None)
    }

    /// Offset of the first byte that is not `value`.
    pub fn first_not(&self, value: u8) -> Option<usize> {
        let parts = self.parts();
        let word = u64::from_ne_bytes([value; WORD_BYTES]);
        if let Some(at) = position_not(parts.head, value) {
            return Some(at);
        }
        let mut at = parts.head.len();
        for cell in parts.words {
            let found = cell.load(Ordering::Relaxed);
            if found != word {
                // Of the word that was loaded: a second load could find it repaired.
                return found
                    .to_ne_bytes()
                    .iter()
                    .position(|byte| *byte != value)
                    .map(|byte| at + byte);
            }
            at += WORD_BYTES;
        }
        position_not(parts.tail, value).map(|byte| at + byte)
    }

    #[inline]
    fn check(&self, offset: usize, len: usize) -> Result<(), RangeError> {
        if offset <= self.len && len <= self.len - offset {
            Ok(())
        } else {
            Err(RangeError {
                offset,
                len,
                limit: self.len,
            })
        }
    }

    #[inline]
    fn misalignment(&self) -> usize {
        self.start.as_ptr() as usize % WORD_BYTES
    }

    /// Source and sink have their word boundaries at different bytes, so a word of one is no word of the other. The
    /// private bytes in between can be loaded at any address.
    fn copy_through_private(&self, sink: DmaSlice<'_>) -> Result<(), RangeError> {
        let mut private = [0; 8 * BLOCK_BYTES];
        let mut done = 0;
        while done < self.len {
            let len = (self.len - done).min(private.len());
            let chunk = &mut private[..len];
            self.slice(done, len)?.read_into(chunk)?;
            sink.slice(done, len)?.write_from(chunk)?;
            done += len;
        }
        Ok(())
    }

    #[inline]
    fn word(&self, offset: usize) -> Result<&'a AtomicU64, AtomicError> {
        let word = self.slice(offset, WORD_BYTES)?;
        if word.misalignment() != 0 {
            return Err(AtomicError::Misaligned {
                offset,
                address: word.start.as_ptr() as u64,
            });
        }
        Ok(&word.parts().words[0])
    }

    /// The slice as words, if it is whole ones: the common case, which needs neither head nor tail.
    #[inline(always)]
    fn whole_words(&self) -> Option<&'a [AtomicU64]> {
        if !(self.start.as_ptr() as usize | self.len).is_multiple_of(WORD_BYTES) {
            return None;
        }
        let words = self.start.as_ptr().cast();
        // SAFETY: the bytes are mapped for `'a`, their address and their number are multiples of eight, and nothing but atomics ever refers to them.
        Some(unsafe { slice::from_raw_parts(words, self.len / WORD_BYTES) })
    }

    #[inline]
    fn parts(&self) -> Parts<'a> {
        let to_boundary = (WORD_BYTES - self.misalignment()) % WORD_BYTES;
        if self.len < to_boundary + WORD_BYTES {
            // No whole word, and then possibly no aligned address to begin an empty slice of words at.
            return Parts {
                // SAFETY: the bytes are mapped for `'a`, and nothing but atomics ever refers to them.
                head: unsafe { slice::from_raw_parts(self.start.as_ptr().cast(), self.len) },
                words: &[],
                tail: &[],
            };
        }
        let words_len = (self.len - to_boundary) / WORD_BYTES;
        let tail_len = (self.len - to_boundary) % WORD_BYTES;
        // SAFETY: `to_boundary` is below `len`, inside the mapping that `'a` borrows.
        let words = unsafe { self.start.add(to_boundary) };
        // SAFETY: head and words together are at most `len`.
        let tail = unsafe { words.add(words_len * WORD_BYTES) };
        Parts {
            // SAFETY: as the head above.
            head: unsafe { slice::from_raw_parts(self.start.as_ptr().cast(), to_boundary) },
            // SAFETY: as above, and the head ends where the address is a multiple of eight.
            words: unsafe { slice::from_raw_parts(words.as_ptr().cast(), words_len) },
            // SAFETY: as the head above.
            tail: unsafe { slice::from_raw_parts(tail.as_ptr().cast(), tail_len) },
        }
    }
}

impl fmt::Debug for DmaSlice<'_> {
    /// Shows where the bytes are, not what they are: they may be changing.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DmaSlice")
            .field("address", &self.start)
            .field("len", &self.len)
            .finish()
    }
}

#[inline]
fn load_bytes(source: &[AtomicU8], sink: &mut [u8]) {
    for (byte, cell) in sink.iter_mut().zip(source) {
        *byte = cell.load(Ordering::Relaxed);
    }
}

#[inline]
fn store_bytes(sink: &[AtomicU8], source: &[u8]) {
    for (cell, byte) in sink.iter().zip(source) {
        cell.store(*byte, Ordering::Relaxed);
    }
}

#[inline]
fn copy_bytes(source: &[AtomicU8], sink: &[AtomicU8]) {
    for (to, from) in sink.iter().zip(source) {
        to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// Blocks of a fixed size are unrolled by the compiler, which never merges atomics by itself.
#[inline]
fn load_words(source: &[AtomicU64], sink: &mut [u8]) {
    let (blocks, rest) = source.as_chunks::<WORDS_A_BLOCK>();
    let (sink, _) = sink.as_chunks_mut::<WORD_BYTES>();
    let (sink_blocks, sink_rest) = sink.as_chunks_mut::<WORDS_A_BLOCK>();
    for (block, to) in blocks.iter().zip(sink_blocks) {
        for (to, cell) in to.iter_mut().zip(block) {
            *to = cell.load(Ordering::Relaxed).to_ne_bytes();
        }
    }
    for (to, cell) in sink_rest.iter_mut().zip(rest) {
        *to = cell.load(Ordering::Relaxed).to_ne_bytes();
    }
}

#[inline]
fn store_words(sink: &[AtomicU64], source: &[u8]) {
    let (blocks, rest) = sink.as_chunks::<WORDS_A_BLOCK>();
    let (source, _) = source.as_chunks::<WORD_BYTES>();
    let (source_blocks, source_rest) = source.as_chunks::<WORDS_A_BLOCK>();
    for (block, from) in blocks.iter().zip(source_blocks) {
        for (cell, from) in block.iter().zip(from) {
            cell.store(u64::from_ne_bytes(*from), Ordering::Relaxed);
        }
    }
    for (cell, from) in rest.iter().zip(source_rest) {
        cell.store(u64::from_ne_bytes(*from), Ordering::Relaxed);
    }
}

#[inline]
fn copy_words(source: &[AtomicU64], sink: &[AtomicU64]) {
    let (blocks, rest) = source.as_chunks::<WORDS_A_BLOCK>();
    let (sink_blocks, sink_rest) = sink.as_chunks::<WORDS_A_BLOCK>();
    for (from, to) in blocks.iter().zip(sink_blocks) {
        for (to, from) in to.iter().zip(from) {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }
    for (to, from) in sink_rest.iter().zip(rest) {
        to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

fn position_not(bytes: &[AtomicU8], value: u8) -> Option<usize> {
    bytes
        .iter()
        .position(|byte| byte.load(Ordering::Relaxed) != value)
}
