//! The checker's poll path: the one writer of the books of its lcore's queue pairs.

use keyfence_mempool::ring::spsc;
use keyfence_mempool::sync::Arc;

use super::NO_QP;
use super::entry::{OpenOp, Snapshot};
use super::keys::InvalidateNote;
use super::ledger::Ledger;
use super::queue::{QpBook, Queue};
use super::violation::Violation;
use crate::completion::{Completion, CompletionKind, WcStatus};
use crate::device::DataPath;
use crate::ids::{QpId, Rkey};
use crate::work::{ReceiveRequest, WorkOp, WorkRequest};

/// The poll path of [`Check`](super::Check).
pub struct CheckPath<P> {
    inner: P,
    ledger: Arc<Ledger>,
    arrivals: spsc::Consumer<Arc<QpBook>>,
    followed: Vec<Followed>,
}

/// A queue pair of this lcore.
struct Followed {
    book: Arc<QpBook>,
    send: Side,
    receive: Side,
}

/// What is known of one of its queues.
#[derive(Clone, Copy, Default)]
struct Side {
    failed: bool,
    /// Requests from this number on were posted in error.
    dead_from: Option<u64>,
}

impl Side {
    /// Notes the end of a request, and names what is wrong about it.
    fn judge(&mut self, number: u64, status: WcStatus) -> Option<Violation> {
        let dead = self.dead_from.is_some_and(|from| number >= from);
        let behind = self.failed;
        self.failed |= status != WcStatus::Success;
        match status {
            WcStatus::Flushed => None,
            WcStatus::Success if behind => Some(Violation::SuccessAfterFailure),
            WcStatus::Success if dead => Some(Violation::SuccessInError),
            WcStatus::Success => None,
            _ if behind || dead => Some(Violation::NotFlushed),
            _ => None,
        }
    }
}

impl<P: DataPath> CheckPath<P> {
    pub(super) fn new(
        inner: P,
        ledger: Arc<Ledger>,
        arrivals: spsc::Consumer<Arc<QpBook>>,
        most: usize,
    ) -> Self {
        Self {
            inner,
            ledger,
            arrivals,
            followed: Vec::with_capacity(most),
        }
    }

    /// Takes in queue pairs that were made since.
    fn adopt(&mut self) {
        while self.followed.len() < self.followed.capacity() {
            let Some(book) = self.arrivals.pop() else {
                return;
            };
            self.followed.push(Followed {
                book,
                send: Side::default(),
                receive: Side::default(),
            });
        }
    }

    fn position(&mut self, qp: QpId) -> Option<usize> {
        let known = |followed: &[Followed]| followed.iter().position(|of| of.book.qp == qp);
        known(&self.followed).or_else(|| {
            self.adopt();
            known(&self.followed)
        })
    }

    fn report(&self, violation: Violation, qp: QpId, detail: u64) {
        self.ledger.findings.report(violation, qp, detail);
    }

    /// What the device says it took, cut to what it was given, with both kinds of excess reported.
    fn judge_taken(&self, queue: &Queue, qp: QpId, given: usize, taken: usize) -> usize {
        if taken > given {
            self.report(Violation::TookTooMany, qp, taken as u64);
        }
        let taken = taken.min(given);
        queue.retract(given - taken);
        if taken > 0 && queue.is_beyond_depth() {
            self.report(Violation::BeyondDepth, qp, taken as u64);
        }
        taken
    }

    /// Marks the key of an invalidation that the device took.
    fn note_invalidate(&self, book: &QpBook, rkey: Rkey) {
        let noted = match self.ledger.keys.note_invalidate(rkey, book.qp) {
            InvalidateNote::NotBound => match book.send.find_bind(rkey) {
                // Bind and invalidation may stand in one queue.
                Some(number) if book.send.entry(number).note_invalidate() => InvalidateNote::Noted,
                Some(_) => InvalidateNote::Twice,
                None => InvalidateNote::NotBound,
            },
            noted => noted,
        };
        let detail = u64::from(rkey.0);
        match noted {
            InvalidateNote::Noted => {}
            InvalidateNote::Twice => self.report(Violation::InvalidateTwice, book.qp, detail),
            InvalidateNote::NotBound => self.report(Violation::InvalidateNotBound, book.qp, detail),
        }
    }

    fn enter(&mut self, done: &Completion) {
        let Some(at) = self.position(done.qp) else {
            return self.report(Violation::UnknownQp, done.qp, done.id.0);
        };
        let book = &self.followed[at].book;
        let received = matches!(
            done.kind,
            CompletionKind::Receive | CompletionKind::ReceiveWriteImmediate
        );
        // The kind means something with a success alone.
        let send = match done.is_success() && received {
            true => None,
            false => book.send.find(done.id),
        };
        match send {
            Some(number) => self.enter_send(at, number, done),
            None => match book.receive.find(done.id) {
                Some(number) => self.enter_receive(at, number, done),
                None => self.report(Violation::UnknownWork, done.qp, done.id.0),
            },
        }
    }

    fn enter_send(&mut self, at: usize, number: u64, done: &Completion) {
        if let Some(violation) = self.followed[at].send.judge(number, done.status) {
            self.report(violation, done.qp, done.id.0);
        }
        let book = &self.followed[at].book;
        let last = book.send.entry(number).snapshot();
        let refused = [WcStatus::RemoteAccess, WcStatus::LocalProtection];
        if last.is_empty_access() && refused.contains(&done.status) {
            self.report(Violation::ZeroLengthRefused, done.qp, done.id.0);
        }
        if done.is_success() {
            if !book.send.entry(number).is_signaled() {
                self.report(Violation::UnsignaledSuccess, done.qp, done.id.0);
            }
            self.judge_kind(&last, done);
        } else {
            book.note_error();
        }
        for earlier in book.send.numbers().start..number {
            self.pass_over(book, earlier, done);
        }
        match done.is_success() {
            true => self.end_proven(book, number, &last),
            // A failed bind may have opened its key; that is for its window's end to say.
            false if last.bind().is_some() && !book.keep_unproven(&last) => {}
            false => _ = book.send.entry(number).end(),
        }
        book.send.advance();
    }

    /// What a success says of itself.
    fn judge_kind(&self, seen: &Snapshot, done: &Completion) {
        if !seen.op().matches(done.kind) {
            self.report(Violation::WrongKind, done.qp, done.id.0);
        } else if !seen.can_move(done.kind, done.bytes) {
            self.report(Violation::WrongBytes, done.qp, done.id.0);
        }
    }

    /// Treats a request with an earlier number than the one that completed.
    fn pass_over(&self, book: &QpBook, number: u64, done: &Completion) {
        let entry = book.send.entry(number);
        if !entry.is_open() {
            return;
        }
        if entry.is_signaled() {
            self.report(Violation::SkippedRequest, done.qp, entry.id().0);
        }
        let seen = entry.snapshot();
        if done.is_success() {
            self.end_proven(book, number, &seen);
        } else if book.keep_unproven(&seen) {
            entry.end();
        }
    }

    /// Ends a request that is proven to have been executed, with what that means for its key.
    fn end_proven(&self, book: &QpBook, number: u64, seen: &Snapshot) {
        let entry = book.send.entry(number);
        match (seen.op(), seen.bind()) {
            (OpenOp::Bind, Some(bind)) => {
                let detail = u64::from(bind.rkey.0);
                let live = self
                    .ledger
                    .keys
                    .set_live(book.qp, &bind, seen.invalidate_posted());
                let ended_meanwhile = entry.end();
                match live {
                    None => self.report(Violation::UnknownIndex, book.qp, detail),
                    Some(confirmed) => {
                        if !confirmed.was_free {
                            self.report(Violation::BoundTwice, book.qp, detail);
                        }
                        if !confirmed.is_owners {
                            self.report(Violation::BoundElsewhere, book.qp, detail);
                        }
                        if ended_meanwhile {
                            self.ledger.keys.end_record(&confirmed.record);
                        }
                    }
                }
            }
            (OpenOp::Invalidate, _) => {
                let rkey = seen.invalidates();
                let holder = self.ledger.keys.holder(rkey);
                if holder.is_some_and(|holder| holder != book.qp) {
                    self.report(Violation::InvalidatedElsewhere, book.qp, rkey.0.into());
                }
                if !self.ledger.keys.end_key(rkey) {
                    self.report(Violation::DeadInvalidated, book.qp, u64::from(rkey.0));
                }
                entry.end();
            }
            _ => _ = entry.end(),
        }
    }

    fn enter_receive(&mut self, at: usize, number: u64, done: &Completion) {
        if let Some(violation) = self.followed[at].receive.judge(number, done.status) {
            self.report(violation, done.qp, done.id.0);
        }
        let book = &self.followed[at].book;
        let skipped = book.receive.numbers().start != number;
        if skipped {
            self.report(Violation::SkippedRequest, done.qp, done.id.0);
        }
        match done.is_success() {
            true => self.judge_kind(&book.receive.entry(number).snapshot(), done),
            false => book.note_error(),
        }
        book.receive.entry(number).end();
        book.receive.advance();
    }
}

/// A path that ends releases what it has, as the device's does.
impl<P> Drop for CheckPath<P> {
    fn drop(&mut self) {
        let followed = self.followed.drain(..).map(|followed| followed.book);
        followed.for_each(|book| book.release());
        while let Some(book) = self.arrivals.pop() {
            book.release();
        }
    }
}

impl<P: DataPath> DataPath for CheckPath<P> {
    fn post_burst(&mut self, qp: QpId, work: &[WorkRequest]) -> usize {
        let Some(at) = self.position(qp) else {
            let taken = self.inner.post_burst(qp, work);
            if taken > 0 {
                self.report(Violation::TookOnUnknownQp, qp, taken as u64);
            }
            return taken;
        };
        let Followed { book, send, .. } = &mut self.followed[at];
        if book.is_in_error() {
            send.dead_from.get_or_insert(book.send.numbers().end);
        }
        let given = &work[..work.len().min(book.send.room())];
        // In the books before the device has them: nobody may look in between and find nothing.
        given
            .iter()
            .for_each(|request| book.send.push_work(request));
        let taken = self.inner.post_burst(qp, given);
        let taken = self.judge_taken(&self.followed[at].book.send, qp, given.len(), taken);
        let book = &self.followed[at].book;
        if taken > 0 && !book.is_begun() {
            self.report(Violation::TookUnconnected, qp, taken as u64);
        }
        for request in &given[..taken] {
            if let WorkOp::Invalidate { rkey } = request.op {
                self.note_invalidate(book, rkey);
            }
        }
        taken
    }

    fn post_receives(&mut self, qp: QpId, receives: &[ReceiveRequest]) -> usize {
        let Some(at) = self.position(qp) else {
            let taken = self.inner.post_receives(qp, receives);
            if taken > 0 {
                self.report(Violation::TookOnUnknownQp, qp, taken as u64);
            }
            return taken;
        };
        let Followed { book, receive, .. } = &mut self.followed[at];
        if book.is_in_error() {
            receive.dead_from.get_or_insert(book.receive.numbers().end);
        }
        let given = &receives[..receives.len().min(book.receive.room())];
        given
            .iter()
            .for_each(|receive| book.receive.push_receive(receive));
        let taken = self.inner.post_receives(qp, given);
        self.judge_taken(&self.followed[at].book.receive, qp, given.len(), taken)
    }

    fn poll_burst(&mut self, done: &mut [Completion]) -> usize {
        let said = self.inner.poll_burst(done);
        let count = said.min(done.len());
        if said > count {
            self.report(Violation::PolledTooMany, NO_QP, said as u64);
        }
        for completion in &done[..count] {
            self.enter(completion);
        }
        count
    }

    fn release_qp(&mut self, qp: QpId) {
        self.inner.release_qp(qp);
        if let Some(at) = self.position(qp) {
            self.followed[at].book.release();
            self.followed.swap_remove(at);
        }
    }
}
