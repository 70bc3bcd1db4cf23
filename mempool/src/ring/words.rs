//! 64-byte slots over memory that two parties share, with the sequence inside each slot.
//!
//! There is no shared index: a slot says itself which lap of the ring it belongs to, so a message costs one cache
//! line. Word 0 of a slot is its header: 48 bits are the caller's, the top 16 are the lap. Laps count from 1 and skip
//! 0, so zeroed memory is an empty ring. Whether there is room is the caller's knowledge: it hands in how many slots
//! the reader has consumed, a count that travels back by a [`Counter`] or inside other messages.
//!
//! Whatever is read from shared memory may be a peer's lie. A reader copies a slot into private memory once, and its
//! caller checks the copy.

use crate::sync::{Arc, AtomicU64, Ordering};

/// Words of a slot: one cache line.
pub const SLOT_WORDS: usize = 8;
/// Bits of a header that are the caller's.
pub const HEADER_BITS: u32 = 48;
const HEADER_MASK: u64 = (1 << HEADER_BITS) - 1;

/// Where a ring's words are.
///
/// The slice must be the same at each call.
pub trait Words {
    /// All words, the first at a multiple of 64 bytes if cache lines matter.
    fn as_slice(&self) -> &[AtomicU64];

    /// The word at `index`.
    ///
    /// # Panics
    /// If `index` is not below [`Words::len`].
    fn word(&self, index: usize) -> &AtomicU64 {
        &self.as_slice()[index]
    }

    /// How many words there are.
    fn len(&self) -> usize {
        self.as_slice().len()
    }

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Asks for the cache line of the word at `index`; a wish only.
    fn prefetch(&self, _index: usize) {}
}

/// Why a ring cannot be laid over some words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "{words} words are no whole number of slots of {SLOT_WORDS} words, of which there must be at least one"
)]
pub struct NotSlots {
    /// Words there are.
    pub words: usize,
}

/// Why a slot was not written. Nothing has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// The reader has to consume a slot first.
    #[error("all {slots} slots are in use")]
    Full {
        /// Slots of the ring.
        slots: usize,
    },
    /// The reader claims to have consumed what was never written, or fewer than it can have.
    #[error(
        "the reader claims {consumed} slots consumed of {written} written in a ring of {slots}"
    )]
    BadConsumed {
        /// What the reader claims.
        consumed: u64,
        /// Slots written so far.
        written: u64,
        /// Slots of the ring.
        slots: usize,
    },
    /// The header does not fit.
    #[error("header {header:#x} is wider than {HEADER_BITS} bits")]
    HeaderTooWide {
        /// The header.
        header: u64,
    },
}

/// The half that writes slots.
#[derive(Debug)]
pub struct SlotWriter<W> {
    words: W,
    place: Place,
    written: u64,
}

/// The half that reads slots.
#[derive(Debug)]
pub struct SlotReader<W> {
    words: W,
    place: Place,
    consumed: u64,
    /// Whether the slot at `place` has been seen full.
    peeked: bool,
}

/// One cumulative count in a cache line of its own, written by one party and read by the other.
#[derive(Debug)]
pub struct Counter<W> {
    words: W,
}

/// A slot and the lap it is visited in.
#[derive(Debug, Clone, Copy)]
struct Place {
    slot: usize,
    slots: usize,
    lap: u16,
}

impl<W: Words> SlotWriter<W> {
    /// A writer at the front of zeroed words.
    pub fn new(words: W) -> Result<SlotWriter<W>, NotSlots> {
        let place = Place::first(words.len())?;
        Ok(SlotWriter {
            words,
            place,
            written: 0,
        })
    }

    /// Slots of the ring.
    pub fn slots(&self) -> usize {
        self.place.slots
    }

    /// Slots written since the start.
    #[inline]
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Slots that can be written now, given that the reader has consumed `consumed` since the start. Zero if the count
    /// makes no sense.
    #[inline]
    pub fn room(&self, consumed: u64) -> usize {
        let used = self.written.wrapping_sub(consumed);
        (self.place.slots as u64).saturating_sub(used) as usize
    }

    /// Writes the next slot: `body` first, then the header with the lap, which is what a reader waits for.
    /// `consumed` is the reader's count since the start, and need not be recent.
    #[inline]
    pub fn try_write(
        &mut self,
        consumed: u64,
        header: u64,
        body: &[u64; SLOT_WORDS - 1],
    ) -> Result<(), WriteError> {
        if header > HEADER_MASK {
            return Err(WriteError::HeaderTooWide { header });
        }
        let slots = self.place.slots;
        let used = self.written.wrapping_sub(consumed);
        if used >= slots as u64 {
            return Err(if used == slots as u64 {
                WriteError::Full { slots }
            } else {
                WriteError::BadConsumed {
                    consumed,
                    written: self.written,
                    slots,
                }
            });
        }
        let slot = slot_words(&self.words, self.place.slot);
        for (word, value) in slot[1..].iter().zip(body) {
            word.store(*value, Ordering::Relaxed);
        }
        slot[0].store(self.place.stamp() | header, Ordering::Release);
        self.place.step();
        self.written += 1;
        Ok(())
    }
}

impl<W: Words> SlotReader<W> {
    /// A reader at the front of zeroed words.
    pub fn new(words: W) -> Result<SlotReader<W>, NotSlots> {
        let place = Place::first(words.len())?;
        Ok(SlotReader {
            words,
            place,
            consumed: 0,
            peeked: false,
        })
    }

    /// Slots of the ring.
    pub fn slots(&self) -> usize {
        self.place.slots
    }

    /// Slots consumed since the start: what the writer has to learn.
    #[inline]
    pub fn consumed(&self) -> u64 {
        self.consumed
    }

    /// A private copy of the next slot, its header without the lap; `None` if the writer has not come there yet.
    /// Peeking again copies again, and a hostile writer may have changed the words: use one copy.
    #[inline]
    pub fn peek(&mut self) -> Option<[u64; SLOT_WORDS]> {
        let slot = slot_words(&self.words, self.place.slot);
        let header = slot[0].load(Ordering::Acquire);
        self.peeked = header & !HEADER_MASK == self.place.stamp();
        if !self.peeked {
            return None;
        }
        let mut copy = [header & HEADER_MASK; SLOT_WORDS];
        for (value, word) in copy[1..].iter_mut().zip(&slot[1..]) {
            *value = word.load(Ordering::Relaxed);
        }
        Some(copy)
    }

    /// Consumes the slot that the last [`SlotReader::peek`] showed.
    ///
    /// # Panics
    /// If the last peek showed none.
    #[inline]
    pub fn advance(&mut self) {
        assert!(self.peeked, "advance without a slot that peek has shown");
        self.peeked = false;
        self.place.step();
        self.consumed += 1;
    }

    /// Asks for the cache line of the slot `ahead` slots further on; worth it in bursts, 4 to 8 ahead.
    #[inline]
    pub fn prefetch(&self, ahead: usize) {
        let mut slot = self.place.slot + ahead;
        if slot >= self.place.slots {
            slot %= self.place.slots;
        }
        self.words.prefetch(slot * SLOT_WORDS);
    }
}

impl<W: Words> Counter<W> {
    /// A count in the first word of one cache line of words.
    pub fn new(words: W) -> Result<Counter<W>, NotSlots> {
        if words.len() == SLOT_WORDS {
            Ok(Counter { words })
        } else {
            Err(NotSlots { words: words.len() })
        }
    }

    /// Publishes the count; everything done before is visible to who reads it.
    #[inline]
    pub fn publish(&self, count: u64) {
        self.words.as_slice()[0].store(count, Ordering::Release);
    }

    /// The count last published. Over shared memory it may be anything: check it.
    #[inline]
    pub fn read(&self) -> u64 {
        self.words.as_slice()[0].load(Ordering::Acquire)
    }
}

impl Words for Vec<AtomicU64> {
    #[inline]
    fn as_slice(&self) -> &[AtomicU64] {
        self
    }
}

impl<W: Words> Words for Arc<W> {
    #[inline]
    fn as_slice(&self) -> &[AtomicU64] {
        W::as_slice(self)
    }

    #[inline]
    fn prefetch(&self, index: usize) {
        W::prefetch(self, index);
    }
}

impl Place {
    fn first(words: usize) -> Result<Place, NotSlots> {
        if words == 0 || !words.is_multiple_of(SLOT_WORDS) {
            return Err(NotSlots { words });
        }
        Ok(Place {
            slot: 0,
            slots: words / SLOT_WORDS,
            lap: 1,
        })
    }

    #[inline]
    fn stamp(self) -> u64 {
        u64::from(self.lap) << HEADER_BITS
    }

    #[inline]
    fn step(&mut self) {
        self.slot += 1;
        if self.slot == self.slots {
            self.slot = 0;
            // What is left in a slot is of the lap before, so 65,535 laps are told apart more than well enough.
            self.lap = if self.lap == u16::MAX {
                1
            } else {
                self.lap + 1
            };
        }
    }
}

#[inline]
fn slot_words<W: Words>(words: &W, slot: usize) -> &[AtomicU64; SLOT_WORDS] {
    let (slots, _) = words.as_slice().as_chunks::<SLOT_WORDS>();
    &slots[slot]
}
