//! Rules about epochs: what a context's end waits for (R1, R2), bystanders (R5), that everything ends once (R6, R7).

use keyfence::reclaim::{
    Action, Capacity, ContextState, Event, KeyEnd, KeyIx, KeyState, LaneSet, Note, Outcome,
    Quarantine, Scope, StrandState, Timer, Why,
};

use crate::bench::{Bench, C0, C1, K0, K1, K2, L0, L1, NOTHING_LEFT};

#[test]
fn r1_handles_that_are_out_hold_the_epoch_to_the_end_of_the_fence() {
    let mut bench = Bench::new(1);
    let epoch = bench.cordon_with(C0, &[], &[], true);
    assert_eq!(bench.outcome(epoch), None);
    bench.tell(Event::Expired(Timer::Fence(epoch)));
    let left = Quarantine {
        handles_held: true,
        ..NOTHING_LEFT
    };
    assert_eq!(bench.outcome(epoch), Some(Outcome::Quarantined(left)));
    assert_eq!(left.why(), Why::HandleHeld);
    assert_eq!(bench.machine.context_state(C0), ContextState::Quarantined);
    bench.tell(Event::HandlesReturned { context: C0 });
    assert_eq!(bench.orders, [Action::ContextFree { context: C0 }]);
    assert_eq!(
        bench.note(Event::HandlesReturned { context: C0 }),
        Note::Late
    );
}

#[test]
fn r1_own_operations_hold_the_epoch() {
    let mut bench = Bench::new(1);
    let epoch = bench.cordon(C0, &[L0, L1]);
    for lane in [L0, L1] {
        assert!(bench.orders.contains(&Action::Close { epoch, lane }));
    }
    bench.tell(Event::OwnOpsEnded {
        context: C0,
        lane: L0,
    });
    assert_eq!(bench.outcome(epoch), None);
    assert_eq!(
        bench.note(Event::ClosingDone { epoch, lane: L0 }),
        Note::Late
    );
    bench.tell(Event::ClosingDone { epoch, lane: L1 });
    assert_eq!(bench.outcome(epoch), Some(Outcome::Flushed));
}

/// A region's end is the control side's and may take long. The lane is not to blame for that, and must not be sacrificed for a completion that was swallowed.
#[test]
fn r5_own_operations_do_not_wait_for_regions() {
    let mut bench = Bench::new(1);
    let (key, context, lane) = (K0, C0, L0);
    bench.tell(Event::Bind {
        key,
        context,
        lane,
        scope: Scope::Domain,
    });
    bench.tell(Event::BindDone { key });
    let epoch = bench.cordon(context, &[lane]);
    bench.ack(epoch, lane);
    let (dealloc, close) = (Action::Dealloc { lane }, Action::Close { epoch, lane });
    assert_eq!(bench.orders, [dealloc, close]);
    assert_eq!(bench.doomed(lane), [key]);
    bench.tell(Event::ClosingDone { epoch, lane });
    assert_eq!(bench.outcome(epoch), None, "R3: the key is not proven");
    bench.tell(Event::Expired(Timer::Fence(epoch)));
    bench.tell(Event::Expired(Timer::Invalidate(epoch)));
    let breaks = |order: &Action| matches!(order, Action::BreakLane { .. });
    assert!(!bench.orders.iter().any(breaks), "{:?}", bench.orders);
    bench.tell(Event::Deallocated { key });
    assert_eq!(bench.outcome(epoch), Some(Outcome::Flushed));
}

#[test]
fn r1_own_operations_that_never_end_are_named() {
    let mut bench = Bench::new(1);
    let epoch = bench.cordon(C0, &[L0]);
    bench.time_out(epoch);
    let left = Quarantine {
        own_ops: LaneSet::EMPTY.with(L0),
        ..NOTHING_LEFT
    };
    assert_eq!(bench.outcome(epoch), Some(Outcome::Quarantined(left)));
    assert_eq!(left.why(), Why::OwnOps);
    bench.tell(Event::LaneBroken { lane: L0 });
    bench.tell(Event::QpDestroyed { lane: L0 });
    assert_eq!(bench.orders, [Action::ContextFree { context: C0 }]);
}

#[test]
fn r3_the_chains_success_makes_up_for_a_swallowed_completion() {
    let mut bench = Bench::new(1);
    bench.live(K0, C0, L0);
    let epoch = bench.cordon(C0, &[L0]);
    assert!(!bench.orders.contains(&Action::Close { epoch, lane: L0 }));
    bench.ack(epoch, L0);
    bench.post(epoch, L0);
    bench.tell(Event::Invalidated { key: K0 });
    assert_eq!(bench.outcome(epoch), Some(Outcome::Flushed));
}

#[test]
fn r3_a_refused_chain_leaves_a_closing_wr_to_post() {
    let mut bench = Bench::new(1);
    bench.live(K0, C0, L0);
    let epoch = bench.cordon(C0, &[L0]);
    bench.ack(epoch, L0);
    bench.tell(Event::ChainRefused { epoch, lane: L0 });
    bench.doomed(L0);
    bench.tell(Event::Deallocated { key: K0 });
    assert_eq!(bench.orders, [Action::Close { epoch, lane: L0 }]);
    bench.tell(Event::ClosingDone { epoch, lane: L0 });
    assert_eq!(bench.outcome(epoch), Some(Outcome::Flushed));
}

#[test]
fn r2_operations_flushed_by_a_break_wait_for_their_target() {
    let mut bench = Bench::new(1);
    let epoch = bench.cordon(C0, &[L0]);
    bench.tell(Event::LaneBroken { lane: L0 });
    bench.tell(Event::OwnOpsEnded {
        context: C0,
        lane: L0,
    });
    assert_eq!(bench.outcome(epoch), None);
    bench.tell(Event::TargetConfirmed { lane: L0 });
    assert_eq!(bench.outcome(epoch), Some(Outcome::Flushed));
}

#[test]
fn r2_a_target_that_never_answers_is_named() {
    let mut bench = Bench::new(1);
    bench.tell(Event::LaneBroken { lane: L1 });
    let epoch = bench.cordon_with(C0, &[], &[L1], false);
    bench.tell(Event::QpDestroyed { lane: L1 });
    assert_eq!(bench.outcome(epoch), None);
    bench.time_out(epoch);
    let left = Quarantine {
        unconfirmed: LaneSet::EMPTY.with(L1),
        ..NOTHING_LEFT
    };
    assert_eq!(bench.outcome(epoch), Some(Outcome::Quarantined(left)));
    assert_eq!(left.why(), Why::Unconfirmed);
    assert!(
        bench.orders.contains(&Action::ContextFree { context: C0 }),
        "our own memory is proven"
    );
    bench.tell(Event::TargetLost { lane: L1 });
    assert_eq!(bench.orders, [Action::LaneFree { lane: L1 }]);
}

#[test]
fn r2_a_contexts_epoch_comprises_keys_that_others_carry() {
    let mut bench = Bench::new(1);
    bench.live(K0, C0, L0);
    bench.live(K1, C0, L1);
    bench.live(K2, C0, L1);
    let batch = bench.retire(K0);
    bench.tell(Event::LaneBroken { lane: L1 });
    let broken = bench.machine.key_epoch(K1).unwrap();
    bench.doomed(L1);
    bench.tell(Event::DeallocFailed { key: K2 });
    let epoch = bench.cordon(C0, &[]);
    assert_eq!(bench.machine.strand_state(epoch, L0), StrandState::Idle);
    bench.tell(Event::Deallocated { key: K1 });
    assert!(bench.outcome(broken).is_some());
    assert_eq!(bench.outcome(epoch), None);
    bench.ack(batch, L0);
    bench.post(batch, L0);
    bench.tell(Event::Invalidated { key: K0 });
    assert_eq!(
        bench.outcome(batch),
        Some(Outcome::Flushed),
        "one proof counts in both"
    );
    let left = Quarantine {
        keys: 1,
        ..NOTHING_LEFT
    };
    assert_eq!(bench.outcome(epoch), Some(Outcome::Quarantined(left)));
    bench.tell(Event::Deallocated { key: K2 });
    assert_eq!(bench.orders, [Action::ContextFree { context: C0 }]);
}

#[test]
fn r2_a_cordon_waits_for_no_batch() {
    let mut bench = Bench::new(8);
    bench.live(K0, C0, L0);
    bench.live(K1, C1, L0);
    bench.retire(K0);
    bench.retire(K1);
    let epoch = bench.cordon(C0, &[]);
    assert_eq!(bench.machine.key_epoch(K0), Some(epoch));
    assert!(bench.orders.contains(&Action::Revoke { epoch, lane: L0 }));
    assert_eq!(
        bench.state(K1),
        KeyState::Live,
        "the batch goes on collecting"
    );
}

#[test]
fn r5_an_acknowledgement_ends_the_fence_of_its_lane_only() {
    let mut bench = Bench::new(2);
    bench.live(K0, C0, L0);
    bench.live(K1, C0, L1);
    bench.retire(K0);
    let epoch = bench.retire(K1);
    bench.ack(epoch, L0);
    assert_eq!(bench.orders, [Action::Invalidate { epoch, lane: L0 }]);
    assert_eq!(bench.machine.strand_state(epoch, L1), StrandState::Fencing);
    bench.tell(Event::Expired(Timer::Fence(epoch)));
    assert!(
        bench
            .orders
            .contains(&Action::Invalidate { epoch, lane: L1 })
    );
}

#[test]
fn r5_only_the_lane_that_is_late_is_sacrificed_and_once() {
    let mut bench = Bench::new(2);
    bench.live(K0, C0, L0);
    bench.live(K1, C0, L1);
    bench.live(K2, C1, L1);
    bench.retire(K0);
    let epoch = bench.retire(K1);
    for (key, lane) in [(K0, L0), (K1, L1)] {
        bench.ack(epoch, lane);
        assert_eq!(bench.post(epoch, lane), [key]);
    }
    bench.tell(Event::Invalidated { key: K0 });
    bench.tell(Event::Expired(Timer::Fence(epoch)));
    bench.tell(Event::Expired(Timer::Invalidate(epoch)));
    assert_eq!(
        bench.orders,
        [
            Action::Arm(Timer::Final(epoch)),
            Action::BreakLane { lane: L1 }
        ]
    );
    let other = bench.cordon(C1, &[]);
    let posts = |order: &Action| matches!(order, Action::Revoke { .. } | Action::Close { .. });
    assert!(
        !bench.orders.iter().any(posts),
        "nothing is posted on a sick lane"
    );
    bench.tell(Event::Expired(Timer::Fence(other)));
    bench.tell(Event::Expired(Timer::Invalidate(other)));
    assert_eq!(
        bench.orders,
        [Action::Arm(Timer::Final(other))],
        "it is broken once"
    );
}

#[test]
fn r5_a_hanging_deallocation_breaks_no_lane() {
    let mut bench = Bench::new(1);
    bench.live(K0, C0, L0);
    let epoch = bench.retire(K0);
    bench.ack(epoch, L0);
    bench.tell(Event::ChainRefused { epoch, lane: L0 });
    bench.doomed(L0);
    bench.tell(Event::Expired(Timer::Fence(epoch)));
    bench.tell(Event::Expired(Timer::Invalidate(epoch)));
    assert_eq!(bench.orders, [Action::Arm(Timer::Final(epoch))]);
    bench.tell(Event::Expired(Timer::Final(epoch)));
    assert!(bench.transitions[0].quarantined());
    bench.tell(Event::Deallocated { key: K0 });
    assert_eq!(bench.transitions[0].ended(), Some(KeyEnd::LateProof));
}

#[test]
fn r6_epochs_end_in_any_order() {
    let mut bench = Bench::new(1);
    bench.live(K0, C0, L0);
    bench.live(K1, C1, L0);
    let (first, second) = (bench.retire(K0), bench.retire(K1));
    assert!(first < second, "tickets grow");
    bench.ack(second, L0);
    bench.post(second, L0);
    bench.tell(Event::Invalidated { key: K1 });
    assert_eq!(bench.outcome(second), Some(Outcome::Flushed));
    assert_eq!(bench.machine.epochs_under_way(), 1);
}

#[test]
fn r6_a_late_proof_releases_and_gives_no_second_event() {
    let mut bench = Bench::new(1);
    bench.live(K0, C0, L0);
    let epoch = bench.cordon(C0, &[]);
    bench.ack(epoch, L0);
    bench.post(epoch, L0);
    bench.time_out(epoch);
    let left = Quarantine {
        keys: 1,
        ..NOTHING_LEFT
    };
    assert_eq!(bench.outcome(epoch), Some(Outcome::Quarantined(left)));
    bench.tell(Event::Invalidated { key: K0 });
    assert_eq!(bench.transitions[0].ended(), Some(KeyEnd::LateProof));
    assert!(bench.transitions[0].freed(), "it was acknowledged in time");
    assert_eq!(bench.orders, [Action::ContextFree { context: C0 }]);
    assert_eq!(
        bench.note(Event::Expired(Timer::Final(epoch))),
        Note::StaleTimer
    );
}

#[test]
fn r6_without_a_slot_the_open_batch_grows_and_is_sealed_later() {
    let mut bench = Bench::new(1);
    for key in 0..4 {
        bench.live(KeyIx(key), C0, L0);
    }
    let first = bench.retire(K0);
    bench.retire(K1);
    let open = bench.retire(K2);
    assert_eq!(
        bench.machine.epochs_under_way(),
        2,
        "three slots, one of them collects"
    );
    bench.retire(KeyIx(3));
    assert_eq!(bench.state(KeyIx(3)), KeyState::Live);
    bench.ack(first, L0);
    bench.post(first, L0);
    bench.tell(Event::Invalidated { key: K0 });
    assert!(bench.orders.contains(&Action::Revoke {
        epoch: open,
        lane: L0
    }));
    assert_eq!(bench.machine.key_epoch(KeyIx(3)), Some(open));
}

#[test]
fn r6_a_retired_key_waits_for_the_interval_at_most() {
    let mut bench = Bench::new(8);
    bench.live(K0, C0, L0);
    let epoch = bench.retire(K0);
    assert_eq!(bench.orders, [Action::Arm(Timer::FlushInterval)]);
    bench.tell(Event::Expired(Timer::FlushInterval));
    assert!(bench.orders.contains(&Action::Revoke { epoch, lane: L0 }));
    assert_eq!(
        bench.note(Event::Expired(Timer::FlushInterval)),
        Note::StaleTimer
    );
}

#[test]
fn r6_a_break_retires_everything_that_lives_on_its_lane() {
    let mut bench = Bench::new(8);
    bench.live(K0, C0, L0);
    bench.bind(K1, C1, L0);
    bench.live(K2, C0, L1);
    bench.retire(K0);
    bench.tell(Event::LaneBroken { lane: L0 });
    assert_eq!(
        bench.state(K2),
        KeyState::Live,
        "another lane's key is left alone"
    );
    let epoch = bench.machine.key_epoch(K1).unwrap();
    assert_eq!(bench.machine.key_epoch(K0), Some(epoch));
    assert_eq!(bench.note(Event::LaneBroken { lane: L0 }), Note::Late);
    let mut doomed = bench.doomed(L0);
    doomed.sort_unstable();
    assert_eq!(doomed, [K0, K1]);
    bench.tell(Event::BindFailed { key: K1 });
    bench.tell(Event::Deallocated { key: K0 });
    bench.tell(Event::Deallocated { key: K1 });
    assert_eq!(bench.outcome(epoch), Some(Outcome::Flushed));
    assert_eq!(bench.machine.parked(L0), 2);
}

#[test]
fn r7_the_books_count_each_key_in_one_state() {
    let mut bench = Bench::new(1);
    bench.live(K0, C0, L0);
    bench.live(K1, C0, L0);
    bench.bind(K2, C0, L0);
    let epoch = bench.retire(K0);
    bench.ack(epoch, L0);
    let counts = bench.machine.counts();
    assert_eq!(
        (counts.fencing, counts.live, counts.binding, counts.dead),
        (1, 1, 1, 5)
    );
}

#[test]
#[should_panic(expected = "not cleared")]
fn r7_no_answer_is_lost() {
    let capacity = Capacity {
        keys: 1,
        contexts: 1,
        lanes: 1,
        epochs: 2,
        tickets: 0,
        flush_watermark: 1,
    };
    let mut machine = keyfence::reclaim::Machine::new(capacity);
    let mut out = keyfence::reclaim::Actions::new(capacity.bound());
    let cordon = Event::Cordon {
        context: C0,
        own_ops: LaneSet::EMPTY,
        flushed_ops: LaneSet::EMPTY,
        handles_out: true,
    };
    assert_eq!(machine.handle(cordon, &mut out), Note::Applied);
    let _refused = machine.handle(Event::HandlesReturned { context: C0 }, &mut out);
}

#[test]
#[should_panic(expected = "cordoned")]
fn r2_a_cordoned_context_binds_nothing() {
    let mut bench = Bench::new(1);
    bench.cordon_with(C0, &[], &[], true);
    bench.bind(K0, C0, L0);
}
