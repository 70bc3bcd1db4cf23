//! The requester of a queue pair: takes work, sends it in order, executes binds and invalidations in their turn.

use super::datapath::REQUEST_COST_BYTES;
use super::link::End;
use super::memory::Memory;
use super::outgoing::{Slice, Source, chunk_bytes, message, put_slice, question};
use super::send_queue::{Flight, Phase, SendQueue};
use super::stream::{Outbound, SLICE_BYTES};
use super::windows::Bind;
use super::wire::RequestOp;
use crate::completion::{CompletionKind, WcStatus};
use crate::ids::{PdId, QpId, Rkey};
use crate::work::{WorkOp, WorkRequest};

/// What a queue pair's requests may be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) max_sge: usize,
    pub(crate) max_inline_bytes: usize,
    pub(crate) max_operation_bytes: u64,
}

/// The sending half of a queue pair.
#[derive(Debug)]
pub(crate) struct Requester {
    pub(crate) queue: SendQueue,
    limits: Limits,
    pub(super) scope: (QpId, PdId),
    /// Slots that the peer has finished, as last seen.
    pub(super) finished: u64,
    /// Requests put on the wire.
    wire: u64,
    /// Bytes that the request being sent has on the wire already.
    progress: usize,
    /// A request has failed on this side: nothing behind it is begun.
    pub(super) halted: bool,
    /// The queue's number of the next request that can be answered.
    pub(super) answering: u64,
    /// Bytes of its answer that have come.
    pub(super) received: usize,
}

/// What became of the attempt to send or execute a request.
enum Attempt {
    Over(Phase),
    /// No room, no budget, or not its turn.
    Later,
}

impl Requester {
    pub(crate) fn new(scope: (QpId, PdId), depth: u32, limits: Limits) -> Self {
        Self {
            queue: SendQueue::new(depth, limits.max_inline_bytes),
            limits,
            scope,
            finished: 0,
            wire: 0,
            progress: 0,
            halted: false,
            answering: 0,
            received: 0,
        }
    }

    /// Takes a prefix of `work` and begins what there is room and budget for.
    pub(crate) fn post(
        &mut self,
        memory: &mut Memory<'_>,
        end: &mut End,
        work: &[WorkRequest],
    ) -> usize {
        let count = work.len().min(self.queue.room());
        for work in &work[..count] {
            if self.cut_through(memory, &mut end.requests_out, work) {
                continue;
            }
            let mut flight = Flight::of(work);
            if work.inline
                && let Err(status) = self.take_inline(memory, work)
            {
                flight.phase = Phase::Failed(status);
            }
            self.queue.store(work, flight);
        }
        self.pump(memory, end);
        count
    }

    /// Takes a prefix of `work` on a queue pair in error.
    pub(crate) fn post_dead(&mut self, work: &[WorkRequest]) -> usize {
        let count = work.len().min(self.queue.room());
        for work in &work[..count] {
            self.queue.add(Flight::of(work));
        }
        count
    }

    /// Sends waiting requests in order while there is room and budget.
    #[inline]
    pub(crate) fn pump(&mut self, memory: &mut Memory<'_>, end: &mut End) {
        while self.queue.is_waiting() && !self.halted {
            let number = self.queue.sent;
            let moved = memory.moved;
            let attempt = match self.queue.flight(number).phase {
                _ if memory.budget == 0 => return,
                Phase::Queued => self.attempt(memory, &mut end.requests_out, number),
                // An inline request that was refused at the post.
                failed => Attempt::Over(failed),
            };
            let Attempt::Over(phase) = attempt else {
                return;
            };
            memory.spend(REQUEST_COST_BYTES.saturating_sub(memory.moved - moved));
            self.queue.flight(number).phase = phase;
            if matches!(phase, Phase::Failed(_)) {
                self.halted = true;
                return;
            }
            self.queue.sent += 1;
            self.progress = 0;
        }
    }

    /// Whether the peer still owes something.
    pub(crate) fn is_outstanding(&self) -> bool {
        self.queue.executed < self.queue.sent || self.progress > 0
    }

    /// The number on the wire of the oldest request that the peer owes, which may be on it in part.
    pub(super) fn owed(&mut self) -> Option<u64> {
        let head = self.queue.executed;
        if head < self.queue.sent {
            return Some(self.queue.flight(head).number);
        }
        (self.progress > 0).then_some(self.wire)
    }

    /// Sends a write or send of one slice without storing it, if nothing waits before it.
    #[inline(always)]
    fn cut_through(
        &mut self,
        memory: &mut Memory<'_>,
        out: &mut Outbound,
        work: &WorkRequest,
    ) -> bool {
        if self.halted || self.queue.is_waiting() || memory.budget == 0 {
            return false;
        }
        let bytes = work.sges.bytes();
        if bytes > SLICE_BYTES as u64 || self.breaks_limit(work, bytes) {
            return false;
        }
        let Some(request) = message(work, bytes as u32) else {
            return false;
        };
        let bytes = bytes as usize;
        if !out.make_room(chunk_bytes(bytes, bytes)) {
            return false;
        }
        let kind = match request.op {
            RequestOp::Write => CompletionKind::Write,
            _ => CompletionKind::Send,
        };
        let slice = Slice {
            source: Source::List(self.scope.1, work.sges.as_slice()),
            skip: 0,
            len: bytes,
        };
        // A list that a key refuses is stored and refused when its turn has come.
        if put_slice(memory, out, request, slice).is_err() {
            return false;
        }
        memory.spend(REQUEST_COST_BYTES.saturating_sub(bytes));
        self.queue.add(Flight {
            id: work.id,
            kind,
            signaled: work.signaled,
            phase: Phase::Sent { end: out.written() },
            bytes: bytes as u32,
            number: self.wire,
        });
        self.wire += 1;
        self.queue.sent += 1;
        true
    }

    fn take_inline(&mut self, memory: &mut Memory<'_>, work: &WorkRequest) -> Result<(), WcStatus> {
        let bytes = work.sges.bytes();
        if self.breaks_limit(work, bytes) {
            return Err(WcStatus::LocalLength);
        }
        let bytes = bytes as usize;
        let list = (self.scope.1, work.sges.as_slice());
        let sink = self.queue.inline_mut(self.queue.posted);
        memory
            .gather_private(list, bytes, sink)
            .map_err(|_| WcStatus::LocalProtection)
    }

    /// Whether a request of so many bytes is over a limit.
    #[inline(always)]
    fn breaks_limit(&self, work: &WorkRequest, bytes: u64) -> bool {
        let limit = match work.op {
            WorkOp::Bind { .. } | WorkOp::Invalidate { .. } => return work.inline,
            WorkOp::FetchAdd { .. } | WorkOp::CompareSwap { .. } if bytes != 8 => return true,
            WorkOp::Write { .. } | WorkOp::Send { .. } if work.inline => {
                self.limits.max_inline_bytes as u64
            }
            _ if work.inline => return true,
            _ => self.limits.max_operation_bytes,
        };
        bytes > limit || work.sges.as_slice().len() > self.limits.max_sge
    }

    fn attempt(&mut self, memory: &mut Memory<'_>, out: &mut Outbound, number: u64) -> Attempt {
        let work = *self.queue.work(number);
        if self.progress == 0 {
            if self.breaks_limit(&work, work.sges.bytes()) {
                return Attempt::Over(Phase::Failed(WcStatus::LocalLength));
            }
            if !work.inline && memory.check(self.scope.1, work.sges.as_slice()).is_err() {
                return Attempt::Over(Phase::Failed(WcStatus::LocalProtection));
            }
        }
        match work.op {
            WorkOp::Write { .. } | WorkOp::Send { .. } => {
                self.send_message(memory, out, &work, number)
            }
            WorkOp::Read { .. } | WorkOp::FetchAdd { .. } | WorkOp::CompareSwap { .. } => {
                self.ask(out, &work, number)
            }
            WorkOp::Bind {
                window,
                region,
                address,
                len,
                rights,
                rkey,
            } => {
                let bind = Bind {
                    window,
                    region,
                    address,
                    len,
                    rights,
                    rkey,
                };
                let (qp, pd) = self.scope;
                executed(memory.keys.bind(&bind, qp, pd).is_ok())
            }
            WorkOp::Invalidate { rkey } => self.invalidate(memory, rkey),
        }
    }

    /// An invalidation proves that everything before it has ended, so it waits for that.
    fn invalidate(&mut self, memory: &Memory<'_>, rkey: Rkey) -> Attempt {
        if self.settle().is_err() || self.is_outstanding() {
            return Attempt::Later;
        }
        executed(memory.keys.invalidate(rkey, self.scope.0).is_ok())
    }

    fn ask(&mut self, out: &mut Outbound, work: &WorkRequest, number: u64) -> Attempt {
        if !out.make_room(0) {
            return Attempt::Later;
        }
        let bytes = work.sges.bytes() as u32;
        out.write(question(work, bytes).encode(), 0);
        let flight = self.queue.flight(number);
        flight.bytes = bytes;
        flight.number = self.wire;
        self.wire += 1;
        Attempt::Over(Phase::Asked)
    }

    fn send_message(
        &mut self,
        memory: &mut Memory<'_>,
        out: &mut Outbound,
        work: &WorkRequest,
        number: u64,
    ) -> Attempt {
        let bytes = work.sges.bytes() as usize;
        let request = message(work, bytes as u32).expect("a write or a send");
        loop {
            let len = (bytes - self.progress).min(SLICE_BYTES);
            if memory.budget == 0 || !out.make_room(chunk_bytes(bytes, len)) {
                return Attempt::Later;
            }
            let source = if work.inline {
                Source::Private(self.queue.inline(number))
            } else {
                Source::List(self.scope.1, work.sges.as_slice())
            };
            let slice = Slice {
                source,
                skip: self.progress,
                len,
            };
            if put_slice(memory, out, request, slice).is_err() {
                return Attempt::Over(Phase::Failed(WcStatus::LocalProtection));
            }
            self.progress += len;
            if self.progress == bytes {
                break;
            }
        }
        let flight = self.queue.flight(number);
        flight.bytes = bytes as u32;
        flight.number = self.wire;
        self.wire += 1;
        Attempt::Over(Phase::Sent { end: out.written() })
    }
}

/// A bind or an invalidation ends at once, well or badly.
fn executed(done: bool) -> Attempt {
    Attempt::Over(if done {
        Phase::Done
    } else {
        Phase::Failed(WcStatus::MemoryWindowBind)
    })
}
