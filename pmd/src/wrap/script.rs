//! A device that says what a test tells it to say, for tests of the decorators.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard};

use keyfence_mempool::arena::Arena;
use keyfence_mempool::sync::Arc;

use crate::device::{
    Access, Caps, Control, ControlEvent, DataPath, Device, QpConfig, Region, Window,
};
use crate::error::{ControlError, OpenPathError};
use crate::ids::{LcoreId, Lkey, PdId, QpId, RegionId, RequestId, Rkey, WindowId, WorkId};
use crate::work::{ReceiveRequest, Rights, SgeList, WorkOp, WorkRequest};
use crate::{Completion, CompletionKind, WcStatus};

/// The test's side.
#[derive(Clone, Default)]
pub(crate) struct Script(Arc<Mutex<State>>);

#[derive(Default)]
pub(crate) struct State {
    /// What the next polls give.
    pub completions: VecDeque<Completion>,
    /// What was taken.
    pub posted: Vec<(QpId, WorkRequest)>,
    pub received: Vec<(QpId, ReceiveRequest)>,
    /// The most that one post takes; `None`: all.
    pub take: Option<usize>,
    /// Added to what a post says it took.
    pub boast: usize,
    /// Added to what a poll says it wrote.
    pub overstate: usize,
    /// Calls that end something come too late.
    pub late: bool,
    /// What the next looks for events give.
    pub events: VecDeque<ControlEvent>,
    /// Control calls that reached the device.
    pub calls: Vec<&'static str>,
    next: u32,
}

pub(crate) struct ScriptDevice {
    caps: Caps,
    script: Script,
}

pub(crate) struct ScriptPath {
    script: Script,
}

impl Script {
    pub fn device(&self) -> ScriptDevice {
        ScriptDevice {
            caps: CAPS,
            script: self.clone(),
        }
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// The next poll gives this completion.
    pub fn completes(&self, qp: QpId, id: u64, status: WcStatus, kind: CompletionKind) {
        self.state().completions.push_back(Completion {
            id: WorkId(id),
            qp,
            status,
            kind,
            ..Completion::EMPTY
        });
    }
}

impl State {
    /// The next object gets this number.
    pub fn next_is(&mut self, number: u32) {
        self.next = number - 1;
    }

    fn ended(&mut self, call: &'static str) -> Result<(), ControlError> {
        self.called(call);
        match self.late {
            true => Err(ControlError::Late { waited_ns: 1 }),
            false => Ok(()),
        }
    }

    fn called(&mut self, call: &'static str) -> u32 {
        self.calls.push(call);
        self.next += 1;
        self.next
    }
}

/// A queue pair's configuration with this depth.
pub(crate) fn qp_config(depth: u32) -> QpConfig {
    QpConfig {
        pd: PdId(1),
        lcore: LcoreId(0),
        send_depth: depth,
        receive_depth: depth,
        max_sge: 2,
        max_inline_bytes: 16,
    }
}

/// A bind of `len` bytes at `address`.
pub(crate) fn bind(id: u64, window: &Window, tag: u8, address: u64, len: u64) -> WorkRequest {
    let op = WorkOp::Bind {
        window: window.id,
        region: RegionId(0),
        address,
        len,
        rights: Rights::READ_WRITE,
        rkey: window.rkey.with_tag(tag),
    };
    WorkRequest::new(WorkId(id), op, SgeList::EMPTY)
}

/// An invalidation of that key.
pub(crate) fn invalidate(id: u64, window: &Window, tag: u8) -> WorkRequest {
    let rkey = window.rkey.with_tag(tag);
    WorkRequest::new(WorkId(id), WorkOp::Invalidate { rkey }, SgeList::EMPTY)
}

const CAPS: Caps = Caps {
    name: "script",
    max_lcores: 4,
    max_qps: 64,
    max_windows: 1 << 16,
    max_regions: 64,
    max_send_depth: 1024,
    max_receive_depth: 1024,
    max_sge: 4,
    max_inline_bytes: 64,
    inline_pays_bytes: 0,
    max_operation_bytes: 1 << 30,
    max_private_bytes: 56,
    windows: true,
    window_bounds: true,
    window_scope: true,
    atomics: true,
    window_atomics: true,
    tag_bits: 8,
    chain_stops: true,
    dealloc_fences: true,
    invalidate_checks: true,
};

impl Control for ScriptDevice {
    fn caps(&self) -> &Caps {
        &self.caps
    }
    fn alloc_pd(&self) -> Result<PdId, ControlError> {
        Ok(PdId(self.script.state().called("alloc_pd")))
    }
    fn dealloc_pd(&self, _: PdId) -> Result<(), ControlError> {
        self.script.state().called("dealloc_pd");
        Ok(())
    }
    fn register(
        &self,
        _: PdId,
        _: &Arc<Arena>,
        _: Range<usize>,
        _: Access,
    ) -> Result<Region, ControlError> {
        let number = self.script.state().called("register");
        Ok(Region {
            id: RegionId(number),
            lkey: Lkey(number),
            rkey: Rkey::new(number, 0),
        })
    }
    fn deregister(&self, _: RegionId) -> Result<(), ControlError> {
        self.script.state().ended("deregister")
    }
    fn create_qp(&self, _: &QpConfig) -> Result<QpId, ControlError> {
        Ok(QpId(self.script.state().called("create_qp")))
    }
    fn listen(&self, _: &str) -> Result<(), ControlError> {
        self.script.state().called("listen");
        Ok(())
    }
    fn start_connect(&self, _: QpId, _: &str, _: &[u8]) -> Result<(), ControlError> {
        self.script.state().called("start_connect");
        Ok(())
    }
    fn accept(&self, _: RequestId, _: QpId, _: &[u8]) -> Result<(), ControlError> {
        self.script.state().called("accept");
        Ok(())
    }
    fn reject(&self, _: RequestId, _: &[u8]) -> Result<(), ControlError> {
        self.script.state().called("reject");
        Ok(())
    }
    fn poll_event(&self) -> Option<ControlEvent> {
        self.script.state().events.pop_front()
    }
    fn error_qp(&self, _: QpId) -> Result<(), ControlError> {
        self.script.state().called("error_qp");
        Ok(())
    }
    fn destroy_qp(&self, _: QpId) -> Result<(), ControlError> {
        self.script.state().ended("destroy_qp")
    }
    fn alloc_window(&self, _: QpId) -> Result<Window, ControlError> {
        let number = self.script.state().called("alloc_window");
        Ok(Window {
            id: WindowId(number),
            rkey: Rkey::new(0x1_0000 + number, 0),
        })
    }
    fn dealloc_window(&self, _: WindowId) -> Result<(), ControlError> {
        self.script.state().ended("dealloc_window")
    }
}

impl Device for ScriptDevice {
    type Path = ScriptPath;
    fn open_path(&self, _: LcoreId) -> Result<ScriptPath, OpenPathError> {
        Ok(ScriptPath {
            script: self.script.clone(),
        })
    }
}

impl DataPath for ScriptPath {
    fn post_burst(&mut self, qp: QpId, work: &[WorkRequest]) -> usize {
        let mut state = self.script.state();
        let taken = work.len().min(state.take.unwrap_or(usize::MAX));
        let posts = work[..taken].iter().map(|request| (qp, *request));
        state.posted.extend(posts);
        taken + state.boast
    }
    fn post_receives(&mut self, qp: QpId, receives: &[ReceiveRequest]) -> usize {
        let mut state = self.script.state();
        state
            .received
            .extend(receives.iter().map(|receive| (qp, *receive)));
        receives.len()
    }
    fn poll_burst(&mut self, done: &mut [Completion]) -> usize {
        let mut state = self.script.state();
        let count = done.len().min(state.completions.len());
        for (slot, completion) in done.iter_mut().zip(state.completions.drain(..count)) {
            *slot = completion;
        }
        count + state.overstate
    }
    fn release_qp(&mut self, _: QpId) {
        self.script.state().called("release_qp");
    }
}
