//! The receive queue of a queue pair: buffers in the order of their posting.

use super::completions::Completions;
use crate::completion::{Completion, CompletionKind, WcStatus};
use crate::ids::{QpId, WorkId};
use crate::work::{ReceiveRequest, Sge};

/// The queue.
#[derive(Debug)]
pub(crate) struct ReceiveQueue {
    ring: Box<[ReceiveRequest]>,
    depth: u64,
    posted: u64,
    taken: u64,
    /// Why the oldest receive failed, if it is the reason for the queue pair's error.
    failure: Option<WcStatus>,
}

impl ReceiveQueue {
    pub(crate) fn new(depth: u32) -> Self {
        let nothing = ReceiveRequest {
            id: WorkId(u64::MAX),
            sge: Sge::default(),
        };
        Self {
            ring: vec![nothing; (depth as usize).next_power_of_two()].into_boxed_slice(),
            depth: u64::from(depth),
            posted: 0,
            taken: 0,
            failure: None,
        }
    }

    /// Adds a prefix and returns its length.
    pub(crate) fn post(&mut self, receives: &[ReceiveRequest]) -> usize {
        let room = self.depth - (self.posted - self.taken);
        let count = receives.len().min(room as usize);
        for receive in &receives[..count] {
            self.ring[self.posted as usize & (self.ring.len() - 1)] = *receive;
            self.posted += 1;
        }
        count
    }

    /// The receive that the next message takes.
    #[inline]
    pub(crate) fn oldest(&self) -> Option<ReceiveRequest> {
        let place = self.taken as usize & (self.ring.len() - 1);
        (self.taken < self.posted).then(|| self.ring[place])
    }

    /// Completes the oldest receive; there must be one, and room.
    #[inline]
    pub(crate) fn complete(
        &mut self,
        qp: QpId,
        (kind, bytes): (CompletionKind, u32),
        immediate: Option<u32>,
        done: &mut Completions<'_>,
    ) {
        let receive = self.oldest().expect("a message took a receive");
        self.taken += 1;
        done.push(Completion {
            id: receive.id,
            qp,
            status: WcStatus::Success,
            kind,
            bytes,
            immediate,
        });
    }

    /// The oldest receive is why the queue pair comes into error.
    pub(crate) fn fail(&mut self, status: WcStatus) {
        self.failure = Some(status);
    }

    /// Reports everything that is left of a queue pair in error.
    pub(crate) fn flush(&mut self, qp: QpId, done: &mut Completions<'_>) {
        while !done.is_full() {
            let Some(receive) = self.oldest() else {
                return;
            };
            self.taken += 1;
            done.push(Completion {
                id: receive.id,
                qp,
                status: self.failure.take().unwrap_or(WcStatus::Flushed),
                kind: CompletionKind::Receive,
                bytes: 0,
                immediate: None,
            });
        }
    }
}
