//! What all parts of a copy know of it: which blocks have arrived, what is in transfer, whom the reaper has chosen, what went wrong.

use std::sync::{Mutex, PoisonError};

use keyfence_mempool::sync::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};

/// A side of a stream.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Side {
    /// Reads the file's blocks and writes them into grants.
    Sender = 0,
    /// Grants its buffers and hands on what lands in them.
    Receiver = 1,
}

/// The state of a copy that outlives its contexts. Every field is written by one party at a time and read by any; nobody waits for it.
pub struct Board {
    /// Whether a block was read out of its receiver's memory, by block.
    arrived: Box<[AtomicU8]>,
    streams: Box<[StreamBoard]>,
    /// Bytes in the destination.
    pub written_bytes: AtomicU64,
    /// Contexts that were killed while a transfer of theirs was in flight.
    pub kills: AtomicU64,
    /// Contexts that were killed when their last transfer had just ended.
    pub misses: AtomicU64,
    /// Bytes that were submitted again since a context died.
    pub resent_bytes: AtomicU64,
    /// Bytes that changed in memory that nobody had a right to.
    pub late_bytes: AtomicU64,
    /// Keys that the device still honoured when they were said to be dead, or when their memory was used again.
    pub stale_keys: AtomicU64,
    /// Own requests that had not ended when their memory was used again.
    pub open_wrs: AtomicU64,
    stopped: AtomicBool,
    failure: Mutex<Option<String>>,
}

#[derive(Default)]
struct StreamBoard {
    /// Blocks submitted by the sender and not confirmed by the receiver, through grants that are not taken back.
    in_transfer: AtomicU32,
    /// Whether something has landed at the living receiver.
    receiving: AtomicBool,
    /// Contexts that were chosen to die and have.
    deaths: AtomicU32,
    /// Blocks that have arrived.
    arrivals: AtomicU32,
    /// The number of the last context that was chosen to die, by side. Numbers count from 1.
    doomed: [AtomicU32; 2],
    /// Whether the last killed receiver seemed to have no transfer in flight.
    missed_receiver: AtomicBool,
}

impl Board {
    /// Nothing has arrived.
    pub fn new(blocks: u32, streams: usize) -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            arrived: (0..blocks).map(|_| AtomicU8::new(0)).collect(),
            streams: (0..streams).map(|_| StreamBoard::default()).collect(),
            written_bytes: zero(),
            kills: zero(),
            misses: zero(),
            resent_bytes: zero(),
            late_bytes: zero(),
            stale_keys: zero(),
            open_wrs: zero(),
            stopped: AtomicBool::new(false),
            failure: Mutex::new(None),
        }
    }

    /// Notes that a block was read out by a stream's receiver; whether it is the first time.
    pub fn arrive(&self, stream: usize, block: u32) -> bool {
        let first = self.arrived[block as usize].swap(1, Ordering::AcqRel) == 0;
        let arrivals = &self.streams[stream].arrivals;
        arrivals.fetch_add(u32::from(first), Ordering::Relaxed);
        first
    }

    /// Blocks that have arrived by a stream.
    pub fn arrivals(&self, stream: usize) -> u32 {
        self.streams[stream].arrivals.load(Ordering::Relaxed)
    }

    /// Whether a block was read out, so that it need not be sent again.
    pub fn has_arrived(&self, block: u32) -> bool {
        self.arrived[block as usize].load(Ordering::Acquire) == 1
    }

    /// Blocks of a stream that are in transfer. Only the stream's sender sets it.
    pub fn set_in_transfer(&self, stream: usize, blocks: u32) {
        self.streams[stream]
            .in_transfer
            .store(blocks, Ordering::Relaxed);
    }

    /// Whether something has landed at a stream's receiver. Only the stream's receiver sets it.
    pub fn set_receiving(&self, stream: usize, receiving: bool) {
        self.streams[stream]
            .receiving
            .store(receiving, Ordering::Relaxed);
    }

    /// Whether a transfer of a stream is in flight, between two that have found each other.
    pub fn is_in_transfer(&self, stream: usize) -> bool {
        let entry = &self.streams[stream];
        entry.in_transfer.load(Ordering::Relaxed) > 0 && entry.receiving.load(Ordering::Relaxed)
    }

    /// Contexts of a stream that were chosen to die and have.
    pub fn deaths(&self, stream: usize) -> u32 {
        // Acquire: what a destructor noted before is seen with it.
        self.streams[stream].deaths.load(Ordering::Acquire)
    }

    /// Notes that a context is about to be killed.
    pub fn doom(&self, stream: usize, side: Side, number: u32) {
        // Release: the context's destructor runs because of the kill that follows.
        self.streams[stream].doomed[side as usize].store(number, Ordering::Release);
    }

    /// Called by a context's destructor: if it was killed, notes whether that hit a transfer. `seated`: whether it had begun to work.
    pub fn died(&self, stream: usize, side: Side, number: u32, seated: bool) {
        let entry = &self.streams[stream];
        if entry.doomed[side as usize].load(Ordering::Acquire) != number {
            return;
        }
        if seated && self.is_in_transfer(stream) {
            self.kills.fetch_add(1, Ordering::Relaxed);
        } else {
            self.misses.fetch_add(1, Ordering::Relaxed);
            if side == Side::Receiver {
                entry.missed_receiver.store(true, Ordering::Release);
            }
        }
        match side {
            Side::Sender => self.set_in_transfer(stream, 0),
            Side::Receiver => self.set_receiving(stream, false),
        }
        entry.deaths.fetch_add(1, Ordering::Release);
    }

    /// The sender has lost a transfer with its receiver: that kill hit after all, if its destructor was a moment too early to see it.
    pub fn receiver_was_hit(&self, stream: usize) {
        if self.streams[stream]
            .missed_receiver
            .swap(false, Ordering::AcqRel)
        {
            self.misses.fetch_sub(1, Ordering::Relaxed);
            self.kills.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Asks every thread of the copy to end.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
    }

    /// Whether the threads are to end.
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Ends the copy for a reason; the first one is kept.
    pub fn fail(&self, why: String) {
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.get_or_insert(why);
        self.stop();
    }

    /// Why the copy failed, if it did.
    pub fn failure(&self) -> Option<String> {
        let failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.clone()
    }
}

/// A count of something, after the fact.
pub fn count(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_arrives_once() {
        let board = Board::new(2, 1);
        assert!(board.arrive(0, 1) && !board.arrive(0, 1));
        assert_eq!(board.arrivals(0), 1);
        assert!(board.has_arrived(1) && !board.has_arrived(0));
    }

    #[test]
    fn a_kill_counts_if_a_transfer_was_in_flight_and_a_natural_end_never() {
        let board = Board::new(1, 2);
        board.set_in_transfer(0, 3);
        board.set_receiving(0, true);
        board.died(0, Side::Sender, 1, true);
        assert_eq!((count(&board.kills), count(&board.misses)), (0, 0));
        board.doom(0, Side::Sender, 1);
        board.died(0, Side::Sender, 1, true);
        assert!(!board.is_in_transfer(0), "its successor has none yet");
        assert_eq!(board.deaths(0), 1);
        board.doom(1, Side::Receiver, 7);
        board.died(1, Side::Receiver, 7, true);
        assert_eq!((count(&board.kills), count(&board.misses)), (1, 1));
        board.receiver_was_hit(1);
        board.receiver_was_hit(1);
        assert_eq!((count(&board.kills), count(&board.misses)), (2, 0));
        board.doom(0, Side::Sender, 2);
        board.died(0, Side::Sender, 2, false);
        assert_eq!((count(&board.kills), count(&board.misses)), (2, 1));
    }

    #[test]
    fn the_first_failure_is_kept_and_stops_everyone() {
        let board = Board::new(0, 1);
        assert!(!board.is_stopped());
        board.fail("first".into());
        board.fail("second".into());
        assert_eq!(board.failure().as_deref(), Some("first"));
        assert!(board.is_stopped());
    }
}
