//! Binding and invalidating windows through the send queue: both sides stepped by one thread.

mod pair;

use keyfence_pmd::*;
use pair::*;

const BIG: u32 = 1 << 20;

#[test]
fn a_window_is_bound_on_its_own_queue_pair_only() {
    let mut pair = Pair::new();
    let pd = pair.b.pd;
    let other = pair.b.device.create_qp(&QpConfig { pd, ..QP }).unwrap();
    let foreign = pair.b.device.alloc_window(other).unwrap();
    let done = pair.b.bind(&foreign, foreign.rkey, 0, 64, Rights::WRITE);
    assert_eq!(done.status, WcStatus::MemoryWindowBind);
    assert_eq!(pair.b.post(send(1, SgeList::EMPTY)), 1);
    assert_eq!(pair.b.drain()[0].status, WcStatus::Flushed);
}

#[test]
fn binds_that_make_no_sense_are_refused() {
    type Case = fn(&mut Side) -> Completion;
    let cases: [(&str, Case); 6] = [
        ("no bytes", |b| {
            let window = b.device.alloc_window(b.qp).unwrap();
            b.bind(&window, window.rkey, 0, 0, Rights::WRITE)
        }),
        ("beyond the region", |b| {
            let window = b.device.alloc_window(b.qp).unwrap();
            b.bind(&window, window.rkey, ARENA_BYTES - 1, 2, Rights::WRITE)
        }),
        ("longer than everything", |b| {
            let window = b.device.alloc_window(b.qp).unwrap();
            b.bind(&window, window.rkey, 0, u64::MAX, Rights::WRITE)
        }),
        ("bound already", |b| {
            let (window, remote) = b.open(0, 64, Rights::WRITE);
            b.bind(&window, remote.rkey.with_tag(200), 0, 64, Rights::WRITE)
        }),
        ("the key of another window", |b| {
            let (window, other) = (
                b.device.alloc_window(b.qp).unwrap(),
                b.open(0, 64, Rights::READ),
            );
            b.bind(&window, other.1.rkey, 0, 64, Rights::WRITE)
        }),
        ("a window that is gone", |b| {
            let window = b.device.alloc_window(b.qp).unwrap();
            b.device.dealloc_window(window.id).unwrap();
            b.bind(&window, window.rkey, 0, 64, Rights::WRITE)
        }),
    ];
    for (what, case) in cases {
        let mut pair = Pair::new();
        let done = case(&mut pair.b);
        assert_eq!(done.status, WcStatus::MemoryWindowBind, "{what}");
        assert_eq!(
            pair.b.invalidate(Rkey(0)).status,
            WcStatus::Flushed,
            "{what}"
        );
    }
}

#[test]
fn an_invalidation_of_what_is_not_bound_is_an_error_and_stops_the_chain() {
    let mut pair = Pair::new();
    let (_, remote) = pair.open(0, 64, Rights::WRITE);
    let (_, other) = pair.open(64, 64, Rights::WRITE);
    let invalidate = |id, rkey| {
        WorkRequest::new(WorkId(id), WorkOp::Invalidate { rkey }, SgeList::EMPTY).signaled(false)
    };
    let chain = [
        invalidate(1, remote.rkey),
        invalidate(2, remote.rkey),
        invalidate(3, other.rkey).signaled(true),
    ];
    assert_eq!(pair.b.path.post_burst(pair.b.qp, &chain), 3);
    let done: Vec<_> = pair
        .b
        .drain()
        .iter()
        .map(|done| (done.id.0, done.status))
        .collect();
    assert_eq!(
        done,
        [(2, WcStatus::MemoryWindowBind), (3, WcStatus::Flushed)]
    );
    let kept = pair.b.device.deregister(pair.b.region.id);
    assert!(
        kept.is_err(),
        "the member behind the failed one was executed"
    );
}

#[test]
fn an_invalidation_waits_for_everything_posted_before_it() {
    let mut pair = Pair::new();
    let (_, to_b) = pair.open(0, 1 << 20, Rights::READ_WRITE);
    let (_, own) = pair.a.open(1 << 20, 64, Rights::WRITE);
    pair.a
        .post(read(1, to_b, pair.a.list(0, BIG)).signaled(false));
    let invalidate = WorkOp::Invalidate { rkey: own.rkey };
    pair.a
        .post(WorkRequest::new(WorkId(2), invalidate, SgeList::EMPTY));
    pair.a.post(write(3, to_b, pair.a.list(0, 8)));
    for _ in 0..8 {
        pair.step();
    }
    assert!(pair.a.done.is_empty(), "the read cannot be over");
    // Until then the key lives.
    let list = pair.b.list(0, 8);
    pair.b.post(write(4, own, list));
    pair.step();
    pair.step();
    assert!(pair.a.done.is_empty(), "the read cannot be over");
    assert_eq!(pair.b.done.remove(0).status, WcStatus::Success);
    pair.b.fill(0, &pattern(1, BIG as usize));
    let done = pair.wait_a();
    assert_eq!((done.id, done.status), (WorkId(2), WcStatus::Success));
    assert_eq!(pair.wait_a().id, WorkId(3));
}

#[test]
fn after_256_binds_the_first_key_is_valid_again() {
    let mut pair = Pair::new();
    let (window, first) = pair.open(0, 64, Rights::WRITE);
    assert!(pair.b.invalidate(first.rkey).is_success());
    for round in 1..=256u32 {
        let rkey = first
            .rkey
            .with_tag(first.rkey.tag().wrapping_add(round as u8));
        assert!(
            pair.b
                .bind(&window, rkey, 0, 64, Rights::WRITE)
                .is_success()
        );
        if round < 256 {
            assert_ne!(rkey, first.rkey);
            assert!(pair.b.invalidate(rkey).is_success());
        }
    }
    assert!(pair.run_a(write(1, first, pair.a.list(0, 8))).is_success());
}

#[test]
fn an_invalidated_window_holds_its_region_no_longer() {
    let mut pair = Pair::new();
    let (_, remote) = pair.open(0, 64, Rights::WRITE);
    let region = pair.b.region.id;
    let in_use = pair.b.device.deregister(region);
    assert!(
        matches!(in_use, Err(ControlError::InUse { .. })),
        "{in_use:?}"
    );
    assert!(pair.b.invalidate(remote.rkey).is_success());
    pair.b.device.deregister(region).unwrap();
}
