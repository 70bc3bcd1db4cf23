//! The bench of one test: two devices, a path and an arena each, and the one thread that polls both.

use std::collections::VecDeque;

use keyfence_mempool::arena::Arena;
use keyfence_mempool::sync::Arc;

use super::setup::{ARENA_BYTES, Setup};
use super::{Failure, Outcome, ensure};
use crate::completion::{Completion, CompletionKind, WcStatus};
use crate::device::{Access, Caps, ControlEvent, DataPath, Device, Region, Window};
use crate::ids::{LcoreId, PdId, QpId, RegionId, Rkey, WorkId};
use crate::work::{ReceiveRequest, Remote, Rights, SgeList, WorkOp, WorkRequest};

/// One of the two sides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    A,
    B,
}

/// Two connected queue pairs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Link {
    pub a: QpId,
    pub b: QpId,
}

/// A range of one side's memory that the other may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Grant {
    /// The window; `None` on a device without windows, where a region of its own stands for it.
    pub window: Option<Window>,
    /// That region.
    pub region: Option<RegionId>,
    pub rkey: Rkey,
    pub address: u64,
    pub len: u64,
}

/// One side.
pub(super) struct Side<D: Device> {
    pub device: D,
    pub path: D::Path,
    pub arena: Arc<Arena>,
    pub pd: PdId,
    /// The whole arena: no remote rights, windows may be bound.
    pub region: Region,
    /// Polled, and not asked for yet.
    seen: VecDeque<Completion>,
    /// The same of control events.
    pub events: VecDeque<ControlEvent>,
}

/// Both sides.
pub(super) struct Bench<D: Device> {
    pub a: Side<D>,
    pub b: Side<D>,
    pub address: String,
    pub poll_limit: u32,
    settle_polls: u32,
    pause: fn(),
    next_id: u64,
    note: String,
}

impl Link {
    pub fn qp(&self, end: End) -> QpId {
        match end {
            End::A => self.a,
            End::B => self.b,
        }
    }
}

impl Grant {
    /// The place `offset` bytes into the range, which may be outside of it.
    pub fn at(&self, offset: u64) -> Remote {
        Remote {
            address: self.address.wrapping_add(offset),
            rkey: self.rkey,
        }
    }
}

impl End {
    pub fn other(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }
}

impl<D: Device> Side<D> {
    fn new(device: D, arena: Arc<Arena>) -> Result<Self, Failure> {
        let bytes = arena.bytes();
        ensure!(
            bytes >= ARENA_BYTES,
            "the arena has {bytes} bytes, {ARENA_BYTES} are needed"
        );
        let path = device.open_path(LcoreId(0))?;
        let pd = device.alloc_pd()?;
        let access = Access {
            remote: Rights::NONE,
            bind: device.caps().windows,
        };
        let region = device.register(pd, &arena, 0..bytes, access)?;
        Ok(Self {
            device,
            path,
            arena,
            pd,
            region,
            seen: VecDeque::new(),
            events: VecDeque::new(),
        })
    }

    pub fn poll(&mut self) {
        let mut done = [Completion::EMPTY; 16];
        let count = self.path.poll_burst(&mut done);
        self.seen.extend(&done[..count.min(done.len())]);
    }
}

impl<D: Device> Bench<D> {
    pub fn new(setup: Setup<D>) -> Result<Self, Failure> {
        setup.b.listen(&setup.address)?;
        Ok(Self {
            a: Side::new(setup.a, setup.arena_a)?,
            b: Side::new(setup.b, setup.arena_b)?,
            address: setup.address,
            poll_limit: setup.poll_limit,
            settle_polls: setup.settle_polls,
            pause: setup.pause,
            next_id: 1 << 32,
            note: String::new(),
        })
    }

    pub fn side(&mut self, end: End) -> &mut Side<D> {
        match end {
            End::A => &mut self.a,
            End::B => &mut self.b,
        }
    }

    pub fn caps(&self) -> Caps {
        self.a.device.caps().clone()
    }

    pub fn set_note(&mut self, note: String) {
        self.note = note;
    }

    pub fn take_note(&mut self) -> String {
        core::mem::take(&mut self.note)
    }

    /// Polls both sides once.
    pub fn step(&mut self) {
        self.a.poll();
        self.b.poll();
        self.pause();
    }

    /// The same, events included, for who waits for something.
    fn move_on(&mut self) {
        self.take_events();
        self.step();
    }

    /// Takes both sides' events: a device may need these polls on both sides to bring a connection about, and to tell the end of a key.
    pub fn take_events(&mut self) {
        for end in [End::A, End::B] {
            let side = self.side(end);
            while let Some(event) = side.device.poll_event() {
                side.events.push_back(event);
            }
        }
    }

    /// Gives a device with a clock of its own the time that it needs after a poll.
    pub fn pause(&self) {
        (self.pause)();
    }

    /// Polls long enough for anything to come that will.
    pub fn settle(&mut self) {
        for _ in 0..self.settle_polls {
            self.step();
        }
    }

    /// A request with a fresh name.
    pub fn work(&mut self, op: WorkOp, sges: SgeList) -> WorkRequest {
        WorkRequest::new(self.fresh_id(), op, sges)
    }

    pub fn fresh_id(&mut self) -> WorkId {
        self.next_id += 1;
        WorkId(self.next_id)
    }

    /// Posts all of `work`; a short post is followed up until the limit.
    pub fn post(&mut self, end: End, qp: QpId, work: &[WorkRequest]) -> Outcome {
        let mut rest = work;
        for _ in 0..self.poll_limit {
            let taken = self.side(end).path.post_burst(qp, rest);
            ensure!(taken <= rest.len(), "took {taken} of {}", rest.len());
            rest = &rest[taken..];
            if rest.is_empty() {
                return Ok(());
            }
            self.move_on();
        }
        Err(Failure(format!(
            "{} of {} requests never taken on side {end:?}",
            rest.len(),
            work.len()
        )))
    }

    /// Posts receives of `len` bytes each at `offset` and behind, and gives their names.
    pub fn receive(
        &mut self,
        end: End,
        qp: QpId,
        offset: usize,
        len: usize,
        count: usize,
    ) -> Result<Vec<WorkId>, Failure> {
        let receives: Vec<_> = (0..count)
            .map(|at| ReceiveRequest {
                id: self.fresh_id(),
                sge: self.sge(end, offset + at * len, len),
            })
            .collect();
        let taken = self.side(end).path.post_receives(qp, &receives);
        ensure!(taken == count, "took {taken} of {count} receives");
        Ok(receives.iter().map(|receive| receive.id).collect())
    }

    /// The completion of `id`, as soon as it comes; those of others are kept.
    pub fn wait(&mut self, end: End, id: WorkId) -> Result<Completion, Failure> {
        for _ in 0..self.poll_limit {
            let seen = &mut self.side(end).seen;
            if let Some(at) = seen.iter().position(|done| done.id == id) {
                return Ok(seen.remove(at).unwrap_or(Completion::EMPTY));
            }
            self.move_on();
        }
        Err(Failure(format!(
            "no completion of request {:#x} on side {end:?}",
            id.0
        )))
    }

    /// The next `count` completions of a side in the order of polling.
    pub fn next(&mut self, end: End, count: usize) -> Result<Vec<Completion>, Failure> {
        for _ in 0..self.poll_limit {
            let seen = &mut self.side(end).seen;
            if seen.len() >= count {
                return Ok(seen.drain(..count).collect());
            }
            self.move_on();
        }
        let got = self.side(end).seen.len();
        Err(Failure(format!(
            "side {end:?} gave {got} of {count} completions"
        )))
    }

    /// Whatever completions of a side were polled and not asked for.
    pub fn leftovers(&mut self, end: End) -> Vec<Completion> {
        self.side(end).seen.drain(..).collect()
    }

    /// Nothing more comes on either side.
    pub fn quiet(&mut self) -> Outcome {
        self.settle();
        for end in [End::A, End::B] {
            let left = self.leftovers(end);
            ensure!(left.is_empty(), "side {end:?} also completed {left:?}");
        }
        Ok(())
    }

    /// Posts one request and waits for its completion.
    pub fn run(&mut self, end: End, qp: QpId, work: WorkRequest) -> Result<Completion, Failure> {
        self.post(end, qp, &[work])?;
        let done = self.wait(end, work.id)?;
        ensure!(done.qp == qp, "{done:?} names another queue pair than {qp}");
        Ok(done)
    }

    /// The same, and it must succeed as what it is.
    pub fn succeed(
        &mut self,
        end: End,
        qp: QpId,
        work: WorkRequest,
    ) -> Result<Completion, Failure> {
        let done = self.run(end, qp, work)?;
        ensure!(
            done.is_success(),
            "{:?} ended as {:?}",
            work.op,
            done.status
        );
        let kind = kind_of(&work.op);
        ensure!(done.kind == kind, "{done:?} is not of kind {kind:?}");
        Ok(done)
    }

    /// The same, and it must end with this status.
    pub fn fail(&mut self, end: End, qp: QpId, work: WorkRequest, status: WcStatus) -> Outcome {
        let done = self.run(end, qp, work)?;
        ensure!(
            done.status == status,
            "{:?} ended as {:?}, not {status:?}",
            work.op,
            done.status
        );
        Ok(())
    }
}

fn kind_of(op: &WorkOp) -> CompletionKind {
    match op {
        WorkOp::Write { .. } => CompletionKind::Write,
        WorkOp::Read { .. } => CompletionKind::Read,
        WorkOp::Send { .. } => CompletionKind::Send,
        WorkOp::FetchAdd { .. } | WorkOp::CompareSwap { .. } => CompletionKind::Atomic,
        WorkOp::Bind { .. } => CompletionKind::Bind,
        WorkOp::Invalidate { .. } => CompletionKind::Invalidate,
    }
}
