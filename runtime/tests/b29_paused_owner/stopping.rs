//! An adapter whose first lcore stops when the test says so.

use core::ops::Range;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};

use keyfence::ids::LcoreId;
use keyfence::pmd::soft::{SoftDevice, SoftPath};
use keyfence::pmd::*;
use keyfence_mempool::Arena;
use keyfence_mempool::sync::{Arc, AtomicBool, Ordering};

/// Where an lcore that is to stop says that it has, and waits to be let go.
pub struct Gate {
    armed: AtomicBool,
    inside: SyncSender<()>,
    go: Mutex<Receiver<()>>,
}

/// The test's side of it.
pub struct Keeper {
    gate: Arc<Gate>,
    inside: Receiver<()>,
    go: SyncSender<()>,
}

impl Keeper {
    /// The next poll stops.
    pub fn arm(&self) {
        self.gate.armed.store(true, Ordering::Relaxed);
    }

    /// Waits until it has.
    pub fn stopped(&self) {
        self.inside.recv().unwrap();
    }

    pub fn go(&self) {
        self.go.send(()).unwrap();
    }
}

/// A software adapter whose first lcore can be stopped inside a poll: what a thread is that the kernel took off its CPU between a key check and a copy.
pub struct Stopping {
    inner: SoftDevice,
    gate: Arc<Gate>,
}

pub struct StoppingPath {
    inner: SoftPath,
    gate: Option<Arc<Gate>>,
}

impl Stopping {
    pub fn new(inner: SoftDevice) -> (Self, Keeper) {
        let (inside, to_test) = sync_channel(0);
        let (go, go_end) = sync_channel(0);
        let gate = Arc::new(Gate {
            armed: AtomicBool::new(false),
            inside,
            go: Mutex::new(go_end),
        });
        let device = Self {
            inner,
            gate: Arc::clone(&gate),
        };
        let keeper = Keeper {
            gate,
            inside: to_test,
            go,
        };
        (device, keeper)
    }
}

impl Control for Stopping {
    fn caps(&self) -> &Caps {
        self.inner.caps()
    }
    fn alloc_pd(&self) -> Result<PdId, ControlError> {
        self.inner.alloc_pd()
    }
    fn dealloc_pd(&self, pd: PdId) -> Result<(), ControlError> {
        self.inner.dealloc_pd(pd)
    }
    fn register(
        &self,
        pd: PdId,
        arena: &Arc<Arena>,
        range: Range<usize>,
        access: Access,
    ) -> Result<Region, ControlError> {
        self.inner.register(pd, arena, range, access)
    }
    fn deregister(&self, region: RegionId) -> Result<(), ControlError> {
        self.inner.deregister(region)
    }
    fn create_qp(&self, config: &QpConfig) -> Result<QpId, ControlError> {
        self.inner.create_qp(config)
    }
    fn listen(&self, address: &str) -> Result<(), ControlError> {
        self.inner.listen(address)
    }
    fn start_connect(&self, qp: QpId, address: &str, private: &[u8]) -> Result<(), ControlError> {
        self.inner.start_connect(qp, address, private)
    }
    fn accept(&self, request: RequestId, qp: QpId, private: &[u8]) -> Result<(), ControlError> {
        self.inner.accept(request, qp, private)
    }
    fn reject(&self, request: RequestId, private: &[u8]) -> Result<(), ControlError> {
        self.inner.reject(request, private)
    }
    fn poll_event(&self) -> Option<ControlEvent> {
        self.inner.poll_event()
    }
    fn error_qp(&self, qp: QpId) -> Result<(), ControlError> {
        self.inner.error_qp(qp)
    }
    fn destroy_qp(&self, qp: QpId) -> Result<(), ControlError> {
        self.inner.destroy_qp(qp)
    }
    fn alloc_window(&self, qp: QpId) -> Result<Window, ControlError> {
        self.inner.alloc_window(qp)
    }
    fn dealloc_window(&self, window: WindowId) -> Result<(), ControlError> {
        self.inner.dealloc_window(window)
    }
}

impl Device for Stopping {
    type Path = StoppingPath;
    fn open_path(&self, lcore: LcoreId) -> Result<Self::Path, OpenPathError> {
        let gate = (lcore == LcoreId(0)).then(|| Arc::clone(&self.gate));
        let inner = self.inner.open_path(lcore)?;
        Ok(StoppingPath { inner, gate })
    }
}

impl DataPath for StoppingPath {
    fn post_burst(&mut self, qp: QpId, work: &[WorkRequest]) -> usize {
        self.inner.post_burst(qp, work)
    }
    fn post_receives(&mut self, qp: QpId, receives: &[ReceiveRequest]) -> usize {
        self.inner.post_receives(qp, receives)
    }
    fn poll_burst(&mut self, done: &mut [Completion]) -> usize {
        if let Some(gate) = &self.gate
            && gate.armed.swap(false, Ordering::Relaxed)
        {
            let paused = self.inner.pause();
            gate.inside.send(()).unwrap();
            let go = gate.go.lock().unwrap_or_else(PoisonError::into_inner);
            go.recv().unwrap();
            drop(paused);
        }
        self.inner.poll_burst(done)
    }
    fn release_qp(&mut self, qp: QpId) {
        self.inner.release_qp(qp);
    }
}
