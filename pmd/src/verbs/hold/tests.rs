//! Held reports without an adapter: what it says is made up, what is reported is compared.

use std::collections::VecDeque;
use std::ops::Range;

use proptest::prelude::*;
use rdma_mummy_sys::ibv_wc_status::{IBV_WC_LOC_QP_OP_ERR, IBV_WC_SUCCESS, IBV_WC_WR_FLUSH_ERR};

use crate::completion::CompletionKind::{Invalidate, Write};
use crate::completion::{Completion, CompletionKind, WcStatus};
use crate::ids::{PdId, QpId, WorkId};
use crate::verbs::by_key::ByKey;
use crate::verbs::grace::Grace;
use crate::verbs::receive_queue::{ReceiveQueue, Received};
use crate::verbs::send_queue::{SendQueue, Sent};
use crate::verbs::sys::{ClockHandle, Clocks, Table, Wc};
use crate::verbs::windows::{Effect, Objects, RegionUses, View};
use crate::work::Sge;

const QP: QpId = QpId(1);
const DEPTH: u32 = 8;

/// A device without windows and regions.
struct Device {
    objects: Objects,
    clock: ClockHandle,
}

impl Device {
    fn new() -> Self {
        let (clocks, mut handles) = Clocks::new(1);
        let objects = Objects {
            windows: Table::new(1, &clocks),
            window_slots: ByKey::new(1),
            regions: Table::new(1, &clocks),
            region_slots: ByKey::new(1),
            uses: RegionUses::new(1),
            grace: Grace::new(),
        };
        let clock = handles.pop().unwrap();
        Self { objects, clock }
    }

    fn step<T>(&mut self, step: impl FnOnce(&View<'_>) -> T) -> T {
        let inside = self.clock.enter();
        let objects = &self.objects;
        let inside = &inside;
        step(&View { objects, inside })
    }

    /// Runs a grace period.
    fn serve(&self) {
        self.objects.grace.serve(|| Ok(())).unwrap();
    }

    /// A poll of a queue: what it releases, and all it reports.
    fn poll(&mut self, queue: &mut SendQueue) -> Vec<(u64, WcStatus)> {
        let over = self.objects.grace.over();
        queue.release(over);
        self.step(|view| {
            let reports = std::iter::from_fn(|| queue.report(QP, view));
            reports.map(|done| said(&done)).collect()
        })
    }

    /// The adapter's word for the request at a place.
    fn complete(
        &mut self,
        queue: &mut SendQueue,
        place: u32,
        status: u32,
    ) -> Option<(u64, WcStatus)> {
        self.step(|view| queue.complete((QP, place), status, view))
            .map(|done| said(&done))
    }
}

impl Device {
    /// Says of each of these requests that it is done. What is reported at once.
    fn succeed(&mut self, queue: &mut SendQueue, places: Range<u32>) -> Vec<(u64, WcStatus)> {
        let told = places.map(|place| self.complete(queue, place, IBV_WC_SUCCESS));
        told.flatten().collect()
    }
}

fn said(done: &Completion) -> (u64, WcStatus) {
    (done.id.0, done.status)
}

fn good(id: u64) -> (u64, WcStatus) {
    (id, WcStatus::Success)
}

fn flushed(id: u64) -> (u64, WcStatus) {
    (id, WcStatus::Flushed)
}

/// Posts requests that are named from `first` on.
fn post(queue: &mut SendQueue, first: u64, kinds: &[CompletionKind], reported: bool) {
    for (id, kind) in (first..).zip(kinds) {
        queue.ring.push(Sent {
            kind: *kind,
            reported,
            given: true,
            effect: Effect::None,
            ..Sent::kept_back(WorkId(id))
        });
    }
}

fn queue(kinds: &[CompletionKind]) -> SendQueue {
    let mut queue = SendQueue::new(DEPTH, true);
    post(&mut queue, 0, kinds, true);
    queue
}

#[test]
fn r1_an_invalidation_and_what_is_behind_it_wait_and_what_is_before_it_does_not() {
    let (mut device, mut queue) = (Device::new(), queue(&[Write, Invalidate, Write]));
    assert_eq!(
        device.complete(&mut queue, 0, IBV_WC_SUCCESS),
        Some(good(0))
    );
    for place in [1, 2] {
        assert_eq!(device.complete(&mut queue, place, IBV_WC_SUCCESS), None);
    }
    assert_eq!(device.poll(&mut queue), []);
    assert!(queue.hold.is_waiting() && !queue.can_report());
    assert_eq!(queue.ring.len(), 2, "what is held keeps its place");
    device.serve();
    assert_eq!(device.poll(&mut queue), [good(1), good(2)]);
    // And then nothing is in the way of the next.
    post(&mut queue, 3, &[Write], true);
    assert_eq!(
        device.complete(&mut queue, 3, IBV_WC_SUCCESS),
        Some(good(3))
    );
}

#[test]
fn r1_a_success_that_passes_over_an_invalidation_waits_for_it() {
    let (mut device, mut queue) = (Device::new(), SendQueue::new(DEPTH, true));
    post(&mut queue, 0, &[Write], true);
    post(&mut queue, 1, &[Invalidate, Invalidate], false);
    post(&mut queue, 3, &[Write], true);
    assert_eq!(device.succeed(&mut queue, 0..1), [good(0)]);
    assert_eq!(device.complete(&mut queue, 3, IBV_WC_SUCCESS), None);
    assert_eq!(device.poll(&mut queue), []);
    device.serve();
    assert_eq!(device.poll(&mut queue), [good(3)]);
    assert_eq!(queue.ring.len(), 0);
}

#[test]
fn r1_a_grace_period_that_had_begun_before_is_none() {
    let (mut device, mut queue) = (Device::new(), queue(&[Invalidate, Invalidate]));
    assert_eq!(device.complete(&mut queue, 0, IBV_WC_SUCCESS), None);
    let wanted = device.objects.grace.want() - 1;
    // The second is seen while the first one's is running.
    assert_eq!(device.complete(&mut queue, 1, IBV_WC_SUCCESS), None);
    queue.release(Some(wanted));
    let reported = device.step(|view| queue.report(QP, view));
    assert_eq!(reported.map(|done| said(&done)), Some(good(0)));
    assert!(!queue.can_report());
    device.serve();
    assert_eq!(device.poll(&mut queue), [good(1)]);
}

#[test]
fn one_grace_period_serves_several_queue_pairs_and_a_third_does_not_wait() {
    let mut device = Device::new();
    let mut queues = [
        queue(&[Invalidate]),
        queue(&[Write, Invalidate]),
        queue(&[Write]),
    ];
    assert_eq!(device.complete(&mut queues[0], 0, IBV_WC_SUCCESS), None);
    assert_eq!(device.succeed(&mut queues[1], 0..2), [good(0)]);
    assert_eq!(
        device.complete(&mut queues[2], 0, IBV_WC_SUCCESS),
        Some(good(0))
    );
    device.serve();
    assert_eq!(device.poll(&mut queues[0]), [good(0)]);
    assert_eq!(device.poll(&mut queues[1]), [good(1)]);
}

#[test]
fn receives_of_the_queue_pair_go_on() {
    let (mut device, mut queue) = (Device::new(), queue(&[Invalidate]));
    let mut receives = ReceiveQueue::new(DEPTH);
    let (id, sge) = (WorkId(7), Sge::default());
    receives.ring.push(Received {
        id,
        sge,
        given: true,
    });
    assert_eq!(device.complete(&mut queue, 0, IBV_WC_SUCCESS), None);
    let wc = Wc::empty();
    let got = device.step(|view| receives.complete((QP, PdId(1), 0), &wc, view));
    assert_eq!(got.map(|done| said(&done)), Some(good(7)));
    assert!(queue.hold.is_waiting());
}

#[test]
fn a_failed_invalidation_waits_only_for_its_turn() {
    for (status, outcome) in [
        (IBV_WC_LOC_QP_OP_ERR, WcStatus::MemoryWindowBind),
        (IBV_WC_WR_FLUSH_ERR, WcStatus::Flushed),
    ] {
        let (mut device, mut queue) = (Device::new(), queue(&[Write, Invalidate, Invalidate]));
        assert_eq!(device.succeed(&mut queue, 0..1), [good(0)]);
        assert_eq!(device.complete(&mut queue, 1, status), Some((1, outcome)));
        assert_eq!(device.complete(&mut queue, 2, IBV_WC_WR_FLUSH_ERR), None);
        assert_eq!(device.poll(&mut queue), [flushed(2)]);

        let mut queue = self::queue(&[Invalidate, Invalidate]);
        assert_eq!(device.complete(&mut queue, 0, IBV_WC_SUCCESS), None);
        assert_eq!(device.complete(&mut queue, 1, status), None);
        assert_eq!(device.poll(&mut queue), []);
        device.serve();
        assert_eq!(device.poll(&mut queue), [good(0), (1, outcome)]);
    }
}

#[test]
fn an_error_while_held_changes_neither_the_success_nor_the_order() {
    let kinds = [Write, Invalidate, Write, Write, Write];
    let (mut device, mut queue) = (Device::new(), queue(&kinds));
    assert_eq!(device.succeed(&mut queue, 0..3), [good(0)]);
    // What the path learns now stops posts at once.
    assert_eq!(device.complete(&mut queue, 3, IBV_WC_LOC_QP_OP_ERR), None);
    assert!(queue.ring.is_broken());
    assert_eq!(device.complete(&mut queue, 4, IBV_WC_WR_FLUSH_ERR), None);
    queue.ring.push(Sent::kept_back(WorkId(5)));
    assert_eq!(device.poll(&mut queue), []);
    device.serve();
    let failed = (3, WcStatus::LocalProtection);
    let rest = [good(1), good(2), failed, flushed(4), flushed(5)];
    assert_eq!(device.poll(&mut queue), rest);
    assert_eq!(queue.ring.len(), 0);
}

#[test]
fn r3_what_nobody_can_prove_any_more_is_flushed() {
    let kinds = [Write, Invalidate, Invalidate, Write];
    let (mut device, mut queue) = (Device::new(), queue(&kinds));
    assert_eq!(device.succeed(&mut queue, 0..2), [good(0)]);
    device.serve();
    assert_eq!(device.complete(&mut queue, 2, IBV_WC_SUCCESS), None);
    queue.release(Some(1));
    device.objects.grace.end();
    assert_eq!(device.poll(&mut queue), [good(1), flushed(2)]);
    assert_eq!(device.complete(&mut queue, 3, IBV_WC_WR_FLUSH_ERR), None);
    assert_eq!(device.poll(&mut queue), [flushed(3)]);

    // With a failure behind it.
    let mut queue = self::queue(&[Invalidate, Write, Write]);
    assert_eq!(device.succeed(&mut queue, 0..1), []);
    assert_eq!(device.complete(&mut queue, 1, IBV_WC_LOC_QP_OP_ERR), None);
    assert_eq!(device.poll(&mut queue), [flushed(0), flushed(1)]);
    assert_eq!(device.complete(&mut queue, 2, IBV_WC_WR_FLUSH_ERR), None);
    assert_eq!(device.poll(&mut queue), [flushed(2)]);
}

#[test]
fn an_adapter_that_is_no_software_holds_nothing_back() {
    let (mut device, mut queue) = (Device::new(), SendQueue::new(DEPTH, false));
    post(&mut queue, 0, &[Invalidate], true);
    assert_eq!(
        device.complete(&mut queue, 0, IBV_WC_SUCCESS),
        Some(good(0))
    );
    assert!(!queue.hold.is_in_use());
}

#[test]
fn a_queue_pair_that_is_given_up_holds_nothing() {
    let (mut device, mut queue) = (Device::new(), queue(&[Invalidate, Write, Write]));
    assert_eq!(device.succeed(&mut queue, 0..2), []);
    device.step(|view| queue.abandon(view));
    assert!(!queue.hold.is_in_use() && !queue.can_report());
    device.serve();
    assert_eq!(device.poll(&mut queue), []);
}

/// What happens to a queue.
#[derive(Clone, Copy, Debug)]
enum Turn {
    /// A request is posted: an invalidation or not, and whether its success is reported.
    Post(bool, bool),
    /// The adapter completes one of the next requests, and passes over those before it that are not to be told.
    Succeed(u32),
    Fail(u32),
    Poll,
    Serve,
}

fn turns() -> impl Strategy<Value = Vec<Turn>> {
    let turn = prop_oneof![
        5 => (any::<bool>(), any::<bool>()).prop_map(|(inv, told)| Turn::Post(inv, told)),
        5 => (0..DEPTH).prop_map(Turn::Succeed),
        1 => (0..DEPTH).prop_map(Turn::Fail),
        4 => Just(Turn::Poll),
        2 => Just(Turn::Serve),
    ];
    prop::collection::vec(turn, 0..120)
}

/// A queue that holds and one that does not, told the same. Reports of the first are those of the second, later.
struct Twins {
    device: Device,
    plain: SendQueue,
    held: SendQueue,
    posted: u32,
    /// Places that the adapter has ended, and whether it has failed.
    ended: u32,
    failed: bool,
    wanted: VecDeque<(u64, WcStatus)>,
    /// Of each invalidation that was done: the number of the grace period that was the last to begin before.
    begun: u64,
    done_at: Vec<(u64, u64)>,
}

impl Twins {
    fn turn(&mut self, turn: Turn) {
        match turn {
            Turn::Post(invalidate, told) if self.held.ring.room() > 0 => {
                let kind = if invalidate { Invalidate } else { Write };
                let id = u64::from(self.posted);
                for queue in [&mut self.plain, &mut self.held] {
                    post(queue, id, &[kind], told);
                    queue.ring.before_end(1).given = !self.failed;
                }
                self.posted += 1;
            }
            Turn::Succeed(at) if !self.failed => self.end(at, IBV_WC_SUCCESS),
            Turn::Fail(at) if !self.failed => {
                self.end(at, IBV_WC_LOC_QP_OP_ERR);
                self.failed = self.plain.ring.is_broken();
            }
            // After a failure all the others are flushed.
            Turn::Succeed(_) | Turn::Fail(_) => self.end(0, IBV_WC_WR_FLUSH_ERR),
            Turn::Poll => self.poll(),
            Turn::Serve => {
                self.device.serve();
                self.begun += 1;
            }
            Turn::Post(..) => {}
        }
    }

    fn end(&mut self, at: u32, status: u32) {
        let Some(place) = self.next_to_end(at) else {
            return;
        };
        let good = status == IBV_WC_SUCCESS;
        for place in self.ended..place + u32::from(good) {
            let before = self.held.ring.before(place).unwrap();
            if self.held.ring.at(before).kind == Invalidate && !self.failed {
                self.done_at.push((u64::from(place), self.begun));
            }
        }
        self.ended = place + 1;
        let told = self.device.complete(&mut self.plain, place, status);
        self.wanted.extend(told);
        if let Some(told) = self.device.complete(&mut self.held, place, status) {
            self.check(told);
        }
    }

    /// The first of the next requests that the adapter has whose success is to be told, or the last one.
    fn next_to_end(&mut self, most: u32) -> Option<u32> {
        let first = self.held.ring.before(self.ended)?;
        let last = (first + most).min(self.held.ring.len() - 1);
        let told = (first..last).find(|at| self.held.ring.at(*at).reported);
        let at = told.unwrap_or(last);
        self.held
            .ring
            .at(at)
            .given
            .then_some(self.ended + at - first)
    }

    fn poll(&mut self) {
        let told = self.device.poll(&mut self.plain);
        self.wanted.extend(told);
        for told in self.device.poll(&mut self.held) {
            self.check(told);
        }
    }

    fn check(&mut self, told: (u64, WcStatus)) {
        // The plain one may not have been polled for its flushes.
        let more = self.device.poll(&mut self.plain);
        self.wanted.extend(more);
        assert_eq!(self.wanted.pop_front(), Some(told));
        if told.1 == WcStatus::Success {
            let mut before = self.done_at.iter().filter(|(place, _)| *place <= told.0);
            assert!(
                before.all(|(_, begun)| *begun < self.begun),
                "{told:?} was reported too early"
            );
        }
    }
}

proptest! {
    #[test]
    fn r1_held_reports_are_the_same_in_the_same_order_and_none_is_early(turns in turns()) {
        let mut twins = Twins {
            device: Device::new(),
            plain: SendQueue::new(4096, false),
            held: SendQueue::new(DEPTH, true),
            posted: 0,
            ended: 0,
            failed: false,
            wanted: VecDeque::new(),
            begun: 0,
            done_at: Vec::new(),
        };
        for turn in turns {
            twins.turn(turn);
        }
        twins.turn(Turn::Serve);
        twins.poll();
        prop_assert!(twins.wanted.is_empty(), "never reported: {:?}", twins.wanted);
    }
}
