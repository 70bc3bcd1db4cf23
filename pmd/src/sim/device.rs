//! A simulated adapter: its control calls, each of which may go wrong by chance, and its poll path.

use std::ops::Range;
use std::sync::Arc as StdArc;

use keyfence_mempool::arena::Arena;
use keyfence_mempool::sync::Arc;

use super::World;
use super::faults::SimFault;
use super::qp::QpRef;
use super::state::State;
use crate::completion::Completion;
use crate::device::{
    Access, Caps, Control, ControlEvent, DataPath, Device, QpConfig, Region, Window,
};
use crate::error::{ControlError, OpenPathError};
use crate::ids::{LcoreId, PdId, QpId, RegionId, RequestId, WindowId};
use crate::work::{ReceiveRequest, WorkRequest};

/// An adapter of a [`World`]. Cloning gives a second handle to the same one; when the last is dropped, its queue pairs go to error and its
/// names are free.
#[derive(Clone, Debug)]
pub struct SimDevice {
    handle: StdArc<Handle>,
}

#[derive(Debug)]
struct Handle {
    world: World,
    adapter: u32,
    caps: Caps,
}

/// The poll path of one lcore of a simulated adapter.
#[derive(Debug)]
pub struct SimPath {
    world: World,
    adapter: u32,
    lcore: usize,
}

/// What a late call says it waited.
const LATE: ControlError = ControlError::Late { waited_ns: 0 };

/// What is to become of a control call.
enum Verdict {
    Go,
    Stop(ControlError),
    GoButLate,
    WasDone,
}

impl SimDevice {
    pub(super) fn new(world: World, adapter: u32, caps: Caps) -> Self {
        let handle = Handle {
            world,
            adapter,
            caps,
        };
        Self {
            handle: StdArc::new(handle),
        }
    }

    /// The adapter's number: what [`Access::adapter`](super::Access::adapter) says of it.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.handle.adapter
    }

    /// A call that makes something.
    fn make<T>(
        &self,
        call: &'static str,
        does: impl FnOnce(&mut State, u32) -> Result<T, ControlError>,
    ) -> Result<T, ControlError> {
        let adapter = self.handle.adapter;
        let mut state = self.handle.world.lock();
        match state.judge(adapter, call, None) {
            Verdict::Stop(error) => Err(error),
            Verdict::GoButLate => does(&mut state, adapter).and(Err(LATE)),
            Verdict::Go | Verdict::WasDone => does(&mut state, adapter),
        }
    }

    /// A call about an object that returns nothing, and that may be made again after it came back late.
    fn act(
        &self,
        (call, object): (&'static str, u64),
        does: impl FnOnce(&mut State, u32) -> Result<(), ControlError>,
    ) -> Result<(), ControlError> {
        let adapter = self.handle.adapter;
        let mut state = self.handle.world.lock();
        match state.judge(adapter, call, Some(object)) {
            Verdict::Stop(error) => Err(error),
            Verdict::WasDone => Ok(()),
            Verdict::Go => does(&mut state, adapter),
            Verdict::GoButLate => {
                does(&mut state, adapter)?;
                state.adapter(adapter).done_late.insert((call, object));
                Err(LATE)
            }
        }
    }

    fn at(&self, qp: QpId) -> QpRef {
        let adapter = self.handle.adapter;
        QpRef { adapter, qp }
    }
}

impl State {
    fn judge(&mut self, adapter: u32, call: &'static str, object: Option<u64>) -> Verdict {
        if let Some(object) = object
            && self.adapter(adapter).done_late.remove(&(call, object))
        {
            return Verdict::WasDone;
        }
        let (failed, undone, done) = (
            self.faults.failed_call_per_million,
            self.faults.late_call_undone_per_million,
            self.faults.late_call_done_per_million,
        );
        if self.random.strikes(failed) {
            self.fired.add(SimFault::FailedCall);
            let source_text = "refused by chance".to_owned();
            return Verdict::Stop(ControlError::System { call, source_text });
        }
        if self.random.strikes(undone) {
            self.fired.add(SimFault::LateCallUndone);
            return Verdict::Stop(LATE);
        }
        if self.random.strikes(done) {
            self.fired.add(SimFault::LateCallDone);
            return Verdict::GoButLate;
        }
        Verdict::Go
    }
}

impl Control for SimDevice {
    fn caps(&self) -> &Caps {
        &self.handle.caps
    }

    fn alloc_pd(&self) -> Result<PdId, ControlError> {
        self.make("alloc_pd", State::alloc_pd)
    }

    fn dealloc_pd(&self, pd: PdId) -> Result<(), ControlError> {
        self.act(("dealloc_pd", pd.0.into()), |state, adapter| {
            state.dealloc_pd(adapter, pd)
        })
    }

    fn register(
        &self,
        pd: PdId,
        arena: &Arc<Arena>,
        range: Range<usize>,
        access: Access,
    ) -> Result<Region, ControlError> {
        self.make("register", |state, adapter| {
            state.register(adapter, pd, arena, range, access)
        })
    }

    fn deregister(&self, region: RegionId) -> Result<(), ControlError> {
        self.act(("deregister", region.0.into()), |state, adapter| {
            state.deregister(adapter, region)
        })
    }

    fn create_qp(&self, config: &QpConfig) -> Result<QpId, ControlError> {
        self.make("create_qp", |state, adapter| {
            state.create_qp(adapter, config)
        })
    }

    fn listen(&self, address: &str) -> Result<(), ControlError> {
        self.make("listen", |state, adapter| state.listen(adapter, address))
    }

    fn start_connect(&self, qp: QpId, address: &str, private: &[u8]) -> Result<(), ControlError> {
        let at = self.at(qp);
        self.act(("start_connect", qp.0.into()), |state, _| {
            state.start_connect(at, address, private)
        })
    }

    fn accept(&self, request: RequestId, qp: QpId, private: &[u8]) -> Result<(), ControlError> {
        let at = self.at(qp);
        self.act(("accept", request.0), |state, adapter| {
            state.accept_connection(adapter, request, at, private)
        })
    }

    fn reject(&self, request: RequestId, private: &[u8]) -> Result<(), ControlError> {
        self.act(("reject", request.0), |state, adapter| {
            state.reject_connection(adapter, request, private)
        })
    }

    fn poll_event(&self) -> Option<ControlEvent> {
        let mut state = self.handle.world.lock();
        state.adapter(self.handle.adapter).events.pop_front()
    }

    fn error_qp(&self, qp: QpId) -> Result<(), ControlError> {
        let at = self.at(qp);
        self.act(("error_qp", qp.0.into()), |state, _| state.error_qp(at))
    }

    fn destroy_qp(&self, qp: QpId) -> Result<(), ControlError> {
        let at = self.at(qp);
        self.act(("destroy_qp", qp.0.into()), |state, _| state.destroy_qp(at))
    }

    fn alloc_window(&self, qp: QpId) -> Result<Window, ControlError> {
        let at = self.at(qp);
        self.make("alloc_window", |state, _| state.alloc_window(at))
    }

    fn dealloc_window(&self, window: WindowId) -> Result<(), ControlError> {
        self.act(("dealloc_window", window.0.into()), |state, adapter| {
            state.dealloc_window(adapter, window)
        })
    }
}

impl Device for SimDevice {
    type Path = SimPath;

    fn open_path(&self, lcore: LcoreId) -> Result<SimPath, OpenPathError> {
        let (world, adapter) = (self.handle.world.clone(), self.handle.adapter);
        let number = usize::from(lcore.0);
        {
            let mut state = world.lock();
            let limit = state.config.max_lcores;
            let Some(record) = state.adapter(adapter).lcores.get_mut(number) else {
                return Err(OpenPathError::TooMany { lcore, limit });
            };
            if record.is_open {
                return Err(OpenPathError::AlreadyOpen(lcore));
            }
            record.is_open = true;
        }
        Ok(SimPath {
            world,
            adapter,
            lcore: number,
        })
    }
}

impl SimPath {
    /// The queue pair, if it is one of this lcore.
    fn at(&self, state: &State, qp: QpId) -> Option<QpRef> {
        let adapter = self.adapter;
        let at = QpRef { adapter, qp };
        let known = state.known_qp(at);
        known.is_ok_and(|qp| qp.lcore == self.lcore).then_some(at)
    }
}

impl DataPath for SimPath {
    fn post_burst(&mut self, qp: QpId, work: &[WorkRequest]) -> usize {
        let mut state = self.world.lock();
        let at = self.at(&state, qp);
        at.map_or(0, |at| state.post(at, work))
    }

    fn post_receives(&mut self, qp: QpId, receives: &[ReceiveRequest]) -> usize {
        let mut state = self.world.lock();
        let at = self.at(&state, qp);
        at.map_or(0, |at| state.post_receives(at, receives))
    }

    fn poll_burst(&mut self, done: &mut [Completion]) -> usize {
        self.world.lock().poll(self.adapter, self.lcore, done)
    }

    fn release_qp(&mut self, qp: QpId) {
        let mut state = self.world.lock();
        if let Some(at) = self.at(&state, qp) {
            state.release(at);
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.world.lock().close_adapter(self.adapter);
    }
}

impl Drop for SimPath {
    fn drop(&mut self) {
        self.world.lock().close_path(self.adapter, self.lcore);
    }
}
