//! The keys that a device has confirmed as bound, by their 24-bit index.

use std::sync::OnceLock;

use keyfence_mempool::sync::{
    AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence, spin_loop,
};

use super::entry::{BindRecord, decode_rights, encode_rights};
use crate::ids::{QpId, RegionId, Rkey, WindowId};

/// A window's key as the books have it: bound with success, and not proven ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct KeyRecord {
    pub qp: QpId,
    pub bind: BindRecord,
    version: u64,
}

/// Two levels, the lower ones made when a window with such an index is allocated: an index needs no search and no lock.
pub(super) struct KeyTable {
    leaves: Box<[OnceLock<Box<Leaf>>]>,
    /// Leaves from this number on were never made.
    leaf_end: AtomicUsize,
}

const LEAF_BITS: u32 = 12;
const LEAF_CELLS: usize = 1 << LEAF_BITS;
const LEAVES: usize = 1 << (24 - LEAF_BITS);
const GROUP_CELLS: usize = 64;

/// Cells, and how many of each group are live, so that a query passes over the others.
struct Leaf {
    cells: Box<[KeyCell]>,
    live: [AtomicU32; LEAF_CELLS / GROUP_CELLS],
}

/// One window's key. Fields are written by the path of the window's queue pair while the phase is `WRITING`.
struct KeyCell {
    state: AtomicU64,
    qp_rkey: AtomicU64,
    address: AtomicU64,
    len: AtomicU64,
    window_rights: AtomicU64,
    region: AtomicU64,
    /// The window with this index and its queue pair, written by the control side before anybody can bind it.
    owner: AtomicU64,
    /// A `dealloc_window` was called for that window.
    deallocating: AtomicBool,
}

/// What the table says of a bind that was confirmed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Confirmed {
    pub record: KeyRecord,
    /// No other key of the window was live.
    pub was_free: bool,
    /// It is the window's index, on the window's queue pair.
    pub is_owners: bool,
}

// The state word: a version that changes at each bind, above phase bits. No bit: free.
const WRITING: u64 = 1;
const LIVE: u64 = 2;
const INVALIDATING: u64 = 4;
const VERSION_SHIFT: u32 = 8;

/// Why an invalidation that was posted is odd.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum InvalidateNote {
    Noted,
    Twice,
    NotBound,
}

impl KeyTable {
    pub fn new() -> Self {
        Self {
            leaves: (0..LEAVES).map(|_| OnceLock::new()).collect(),
            leaf_end: AtomicUsize::new(0),
        }
    }

    /// Gives a window its index. Called by the control side before the window's first bind.
    pub fn admit(&self, window: WindowId, rkey: Rkey, qp: QpId) {
        let leaf = rkey.index() as usize >> LEAF_BITS;
        let cells = self.leaves[leaf].get_or_init(|| Box::new(Leaf::new()));
        let cell = &cells.cells[rkey.index() as usize & (LEAF_CELLS - 1)];
        cell.deallocating.store(false, Ordering::Relaxed);
        cell.owner.store(owner(window, qp), Ordering::Release);
        self.leaf_end.fetch_max(leaf + 1, Ordering::AcqRel);
    }

    /// Takes over a bind that was confirmed. `None` if the index belongs to no window.
    pub fn set_live(&self, qp: QpId, bind: &BindRecord, invalidating: bool) -> Option<Confirmed> {
        let (leaf, at) = self.find(bind.rkey)?;
        let cell = &leaf.cells[at];
        let was = cell.state.load(Ordering::Acquire);
        let version = (was >> VERSION_SHIFT) + 1;
        let free = was & LIVE == 0;
        if free {
            leaf.live[at / GROUP_CELLS].fetch_add(1, Ordering::AcqRel);
        }
        cell.write(qp, bind, version, invalidating);
        let record = KeyRecord {
            qp,
            bind: *bind,
            version,
        };
        Some(Confirmed {
            record,
            was_free: free,
            is_owners: cell.owner.load(Ordering::Acquire) == owner(bind.window, qp),
        })
    }

    /// Notes that a `dealloc_window` is under way: from now on the device may have ended the key before the books know.
    pub fn note_dealloc(&self, rkey: Rkey) {
        if let Some((leaf, at)) = self.find(rkey) {
            leaf.cells[at].deallocating.store(true, Ordering::Release);
        }
    }

    /// The queue pair that this key is live on.
    pub fn holder(&self, rkey: Rkey) -> Option<QpId> {
        let (leaf, at) = self.find(rkey)?;
        let record = leaf.cells[at].read()?;
        (record.bind.rkey == rkey).then_some(record.qp)
    }

    /// A key that is bound to this region, and that nobody has begun to end.
    pub fn bound_to(&self, region: RegionId) -> Option<KeyRecord> {
        self.live().find(|record| {
            let cell = self.find(record.bind.rkey);
            let cell = cell.map(|(leaf, at)| &leaf.cells[at]);
            record.bind.region == region && cell.is_some_and(|cell| !cell.is_ending(record.version))
        })
    }

    /// Notes that an invalidation of this key is posted on `qp`.
    pub fn note_invalidate(&self, rkey: Rkey, qp: QpId) -> InvalidateNote {
        let Some((leaf, at)) = self.find(rkey) else {
            return InvalidateNote::NotBound;
        };
        let cell = &leaf.cells[at];
        let here = cell.read();
        if !here.is_some_and(|record| record.bind.rkey == rkey && record.qp == qp) {
            return InvalidateNote::NotBound;
        }
        if cell.state.fetch_or(INVALIDATING, Ordering::AcqRel) & INVALIDATING != 0 {
            return InvalidateNote::Twice;
        }
        InvalidateNote::Noted
    }

    /// Ends this key: its invalidation succeeded. False if it was not live.
    pub fn end_key(&self, rkey: Rkey) -> bool {
        self.find(rkey)
            .is_some_and(|(leaf, at)| leaf.cells[at].holds(rkey) && leaf.free(at, None))
    }

    /// Ends whatever key the window with this index has. Called by the control side.
    pub fn end_index(&self, rkey: Rkey) {
        if let Some((leaf, at)) = self.find(rkey) {
            leaf.free(at, None);
        }
    }

    /// Ends the key if it still is what `record` says.
    pub fn end_record(&self, record: &KeyRecord) {
        if let Some((leaf, at)) = self.find(record.bind.rkey) {
            leaf.free(at, Some(record.version));
        }
    }

    /// All live keys.
    pub fn live(&self) -> impl Iterator<Item = KeyRecord> + '_ {
        let end = self.leaf_end.load(Ordering::Acquire);
        self.leaves[..end]
            .iter()
            .filter_map(OnceLock::get)
            .flat_map(|leaf| {
                let groups = leaf.cells.chunks_exact(GROUP_CELLS).zip(&leaf.live);
                groups
                    .filter(|(_, live)| live.load(Ordering::Acquire) > 0)
                    .flat_map(|(cells, _)| cells.iter().filter_map(KeyCell::read))
            })
    }

    fn find(&self, rkey: Rkey) -> Option<(&Leaf, usize)> {
        let index = rkey.index() as usize;
        let leaf = self.leaves[index >> LEAF_BITS].get()?;
        Some((leaf, index & (LEAF_CELLS - 1)))
    }
}

impl Leaf {
    fn new() -> Self {
        Self {
            cells: (0..LEAF_CELLS).map(|_| KeyCell::new()).collect(),
            live: core::array::from_fn(|_| AtomicU32::new(0)),
        }
    }

    /// Frees a live cell, with this version if one is given; false if there was nothing to free.
    fn free(&self, at: usize, version: Option<u64>) -> bool {
        let state = &self.cells[at].state;
        let mut now = state.load(Ordering::Acquire);
        loop {
            if now & WRITING != 0 {
                // A few stores of another thread away from being live.
                spin_loop();
                now = state.load(Ordering::Acquire);
                continue;
            }
            if now & LIVE == 0 || version.is_some_and(|version| now >> VERSION_SHIFT != version) {
                return false;
            }
            let free = now >> VERSION_SHIFT << VERSION_SHIFT;
            match state.compare_exchange(now, free, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => break,
                Err(other) => now = other,
            }
        }
        self.live[at / GROUP_CELLS].fetch_sub(1, Ordering::AcqRel);
        true
    }
}

impl KeyCell {
    fn new() -> Self {
        Self {
            state: AtomicU64::new(0),
            qp_rkey: AtomicU64::new(0),
            address: AtomicU64::new(0),
            len: AtomicU64::new(0),
            window_rights: AtomicU64::new(0),
            region: AtomicU64::new(0),
            owner: AtomicU64::new(u64::MAX),
            deallocating: AtomicBool::new(false),
        }
    }

    fn write(&self, qp: QpId, bind: &BindRecord, version: u64, invalidating: bool) {
        let version = version << VERSION_SHIFT;
        self.state.store(version | WRITING, Ordering::Relaxed);
        fence(Ordering::Release);
        self.qp_rkey.store(
            u64::from(qp.0) << 32 | u64::from(bind.rkey.0),
            Ordering::Relaxed,
        );
        self.address.store(bind.address, Ordering::Relaxed);
        self.len.store(bind.len, Ordering::Relaxed);
        let rights = u64::from(encode_rights(bind.rights));
        self.window_rights
            .store(u64::from(bind.window.0) << 32 | rights, Ordering::Relaxed);
        self.region.store(bind.region.0.into(), Ordering::Relaxed);
        let flags = if invalidating {
            LIVE | INVALIDATING
        } else {
            LIVE
        };
        self.state.store(version | flags, Ordering::Release);
    }

    /// Whether the device may have ended this bind, or has.
    fn is_ending(&self, version: u64) -> bool {
        let state = self.state.load(Ordering::Acquire);
        let invalidating = state & INVALIDATING != 0 || state >> VERSION_SHIFT != version;
        invalidating || self.deallocating.load(Ordering::Acquire)
    }

    fn holds(&self, rkey: Rkey) -> bool {
        self.read().is_some_and(|record| record.bind.rkey == rkey)
    }

    fn read(&self) -> Option<KeyRecord> {
        loop {
            let state = self.state.load(Ordering::Acquire);
            if state & (LIVE | WRITING) == 0 {
                return None;
            }
            let qp_rkey = self.qp_rkey.load(Ordering::Relaxed);
            let address = self.address.load(Ordering::Relaxed);
            let len = self.len.load(Ordering::Relaxed);
            let window_rights = self.window_rights.load(Ordering::Relaxed);
            let region = self.region.load(Ordering::Relaxed);
            fence(Ordering::Acquire);
            if state & WRITING != 0 || self.state.load(Ordering::Relaxed) != state {
                spin_loop();
                continue;
            }
            let bind = BindRecord {
                window: WindowId((window_rights >> 32) as u32),
                region: RegionId(region as u32),
                rkey: Rkey(qp_rkey as u32),
                address,
                len,
                rights: decode_rights(window_rights as u8),
            };
            return Some(KeyRecord {
                qp: QpId((qp_rkey >> 32) as u32),
                bind,
                version: state >> VERSION_SHIFT,
            });
        }
    }
}

const fn owner(window: WindowId, qp: QpId) -> u64 {
    (window.0 as u64) << 32 | qp.0 as u64
}
