//! The poll path of one lcore.

use std::sync::Arc;

use keyfence_mempool::ring::spsc::{Consumer, Producer};
use keyfence_mempool::sync::Ordering;

use super::arenas::PathArenas;
use super::books::LcoreRings;
use super::completions::Completions;
use super::device::Shared;
use super::endpoint::Endpoint;
use super::link::End;
use super::memory::Memory;
use super::quiesce::PathClock;
use crate::completion::Completion;
use crate::device::DataPath;
use crate::ids::QpId;
use crate::work::{ReceiveRequest, WorkRequest};

/// Slots of one stream that one visit to a queue pair takes at most.
pub(crate) const VISIT_SLOTS: usize = 16;
/// Bytes after which a visit begins no further slice; counted apart for answers, for sending and for executing, so that none starves.
pub(crate) const VISIT_BYTES: usize = 64 * 1024;
/// Bytes after which a poll visits no further queue pair.
const POLL_BYTES: usize = 256 * 1024;
/// Queue pairs that one poll visits at most.
const POLL_QPS: usize = 64;

/// What a control call hands to a path.
#[derive(Debug)]
pub(crate) enum Attach {
    Qp(Box<Endpoint>),
    Connect(QpId, Box<End>),
}

/// The poll path of one lcore of a [`SoftDevice`](super::SoftDevice).
///
/// One `poll_burst` visits up to 64 queue pairs in turn, begins where the last one stopped, and visits no further one once 256 KiB have been
/// moved. A visit takes up to 16 answers, sends what there is room for, and executes up to 16 requests or slices, each of the three
/// until it has moved 64 KiB; so a poll moves less than 640 KiB. A `post_burst` sends at once what there is room for, less than 128 KiB.
///
/// Dropping the path moves its queue pairs to error and releases them.
#[derive(Debug)]
pub struct SoftPath {
    shared: Arc<Shared>,
    lcore: usize,
    queues: Queues,
}

#[derive(Debug)]
struct Queues {
    arenas: PathArenas,
    attach: Consumer<Attach>,
    released: Producer<Box<Endpoint>>,
    /// By the slot of a queue pair's number.
    endpoints: Box<[Option<Box<Endpoint>>]>,
    /// Slots in use, in the order of visits; capacity for all.
    order: Vec<usize>,
    next: usize,
}

/// A poll step that does not end, as seen by control calls: what a lcore that is paused in the middle of an access looks like.
#[derive(Debug)]
pub struct PausedStep<'a> {
    _inside: Inside<'a>,
}

/// Between entering and leaving, also when a panic unwinds.
#[derive(Debug)]
struct Inside<'a>(&'a PathClock);

impl SoftPath {
    pub(crate) fn new(
        shared: Arc<Shared>,
        lcore: usize,
        arenas: PathArenas,
        rings: LcoreRings,
    ) -> Self {
        let slots = shared.config.max_qps.next_power_of_two() as usize;
        Self {
            shared,
            lcore,
            queues: Queues {
                arenas,
                attach: rings.attach,
                released: rings.released,
                endpoints: (0..slots).map(|_| None).collect(),
                order: Vec::with_capacity(slots),
                next: 0,
            },
        }
    }

    /// Stops inside a step until the guard is dropped. Control calls that must wait for this lcore come back
    /// [`Late`](crate::ControlError::Late) meanwhile. For tests of deadlines.
    pub fn pause(&mut self) -> PausedStep<'_> {
        PausedStep {
            _inside: Inside::enter(&self.shared.clocks[self.lcore]),
        }
    }
}

impl DataPath for SoftPath {
    fn post_burst(&mut self, qp: QpId, work: &[WorkRequest]) -> usize {
        let _inside = Inside::enter(&self.shared.clocks[self.lcore]);
        let queues = &mut self.queues;
        queues.take_attached(&self.shared);
        let slot = self.shared.slot(qp);
        match &mut queues.endpoints[slot] {
            Some(endpoint) if endpoint.id == qp => {
                let mut memory = Memory::new(&self.shared.keys, &mut queues.arenas, VISIT_BYTES);
                endpoint.post(&mut memory, work)
            }
            _ => 0,
        }
    }

    fn post_receives(&mut self, qp: QpId, receives: &[ReceiveRequest]) -> usize {
        let _inside = Inside::enter(&self.shared.clocks[self.lcore]);
        self.queues.take_attached(&self.shared);
        let slot = self.shared.slot(qp);
        match &mut self.queues.endpoints[slot] {
            Some(endpoint) if endpoint.id == qp => endpoint.post_receives(receives),
            _ => 0,
        }
    }

    fn poll_burst(&mut self, done: &mut [Completion]) -> usize {
        let _inside = Inside::enter(&self.shared.clocks[self.lcore]);
        self.queues.take_attached(&self.shared);
        self.queues.arenas.take_changes();
        self.queues.poll(&self.shared, done)
    }

    fn release_qp(&mut self, qp: QpId) {
        let _inside = Inside::enter(&self.shared.clocks[self.lcore]);
        self.queues.take_attached(&self.shared);
        self.queues.release(self.shared.slot(qp), qp);
    }
}

impl Drop for SoftPath {
    fn drop(&mut self) {
        self.queues.take_attached(&self.shared);
        for endpoint in self.queues.endpoints.iter_mut().flatten() {
            endpoint.abandon();
        }
        self.shared.path_gone[self.lcore].store(true, Ordering::Release);
    }
}

impl Queues {
    /// Takes over what control calls have handed in: new queue pairs, and the links of connected ones.
    #[inline]
    fn take_attached(&mut self, shared: &Shared) {
        while let Some(attach) = self.attach.pop() {
            match attach {
                Attach::Qp(endpoint) => {
                    let slot = shared.slot(endpoint.id);
                    assert!(
                        self.endpoints[slot].is_none(),
                        "a queue pair's slot is taken"
                    );
                    self.endpoints[slot] = Some(endpoint);
                    self.order.push(slot);
                }
                Attach::Connect(qp, end) => {
                    // Released meanwhile: the control side tells the peer when it destroys.
                    let endpoint = self.endpoints[shared.slot(qp)].as_mut();
                    if let Some(endpoint) = endpoint.filter(|endpoint| endpoint.id == qp) {
                        endpoint.connect(end);
                    }
                }
            }
        }
    }

    #[inline]
    fn poll(&mut self, shared: &Shared, done: &mut [Completion]) -> usize {
        let mut done = Completions::new(done);
        let mut memory = Memory::new(&shared.keys, &mut self.arenas, VISIT_BYTES);
        for _ in 0..self.order.len().min(POLL_QPS) {
            if self.next >= self.order.len() {
                self.next = 0;
            }
            let endpoint = self.endpoints[self.order[self.next]].as_mut();
            let endpoint = endpoint.expect("a queue pair in the order of visits");
            endpoint.visit(&mut memory, &mut done);
            self.next += 1;
            if memory.moved >= POLL_BYTES || done.is_full() {
                break;
            }
        }
        done.len()
    }

    fn release(&mut self, slot: usize, qp: QpId) {
        let is_this = matches!(&self.endpoints[slot], Some(endpoint) if endpoint.id == qp);
        if !is_this {
            return;
        }
        let mut endpoint = self.endpoints[slot].take().expect("just seen");
        endpoint.abandon();
        self.order.retain(|used| *used != slot);
        // A control call frees its memory. The ring has a place for every queue pair.
        let handed_over = self.released.push(endpoint);
        assert!(handed_over.is_ok(), "more queue pairs released than exist");
    }
}

impl<'a> Inside<'a> {
    #[inline]
    fn enter(clock: &'a PathClock) -> Self {
        clock.enter();
        Self(clock)
    }
}

impl Drop for Inside<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.leave();
    }
}
