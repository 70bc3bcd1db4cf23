//! `Check`: the oracle. It keeps books of a device's keys and requests from what crosses the contract alone: posts, completions
//! and returns of control calls. It is double entry and not a mirror: it knows none of the runtime's tables and none of the driver's.
//!
//! The books are conservative. A key counts from its bind's post, a request from before the device has it; both count until one of
//! the proofs of the contract's rules 1 and 7. A failed bind or invalidation, a flush, a timeout: prove nothing.
//!
//! Where the books are full the checker takes a short prefix, as a full queue does: nothing passes it unseen.

mod entry;
mod keys;
mod ledger;
mod path;
mod queue;
mod violation;

#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use keyfence_mempool::arena::Arena;
use keyfence_mempool::ring::spsc;
use keyfence_mempool::sync::Arc;

pub use entry::OpenOp;
pub use ledger::{Ledger, LiveKey, OpenWork};
pub use path::CheckPath;
pub use violation::{Party, Report, Violation};

use self::ledger::RegionBook;
use self::queue::QpBook;
use crate::device::{Access, Caps, Control, ControlEvent, Device, QpConfig, Region, Window};
use crate::error::{ControlError, OpenPathError};
use crate::ids::{LcoreId, PdId, QpId, RegionId, RequestId, Rkey, WindowId};
use crate::work::Rights;

/// A device with an oracle around it.
pub struct Check<D> {
    inner: D,
    ledger: Arc<Ledger>,
    doors: Mutex<Vec<Door>>,
}

/// How new queue pairs reach the path of a lcore.
struct Door {
    lcore: LcoreId,
    books: spsc::Producer<Arc<QpBook>>,
    /// Slots of the ring promised to calls that are under way.
    reserved: usize,
}

/// Queue pairs that a lcore may have made and not yet looked at; and all it may have is this many times the device's, or fewer.
const DOOR_SLOTS: usize = 1024;

impl<D: Device> Check<D> {
    /// Puts books around a device. Nothing may have been made on it before.
    pub fn new(inner: D) -> Self {
        Self {
            inner,
            ledger: Arc::new(Ledger::new()),
            doors: Mutex::new(Vec::new()),
        }
    }

    /// The books.
    #[must_use]
    pub fn ledger(&self) -> Arc<Ledger> {
        Arc::clone(&self.ledger)
    }

    /// The device within.
    #[must_use]
    pub fn inner(&self) -> &D {
        &self.inner
    }

    fn doors(&self) -> MutexGuard<'_, Vec<Door>> {
        self.doors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reserve_door(&self, lcore: LcoreId) -> Result<(), ControlError> {
        let mut doors = self.doors();
        let door = doors.iter_mut().find(|door| door.lcore == lcore);
        let door = door.ok_or(ControlError::NoSuchLcore(lcore))?;
        if door.books.len() + door.reserved >= DOOR_SLOTS {
            return Err(ControlError::Exhausted {
                what: "queue pairs that their lcore has not looked at",
                limit: DOOR_SLOTS as u64,
            });
        }
        door.reserved += 1;
        Ok(())
    }

    /// Enters a new queue pair before its id is known to anybody who could post to it.
    fn enter_qp(&self, qp: QpId, config: &QpConfig, door: &mut Door) {
        let book = Arc::new(QpBook::new(qp, config));
        let mut control = self.ledger.control();
        if control.book(qp).is_some() || control.gone.contains_key(&qp) {
            let findings = &self.ledger.findings;
            findings.report(Violation::NameReused, qp, u64::from(qp.0));
        }
        control.qps.push(Arc::clone(&book));
        let pushed = door.books.push(book);
        assert!(pushed.is_ok(), "a slot was reserved before the call");
    }

    /// Enters a new window. Its number may still be in the books for the moment between the device's and the checker's end of a
    /// `dealloc_window` on another thread.
    fn enter_window(&self, qp: QpId, window: &Window) {
        for _ in 0..REUSE_PATIENCE {
            let mut control = self.ledger.control();
            let taken = control.indexes.contains(&window.rkey.index());
            if !taken && !control.windows.contains_key(&window.id) {
                self.ledger.keys.admit(window.id, window.rkey, qp);
                control.enter_window(window, qp);
                return;
            }
            drop(control);
            std::thread::yield_now();
        }
        let findings = &self.ledger.findings;
        findings.report(Violation::NameReused, qp, u64::from(window.id.0));
        self.ledger.keys.admit(window.id, window.rkey, qp);
        self.ledger.control().enter_window(window, qp);
    }

    /// Notes that somebody begins to connect a queue pair, or moves it to error.
    fn begin(&self, qp: QpId) {
        if let Some(book) = self.ledger.control().book(qp) {
            book.begin();
        }
    }

    fn report(&self, violation: Violation, qp: QpId, detail: u32) {
        let detail = u64::from(detail);
        self.ledger.findings.report(violation, qp, detail);
    }

    /// Before a window is ended: the caller must not have its invalidation under way.
    fn judge_dealloc(&self, window: WindowId, rkey: Rkey, qp: QpId) {
        let book = self.ledger.control().book(qp).map(Arc::clone);
        if book.is_some_and(|book| book.is_invalidating(rkey)) {
            self.report(Violation::DeallocInvalidating, qp, window.0);
        }
        self.ledger.keys.note_dealloc(rkey);
    }

    /// Judges an event that was polled when `gone` queue pairs had been destroyed.
    fn judge_event(&self, event: &ControlEvent, gone: u64) {
        let (ControlEvent::Connected { qp, .. } | ControlEvent::Rejected { qp, .. }) = *event
        else {
            return;
        };
        let control = self.ledger.control();
        let late = control.gone.get(&qp).is_some_and(|at| *at <= gone);
        let known = control.book(qp).is_some() || control.gone.contains_key(&qp);
        drop(control);
        if late || !known {
            self.report(Violation::StrayEvent, qp, qp.0);
        }
    }
}

const REUSE_PATIENCE: u32 = 1000;
/// What a finding names that is about no queue pair.
const NO_QP: QpId = QpId(u32::MAX);

impl<D: Device> Control for Check<D> {
    fn caps(&self) -> &Caps {
        self.inner.caps()
    }

    fn alloc_pd(&self) -> Result<PdId, ControlError> {
        self.inner.alloc_pd()
    }

    fn dealloc_pd(&self, pd: PdId) -> Result<(), ControlError> {
        let used = self.ledger.control().uses(pd);
        self.inner.dealloc_pd(pd)?;
        if used && self.ledger.control().uses(pd) {
            self.report(Violation::DomainEndedInUse, NO_QP, pd.0);
        }
        Ok(())
    }

    fn register(
        &self,
        pd: PdId,
        arena: &Arc<Arena>,
        range: Range<usize>,
        access: Access,
    ) -> Result<Region, ControlError> {
        let region = self.inner.register(pd, arena, range.clone(), access)?;
        let key = LiveKey {
            rkey: region.rkey,
            qp: None,
            address: arena.address() + range.start as u64,
            len: range.len() as u64,
            rights: access.remote,
            confirmed: true,
        };
        let book = RegionBook {
            pd,
            key: (access.remote != Rights::NONE).then_some(key),
            ending: false,
        };
        let known = self.ledger.control().regions.insert(region.id, book);
        if known.is_some_and(|known| !known.ending) {
            self.report(Violation::NameReused, NO_QP, region.id.0);
        }
        Ok(region)
    }

    fn deregister(&self, region: RegionId) -> Result<(), ControlError> {
        if let Some(book) = self.ledger.control().regions.get_mut(&region) {
            book.ending = true;
        }
        self.inner.deregister(region).inspect_err(|error| {
            // Of one that is late nothing is certain any more.
            let stands = matches!(error, ControlError::InUse { .. });
            if let Some(book) = self.ledger.control().regions.get_mut(&region) {
                book.ending = !stands;
            }
        })?;
        if let Some(bound) = self.ledger.keys.bound_to(region) {
            self.report(Violation::DeregisteredBound, bound.qp, region.0);
        }
        let mut control = self.ledger.control();
        // Another thread may be given the number again between the device's end and ours: that one is not ending.
        if control.regions.get(&region).is_some_and(|book| book.ending) {
            control.regions.remove(&region);
        }
        Ok(())
    }

    fn create_qp(&self, config: &QpConfig) -> Result<QpId, ControlError> {
        self.reserve_door(config.lcore)?;
        // Not under the lock: a call that hangs must not take the others with it.
        let made = self.inner.create_qp(config);
        let mut doors = self.doors();
        let door = doors.iter_mut().find(|door| door.lcore == config.lcore);
        let door = door.ok_or(ControlError::NoSuchLcore(config.lcore))?;
        door.reserved -= 1;
        let qp = made?;
        self.enter_qp(qp, config, door);
        Ok(qp)
    }

    fn listen(&self, address: &str) -> Result<(), ControlError> {
        self.inner.listen(address)
    }

    fn start_connect(&self, qp: QpId, address: &str, private: &[u8]) -> Result<(), ControlError> {
        self.begin(qp);
        self.inner.start_connect(qp, address, private)
    }

    fn accept(&self, request: RequestId, qp: QpId, private: &[u8]) -> Result<(), ControlError> {
        self.begin(qp);
        self.inner.accept(request, qp, private)
    }

    fn reject(&self, request: RequestId, private: &[u8]) -> Result<(), ControlError> {
        self.inner.reject(request, private)
    }

    fn poll_event(&self) -> Option<ControlEvent> {
        let gone = self.ledger.control().gone.len() as u64;
        let event = self.inner.poll_event()?;
        self.judge_event(&event, gone);
        Some(event)
    }

    fn error_qp(&self, qp: QpId) -> Result<(), ControlError> {
        self.begin(qp);
        self.inner.error_qp(qp)?;
        if let Some(book) = self.ledger.control().book(qp) {
            book.note_error();
        }
        Ok(())
    }

    fn destroy_qp(&self, qp: QpId) -> Result<(), ControlError> {
        if let Some(book) = self.ledger.control().book(qp) {
            book.note_ending();
        }
        self.inner.destroy_qp(qp)?;
        let mut control = self.ledger.control();
        let gone = control.gone.len() as u64 + 1;
        control.gone.insert(qp, gone);
        let books = control.qps.iter();
        for book in books.filter(|book| book.qp == qp) {
            if !book.is_released() {
                let findings = &self.ledger.findings;
                findings.report(Violation::DestroyedUnreleased, qp, u64::from(qp.0));
            }
            book.destroy();
        }
        control.qps.retain(|book| book.qp != qp);
        let windows = control.windows.values();
        windows
            .filter(|(_, of)| *of == qp)
            .for_each(|(rkey, _)| self.ledger.keys.end_index(*rkey));
        Ok(())
    }

    fn alloc_window(&self, qp: QpId) -> Result<Window, ControlError> {
        let window = self.inner.alloc_window(qp)?;
        self.enter_window(qp, &window);
        Ok(window)
    }

    fn dealloc_window(&self, window: WindowId) -> Result<(), ControlError> {
        let known = self.ledger.control().windows.get(&window).copied();
        if let Some((rkey, qp)) = known {
            self.judge_dealloc(window, rkey, qp);
        }
        self.inner.dealloc_window(window)?;
        let mut control = self.ledger.control();
        let Some((rkey, qp)) = control.windows.get(&window).copied() else {
            return Ok(());
        };
        // Binds still in a queue first: their path looks at this mark after it has entered a key.
        let mut books = control.qps.iter();
        if let Some(book) = books.find(|book| book.qp == qp) {
            book.end_binds(window);
        }
        self.ledger.keys.end_index(rkey);
        control.windows.remove(&window);
        control.indexes.remove(&rkey.index());
        Ok(())
    }
}

impl<D: Device> Device for Check<D> {
    type Path = CheckPath<D::Path>;

    fn open_path(&self, lcore: LcoreId) -> Result<Self::Path, OpenPathError> {
        let path = self.inner.open_path(lcore)?;
        let (books, arrivals) = spsc::ring(DOOR_SLOTS);
        self.doors().push(Door {
            lcore,
            books,
            reserved: 0,
        });
        let most = (self.inner.caps().max_qps as usize).min(DOOR_SLOTS * 8);
        Ok(CheckPath::new(path, self.ledger(), arrivals, most))
    }
}
