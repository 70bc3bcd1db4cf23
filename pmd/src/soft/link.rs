//! The segment of one connected pair of queue pairs, and its two ends.
//!
//! Four streams: the requests of each side, and the answers to them. Requests that wait for room never keep answers from being
//! taken, and answers are always taken, so the two sides cannot wait for each other. No offset in the segment is read from the segment:
//! both sides compute them from the geometry.

use core::ops::Range;

use keyfence_mempool::arena::Segment;
use keyfence_mempool::error::ArenaError;
use keyfence_mempool::ring::mapped::MappedWords;
use keyfence_mempool::ring::words::Counter;
use keyfence_mempool::sync::Arc;

use super::stream::{Inbound, LINE_BYTES, Outbound, StreamPlace};

const STREAMS: usize = 4;
const STATE_LINES: usize = 2;
/// What a side's state line says when its queue pair is in error. Never taken back.
const IN_ERROR: u64 = 1;

/// Which end of a link: the connecting queue pair or the accepting one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    Connector = 0,
    Acceptor = 1,
}

impl Side {
    const fn other(self) -> Self {
        match self {
            Self::Connector => Self::Acceptor,
            Self::Acceptor => Self::Connector,
        }
    }
}

/// A segment with its layout.
#[derive(Debug)]
pub(crate) struct Link {
    segment: Arc<Segment>,
    slot_bytes: usize,
    chunk_bytes: usize,
}

/// One side's streams and state lines. There is one `End` a side in a link's life.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) requests_out: Outbound,
    pub(crate) answers_in: Inbound,
    pub(crate) requests_in: Inbound,
    pub(crate) answers_out: Outbound,
    ours: Counter<MappedWords>,
    peers: Counter<MappedWords>,
}

impl Link {
    /// Maps a segment for streams of `slots` slots and `chunk_bytes` bytes of payload.
    pub(crate) fn map(slots: usize, chunk_bytes: usize) -> Result<Self, ArenaError> {
        let slot_bytes = slots * LINE_BYTES;
        let lines = (STREAMS + STATE_LINES) * LINE_BYTES;
        let bytes = lines + STREAMS * (slot_bytes + chunk_bytes);
        Ok(Self {
            segment: Arc::new(Segment::map(bytes)?),
            slot_bytes,
            chunk_bytes,
        })
    }

    /// Tells the peer of `side` that this side's queue pair is in error.
    pub(crate) fn mark_error(&self, side: Side) {
        self.state(side).publish(IN_ERROR);
    }

    /// The end of one side; the caller makes each once.
    pub(crate) fn end(&self, side: Side) -> End {
        let peer = side.other();
        let out = |stream| Outbound::new(&self.segment, &self.place(stream));
        let inn = |stream| Inbound::new(&self.segment, &self.place(stream));
        End {
            requests_out: out(requests_of(side)),
            answers_in: inn(answers_to(side)),
            requests_in: inn(requests_of(peer)),
            answers_out: out(answers_to(peer)),
            ours: self.state(side),
            peers: self.state(peer),
        }
    }

    fn state(&self, side: Side) -> Counter<MappedWords> {
        let words = MappedWords::in_segment(&self.segment, line(STREAMS + side as usize));
        Counter::new(words.expect("a state line lies in the segment")).expect("one line")
    }

    fn place(&self, stream: usize) -> StreamPlace {
        let slots = (STREAMS + STATE_LINES) * LINE_BYTES + stream * self.slot_bytes;
        let all_slots = (STREAMS + STATE_LINES) * LINE_BYTES + STREAMS * self.slot_bytes;
        let chunk = all_slots + stream * self.chunk_bytes;
        StreamPlace {
            slots: slots..slots + self.slot_bytes,
            counter: line(stream),
            chunk: chunk..chunk + self.chunk_bytes,
        }
    }
}

impl End {
    /// Tells the peer that this side's queue pair is in error.
    pub(crate) fn mark_error(&self) {
        self.ours.publish(IN_ERROR);
    }

    /// Whether the peer's queue pair answers no more. What it did before is visible to looks after this one.
    #[inline]
    pub(crate) fn peer_is_down(&self) -> bool {
        self.peers.read() != 0
    }
}

const fn requests_of(side: Side) -> usize {
    side as usize
}

const fn answers_to(side: Side) -> usize {
    2 + side as usize
}

const fn line(number: usize) -> Range<usize> {
    number * LINE_BYTES..(number + 1) * LINE_BYTES
}
