//! One direction of messages through a segment: a ring of slots, a ring of payload bytes ("chunks"), and one counter that comes back.
//!
//! The counter says how many slots the reader has finished. It is at once the acknowledgement, the credit for slots, and, since the
//! writer remembers where the payload of each slot ends, the credit for chunk bytes. Payload is written before its slot is published and read
//! before its slot is counted, so slot and counter order the bytes too. What comes from the segment may be a lie: a counter that
//! goes backwards or ahead is [`Malformed`]; lengths are the caller's to check, and no length can reach outside the ring.

use core::ops::Range;

use keyfence_mempool::arena::Segment;
use keyfence_mempool::dma::DmaSlice;
use keyfence_mempool::ring::mapped::MappedWords;
use keyfence_mempool::ring::words::{Counter, SlotReader, SlotWriter};
use keyfence_mempool::sync::Arc;

use super::wire::{BODY_WORDS, Malformed};

/// The longest piece that moves between two key checks.
pub(crate) const SLICE_BYTES: usize = 64 * 1024;
/// Payload in a chunk ring begins at cache lines.
pub(crate) const LINE_BYTES: usize = 64;
/// Slots that only a refusal may use, so that it never waits.
const RESERVED_SLOTS: usize = 1;
/// Unsolicited acknowledgements are published in batches of this many slots.
const LAZY_SLOTS: u64 = 16;

/// Where one stream lies in a segment.
#[derive(Clone, Debug)]
pub(crate) struct StreamPlace {
    pub(crate) slots: Range<usize>,
    pub(crate) counter: Range<usize>,
    /// Length a power of two, at least [`SLICE_BYTES`].
    pub(crate) chunk: Range<usize>,
}

/// The half that writes.
#[derive(Debug)]
pub(crate) struct Outbound {
    writer: SlotWriter<MappedWords>,
    finished: Counter<MappedWords>,
    chunks: Chunks,
    /// Slots that the reader has finished, as last seen.
    seen: u64,
    /// Chunk bytes written when each slot was.
    chunk_ends: Box<[u64]>,
    written_bytes: u64,
    freed_bytes: u64,
}

/// The half that reads.
#[derive(Debug)]
pub(crate) struct Inbound {
    reader: SlotReader<MappedWords>,
    finished: Counter<MappedWords>,
    chunks: Chunks,
    read_bytes: u64,
    published: u64,
    /// The writer waits for what has been finished.
    prompt: bool,
}

/// The bytes of a chunk ring.
#[derive(Debug)]
struct Chunks {
    segment: Arc<Segment>,
    start: usize,
    bytes: usize,
}

/// A piece of a chunk ring: the bytes before its end and, if it goes on behind that, those at its start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chunk<'a> {
    front: DmaSlice<'a>,
    back: Option<DmaSlice<'a>>,
}

impl Outbound {
    pub(crate) fn new(segment: &Arc<Segment>, place: &StreamPlace) -> Self {
        let writer = SlotWriter::new(words(segment, &place.slots)).expect("whole slots");
        assert!(writer.slots().is_power_of_two());
        Self {
            chunk_ends: vec![0; writer.slots()].into_boxed_slice(),
            writer,
            finished: Counter::new(words(segment, &place.counter)).expect("one line"),
            chunks: Chunks::new(segment, &place.chunk),
            seen: 0,
            written_bytes: 0,
            freed_bytes: 0,
        }
    }

    /// Slots written since the start.
    #[inline]
    pub(crate) fn written(&self) -> u64 {
        self.writer.written()
    }

    /// Looks how many slots the reader has finished since the start.
    #[inline]
    pub(crate) fn finished(&mut self) -> Result<u64, Malformed> {
        let finished = self.finished.read();
        if finished == self.seen {
            return Ok(finished);
        }
        if finished < self.seen || finished > self.writer.written() {
            return Err(Malformed);
        }
        self.seen = finished;
        let last = (finished - 1) as usize & (self.chunk_ends.len() - 1);
        self.freed_bytes = self.chunk_ends[last];
        Ok(finished)
    }

    /// Whether a slot with `payload` bytes in the chunk ring can be written, as of the last look.
    #[inline(always)]
    pub(crate) fn has_room(&self, payload: usize) -> bool {
        let used = (self.written_bytes - self.freed_bytes) as usize;
        self.writer.room(self.seen) > RESERVED_SLOTS && padded(payload) <= self.chunks.bytes - used
    }

    /// The same, with a fresh look if the last one is not enough. A counter that lies is left to the next visit.
    #[inline(always)]
    pub(crate) fn make_room(&mut self, payload: usize) -> bool {
        self.has_room(payload) || (self.finished().is_ok() && self.has_room(payload))
    }

    /// Where the payload of the next slot goes; `len` at most [`SLICE_BYTES`] and room for it.
    #[inline]
    pub(crate) fn chunk(&self, len: usize) -> Chunk<'_> {
        self.chunks.at(self.written_bytes, len)
    }

    /// Publishes a slot, and `payload` bytes of the chunk ring with it.
    #[inline(always)]
    pub(crate) fn write(&mut self, (header, body): (u64, [u64; BODY_WORDS]), payload: usize) {
        self.written_bytes += padded(payload) as u64;
        let slot = self.writer.written() as usize & (self.chunk_ends.len() - 1);
        self.chunk_ends[slot] = self.written_bytes;
        let written = self.writer.try_write(self.seen, header, &body);
        assert!(
            written.is_ok(),
            "a slot was written without room: {written:?}"
        );
    }
}

impl Inbound {
    pub(crate) fn new(segment: &Arc<Segment>, place: &StreamPlace) -> Self {
        Self {
            reader: SlotReader::new(words(segment, &place.slots)).expect("whole slots"),
            finished: Counter::new(words(segment, &place.counter)).expect("one line"),
            chunks: Chunks::new(segment, &place.chunk),
            read_bytes: 0,
            published: 0,
            prompt: false,
        }
    }

    /// A private copy of the next slot.
    #[inline]
    pub(crate) fn peek(&mut self) -> Option<[u64; 8]> {
        self.reader.peek()
    }

    /// Asks for the line of a slot further on.
    #[inline]
    pub(crate) fn prefetch(&self, ahead: usize) {
        self.reader.prefetch(ahead);
    }

    /// The payload of the slot just peeked; `len` at most [`SLICE_BYTES`].
    #[inline]
    pub(crate) fn chunk(&self, len: usize) -> Chunk<'_> {
        self.chunks.at(self.read_bytes, len)
    }

    /// Finishes the slot just peeked and its `payload` bytes of the chunk ring.
    #[inline]
    pub(crate) fn finish(&mut self, payload: usize, prompt: bool) {
        self.reader.advance();
        self.read_bytes += padded(payload) as u64;
        self.prompt |= prompt;
    }

    /// Publishes what is not so.
    #[cfg(test)]
    pub(crate) fn lie(&mut self, finished: u64) {
        self.finished.publish(finished);
    }

    /// Tells the writer what has been finished: at once if it waits or nothing else is to do, else every so many slots.
    #[inline]
    pub(crate) fn publish(&mut self, idle: bool) {
        let finished = self.reader.consumed();
        let unpublished = finished - self.published;
        if unpublished > 0 && (idle || self.prompt || unpublished >= LAZY_SLOTS) {
            self.finished.publish(finished);
            self.published = finished;
            self.prompt = false;
        }
    }
}

impl Chunks {
    fn new(segment: &Arc<Segment>, range: &Range<usize>) -> Self {
        assert!(range.len().is_power_of_two() && range.len() >= SLICE_BYTES);
        Self {
            segment: Arc::clone(segment),
            start: range.start,
            bytes: range.len(),
        }
    }

    #[inline(always)]
    fn at(&self, position: u64, len: usize) -> Chunk<'_> {
        assert!(len <= SLICE_BYTES, "a chunk is at most one slice");
        let from = position as usize & (self.bytes - 1);
        let front = len.min(self.bytes - from);
        let part = |offset, len| {
            let part = self.segment.dma(self.start + offset, len);
            part.expect("the chunk ring lies in its segment")
        };
        Chunk {
            front: part(from, front),
            back: (front < len).then(|| part(0, len - front)),
        }
    }
}

impl Chunk<'_> {
    /// Copies all of `source` to `at`.
    #[inline(always)]
    pub(crate) fn write(&self, at: usize, source: DmaSlice<'_>) {
        self.each(at, source.len(), |piece, done| {
            let copied = source
                .slice(done, piece.len())
                .and_then(|source| source.copy_to(piece));
            copied.expect("both pieces have this length");
        });
    }

    /// Copies private bytes to `at`.
    #[inline]
    pub(crate) fn write_bytes(&self, at: usize, source: &[u8]) {
        self.each(at, source.len(), |piece, done| {
            let copied = piece.write_from(&source[done..done + piece.len()]);
            copied.expect("both pieces have this length");
        });
    }

    /// Copies the bytes at `at` over all of `sink`.
    #[inline(always)]
    pub(crate) fn read(&self, at: usize, sink: DmaSlice<'_>) {
        self.each(at, sink.len(), |piece, done| {
            let copied = sink
                .slice(done, piece.len())
                .and_then(|sink| piece.copy_to(sink));
            copied.expect("both pieces have this length");
        });
    }

    #[inline(always)]
    fn each(&self, at: usize, len: usize, mut copy: impl FnMut(DmaSlice<'_>, usize)) {
        match self.back {
            None => copy(piece(self.front, at, len), 0),
            Some(back) => self.each_of_two(back, at, len, &mut copy),
        }
    }

    fn each_of_two(
        &self,
        back: DmaSlice<'_>,
        at: usize,
        len: usize,
        copy: &mut impl FnMut(DmaSlice<'_>, usize),
    ) {
        let front_len = self.front.len();
        let in_front = len.min(front_len.saturating_sub(at));
        if in_front > 0 {
            copy(piece(self.front, at, in_front), 0);
        }
        if in_front < len {
            let at = at.saturating_sub(front_len);
            copy(piece(back, at, len - in_front), in_front);
        }
    }
}

#[inline]
fn piece(of: DmaSlice<'_>, at: usize, len: usize) -> DmaSlice<'_> {
    of.slice(at, len).expect("a piece lies in its chunk")
}

const fn padded(payload: usize) -> usize {
    payload.next_multiple_of(LINE_BYTES)
}

fn words(segment: &Arc<Segment>, range: &Range<usize>) -> MappedWords {
    MappedWords::in_segment(segment, range.clone()).expect("whole lines of the segment")
}
