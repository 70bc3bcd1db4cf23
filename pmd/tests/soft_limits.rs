//! Lengths, depths and other limits: what is over one ends as an error completion, and what is just under it works.

mod pair;

use keyfence_pmd::soft::{Fabric, SoftConfig};
use keyfence_pmd::*;
use pair::*;

#[test]
fn b24_every_signal_interval_and_every_depth_work_up_to_the_depth() {
    for depth in [1, 2, 3, 7, 8, 33, 64] {
        for interval in 1..=depth {
            let qp = QpConfig {
                send_depth: depth,
                ..QP
            };
            let mut pair = Pair::with(SoftConfig::TEST_MIN, qp);
            let (_, remote) = pair.open(0, 64, Rights::WRITE);
            let mut posted = 0;
            for _ in 0..3 {
                // interval - 1 silent ones, then one that is waited for.
                for nth in 1..=interval {
                    let work = write(posted, remote, pair.a.list(0, 8)).signaled(nth == interval);
                    assert_eq!(pair.a.post(work), 1, "depth {depth}, interval {interval}");
                    posted += 1;
                }
                let done = pair.wait_a();
                assert_eq!((done.id.0, done.status), (posted - 1, WcStatus::Success));
                pair.step();
                assert!(pair.a.done.is_empty(), "a silent request was reported");
            }
        }
    }
}

#[test]
fn b24_silent_requests_fill_the_queue_until_a_later_completion_is_polled() {
    let mut pair = Pair::new();
    let (_, remote) = pair.open(0, 64, Rights::WRITE);
    let silent = write(1, remote, pair.a.list(0, 8)).signaled(false);
    let burst = [silent; 63];
    assert_eq!(pair.a.path.post_burst(pair.a.qp, &burst), 63);
    for _ in 0..100 {
        pair.step();
    }
    // Executed, and still in the queue: one place is left.
    let last = write(2, remote, pair.a.list(0, 8));
    assert_eq!(pair.a.path.post_burst(pair.a.qp, &[last, last]), 1);
    assert_eq!(pair.wait_a().id, WorkId(2));
    assert_eq!(pair.a.path.post_burst(pair.a.qp, &[silent; 80]), 64);
}

#[test]
fn b27_zero_length_needs_no_key_and_completes_once() {
    for garbage in [false, true] {
        for revoked in [false, true] {
            let mut pair = Pair::new();
            let (_, mut remote) = pair.open(0, 64, Rights::NONE);
            if revoked {
                assert!(pair.b.invalidate(remote.rkey).is_success());
            }
            if garbage {
                remote = Remote {
                    address: u64::MAX,
                    rkey: Rkey(0xdead_beef),
                };
            }
            pair.b.receive(50, 0, 0);
            pair.b.receive(51, 0, 0);
            let nowhere = SgeList::one(Sge {
                address: 1,
                len: 0,
                lkey: 0xffff_ffff,
            });
            for list in [SgeList::EMPTY, nowhere] {
                for work in [write(1, remote, list), read(2, remote, list), send(3, list)] {
                    let done = pair.run_a(work);
                    assert_eq!((done.status, done.bytes), (WcStatus::Success, 0));
                }
            }
            for _ in 0..20 {
                pair.step();
            }
            assert!(pair.a.done.is_empty(), "a second completion");
            let received: Vec<_> = pair
                .b
                .done
                .iter()
                .map(|done| (done.id.0, done.bytes))
                .collect();
            assert_eq!(received, [(50, 0), (51, 0)]);
        }
    }
}

#[test]
fn b44_waiting_for_one_operation_loses_none_of_100_messages() {
    let qp = QpConfig {
        receive_depth: 64,
        ..QP
    };
    for room in [1, 2, 3, 16, 200] {
        let mut pair = Pair::with(SoftConfig::TEST_MIN, qp);
        let (_, to_b) = pair.open(0, 1 << 20, Rights::READ);
        pair.a.post(read(9999, to_b, pair.a.list(1 << 20, 1 << 20)));
        let (mut posted, mut sent, mut got, mut read_done) = (0, 0, Vec::new(), 0);
        let mut done = vec![Completion::EMPTY; room];
        for _ in 0..POLL_LIMIT {
            posted += pair.a.receive(posted as u64, 64 * posted, 64);
            if sent < 100 {
                pair.b.fill(2 << 20, &pattern(sent, 64));
                let work = send(sent, pair.b.list(2 << 20, 64)).inline(true);
                sent += pair.b.post(work) as u64;
            }
            let count = pair.a.path.poll_burst(&mut done);
            for done in &done[..count] {
                assert!(done.is_success());
                if done.id == WorkId(9999) {
                    read_done += 1;
                } else {
                    got.push(done.id.0);
                }
            }
            pair.b.poll();
            if got.len() == 100 && read_done == 1 {
                break;
            }
        }
        assert_eq!(read_done, 1);
        assert_eq!(got, (0..100).collect::<Vec<_>>(), "room for {room}");
        for id in 0..100 {
            assert_eq!(pair.a.bytes(64 * id as usize, 64), pattern(id, 64));
        }
    }
}

#[test]
fn b47_inline_takes_the_bytes_at_the_post() {
    let mut pair = Pair::new();
    let (_, remote) = pair.open(0, 4096, Rights::WRITE);
    // More than the ring has slots, so most of them wait and are sent by later polls.
    for id in 0..40u64 {
        let bytes = pattern(id, 64);
        pair.a.fill(0, &bytes);
        let to = Remote {
            address: remote.address + 64 * id,
            ..remote
        };
        assert_eq!(
            pair.a.post(write(id, to, pair.a.list(0, 64)).inline(true)),
            1
        );
        pair.a.fill(0, &[0; 64]);
    }
    for id in 0..40 {
        let done = pair.wait_a();
        assert_eq!((done.id.0, done.status), (id, WcStatus::Success));
        assert_eq!(pair.b.bytes(64 * id as usize, 64), pattern(id, 64));
    }
}

#[test]
fn b47_inline_over_the_limit_is_an_error_completion_and_a_named_control_error() {
    for op in [
        WorkOp::Send { immediate: None },
        WorkOp::Read { remote: nowhere() },
    ] {
        let mut pair = Pair::new();
        let len = if matches!(op, WorkOp::Read { .. }) {
            8
        } else {
            65
        };
        let work = WorkRequest::new(WorkId(1), op, pair.a.list(0, len)).inline(true);
        let done = pair.run_a(work);
        assert_eq!(done.status, WcStatus::LocalLength, "{op:?}");
        assert_eq!(
            pair.run_a(send(2, SgeList::EMPTY)).status,
            WcStatus::Flushed
        );
    }
    let pair = Pair::new();
    let config = QpConfig {
        pd: pair.a.pd,
        max_inline_bytes: 65,
        ..QP
    };
    let refused = pair.a.device.create_qp(&config);
    assert_eq!(
        refused,
        Err(ControlError::OutOfRange {
            what: "max_inline_bytes",
            value: 65,
            min: 0,
            max: 64
        })
    );
}

#[test]
fn local_faults_fail_in_their_turn_and_leave_the_peer_alone() {
    type Case = fn(&Side, Remote) -> WorkRequest;
    let cases: [(&str, WcStatus, Case); 6] = [
        ("a wrong local key", WcStatus::LocalProtection, |a, to| {
            let sge = Sge::new(a.arena.address(), 8, Lkey(a.region.lkey.0 ^ 1));
            write(2, to, SgeList::one(sge))
        }),
        ("beyond the region", WcStatus::LocalProtection, |a, to| {
            read(2, to, a.list(ARENA_BYTES - 7, 8))
        }),
        ("wrapping around", WcStatus::LocalProtection, |a, to| {
            let sge = Sge::new(u64::MAX - 3, 8, a.region.lkey);
            write(2, to, SgeList::one(sge)).inline(true)
        }),
        ("a bad second entry", WcStatus::LocalProtection, |a, to| {
            let sges = [a.sge(0, 8), Sge::new(0, 8, a.region.lkey)];
            write(2, to, SgeList::new(&sges).unwrap())
        }),
        ("too long", WcStatus::LocalLength, |a, to| {
            let sges = [a.sge(0, 1 << 22); 4];
            write(
                2,
                to,
                SgeList::new(&[sges[0], sges[1], sges[2], sges[3]]).unwrap(),
            )
        }),
        (
            "an atomic of 4 bytes",
            WcStatus::LocalLength,
            |a, remote| {
                let op = WorkOp::FetchAdd { remote, add: 1 };
                WorkRequest::new(WorkId(2), op, a.list(0, 4))
            },
        ),
    ];
    for (what, status, case) in cases {
        let config = SoftConfig {
            max_operation_bytes: (1 << 24) - 1,
            ..SoftConfig::TEST_MIN
        };
        let mut pair = Pair::with(config, QP);
        let (_, remote) = pair.open(0, 1 << 20, Rights::ALL);
        pair.a.fill(0, &pattern(1, 200_000));
        let (bad, list) = (case(&pair.a, remote), pair.a.list(0, 200_000));
        let burst = [
            write(1, remote, list),
            bad.signaled(false),
            write(3, remote, list),
        ];
        assert_eq!(pair.a.path.post_burst(pair.a.qp, &burst), 3, "{what}");
        let ends: Vec<_> = (0..3)
            .map(|_| pair.wait_a())
            .map(|done| (done.id.0, done.status))
            .collect();
        let flushed = WcStatus::Flushed;
        assert_eq!(
            ends,
            [(1, WcStatus::Success), (2, status), (3, flushed)],
            "{what}"
        );
        assert_eq!(pair.b.bytes(0, 200_000), pattern(1, 200_000));
        let (window, _) = pair.b.open(0, 64, Rights::READ);
        pair.b.device.dealloc_window(window.id).unwrap();
    }
}

#[test]
fn more_entries_than_the_queue_pair_has_are_refused() {
    let qp = QpConfig { max_sge: 2, ..QP };
    let mut pair = Pair::with(SoftConfig::TEST_MIN, qp);
    pair.b.receive(1, 0, 64);
    let list = |count| SgeList::new(&[pair.a.sge(0, 8); 4][..count]).unwrap();
    let (two, three) = (list(2), list(3));
    assert!(pair.run_a(send(1, two)).is_success());
    assert_eq!(pair.run_a(send(2, three)).status, WcStatus::LocalLength);
}

#[test]
fn an_operation_over_the_peer_s_limit_is_an_invalid_request() {
    let fabric = Fabric::new();
    let mut a = Side::new(&fabric, SoftConfig::TEST_MIN, QP);
    let config = SoftConfig {
        max_operation_bytes: 1000,
        ..SoftConfig::TEST_MIN
    };
    let mut b = Side::new(&fabric, config, QP);
    b.device.listen("local:b").unwrap();
    connect(&mut a, &mut b);
    let (_, remote) = b.open(0, 4096, Rights::WRITE);
    let mut pair = Pair { fabric, a, b };
    assert!(
        pair.run_a(write(1, remote, pair.a.list(0, 1000)))
            .is_success()
    );
    let done = pair.run_a(write(2, remote, pair.a.list(0, 1001)));
    assert_eq!(done.status, WcStatus::RemoteInvalidRequest);
}

#[test]
fn a_message_longer_than_its_receive_fails_on_both_sides() {
    for len in [9, 64, 70_000, 200_000] {
        let mut pair = Pair::new();
        pair.b.receive(7, 0, 8);
        pair.b.receive(8, 0, 4096);
        let done = pair.run_a(send(1, pair.a.list(0, len)));
        assert_eq!(done.status, WcStatus::RemoteInvalidRequest);
        let ends: Vec<_> = pair
            .b
            .drain()
            .iter()
            .map(|done| (done.id.0, done.status))
            .collect();
        assert_eq!(ends, [(7, WcStatus::LocalLength), (8, WcStatus::Flushed)]);
        assert_eq!(pair.b.word(0), 0, "a part of the message landed");
    }
}

#[test]
fn a_receive_with_a_bad_local_key_fails_on_both_sides() {
    let mut pair = Pair::new();
    let sge = Sge::new(pair.b.arena.address(), 64, Lkey(77));
    let id = WorkId(7);
    pair.b
        .path
        .post_receives(pair.b.qp, &[ReceiveRequest { id, sge }]);
    let done = pair.run_a(send(1, pair.a.list(0, 8)));
    assert_eq!(done.status, WcStatus::RemoteOperation);
    let done = pair.b.drain()[0];
    assert_eq!(
        (done.id, done.status),
        (WorkId(7), WcStatus::LocalProtection)
    );
}

#[test]
fn receives_are_taken_up_to_the_depth() {
    let mut pair = Pair::new();
    let id = WorkId(1);
    let sge = pair.b.sge(0, 8);
    let many = [ReceiveRequest { id, sge }; 70];
    assert_eq!(pair.b.path.post_receives(pair.b.qp, &many), 64);
    assert_eq!(pair.b.path.post_receives(pair.b.qp, &many), 0);
    assert!(pair.run_a(send(1, pair.a.list(0, 8))).is_success());
    pair.step();
    assert_eq!(pair.b.path.post_receives(pair.b.qp, &many), 1);
    assert_eq!(pair.b.path.post_receives(QpId(3), &many), 0);
}

#[test]
fn a_small_array_of_completions_loses_none() {
    for room in [1, 2, 5] {
        let mut pair = Pair::new();
        let mut done = vec![Completion::EMPTY; room];
        for id in 0..30 {
            pair.b.receive(id, 0, 8);
            pair.a.post(send(id, pair.a.list(0, 8)));
        }
        let (mut a, mut b) = (Vec::new(), Vec::new());
        for _ in 0..100 {
            let count = pair.a.path.poll_burst(&mut done);
            a.extend(done[..count].iter().map(|done| done.id.0));
            let count = pair.b.path.poll_burst(&mut done);
            b.extend(done[..count].iter().map(|done| done.id.0));
        }
        assert_eq!((a, b), ((0..30).collect(), (0..30).collect::<Vec<u64>>()));
    }
}

#[test]
fn configurations_outside_their_ranges_are_named() {
    type Spoil = fn(&mut SoftConfig);
    let cases: [(&str, Spoil); 10] = [
        ("max_lcores", |config| config.max_lcores = 0),
        ("max_qps", |config| config.max_qps = 0),
        ("max_windows", |config| config.max_windows = 1 << 23),
        ("max_regions", |config| config.max_regions = 0),
        ("max_send_depth", |config| config.max_send_depth = 1 << 17),
        ("max_receive_depth", |config| config.max_receive_depth = 0),
        ("max_inline_bytes", |config| config.max_inline_bytes = 5000),
        ("max_operation_bytes", |config| {
            config.max_operation_bytes = 0
        }),
        ("slots", |config| config.slots = 24),
        ("chunk_bytes", |config| config.chunk_bytes = 4096),
    ];
    for (name, spoil) in cases {
        let mut config = SoftConfig::TEST_MIN;
        spoil(&mut config);
        match Fabric::new().device(config) {
            Err(ControlError::OutOfRange { what, .. }) => assert_eq!(what, name),
            other => panic!("{name}: {other:?}"),
        }
    }
    assert!(Fabric::new().device(SoftConfig::TEST_MIN).is_ok());
}

fn nowhere() -> Remote {
    Remote {
        address: 0,
        rkey: Rkey(0),
    }
}
