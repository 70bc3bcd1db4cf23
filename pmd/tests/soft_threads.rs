//! Two threads that yield while idle, so that the tests also pass on one core.

mod pair;

use std::sync::Barrier;
use std::thread;

use keyfence_mempool::sync::{AtomicBool, AtomicU64, Ordering};
use keyfence_pmd::soft::{Fabric, SoftConfig};
use keyfence_pmd::*;
use pair::*;

#[test]
fn writes_sends_and_reads_between_two_threads_keep_every_byte() {
    const ROUNDS: u64 = 3000;
    let mut pair = Pair::with(SoftConfig::default(), QP);
    let (_, to_b) = pair.open(0, 1 << 20, Rights::READ_WRITE);
    let Pair {
        fabric: _fabric,
        mut a,
        mut b,
    } = pair;
    for id in 0..32 {
        b.receive(id, (2 << 20) + 256 * id as usize, 256);
    }
    let over = std::sync::Arc::new(AtomicBool::new(false));
    let is_over = std::sync::Arc::clone(&over);
    let peer = thread::spawn(move || {
        let mut got = 0;
        while !is_over.load(Ordering::Acquire) {
            if b.poll() == 0 {
                thread::yield_now();
            }
            for done in std::mem::take(&mut b.done) {
                assert!(done.is_success(), "{done:?}");
                let (slot, len) = (done.id.0 as usize, done.bytes as usize);
                let found = b.bytes((2 << 20) + 256 * slot, len);
                assert_eq!(found, pattern(got, len), "message {got}");
                b.receive(slot as u64, (2 << 20) + 256 * slot, 256);
                got += 1;
            }
        }
        assert_eq!(got, ROUNDS);
    });
    for round in 0..ROUNDS {
        let len = [8, 64, 200, 1000, 70_000][round as usize % 5];
        let message = pattern(round, len.min(200));
        let bytes = pattern(!round, len);
        a.fill(0, &bytes);
        a.fill(1 << 20, &message);
        let burst = [
            write(3 * round, to_b, a.list(0, len as u32)).signaled(false),
            send(3 * round + 1, a.list(1 << 20, message.len() as u32)).signaled(false),
            read(3 * round + 2, to_b, a.list(2 << 20, len as u32)),
        ];
        let mut posted = 0;
        while posted < 3 || a.done.is_empty() {
            posted += a.path.post_burst(a.qp, &burst[posted..]);
            if a.poll() == 0 {
                thread::yield_now();
            }
        }
        let done = a.done.remove(0);
        assert_eq!((done.id.0, done.status), (3 * round + 2, WcStatus::Success));
        assert_eq!(a.bytes(2 << 20, len), bytes, "round {round}");
    }
    over.store(true, Ordering::Release);
    peer.join().unwrap();
}

#[test]
fn b43_two_times_a_million_increments_sum_exactly_and_misaligned_ones_are_refused() {
    const EACH: u64 = 1_000_000;
    // One owner with a lcore on each of two threads, and a requester beside each: both lcores add to one word.
    let fabric = Fabric::new();
    let mut owner = Side::new(&fabric, SoftConfig::default(), QP);
    owner.device.listen("local:b").unwrap();
    let second = QpConfig {
        pd: owner.pd,
        lcore: LcoreId(1),
        ..QP
    };
    let mut second_path = owner.device.open_path(LcoreId(1)).unwrap();
    let second_qp = owner.device.create_qp(&second).unwrap();
    let access = Access {
        remote: Rights::ALL,
        bind: false,
    };
    let open = owner
        .device
        .register(owner.pd, &owner.arena, 0..64, access)
        .unwrap();
    let remote = Remote {
        address: owner.arena.address() + 8,
        rkey: open.rkey,
    };
    let adders = [owner.qp, second_qp].map(|qp| {
        let adder = Side::new(&fabric, SoftConfig::default(), QP);
        connect_qps(&adder, &owner, adder.qp, qp);
        adder
    });
    thread::scope(|scope| {
        for (mut adder, path) in adders.into_iter().zip([&mut owner.path, &mut second_path]) {
            scope.spawn(move || {
                add_many(&mut adder, path, remote, EACH);
                refuse_misaligned(&mut adder, path, remote);
            });
        }
    });
    assert_eq!(owner.word(8), 2 * EACH);
    assert_eq!((owner.word(0), owner.word(16)), (0, 0));
}

fn add_many(adder: &mut Side, owner: &mut impl DataPath, remote: Remote, count: u64) {
    let (mut posted, mut done) = (0, 0);
    let mut former = 0;
    while done < count {
        while posted < count {
            let op = WorkOp::FetchAdd { remote, add: 1 };
            let sink = adder.list(8 * (posted as usize % 64), 8);
            let signaled = posted % 16 == 15;
            if adder.post(WorkRequest::new(WorkId(posted), op, sink).signaled(signaled)) == 0 {
                break;
            }
            posted += 1;
        }
        let idle = owner.poll_burst(&mut []) + adder.poll() == 0;
        for completion in std::mem::take(&mut adder.done) {
            assert!(completion.is_success(), "{completion:?}");
            let now = adder.word(8 * (completion.id.0 as usize % 64));
            assert!(now >= former, "the word went back from {former} to {now}");
            former = now;
            done = completion.id.0 + 1;
        }
        if idle {
            thread::yield_now();
        }
    }
}

fn refuse_misaligned(adder: &mut Side, owner: &mut impl DataPath, remote: Remote) {
    let address = remote.address + 4;
    let remote = Remote { address, ..remote };
    let op = WorkOp::CompareSwap {
        remote,
        expected: 0,
        desired: 1,
    };
    adder.post(WorkRequest::new(WorkId(1), op, adder.list(0, 8)));
    let mut done = [Completion::EMPTY; 4];
    while adder.done.is_empty() {
        owner.poll_burst(&mut done);
        adder.poll();
    }
    assert_eq!(adder.done[0].status, WcStatus::RemoteInvalidRequest);
}

#[test]
fn b43_atomics_at_odd_offsets_and_at_the_end_are_refused_and_change_nothing() {
    for (offset, status) in [
        (1, WcStatus::RemoteInvalidRequest),
        (4, WcStatus::RemoteInvalidRequest),
        (64 - 7, WcStatus::RemoteAccess),
    ] {
        let mut pair = Pair::new();
        let (_, remote) = pair.open(0, 64, Rights::ALL);
        let address = remote.address + offset;
        let op = WorkOp::FetchAdd {
            remote: Remote { address, ..remote },
            add: 1,
        };
        let done = pair.run_a(WorkRequest::new(WorkId(1), op, pair.a.list(0, 8)));
        assert_eq!(done.status, status, "offset {offset}");
        assert_eq!(pair.b.bytes(0, 128), [0; 128]);
        assert_eq!(pair.b.drain(), []);
    }
}

#[test]
fn compare_and_swap_stores_only_what_was_expected_and_gives_the_former_value() {
    let mut pair = Pair::new();
    let (_, remote) = pair.open(0, 8, Rights::ALL);
    for (expected, desired, former, after) in [(0, 5, 0, 5), (0, 6, 5, 5), (5, 7, 5, 7)] {
        let op = WorkOp::CompareSwap {
            remote,
            expected,
            desired,
        };
        let done = pair.run_a(WorkRequest::new(WorkId(1), op, pair.a.list(64, 8)));
        assert_eq!(
            (done.status, done.kind),
            (WcStatus::Success, CompletionKind::Atomic)
        );
        assert_eq!((pair.a.word(64), pair.b.word(0)), (former, after));
    }
}

/// A control thread deallocates windows while two lcores run at full speed: after each return not a byte changes.
#[test]
fn r3_dealloc_from_another_thread_means_that_nothing_lands_afterwards() {
    const BYTES: u32 = 200_000;
    let config = SoftConfig {
        quiesce_timeout_ns: 10_000_000_000,
        ..SoftConfig::default()
    };
    for round in 0..60 {
        let mut pair = Pair::with(config.clone(), QP);
        let (window, remote) = pair.open(0, u64::from(BYTES), Rights::WRITE);
        let (a, b) = (&mut pair.a, &mut pair.b);
        let (over, polls, start) = (AtomicBool::new(false), AtomicU64::new(0), Barrier::new(3));
        let (device, arena) = (b.device.clone(), std::sync::Arc::clone(&b.arena));
        let refused = thread::scope(|scope| {
            scope.spawn(|| {
                start.wait();
                while !over.load(Ordering::Acquire) {
                    b.poll();
                    polls.fetch_add(1, Ordering::Relaxed);
                    thread::yield_now();
                }
            });
            let a_thread = scope.spawn(|| {
                start.wait();
                let mut value = 0u64;
                // Until it is refused, which it is only after the deallocation: so writes are under way before and behind it. All are signaled: the
                // places of silent ones would be free only behind one that is reported.
                loop {
                    value += 1;
                    a.arena.dma(0, BYTES as usize).unwrap().fill(value as u8);
                    a.post(write(value, remote, a.list(0, BYTES)));
                    a.poll();
                    let refused = a.done.drain(..).find(|done| !done.is_success());
                    if let Some(done) = refused {
                        return done.status;
                    }
                    thread::yield_now();
                }
            });
            start.wait();
            let memory = arena.dma(0, BYTES as usize).unwrap();
            while memory.first_not(0).is_none() || polls.load(Ordering::Relaxed) < round % 20 {
                thread::yield_now();
            }
            device.dealloc_window(window.id).unwrap();
            let mut before = vec![0; BYTES as usize];
            memory.read_into(&mut before).unwrap();
            let refused = a_thread.join().unwrap();
            over.store(true, Ordering::Release);
            let changed = memory.first_difference(&before).unwrap();
            assert_eq!(changed, None, "round {round}");
            refused
        });
        assert_eq!(refused, WcStatus::RemoteAccess);
    }
}
