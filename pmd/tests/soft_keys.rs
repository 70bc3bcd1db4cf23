//! What keys open, and that nothing lands when they are gone: both sides stepped by one thread.

mod pair;

use keyfence_pmd::soft::SoftConfig;
use keyfence_pmd::*;
use pair::*;

const BIG: u32 = 1 << 20;

/// Steps both sides until a part, and not all, of a big write has landed in b's memory.
fn until_part_landed(pair: &mut Pair) -> usize {
    for _ in 0..POLL_LIMIT {
        pair.step();
        let landed = landed(pair);
        if landed > 0 {
            assert!(landed < BIG as usize, "the write ended at once");
            return landed;
        }
    }
    panic!("nothing lands");
}

/// Bytes of b's memory that are no longer zero, from the front.
fn landed(pair: &Pair) -> usize {
    let memory = pair.b.arena.dma(0, BIG as usize).unwrap();
    memory.first_not(0xab).unwrap_or(BIG as usize)
}

/// A write of a whole MiB of 0xab under way into a window of b's.
fn big_write() -> (Pair, Window, Remote) {
    let mut pair = Pair::new();
    let (window, remote) = pair.open(0, u64::from(BIG), Rights::WRITE);
    pair.a.arena.dma(0, BIG as usize).unwrap().fill(0xab);
    pair.a.post(write(1, remote, pair.a.list(0, BIG)));
    (pair, window, remote)
}

/// Steps on and demands that not a byte more lands.
fn nothing_lands(pair: &mut Pair) {
    let before = pair.b.bytes(0, BIG as usize);
    for _ in 0..200 {
        pair.step();
    }
    assert_eq!(
        pair.b.bytes(0, BIG as usize),
        before,
        "bytes landed after the key's end"
    );
}

#[test]
fn r1_nothing_of_a_big_write_lands_after_the_invalidation_completed() {
    for polls in 0..14 {
        let (mut pair, _, remote) = big_write();
        until_part_landed(&mut pair);
        for _ in 0..polls {
            pair.step();
        }
        assert!(pair.b.invalidate(remote.rkey).is_success());
        assert!(
            landed(&pair) < BIG as usize,
            "the write was over before the key"
        );
        nothing_lands(&mut pair);
        let done = pair.a.done.remove(0);
        assert_eq!((done.id, done.status), (WorkId(1), WcStatus::RemoteAccess));
    }
}

#[test]
fn r3_dealloc_of_a_window_on_a_healthy_queue_pair_ends_its_accesses() {
    let (mut pair, window, _) = big_write();
    until_part_landed(&mut pair);
    pair.b.device.dealloc_window(window.id).unwrap();
    nothing_lands(&mut pair);
    assert_eq!(pair.a.done.remove(0).status, WcStatus::RemoteAccess);
    let again = pair.b.device.dealloc_window(window.id);
    assert_eq!(again, Err(ControlError::NoSuchWindow(window.id)));
}

#[test]
fn r3_deregistration_of_an_open_region_ends_its_accesses() {
    let mut pair = Pair::new();
    let access = Access {
        remote: Rights::WRITE,
        bind: false,
    };
    let (device, arena) = (&pair.b.device, &pair.b.arena);
    let region = device
        .register(pair.b.pd, arena, 0..BIG as usize, access)
        .unwrap();
    let remote = Remote {
        address: pair.b.arena.address(),
        rkey: region.rkey,
    };
    pair.a.arena.dma(0, BIG as usize).unwrap().fill(0xab);
    pair.a.post(write(1, remote, pair.a.list(0, BIG)));
    until_part_landed(&mut pair);
    pair.b.device.deregister(region.id).unwrap();
    nothing_lands(&mut pair);
    assert_eq!(pair.a.done.remove(0).status, WcStatus::RemoteAccess);
}

#[test]
fn r3_destruction_of_the_owner_s_queue_pair_ends_accesses_by_its_keys() {
    let (mut pair, window, _) = big_write();
    until_part_landed(&mut pair);
    let qp = pair.b.qp;
    assert_eq!(
        pair.b.device.destroy_qp(qp),
        Err(ControlError::NotReleased(qp))
    );
    pair.b.path.release_qp(qp);
    pair.b.device.destroy_qp(qp).unwrap();
    nothing_lands(&mut pair);
    assert_eq!(pair.a.done.remove(0).status, WcStatus::RetryExceeded);
    pair.b.device.dealloc_window(window.id).unwrap();
}

#[test]
fn r3_the_sink_of_an_own_read_is_left_alone_after_destruction() {
    for polls in 2..14 {
        let mut pair = Pair::new();
        let (_, remote) = pair.open(0, u64::from(BIG), Rights::READ);
        pair.b.arena.dma(0, BIG as usize).unwrap().fill(0xcd);
        pair.a.post(read(1, remote, pair.a.list(0, BIG)));
        for _ in 0..polls {
            pair.step();
        }
        pair.a.device.error_qp(pair.a.qp).unwrap();
        pair.a.path.release_qp(pair.a.qp);
        pair.a.device.destroy_qp(pair.a.qp).unwrap();
        let sink = pair.a.arena.dma(0, BIG as usize).unwrap();
        assert_eq!(
            sink.first_not(0xcd),
            Some(65_536 * (polls - 1)).filter(|at| *at < BIG as usize)
        );
        sink.fill(0x11);
        for _ in 0..200 {
            pair.step();
        }
        assert_eq!(
            pair.a.arena.dma(0, BIG as usize).unwrap().first_not(0x11),
            None
        );
    }
}

#[test]
fn r3_a_flushed_invalidation_ends_no_key() {
    let mut pair = Pair::new();
    let (_, remote) = pair.open(0, 4096, Rights::WRITE);
    // Handed over before the owner's queue pair comes into error, as a packet under way is.
    pair.a.fill(0, b"late");
    pair.a.post(write(1, remote, pair.a.list(0, 4)));
    let qp = pair.a.qp;
    pair.a.device.error_qp(qp).unwrap();
    // Only a's queue pair is in error: b's keys live, and what is under way lands.
    pair.step();
    assert_eq!(pair.b.bytes(0, 4), b"late");
    // Now b's own: its invalidation is only flushed.
    pair.b.device.error_qp(pair.b.qp).unwrap();
    let done = pair.b.invalidate(remote.rkey);
    assert_eq!(done.status, WcStatus::Flushed);
    // The window is still bound, so its region cannot go.
    let region = pair.b.region.id;
    let in_use = pair.b.device.deregister(region);
    assert!(
        matches!(in_use, Err(ControlError::InUse { .. })),
        "{in_use:?}"
    );
}

#[test]
fn an_owner_in_error_leaves_its_peer_ready_and_the_peer_s_next_request_retries_in_vain() {
    let mut pair = Pair::new();
    let (_, to_b) = pair.open(0, 4096, Rights::WRITE);
    pair.a.open(0, 4096, Rights::WRITE);
    pair.b.device.error_qp(pair.b.qp).unwrap();
    for _ in 0..10 {
        pair.step();
    }
    assert!(pair.a.done.is_empty(), "an idle peer has noticed");
    // Local work goes on: the peer's queue pair is not in error.
    let (window, remote) = pair.a.open(8192, 64, Rights::READ);
    assert!(pair.a.invalidate(remote.rkey).is_success());
    pair.a.device.dealloc_window(window.id).unwrap();
    let done = pair.run_a(write(5, to_b, pair.a.list(0, 8)));
    assert_eq!(done.status, WcStatus::RetryExceeded);
    let done = pair.run_a(write(6, to_b, pair.a.list(0, 8)));
    assert_eq!(done.status, WcStatus::Flushed);
}

#[test]
fn a_refused_access_puts_both_in_error_and_says_why_once() {
    let mut pair = Pair::new();
    let (_, good) = pair.open(0, 4096, Rights::WRITE);
    let dead = Remote {
        rkey: good.rkey.with_tag(good.rkey.tag().wrapping_add(1)),
        ..good
    };
    pair.b.receive(70, 0, 64);
    pair.b.receive(71, 0, 64);
    let list = pair.a.list(0, 8);
    let works = [
        write(1, good, list).signaled(false),
        write(2, dead, list).signaled(false),
        write(3, good, list).signaled(false),
        send(4, list),
    ];
    pair.a.fill(0, b"12345678");
    assert_eq!(pair.a.path.post_burst(pair.a.qp, &works), 4);
    pair.step();
    let a: Vec<_> = pair
        .a
        .drain()
        .iter()
        .map(|done| (done.id.0, done.status))
        .collect();
    let b: Vec<_> = pair
        .b
        .drain()
        .iter()
        .map(|done| (done.id.0, done.status))
        .collect();
    let flushed = WcStatus::Flushed;
    assert_eq!(a, [(2, WcStatus::RemoteAccess), (3, flushed), (4, flushed)]);
    assert_eq!(b, [(70, flushed), (71, flushed)]);
    assert_eq!(
        pair.b.bytes(0, 8),
        b"12345678",
        "the write before the refused one"
    );
    let late = pair.b.post(send(9, SgeList::EMPTY));
    assert_eq!(late, 1);
    assert_eq!(pair.b.drain()[0].status, flushed);
}

#[test]
fn r12_a_key_works_on_its_own_queue_pair_only() {
    let mut pair = Pair::new();
    let config = QpConfig {
        pd: pair.a.pd,
        ..QP
    };
    let a_other = pair.a.device.create_qp(&config).unwrap();
    let pd = pair.b.pd;
    let b_other = pair.b.device.create_qp(&QpConfig { pd, ..QP }).unwrap();
    connect_qps(&pair.a, &pair.b, a_other, b_other);
    let (_, remote) = pair.open(0, 64, Rights::WRITE);
    let work = write(1, remote, pair.a.list(0, 8));
    assert_eq!(pair.a.path.post_burst(a_other, &[work]), 1);
    assert_eq!(pair.wait_a().status, WcStatus::RemoteAccess);
    assert!(
        pair.run_a(work).is_success(),
        "the first queue pair is unharmed"
    );
}

#[test]
fn the_arena_s_own_key_opens_nothing_and_an_open_region_s_key_all_queue_pairs_of_its_domain() {
    let mut pair = Pair::new();
    let address = pair.b.arena.address();
    let access = Access {
        remote: Rights::READ,
        bind: false,
    };
    let (device, arena) = (&pair.b.device, &pair.b.arena);
    let open = device.register(pair.b.pd, arena, 10..20, access).unwrap();
    let at = |offset| Remote {
        address: address + offset,
        rkey: open.rkey,
    };
    assert!(pair.run_a(read(1, at(10), pair.a.list(0, 10))).is_success());
    let pd = pair.b.pd;
    let b_other = pair.b.device.create_qp(&QpConfig { pd, ..QP }).unwrap();
    let config = QpConfig {
        pd: pair.a.pd,
        ..QP
    };
    let a_other = pair.a.device.create_qp(&config).unwrap();
    connect_qps(&pair.a, &pair.b, a_other, b_other);
    let work = read(2, at(19), pair.a.list(0, 1));
    assert_eq!(pair.a.path.post_burst(a_other, &[work]), 1);
    assert!(pair.wait_a().is_success());
    // One byte too far, on the second queue pair; then the arena's own key on the first.
    let work = read(3, at(19), pair.a.list(0, 2));
    pair.a.path.post_burst(a_other, &[work]);
    assert_eq!(pair.wait_a().status, WcStatus::RemoteAccess);
    let rkey = pair.b.region.rkey;
    let done = pair.run_a(read(4, Remote { address, rkey }, pair.a.list(0, 1)));
    assert_eq!(done.status, WcStatus::RemoteAccess);
}

#[test]
fn a_new_owner_of_an_index_is_not_reached_by_handles_of_the_old_one() {
    let config = SoftConfig {
        max_windows: 1,
        max_regions: 1,
        ..SoftConfig::TEST_MIN
    };
    let mut pair = Pair::with(config, QP);
    let (window, remote) = pair.open(0, 64, Rights::WRITE);
    let full = pair.b.device.alloc_window(pair.b.qp);
    assert!(
        matches!(full, Err(ControlError::Exhausted { .. })),
        "{full:?}"
    );
    pair.b.device.dealloc_window(window.id).unwrap();
    let next = pair.b.device.alloc_window(pair.b.qp).unwrap();
    assert_ne!((next.id, next.rkey), (window.id, remote.rkey));
    let gone = pair.b.device.dealloc_window(window.id);
    assert_eq!(gone, Err(ControlError::NoSuchWindow(window.id)));
    pair.b.device.dealloc_window(next.id).unwrap();
    let region = pair.b.region;
    pair.b.device.deregister(region.id).unwrap();
    let (device, arena) = (&pair.b.device, &pair.b.arena);
    let next = device
        .register(pair.b.pd, arena, 0..4096, Access::default())
        .unwrap();
    assert_ne!((next.id, next.lkey), (region.id, region.lkey));
    let gone = pair.b.device.deregister(region.id);
    assert_eq!(gone, Err(ControlError::NoSuchRegion(region.id)));
    let stale = pair.b.list(0, 8);
    pair.b.post(send(1, stale));
    assert_eq!(pair.wait_b().status, WcStatus::LocalProtection);
}

#[test]
fn a_refusal_has_its_slot_when_the_answer_ring_is_full() {
    let mut pair = Pair::new();
    let (_, remote) = pair.open(0, 64, Rights::READ);
    let works: Vec<_> = (0..8)
        .map(|id| read(id, remote, pair.a.list(0, 8)))
        .collect();
    // Posted and executed without a poll of a's, so no answer is taken.
    let mut posted = 0;
    for _ in 0..4 {
        posted += pair.a.path.post_burst(pair.a.qp, &works[posted..]);
        pair.b.poll();
    }
    assert_eq!(posted, 8);
    pair.a.post(write(8, remote, pair.a.list(0, 8)));
    pair.b.poll();
    let ends: Vec<_> = (0..9).map(|_| pair.wait_a().status).collect();
    assert_eq!(ends[..8], [WcStatus::Success; 8]);
    assert_eq!(ends[8], WcStatus::RemoteAccess);
}

#[test]
fn keys_of_an_arena_younger_than_the_last_poll_work_at_once() {
    let mut pair = Pair::new();
    let (_, remote) = pair.open(0, 64, Rights::WRITE);
    // The second arena takes the first one's place in the tables.
    for (id, text) in [(1, b"first..."), (2, b"second..")] {
        let arena = arena(4096);
        arena.dma(0, 8).unwrap().write_from(text).unwrap();
        let device = &pair.a.device;
        let region = device
            .register(pair.a.pd, &arena, 0..8, Access::default())
            .unwrap();
        let source = SgeList::one(Sge::new(arena.address(), 8, region.lkey));
        pair.a.post(write(id, remote, source));
        pair.b.poll();
        assert_eq!(pair.b.bytes(0, 8), text);
        let device = &pair.a.device;
        device.deregister(region.id).unwrap();
    }
    assert!(pair.wait_a().is_success() && pair.wait_a().is_success());
}
