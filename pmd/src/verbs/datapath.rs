//! The poll path of one lcore.

use std::sync::Arc;

use keyfence_mempool::ring::spsc::{Consumer, Producer};
use keyfence_mempool::sync::Ordering;

use super::books::LcoreRings;
use super::device::Shared;
use super::endpoint::{Endpoint, decode};
use super::numbers::slot_of;
use super::sys::{Chain, ClockHandle, Cq, Wc};
use super::windows::View;
use crate::completion::Completion;
use crate::device::DataPath;
use crate::ids::QpId;
use crate::work::{ReceiveRequest, WorkRequest};

/// Completions taken from the adapter at a time.
const BATCH: usize = 32;
/// Completions that one poll takes at most, also if nobody wants to know of them.
const POLL_COMPLETIONS: usize = 256;

/// The poll path of one lcore of a [`VerbsDevice`](super::VerbsDevice).
///
/// One `poll_burst` takes up to 256 completions from the lcore's one completion queue. A `post_burst` rings one doorbell for up to 32
/// requests. The adapter does the work meanwhile; a step only hands over and takes.
///
/// Dropping the path moves its queue pairs to error and releases them. Unlike a step it takes the lock of the control calls.
#[derive(Debug)]
pub struct VerbsPath {
    shared: Arc<Shared>,
    lcore: usize,
    clock: ClockHandle,
    chain: Chain,
    queues: Queues,
}

#[derive(Debug)]
struct Queues {
    cq: Arc<Cq>,
    attach: Consumer<Box<Endpoint>>,
    returned: Producer<Box<Endpoint>>,
    /// By the slot of a queue pair's number.
    endpoints: Box<[Option<Box<Endpoint>>]>,
    max_qps: u32,
    /// Slots of those that have something to report; room for all.
    reporting: Vec<usize>,
    /// Slots of those that hold something back until a grace period is over; room for all.
    holding: Vec<usize>,
    batch: Box<[Wc]>,
}

/// The caller's array, and how much of it is written.
struct Completions<'a> {
    done: &'a mut [Completion],
    len: usize,
}

impl VerbsPath {
    pub(crate) fn new(shared: Arc<Shared>, lcore: usize, rings: LcoreRings) -> Self {
        let max_qps = shared.caps.max_qps;
        let slots = max_qps.next_power_of_two() as usize;
        Self {
            chain: Chain::new(shared.caps.max_inline_bytes),
            clock: rings.clock,
            queues: Queues {
                cq: rings.cq,
                attach: rings.attach,
                returned: rings.returned,
                endpoints: (0..slots).map(|_| None).collect(),
                max_qps,
                reporting: Vec::with_capacity(slots),
                holding: Vec::with_capacity(slots),
                batch: vec![Wc::empty(); BATCH].into(),
            },
            shared,
            lcore,
        }
    }
}

impl VerbsPath {
    /// Reports what is known and not told yet.
    #[inline]
    fn report(&mut self, done: &mut Completions<'_>) {
        if !self.queues.reporting.is_empty() {
            let inside = self.clock.enter();
            let objects = &self.shared.objects;
            let inside = &inside;
            self.queues.report(&View { objects, inside }, done);
        }
    }
}

impl DataPath for VerbsPath {
    fn post_burst(&mut self, qp: QpId, work: &[WorkRequest]) -> usize {
        self.queues.take_attached();
        let Some(endpoint) = self.queues.find(qp) else {
            return 0;
        };
        let inside = Endpoint::needs_view(work).then(|| self.clock.enter());
        let view = inside.as_ref().map(|inside| View {
            objects: &self.shared.objects,
            inside,
        });
        let taken = endpoint.post(&mut self.chain, view, work);
        drop(inside);
        self.queues.list_for_report(qp);
        taken
    }

    fn post_receives(&mut self, qp: QpId, receives: &[ReceiveRequest]) -> usize {
        self.queues.take_attached();
        let Some(endpoint) = self.queues.find(qp) else {
            return 0;
        };
        let taken = endpoint.post_receives(&mut self.chain, receives);
        self.queues.list_for_report(qp);
        taken
    }

    fn poll_burst(&mut self, done: &mut [Completion]) -> usize {
        self.queues.take_attached();
        let mut done = Completions { done, len: 0 };
        if !self.queues.holding.is_empty() {
            self.queues.release_held(self.shared.objects.grace.over());
        }
        self.report(&mut done);
        let mut budget = POLL_COMPLETIONS;
        while done.room() > 0 && budget > 0 {
            let wanted = done.room().min(BATCH).min(budget);
            let got = self.queues.cq.poll(&mut self.queues.batch[..wanted]);
            if got > 0 {
                let inside = self.clock.enter();
                let objects = &self.shared.objects;
                let inside = &inside;
                self.queues
                    .take_in(got, &View { objects, inside }, &mut done);
            }
            budget -= got;
            if got < wanted {
                self.shared.found_empty(self.lcore);
                break;
            }
        }
        self.report(&mut done);
        done.len
    }

    fn release_qp(&mut self, qp: QpId) {
        self.queues.take_attached();
        if self.queues.find(qp).is_none() {
            return;
        }
        let slot = slot_of(qp.0, self.queues.max_qps);
        let inside = self.clock.enter();
        let view = View {
            objects: &self.shared.objects,
            inside: &inside,
        };
        self.queues.release(slot, &view);
    }
}

impl Drop for VerbsPath {
    fn drop(&mut self) {
        // Under the lock, so that nothing is attached behind this last look and every call from now on finds the path gone.
        let mut books = self.shared.books_of_the_dying();
        self.queues.take_attached();
        let inside = self.clock.enter();
        let view = View {
            objects: &self.shared.objects,
            inside: &inside,
        };
        for slot in 0..self.queues.endpoints.len() {
            if self.queues.endpoints[slot].is_some() {
                self.queues.release(slot, &view);
            }
        }
        books.path_is_gone(self.lcore);
        self.shared.lcores[self.lcore]
            .path_gone
            .store(true, Ordering::Release);
    }
}

impl Queues {
    /// Takes over the queue pairs that control calls have handed in.
    #[inline]
    fn take_attached(&mut self) {
        while let Some(endpoint) = self.attach.pop() {
            let slot = slot_of(endpoint.id.0, self.max_qps);
            assert!(
                self.endpoints[slot].is_none(),
                "a queue pair's slot is taken"
            );
            self.endpoints[slot] = Some(endpoint);
        }
    }

    #[inline]
    fn find(&mut self, qp: QpId) -> Option<&mut Endpoint> {
        let slot = slot_of(qp.0, self.max_qps);
        let endpoint = self.endpoints[slot].as_deref_mut()?;
        (endpoint.id == qp).then_some(endpoint)
    }

    /// Takes in the first `count` completions of the batch. Those of a queue pair that was released belong to nobody.
    fn take_in(&mut self, count: usize, view: &View<'_>, done: &mut Completions<'_>) {
        for at in 0..count {
            let wc = self.batch[at];
            let (qp, receive, place) = decode(wc.wr_id());
            let Some(endpoint) = self.find(qp) else {
                continue;
            };
            if let Some(completion) = endpoint.complete((receive, place), &wc, view) {
                done.push(completion);
            }
            self.list_for_report(qp);
        }
    }

    /// Lets go what the grace periods that are over have proven (`None`: there will be no more).
    #[cold]
    fn release_held(&mut self, over: Option<u64>) {
        let mut at = 0;
        while let Some(slot) = self.holding.get(at).copied() {
            let endpoint = self.endpoints[slot].as_deref_mut();
            let endpoint = endpoint.expect("a queue pair in the list is attached");
            let qp = endpoint.id;
            endpoint.sends.release(over);
            if endpoint.sends.hold.is_waiting() {
                at += 1;
            } else {
                endpoint.held = false;
                self.holding.swap_remove(at);
            }
            self.list_for_report(qp);
        }
    }

    #[inline]
    fn list_for_report(&mut self, qp: QpId) {
        let slot = slot_of(qp.0, self.max_qps);
        let Some(endpoint) = self.endpoints[slot].as_deref_mut() else {
            return;
        };
        if !endpoint.listed && endpoint.can_report() {
            endpoint.listed = true;
            self.reporting.push(slot);
        }
        if endpoint.sends.hold.is_waiting() && !endpoint.held {
            endpoint.held = true;
            self.holding.push(slot);
        }
    }

    /// Reports what is known and not told yet, as far as there is room to say so.
    fn report(&mut self, view: &View<'_>, done: &mut Completions<'_>) {
        while let Some(slot) = self.reporting.last().copied() {
            let endpoint = self.endpoints[slot].as_deref_mut();
            let endpoint = endpoint.expect("a queue pair in the list is attached");
            while done.room() > 0
                && let Some(completion) = endpoint.report(view)
            {
                done.push(completion);
            }
            if endpoint.can_report() {
                return;
            }
            endpoint.listed = false;
            self.reporting.pop();
        }
    }

    fn release(&mut self, slot: usize, view: &View<'_>) {
        let mut endpoint = self.endpoints[slot].take().expect("the caller has looked");
        endpoint.sends.abandon(view);
        self.reporting.retain(|listed| *listed != slot);
        self.holding.retain(|listed| *listed != slot);
        let flags = Arc::clone(&endpoint.flags);
        // The ring has room for all queue pairs, see `LcoreRecord`.
        let handed_over = self.returned.push(endpoint);
        assert!(handed_over.is_ok(), "more handed back than was handed in");
        // Only now: who sees it finds the endpoint in the ring.
        flags.released.store(true, Ordering::Release);
    }
}

impl Completions<'_> {
    #[inline]
    fn room(&self) -> usize {
        self.done.len() - self.len
    }

    #[inline]
    fn push(&mut self, completion: Completion) {
        self.done[self.len] = completion;
        self.len += 1;
    }
}
