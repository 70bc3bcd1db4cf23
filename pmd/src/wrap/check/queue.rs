//! The books of one queue pair: what was posted to it and is not proven ended.

use keyfence_mempool::sync::{AtomicBool, AtomicU64, Ordering};

use super::entry::{BindRecord, Entry, OpenOp, Snapshot};
use crate::device::QpConfig;
use crate::ids::{PdId, QpId, Rkey, WindowId, WorkId};
use crate::work::{ReceiveRequest, WorkRequest};

/// Requests in the order of posting. One writer (the lcore's path); any thread may look.
pub(super) struct Queue {
    entries: Box<[Entry]>,
    depth: u64,
    /// Number of the next request.
    posted: AtomicU64,
    /// Every request below this number is ended.
    ended: AtomicU64,
}

impl Queue {
    /// Room for twice the depth: an oracle that cut posts at the depth could not see a device that takes too many.
    fn new(depth: u32) -> Self {
        let capacity = (depth.max(1) as usize).next_power_of_two() * 2;
        Self {
            entries: (0..capacity).map(|_| Entry::new()).collect(),
            depth: u64::from(depth),
            posted: AtomicU64::new(0),
            ended: AtomicU64::new(0),
        }
    }

    pub fn entry(&self, number: u64) -> &Entry {
        &self.entries[number as usize & (self.entries.len() - 1)]
    }

    /// The numbers of the requests that may be open, oldest first.
    pub fn numbers(&self) -> core::ops::Range<u64> {
        // Posted first: read the other way round, an entry could be passed over by both.
        let posted = self.posted.load(Ordering::Acquire);
        self.ended.load(Ordering::Acquire).min(posted)..posted
    }

    pub fn room(&self) -> usize {
        let used = self.numbers();
        self.entries.len() - (used.end - used.start) as usize
    }

    pub fn push_work(&self, work: &WorkRequest) {
        let number = self.posted.load(Ordering::Relaxed);
        self.entry(number).record_work(work);
        self.posted.store(number + 1, Ordering::Release);
    }

    pub fn push_receive(&self, receive: &ReceiveRequest) {
        let number = self.posted.load(Ordering::Relaxed);
        self.entry(number).record_receive(receive);
        self.posted.store(number + 1, Ordering::Release);
    }

    /// Takes the last `count` back: the device did not accept them.
    pub fn retract(&self, count: usize) {
        let number = self.posted.load(Ordering::Relaxed);
        self.posted.store(number - count as u64, Ordering::Release);
    }

    /// The oldest open request with this name.
    pub fn find(&self, id: WorkId) -> Option<u64> {
        self.numbers().find(|number| {
            let entry = self.entry(*number);
            entry.id() == id && entry.is_open()
        })
    }

    /// The newest open bind of this key.
    pub fn find_bind(&self, rkey: Rkey) -> Option<u64> {
        self.numbers().rev().find(|number| {
            let seen = self.entry(*number).snapshot();
            seen.is_open() && seen.bind().is_some_and(|bind| bind.rkey == rkey)
        })
    }

    /// Moves past what is ended.
    pub fn advance(&self) {
        let mut numbers = self.numbers();
        while numbers.start < numbers.end && !self.entry(numbers.start).is_open() {
            numbers.start += 1;
        }
        self.ended.store(numbers.start, Ordering::Release);
    }

    /// Whether the device has taken more than it was made for.
    pub fn is_beyond_depth(&self) -> bool {
        let open = self.numbers();
        open.end - open.start > self.depth
    }

    fn snapshots(&self) -> impl Iterator<Item = (&Entry, Snapshot)> + '_ {
        open_of(self.numbers().map(|number| self.entry(number)))
    }
}

/// Those that are open. Most are not, and one look tells.
fn open_of<'a>(
    entries: impl Iterator<Item = &'a Entry>,
) -> impl Iterator<Item = (&'a Entry, Snapshot)> {
    entries
        .filter(|entry| entry.is_open())
        .map(|entry| (entry, entry.snapshot()))
        .filter(|(_, seen)| seen.is_open())
}

/// One queue pair's books. The ledger and the path of its lcore share them.
pub(super) struct QpBook {
    pub qp: QpId,
    pub send: Queue,
    pub receive: Queue,
    /// Requests that are out of their queue but not proven ended: a queue pair came into error behind them, and only its
    /// destruction (for a bind: or its window's end) says more.
    unproven: Box<[Entry]>,
    pub pd: PdId,
    /// Somebody has begun to connect it or to move it to error: from now on the device may take posts.
    begun: AtomicBool,
    /// `error_qp` has returned, or a failure was polled.
    in_error: AtomicBool,
    released: AtomicBool,
    /// A `destroy_qp` is under way.
    ending: AtomicBool,
    destroyed: AtomicBool,
}

impl QpBook {
    pub fn new(qp: QpId, config: &QpConfig) -> Self {
        Self {
            qp,
            send: Queue::new(config.send_depth),
            receive: Queue::new(config.receive_depth),
            unproven: (0..config.send_depth.max(1) as usize * 2)
                .map(|_| Entry::new())
                .collect(),
            pd: config.pd,
            begun: AtomicBool::new(false),
            in_error: AtomicBool::new(false),
            released: AtomicBool::new(false),
            ending: AtomicBool::new(false),
            destroyed: AtomicBool::new(false),
        }
    }

    /// Keeps a request beyond its queue; false if there is no room, and it must stay there.
    pub fn keep_unproven(&self, seen: &Snapshot) -> bool {
        let free = self.unproven.iter().find(|entry| !entry.is_open());
        free.map(|entry| entry.record_copy(seen)).is_some()
    }

    /// Everything open, in an order that misses nothing while the path moves entries: queues first.
    pub fn open(&self) -> impl Iterator<Item = Snapshot> + '_ {
        let queued = self.send.snapshots().chain(self.receive.snapshots());
        queued
            .chain(open_of(self.unproven.iter()))
            .filter(|_| !self.destroyed.load(Ordering::Acquire))
            .map(|(_, seen)| seen)
    }

    /// The binds among them.
    pub fn open_binds(&self) -> impl Iterator<Item = BindRecord> + '_ {
        let queued = self.send.numbers().map(|number| self.send.entry(number));
        let binds = queued.chain(&self.unproven).filter(|entry| entry.is_bind());
        open_of(binds)
            .filter(|_| !self.destroyed.load(Ordering::Acquire))
            .filter_map(|(_, seen)| seen.bind())
    }

    /// Ends the keys of every open bind of a window. Called by the control side.
    pub fn end_binds(&self, window: WindowId) {
        for (entry, seen) in self.send.snapshots() {
            if seen.bind().is_some_and(|bind| bind.window == window) {
                entry.end_key(&seen);
            }
        }
        for (entry, seen) in open_of(self.unproven.iter()) {
            if seen.bind().is_some_and(|bind| bind.window == window) {
                entry.end_key(&seen);
            }
        }
    }

    /// Whether an invalidation of a window's key with this index is posted, and its queue pair is not known to be in error.
    pub fn is_invalidating(&self, rkey: Rkey) -> bool {
        let over = self.is_in_error() || self.is_released();
        let mut seen = self.send.snapshots().map(|(_, seen)| seen);
        !over
            && seen.any(|seen| {
                seen.op() == OpenOp::Invalidate && seen.invalidates().index() == rkey.index()
            })
    }

    /// Notes that posts may be taken from now on. Called before the device is.
    pub fn begin(&self) {
        self.begun.store(true, Ordering::Release);
    }

    pub fn is_begun(&self) -> bool {
        self.begun.load(Ordering::Acquire)
    }

    /// Notes that the queue pair is in error for certain.
    pub fn note_error(&self) {
        self.in_error.store(true, Ordering::Release);
    }

    pub fn is_in_error(&self) -> bool {
        self.in_error.load(Ordering::Acquire)
    }

    /// Notes that the device may end it before the books know.
    pub fn note_ending(&self) {
        self.ending.store(true, Ordering::Release);
    }

    pub fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Acquire)
    }

    /// Notes that the lcore has given the queue pair up.
    pub fn release(&self) {
        self.released.store(true, Ordering::Release);
    }

    pub fn is_released(&self) -> bool {
        self.released.load(Ordering::Acquire)
    }

    /// Ends everything: the queue pair is destroyed.
    pub fn destroy(&self) {
        self.destroyed.store(true, Ordering::Release);
    }
}

impl OpenOp {
    /// Whether a successful completion of this kind is one of such a request.
    pub(super) fn matches(self, kind: crate::CompletionKind) -> bool {
        use crate::CompletionKind as Kind;
        match self {
            Self::Write => kind == Kind::Write,
            Self::Send => kind == Kind::Send,
            Self::Read => kind == Kind::Read,
            Self::Atomic => kind == Kind::Atomic,
            Self::Bind => kind == Kind::Bind,
            Self::Invalidate => kind == Kind::Invalidate,
            Self::Receive => matches!(kind, Kind::Receive | Kind::ReceiveWriteImmediate),
        }
    }
}
