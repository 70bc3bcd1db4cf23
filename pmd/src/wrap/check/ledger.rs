//! The books, and what may be asked of them.

use core::fmt;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use keyfence_mempool::sync::Arc;

use super::entry::{OpenOp, Snapshot};
use super::keys::{KeyRecord, KeyTable};
use super::queue::QpBook;
use super::violation::{Findings, Party, Report, Violation};
use crate::device::Window;
use crate::ids::{PdId, QpId, RegionId, Rkey, WindowId, WorkId};
use crate::work::Rights;

/// The books of one device: every key it may still honour, and every request that is not proven ended. Shared; every query may be
/// asked from any thread and takes no lock that a poll path takes.
///
/// Ranges are addresses of this process, as in work requests.
pub struct Ledger {
    pub(super) keys: KeyTable,
    pub(super) findings: Findings,
    control: Mutex<ControlBook>,
}

/// What only control calls change.
#[derive(Default)]
pub(super) struct ControlBook {
    pub qps: Vec<Arc<QpBook>>,
    /// Queue pairs that were destroyed, and as the how many-th.
    pub gone: BTreeMap<QpId, u64>,
    pub windows: BTreeMap<WindowId, (Rkey, QpId)>,
    /// The indexes of those windows' keys.
    pub indexes: BTreeSet<u32>,
    pub regions: BTreeMap<RegionId, RegionBook>,
}

/// A registered region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct RegionBook {
    pub pd: PdId,
    /// Its own key, if that opens something.
    pub key: Option<LiveKey>,
    /// A `deregister` is under way.
    pub ending: bool,
}

/// A key that the device may honour.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LiveKey {
    /// Its value.
    pub rkey: Rkey,
    /// The queue pair it works through; `None` for a region's key, which works through all of its protection domain.
    pub qp: Option<QpId>,
    /// First address.
    pub address: u64,
    /// Bytes.
    pub len: u64,
    /// What it opens.
    pub rights: Rights,
    /// The device confirmed the bind. If not, the bind is posted, or ended in a way that proves nothing.
    pub confirmed: bool,
}

/// A request that is not proven ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpenWork {
    /// Its queue pair.
    pub qp: QpId,
    /// Its name.
    pub id: WorkId,
    /// What it is.
    pub op: OpenOp,
    /// First address of the local range in question; 0 with 0 bytes if it has none.
    pub address: u64,
    /// Bytes of that range.
    pub len: u64,
}

impl Ledger {
    pub(super) fn new() -> Self {
        Self {
            keys: KeyTable::new(),
            findings: Findings::new(),
            control: Mutex::new(ControlBook::default()),
        }
    }

    /// How many keys that open a byte of `range` the device may still honour.
    #[must_use]
    pub fn live_keys(&self, range: Range<u64>) -> usize {
        let mut count = 0;
        self.each_key(&mut |key| count += usize::from(overlaps(&range, key.address, key.len)));
        count
    }

    /// One of those keys.
    #[must_use]
    pub fn first_live_key(&self, range: Range<u64>) -> Option<LiveKey> {
        let mut first = None;
        self.each_key(&mut |key| {
            if first.is_none() && overlaps(&range, key.address, key.len) {
                first = Some(key);
            }
        });
        first
    }

    /// How many requests that may touch a byte of `range` as local memory are not proven ended; posted receives included.
    #[must_use]
    pub fn open_work(&self, range: Range<u64>) -> usize {
        let mut count = 0;
        self.each_open(&mut |_, open| count += usize::from(touched(open, &range).is_some()));
        count
    }

    /// One of those requests.
    #[must_use]
    pub fn first_open_work(&self, range: Range<u64>) -> Option<OpenWork> {
        let mut first = None;
        self.each_open(&mut |qp, open| {
            if let (None, Some((address, len))) = (first, touched(open, &range)) {
                first = Some(open_work(qp, open, address, len));
            }
        });
        first
    }

    /// How many requests that access a byte of the *peer's* `range` are not proven ended. Asked of the books of the device that posts.
    #[must_use]
    pub fn open_remote(&self, range: Range<u64>) -> usize {
        let mut count = 0;
        self.each_open(&mut |_, open| {
            let (address, len) = open.remote();
            count += usize::from(open.accesses_remote() && overlaps(&range, address, len));
        });
        count
    }

    /// How many requests of all queue pairs are not proven ended, those without local memory included, receives left out.
    #[must_use]
    pub fn open_requests(&self) -> usize {
        let mut count = 0;
        self.each_open(&mut |_, open| count += usize::from(open.op() != OpenOp::Receive));
        count
    }

    /// How many keys of all windows and regions the device may still honour.
    #[must_use]
    pub fn all_live_keys(&self) -> usize {
        let mut count = 0;
        self.each_key(&mut |_| count += 1);
        count
    }

    /// How often a party broke the contract.
    #[must_use]
    pub fn violations(&self, party: Party) -> u64 {
        let kinds = Violation::ALL.iter().filter(|kind| kind.party() == party);
        kinds.map(|kind| self.findings.count(*kind)).sum()
    }

    /// How often one rule was broken.
    #[must_use]
    pub fn count(&self, violation: Violation) -> u64 {
        self.findings.count(violation)
    }

    /// The first findings, 64 at most, oldest first.
    #[must_use]
    pub fn reports(&self) -> Vec<Report> {
        self.findings.first()
    }

    /// The control side's part. A panic while it was held leaves it as usable as before: each change is one step.
    pub(super) fn control(&self) -> MutexGuard<'_, ControlBook> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn each_open(&self, visit: &mut dyn FnMut(QpId, &Snapshot)) {
        for book in &self.control().qps {
            book.open().for_each(|open| visit(book.qp, &open));
        }
    }

    /// Queues before the table: a bind is entered there before it leaves its queue, so none is missed.
    fn each_key(&self, visit: &mut dyn FnMut(LiveKey)) {
        let control = self.control();
        for book in &control.qps {
            for bind in book.open_binds() {
                visit(LiveKey {
                    rkey: bind.rkey,
                    qp: Some(book.qp),
                    address: bind.address,
                    len: bind.len,
                    rights: bind.rights,
                    confirmed: false,
                });
            }
        }
        self.keys.live().map(LiveKey::from).for_each(&mut *visit);
        let regions = control.regions.values();
        regions.filter_map(|region| region.key).for_each(visit);
    }
}

impl ControlBook {
    pub fn book(&self, qp: QpId) -> Option<&Arc<QpBook>> {
        self.qps.iter().find(|book| book.qp == qp)
    }

    /// Whether something in this domain stands, and nobody has begun to end it.
    pub fn uses(&self, pd: PdId) -> bool {
        let mut regions = self.regions.values();
        let mut qps = self.qps.iter();
        regions.any(|region| region.pd == pd && !region.ending)
            || qps.any(|book| book.pd == pd && !book.is_ending())
    }

    pub fn enter_window(&mut self, window: &Window, qp: QpId) {
        self.windows.insert(window.id, (window.rkey, qp));
        self.indexes.insert(window.rkey.index());
    }
}

impl fmt::Debug for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ledger")
            .field("live_keys", &self.all_live_keys())
            .field("open_requests", &self.open_requests())
            .field("reports", &self.reports())
            .finish()
    }
}

impl From<KeyRecord> for LiveKey {
    fn from(record: KeyRecord) -> Self {
        Self {
            rkey: record.bind.rkey,
            qp: Some(record.qp),
            address: record.bind.address,
            len: record.bind.len,
            rights: record.bind.rights,
            confirmed: true,
        }
    }
}

impl fmt::Display for LiveKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.confirmed {
            "live"
        } else {
            "maybe live (bind not confirmed)"
        };
        write!(
            f,
            "{:?} is {state}: {} bytes at {:#x}",
            self.rkey, self.len, self.address
        )?;
        match self.qp {
            Some(qp) => write!(f, " through qp {qp}"),
            None => f.write_str(" through every qp of its protection domain"),
        }
    }
}

impl fmt::Display for OpenWork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let access = if self.op.writes_local() {
            "store to"
        } else {
            "load from"
        };
        write!(
            f,
            "{:?} {:#x} on qp {} is not proven ended: may {access} {} bytes at {:#x}",
            self.op, self.id.0, self.qp, self.len, self.address
        )
    }
}

fn overlaps(range: &Range<u64>, address: u64, len: u64) -> bool {
    address < range.end && range.start < address.saturating_add(len)
}

fn touched(open: &Snapshot, range: &Range<u64>) -> Option<(u64, u64)> {
    open.local()
        .find(|(address, len)| overlaps(range, *address, *len))
}

fn open_work(qp: QpId, open: &Snapshot, address: u64, len: u64) -> OpenWork {
    OpenWork {
        qp,
        id: open.id,
        op: open.op(),
        address,
        len,
    }
}
