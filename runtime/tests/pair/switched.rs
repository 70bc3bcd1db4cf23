//! A device whose faults a test switches on and off while it runs.

use core::ops::Range;
use std::sync::Mutex;

use keyfence::pmd::*;
use keyfence_mempool::Arena;
use keyfence_mempool::sync::{Arc, AtomicBool, AtomicU64, Ordering};

/// The test's side.
#[derive(Debug, Default)]
pub struct Switches {
    /// So many completions of posted requests are swallowed from now on; `u64::MAX` for all.
    pub swallow: AtomicU64,
    /// Deallocations and deregistrations hang: nothing is done.
    pub dealloc_hangs: AtomicBool,
    /// How long a registration takes, and a deregistration, and how long all did: it is the test that lets the time pass.
    pub register_ns: AtomicU64,
    pub deregister_ns: AtomicU64,
    pub spent_ns: AtomicU64,
    /// Ends of protection domains hang.
    pub pd_hangs: AtomicBool,
    /// Destructions hang.
    pub destroy_hangs: AtomicBool,
    /// Moving a queue pair to error hangs.
    pub error_hangs: AtomicBool,
    /// Queue pairs can't be made.
    pub create_fails: AtomicBool,
    /// The queue pair that was made last is moved to error with the next look for events, which takes this back.
    pub break_last: AtomicBool,
    /// Its number.
    pub last_qp: AtomicU64,
    /// Queue pairs that exist.
    pub qps: AtomicU64,
    /// Writes of no bytes that were posted: closing requests.
    pub closings: AtomicU64,
    /// Windows that exist.
    pub windows: AtomicU64,
    /// Regions that exist.
    pub regions: AtomicU64,
    /// Protection domains that exist.
    pub pds: AtomicU64,
    /// Where every write and read that is posted goes instead of where it should.
    pub forged: Mutex<Option<Remote>>,
    /// Those alone that go into this range, if there is one.
    pub forged_within: Mutex<Option<Range<u64>>>,
    /// The next poll panics, which takes this back.
    pub panics: AtomicBool,
    /// Bytes of each request that was posted inline.
    pub inline: Mutex<Vec<u64>>,
    /// What was registered, in this order.
    pub registered: Mutex<Vec<(Range<usize>, Access, Region)>>,
}

impl Switches {
    fn takes(&self, ns: &AtomicU64) {
        self.spent_ns
            .fetch_add(ns.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

pub fn on(switch: &AtomicBool) {
    switch.store(true, Ordering::Relaxed);
}

pub fn off(switch: &AtomicBool) {
    switch.store(false, Ordering::Relaxed);
}

pub fn set(switch: &AtomicU64, value: u64) {
    switch.store(value, Ordering::Relaxed);
}

pub struct Switched<D> {
    inner: D,
    caps: Caps,
    switches: Arc<Switches>,
}

pub struct SwitchedPath<P> {
    inner: P,
    switches: Arc<Switches>,
}

impl<D: Device> Switched<D> {
    pub fn new(inner: D) -> (Self, Arc<Switches>) {
        let switches = Arc::new(Switches::default());
        let device = Self {
            caps: inner.caps().clone(),
            inner,
            switches: Arc::clone(&switches),
        };
        (device, switches)
    }

    /// A device that says something else of itself.
    pub fn saying(mut self, change: impl FnOnce(&mut Caps)) -> Self {
        change(&mut self.caps);
        self
    }
}

const LATE: ControlError = ControlError::Late { waited_ns: 1 };

fn hangs(switch: &AtomicBool) -> Result<(), ControlError> {
    if switch.load(Ordering::Relaxed) {
        Err(LATE)
    } else {
        Ok(())
    }
}

impl<D: Device> Control for Switched<D> {
    fn caps(&self) -> &Caps {
        &self.caps
    }
    fn alloc_pd(&self) -> Result<PdId, ControlError> {
        let pd = self.inner.alloc_pd()?;
        self.switches.pds.fetch_add(1, Ordering::Relaxed);
        Ok(pd)
    }
    fn dealloc_pd(&self, pd: PdId) -> Result<(), ControlError> {
        hangs(&self.switches.pd_hangs)?;
        self.inner.dealloc_pd(pd)?;
        self.switches.pds.fetch_sub(1, Ordering::Relaxed);
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
        self.switches.takes(&self.switches.register_ns);
        let mut registered = self.switches.registered.lock().unwrap();
        registered.push((range, access, region));
        self.switches.regions.fetch_add(1, Ordering::Relaxed);
        Ok(region)
    }
    fn deregister(&self, region: RegionId) -> Result<(), ControlError> {
        hangs(&self.switches.dealloc_hangs)?;
        self.inner.deregister(region)?;
        self.switches.takes(&self.switches.deregister_ns);
        self.switches.regions.fetch_sub(1, Ordering::Relaxed);
        Ok(())
    }
    fn create_qp(&self, config: &QpConfig) -> Result<QpId, ControlError> {
        hangs(&self.switches.create_fails)?;
        let qp = self.inner.create_qp(config)?;
        self.switches.qps.fetch_add(1, Ordering::Relaxed);
        set(&self.switches.last_qp, qp.0.into());
        Ok(qp)
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
        if self.switches.break_last.swap(false, Ordering::Relaxed) {
            let last = QpId(self.switches.last_qp.load(Ordering::Relaxed) as u32);
            self.inner.error_qp(last).unwrap();
        }
        self.inner.poll_event()
    }
    fn error_qp(&self, qp: QpId) -> Result<(), ControlError> {
        hangs(&self.switches.error_hangs)?;
        self.inner.error_qp(qp)
    }
    fn destroy_qp(&self, qp: QpId) -> Result<(), ControlError> {
        hangs(&self.switches.destroy_hangs)?;
        self.inner.destroy_qp(qp)?;
        self.switches.qps.fetch_sub(1, Ordering::Relaxed);
        Ok(())
    }
    fn alloc_window(&self, qp: QpId) -> Result<Window, ControlError> {
        let window = self.inner.alloc_window(qp)?;
        self.switches.windows.fetch_add(1, Ordering::Relaxed);
        Ok(window)
    }
    fn dealloc_window(&self, window: WindowId) -> Result<(), ControlError> {
        hangs(&self.switches.dealloc_hangs)?;
        self.inner.dealloc_window(window)?;
        self.switches.windows.fetch_sub(1, Ordering::Relaxed);
        Ok(())
    }
}

fn forge(mut work: WorkRequest, to: Remote, within: &Option<Range<u64>>) -> WorkRequest {
    if let WorkOp::Write { remote, .. } | WorkOp::Read { remote } = &mut work.op
        && within
            .as_ref()
            .is_none_or(|range| range.contains(&remote.address))
    {
        *remote = to;
    }
    work
}

impl<D: Device> Device for Switched<D> {
    type Path = SwitchedPath<D::Path>;
    fn open_path(&self, lcore: LcoreId) -> Result<Self::Path, OpenPathError> {
        Ok(SwitchedPath {
            inner: self.inner.open_path(lcore)?,
            switches: Arc::clone(&self.switches),
        })
    }
}

impl<P: DataPath> DataPath for SwitchedPath<P> {
    fn post_burst(&mut self, qp: QpId, work: &[WorkRequest]) -> usize {
        let taken = match *self.switches.forged.lock().unwrap() {
            Some(remote) => {
                let within = self.switches.forged_within.lock().unwrap();
                let forged = |work: &WorkRequest| forge(*work, remote, &within);
                let work: Vec<_> = work.iter().map(forged).collect();
                self.inner.post_burst(qp, &work)
            }
            None => self.inner.post_burst(qp, work),
        };
        let inline = work[..taken].iter().filter(|work| work.inline);
        let bytes = inline.map(|work| work.sges.bytes());
        self.switches.inline.lock().unwrap().extend(bytes);
        let closes =
            |work: &&WorkRequest| matches!(work.op, WorkOp::Write { .. }) && work.sges.bytes() == 0;
        let closings = work[..taken].iter().filter(closes).count();
        self.switches
            .closings
            .fetch_add(closings as u64, Ordering::Relaxed);
        taken
    }
    fn post_receives(&mut self, qp: QpId, receives: &[ReceiveRequest]) -> usize {
        self.inner.post_receives(qp, receives)
    }
    fn poll_burst(&mut self, done: &mut [Completion]) -> usize {
        assert!(
            !self.switches.panics.swap(false, Ordering::Relaxed),
            "planted"
        );
        let count = self.inner.poll_burst(done);
        let mut kept = 0;
        for at in 0..count {
            // The runtime marks its receives by the highest bit; a test's device may know.
            let posted = done[at].id.0 >> 63 == 0;
            let left = self.switches.swallow.load(Ordering::Relaxed);
            if posted && left > 0 {
                if left < u64::MAX {
                    set(&self.switches.swallow, left - 1);
                }
                continue;
            }
            done[kept] = done[at];
            kept += 1;
        }
        kept
    }
    fn release_qp(&mut self, qp: QpId) {
        self.inner.release_qp(qp);
    }
}
