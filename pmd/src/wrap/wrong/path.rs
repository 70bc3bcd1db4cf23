//! The poll path of a wrong device: requests go through `requests`, completions through `completions`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use super::Rule;
use super::world::{DelayedCall, SideId, World};
use crate::completion::{Completion, CompletionKind, WcStatus};
use crate::device::{DataPath, Device};
use crate::ids::{QpId, WorkId};
use crate::work::{ReceiveRequest, SgeList, WorkOp, WorkRequest};

/// The poll path of [`Wrong`](super::Wrong).
pub struct WrongPath<D: Device> {
    pub(super) inner: D::Path,
    pub(super) device: Arc<D>,
    pub(super) world: Arc<World<D>>,
    pub(super) side: SideId,
    /// Requests as the caller posted them, by name.
    pub(super) sent: BTreeMap<u64, (QpId, WorkRequest)>,
    pub(super) received: BTreeMap<u64, ReceiveRequest>,
    /// How completions of altered requests are to look, by name.
    pub(super) disguises: BTreeMap<u64, Disguise>,
    /// Taken, and still to be handed to the device.
    pub(super) late: VecDeque<Late>,
    /// Ready for the caller.
    pub(super) out: VecDeque<Completion>,
    pub(super) successes: u64,
    /// Requests that the caller has been told the end of.
    pub(super) ended: BTreeSet<u64>,
}

/// Of a burst more than this is forgotten.
const BACKLOG: usize = 16;

const NOTHING: WorkOp = WorkOp::Send { immediate: None };

/// What a completion is made to say.
#[derive(Clone, Copy)]
pub(super) struct Disguise {
    pub qp: QpId,
    pub kind: CompletionKind,
    pub status: Option<WcStatus>,
}

pub(super) struct Late {
    pub polls_left: u32,
    pub qp: QpId,
    pub work: WorkRequest,
}

/// What becomes of a request.
pub(super) enum Fate {
    /// It goes to the device, perhaps altered.
    Post(QpId, Vec<WorkRequest>),
    /// It is taken, and goes to the device after this many polls.
    Later(u32, WorkRequest),
    /// It and those behind it are not taken.
    Stop,
}

impl<D: Device> WrongPath<D> {
    pub(super) fn new(inner: D::Path, device: Arc<D>, world: Arc<World<D>>, side: SideId) -> Self {
        Self {
            inner,
            device,
            world,
            side,
            sent: BTreeMap::new(),
            received: BTreeMap::new(),
            disguises: BTreeMap::new(),
            late: VecDeque::new(),
            out: VecDeque::new(),
            successes: 0,
            ended: BTreeSet::new(),
        }
    }

    pub(super) fn breaks(&self, rule: Rule) -> bool {
        self.world.rule == rule
    }

    /// Hands over what is due, in order; what the device does not take waits.
    fn post_late(&mut self) {
        for late in &mut self.late {
            late.polls_left = late.polls_left.saturating_sub(1);
        }
        while let Some(late) = self.late.front() {
            if late.polls_left > 0 || self.inner.post_burst(late.qp, &[late.work]) == 0 {
                return;
            }
            self.late.pop_front();
        }
    }

    /// Does the control calls that have returned too early.
    fn do_delayed(&mut self) {
        let mut facts = self.world.facts();
        let side = self.side;
        let mine = facts
            .delayed
            .iter_mut()
            .filter(|delayed| delayed.side == side);
        mine.for_each(|delayed| delayed.polls_left -= 1);
        let due = |delayed: &super::world::Delayed| delayed.side == side && delayed.polls_left == 0;
        let calls: Vec<_> = facts
            .delayed
            .extract_if(.., |delayed| due(delayed))
            .collect();
        drop(facts);
        for delayed in calls {
            // A refusal changes nothing that the caller could still see.
            let _ = match delayed.call {
                DelayedCall::Dealloc(window) => self.device.dealloc_window(window),
                DelayedCall::Error(qp) => self.device.error_qp(qp),
                DelayedCall::Deregister(region) => self.device.deregister(region),
                DelayedCall::Destroy(qp) => {
                    self.inner.release_qp(qp);
                    self.device.destroy_qp(qp)
                }
            };
        }
    }

    fn post_one(&mut self, qp: QpId, request: &WorkRequest) -> bool {
        match self.fate(qp, request) {
            Fate::Stop => return false,
            Fate::Later(polls_left, work) => self.late.push_back(Late {
                polls_left,
                qp,
                work,
            }),
            Fate::Post(on, parts) => {
                let waits = self.late.iter().any(|late| late.qp == on);
                for work in parts {
                    let taken = !waits && self.inner.post_burst(on, &[work]) == 1;
                    if !taken && !waits && !self.breaks(Rule::TakesBeyondDepth) {
                        return false;
                    }
                    if !taken {
                        self.late.push_back(Late {
                            polls_left: 0,
                            qp: on,
                            work,
                        });
                    }
                }
            }
        }
        self.sent.insert(request.id.0, (qp, *request));
        true
    }

    /// What this queue pair does with posts at all on this wrong device: a count at once, or `None` to go on.
    fn answer_post(&self, qp: QpId, len: usize) -> Option<usize> {
        let facts = self.world.facts();
        let fact = facts.qps.get(&(self.side, qp));
        let is = |test: fn(&super::world::QpFact) -> bool| fact.is_some_and(test);
        match self.world.rule {
            Rule::RefusesPostsInError if is(|qp| qp.in_error) => Some(0),
            Rule::TakesAllInError if is(|qp| qp.in_error) => Some(len),
            Rule::TakesPostsAfterRelease if is(|qp| qp.released) => Some(len),
            Rule::TakesPostsUnconnected if is(|qp| qp.peer.is_none()) => Some(len),
            Rule::DestroyDoesNotFence if is(|qp| qp.released) => Some(0),
            _ => None,
        }
    }
}

impl<D: Device> DataPath for WrongPath<D> {
    fn post_burst(&mut self, qp: QpId, work: &[WorkRequest]) -> usize {
        if let Some(taken) = self.answer_post(qp, work.len()) {
            return taken;
        }
        let burst = self.arrange(qp, work);
        let mut taken = 0;
        for (at, request) in burst.iter().enumerate() {
            let forgotten = self.breaks(Rule::ForgetsBacklog) && at >= BACKLOG;
            if !forgotten && !self.post_one(qp, request) {
                break;
            }
            taken += 1;
        }
        taken
    }

    fn post_receives(&mut self, qp: QpId, receives: &[ReceiveRequest]) -> usize {
        if let Some(taken) = self.answer_post(qp, receives.len())
            && !self.breaks(Rule::TakesPostsUnconnected)
        {
            return taken;
        }
        let taken = self.inner.post_receives(qp, receives);
        let mut facts = self.world.facts();
        for receive in &receives[..taken] {
            self.received.insert(receive.id.0, *receive);
            if let Some(fact) = facts.qps.get_mut(&(self.side, qp)) {
                fact.receives.push_back(receive.sge.len);
            }
        }
        taken
    }

    fn poll_burst(&mut self, done: &mut [Completion]) -> usize {
        self.post_late();
        self.do_delayed();
        let mut fresh = [Completion::EMPTY; 64];
        let count = self.inner.poll_burst(&mut fresh);
        self.take(&mut fresh[..count]);
        if self.breaks(Rule::FlushesEarly) {
            self.flush_early();
        }
        let count = done.len().min(self.out.len());
        for (slot, out) in done.iter_mut().zip(self.out.drain(..count)) {
            *slot = out;
        }
        if self.breaks(Rule::LosesWhatDoesNotFit) {
            self.out.clear();
        }
        count
    }

    fn release_qp(&mut self, qp: QpId) {
        if let Some(fact) = self.world.facts().qps.get_mut(&(self.side, qp)) {
            fact.released = true;
        }
        self.out.retain(|done| done.qp != qp);
        if self.breaks(Rule::CompletesAfterRelease) {
            let nothing = WorkRequest::new(WorkId(0), NOTHING, SgeList::EMPTY);
            self.make_up(qp, &nothing, WcStatus::Flushed);
        }
        if !self.breaks(Rule::DestroyDoesNotFence) {
            self.inner.release_qp(qp);
        }
    }
}
