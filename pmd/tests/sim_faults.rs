//! Each fault of `sim` strikes when it is asked for, and the contract still says what may be relied on then.

mod simulated;

use keyfence_pmd::sim::{AccessKey, Breach, Nanos, SimConfig, SimFault, SimFaults, Sometimes};
use keyfence_pmd::*;
use simulated::faults::{ALWAYS, always, fired, linked, linked_on, set, struck};
use simulated::pair::{LONG_NS, NOTHING};

const TARGET: usize = 1 << 20;
const SINK: usize = 2 << 20;

#[test]
fn nothing_goes_wrong_unasked() {
    let (mut pair, link) = linked(1);
    for _ in 0..50 {
        assert_eq!(
            pair.run(0, link.0[0], pair.write_op(0, Rkey(0)), SgeList::EMPTY),
            WcStatus::Success
        );
    }
    assert_eq!(struck(&pair), []);
}

#[test]
fn a_slow_invalidation_leaves_its_key_live_until_it_is_done() {
    let (mut pair, link) = linked(2);
    let window = pair.open(link, TARGET, 64, Rights::WRITE);
    set(
        &pair,
        SimFaults {
            slow_invalidation: always(1_000_000, 1_000_000),
            ..SimFaults::default()
        },
    );
    let op = WorkOp::Invalidate { rkey: window.rkey };
    let end = pair.post(1, link.0[1], op, SgeList::EMPTY);
    assert!(pair.wait_for(1, end, 900_000).is_none());
    let write = (pair.write_op(TARGET, window.rkey), pair.one(0, 0, 8));
    assert_eq!(pair.run(0, link.0[0], write.0, write.1), WcStatus::Success);
    assert_eq!(pair.wait(1, end).status, WcStatus::Success);
    assert_eq!(
        pair.run(0, link.0[0], write.0, write.1),
        WcStatus::RemoteAccess
    );
    assert_eq!(struck(&pair), [SimFault::SlowInvalidation]);
}

#[test]
fn r3_a_failed_invalidation_breaks_its_queue_pair_and_proves_nothing() {
    let mut live = 0;
    for seed in 0..16 {
        let (mut pair, link) = linked(seed);
        let window = pair.open(link, TARGET, 64, Rights::WRITE);
        set(
            &pair,
            SimFaults {
                failed_invalidation_per_million: ALWAYS,
                ..SimFaults::default()
            },
        );
        let op = WorkOp::Invalidate { rkey: window.rkey };
        assert_eq!(
            pair.run(1, link.0[1], op, SgeList::EMPTY),
            WcStatus::General
        );
        assert_eq!(
            pair.run(1, link.0[1], NOTHING, SgeList::EMPTY),
            WcStatus::Flushed
        );
        assert_eq!(struck(&pair), [SimFault::FailedInvalidation]);
        // The region tells whether the window is still bound.
        let side = &pair.sides[1];
        live += u32::from(side.device.deregister(side.region.id).is_err());
        side.device.dealloc_window(window.id).unwrap();
    }
    assert!((1..16).contains(&live), "{live} of 16 keys live");
}

/// Which sides are in error after a burst with this fault.
fn errors(seed: u64, faults: SimFaults) -> ([bool; 2], Vec<SimFault>) {
    let (mut pair, link) = linked(seed);
    set(&pair, faults);
    let sent: Vec<_> = (0..20)
        .map(|_| pair.post(0, link.0[0], NOTHING, SgeList::EMPTY))
        .collect();
    pair.run_for(50_000);
    pair.world.faults_off();
    let errors = [0, 1].map(|side| {
        let receive = pair.receive(side, link.0[side], SINK, 8);
        let done = pair.wait_for(side, receive, 100_000);
        done.is_some_and(|done| done.status == WcStatus::Flushed)
    });
    if errors.contains(&true) {
        for id in sent {
            assert_ne!(pair.wait(0, id).status, WcStatus::Success);
        }
    }
    let struck = struck(&pair);
    (errors, struck)
}

#[test]
fn an_error_comes_on_this_side_on_the_other_or_on_both() {
    let rate = 200_000;
    let here = SimFaults {
        error_here_per_million: rate,
        ..SimFaults::default()
    };
    let there = SimFaults {
        error_there_per_million: rate,
        ..SimFaults::default()
    };
    let both = SimFaults {
        error_both_per_million: rate,
        ..SimFaults::default()
    };
    let mut seen = Vec::new();
    for seed in 0..12 {
        let (sides, struck) = errors(seed, here.clone());
        assert_eq!(struck, [SimFault::ErrorHere]);
        seen.push(sides);
        let (sides, struck) = errors(seed, there.clone());
        assert_eq!(struck, [SimFault::ErrorThere]);
        seen.push(sides);
        let (sides, struck) = errors(seed, both.clone());
        assert_eq!(
            (sides, struck.as_slice()),
            ([true; 2], [SimFault::ErrorBoth].as_slice())
        );
    }
    for wanted in [[true, false], [false, true]] {
        assert!(seen.contains(&wanted), "{wanted:?} never came: {seen:?}");
    }
}

#[test]
fn a_stall_fills_the_queue_and_ends_when_faults_do() {
    let (mut pair, link) = linked(3);
    let window = pair.open(link, TARGET, 64, Rights::WRITE);
    set(
        &pair,
        SimFaults {
            stall: always(1 << 40, 1 << 40),
            ..SimFaults::default()
        },
    );
    let (op, source) = (pair.write_op(TARGET, window.rkey), pair.one(0, 0, 8));
    let posted: Vec<_> = (0..64)
        .map(|_| pair.post(0, link.0[0], op, source))
        .collect();
    pair.run_for(LONG_NS);
    let more = pair.work(op, source);
    assert_eq!(
        pair.sides[0].path.post_burst(link.0[0], &[more]),
        0,
        "the queue is full"
    );
    assert!(pair.sides[0].seen.is_empty());
    pair.world.faults_off();
    for id in posted {
        assert_eq!(pair.wait(0, id).status, WcStatus::Success);
    }
    assert_eq!(struck(&pair), [SimFault::Stall]);
}

#[test]
fn r1_late_packets_land_late_and_never_after_the_invalidation() {
    for seed in 0..8 {
        let config = SimConfig {
            accesses_max: 10_000,
            ..SimConfig::default()
        };
        let (mut pair, link) = linked_on(seed, &config);
        let len = 64 << 10;
        let window = pair.open(link, TARGET, len, Rights::WRITE);
        set(
            &pair,
            SimFaults {
                late_landing: always(20_000, 400_000),
                ..SimFaults::default()
            },
        );
        let write = pair.post(
            0,
            link.0[0],
            pair.write_op(TARGET, window.rkey),
            pair.one(0, 0, len),
        );
        // Everything has left and come after so long; part of it has landed.
        pair.run_for(100_000);
        let end = pair.post(
            1,
            link.0[1],
            WorkOp::Invalidate { rkey: window.rkey },
            SgeList::EMPTY,
        );
        assert_eq!(pair.wait(1, end).status, WcStatus::Success);
        let ended_ns = pair.world.now_ns();
        pair.run_for(LONG_NS);
        assert_eq!(pair.wait(0, write).status, WcStatus::Success);
        let mut accesses = Vec::new();
        assert_eq!(pair.world.take_accesses(&mut accesses), 0);
        let left = accesses
            .iter()
            .filter(|access| !access.is_write)
            .map(|access| access.at_ns);
        let landed: Vec<u64> = accesses
            .iter()
            .filter(|access| access.key == AccessKey::Remote(window.rkey))
            .map(|access| access.at_ns)
            .collect();
        assert_eq!(landed.len(), len / 1024);
        let (last_left, last_landed) = (left.max().unwrap(), *landed.iter().max().unwrap());
        assert!(last_landed > last_left + 20_000, "nothing landed late");
        assert!(
            last_landed <= ended_ns,
            "a packet landed after its key's end"
        );
        assert!(fired(&pair, SimFault::LateLanding) > 0);
    }
}

/// Whether a receive whose message has landed in part is written after it was flushed.
fn written_after_its_flush(seed: u64, breach: Option<Breach>) -> bool {
    let config = SimConfig {
        breach,
        ..SimConfig::default()
    };
    let (mut pair, link) = linked_on(seed, &config);
    set(
        &pair,
        SimFaults {
            late_landing: always(20_000, 200_000),
            ..SimFaults::default()
        },
    );
    let len = 64 << 10;
    pair.fill(0, 0, len, 1);
    let receive = pair.receive(1, link.0[1], SINK, len);
    pair.post(0, link.0[0], NOTHING, pair.one(0, 0, len));
    pair.run_for(60_000);
    pair.sides[1].device.error_qp(link.0[1]).unwrap();
    assert_eq!(pair.wait(1, receive).status, WcStatus::Flushed);
    pair.fill(1, SINK, len, 7);
    pair.run_for(LONG_NS);
    pair.count(1, SINK, len, 7) < len
}

#[test]
fn r1_a_flushed_receive_is_written_no_more() {
    assert!((0..16).all(|seed| !written_after_its_flush(seed, None)));
    let breach = Some(Breach::FlushDoesNotFence);
    assert!((0..16).any(|seed| written_after_its_flush(seed, breach)));
}

#[test]
fn b04_garbage_is_in_undefined_fields_alone() {
    let (mut pair, link) = linked(4);
    set(
        &pair,
        SimFaults {
            garbage_per_million: ALWAYS,
            ..SimFaults::default()
        },
    );
    let receives: Vec<_> = (0..8)
        .map(|_| pair.receive(0, link.0[0], SINK, 8))
        .collect();
    pair.sides[0].device.error_qp(link.0[0]).unwrap();
    let done: Vec<_> = receives.iter().map(|id| pair.wait(0, *id)).collect();
    let defined = |done: &Completion| (done.qp, done.status) == (link.0[0], WcStatus::Flushed);
    assert!(done.iter().all(defined), "{done:?}");
    assert!(
        done.iter()
            .any(|done| done.bytes != 0 || done.kind != CompletionKind::Receive)
    );
    assert_eq!(fired(&pair, SimFault::Garbage), 8);
}

#[test]
fn a_swallowed_completion_is_followed_by_a_later_one() {
    let (mut pair, link) = linked(5);
    set(
        &pair,
        SimFaults {
            swallowed_completion_per_million: ALWAYS,
            ..SimFaults::default()
        },
    );
    for _ in 0..4 {
        // All of the queue, so that the places of the swallowed must be free again.
        let op = pair.write_op(0, Rkey(0));
        let work: Vec<_> = (0..64).map(|_| pair.work(op, SgeList::EMPTY)).collect();
        assert_eq!(pair.sides[0].path.post_burst(link.0[0], &work), 64);
        assert_eq!(pair.wait(0, work[63].id).status, WcStatus::Success);
        assert!(pair.sides[0].seen.is_empty());
    }
    assert_eq!(fired(&pair, SimFault::SwallowedCompletion), 4 * 63);
}

#[test]
fn late_and_bunched_completions_keep_the_order_of_their_queue() {
    for (late, faults) in [
        (
            true,
            SimFaults {
                late_completion: Sometimes {
                    per_million: 300_000,
                    ns: Nanos::new(1_000, 90_000),
                },
                ..SimFaults::default()
            },
        ),
        (
            false,
            SimFaults {
                bunched_completion: always(50_000, 50_000),
                ..SimFaults::default()
            },
        ),
    ] {
        let (mut pair, link) = linked(6);
        set(&pair, faults);
        let op = pair.write_op(0, Rkey(0));
        let work: Vec<_> = (0..64).map(|_| pair.work(op, SgeList::EMPTY)).collect();
        pair.sides[0].path.post_burst(link.0[0], &work);
        let mut polls_with_some = 0;
        while pair.sides[0].seen.len() < 64 {
            let before = pair.sides[0].seen.len();
            pair.step();
            polls_with_some += u32::from(pair.sides[0].seen.len() > before);
        }
        assert!(
            pair.sides[0]
                .seen
                .iter()
                .map(|done| done.id)
                .eq(work.iter().map(|work| work.id))
        );
        let kind = if late {
            SimFault::LateCompletion
        } else {
            SimFault::BunchedCompletion
        };
        assert!(fired(&pair, kind) > 0);
        // 16 a poll at most, so a bunch takes some polls; without one there are about 20.
        assert!(
            late || polls_with_some <= 8,
            "{polls_with_some} polls gave some"
        );
    }
}

#[test]
fn a_message_without_a_receive_fails_and_spares_the_receiver() {
    let (mut pair, link) = linked(10);
    let window = pair.open(link, TARGET, 64, Rights::WRITE);
    set(
        &pair,
        SimFaults {
            no_receive: always(200_000, 200_000),
            ..SimFaults::default()
        },
    );
    let first = pair.post(0, link.0[0], NOTHING, SgeList::EMPTY);
    let behind = pair.post(0, link.0[0], NOTHING, SgeList::EMPTY);
    assert!(pair.wait_for(0, first, 190_000).is_none());
    assert_eq!(pair.wait(0, first).status, WcStatus::RnrRetryExceeded);
    assert_eq!(pair.wait(0, behind).status, WcStatus::Flushed);
    assert_eq!(struck(&pair), [SimFault::NoReceive]);
    // What comes too late meets nobody, and the receiver's keys can be ended as ever.
    let receive = pair.receive(1, link.0[1], SINK, 8);
    assert!(pair.wait_for(1, receive, LONG_NS).is_none());
    let op = WorkOp::Invalidate { rkey: window.rkey };
    assert_eq!(
        pair.run(1, link.0[1], op, SgeList::EMPTY),
        WcStatus::Success
    );
    assert_eq!(
        pair.run(1, link.0[1], NOTHING, SgeList::EMPTY),
        WcStatus::RetryExceeded
    );
}
