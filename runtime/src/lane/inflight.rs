//! What is posted on a lane and not yet proven executed, in the order of posting.
//!
//! A queue pair completes in order, so the success of one request proves each before it, a swallowed or unsignaled completion included
//! (REQUIREMENTS R3). A failure proves nothing: what stands here then ends with the queue pair's destruction.

use crate::ids::Epoch;

/// Bits of a sequence number that a work id has room for. At 10^9 requests a second they last three days.
pub const SEQUENCE_MASK: u64 = (1 << 48) - 1;

/// What one posted work request is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flight {
    /// Part of an application's operation.
    Slice {
        /// The operation's slot.
        op: u32,
        /// Bytes of this part.
        bytes: u32,
    },
    /// The frame of an operation that is, or ends with, a message.
    Message {
        /// The operation's slot.
        op: u32,
        /// Bytes of it.
        bytes: u32,
        /// The message's number.
        number: u32,
    },
    /// A control frame.
    Frame,
    /// The bind of a grant's key.
    Bind {
        /// The key's slot.
        key: u32,
    },
    /// The invalidation of a grant's key.
    Invalidate {
        /// The key's slot.
        key: u32,
    },
    /// An invalidation whose completion is of no interest any more (planted faults alone).
    Ignored,
    /// The signaled request behind the last own operation of an epoch.
    Closing {
        /// The epoch.
        epoch: Epoch,
    },
}

/// The posted requests of one lane. Sequence numbers count from 0 and never wrap (64 bits); completions say their low bits
/// ([`SEQUENCE_MASK`]), and what is posted lies close enough together for these to name one request.
#[derive(Debug)]
pub struct Inflight {
    /// A power of two, so that a place costs no division.
    ring: Box<[Flight]>,
    depth: u64,
    first: u64,
    next: u64,
    /// Behind the last request that has failed: completions come in order and each failure gives one, so nothing comes of what is before.
    reported: u64,
    /// The last so many requests were never taken by the device.
    untaken: u64,
}

impl Inflight {
    /// Room for `depth` requests, at least 1.
    pub fn new(depth: usize) -> Self {
        assert!(depth > 0, "a lane posts at least one request");
        Self {
            ring: vec![Flight::Frame; depth.next_power_of_two()].into_boxed_slice(),
            depth: depth as u64,
            first: 0,
            next: 0,
            reported: 0,
            untaken: 0,
        }
    }

    /// Requests that may still be posted.
    #[inline]
    pub fn room(&self) -> usize {
        (self.depth - (self.next - self.first)) as usize
    }

    /// Requests posted and not proven executed.
    #[inline]
    pub fn len(&self) -> usize {
        (self.next - self.first) as usize
    }

    /// The number of the oldest of them; of the next one if there is none.
    pub fn first(&self) -> u64 {
        self.first
    }

    /// Notes a request that failed or was flushed, by the low bits of its number. It stays in the books until its queue pair is destroyed.
    pub fn note_failed(&mut self, low: u64) {
        if let Some(sequence) = self.posted(low) {
            self.reported = self.reported.max(sequence + 1);
        }
    }

    /// What the request with these low bits is for, if it is in the books.
    pub fn flight(&self, low: u64) -> Option<Flight> {
        let sequence = self.posted(low)?;
        Some(self.ring[self.index(sequence)])
    }

    /// Notes that the device has not taken the last `count` requests, and never will.
    pub fn note_untaken(&mut self, count: u64) {
        self.untaken = count;
    }

    /// Whether nothing more will come of what is in the books. Says when to stop waiting, and proves nothing.
    pub fn is_drained(&self) -> bool {
        self.first.max(self.reported) >= self.next - self.untaken
    }

    /// The sequence number that the next request will get.
    pub fn next_sequence(&self) -> u64 {
        self.next
    }

    /// Notes a request as posted.
    #[inline]
    pub fn push(&mut self, flight: Flight) -> u64 {
        assert!(self.room() > 0, "a full send queue is seen before the post");
        let sequence = self.next;
        self.ring[self.index(sequence)] = flight;
        self.next += 1;
        sequence
    }

    /// Takes the oldest request that the success of the one with these low bits proves executed; `None` when all are taken or no such one
    /// is posted.
    #[inline]
    pub fn take_proven(&mut self, low: u64) -> Option<(u64, Flight)> {
        self.posted(low)?;
        self.take_first()
    }

    /// Takes the oldest request, proven by other means: the destruction of its queue pair.
    #[inline]
    pub fn take_first(&mut self) -> Option<(u64, Flight)> {
        if self.first == self.next {
            return None;
        }
        let sequence = self.first;
        self.first += 1;
        Some((sequence, self.ring[self.index(sequence)]))
    }

    /// The number in the books that has these low bits.
    #[inline]
    fn posted(&self, low: u64) -> Option<u64> {
        let ahead = low.wrapping_sub(self.first) & SEQUENCE_MASK;
        (ahead < self.len() as u64).then(|| self.first + ahead)
    }

    #[inline]
    fn index(&self, sequence: u64) -> usize {
        sequence as usize & (self.ring.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r3_a_later_success_proves_all_before_it() {
        let mut flights = Inflight::new(4);
        for key in 0..4 {
            flights.push(Flight::Bind { key });
        }
        assert_eq!(flights.room(), 0);
        let mut proven = Vec::new();
        while let Some((sequence, flight)) = flights.take_proven(2) {
            proven.push((sequence, flight));
        }
        assert_eq!(proven.len(), 3);
        assert_eq!(proven[2], (2, Flight::Bind { key: 2 }));
        assert_eq!(flights.len(), 1);
    }

    #[test]
    fn a_queue_is_drained_when_its_last_request_has_been_reported() {
        let mut flights = Inflight::new(4);
        assert!(flights.is_drained());
        for _ in 0..4 {
            flights.push(Flight::Frame);
        }
        // The first two were executed in silence.
        flights.note_failed(2);
        assert!(!flights.is_drained());
        flights.note_untaken(1);
        assert!(flights.is_drained());
        assert_eq!(flights.len(), 4, "nothing of it is proven");
    }

    #[test]
    fn r3_a_lane_goes_on_past_the_last_number_that_a_work_id_can_say() {
        let start = SEQUENCE_MASK - 1;
        let mut flights = Inflight::new(4);
        (flights.first, flights.next, flights.reported) = (start, start, start);
        for key in 0..4 {
            flights.push(Flight::Bind { key });
        }
        assert_eq!(flights.take_proven(2), None, "not posted yet");
        for key in 0..3 {
            let proven = flights.take_proven((start + 2) & SEQUENCE_MASK);
            assert_eq!(proven, Some((start + u64::from(key), Flight::Bind { key })));
        }
        assert_eq!(flights.take_proven(0), None, "taken");
        assert_eq!(flights.take_proven(start), None, "long taken");
        assert!(!flights.is_drained());
        flights.note_failed(1);
        assert!(flights.is_drained());
    }

    #[test]
    fn an_old_or_unknown_sequence_proves_nothing() {
        let mut flights = Inflight::new(2);
        flights.push(Flight::Frame);
        assert_eq!(flights.take_proven(7), None);
        assert!(flights.take_proven(0).is_some());
        assert_eq!(flights.take_proven(0), None);
        assert_eq!(flights.take_first(), None);
    }
}
