//! The shadow of a send queue: what each posted request was, so that a completion needs nothing but its place.

use super::hold::Hold;
use super::ring::Ring;
use super::status::{Side, translate};
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
    /// Of an invalidation that the adapter has executed: the grace period that must be over before that is reported. 0 if none must.
    pub(crate) grace: u64,
}

/// The requests of one queue pair that are not ended.
#[derive(Debug)]
pub(crate) struct SendQueue {
    pub(crate) ring: Ring<Sent>,
    pub(crate) hold: Hold,
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
        grace: 0,
    };

    /// A request that the adapter never gets.
    pub(crate) fn kept_back(id: WorkId) -> Self {
        Self { id, ..Self::EMPTY }
    }

    /// What the adapter's word for its end means.
    fn outcome(&self, status: u32) -> WcStatus {
        match (translate(status, Side::Sender(self.kind)), self.refused) {
            (WcStatus::Flushed, _) => WcStatus::Flushed,
            (status, refused) => refused.unwrap_or(status),
        }
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
    /// `hold`: the adapter is software, so successful invalidations are held back.
    pub(crate) fn new(depth: u32, hold: bool) -> Self {
        Self {
            ring: Ring::new(depth, Sent::EMPTY),
            hold: Hold::new(hold),
        }
    }

    /// Takes in a completion, `enum ibv_wc_status`, of the request at `place`. What is to be reported now.
    pub(crate) fn complete(
        &mut self,
        (qp, place): (QpId, u32),
        status: u32,
        view: &View<'_>,
    ) -> Option<Completion> {
        let before = self.ring.before(place)?;
        if self.ring.is_broken() {
            self.ring.end(before + 1);
            return None;
        }
        let outcome = self.ring.at(before).outcome(status);
        if self
            .hold
            .takes(&mut self.ring, before, outcome, &view.objects.grace)
        {
            return None;
        }
        // What was passed over is done: the adapter reports each failure.
        for _ in 0..before {
            let passed = self.ring.take_head()?;
            view.succeeded(passed.effect);
        }
        let sent = self.ring.take_head()?;
        if outcome == WcStatus::Success {
            view.succeeded(sent.effect);
            let done = sent.completion(qp, WcStatus::Success);
            return sent.reported.then_some(done);
        }
        self.ring.break_off();
        view.undone(sent.effect);
        Some(sent.completion(qp, outcome))
    }

    /// Lets go what is proven by the grace periods up to this number, which are over; `None` if there will be no more.
    pub(crate) fn release(&mut self, over: Option<u64>) {
        match over {
            Some(over) => self.hold.prove(&mut self.ring, over),
            None => self.hold.give_up(&mut self.ring),
        }
    }

    /// Whether the oldest request's end is known and may be reported.
    pub(crate) fn can_report(&self) -> bool {
        if self.hold.is_in_use() {
            return self.hold.can_report();
        }
        let kept_back = self.ring.head().is_some_and(|sent| !sent.given);
        kept_back || self.ring.head_is_ended()
    }

    /// Ends the oldest requests whose turn has come, up to one that is reported.
    pub(crate) fn report(&mut self, qp: QpId, view: &View<'_>) -> Option<Completion> {
        while self.hold.take_proven() {
            let sent = self.ring.take_head()?;
            view.succeeded(sent.effect);
            if sent.reported {
                return Some(sent.completion(qp, WcStatus::Success));
            }
        }
        if !self.can_report() {
            return None;
        }
        let failure = self.hold.take_failure();
        let sent = self.ring.take_head()?;
        view.undone(sent.effect);
        let status = match (failure, sent.refused) {
            (Some(failure), _) => failure,
            // The adapter refused to take it, and nothing has failed before.
            (None, Some(refused)) if !sent.given && !self.ring.is_broken() => refused,
            _ => WcStatus::Flushed,
        };
        self.ring.break_off();
        Some(sent.completion(qp, status))
    }

    /// Nobody will ask for the rest: what may have been bound counts as bound.
    pub(crate) fn abandon(&mut self, view: &View<'_>) {
        self.hold = Hold::new(false);
        while let Some(sent) = self.ring.take_head() {
            match (sent.given, sent.effect) {
                (true, Effect::Bind(..)) => view.succeeded(sent.effect),
                _ => view.undone(sent.effect),
            }
        }
    }
}
