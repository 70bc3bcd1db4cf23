//! How requests end: in order, each once, and what an error leaves of them.

use super::adapter::{Entry, Frees};
use super::faults::SimFault;
use super::packet::Report;
use super::qp::{QpRef, Wqe, WqeState};
use super::random::mix;
use super::state::{Happening, State};
use crate::completion::{Completion, CompletionKind, WcStatus};
use crate::work::WorkOp;

impl State {
    /// Reports what is done at the head of a send queue. A failed request whose turn has come ends the queue pair.
    pub(super) fn advance(&mut self, at: QpRef) {
        loop {
            let Some(qp) = self.qp_mut(at) else {
                return;
            };
            if qp.in_error {
                return;
            }
            let send = &mut qp.send;
            let Some(head) = send.wqes.front() else {
                return;
            };
            match head.state {
                WqeState::Done => self.report_head(at, WcStatus::Success),
                WqeState::Failed(status) => {
                    // In error first: what lands now reports nothing more.
                    self.enter_error(at);
                    self.settle_own(at);
                    return self.report_head(at, status);
                }
                WqeState::Open => {
                    // An invalidation waits until everything before it is done.
                    if send.issued == send.reported {
                        let now_ns = self.now_ns;
                        self.schedule_issue(at, now_ns);
                    }
                    return;
                }
            }
        }
    }

    fn report_head(&mut self, at: QpRef, status: WcStatus) {
        let Some(qp) = self.qp_mut(at) else {
            return;
        };
        let Some(wqe) = qp.send.wqes.pop_front() else {
            return;
        };
        qp.send.reported += 1;
        let frees = Frees::Requests(qp.send.reported);
        let success = status == WcStatus::Success;
        if success && (!wqe.work.signaled || self.swallows(at)) {
            return;
        }
        let answered = matches!(wqe.kind(), CompletionKind::Read | CompletionKind::Atomic);
        let done = Completion {
            id: wqe.work.id,
            qp: at.qp,
            status,
            kind: wqe.kind(),
            bytes: if answered { wqe.bytes() as u32 } else { 0 },
            immediate: None,
        };
        self.give(at, done, frees);
    }

    /// A success may be lost only if a completion of a later request comes.
    fn swallows(&mut self, at: QpRef) -> bool {
        let rate = self.faults.swallowed_completion_per_million;
        let reported_later = |wqe: &Wqe| wqe.work.signaled;
        let qp = self.qps.get(&at);
        let spared = qp.is_none_or(|qp| !qp.send.wqes.iter().any(reported_later));
        if spared || !self.random.strikes(rate) {
            return false;
        }
        self.fired.add(SimFault::SwallowedCompletion);
        true
    }

    /// The oldest receive completes.
    pub(super) fn report_receive(&mut self, at: QpRef, outcome: Result<Report, WcStatus>) {
        let Some(qp) = self.qp_mut(at) else {
            return;
        };
        let Some(receive) = qp.receive.receives.pop_front() else {
            return;
        };
        qp.receive.taken = qp.receive.taken.saturating_sub(1);
        let undefined = Report {
            kind: CompletionKind::Receive,
            bytes: 0,
            immediate: None,
        };
        let report = outcome.unwrap_or(undefined);
        let done = Completion {
            id: receive.id,
            qp: at.qp,
            status: outcome.err().unwrap_or(WcStatus::Success),
            kind: report.kind,
            bytes: report.bytes,
            immediate: report.immediate,
        };
        self.give(at, done, Frees::Receive);
    }

    /// A completion is there to be seen after a drawn time, and behind those of its queue.
    fn give(&mut self, at: QpRef, mut done: Completion, frees: Frees) {
        self.hash.add(done.id.0);
        if !done.is_success() && self.random.strikes(self.faults.garbage_per_million) {
            self.fired.add(SimFault::Garbage);
            spoil(&mut done, self.random.next());
        }
        let mut seen_ns = self.after(self.config.completion_ns);
        if let Some(ns) = self.sometimes(self.faults.late_completion) {
            self.fired.add(SimFault::LateCompletion);
            seen_ns += ns;
        }
        if let Some(period_ns) = self.sometimes(self.faults.bunched_completion) {
            self.fired.add(SimFault::BunchedCompletion);
            seen_ns = seen_ns.next_multiple_of(period_ns.max(1));
        }
        let turn = self.turn();
        let Some(qp) = self.qp_mut(at) else {
            return;
        };
        let last_ns = match frees {
            Frees::Requests(_) => &mut qp.send.last_seen_ns,
            Frees::Receive => &mut qp.receive.last_seen_ns,
        };
        *last_ns = seen_ns.max(*last_ns);
        let (lcore, key) = (qp.lcore, (*last_ns, turn));
        let queue = &mut self.adapter(at.adapter).lcores[lcore];
        if !queue.is_gone {
            queue.done.insert(key, Entry { done, frees });
        }
    }

    /// Moves a queue pair to error, once. What it accepted lands up to a drawn place, and no further.
    pub(super) fn enter_error(&mut self, at: QpRef) {
        let Some(qp) = self.qp_mut(at) else {
            return;
        };
        if qp.in_error {
            return;
        }
        qp.in_error = true;
        qp.receive.reading = None;
        let (peer, accepted) = (qp.peer, qp.receive.accepted.len() as u64);
        let keep = self.random.below(accepted + 1) as usize;
        if let Some(qp) = self.qp_mut(at) {
            qp.receive.accepted.cut(keep);
        }
        self.schedule_flush(at);
        // What it owes its peer comes no more.
        if let Some(peer) = peer {
            self.schedule_retry(peer);
        }
    }

    pub(super) fn schedule_flush(&mut self, at: QpRef) {
        let at_ns = self.after(self.config.flush_ns);
        if let Some(qp) = self.qp_mut(at)
            && !qp.flush_due
        {
            qp.flush_due = true;
            self.schedule(at_ns, Happening::Flush(at));
        }
    }

    /// Gives back everything that is posted to a queue pair in error. Not before its memory is let go.
    pub(super) fn flush(&mut self, at: QpRef) {
        let Some(qp) = self.qp_mut(at) else {
            return;
        };
        qp.flush_due = false;
        if !qp.in_error || qp.released {
            return;
        }
        let (requests, receives) = (qp.send.wqes.len(), qp.receive.receives.len());
        self.settle_own(at);
        for _ in 0..requests {
            self.report_head(at, WcStatus::Flushed);
        }
        for _ in 0..receives {
            self.report_receive(at, Err(WcStatus::Flushed));
        }
    }

    /// The peer of this queue pair may not answer any more: what it owes by then has failed.
    pub(super) fn schedule_retry(&mut self, at: QpRef) {
        let at_ns = self.after(self.config.retry_ns);
        if let Some(qp) = self.qp_mut(at)
            && !qp.in_error
            && !qp.send.retry_due
        {
            qp.send.retry_due = true;
            self.schedule(at_ns, Happening::Retry(at));
        }
    }

    pub(super) fn give_up(&mut self, at: QpRef) {
        let Some(qp) = self.qp_mut(at) else {
            return;
        };
        qp.send.retry_due = false;
        if qp.in_error {
            return;
        }
        let Some(owed) = qp.send.owed() else {
            return;
        };
        owed.state = WqeState::Failed(WcStatus::RetryExceeded);
        qp.send.halted = true;
        self.advance(at);
    }

    /// What an invalidation that fails by chance ends with. The key may be dead all the same.
    pub(super) fn fail_invalidation(&mut self, at: QpRef, op: &WorkOp) -> WcStatus {
        self.fired.add(SimFault::FailedInvalidation);
        if let WorkOp::Invalidate { rkey } = op
            && self.random.coin()
        {
            self.end_key(at.adapter, rkey.index());
        }
        WcStatus::General
    }
}

/// Fills what a failed completion leaves undefined.
fn spoil(done: &mut Completion, seed: u64) {
    let kinds = [
        CompletionKind::Write,
        CompletionKind::Read,
        CompletionKind::Send,
        CompletionKind::Atomic,
        CompletionKind::Bind,
        CompletionKind::Invalidate,
        CompletionKind::Receive,
        CompletionKind::ReceiveWriteImmediate,
    ];
    done.kind = kinds[mix(seed) as usize % kinds.len()];
    done.bytes = mix(seed ^ 1) as u32;
    done.immediate = (seed & 1 == 0).then(|| mix(seed ^ 2) as u32);
}
