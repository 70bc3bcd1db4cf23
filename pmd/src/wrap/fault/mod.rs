//! `Fault`: makes any device misbehave from a [`Plan`], in the ways that real adapters do. Deterministic, and without sleeping.
//!
//! It corrupts nothing that a real device would not: completions come late or never, but in order; a failed completion's
//! undefined fields hold garbage, but never its id, queue pair or status.

mod path;
mod plan;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use keyfence_mempool::arena::Arena;
use keyfence_mempool::sync::{Arc, AtomicU32, AtomicU64, Ordering};

pub use path::FaultPath;
pub use plan::{ControlEffect, Injection, Plan, Span, Target};

use crate::device::{Access, Caps, Control, ControlEvent, Device, QpConfig, Region, Window};
use crate::error::{ControlError, OpenPathError};
use crate::ids::{LcoreId, PdId, QpId, RegionId, RequestId, WindowId};
use crate::wrap::trace::ControlCall;

/// A device that misbehaves.
pub struct Fault<D> {
    inner: Arc<D>,
    shared: Arc<Shared>,
    control: Mutex<ControlState>,
}

/// What control and paths both see.
struct Shared {
    plan: Plan,
    /// How often each injection struck.
    fired: Box<[AtomicU64]>,
    /// Queue pairs in the order of making; [`NONE`] where none was made yet.
    created: Box<[AtomicU32]>,
    created_count: AtomicU32,
    polls: AtomicU64,
}

#[derive(Default)]
struct ControlState {
    calls: BTreeMap<&'static str, u64>,
    /// Calls that were done but came back as late: (call, object).
    done_late: BTreeSet<(&'static str, u64)>,
    /// Events and the poll count at which they are due.
    events: VecDeque<(u64, ControlEvent)>,
}

const NONE: u32 = u32::MAX;
/// `Target::Created` can name this many.
const CREATED_MAX: usize = 4096;
/// What a late call says it waited.
const LATE: ControlError = ControlError::Late { waited_ns: 0 };

/// What is to be done about one control call.
enum Verdict {
    Go,
    Stop(ControlError),
    GoButLate,
    WasDone,
}

impl<D: Device> Fault<D> {
    /// Puts a fault plan around a device.
    pub fn new(inner: D, plan: Plan) -> Self {
        let shared = Shared {
            fired: plan.injections.iter().map(|_| AtomicU64::new(0)).collect(),
            created: (0..CREATED_MAX).map(|_| AtomicU32::new(NONE)).collect(),
            created_count: AtomicU32::new(0),
            polls: AtomicU64::new(0),
            plan,
        };
        Self {
            inner: Arc::new(inner),
            shared: Arc::new(shared),
            control: Mutex::new(ControlState::default()),
        }
    }

    /// How often each injection of the plan struck, in the plan's order. A test that wants a fault must look that it came.
    #[must_use]
    pub fn fired(&self) -> Vec<u64> {
        let fired = self.shared.fired.iter();
        fired.map(|count| count.load(Ordering::Relaxed)).collect()
    }

    /// The device within.
    #[must_use]
    pub fn inner(&self) -> &D {
        &self.inner
    }

    fn control(&self) -> MutexGuard<'_, ControlState> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks the next call of this kind up in the plan.
    fn judge(&self, call: ControlCall, object: u64) -> Verdict {
        let mut control = self.control();
        let name = call.name();
        if control.done_late.remove(&(name, object)) {
            return Verdict::WasDone;
        }
        let calls = control.calls.entry(name).or_insert(0);
        let number = *calls;
        *calls += 1;
        for (at, injection) in self.shared.plan.injections.iter().enumerate() {
            let Injection::Control {
                call: of,
                span,
                effect,
            } = injection
            else {
                continue;
            };
            if *of != call || !span.contains(number) {
                continue;
            }
            self.shared.strike(at);
            return match effect {
                ControlEffect::Refuse(error) => Verdict::Stop(error.clone()),
                ControlEffect::Late => Verdict::Stop(LATE),
                ControlEffect::LateButDone => Verdict::GoButLate,
            };
        }
        Verdict::Go
    }

    /// A call that makes something.
    fn make<T>(
        &self,
        call: ControlCall,
        inner: impl FnOnce(&D) -> Result<T, ControlError>,
    ) -> Result<T, ControlError> {
        match self.judge(call, u64::MAX) {
            Verdict::Stop(error) => Err(error),
            Verdict::GoButLate => inner(&self.inner).and(Err(LATE)),
            Verdict::Go | Verdict::WasDone => inner(&self.inner),
        }
    }

    /// A call about an object that returns nothing, and that may be made again after it came back late.
    fn act(
        &self,
        call: ControlCall,
        object: u64,
        inner: impl FnOnce(&D) -> Result<(), ControlError>,
    ) -> Result<(), ControlError> {
        match self.judge(call, object) {
            Verdict::Stop(error) => Err(error),
            Verdict::WasDone => Ok(()),
            Verdict::Go => inner(&self.inner),
            Verdict::GoButLate => {
                inner(&self.inner)?;
                self.control().done_late.insert((call.name(), object));
                Err(LATE)
            }
        }
    }
}

impl Shared {
    fn strike(&self, injection: usize) {
        self.fired[injection].fetch_add(1, Ordering::Relaxed);
    }

    fn note_created(&self, qp: QpId) {
        let number = self.created_count.fetch_add(1, Ordering::Relaxed);
        if let Some(slot) = self.created.get(number as usize) {
            slot.store(qp.0, Ordering::Release);
        }
    }

    fn is_target(&self, target: Target, qp: QpId) -> bool {
        match target {
            Target::Every => true,
            Target::Qp(of) => of == qp,
            Target::Created(number) => self
                .created
                .get(number as usize)
                .is_some_and(|slot| slot.load(Ordering::Acquire) == qp.0),
        }
    }
}

impl<D: Device> Control for Fault<D> {
    fn caps(&self) -> &Caps {
        self.inner.caps()
    }

    fn alloc_pd(&self) -> Result<PdId, ControlError> {
        self.make(ControlCall::AllocPd, D::alloc_pd)
    }

    fn dealloc_pd(&self, pd: PdId) -> Result<(), ControlError> {
        self.act(ControlCall::DeallocPd, pd.0.into(), |inner| {
            inner.dealloc_pd(pd)
        })
    }

    fn register(
        &self,
        pd: PdId,
        arena: &Arc<Arena>,
        range: Range<usize>,
        access: Access,
    ) -> Result<Region, ControlError> {
        self.make(ControlCall::Register, |inner| {
            inner.register(pd, arena, range, access)
        })
    }

    fn deregister(&self, region: RegionId) -> Result<(), ControlError> {
        self.act(ControlCall::Deregister, region.0.into(), |inner| {
            inner.deregister(region)
        })
    }

    fn create_qp(&self, config: &QpConfig) -> Result<QpId, ControlError> {
        let qp = self.make(ControlCall::CreateQp, |inner| inner.create_qp(config))?;
        self.shared.note_created(qp);
        Ok(qp)
    }

    fn listen(&self, address: &str) -> Result<(), ControlError> {
        self.make(ControlCall::Listen, |inner| inner.listen(address))
    }

    fn start_connect(&self, qp: QpId, address: &str, private: &[u8]) -> Result<(), ControlError> {
        self.act(ControlCall::StartConnect, qp.0.into(), |inner| {
            inner.start_connect(qp, address, private)
        })
    }

    fn accept(&self, request: RequestId, qp: QpId, private: &[u8]) -> Result<(), ControlError> {
        self.act(ControlCall::Accept, request.0, |inner| {
            inner.accept(request, qp, private)
        })
    }

    fn reject(&self, request: RequestId, private: &[u8]) -> Result<(), ControlError> {
        self.act(ControlCall::Reject, request.0, |inner| {
            inner.reject(request, private)
        })
    }

    fn poll_event(&self) -> Option<ControlEvent> {
        let shared = &self.shared;
        let held = |injection: &Injection| match injection {
            Injection::HoldEvents { polls } => Some(*polls),
            _ => None,
        };
        let mut injections = shared.plan.injections.iter().enumerate();
        let Some((at, polls)) = injections.find_map(|(at, of)| Some((at, held(of)?))) else {
            return self.inner.poll_event();
        };
        let now = shared.polls.load(Ordering::Relaxed);
        let mut control = self.control();
        while let Some(event) = self.inner.poll_event() {
            shared.strike(at);
            control.events.push_back((now + polls, event));
        }
        let is_due = control.events.front().is_some_and(|(due, _)| *due <= now);
        is_due
            .then(|| control.events.pop_front())
            .flatten()
            .map(|(_, event)| event)
    }

    fn error_qp(&self, qp: QpId) -> Result<(), ControlError> {
        self.act(ControlCall::ErrorQp, qp.0.into(), |inner| {
            inner.error_qp(qp)
        })
    }

    fn destroy_qp(&self, qp: QpId) -> Result<(), ControlError> {
        self.act(ControlCall::DestroyQp, qp.0.into(), |inner| {
            inner.destroy_qp(qp)
        })
    }

    fn alloc_window(&self, qp: QpId) -> Result<Window, ControlError> {
        self.make(ControlCall::AllocWindow, |inner| inner.alloc_window(qp))
    }

    fn dealloc_window(&self, window: WindowId) -> Result<(), ControlError> {
        self.act(ControlCall::DeallocWindow, window.0.into(), |inner| {
            inner.dealloc_window(window)
        })
    }
}

impl<D: Device> Device for Fault<D> {
    type Path = FaultPath<D>;

    fn open_path(&self, lcore: LcoreId) -> Result<Self::Path, OpenPathError> {
        let path = self.inner.open_path(lcore)?;
        let shared = Arc::clone(&self.shared);
        Ok(FaultPath::new(path, Arc::clone(&self.inner), shared, lcore))
    }
}
