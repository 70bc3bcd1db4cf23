//! Rules about one key: what proves its end (R3), its states (R4), when its value may come back (R8).

use keyfence::ids::Epoch;
use keyfence::reclaim::{Action, Event, KeyEnd, KeyState, Note, Scope, TicketIx, Timer};

use crate::bench::{Bench, C0, K0, K1, K2, L0, L1};

#[test]
fn r3_an_acknowledgement_proves_nothing() {
    let mut bench = Bench::new(1);
    bench.live(K0, C0, L0);
    let epoch = bench.retire(K0);
    bench.ack(epoch, L0);
    assert_eq!(bench.state(K0), KeyState::Fencing);
    assert_eq!(bench.post(epoch, L0), [K0]);
    assert_eq!(
        bench.state(K0),
        KeyState::Invalidating,
        "posting proves nothing either"
    );
    bench.tell(Event::Invalidated { key: K0 });
    assert_eq!(bench.transitions[0].ended(), Some(KeyEnd::Zapped));
    assert_eq!(bench.state(K0), KeyState::Dead);
}

#[test]
fn r3_a_dropped_import_proves_nothing() {
    let mut bench = Bench::new(1);
    bench.live(K0, C0, L0);
    bench.tell(Event::ImportDropped { key: K0 });
    assert_eq!(bench.state(K0), KeyState::Fencing);
    assert_eq!(bench.note(Event::Retire { key: K0 }), Note::AlreadyRetired);
}

#[test]
fn r3_a_flushed_invalidation_proves_nothing() {
    let mut bench = Bench::new(1);
    bench.live(K0, C0, L0);
    let epoch = bench.retire(K0);
    bench.ack(epoch, L0);
    bench.post(epoch, L0);
    bench.tell(Event::InvalidateFailed { key: K0 });
    assert_eq!(bench.orders, [Action::BreakLane { lane: L0 }]);
    assert_eq!(bench.state(K0), KeyState::Invalidating);
    assert_eq!(
        bench.doomed(L0),
        [],
        "no deallocation before the QP is in error"
    );
    bench.tell(Event::LaneBroken { lane: L0 });
    assert_eq!(bench.doomed(L0), [K0]);
    bench.tell(Event::Deallocated { key: K0 });
    assert!(bench.outcome(epoch).is_some());
}

#[test]
fn r3_a_binding_key_waits_for_its_bind() {
    let mut bench = Bench::new(2);
    bench.live(K0, C0, L0);
    bench.bind(K1, C0, L0);
    bench.retire(K0);
    let epoch = bench.retire(K1);
    bench.ack(epoch, L0);
    assert_eq!(
        bench.post(epoch, L0),
        [K0],
        "the strand goes on with its other keys"
    );
    assert_eq!(bench.state(K1), KeyState::Binding);
    bench.tell(Event::BindDone { key: K1 });
    assert_eq!(bench.orders, [Action::Invalidate { epoch, lane: L0 }]);
    assert_eq!(bench.post(epoch, L0), [K1]);
}

#[test]
fn r3_a_failed_bind_is_deallocated_and_never_invalidated() {
    let mut bench = Bench::new(2);
    bench.bind(K0, C0, L0);
    bench.bind(K1, C0, L0);
    bench.retire(K0);
    bench.tell(Event::BindFailed { key: K1 });
    let epoch = bench
        .machine
        .key_epoch(K1)
        .expect("a failed bind retires the key");
    bench.ack(epoch, L0);
    assert_eq!(bench.orders, [Action::Dealloc { lane: L0 }]);
    assert_eq!(bench.post(epoch, L0), []);
    assert_eq!(bench.doomed(L0), [K1]);
    bench.tell(Event::BindFailed { key: K0 });
    assert_eq!(bench.post(epoch, L0), []);
    assert_eq!(bench.doomed(L0), [K0]);
}

#[test]
fn r3_no_key_is_handed_out_twice() {
    let mut bench = Bench::new(1);
    bench.live(K0, C0, L0);
    let epoch = bench.retire(K0);
    assert_eq!(bench.machine.next_to_revoke(epoch, L0), Some(K0));
    assert_eq!(bench.machine.next_to_revoke(epoch, L0), None);
    assert_eq!(bench.post(epoch, L0), [], "not before the fence has ended");
    bench.ack(epoch, L0);
    assert_eq!(bench.machine.next_to_revoke(epoch, L0), None);
    assert_eq!(bench.post(epoch, L0), [K0]);
    assert_eq!(bench.post(epoch, L0), []);
    bench.tell(Event::ChainRefused { epoch, lane: L0 });
    assert_eq!(
        bench.doomed(L0),
        [],
        "a posted invalidation excludes a deallocation"
    );
}

#[test]
fn r3_a_refused_chain_is_deallocated_on_a_healthy_lane() {
    let mut bench = Bench::new(2);
    bench.live(K0, C0, L0);
    bench.bind(K1, C0, L0);
    bench.retire(K0);
    let epoch = bench.retire(K1);
    bench.ack(epoch, L0);
    bench.tell(Event::ChainRefused { epoch, lane: L0 });
    assert_eq!(bench.orders, [Action::Dealloc { lane: L0 }]);
    assert_eq!(bench.doomed(L0), [K0]);
    bench.tell(Event::BindDone { key: K1 });
    assert_eq!(bench.doomed(L0), [K1]);
    bench.tell(Event::Deallocated { key: K0 });
    bench.tell(Event::Deallocated { key: K1 });
    assert!(bench.outcome(epoch).is_some());
}

#[test]
fn r3_a_deallocation_that_returns_late_is_a_proof() {
    let mut bench = Bench::new(1);
    bench.live(K0, C0, L0);
    let epoch = bench.retire(K0);
    bench.ack(epoch, L0);
    bench.tell(Event::ChainRefused { epoch, lane: L0 });
    bench.doomed(L0);
    bench.tell(Event::DeallocFailed { key: K0 });
    assert_eq!(bench.orders, [Action::BreakLane { lane: L0 }]);
    assert_eq!(bench.note(Event::DeallocFailed { key: K0 }), Note::Late);
    bench.tell(Event::Deallocated { key: K0 });
    assert_eq!(bench.transitions[0].ended(), Some(KeyEnd::Zapped));
    bench.tell(Event::LaneBroken { lane: L0 });
    assert_eq!(bench.doomed(L0), []);
}

#[test]
fn r3_the_destruction_of_the_qp_proves_no_key() {
    let mut bench = Bench::new(8);
    bench.live(K0, C0, L0);
    bench.tell(Event::LaneBroken { lane: L0 });
    bench.doomed(L0);
    bench.tell(Event::QpDestroyed { lane: L0 });
    assert_eq!(bench.state(K0), KeyState::Fencing);
    bench.tell(Event::DeallocFailed { key: K0 });
    assert_eq!(
        bench.state(K0),
        KeyState::Unproven,
        "there is nothing left to try"
    );
    bench.tell(Event::Deallocated { key: K0 });
    assert_eq!(bench.transitions[0].ended(), Some(KeyEnd::LateProof));
    assert_eq!(bench.state(K0), KeyState::Dead);
}

#[test]
#[should_panic(expected = "R3")]
fn r3_a_deallocation_nobody_ordered_is_refused() {
    let mut bench = Bench::new(1);
    bench.live(K0, C0, L0);
    bench.retire(K0);
    let _refused = bench.note(Event::Deallocated { key: K0 });
}

#[test]
#[should_panic(expected = "R3")]
fn r3_an_invalidation_nobody_posted_is_refused() {
    let mut bench = Bench::new(1);
    bench.live(K0, C0, L0);
    bench.retire(K0);
    let _refused = bench.note(Event::Invalidated { key: K0 });
}

#[test]
#[should_panic(expected = "R4")]
fn r4_only_a_dead_key_is_bound() {
    let mut bench = Bench::new(1);
    bench.live(K0, C0, L0);
    bench.bind(K0, C0, L1);
}

#[test]
#[should_panic(expected = "R4")]
fn r4_a_dead_key_is_not_retired() {
    let _refused = Bench::new(1).note(Event::Retire { key: K0 });
}

#[test]
fn r4_states_change_along_a_keys_life_only() {
    let legal = |from: KeyState, to: KeyState| from.may_become(to);
    for from in KeyState::ALL {
        assert!(!legal(from, from), "{from:?}");
        assert_eq!(
            legal(from, KeyState::Binding),
            from == KeyState::Dead,
            "{from:?}"
        );
        assert_eq!(
            legal(from, KeyState::Live),
            from == KeyState::Binding,
            "{from:?}"
        );
    }
    assert!(!legal(KeyState::Live, KeyState::Dead));
    assert!(!legal(KeyState::Unproven, KeyState::Invalidating));
    assert!(!legal(KeyState::Parked, KeyState::Unproven));
}

#[test]
fn r8_a_key_proven_before_its_acknowledgement_is_parked() {
    let mut bench = Bench::new(2);
    bench.live(K0, C0, L0);
    bench.live(K1, C0, L1);
    bench.retire(K0);
    let epoch = bench.retire(K1);
    bench.tell(Event::Expired(Timer::Fence(epoch)));
    bench.post(epoch, L0);
    bench.post(epoch, L1);
    bench.tell(Event::Invalidated { key: K0 });
    assert!(!bench.transitions[0].freed());
    assert_eq!(bench.state(K0), KeyState::Parked);
    assert_eq!(bench.machine.aside(L0), 1);
    for _ in 0..2 {
        assert_eq!(bench.machine.next_to_remind(L0), Some(K0));
    }
    bench.ack(epoch, L0);
    assert_eq!(bench.state(K0), KeyState::Dead);
    assert_eq!(bench.machine.next_to_remind(L0), None);
    bench.tell(Event::Invalidated { key: K1 });
    assert_eq!(bench.machine.parked(L1), 1);
    // The epoch has ended: its slot has forgotten it, its keys have not.
    assert_eq!(
        bench.note(Event::Acked { epoch, lane: L0 }),
        Note::UnknownEpoch
    );
    bench.ack(epoch, L1);
    assert_eq!(bench.state(K1), KeyState::Dead);
    assert_eq!(
        bench.note(Event::Acked { epoch, lane: L1 }),
        Note::UnknownEpoch
    );
}

#[test]
fn r8_the_qps_destruction_frees_the_values_of_windows_only() {
    let mut bench = Bench::new(8);
    let (context, lane) = (C0, L0);
    bench.live(K0, context, lane);
    bench.tell(Event::Bind {
        key: K1,
        context,
        lane,
        scope: Scope::Domain,
    });
    bench.tell(Event::LaneBroken { lane });
    for key in bench.doomed(lane) {
        bench.tell(Event::Deallocated { key });
        assert_eq!(bench.state(key), KeyState::Parked);
    }
    bench.tell(Event::TargetLost { lane });
    bench.tell(Event::QpDestroyed { lane });
    assert_eq!(bench.state(K0), KeyState::Dead);
    assert_eq!(bench.state(K1), KeyState::Parked);
    assert_eq!(bench.orders, [], "the lane's index is not free");
    bench.tell(Event::DomainDestroyed { lane });
    assert_eq!(bench.state(K1), KeyState::Dead);
    assert_eq!(bench.orders, [Action::LaneFree { lane }]);
}

#[test]
fn r8_an_acknowledgement_before_the_proof_is_remembered() {
    let mut bench = Bench::new(2);
    bench.live(K0, C0, L0);
    bench.live(K1, C0, L0);
    bench.tell(Event::ImportDropped { key: K0 });
    let epoch = bench.retire(K1);
    bench.tell(Event::Expired(Timer::Fence(epoch)));
    bench.post(epoch, L0);
    bench.tell(Event::Invalidated { key: K0 });
    assert!(bench.transitions[0].freed(), "its holder's context is gone");
    bench.ack(epoch, L0);
    bench.tell(Event::Expired(Timer::Invalidate(epoch)));
    bench.tell(Event::Expired(Timer::Final(epoch)));
    assert!(bench.transitions[0].quarantined());
    bench.tell(Event::Invalidated { key: K1 });
    assert!(
        bench.transitions[0].freed(),
        "the epoch is forgotten, its acknowledgement is not"
    );
}

#[test]
fn r8_a_dropped_import_counts_as_an_acknowledgement() {
    let mut bench = Bench::new(1);
    bench.live(K0, C0, L0);
    let epoch = bench.retire(K0);
    bench.tell(Event::Expired(Timer::Fence(epoch)));
    bench.post(epoch, L0);
    bench.tell(Event::Invalidated { key: K0 });
    assert_eq!(bench.state(K0), KeyState::Parked);
    bench.tell(Event::ImportDropped { key: K0 });
    assert_eq!(bench.state(K0), KeyState::Dead);
}

#[test]
fn r8_acknowledgements_of_nothing_are_counted_and_dropped() {
    let mut bench = Bench::new(2);
    bench.live(K0, C0, L0);
    let open = bench.retire(K0);
    for epoch in [open, Epoch(0), Epoch(u64::MAX), Epoch(open.0 + 1)] {
        let before = bench.machine.clone();
        assert_eq!(
            bench.note(Event::Acked { epoch, lane: L0 }),
            Note::UnknownEpoch
        );
        assert_eq!(bench.machine, before);
    }
}

#[test]
fn r3_a_flush_captures_what_a_watermark_sealed() {
    let mut bench = Bench::new(1);
    bench.live(K0, C0, L0);
    bench.live(K1, C0, L0);
    let epoch = bench.retire(K0);
    // The open batch is empty, as in the kernel's fmr_pool: the flush must not believe it.
    bench.tell(Event::Flush {
        ticket: TicketIx(0),
    });
    assert_eq!(bench.flush_ended(), None);
    // What is retired later is not waited for.
    let later = bench.retire(K1);
    bench.ack(epoch, L0);
    bench.post(epoch, L0);
    bench.tell(Event::Invalidated { key: K0 });
    assert_eq!(bench.flush_ended(), Some(0));
    assert_eq!(
        bench.machine.strand_state(later, L0),
        keyfence::reclaim::StrandState::Fencing
    );
}

#[test]
fn r3_a_flush_seals_the_open_batch() {
    let mut bench = Bench::new(8);
    bench.live(K0, C0, L0);
    let epoch = bench.retire(K0);
    bench.tell(Event::Flush {
        ticket: TicketIx(1),
    });
    assert!(bench.orders.contains(&Action::Revoke { epoch, lane: L0 }));
    bench.time_out(epoch);
    assert_eq!(
        bench.flush_ended(),
        Some(1),
        "and lists what is quarantined"
    );
}

#[test]
fn r3_a_flush_counts_what_is_in_quarantine_already() {
    let mut bench = Bench::new(1);
    bench.live(K0, C0, L0);
    bench.live(K2, C0, L1);
    let epoch = bench.retire(K0);
    bench.ack(epoch, L0);
    bench.post(epoch, L0);
    bench.tell(Event::Expired(Timer::Fence(epoch)));
    bench.tell(Event::Expired(Timer::Invalidate(epoch)));
    bench.tell(Event::Expired(Timer::Final(epoch)));
    let other = bench.retire(K2);
    bench.tell(Event::Flush {
        ticket: TicketIx(0),
    });
    bench.tell(Event::Flush {
        ticket: TicketIx(1),
    });
    assert_eq!(bench.flush_ended(), None);
    bench.tell(Event::Invalidated { key: K0 });
    bench.ack(other, L1);
    bench.post(other, L1);
    bench.tell(Event::Invalidated { key: K2 });
    assert_eq!(
        bench.flush_ended(),
        Some(0),
        "a late proof is taken off the list"
    );
    bench.tell(Event::Flush {
        ticket: TicketIx(0),
    });
    assert_eq!(
        bench.flush_ended(),
        Some(0),
        "nothing retired, nothing to wait for"
    );
}
