//! Connecting and ending: queue pairs, paths, devices, and control calls that must wait for a lcore.

mod pair;

use keyfence_mempool::sync::Arc;
use keyfence_pmd::soft::{Fabric, SoftConfig};
use keyfence_pmd::*;
use pair::*;

#[test]
fn b29_calls_wait_for_a_lcore_inside_a_step_until_their_deadline_and_can_be_repeated() {
    let config = SoftConfig {
        quiesce_timeout_ns: 1,
        ..SoftConfig::TEST_MIN
    };
    let mut pair = Pair::with(config, QP);
    let (bound, _) = pair.open(0, 64, Rights::WRITE);
    let access = Access::default();
    let (device, arena) = (&pair.b.device, &pair.b.arena);
    let region = device.register(pair.b.pd, arena, 0..4096, access).unwrap();
    let pd = pair.b.pd;
    let qp = device.create_qp(&QpConfig { pd, ..QP }).unwrap();
    let other_path = device.open_path(LcoreId(1)).unwrap();
    let elsewhere = QpConfig {
        pd,
        lcore: LcoreId(1),
        ..QP
    };
    let other_qp = device.create_qp(&elsewhere).unwrap();
    let other_window = device.alloc_window(other_qp).unwrap();
    pair.b.path.release_qp(qp);

    let is_late = |result| matches!(result, Err(ControlError::Late { .. }));
    let paused = pair.b.path.pause();
    assert!(is_late(device.dealloc_window(bound.id)));
    assert!(is_late(device.deregister(region.id)));
    assert!(is_late(device.destroy_qp(qp)));
    assert!(
        is_late(device.dealloc_window(bound.id)),
        "the step has not ended"
    );
    // Who needs another lcore only, or none, is not held up.
    device.dealloc_window(other_window.id).unwrap();
    device.alloc_window(qp).unwrap();
    device.create_qp(&elsewhere).unwrap();
    drop(paused);
    device.dealloc_window(bound.id).unwrap();
    device.deregister(region.id).unwrap();
    device.destroy_qp(qp).unwrap();
    assert_eq!(device.destroy_qp(qp), Err(ControlError::NoSuchQp(qp)));
    drop(other_path);
}

#[test]
fn b29_what_a_late_call_marked_stays_dead() {
    let config = SoftConfig {
        quiesce_timeout_ns: 1,
        ..SoftConfig::TEST_MIN
    };
    let mut pair = Pair::with(config, QP);
    let (window, remote) = pair.open(0, 64, Rights::WRITE);
    let paused = pair.b.path.pause();
    let late = pair.b.device.dealloc_window(window.id);
    assert!(matches!(late, Err(ControlError::Late { .. })), "{late:?}");
    drop(paused);
    let done = pair.run_a(write(1, remote, pair.a.list(0, 8)));
    assert_eq!(done.status, WcStatus::RemoteAccess);
    // Its index is nobody else's before the call has succeeded.
    let region = pair.b.region.id;
    let in_use = pair.b.device.deregister(region);
    assert!(
        matches!(in_use, Err(ControlError::InUse { .. })),
        "{in_use:?}"
    );
    pair.b.device.dealloc_window(window.id).unwrap();
    pair.b.device.deregister(region).unwrap();
}

#[test]
fn b29_a_call_on_another_thread_returns_when_the_step_ends() {
    let config = SoftConfig {
        quiesce_timeout_ns: 10_000_000_000,
        ..SoftConfig::TEST_MIN
    };
    let mut pair = Pair::with(config, QP);
    let (window, _) = pair.open(0, 64, Rights::WRITE);
    let device = pair.b.device.clone();
    let paused = pair.b.path.pause();
    let caller = std::thread::spawn(move || device.dealloc_window(window.id));
    for _ in 0..1000 {
        std::thread::yield_now();
    }
    assert!(!caller.is_finished(), "returned while the lcore was inside");
    drop(paused);
    caller.join().unwrap().unwrap();
}

#[test]
fn error_flushes_everything_posted_and_everything_posted_later() {
    let mut pair = Pair::new();
    for id in 0..5 {
        pair.a.receive(100 + id, 0, 64);
        pair.a.post(send(id, pair.a.list(0, 8)).signaled(false));
    }
    pair.a.device.error_qp(pair.a.qp).unwrap();
    pair.a.device.error_qp(pair.a.qp).unwrap();
    assert_eq!(pair.a.post(send(5, SgeList::EMPTY)), 1);
    pair.a.receive(105, 0, 64);
    let done = pair.a.drain();
    let ids: Vec<_> = done.iter().map(|done| done.id.0).collect();
    assert_eq!(ids, [0, 1, 2, 3, 4, 5, 100, 101, 102, 103, 104, 105]);
    assert!(done.iter().all(|done| done.status == WcStatus::Flushed));
}

#[test]
fn a_released_queue_pair_takes_and_reports_nothing_and_its_number_never_comes_back() {
    let mut pair = Pair::new();
    pair.a.receive(1, 0, 64);
    pair.a.post(send(2, SgeList::EMPTY));
    pair.a.path.release_qp(pair.a.qp);
    assert_eq!(pair.a.post(send(3, SgeList::EMPTY)), 0);
    assert_eq!(pair.a.receive(4, 0, 64), 0);
    assert_eq!(pair.a.drain(), []);
    pair.a.device.destroy_qp(pair.a.qp).unwrap();
    assert_eq!(pair.a.drain(), []);
    let config = QpConfig {
        pd: pair.a.pd,
        ..QP
    };
    let mut seen = vec![pair.a.qp];
    for _ in 0..100 {
        let qp = pair.a.device.create_qp(&config).unwrap();
        assert!(!seen.contains(&qp));
        seen.push(qp);
        pair.a.path.release_qp(qp);
        pair.a.device.destroy_qp(qp).unwrap();
    }
}

#[test]
fn a_dropped_device_and_a_dropped_path_show_as_retries_in_vain() {
    for drop_device in [false, true] {
        let mut pair = Pair::new();
        let (_, to_b) = pair.open(0, 4096, Rights::WRITE);
        let Pair { fabric, mut a, b } = pair;
        let kept = if drop_device {
            drop(b.device);
            (Some(b.path), None)
        } else {
            drop(b.path);
            (None, Some(b.device))
        };
        a.post(write(1, to_b, a.list(0, 8)));
        assert_eq!(a.drain()[0].status, WcStatus::RetryExceeded);
        let address_is_free = fabric
            .device(SoftConfig::TEST_MIN)
            .unwrap()
            .listen("local:b")
            .is_ok();
        assert_eq!(address_is_free, drop_device);
        if let (_, Some(device)) = &kept {
            // Nobody will release its queue pair, and nobody could serve a new one.
            device.destroy_qp(b.qp).unwrap();
            let refused = device.create_qp(&QpConfig { pd: b.pd, ..QP });
            assert_eq!(refused, Err(ControlError::NoSuchLcore(LcoreId(0))));
        }
        drop(kept);
    }
}

#[test]
fn b49_every_order_of_dropping_frees_everything() {
    // Device, path, arena and fabric of both sides, with operations under way, in many orders.
    for order in 0..40u32 {
        let mut pair = Pair::new();
        let (_, to_b) = pair.open(0, 1 << 20, Rights::READ_WRITE);
        pair.a.post(write(1, to_b, pair.a.list(0, 1 << 20)));
        pair.a.post(read(2, to_b, pair.a.list(0, 1 << 20)));
        for _ in 0..order % 5 {
            pair.step();
        }
        let arenas = [&pair.a.arena, &pair.b.arena].map(std::sync::Arc::downgrade);
        let Pair { fabric, a, b } = pair;
        let mut things: Vec<Box<dyn std::any::Any>> = vec![Box::new(fabric)];
        for side in [a, b] {
            things.push(Box::new(side.device));
            things.push(Box::new(side.path));
            things.push(Box::new(side.arena));
        }
        let mut state = order;
        while !things.is_empty() {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            drop(things.swap_remove(state as usize / 65_536 % things.len()));
        }
        assert!(
            arenas.iter().all(|arena| arena.strong_count() == 0),
            "order {order}"
        );
    }
}

#[test]
fn an_arena_is_given_up_after_its_last_region_once_the_path_has_stepped() {
    let mut pair = Pair::new();
    let arena = arena(8192);
    let (device, pd) = (&pair.a.device, pair.a.pd);
    for _ in 0..2000 {
        let one = device
            .register(pd, &arena, 0..4096, Access::default())
            .unwrap();
        let two = device
            .register(pd, &arena, 1..4, Access::default())
            .unwrap();
        device.deregister(one.id).unwrap();
        device.deregister(two.id).unwrap();
        pair.a.path.poll_burst(&mut []);
    }
    // The device drops what paths returned at its next look.
    let other = device
        .register(pd, &pair.a.arena, 0..64, Access::default())
        .unwrap();
    assert_eq!(Arc::strong_count(&arena), 1);
    device.deregister(other.id).unwrap();
}

#[test]
fn a_path_that_takes_no_arena_changes_is_a_named_error_until_it_does() {
    let mut pair = Pair::new();
    let (device, pd) = (&pair.a.device, pair.a.pd);
    let register = || {
        let region = device.register(pd, &arena(4096), 0..4096, Access::default())?;
        device.deregister(region.id)
    };
    let refused = (0..2000).find_map(|_| register().err());
    assert!(
        matches!(refused, Some(ControlError::Exhausted { .. })),
        "{refused:?}"
    );
    pair.a.path.poll_burst(&mut []);
    register().unwrap();
}

#[test]
fn connecting_refuses_what_makes_no_sense() {
    let fabric = Fabric::new();
    let a = Side::new(&fabric, SoftConfig::TEST_MIN, QP);
    let b = Side::new(&fabric, SoftConfig::TEST_MIN, QP);
    for address in [
        "b",
        "local:",
        "shm:b",
        "local:a\nb",
        &format!("local:{}", "x".repeat(65)),
    ] {
        let refused = a.device.start_connect(a.qp, address, b"");
        assert!(
            matches!(refused, Err(ControlError::BadAddress { .. })),
            "{address}: {refused:?}"
        );
    }
    let nobody = a.device.start_connect(a.qp, "local:b", b"");
    assert_eq!(nobody, Err(ControlError::Unreachable("local:b".into())));
    b.device.listen("local:b").unwrap();
    let taken = a.device.listen("local:b");
    assert_eq!(taken, Err(ControlError::AddressInUse("local:b".into())));
    let long = a.device.start_connect(a.qp, "local:b", &[0; 57]);
    assert!(
        matches!(long, Err(ControlError::OutOfRange { .. })),
        "{long:?}"
    );
    let unknown = a.device.start_connect(QpId(1), "local:b", b"");
    assert_eq!(unknown, Err(ControlError::NoSuchQp(QpId(1))));
    let none = RequestId(77);
    let answer = b.device.accept(none, b.qp, b"");
    assert_eq!(answer, Err(ControlError::NoSuchRequest(none)));
    assert_eq!(
        b.device.reject(none, b""),
        Err(ControlError::NoSuchRequest(none))
    );

    a.device.start_connect(a.qp, "local:b", &[7; 56]).unwrap();
    let twice = a.device.start_connect(a.qp, "local:b", b"");
    assert!(
        matches!(twice, Err(ControlError::WrongState { .. })),
        "{twice:?}"
    );
    let Some(ControlEvent::ConnectRequest {
        request,
        address,
        private,
    }) = b.device.poll_event()
    else {
        panic!("no request");
    };
    assert_eq!((address.as_str(), private), ("local:b", vec![7; 56]));
    b.device.reject(request, b"no").unwrap();
    let rejected = ControlEvent::Rejected {
        qp: a.qp,
        private: b"no".to_vec(),
    };
    assert_eq!(a.device.poll_event(), Some(rejected));
    let late = b.device.accept(request, b.qp, b"");
    assert_eq!(late, Err(ControlError::NoSuchRequest(request)));
    connect_qps(&a, &b, a.qp, b.qp);
}

#[test]
fn a_request_outlives_neither_side() {
    let fabric = Fabric::new();
    let mut a = Side::new(&fabric, SoftConfig::TEST_MIN, QP);
    let b = Side::new(&fabric, SoftConfig::TEST_MIN, QP);
    b.device.listen("local:b").unwrap();
    // The asking queue pair is destroyed: accepting fails and leaves the accepting one free.
    a.device.start_connect(a.qp, "local:b", b"").unwrap();
    let Some(ControlEvent::ConnectRequest { request, .. }) = b.device.poll_event() else {
        panic!("no request");
    };
    a.path.release_qp(a.qp);
    a.device.destroy_qp(a.qp).unwrap();
    let gone = b.device.accept(request, b.qp, b"");
    assert_eq!(gone, Err(ControlError::Unreachable("local:b".into())));
    a.qp = a.device.create_qp(&QpConfig { pd: a.pd, ..QP }).unwrap();
    connect_qps(&a, &b, a.qp, b.qp);
    // The asked device is dropped: that is a rejection.
    let qp = a.device.create_qp(&QpConfig { pd: a.pd, ..QP }).unwrap();
    a.device.start_connect(qp, "local:b", b"").unwrap();
    drop(b.device);
    let private = Vec::new();
    assert_eq!(
        a.device.poll_event(),
        Some(ControlEvent::Rejected { qp, private })
    );
}

#[test]
fn a_device_connects_to_itself_on_one_lcore() {
    let fabric = Fabric::new();
    let mut side = Side::new(&fabric, SoftConfig::TEST_MIN, QP);
    side.device.listen("local:self").unwrap();
    let config = QpConfig { pd: side.pd, ..QP };
    let other = side.device.create_qp(&config).unwrap();
    side.device
        .start_connect(side.qp, "local:self", b"")
        .unwrap();
    let Some(ControlEvent::ConnectRequest { request, .. }) = side.device.poll_event() else {
        panic!("no request");
    };
    side.device.accept(request, other, b"").unwrap();
    let (_, remote) = side.open(4096, 64, Rights::WRITE);
    side.fill(0, b"loopback");
    let work = write(1, remote, side.list(0, 8));
    assert_eq!(side.path.post_burst(other, &[work]), 1);
    assert!(side.drain()[0].is_success());
    assert_eq!(side.bytes(4096, 8), b"loopback");
}

#[test]
fn objects_in_use_and_objects_unknown_are_refused_by_name() {
    let pair = Pair::new();
    let device = &pair.a.device;
    let in_use = |result| matches!(result, Err(ControlError::InUse { .. }));
    assert!(in_use(device.dealloc_pd(pair.a.pd)));
    let empty = device.alloc_pd().unwrap();
    device.dealloc_pd(empty).unwrap();
    assert_eq!(device.dealloc_pd(empty), Err(ControlError::NoSuchPd(empty)));
    let arena = &pair.a.arena;
    let refused = device.register(empty, arena, 0..64, Access::default());
    assert_eq!(refused, Err(ControlError::NoSuchPd(empty)));
    for range in [
        0..0,
        std::ops::Range { start: 5, end: 4 },
        0..ARENA_BYTES + 1,
        ARENA_BYTES..ARENA_BYTES + 1,
        usize::MAX..usize::MAX,
    ] {
        let refused = device.register(pair.a.pd, arena, range.clone(), Access::default());
        assert!(
            matches!(refused, Err(ControlError::OutOfRange { .. })),
            "{range:?}"
        );
    }
    let no_path = QpConfig {
        pd: pair.a.pd,
        lcore: LcoreId(1),
        ..QP
    };
    let refused = device.create_qp(&no_path);
    assert_eq!(refused, Err(ControlError::NoSuchLcore(LcoreId(1))));
    let twice = device.open_path(LcoreId(0)).map(|_| ());
    assert_eq!(twice, Err(OpenPathError::AlreadyOpen(LcoreId(0))));
    let beyond = device.open_path(LcoreId(2)).map(|_| ());
    let limit = 2;
    let lcore = LcoreId(2);
    assert_eq!(beyond, Err(OpenPathError::TooMany { lcore, limit }));
    let stale = QpId(u32::MAX);
    assert_eq!(device.error_qp(stale), Err(ControlError::NoSuchQp(stale)));
    assert_eq!(device.destroy_qp(stale), Err(ControlError::NoSuchQp(stale)));
    assert!(device.alloc_window(stale).is_err());
}
