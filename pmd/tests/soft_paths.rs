//! Paths: how much one call does, and what becomes of connections when a path ends.

mod pair;

use std::sync::Barrier;
use std::thread;

use keyfence_pmd::soft::{Fabric, SoftConfig};
use keyfence_pmd::*;
use pair::*;

/// Requests that one post or one visit begins at most, as `SoftPath` says.
const BEGUN: usize = 64;
const DEEP: QpConfig = QpConfig {
    send_depth: 1024,
    ..QP
};

/// Binds of fresh windows of one queue pair, and their invalidations.
fn binds_and_invalidations(side: &Side, qp: QpId, count: u64) -> Vec<WorkRequest> {
    let windows = (0..count).map(|_| side.device.alloc_window(qp).unwrap());
    let windows: Vec<_> = windows.collect();
    let bind = |window: &Window| WorkOp::Bind {
        window: window.id,
        region: side.region.id,
        address: side.arena.address(),
        len: 64,
        rights: Rights::READ,
        rkey: window.rkey,
    };
    let binds = windows.iter().map(bind);
    let ends = windows
        .iter()
        .map(|window| WorkOp::Invalidate { rkey: window.rkey });
    let ops = binds.chain(ends).zip(0..);
    ops.map(|(op, id)| WorkRequest::new(WorkId(id), op, SgeList::EMPTY))
        .collect()
}

#[test]
fn one_call_begins_a_bounded_number_of_local_requests_in_order() {
    let mut pair = Pair::with(SoftConfig::default(), DEEP);
    let work = binds_and_invalidations(&pair.a, pair.a.qp, 300);
    let taken = pair.a.path.post_burst(pair.a.qp, &work);
    assert_eq!(taken, work.len(), "the queue has room for all");
    let mut done = vec![Completion::EMPTY; 1024];
    let (mut next, mut begun_by_the_post) = (0, BEGUN);
    while next < work.len() {
        let count = pair.a.path.poll_burst(&mut done);
        assert!(
            (1..=begun_by_the_post + BEGUN).contains(&count),
            "one poll completed {count}"
        );
        begun_by_the_post = 0;
        for done in &done[..count] {
            assert_eq!((done.id, done.status), (work[next].id, WcStatus::Success));
            next += 1;
        }
    }
}

#[test]
fn one_poll_begins_a_bounded_number_of_requests_of_all_queue_pairs() {
    let fabric = Fabric::new();
    let mut a = Side::new(&fabric, SoftConfig::default(), DEEP);
    let b = Side::new(&fabric, SoftConfig::default(), DEEP);
    b.device.listen("local:b").unwrap();
    let mut posted = 0;
    for _ in 0..16 {
        let qp = |side: &Side| {
            let config = QpConfig {
                pd: side.pd,
                ..DEEP
            };
            side.device.create_qp(&config).unwrap()
        };
        let (a_qp, b_qp) = (qp(&a), qp(&b));
        connect_qps(&a, &b, a_qp, b_qp);
        let work = binds_and_invalidations(&a, a_qp, 200);
        assert_eq!(a.path.post_burst(a_qp, &work), work.len());
        posted += work.len();
    }
    let (mut done, mut got) = (vec![Completion::EMPTY; 8192], 0);
    // Four visits of 64 KiB's worth are 256 KiB; at the first ones, what the posts began is reported, too.
    let (visits, mut begun_by_the_posts) = (4, 16 * BEGUN);
    while got < posted {
        let count = a.path.poll_burst(&mut done);
        let reported = visits * BEGUN.min(begun_by_the_posts);
        let most = visits * BEGUN + reported;
        assert!((1..=most).contains(&count), "one poll completed {count}");
        assert!(done[..count].iter().all(Completion::is_success));
        begun_by_the_posts -= reported;
        got += count;
    }
}

#[test]
fn one_post_begins_a_bounded_number_of_small_messages() {
    let config = SoftConfig {
        slots: 4096,
        ..SoftConfig::default()
    };
    let mut pair = Pair::with(config, DEEP);
    let (_, remote) = pair.open(0, 8, Rights::WRITE);
    let work: Vec<_> = (0..1000)
        .map(|id| write(id, remote, pair.a.list(0, 8)))
        .collect();
    assert_eq!(pair.a.path.post_burst(pair.a.qp, &work), 1000);
    for _ in 0..BEGUN {
        pair.b.poll();
    }
    let mut done = vec![Completion::EMPTY; 1024];
    let executed = pair.a.path.poll_burst(&mut done);
    assert_eq!(executed, BEGUN, "what the post began");
    for next in executed as u64..1000 {
        assert_eq!(pair.wait_a().id, WorkId(next));
    }
}

/// The path of the accepting side is dropped while queue pairs are made for it, and the last one made answers: the asking side never waits
/// for a peer that nobody polls.
#[test]
fn a_path_that_is_dropped_while_its_side_connects_leaves_no_peer_waiting() {
    let fabric = Fabric::new();
    let mut a = Side::new(&fabric, SoftConfig::TEST_MIN, QP);
    for round in 0..400 {
        let config = SoftConfig {
            max_qps: 512,
            ..SoftConfig::TEST_MIN
        };
        let device = fabric.device(config).unwrap();
        let path = device.open_path(LcoreId(0)).unwrap();
        let pd = device.alloc_pd().unwrap();
        device.listen("local:b").unwrap();
        let a_qp = a.device.create_qp(&QpConfig { pd: a.pd, ..QP }).unwrap();
        a.device.start_connect(a_qp, "local:b", &[]).unwrap();
        let Some(ControlEvent::ConnectRequest { request, .. }) = device.poll_event() else {
            panic!("no request");
        };
        let small = QpConfig {
            pd,
            send_depth: 1,
            receive_depth: 1,
            max_inline_bytes: 0,
            ..QP
        };
        let mut last = device.create_qp(&small).unwrap();
        let start = Barrier::new(2);
        thread::scope(|scope| {
            scope.spawn(|| {
                start.wait();
                (0..100 * (round % 64)).for_each(|_| std::hint::spin_loop());
                drop(path);
            });
            start.wait();
            while let Ok(made) = device.create_qp(&small) {
                last = made;
            }
        });
        let accepted = device.accept(request, last, &[]);
        if accepted.is_ok() {
            let connected = ControlEvent::Connected {
                qp: a_qp,
                private: Vec::new(),
            };
            assert_eq!(a.device.poll_event(), Some(connected));
            let work = send(1, SgeList::EMPTY);
            assert_eq!(a.path.post_burst(a_qp, &[work]), 1);
            let done = a.drain();
            let status = done.first().map(|done| done.status);
            assert_eq!(status, Some(WcStatus::RetryExceeded), "round {round}");
        }
        a.path.release_qp(a_qp);
        a.device.destroy_qp(a_qp).unwrap();
    }
}

#[test]
fn no_queue_pair_is_made_or_connected_for_a_path_that_is_gone() {
    let fabric = Fabric::new();
    let a = Side::new(&fabric, SoftConfig::TEST_MIN, QP);
    let b = Side::new(&fabric, SoftConfig::TEST_MIN, QP);
    b.device.listen("local:b").unwrap();
    a.device.start_connect(a.qp, "local:b", &[]).unwrap();
    let Some(ControlEvent::ConnectRequest { request, .. }) = b.device.poll_event() else {
        panic!("no request");
    };
    drop(b.path);
    let made = b.device.create_qp(&QpConfig { pd: b.pd, ..QP });
    assert_eq!(made, Err(ControlError::NoSuchLcore(LcoreId(0))));
    let accepted = b.device.accept(request, b.qp, &[]);
    let state = matches!(
        accepted,
        Err(ControlError::WrongState {
            state: "released",
            ..
        })
    );
    assert!(state, "{accepted:?}");
    b.device.reject(request, b"gone").unwrap();
    assert!(matches!(
        a.device.poll_event(),
        Some(ControlEvent::Rejected { .. })
    ));
    b.device.destroy_qp(b.qp).unwrap();
}

/// More queue pairs than the adapter has at a time, each released before it is connected: the ways in and back never run over.
#[test]
fn queue_pairs_that_come_and_go_fill_no_ring() {
    let config = SoftConfig {
        max_qps: 1,
        ..SoftConfig::TEST_MIN
    };
    let fabric = Fabric::new();
    let mut a = Side::new(&fabric, config.clone(), QP);
    let b = Side::new(&fabric, config, QP);
    b.device.listen("local:b").unwrap();
    for _ in 0..20 {
        a.path.release_qp(a.qp);
        a.device.destroy_qp(a.qp).unwrap();
        a.qp = a.device.create_qp(&QpConfig { pd: a.pd, ..QP }).unwrap();
        a.device.start_connect(a.qp, "local:b", &[]).unwrap();
    }
}
