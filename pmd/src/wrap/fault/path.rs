//! The poll path of a device that misbehaves.

use std::collections::VecDeque;

use keyfence_mempool::sync::{Arc, Ordering};

use super::plan::Injection;
use super::{CREATED_MAX, Shared};
use crate::completion::{Completion, CompletionKind};
use crate::device::{DataPath, Device};
use crate::ids::{LcoreId, QpId};
use crate::work::{ReceiveRequest, WorkRequest};

/// The poll path of [`Fault`](super::Fault).
pub struct FaultPath<D: Device> {
    inner: D::Path,
    device: Arc<D>,
    shared: Arc<Shared>,
    lcore: LcoreId,
    polls: u64,
    qps: Vec<Counts>,
    held: VecDeque<Held>,
}

/// What was counted of a queue pair.
struct Counts {
    qp: QpId,
    completions: u64,
    posts: u64,
    requests: u64,
}

struct Held {
    due: u64,
    done: Completion,
}

/// Completions that may be held back at a time; with as many held, no more are taken from the device.
const HELD_MAX: usize = 4096;

impl<D: Device> FaultPath<D> {
    pub(super) fn new(inner: D::Path, device: Arc<D>, shared: Arc<Shared>, lcore: LcoreId) -> Self {
        Self {
            lcore,
            inner,
            device,
            shared,
            polls: 0,
            qps: Vec::with_capacity(CREATED_MAX),
            held: VecDeque::with_capacity(HELD_MAX),
        }
    }

    fn counts(&mut self, qp: QpId) -> &mut Counts {
        let at = self.qps.iter().position(|counts| counts.qp == qp);
        let at = at.unwrap_or_else(|| {
            self.qps.push(Counts {
                qp,
                completions: 0,
                posts: 0,
                requests: 0,
            });
            self.qps.len() - 1
        });
        &mut self.qps[at]
    }

    /// The completion as it comes out now; `None` if it is swallowed or held.
    fn filter(&mut self, mut done: Completion) -> Option<Completion> {
        let counts = self.counts(done.qp);
        let number = counts.completions;
        counts.completions += 1;
        let mut due = 0;
        for (at, injection) in self.shared.plan.injections.iter().enumerate() {
            match injection {
                Injection::Swallow { target, span }
                    if span.contains(number) && self.shared.is_target(*target, done.qp) =>
                {
                    self.shared.strike(at);
                    return None;
                }
                Injection::HoldBack {
                    target,
                    span,
                    polls,
                } if span.contains(number) && self.shared.is_target(*target, done.qp) => {
                    self.shared.strike(at);
                    due = due.max(self.polls + polls);
                }
                Injection::Garbage { seed } if !done.is_success() => {
                    self.shared.strike(at);
                    spoil(&mut done, seed ^ number);
                }
                _ => {}
            }
        }
        // Behind what is held of its queue pair, so that order is kept.
        let last = self.held.iter().rev().find(|held| held.done.qp == done.qp);
        due = due.max(last.map_or(0, |held| held.due));
        if due <= self.polls {
            return Some(done);
        }
        self.held.push_back(Held { due, done });
        None
    }

    fn panic_if_planned(&self) {
        for (at, injection) in self.shared.plan.injections.iter().enumerate() {
            if matches!(injection, Injection::Panic { lcore, poll } if (*lcore, *poll) == (self.lcore, self.polls))
            {
                self.shared.strike(at);
                panic!(
                    "a planned panic in poll {} of lcore {}",
                    self.polls, self.lcore
                );
            }
        }
    }

    /// Gives out what is due, and says how much that was.
    fn give_due(&mut self, done: &mut [Completion]) -> usize {
        let mut count = 0;
        let mut at = 0;
        while at < self.held.len() && count < done.len() {
            if self.held[at].due > self.polls {
                at += 1;
                continue;
            }
            if let Some(held) = self.held.remove(at) {
                done[count] = held.done;
                count += 1;
            }
        }
        count
    }

    /// How many of a post of `len` requests are passed on at all.
    fn shorten(&mut self, qp: QpId, len: usize) -> usize {
        let counts = self.counts(qp);
        let number = counts.posts;
        counts.posts += 1;
        let mut most = len;
        for (at, injection) in self.shared.plan.injections.iter().enumerate() {
            if let Injection::ShortPosts { target, span, take } = injection
                && span.contains(number)
                && *take < len
                && self.shared.is_target(*target, qp)
            {
                self.shared.strike(at);
                most = most.min(*take);
            }
        }
        most
    }

    /// The next injected error of this queue pair: which injection, and after how many more requests.
    fn next_error(&mut self, qp: QpId) -> Option<(usize, u64)> {
        let requests = self.counts(qp).requests;
        let injections = self.shared.plan.injections.iter().enumerate();
        injections
            .filter_map(|(at, injection)| match injection {
                Injection::ErrorQp { target, after } if self.shared.is_target(*target, qp) => {
                    Some((at, after.checked_sub(requests)?))
                }
                _ => None,
            })
            .filter(|(_, left)| *left > 0)
            .min_by_key(|(_, left)| *left)
    }
}

impl<D: Device> DataPath for FaultPath<D> {
    fn post_burst(&mut self, qp: QpId, work: &[WorkRequest]) -> usize {
        let most = self.shorten(qp, work.len());
        let mut taken = 0;
        while taken < most {
            let error = self.next_error(qp);
            let part = error.map_or(most - taken, |(_, left)| {
                (most - taken).min(usize::try_from(left).unwrap_or(usize::MAX))
            });
            let now = self.inner.post_burst(qp, &work[taken..taken + part]);
            taken += now;
            self.counts(qp).requests += now as u64;
            if let Some((at, left)) = error
                && now as u64 == left
            {
                self.shared.strike(at);
                // Refused on a queue pair that is gone, which is no less in error.
                let _ = self.device.error_qp(qp);
            }
            if now < part {
                break;
            }
        }
        taken
    }

    fn post_receives(&mut self, qp: QpId, receives: &[ReceiveRequest]) -> usize {
        self.inner.post_receives(qp, receives)
    }

    fn poll_burst(&mut self, done: &mut [Completion]) -> usize {
        self.panic_if_planned();
        self.polls += 1;
        self.shared.polls.fetch_add(1, Ordering::Relaxed);
        let mut count = self.give_due(done);
        let room = (done.len() - count).min(HELD_MAX - self.held.len());
        let first = count;
        let fresh = self.inner.poll_burst(&mut done[first..first + room]);
        for at in first..first + fresh {
            if let Some(out) = self.filter(done[at]) {
                done[count] = out;
                count += 1;
            }
        }
        count
    }

    fn release_qp(&mut self, qp: QpId) {
        self.inner.release_qp(qp);
        self.held.retain(|held| held.done.qp != qp);
        self.qps.retain(|counts| counts.qp != qp);
    }
}

/// Fills what a failed completion leaves undefined.
fn spoil(done: &mut Completion, seed: u64) {
    let mut state = seed;
    let mut next = || {
        // splitmix64
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    };
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
    done.kind = kinds[next() as usize % kinds.len()];
    done.bytes = next() as u32;
    done.immediate = (next() & 1 == 0).then(|| next() as u32);
}
