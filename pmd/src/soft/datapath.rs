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
use crate::completion::Completion;
use crate::device::DataPath;
use crate::ids::QpId;
use crate::quiesce::PathClock;
use crate::work::{ReceiveRequest, WorkRequest};

/// Slots of one stream that one visit to a queue pair takes at most.
pub(crate) const VISIT_SLOTS: usize = 16;
/// Bytes after which a visit begins no further slice; counted apart for answers, for sending and for executing, so that none starves.
pub(crate) const VISIT_BYTES: usize = 64 * 1024;
/// Bytes after which a poll visits no further queue pair.
const POLL_BYTES: usize = 256 * 1024;
/// Queue pairs that one poll visits at most.
const POLL_QPS: usize = 64;
/// Bytes that a request which is begun counts for at least, so that binds, invalidations and small messages are bounded, too.
pub(crate) const REQUEST_COST_BYTES: usize = 1024;

/// What a control call hands to a path.
#[derive(Debug)]
pub(crate) enum Attach {
    Qp(Box<Endpoint>),
    Connect(QpId, Box<End>),
}

/// What a path hands back: its memory is freed on the control side, since a path frees none and a segment's end enters the kernel.
#[derive(Debug)]
pub(crate) enum Returned {
    Endpoint {
        _freed: Box<Endpoint>,
    },
    /// It came after the release of its queue pair.
    End {
        _freed: Box<End>,
    },
}

/// The poll path of one lcore of a [`SoftDevice`](super::SoftDevice).
///
/// One `poll_burst` visits up to 64 queue pairs in turn, begins where the last one stopped, and visits no further one once 256 KiB have been
/// moved. A visit takes up to 16 answers, begins what requests there is room for, and executes up to 16 requests or slices of the peer's, each of
/// the three until it has moved 64 KiB; so a poll moves less than 640 KiB. A `post_burst` takes in what it is given as far as the queue
/// has room, copies inline bytes, and begins what there is room for, less than 128 KiB. A request that is begun, a bind and an
/// invalidation too, counts for 1 KiB at least, so a post begins 64 at most, and so does a visit. The others wait in the queue for the next poll.
///
/// Dropping the path moves its queue pairs to error and releases them. Unlike a step it takes the lock of the control calls.
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
    returned: Producer<Returned>,
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
                returned: rings.returned,
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
        // Under the lock, so that nothing is attached behind this last look and every call from now on finds the path gone: a queue pair
        // that nobody polls must be in error, or its peer would wait for it for ever.
        let mut books = self.shared.books_of_the_dying();
        self.queues.take_attached(&self.shared);
        for endpoint in self.queues.endpoints.iter_mut().flatten() {
            endpoint.abandon();
        }
        books.path_is_gone(self.lcore);
        self.shared.path_gone[self.lcore].store(true, Ordering::Release);
    }
}

impl Queues {
    /// Takes over what control calls have handed in: new queue pairs, and the links of connected ones.
    #[inline]
    fn take_attached(&mut self, shared: &Shared) {
        while let Some(attach) = self.attach.pop() {
            self.take(shared, attach);
        }
    }

    #[cold]
    fn take(&mut self, shared: &Shared, attach: Attach) {
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
            Attach::Connect(qp, end) => match &mut self.endpoints[shared.slot(qp)] {
                Some(endpoint) if endpoint.id == qp => endpoint.connect(end),
                // Released meanwhile, so the peer knows that the queue pair is in error.
                _ => self.give_back(Returned::End { _freed: end }),
            },
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
        self.give_back(Returned::Endpoint { _freed: endpoint });
    }

    /// The ring has room for all that there can be, see [`Books::attach`](super::books::Books::attach).
    fn give_back(&mut self, returned: Returned) {
        let handed_over = self.returned.push(returned);
        assert!(handed_over.is_ok(), "more handed back than was handed in");
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Control, Device, QpConfig};
    use crate::ids::LcoreId;
    use crate::soft::config::SoftConfig;
    use crate::soft::fabric::Fabric;
    use crate::soft::link::{Link, Side};

    /// An `accept` can pass the release of its queue pair by: then its end comes to a path that has no use for it.
    #[test]
    fn an_end_that_comes_after_the_release_is_freed_by_the_control_side() {
        let config = SoftConfig {
            max_qps: 1,
            ..SoftConfig::TEST_MIN
        };
        let device = Fabric::new().device(config).unwrap();
        let mut path = device.open_path(LcoreId(0)).unwrap();
        let pd = device.alloc_pd().unwrap();
        for round in 0..8 {
            let qp = QpConfig {
                pd,
                lcore: LcoreId(0),
                send_depth: 1,
                receive_depth: 1,
                max_sge: 1,
                max_inline_bytes: 0,
            };
            let qp = device.create_qp(&qp).unwrap();
            path.release_qp(qp);
            let link = Arc::new(Link::map(8, 64 << 10).unwrap());
            let end = Box::new(link.end(Side::Acceptor));
            let late = Attach::Connect(qp, end);
            let released = device.shared().books().attach(0, late);
            let is_endpoint = |of: &&Returned| matches!(of, Returned::Endpoint { .. });
            assert_eq!(released.iter().filter(is_endpoint).count(), 1);
            // Only sometimes does the path look before the queue pair is destroyed and its slot given to another.
            if round % 4 == 0 {
                path.poll_burst(&mut []);
                let returned = device.shared().books().take_back(0);
                assert!(matches!(returned[..], [Returned::End { .. }]));
            }
            device.destroy_qp(qp).unwrap();
        }
    }
}
