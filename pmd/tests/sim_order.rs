//! What `sim` keeps in order, and what it lets nobody do, where the suite's tests look from too far away.

mod simulated;

use keyfence_mempool::sync::Arc;
use keyfence_pmd::sim::{AccessKey, Nanos, SimConfig, SimFault, SimFaults};
use keyfence_pmd::*;
use simulated::faults::{always, fired, linked, linked_on, set};
use simulated::pair::{LONG_NS, NOTHING, Pair};

const TARGET: usize = 1 << 20;
const SINK: usize = 2 << 20;
const SEEDS: std::ops::Range<u64> = 0..16;

/// Landing takes longer than anything else.
fn landing(max: u64) -> SimConfig {
    SimConfig {
        landing_ns: Nanos::new(max / 2, max),
        accesses_max: 100_000,
        ..SimConfig::default()
    }
}

#[test]
fn what_is_settled_early_overtakes_nothing() {
    for seed in SEEDS {
        let (mut pair, link) = linked_on(seed, &landing(100_000));
        let first = pair.open(link, TARGET, 64, Rights::WRITE);
        let second = pair.open(link, TARGET, 64, Rights::WRITE);
        pair.fill(0, 0, 8, 1);
        pair.fill(0, 64, 8, 2);
        pair.post(
            0,
            link.0[0],
            pair.write_op(TARGET, first.rkey),
            pair.one(0, 0, 8),
        );
        let last = pair.post(
            0,
            link.0[0],
            pair.write_op(TARGET, second.rkey),
            pair.one(0, 64, 8),
        );
        pair.run_for(10_000);
        // Both are accepted, none has landed; the end of the second one's key settles it.
        pair.sides[1].device.dealloc_window(second.id).unwrap();
        assert_eq!(pair.count(1, TARGET, 8, 2), 8, "seed {seed}");
        assert_eq!(pair.wait(0, last).status, WcStatus::Success);
        assert_eq!(pair.count(1, TARGET, 8, 2), 8, "seed {seed}");
    }
}

#[test]
fn a_broken_responder_lands_a_part_and_answers_nothing() {
    let mut landed = Vec::new();
    for seed in SEEDS {
        let config = SimConfig {
            flush_ns: Nanos::new(200_000, 200_000),
            ..landing(100_000)
        };
        let (mut pair, link) = linked_on(seed, &config);
        let len = 16 << 10;
        pair.fill(0, 0, len, 1);
        pair.fill(1, SINK, len, 0);
        let receive = pair.receive(1, link.0[1], SINK, len);
        let send = pair.post(0, link.0[0], NOTHING, pair.one(0, 0, len));
        // All of it has come by then, and will have landed before the flush.
        pair.run_for(30_000);
        pair.sides[1].device.error_qp(link.0[1]).unwrap();
        assert_eq!(
            pair.wait(1, receive).status,
            WcStatus::Flushed,
            "seed {seed}"
        );
        assert_eq!(
            pair.wait(0, send).status,
            WcStatus::RetryExceeded,
            "seed {seed}"
        );
        landed.push(pair.count(1, SINK, len, 1));
    }
    let part = |landed: &&usize| (1..16 << 10).contains(*landed);
    assert!(landed.iter().filter(part).count() > 4, "{landed:?}");
}

#[test]
fn a_broken_responder_gives_no_bytes() {
    for seed in SEEDS {
        let (mut pair, link) = linked_on(seed, &landing(100_000));
        let window = pair.open(link, TARGET, 64, Rights::READ);
        pair.fill(0, SINK, 64, 7);
        let remote = pair.remote(TARGET, window.rkey);
        let read = pair.post(0, link.0[0], WorkOp::Read { remote }, pair.one(0, SINK, 64));
        pair.run_for(20_000);
        pair.sides[1].device.error_qp(link.0[1]).unwrap();
        assert_eq!(pair.wait(0, read).status, WcStatus::RetryExceeded);
        assert_eq!(pair.count(0, SINK, 64, 7), 64);
    }
}

#[test]
fn r1_a_deregistered_sink_is_written_no_more() {
    let mut written = 0;
    for seed in SEEDS {
        let (mut pair, link) = linked_on(seed, &landing(100_000));
        let len = 16 << 10;
        let window = pair.open(link, TARGET, len, Rights::READ);
        let side = &pair.sides[0];
        let sink = side
            .device
            .register(side.pd, &side.arena, SINK..SINK + len, Access::default())
            .unwrap();
        let sge = Sge {
            lkey: sink.lkey.0,
            ..pair.sge(0, SINK, len)
        };
        let remote = pair.remote(TARGET, window.rkey);
        let read = pair.post(0, link.0[0], WorkOp::Read { remote }, SgeList::one(sge));
        pair.run_for(130_000);
        pair.sides[0].device.deregister(sink.id).unwrap();
        let mut accesses = Vec::new();
        pair.world.take_accesses(&mut accesses);
        let by_sink = |access: &&sim::Access| access.key == AccessKey::Local(sink.lkey);
        written += accesses.iter().filter(by_sink).count();
        let done = pair.wait(0, read).status;
        assert!(
            matches!(done, WcStatus::Success | WcStatus::LocalProtection),
            "{done:?}"
        );
        accesses.clear();
        pair.run_for(LONG_NS);
        pair.world.take_accesses(&mut accesses);
        assert_eq!(accesses.iter().filter(by_sink).count(), 0, "seed {seed}");
    }
    assert!(written > 0, "nothing had come");
}

#[test]
fn a_key_dies_with_its_queue_pair_where_any_other_could_use_it() {
    let config = SimConfig {
        window_scope: false,
        ..landing(100_000)
    };
    for seed in SEEDS {
        let (mut pair, owner) = linked_on(seed, &config);
        let other = pair.link();
        let window = pair.open(owner, TARGET, 64, Rights::WRITE);
        let op = pair.write_op(TARGET, window.rkey);
        pair.fill(0, 0, 8, 1);
        assert_eq!(
            pair.run(0, other.0[0], op, pair.one(0, 0, 8)),
            WcStatus::Success
        );
        // One is accepted on the other queue pair and has not landed.
        pair.post(0, other.0[0], op, pair.one(0, 0, 8));
        pair.run_for(10_000);
        pair.sides[1].path.release_qp(owner.0[1]);
        pair.sides[1].device.destroy_qp(owner.0[1]).unwrap();
        pair.fill(1, TARGET, 64, 7);
        pair.run_for(LONG_NS);
        assert_eq!(
            pair.run(0, other.0[0], op, pair.one(0, 0, 8)),
            WcStatus::RemoteAccess
        );
        assert_eq!(pair.count(1, TARGET, 64, 7), 64, "seed {seed}");
    }
}

#[test]
fn nothing_behind_a_refused_request_is_executed() {
    for seed in SEEDS {
        let (mut pair, link) = linked_on(seed, &landing(100_000));
        let window = pair.open(link, TARGET, 64, Rights::WRITE);
        pair.fill(0, 0, 8, 1);
        pair.fill(1, TARGET, 64, 0);
        let good = |at| (pair.write_op(TARGET + at, window.rkey), pair.one(0, 0, 8));
        let bad = pair.write_op(TARGET, Rkey(0));
        let mut ops = vec![good(0), (bad, pair.one(0, 0, 8))];
        ops.extend((1..8).map(|at| good(8 * at)));
        let posted: Vec<_> = ops
            .into_iter()
            .map(|(op, sges)| pair.post(0, link.0[0], op, sges))
            .collect();
        let ends: Vec<_> = posted
            .into_iter()
            .map(|id| pair.wait(0, id).status)
            .collect();
        assert_eq!(
            ends[..3],
            [WcStatus::Success, WcStatus::RemoteAccess, WcStatus::Flushed]
        );
        pair.run_for(LONG_NS);
        assert_eq!(pair.count(1, TARGET, 64, 1), 8, "seed {seed}");
    }
}

#[test]
fn who_was_told_that_there_is_no_receive_sends_nothing_more() {
    for seed in SEEDS {
        let (mut pair, link) = linked(seed);
        set(
            &pair,
            SimFaults {
                no_receive: always(0, 0),
                ..SimFaults::default()
            },
        );
        let sent: Vec<_> = (0..20)
            .map(|_| pair.post(0, link.0[0], NOTHING, SgeList::EMPTY))
            .collect();
        while fired(&pair, SimFault::NoReceive) == 0 {
            pair.world.advance_to(pair.world.now_ns() + 10);
        }
        let receives: Vec<_> = (0..20)
            .map(|_| pair.receive(1, link.0[1], SINK, 8))
            .collect();
        assert_eq!(pair.wait(0, sent[0]).status, WcStatus::RnrRetryExceeded);
        for receive in receives {
            assert_eq!(pair.wait_for(1, receive, 100_000), None);
        }
    }
}

#[test]
fn an_invalidation_waits_for_what_was_posted_before_it() {
    let (mut pair, link) = linked(1);
    let window = pair.open(link, TARGET, 64, Rights::WRITE);
    let op = pair.write_op(TARGET, window.rkey);
    // Nobody receives it yet.
    pair.post(1, link.0[1], NOTHING, SgeList::EMPTY);
    let end = pair.post(
        1,
        link.0[1],
        WorkOp::Invalidate { rkey: window.rkey },
        SgeList::EMPTY,
    );
    pair.run_for(LONG_NS);
    assert_eq!(
        pair.run(0, link.0[0], op, pair.one(0, 0, 8)),
        WcStatus::Success
    );
    pair.receive(0, link.0[0], SINK, 8);
    assert_eq!(pair.wait(1, end).status, WcStatus::Success);
    assert_eq!(
        pair.run(0, link.0[0], op, pair.one(0, 0, 8)),
        WcStatus::RemoteAccess
    );
}

#[test]
fn a_world_that_waits_for_its_users_has_nothing_to_do() {
    let (mut pair, link) = linked(2);
    pair.post(0, link.0[0], NOTHING, SgeList::EMPTY);
    let bad = Sge {
        lkey: 0,
        ..pair.sge(0, 0, 8)
    };
    pair.post(0, link.0[0], NOTHING, SgeList::one(bad));
    pair.post(1, link.0[1], NOTHING, SgeList::EMPTY);
    pair.run_for(LONG_NS);
    assert_eq!(pair.world.next_ns(), None);
}

#[test]
fn what_a_caller_must_not_do_is_counted() {
    let (mut pair, link) = linked(3);
    let window = pair.open(link, TARGET, 64, Rights::WRITE);
    pair.post(
        1,
        link.0[1],
        WorkOp::Invalidate { rkey: window.rkey },
        SgeList::EMPTY,
    );
    pair.sides[1].device.dealloc_window(window.id).unwrap();
    assert_eq!(pair.world.misuses(), 1);

    let config = SimConfig {
        invalidate_checks: false,
        ..SimConfig::default()
    };
    let (mut pair, link) = linked_on(4, &config);
    let window = pair.open(link, TARGET, 64, Rights::WRITE);
    let other = window.rkey.with_tag(window.rkey.tag() ^ 1);
    // It ends whatever has the index, as some adapters do; the second one finds it free.
    assert_eq!(
        pair.run(
            1,
            link.0[1],
            WorkOp::Invalidate { rkey: other },
            SgeList::EMPTY
        ),
        WcStatus::Success
    );
    assert_eq!(pair.world.misuses(), 1);
    pair.post(
        1,
        link.0[1],
        WorkOp::Invalidate { rkey: other },
        SgeList::EMPTY,
    );
    pair.run_for(LONG_NS);
    assert_eq!(pair.world.misuses(), 2);
}

#[test]
fn the_peer_of_a_dropped_path_or_device_gives_up() {
    for path in [false, true] {
        let (mut pair, link) = linked(5);
        let left = pair.sides.remove(0);
        // The other half stays.
        let (device, lcore) = (left.device, left.path);
        let _half = match path {
            true => {
                drop(lcore);
                (Some(device), None)
            }
            false => {
                drop(device);
                (None, Some(lcore))
            }
        };
        assert_eq!(
            pair.run(0, link.0[1], NOTHING, SgeList::EMPTY),
            WcStatus::RetryExceeded
        );
    }
}

#[test]
fn a_dropped_listener_refuses_what_it_was_asked_and_lets_its_memory_go() {
    let mut pair = Pair::new(6, &SimConfig::default());
    let qp = pair.create(0);
    pair.sides[0]
        .device
        .start_connect(qp, simulated::pair::ADDRESS, &[])
        .unwrap();
    pair.run_for(LONG_NS);
    let right = pair.sides.remove(1);
    let arena = right.arena.clone();
    drop(right);
    assert_eq!(Arc::strong_count(&arena), 1);
    assert!(matches!(pair.event(0), Some(ControlEvent::Rejected { .. })));
}
