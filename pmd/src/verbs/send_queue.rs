//! The shadow of a send queue: what each posted request was, so that a completion needs nothing but its place.

use super::ring::Ring;
use super::status::{Side, translate};
use super::sys::Wc;
use super::windows::{Effect, View};
use crate::completion::{Completion, CompletionKind, WcStatus};
use crate::ids::{QpId, WorkId};

/// A posted request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    pub(crate) id: WorkId,
    pub(crate) kind: CompletionKind,
    /// What its success says of its length.
    pub(crate) bytes: u32,
    /// Whether its success is reported; the driver may have asked for a completion that nobody else wants.
    pub(crate) reported: bool,
    /// Whether the adapter has it. If not it is flushed when its turn comes.
    pub(crate) given: bool,
    /// How it fails: it stands for a request that was refused before it was posted.
    pub(crate) refused: Option<WcStatus>,
    pub(crate) effect: Effect,
}

/// The requests of one queue pair that are not ended.
#[derive(Debug)]
pub(crate) struct SendQueue {
    pub(crate) ring: Ring<Sent>,
}

impl Sent {
    const EMPTY: Self = Self {
        id: WorkId(0),
        kind: CompletionKind::Send,
        bytes: 0,
        reported: true,
        given: false,
        refused: None,
        effect: Effect::None,
    };

    /// A request that the adapter never gets.
    pub(crate) fn kept_back(id: WorkId) -> Self {
        Self { id, ..Self::EMPTY }
    }

    fn completion(&self, qp: QpId, status: WcStatus) -> Completion {
        Completion {
            id: self.id,
            qp,
            status,
            kind: self.kind,
            bytes: self.bytes,
            immediate: None,
        }
    }
}

impl SendQueue {
    pub(crate) fn new(depth: u32) -> Self {
        Self {
            ring: Ring::new(depth, Sent::EMPTY),
        }
    }

    /// Takes in a completion of the request at `place`. What is to be reported now.
    pub(crate) fn complete(
        &mut self,
        (qp, place): (QpId, u32),
        wc: &Wc,
        view: &View<'_>,
    ) -> Option<Completion> {
        let before = self.ring.before(place)?;
        if self.ring.is_broken() {
            self.ring.end(before + 1);
            return None;
        }
        // What was passed over is done: the adapter reports each failure.
        for _ in 0..before {
            let passed = self.ring.take_head()?;
            view.succeeded(passed.effect);
        }
        let sent = self.ring.take_head()?;
        match translate(wc.status(), Side::Sender(sent.kind)) {
            WcStatus::Success if sent.refused.is_none() => {
                view.succeeded(sent.effect);
                let done = sent.completion(qp, WcStatus::Success);
                sent.reported.then_some(done)
            }
            status => {
                self.ring.break_off();
                view.undone(sent.effect);
                let status = match (status, sent.refused) {
                    (WcStatus::Flushed, _) | (_, None) => status,
                    (_, Some(refused)) => refused,
                };
                Some(sent.completion(qp, status))
            }
        }
    }

    /// Whether the oldest request is to be flushed.
    pub(crate) fn can_flush(&self) -> bool {
        let kept_back = self.ring.head().is_some_and(|sent| !sent.given);
        kept_back || self.ring.head_is_ended()
    }

    /// Flushes the oldest request, if its turn has come.
    pub(crate) fn flush(&mut self, qp: QpId, view: &View<'_>) -> Option<Completion> {
        if !self.can_flush() {
            return None;
        }
        let sent = self.ring.take_head()?;
        view.undone(sent.effect);
        let status = match sent.refused {
            // The adapter refused to take it, and nothing has failed before.
            Some(refused) if !sent.given && !self.ring.is_broken() => refused,
            _ => WcStatus::Flushed,
        };
        self.ring.break_off();
        Some(sent.completion(qp, status))
    }

    /// Nobody will ask for the rest: what may have been bound counts as bound.
    pub(crate) fn abandon(&mut self, view: &View<'_>) {
        while let Some(sent) = self.ring.take_head() {
            match (sent.given, sent.effect) {
                (true, Effect::Bind(..)) => view.succeeded(sent.effect),
                _ => view.undone(sent.effect),
            }
        }
    }
}
