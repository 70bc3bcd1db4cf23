//! A device that tells the books which keys are bound, counts what is posted, and keeps the last of it for whoever has to read a failure.

use std::collections::VecDeque;
use std::fmt::Write;
use std::ops::Range;
use std::sync::{Arc as StdArc, Mutex, MutexGuard, PoisonError};

use keyfence::pmd::{
    Access, Caps, Completion, Control, ControlError, ControlEvent, DataPath, Device, LcoreId,
    OpenPathError, PdId, QpConfig, QpId, ReceiveRequest, Region, RegionId, RequestId, Window,
    WindowId, WorkOp, WorkRequest,
};
use keyfence_mempool::arena::Arena;
use keyfence_mempool::sync::Arc;

use super::books::Shared;
use super::budget::StepBudget;

/// Lines that are kept.
const KEPT: usize = 1_000_000;

/// What passed the taps of one run.
#[derive(Clone, Default)]
pub struct Tape(StdArc<Mutex<Reel>>);

#[derive(Default)]
pub struct Reel {
    /// Work requests that devices have taken.
    pub posted: u64,
    /// Registrations that came back as late: whether there is a region is not known.
    pub late_registrations: u64,
    lines: VecDeque<String>,
    keeps: bool,
    /// The present.
    pub now_ns: u64,
}

impl Tape {
    /// Whether lines are kept: a replay needs them, a sweep is quicker without.
    pub fn new(keeps: bool) -> Self {
        let tape = Self::default();
        tape.reel().keeps = keeps;
        tape
    }

    pub fn reel(&self) -> MutexGuard<'_, Reel> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reel {
    pub fn note(&mut self, line: impl FnOnce(&mut String)) {
        if !self.keeps {
            return;
        }
        if self.lines.len() == KEPT {
            self.lines.pop_front();
        }
        let mut text = format!("{:>9} ", self.now_ns);
        line(&mut text);
        self.lines.push_back(text);
    }

    pub fn lines(&self) -> Vec<String> {
        self.lines.iter().cloned().collect()
    }
}

pub struct Tap<D> {
    inner: D,
    host: usize,
    /// What reclaims may post in a step of an lcore.
    budget_wrs: u32,
    books: Shared,
    tape: Tape,
}

pub struct TapPath<P> {
    inner: P,
    host: usize,
    budget: StepBudget,
    books: Shared,
    tape: Tape,
}

impl<D: Device> Tap<D> {
    /// Of a host, whose reclaims may post so much in a step of an lcore.
    pub fn new(inner: D, (host, budget_wrs): (usize, u32), books: Shared, tape: Tape) -> Self {
        Self {
            inner,
            host,
            budget_wrs,
            books,
            tape,
        }
    }

    fn told<T>(
        &self,
        call: &str,
        about: u64,
        result: Result<T, ControlError>,
    ) -> Result<T, ControlError> {
        self.tape.reel().note(|line| {
            let end = match &result {
                Ok(_) => "done".to_owned(),
                Err(error) => error.to_string(),
            };
            let _ = write!(line, "engine {}: {call} {about}: {end}", self.host);
        });
        result
    }
}

impl<D: Device> Control for Tap<D> {
    fn caps(&self) -> &Caps {
        self.inner.caps()
    }
    fn alloc_pd(&self) -> Result<PdId, ControlError> {
        self.told("alloc_pd", 0, self.inner.alloc_pd())
    }
    fn dealloc_pd(&self, pd: PdId) -> Result<(), ControlError> {
        self.told("dealloc_pd", pd.0.into(), self.inner.dealloc_pd(pd))
    }
    fn register(
        &self,
        pd: PdId,
        arena: &Arc<Arena>,
        range: Range<usize>,
        access: Access,
    ) -> Result<Region, ControlError> {
        let start = range.start as u64;
        let made = self.inner.register(pd, arena, range, access);
        if matches!(made, Err(ControlError::Late { .. })) {
            self.tape.reel().late_registrations += 1;
        }
        self.told("register", start, made)
    }
    fn deregister(&self, region: RegionId) -> Result<(), ControlError> {
        self.told("deregister", region.0.into(), self.inner.deregister(region))
    }
    fn create_qp(&self, config: &QpConfig) -> Result<QpId, ControlError> {
        self.told(
            "create_qp",
            config.pd.0.into(),
            self.inner.create_qp(config),
        )
    }
    fn listen(&self, address: &str) -> Result<(), ControlError> {
        self.told("listen", 0, self.inner.listen(address))
    }
    fn start_connect(&self, qp: QpId, address: &str, private: &[u8]) -> Result<(), ControlError> {
        self.told(
            "start_connect",
            qp.0.into(),
            self.inner.start_connect(qp, address, private),
        )
    }
    fn accept(&self, request: RequestId, qp: QpId, private: &[u8]) -> Result<(), ControlError> {
        self.told(
            "accept",
            qp.0.into(),
            self.inner.accept(request, qp, private),
        )
    }
    fn reject(&self, request: RequestId, private: &[u8]) -> Result<(), ControlError> {
        self.told("reject", 0, self.inner.reject(request, private))
    }
    fn poll_event(&self) -> Option<ControlEvent> {
        self.inner.poll_event()
    }
    fn error_qp(&self, qp: QpId) -> Result<(), ControlError> {
        self.told("error_qp", qp.0.into(), self.inner.error_qp(qp))
    }
    fn destroy_qp(&self, qp: QpId) -> Result<(), ControlError> {
        self.told("destroy_qp", qp.0.into(), self.inner.destroy_qp(qp))
    }
    fn alloc_window(&self, qp: QpId) -> Result<Window, ControlError> {
        self.inner.alloc_window(qp)
    }
    fn dealloc_window(&self, window: WindowId) -> Result<(), ControlError> {
        self.told(
            "dealloc_window",
            window.0.into(),
            self.inner.dealloc_window(window),
        )
    }
}

impl<D: Device> Device for Tap<D> {
    type Path = TapPath<D::Path>;

    fn open_path(&self, lcore: LcoreId) -> Result<Self::Path, OpenPathError> {
        Ok(TapPath {
            inner: self.inner.open_path(lcore)?,
            host: self.host,
            budget: StepBudget::new(self.budget_wrs),
            books: self.books.clone(),
            tape: self.tape.clone(),
        })
    }
}

impl<P: DataPath> DataPath for TapPath<P> {
    fn post_burst(&mut self, qp: QpId, work: &[WorkRequest]) -> usize {
        let taken = self.inner.post_burst(qp, work);
        for request in &work[..taken] {
            if let WorkOp::Bind {
                address, len, rkey, ..
            } = request.op
            {
                self.books
                    .open()
                    .bound(self.host, qp, rkey, address..address + len);
            }
        }
        let mut reel = self.tape.reel();
        reel.posted += taken as u64;
        if let Some(spent) = self.budget.spend(reel.now_ns, qp, &work[..taken]) {
            let what = format!(
                "engine {}: reclaims post {spent} requests in a step",
                self.host
            );
            self.books.open().fail("r5_budget", what);
        }
        for request in &work[..taken] {
            let host = self.host;
            reel.note(|line| {
                let _ = write!(
                    line,
                    "engine {host}: {qp:?} posts {:x} {:?}",
                    request.id.0, request.op
                );
            });
        }
        taken
    }

    fn post_receives(&mut self, qp: QpId, receives: &[ReceiveRequest]) -> usize {
        self.inner.post_receives(qp, receives)
    }

    fn poll_burst(&mut self, done: &mut [Completion]) -> usize {
        let count = self.inner.poll_burst(done);
        let mut reel = self.tape.reel();
        for done in &done[..count] {
            let host = self.host;
            reel.note(|line| {
                let _ = write!(
                    line,
                    "engine {host}: {:?} ends {:x} {:?} {:?}",
                    done.qp, done.id.0, done.kind, done.status
                );
            });
        }
        count
    }

    fn release_qp(&mut self, qp: QpId) {
        self.inner.release_qp(qp);
    }
}
