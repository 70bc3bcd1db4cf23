//! `Trace`: a flight recorder. Every post, completion and control call goes into a bounded ring of fixed-size records; the newest
//! stay. One ring a path, written by its lcore alone and without a lock, and one for control calls. Any thread may read.
//!
//! Sequence numbers are common to all rings of one device: a path draws one run of numbers a burst, so that records of several
//! lcores can be put in one order.

mod record;
mod ring;

#[cfg(test)]
mod tests;

use std::fmt;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use keyfence_mempool::arena::Arena;
use keyfence_mempool::sync::{Arc, AtomicU64, Ordering};

pub use record::{ControlCall, Event, OpCode, Record};

use self::ring::Ring;
use crate::completion::Completion;
use crate::device::{
    Access, Caps, Control, ControlEvent, DataPath, Device, QpConfig, Region, Window,
};
use crate::error::{ControlError, OpenPathError};
use crate::ids::{LcoreId, PdId, QpId, RegionId, RequestId, WindowId};
use crate::work::{ReceiveRequest, WorkRequest};

/// A device with a flight recorder.
pub struct Trace<D> {
    inner: D,
    log: Arc<TraceLog>,
}

/// The poll path of [`Trace`].
pub struct TracePath<P> {
    inner: P,
    log: Arc<TraceLog>,
    ring: Arc<Ring>,
}

/// What was recorded; shared with whoever looks.
pub struct TraceLog {
    records_per_ring: usize,
    next: AtomicU64,
    /// Written by control threads, one at a time.
    control: Mutex<Arc<Ring>>,
    rings: Mutex<Vec<(LcoreId, Arc<Ring>)>>,
}

impl<D: Device> Trace<D> {
    /// Puts a recorder around a device, with rings of `records_per_ring` records of 64 bytes (rounded up to a power of two).
    pub fn new(inner: D, records_per_ring: usize) -> Self {
        Self {
            inner,
            log: Arc::new(TraceLog::new(records_per_ring)),
        }
    }

    /// The record.
    #[must_use]
    pub fn log(&self) -> Arc<TraceLog> {
        Arc::clone(&self.log)
    }

    /// The device within.
    #[must_use]
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// Records a control call with the objects it was about, after its return.
    fn note<T>(
        &self,
        call: ControlCall,
        objects: [u64; 2],
        made: impl FnOnce(&T) -> u64,
        result: Result<T, ControlError>,
    ) -> Result<T, ControlError> {
        let made = result.as_ref().map(made).ok();
        self.log.record_control(&Event::Control {
            call,
            objects,
            made,
        });
        result
    }
}

impl TraceLog {
    fn new(records_per_ring: usize) -> Self {
        Self {
            records_per_ring,
            next: AtomicU64::new(1),
            control: Mutex::new(Arc::new(Ring::new(records_per_ring))),
            rings: Mutex::new(Vec::new()),
        }
    }

    /// The newest records of all rings in the order of their sequence numbers. What is overwritten while it is read is left out.
    #[must_use]
    pub fn records(&self) -> Vec<Record> {
        let control = Arc::clone(&self.control());
        let mut records = Vec::new();
        control.read_into(None, &mut records);
        for (lcore, ring) in self.rings().iter() {
            ring.read_into(Some(*lcore), &mut records);
        }
        records.sort_by_key(|record| record.sequence);
        records
    }

    /// How many records were overwritten by newer ones.
    #[must_use]
    pub fn lost(&self) -> u64 {
        let rings = self.rings();
        let paths: u64 = rings.iter().map(|(_, ring)| ring.lost()).sum();
        drop(rings);
        paths + self.control().lost()
    }

    fn draw(&self, count: usize) -> u64 {
        self.next.fetch_add(count as u64, Ordering::Relaxed)
    }

    fn record_control(&self, event: &Event) {
        let ring = self.control();
        ring.push(self.draw(1), event);
    }

    fn control(&self) -> MutexGuard<'_, Arc<Ring>> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn rings(&self) -> MutexGuard<'_, Vec<(LcoreId, Arc<Ring>)>> {
        self.rings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One line a record, oldest first.
impl fmt::Display for TraceLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lost = self.lost();
        if lost > 0 {
            writeln!(f, "... {lost} older records were overwritten")?;
        }
        self.records()
            .iter()
            .try_for_each(|record| writeln!(f, "{record}"))
    }
}

impl<D: Device> Control for Trace<D> {
    fn caps(&self) -> &Caps {
        self.inner.caps()
    }

    fn alloc_pd(&self) -> Result<PdId, ControlError> {
        let result = self.inner.alloc_pd();
        self.note(ControlCall::AllocPd, [0; 2], |pd| pd.0.into(), result)
    }

    fn dealloc_pd(&self, pd: PdId) -> Result<(), ControlError> {
        let result = self.inner.dealloc_pd(pd);
        self.note(ControlCall::DeallocPd, [pd.0.into(), 0], |()| 0, result)
    }

    fn register(
        &self,
        pd: PdId,
        arena: &Arc<Arena>,
        range: Range<usize>,
        access: Access,
    ) -> Result<Region, ControlError> {
        let objects = [pd.0.into(), range.len() as u64];
        let result = self.inner.register(pd, arena, range, access);
        let made = |region: &Region| u64::from(region.id.0);
        self.note(ControlCall::Register, objects, made, result)
    }

    fn deregister(&self, region: RegionId) -> Result<(), ControlError> {
        let result = self.inner.deregister(region);
        self.note(
            ControlCall::Deregister,
            [region.0.into(), 0],
            |()| 0,
            result,
        )
    }

    fn create_qp(&self, config: &QpConfig) -> Result<QpId, ControlError> {
        let objects = [config.pd.0.into(), config.lcore.0.into()];
        let result = self.inner.create_qp(config);
        self.note(ControlCall::CreateQp, objects, |qp| qp.0.into(), result)
    }

    fn listen(&self, address: &str) -> Result<(), ControlError> {
        let result = self.inner.listen(address);
        self.note(ControlCall::Listen, [0; 2], |()| 0, result)
    }

    fn start_connect(&self, qp: QpId, address: &str, private: &[u8]) -> Result<(), ControlError> {
        let result = self.inner.start_connect(qp, address, private);
        let objects = [qp.0.into(), private.len() as u64];
        self.note(ControlCall::StartConnect, objects, |()| 0, result)
    }

    fn accept(&self, request: RequestId, qp: QpId, private: &[u8]) -> Result<(), ControlError> {
        let result = self.inner.accept(request, qp, private);
        self.note(
            ControlCall::Accept,
            [request.0, qp.0.into()],
            |()| 0,
            result,
        )
    }

    fn reject(&self, request: RequestId, private: &[u8]) -> Result<(), ControlError> {
        let result = self.inner.reject(request, private);
        self.note(ControlCall::Reject, [request.0, 0], |()| 0, result)
    }

    fn poll_event(&self) -> Option<ControlEvent> {
        let event = self.inner.poll_event();
        let (call, object) = match &event {
            None => return None,
            Some(ControlEvent::ConnectRequest { request, .. }) => {
                (ControlCall::EventConnectRequest, request.0)
            }
            Some(ControlEvent::Connected { qp, .. }) => (ControlCall::EventConnected, qp.0.into()),
            Some(ControlEvent::Rejected { qp, .. }) => (ControlCall::EventRejected, qp.0.into()),
        };
        self.log.record_control(&Event::Control {
            call,
            objects: [object, 0],
            made: Some(0),
        });
        event
    }

    fn error_qp(&self, qp: QpId) -> Result<(), ControlError> {
        let result = self.inner.error_qp(qp);
        self.note(ControlCall::ErrorQp, [qp.0.into(), 0], |()| 0, result)
    }

    fn destroy_qp(&self, qp: QpId) -> Result<(), ControlError> {
        let result = self.inner.destroy_qp(qp);
        self.note(ControlCall::DestroyQp, [qp.0.into(), 0], |()| 0, result)
    }

    fn alloc_window(&self, qp: QpId) -> Result<Window, ControlError> {
        let result = self.inner.alloc_window(qp);
        let made = |window: &Window| u64::from(window.id.0);
        self.note(ControlCall::AllocWindow, [qp.0.into(), 0], made, result)
    }

    fn dealloc_window(&self, window: WindowId) -> Result<(), ControlError> {
        let result = self.inner.dealloc_window(window);
        let objects = [window.0.into(), 0];
        self.note(ControlCall::DeallocWindow, objects, |()| 0, result)
    }
}

impl<D: Device> Device for Trace<D> {
    type Path = TracePath<D::Path>;

    fn open_path(&self, lcore: LcoreId) -> Result<Self::Path, OpenPathError> {
        let inner = self.inner.open_path(lcore)?;
        let ring = Arc::new(Ring::new(self.log.records_per_ring));
        self.log.rings().push((lcore, Arc::clone(&ring)));
        Ok(TracePath {
            inner,
            log: self.log(),
            ring,
        })
    }
}

impl<P: DataPath> DataPath for TracePath<P> {
    fn post_burst(&mut self, qp: QpId, work: &[WorkRequest]) -> usize {
        // Numbered before the device has them: on no other lcore can a record that they cause come earlier.
        let mut sequence = self.log.draw(work.len() + 1);
        let taken = self.inner.post_burst(qp, work);
        for request in &work[..taken.min(work.len())] {
            self.ring.push(sequence, &Event::posted(qp, request));
            sequence += 1;
        }
        if taken != work.len() {
            let event = Event::Short {
                qp,
                given: work.len() as u64,
                taken: taken as u64,
            };
            self.ring.push(sequence, &event);
        }
        taken
    }

    fn post_receives(&mut self, qp: QpId, receives: &[ReceiveRequest]) -> usize {
        let mut sequence = self.log.draw(receives.len() + 1);
        let taken = self.inner.post_receives(qp, receives);
        for receive in &receives[..taken.min(receives.len())] {
            self.ring
                .push(sequence, &Event::receive_posted(qp, receive));
            sequence += 1;
        }
        if taken != receives.len() {
            let event = Event::Short {
                qp,
                given: receives.len() as u64,
                taken: taken as u64,
            };
            self.ring.push(sequence, &event);
        }
        taken
    }

    fn poll_burst(&mut self, done: &mut [Completion]) -> usize {
        let count = self.inner.poll_burst(done);
        if count > 0 {
            let first = self.log.draw(count);
            for (sequence, completion) in (first..).zip(&done[..count]) {
                self.ring.push(sequence, &Event::Completed(*completion));
            }
        }
        count
    }

    fn release_qp(&mut self, qp: QpId) {
        self.inner.release_qp(qp);
        self.ring.push(self.log.draw(1), &Event::Released { qp });
    }
}
