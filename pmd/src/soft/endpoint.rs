//! One queue pair as its path sees it: both halves, the end of its link, and the way into error.

use std::sync::Arc;

use keyfence_mempool::sync::{AtomicBool, Ordering};

use super::completions::Completions;
use super::datapath::VISIT_BYTES;
use super::link::End;
use super::memory::Memory;
use super::requester::{Limits, Requester};
use super::responder::Responder;
use super::wire::Malformed;
use crate::completion::WcStatus;
use crate::device::QpConfig;
use crate::ids::{PdId, QpId};
use crate::work::{ReceiveRequest, WorkRequest};

/// Why a queue pair comes into error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Trouble {
    /// The oldest request that is not executed failed.
    Request(WcStatus),
    /// The peer wrote nonsense, or this side refused a request of the peer's.
    Other,
}

/// What the path and the control side of a queue pair share.
#[derive(Debug)]
pub(crate) struct QpFlags {
    /// The queue pair is in error, or is to go there.
    pub(crate) failed: AtomicBool,
    /// The path has given the queue pair up.
    pub(crate) released: AtomicBool,
}

/// A queue pair, owned by its path.
#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(crate) id: QpId,
    flags: Arc<QpFlags>,
    requester: Requester,
    responder: Responder,
    end: Option<Box<End>>,
    in_error: bool,
}

impl Endpoint {
    pub(crate) fn new(
        id: QpId,
        config: &QpConfig,
        max_operation_bytes: u64,
        flags: Arc<QpFlags>,
    ) -> Self {
        let scope: (QpId, PdId) = (id, config.pd);
        let limits = Limits {
            max_sge: config.max_sge,
            max_inline_bytes: config.max_inline_bytes,
            max_operation_bytes,
        };
        Self {
            id,
            flags,
            requester: Requester::new(scope, config.send_depth, limits),
            responder: Responder::new(scope, config.receive_depth, max_operation_bytes),
            end: None,
            in_error: false,
        }
    }

    pub(crate) fn connect(&mut self, end: Box<End>) {
        assert!(self.end.is_none(), "a queue pair was connected twice");
        if self.in_error {
            end.mark_error();
        }
        self.end = Some(end);
    }

    #[inline]
    pub(crate) fn post(&mut self, memory: &mut Memory<'_>, work: &[WorkRequest]) -> usize {
        self.follow_flags();
        if self.in_error {
            return self.requester.post_dead(work);
        }
        match &mut self.end {
            Some(end) => self.requester.post(memory, end, work),
            None => 0,
        }
    }

    pub(crate) fn post_receives(&mut self, receives: &[ReceiveRequest]) -> usize {
        self.responder.receives.post(receives)
    }

    /// Moves the queue pair on by a bounded amount of work and reports what is done.
    #[inline]
    pub(crate) fn visit(&mut self, memory: &mut Memory<'_>, done: &mut Completions<'_>) {
        self.follow_flags();
        if !self.in_error
            && let Err(trouble) = self.advance(memory, done)
        {
            self.fail(trouble);
        }
        if self.in_error {
            self.requester.queue.report(self.id, true, done);
            self.responder.receives.flush(self.id, done);
        }
    }

    /// Nobody will ever poll this queue pair again.
    pub(crate) fn abandon(&mut self) {
        self.fail(Trouble::Other);
        self.flags.released.store(true, Ordering::Release);
    }

    #[inline]
    fn advance(
        &mut self,
        memory: &mut Memory<'_>,
        done: &mut Completions<'_>,
    ) -> Result<(), Trouble> {
        let Some(end) = &mut self.end else {
            return Ok(());
        };
        let requester = &mut self.requester;
        // Before the looks at what the peer did: what it did before it went down counts.
        let peer_is_down = end.peer_is_down();
        memory.budget = VISIT_BYTES;
        let drained = requester.take_answers(memory, end)?;
        requester.finished = end.requests_out.finished()?;
        requester.settle()?;
        if requester.queue.is_waiting() {
            memory.budget = VISIT_BYTES;
            requester.pump(memory, end);
            requester.settle()?;
        }
        requester.queue.report(self.id, false, done);
        if peer_is_down && drained && requester.is_outstanding() {
            return Err(Trouble::Request(WcStatus::RetryExceeded));
        }
        memory.budget = VISIT_BYTES;
        self.responder.visit(memory, end, done)
    }

    #[inline]
    fn follow_flags(&mut self) {
        if !self.in_error && self.flags.failed.load(Ordering::Acquire) {
            self.fail(Trouble::Other);
        }
    }

    fn fail(&mut self, trouble: Trouble) {
        if self.in_error {
            return;
        }
        self.in_error = true;
        self.requester.queue.stop(match trouble {
            Trouble::Request(status) => Some(status),
            Trouble::Other => None,
        });
        self.flags.failed.store(true, Ordering::Release);
        if let Some(end) = &self.end {
            end.mark_error();
        }
    }
}

impl From<Malformed> for Trouble {
    fn from(_: Malformed) -> Self {
        Self::Other
    }
}
