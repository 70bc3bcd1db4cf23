//! What a wrong device does to completions.

use super::Rule;
use super::path::WrongPath;
use super::requests::{HIDDEN, kind_of};
use crate::completion::{Completion, CompletionKind, WcStatus};
use crate::device::Device;
use crate::ids::QpId;
use crate::work::{Sge, WorkOp, WorkRequest};

impl<D: Device> WrongPath<D> {
    /// Takes what the device gave in one poll, and makes of it what the caller gets.
    pub(super) fn take(&mut self, fresh: &mut [Completion]) {
        if self.breaks(Rule::CompletesOutOfOrder)
            && let [first, second, ..] = fresh
            && first.is_success()
            && second.is_success()
            && first.qp == second.qp
        {
            core::mem::swap(first, second);
        }
        if self.breaks(Rule::FlushesInReverse)
            && fresh.iter().all(|done| done.status == WcStatus::Flushed)
        {
            fresh.reverse();
        }
        for done in fresh {
            if !done.is_success() {
                self.world.facts().note_error(self.side, done.qp);
            }
            if done.id.0 & HIDDEN == 0 {
                self.alter(*done);
            }
        }
        let side = self.side;
        let mut facts = self.world.facts();
        let made_up = facts.made_up.extract_if(.., |(of, _)| *of == side);
        self.out.extend(made_up.map(|(_, done)| done));
    }

    /// A completion that the device has not given.
    pub(super) fn make_up(&mut self, qp: QpId, work: &WorkRequest, status: WcStatus) {
        self.out.push_back(Completion {
            id: work.id,
            qp,
            status,
            kind: kind_of(&work.op),
            bytes: 0,
            immediate: None,
        });
    }

    /// Says of what is posted on queue pairs in error that it is flushed, though the device goes on with it for some polls.
    pub(super) fn flush_early(&mut self) {
        let facts = self.world.facts();
        let in_error = |qp: QpId| {
            let fact = facts.qps.get(&(self.side, qp));
            fact.is_some_and(|fact| fact.in_error)
        };
        let open = self.sent.iter().filter(|(id, _)| !self.ended.contains(*id));
        let early: Vec<_> = open
            .map(|(_, sent)| *sent)
            .filter(|(qp, _)| in_error(*qp))
            .collect();
        drop(facts);
        for (qp, work) in early {
            self.ended.insert(work.id.0);
            self.make_up(qp, &work, WcStatus::Flushed);
        }
    }

    fn alter(&mut self, mut done: Completion) {
        if !self.ended.insert(done.id.0) && self.breaks(Rule::FlushesEarly) {
            return;
        }
        if let Some(disguise) = self.disguises.remove(&done.id.0) {
            done.qp = disguise.qp;
            done.kind = disguise.kind;
            done.status = disguise.status.unwrap_or(done.status);
        }
        self.successes += u64::from(done.is_success());
        let sent = self.sent.get(&done.id.0).copied();
        if self.is_lost(&done, sent.map(|(_, work)| work).as_ref()) {
            return;
        }
        self.harm_memory(&done, sent.map(|(_, work)| work.op));
        match self.world.rule {
            Rule::FlushReportsSuccess if done.status == WcStatus::Flushed => {
                done.status = WcStatus::Success;
            }
            Rule::NamesWrongQueuePair => done.qp = QpId(done.qp.0 ^ 1),
            Rule::NamesWrongKind if done.kind == CompletionKind::Read => {
                done.kind = CompletionKind::Write;
            }
            Rule::MiscountsBytes if done.kind == CompletionKind::Receive => done.bytes += 1,
            Rule::LosesImmediate => done.immediate = None,
            Rule::HidesTheReason if done.status == WcStatus::RemoteAccess => {
                done.status = WcStatus::General;
            }
            Rule::FlushEndsKey if done.status == WcStatus::Flushed => self.end_key_of(sent),
            _ => {}
        }
        self.out.push_back(done);
        let empty = sent.is_some_and(|(_, work)| work.sges.bytes() == 0);
        if self.breaks(Rule::ZeroLengthCompletesTwice) && empty && done.is_success() {
            self.out.push_back(done);
        }
    }

    fn is_lost(&self, done: &Completion, sent: Option<&WorkRequest>) -> bool {
        let silent = sent.is_some_and(|work| !work.signaled);
        let facts = self.world.facts();
        let released = facts.qps.get(&(self.side, done.qp));
        let released = released.is_some_and(|fact| fact.released);
        match self.world.rule {
            Rule::LosesCompletions => done.is_success() && self.successes.is_multiple_of(3),
            Rule::LosesFailedUnsignaled => silent && !done.is_success(),
            Rule::FlushIsSilent => done.status == WcStatus::Flushed,
            Rule::RetriesForEver => done.status == WcStatus::RetryExceeded,
            // Still alive within, but gone as far as the caller knows.
            Rule::DestroyDoesNotFence => released,
            _ => false,
        }
    }

    fn harm_memory(&self, done: &Completion, op: Option<WorkOp>) {
        if self.breaks(Rule::AtomicReturnsNewValue)
            && let Some(WorkOp::FetchAdd { add, .. }) = op
            && done.is_success()
            && let Some((_, work)) = self.sent.get(&done.id.0)
        {
            self.change(work.sges.as_slice()[0], |old| old.wrapping_add(add));
        }
        if self.breaks(Rule::ImmediateTouchesReceive)
            && done.kind == CompletionKind::ReceiveWriteImmediate
            && let Some(receive) = self.received.get(&done.id.0)
        {
            self.change(receive.sge, |old| !old);
        }
    }

    /// Changes the first word of local memory.
    fn change(&self, sge: Sge, to: impl Fn(u64) -> u64) {
        let facts = self.world.facts();
        let Some(region) = facts.region_at(self.side, sge.address, 8) else {
            return;
        };
        let offset = (sge.address - region.arena.address()) as usize;
        if let Ok(word) = region.arena.dma(offset, 8)
            && let Ok(old) = word.load_u64(0)
        {
            // Aligned, since it was loaded.
            let _ = word.store_u64(0, to(old));
        }
    }

    fn end_key_of(&self, sent: Option<(QpId, WorkRequest)>) {
        let Some((_, work)) = sent else {
            return;
        };
        let WorkOp::Invalidate { rkey } = work.op else {
            return;
        };
        let mut facts = self.world.facts();
        let Some(bind) = facts.binds.get(&rkey.index()).copied() else {
            return;
        };
        if self.device.dealloc_window(bind.window).is_ok() {
            facts.ended_windows.insert((self.side, bind.window));
        }
    }
}
