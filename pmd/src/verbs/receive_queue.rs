//! The shadow of a receive queue.

use super::ring::Ring;
use super::status::{Side, translate};
use super::sys::Wc;
use super::windows::View;
use crate::completion::{Completion, CompletionKind, WcStatus};
use crate::ids::{PdId, QpId, WorkId};
use crate::work::Sge;

/// A posted receive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Received {
    pub(crate) id: WorkId,
    pub(crate) sge: Sge,
    /// Whether the adapter has it. If not it is flushed when its turn comes.
    pub(crate) given: bool,
}

/// The receives of one queue pair that are not ended.
#[derive(Debug)]
pub(crate) struct ReceiveQueue {
    pub(crate) ring: Ring<Received>,
}

impl ReceiveQueue {
    pub(crate) fn new(depth: u32) -> Self {
        let filler = Received {
            id: WorkId(0),
            sge: Sge::default(),
            given: false,
        };
        Self {
            ring: Ring::new(depth, filler),
        }
    }

    /// Takes in a completion of the receive at `place`. What is to be reported now.
    pub(crate) fn complete(
        &mut self,
        (qp, pd, place): (QpId, PdId, u32),
        wc: &Wc,
        view: &View<'_>,
    ) -> Option<Completion> {
        let before = self.ring.before(place)?;
        if self.ring.is_broken() {
            self.ring.end(before + 1);
            return None;
        }
        // On a reliable connection receives end in their order, each with a completion.
        let received = self.ring.take_head().filter(|_| before == 0)?;
        let status = match translate(wc.status(), Side::Receiver) {
            // Soft-RoCE has one word for a receive that is too short and for one whose local key is wrong.
            WcStatus::LocalProtection if view.is_local(pd, &received.sge) => WcStatus::LocalLength,
            status => status,
        };
        if status != WcStatus::Success {
            self.ring.break_off();
            return Some(flushed(qp, received.id, status));
        }
        let kind = match wc.is_write_immediate() {
            true => CompletionKind::ReceiveWriteImmediate,
            false => CompletionKind::Receive,
        };
        Some(Completion {
            id: received.id,
            qp,
            status,
            kind,
            bytes: wc.bytes(),
            immediate: wc.immediate(),
        })
    }

    /// Whether the oldest receive is to be flushed.
    pub(crate) fn can_report(&self) -> bool {
        let kept_back = self.ring.head().is_some_and(|received| !received.given);
        kept_back || self.ring.head_is_ended()
    }

    /// Flushes the oldest receive, if its turn has come.
    pub(crate) fn report(&mut self, qp: QpId) -> Option<Completion> {
        if !self.can_report() {
            return None;
        }
        let received = self.ring.take_head()?;
        self.ring.break_off();
        Some(flushed(qp, received.id, WcStatus::Flushed))
    }
}

fn flushed(qp: QpId, id: WorkId, status: WcStatus) -> Completion {
    Completion {
        id,
        qp,
        status,
        kind: CompletionKind::Receive,
        bytes: 0,
        immediate: None,
    }
}
