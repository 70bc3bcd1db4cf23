//! One posted request in the books: a record of atomics with one writer, readable from any thread without a lock.

use keyfence_mempool::sync::{AtomicU64, Ordering, fence, spin_loop};

use crate::CompletionKind;
use crate::ids::{RegionId, Rkey, WindowId, WorkId};
use crate::work::{MAX_SGE, ReceiveRequest, Remote, Rights, WorkOp, WorkRequest};

/// What a request in the books is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum OpenOp {
    /// A write, its local bytes are read.
    Write,
    /// A send, its local bytes are read.
    Send,
    /// A read, its local bytes are written.
    Read,
    /// An atomic, its 8 local bytes are written.
    Atomic,
    /// A bind: no local bytes, but a key that may be honoured.
    Bind,
    /// An invalidation.
    Invalidate,
    /// A receive, its local bytes are written.
    Receive,
}

impl OpenOp {
    const ALL: [Self; 7] = [
        Self::Write,
        Self::Send,
        Self::Read,
        Self::Atomic,
        Self::Bind,
        Self::Invalidate,
        Self::Receive,
    ];

    /// Whether the device may store into the local bytes; otherwise it may load them.
    #[must_use]
    pub const fn writes_local(self) -> bool {
        matches!(self, Self::Read | Self::Atomic | Self::Receive)
    }

    const fn code(self) -> u64 {
        self as u64
    }

    fn from_code(code: u64) -> Self {
        Self::ALL[(code & OP_MASK) as usize % Self::ALL.len()]
    }
}

/// The range, key and rights of a bind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct BindRecord {
    pub window: WindowId,
    pub region: RegionId,
    pub rkey: Rkey,
    pub address: u64,
    pub len: u64,
    pub rights: Rights,
}

/// A consistent copy of an [`Entry`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Snapshot {
    meta: u64,
    pub id: WorkId,
    words: [u64; WORDS],
}

// The meta word: a version that changes at each reuse of the entry, above flags.
const OP_MASK: u64 = 0x7;
const OCCUPIED: u64 = 1 << 3;
const SIGNALED: u64 = 1 << 4;
const ENDED: u64 = 1 << 5;
const KEY_OVER: u64 = 1 << 6;
const INVALIDATE_POSTED: u64 = 1 << 7;
const WRITING: u64 = 1 << 8;
const RIGHTS_SHIFT: u32 = 9;
const VERSION_SHIFT: u32 = 12;

const WORDS: usize = 2 * MAX_SGE + 2;
// The remote range of a write, read or atomic.
const REMOTE_ADDRESS: usize = 2 * MAX_SGE;
const REMOTE_LEN: usize = 2 * MAX_SGE + 1;
// A bind has no local memory, so its record lies where the ranges of the others do.
const BIND_ADDRESS: usize = 0;
const BIND_LEN: usize = 1;
const BIND_NAMES: usize = 2;
const BIND_REGION: usize = 3;

/// One request. The owner of the queue writes, anybody reads; the control side may set [`Entry::end_key`] alone.
pub(super) struct Entry {
    meta: AtomicU64,
    id: AtomicU64,
    words: [AtomicU64; WORDS],
}

impl Entry {
    pub fn new() -> Self {
        Self {
            meta: AtomicU64::new(0),
            id: AtomicU64::new(0),
            words: core::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    /// Records a request before it is handed to the device.
    pub fn record_work(&self, work: &WorkRequest) {
        let (op, words, rights) = encode(work);
        let signaled = if work.signaled { SIGNALED } else { 0 };
        let rights = u64::from(rights) << RIGHTS_SHIFT;
        self.write(work.id, op.code() | signaled | rights, &words);
    }

    /// Records a receive before it is handed to the device. Every receive is signaled.
    pub fn record_receive(&self, receive: &ReceiveRequest) {
        let mut words = [0; WORDS];
        words[0] = receive.sge.address;
        words[1] = u64::from(receive.sge.len);
        self.write(receive.id, OpenOp::Receive.code() | SIGNALED, &words);
    }

    /// Copies what another entry holds, to keep it beyond its queue.
    pub fn record_copy(&self, of: &Snapshot) {
        let flags = of.meta & ((1 << VERSION_SHIFT) - 1) & !(OCCUPIED | WRITING | ENDED);
        self.write(of.id, flags, &of.words);
    }

    fn write(&self, id: WorkId, flags: u64, words: &[u64; WORDS]) {
        let version = (self.meta.load(Ordering::Relaxed) >> VERSION_SHIFT).wrapping_add(1);
        let version = version << VERSION_SHIFT;
        self.meta.store(version | WRITING, Ordering::Relaxed);
        // A reader that sees a word stored below also sees that the entry is being written.
        fence(Ordering::Release);
        self.id.store(id.0, Ordering::Relaxed);
        for (cell, word) in self.words.iter().zip(words) {
            cell.store(*word, Ordering::Relaxed);
        }
        self.meta
            .store(version | flags | OCCUPIED, Ordering::Release);
    }

    /// The name alone; exact for the owner of the queue.
    pub fn id(&self) -> WorkId {
        WorkId(self.id.load(Ordering::Relaxed))
    }

    pub fn is_open(&self) -> bool {
        self.meta.load(Ordering::Acquire) & (OCCUPIED | ENDED) == OCCUPIED
    }

    /// Whether it is one now, or is about to be another request altogether.
    pub fn is_bind(&self) -> bool {
        OpenOp::from_code(self.meta.load(Ordering::Relaxed)) == OpenOp::Bind
    }

    pub fn is_signaled(&self) -> bool {
        self.meta.load(Ordering::Relaxed) & SIGNALED != 0
    }

    /// Marks it proven ended and says whether its key was ended before.
    pub fn end(&self) -> bool {
        self.meta.fetch_or(ENDED, Ordering::AcqRel) & KEY_OVER != 0
    }

    /// Notes that the invalidation of the key that this bind opens is posted; false if it was before.
    pub fn note_invalidate(&self) -> bool {
        self.meta.fetch_or(INVALIDATE_POSTED, Ordering::AcqRel) & INVALIDATE_POSTED == 0
    }

    /// Ends the key of this bind if the entry still is what `seen` says. Called by the control side.
    pub fn end_key(&self, seen: &Snapshot) {
        let mut meta = seen.meta;
        while meta >> VERSION_SHIFT == seen.meta >> VERSION_SHIFT {
            let exchange = self.meta.compare_exchange(
                meta,
                meta | KEY_OVER,
                Ordering::AcqRel,
                Ordering::Acquire,
            );
            match exchange {
                Ok(_) => return,
                Err(now) => meta = now,
            }
        }
    }

    /// A consistent copy.
    pub fn snapshot(&self) -> Snapshot {
        loop {
            let meta = self.meta.load(Ordering::Acquire);
            let id = WorkId(self.id.load(Ordering::Relaxed));
            let words = core::array::from_fn(|at| self.words[at].load(Ordering::Relaxed));
            fence(Ordering::Acquire);
            if meta & WRITING == 0 && self.meta.load(Ordering::Relaxed) == meta {
                return Snapshot { meta, id, words };
            }
            spin_loop();
        }
    }
}

impl Snapshot {
    pub fn op(&self) -> OpenOp {
        OpenOp::from_code(self.meta)
    }

    pub fn is_open(&self) -> bool {
        self.meta & (OCCUPIED | ENDED) == OCCUPIED
    }

    pub fn invalidate_posted(&self) -> bool {
        self.meta & INVALIDATE_POSTED != 0
    }

    /// The bind that this is, unless its key was ended by the control side.
    pub fn bind(&self) -> Option<BindRecord> {
        (self.op() == OpenOp::Bind && self.meta & KEY_OVER == 0).then(|| BindRecord {
            window: WindowId((self.words[BIND_NAMES] >> 32) as u32),
            region: RegionId(self.words[BIND_REGION] as u32),
            rkey: Rkey(self.words[BIND_NAMES] as u32),
            address: self.words[BIND_ADDRESS],
            len: self.words[BIND_LEN],
            rights: decode_rights((self.meta >> RIGHTS_SHIFT) as u8),
        })
    }

    /// The key that this invalidation ends.
    pub fn invalidates(&self) -> Rkey {
        Rkey(self.words[BIND_NAMES] as u32)
    }

    /// Whether it is of a kind that has a remote range.
    pub fn accesses_remote(&self) -> bool {
        matches!(self.op(), OpenOp::Write | OpenOp::Read | OpenOp::Atomic)
    }

    /// The peer's range that this accesses, as (address, bytes).
    pub fn remote(&self) -> (u64, u64) {
        (self.words[REMOTE_ADDRESS], self.words[REMOTE_LEN])
    }

    /// Whether it is a write or read of no bytes.
    pub fn is_empty_access(&self) -> bool {
        matches!(self.op(), OpenOp::Write | OpenOp::Read) && self.remote().1 == 0
    }

    /// Whether a success may name this many bytes.
    pub fn can_move(&self, kind: CompletionKind, bytes: u32) -> bool {
        let local: u64 = self.local().map(|(_, len)| len).sum();
        match kind {
            CompletionKind::Read => u64::from(bytes) == local,
            CompletionKind::Receive => u64::from(bytes) <= local,
            _ => true,
        }
    }

    /// The local ranges that the device may touch, as (address, bytes).
    pub fn local(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let none = matches!(self.op(), OpenOp::Bind | OpenOp::Invalidate);
        let pairs = if none { 0 } else { MAX_SGE };
        self.words
            .chunks_exact(2)
            .take(pairs)
            .map(|pair| (pair[0], pair[1]))
            .filter(|(_, len)| *len > 0)
    }
}

pub(super) fn encode_rights(rights: Rights) -> u8 {
    u8::from(rights.read) | u8::from(rights.write) << 1 | u8::from(rights.atomic) << 2
}

pub(super) fn decode_rights(bits: u8) -> Rights {
    Rights {
        read: bits & 1 != 0,
        write: bits & 2 != 0,
        atomic: bits & 4 != 0,
    }
}

fn encode(work: &WorkRequest) -> (OpenOp, [u64; WORDS], u8) {
    let mut words = [0; WORDS];
    let op = match work.op {
        WorkOp::Bind {
            window,
            region,
            address,
            len,
            rights,
            rkey,
        } => {
            words[BIND_REGION] = region.0.into();
            words[BIND_ADDRESS] = address;
            words[BIND_LEN] = len;
            words[BIND_NAMES] = u64::from(window.0) << 32 | u64::from(rkey.0);
            return (OpenOp::Bind, words, encode_rights(rights));
        }
        WorkOp::Invalidate { rkey } => {
            words[BIND_NAMES] = u64::from(rkey.0);
            return (OpenOp::Invalidate, words, 0);
        }
        WorkOp::Write { .. } => OpenOp::Write,
        WorkOp::Send { .. } => OpenOp::Send,
        WorkOp::Read { .. } => OpenOp::Read,
        WorkOp::FetchAdd { .. } | WorkOp::CompareSwap { .. } => OpenOp::Atomic,
    };
    if let Some(remote) = remote(&work.op) {
        words[REMOTE_ADDRESS] = remote.address;
        words[REMOTE_LEN] = work
            .sges
            .as_slice()
            .iter()
            .map(|sge| u64::from(sge.len))
            .sum();
    }
    // Inline bytes are taken at the post, so nothing local stays open.
    if !work.inline {
        for (pair, sge) in words.chunks_exact_mut(2).zip(work.sges.as_slice()) {
            pair[0] = sge.address;
            pair[1] = u64::from(sge.len);
        }
    }
    (op, words, 0)
}

fn remote(op: &WorkOp) -> Option<Remote> {
    match *op {
        WorkOp::Write { remote, .. }
        | WorkOp::Read { remote }
        | WorkOp::FetchAdd { remote, .. }
        | WorkOp::CompareSwap { remote, .. } => Some(remote),
        WorkOp::Send { .. } | WorkOp::Bind { .. } | WorkOp::Invalidate { .. } => None,
    }
}
