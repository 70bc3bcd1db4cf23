//! Sizes, names and answers that a machine's user counts with, to the number; and what the rules leave as they find it.

use keyfence::ids::{Epoch, LaneId};
use keyfence::reclaim::{
    Action, Actions, Capacity, Event, KeyState, LaneSet, Machine, Note, Quarantine, Timer, Why,
};

use crate::bench::{Bench, C0, C1, K0, K1, L0, L1};

const CAPACITY: Capacity = Capacity {
    keys: 11,
    contexts: 5,
    lanes: 3,
    epochs: 7,
    tickets: 2,
    flush_watermark: 4,
};

#[test]
fn what_an_event_may_answer_is_bound_by_the_sizes() {
    // 7 batches, 5 contexts, 3 lanes: 15 slots.
    let bound = CAPACITY.bound();
    assert_eq!(
        (bound.transitions, bound.orders),
        (11, 3 * 15 + 2 * 3 + 2 + 8)
    );
    assert_eq!(CAPACITY.timers(), 16);
}

#[test]
fn a_timer_has_a_place_of_its_own_by_its_epoch() {
    assert_eq!(Timer::FlushInterval.place(), 0);
    for slot in [0, 5, 14] {
        let epoch = Epoch(3 << 20 | slot);
        let places = [
            Timer::Fence(epoch),
            Timer::Invalidate(epoch),
            Timer::Final(epoch),
        ];
        assert_eq!(places.map(Timer::place), [1 + slot as usize; 3]);
    }
}

fn refused(change: impl FnOnce(&mut Capacity)) -> String {
    let mut capacity = CAPACITY;
    change(&mut capacity);
    let made = std::panic::catch_unwind(|| Machine::new(capacity));
    let Err(why) = made else {
        panic!("no machine has these sizes: {capacity:?}");
    };
    why.downcast_ref::<String>().cloned().unwrap_or_default()
}

#[test]
fn sizes_that_no_machine_can_have_are_refused_by_name() {
    assert!(refused(|sizes| sizes.lanes = 0).starts_with("lanes: 0"));
    assert!(refused(|sizes| sizes.lanes = 129).starts_with("lanes: 129"));
    assert!(refused(|sizes| sizes.epochs = 1).starts_with("epochs: 1"));
    refused(|sizes| sizes.flush_watermark = 0);
    assert!(refused(|sizes| sizes.keys = u32::MAX / 2).starts_with("keys: "));
}

#[test]
fn a_quarantine_names_what_holds_most_back_first() {
    let all = Quarantine {
        keys: 1,
        own_ops: LaneSet::EMPTY.with(L0),
        unconfirmed: LaneSet::EMPTY.with(L0),
        handles_held: true,
    };
    assert_eq!(all.why(), Why::Unproven);
    let without_keys = Quarantine { keys: 0, ..all };
    assert_eq!(without_keys.why(), Why::OwnOps);
    let own_ops = LaneSet::EMPTY;
    let handles = Quarantine {
        own_ops,
        ..without_keys
    };
    assert_eq!(handles.why(), Why::HandleHeld);
    let handles_held = false;
    let left = Quarantine {
        handles_held,
        ..handles
    };
    assert_eq!(left.why(), Why::Unconfirmed);
}

#[test]
fn a_set_of_lanes_has_each_once() {
    let set = LaneSet::EMPTY.with(L1).with(L1).with(LaneId(127));
    assert_eq!(set.len(), 2);
    assert!(set.contains(L1) && set.contains(LaneId(127)));
    assert!(!set.contains(L0) && !set.contains(LaneId(128)));
    assert_eq!(format!("{set:?}"), "{1, 127}");
}

#[test]
fn r7_answers_that_were_acted_on_make_room_for_the_next() {
    let mut machine = Machine::new(CAPACITY);
    let mut out = Actions::new(CAPACITY.bound());
    let bind = Event::Bind {
        key: K0,
        context: C0,
        lane: L0,
        scope: keyfence::reclaim::Scope::Queue,
    };
    assert_eq!(machine.handle(bind, &mut out), Note::Applied);
    assert!(!out.is_empty());
    out.clear();
    assert!(out.is_empty());
    let done = Event::BindDone { key: K0 };
    assert_eq!(machine.handle(done, &mut out), Note::Applied);
    assert_eq!(
        out.transitions().len(),
        1,
        "nothing of the last one is left"
    );
}

#[test]
fn r4_a_key_that_is_parked_is_proven_and_is_not_retired_again() {
    let mut bench = Bench::new(1);
    bench.live(K0, C0, L0);
    let epoch = bench.retire(K0);
    bench.tell(Event::Expired(Timer::Fence(epoch)));
    bench.post(epoch, L0);
    bench.tell(Event::Invalidated { key: K0 });
    assert_eq!(bench.state(K0), KeyState::Parked);
    assert_eq!(bench.note(Event::Retire { key: K0 }), Note::AlreadyProven);
    assert_eq!((bench.machine.parked(L0), bench.machine.aside(L0)), (1, 1));
    bench.ack(epoch, L0);
    assert_eq!((bench.machine.parked(L0), bench.machine.aside(L0)), (0, 0));
}

/// Section 4, step 3: the closing WR of own operations breaks the lane when it fails, if they wait for it, and only then.
#[test]
fn r3_a_closing_request_that_fails_breaks_the_lane_of_operations_that_run() {
    let mut bench = Bench::new(1);
    let epoch = bench.cordon(C0, &[L0]);
    assert_eq!(
        bench.note(Event::ClosingFailed { epoch, lane: L1 }),
        Note::Late
    );
    assert_eq!(bench.orders, []);
    bench.tell(Event::ClosingFailed { epoch, lane: L0 });
    assert_eq!(bench.orders, [Action::BreakLane { lane: L0 }]);
    let mut ended = Bench::new(1);
    let epoch = ended.cordon(C0, &[L0, L1]);
    ended.tell(Event::OwnOpsEnded {
        context: C0,
        lane: L0,
    });
    assert_eq!(
        ended.note(Event::ClosingFailed { epoch, lane: L0 }),
        Note::Late
    );
    assert_eq!(ended.orders, []);
}

/// A context's end takes its keys out of the open batch, which then waits for those that are left alone.
#[test]
fn r3_a_batch_does_not_wait_for_what_a_cordon_took_out_of_it() {
    let mut bench = Bench::new(8);
    bench.live(K0, C0, L0);
    bench.live(K1, C1, L0);
    bench.retire(K0);
    let batch = bench.retire(K1);
    let own = bench.cordon(C0, &[]);
    assert_ne!(bench.machine.key_epoch(K0), Some(batch));
    bench.tell(Event::Expired(Timer::FlushInterval));
    bench.ack(batch, L0);
    assert_eq!(bench.post(batch, L0), [K1]);
    bench.tell(Event::Invalidated { key: K1 });
    assert!(bench.outcome(batch).is_some());
    bench.ack(own, L0);
    assert_eq!(bench.post(own, L0), [K0]);
    bench.tell(Event::Invalidated { key: K0 });
    assert!(bench.outcome(own).is_some());
}
