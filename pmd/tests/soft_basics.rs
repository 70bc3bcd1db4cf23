//! Both sides stepped by one thread: each operation at the sizes where the way through the segment changes, and the flow of slots and bytes.

mod pair;

use keyfence_pmd::*;
use pair::*;

/// Around the slot's payload, a cache line, a slice, and beyond the chunk ring.
const SIZES: [usize; 16] = [
    0, 1, 7, 8, 9, 39, 40, 41, 63, 64, 65, 4096, 65_535, 65_536, 65_537, 1_000_003,
];

#[test]
fn writes_of_every_size_land_whole_and_nothing_beside() {
    for (number, len) in SIZES.into_iter().enumerate() {
        let mut pair = Pair::new();
        for shift in [0, 3] {
            let (_, remote) = pair.open(4096 + shift, len.max(1) as u64, Rights::WRITE);
            let bytes = pattern(number as u64, len);
            pair.a.fill(1, &bytes);
            pair.b.arena.dma(0, ARENA_BYTES).unwrap().fill(0xee);
            let done = pair.run_a(write(number as u64, remote, pair.a.list(1, len as u32)));
            assert_eq!(
                (done.status, done.kind),
                (WcStatus::Success, CompletionKind::Write)
            );
            assert_eq!(pair.b.bytes(4096 + shift, len), bytes, "{len} bytes");
            let before = pair.b.arena.dma(0, 4096 + shift).unwrap();
            assert_eq!(before.first_not(0xee), None);
            let end = 4096 + shift + len;
            let after = pair.b.arena.dma(end, ARENA_BYTES - end).unwrap();
            assert_eq!(after.first_not(0xee), None);
            assert!(pair.b.invalidate(remote.rkey).is_success());
        }
    }
}

#[test]
fn reads_of_every_size_come_back_whole() {
    for (number, len) in SIZES.into_iter().enumerate() {
        let mut pair = Pair::new();
        let (_, remote) = pair.open(4099, len.max(1) as u64, Rights::READ);
        let bytes = pattern(number as u64, len);
        pair.b.fill(4099, &bytes);
        let done = pair.run_a(read(1, remote, pair.a.list(5, len as u32)));
        assert_eq!(
            (done.status, done.kind),
            (WcStatus::Success, CompletionKind::Read)
        );
        assert_eq!(done.bytes as usize, len);
        assert_eq!(pair.a.bytes(5, len), bytes, "{len} bytes");
        assert_eq!(pair.a.bytes(5 + len, 64), vec![0; 64]);
    }
}

#[test]
fn messages_of_every_size_arrive_in_their_receives() {
    for (number, len) in SIZES.into_iter().enumerate() {
        let mut pair = Pair::new();
        let bytes = pattern(number as u64, len);
        pair.a.fill(0, &bytes);
        pair.b.receive(7, 64, len as u32);
        let op = WorkOp::Send {
            immediate: Some(0xdead_beef),
        };
        let work = WorkRequest::new(WorkId(1), op, pair.a.list(0, len as u32));
        assert!(pair.run_a(work).is_success());
        let got = pair.wait_b();
        assert_eq!((got.id, got.status), (WorkId(7), WcStatus::Success));
        assert_eq!(
            (got.kind, got.bytes as usize),
            (CompletionKind::Receive, len)
        );
        assert_eq!(got.immediate, Some(0xdead_beef));
        assert_eq!(pair.b.bytes(64, len), bytes);
    }
}

#[test]
fn lists_of_several_entries_are_gathered_and_scattered_at_every_split() {
    let mut pair = Pair::new();
    let bytes = pattern(3, 200_000);
    pair.a.fill(0, &bytes);
    let (_, remote) = pair.open(0, 1 << 20, Rights::READ_WRITE);
    for cut in [0, 1, 13, 65_535, 65_536, 65_537, 199_999] {
        let list = |side: &Side, base: usize| {
            let rest = 200_000 - cut;
            let sges = [
                side.sge(base, cut as u32),
                side.sge(base, 0),
                side.sge(base + cut, rest as u32 / 2),
                side.sge(base + cut + rest / 2, (rest - rest / 2) as u32),
            ];
            SgeList::new(&sges).unwrap()
        };
        pair.b.arena.dma(0, 1 << 20).unwrap().zero();
        assert!(pair.run_a(write(1, remote, list(&pair.a, 0))).is_success());
        assert_eq!(pair.b.bytes(0, 200_000), bytes);
        assert!(
            pair.run_a(read(2, remote, list(&pair.a, 1 << 20)))
                .is_success()
        );
        assert_eq!(pair.a.bytes(1 << 20, 200_000), bytes);
    }
}

#[test]
fn a_write_with_immediate_is_seen_after_its_data() {
    let mut pair = Pair::new();
    let (_, remote) = pair.open(0, 100_000, Rights::WRITE);
    let bytes = pattern(1, 100_000);
    pair.a.fill(0, &bytes);
    let op = WorkOp::Write {
        remote,
        immediate: Some(42),
    };
    let work = WorkRequest::new(WorkId(1), op, pair.a.list(0, 100_000));
    pair.a.post(work);
    for _ in 0..100 {
        pair.step();
    }
    assert!(pair.a.done.is_empty(), "executed without a receive");
    pair.b.receive(9, 200_000, 8);
    let got = pair.wait_b();
    assert_eq!(pair.b.bytes(0, 100_000), bytes);
    assert_eq!(
        (got.id, got.kind),
        (WorkId(9), CompletionKind::ReceiveWriteImmediate)
    );
    assert_eq!((got.immediate, got.bytes), (Some(42), 100_000));
    assert_eq!(pair.b.word(200_000), 0, "the receive's buffer was touched");
    assert!(pair.wait_a().is_success());
}

#[test]
fn requests_complete_in_order_whatever_they_are() {
    let mut pair = Pair::new();
    let (_, remote) = pair.open(0, 1 << 20, Rights::ALL);
    for round in 0..50u64 {
        let mut ids = Vec::new();
        for at in 0..20 {
            let id = round * 100 + at;
            let big = 70_000 + at as u32;
            let work = match at % 5 {
                0 => write(id, remote, pair.a.list(0, big)),
                1 => read(id, remote, pair.a.list(1 << 20, big)),
                2 => send(id, pair.a.list(0, 30)),
                3 => WorkRequest::new(
                    WorkId(id),
                    WorkOp::FetchAdd { remote, add: 1 },
                    pair.a.list(2 << 20, 8),
                ),
                _ => write(id, remote, pair.a.list(0, 8)),
            };
            pair.b.receive(id, 2 << 20, 64);
            assert_eq!(pair.a.post(work), 1);
            ids.push(WorkId(id));
        }
        for id in ids {
            let done = pair.wait_a();
            assert_eq!((done.id, done.status), (id, WcStatus::Success));
        }
    }
}

#[test]
fn both_directions_full_of_reads_and_writes_do_not_wait_for_each_other() {
    let mut pair = Pair::new();
    let (_, to_b) = pair.b.open(0, 2 << 20, Rights::READ_WRITE);
    let (_, to_a) = pair.a.open(0, 2 << 20, Rights::READ_WRITE);
    let len = 300_000;
    for id in 0..40 {
        let (mine, theirs) = if id % 2 == 0 {
            (
                read(id, to_b, pair.a.list(2 << 20, len)),
                read(id, to_a, pair.b.list(2 << 20, len)),
            )
        } else {
            (
                write(id, to_b, pair.a.list(2 << 20, len)),
                write(id, to_a, pair.b.list(2 << 20, len)),
            )
        };
        assert_eq!((pair.a.post(mine), pair.b.post(theirs)), (1, 1));
    }
    for id in 0..40 {
        let (a, b) = (pair.wait_a(), pair.wait_b());
        assert_eq!((a.id, a.status), (WorkId(id), WcStatus::Success));
        assert_eq!((b.id, b.status), (WorkId(id), WcStatus::Success));
    }
}

#[test]
fn a_poll_moves_a_bounded_number_of_bytes() {
    let mut pair = Pair::new();
    let (_, remote) = pair.open(0, 2 << 20, Rights::WRITE);
    pair.a.fill(0, &vec![1; 2 << 20]);
    pair.a.post(write(1, remote, pair.a.list(0, 2 << 20)));
    let (mut polls, mut landed) = (0, 0);
    while pair.a.done.is_empty() {
        pair.step();
        polls += 1;
        let now = pair
            .b
            .arena
            .dma(0, 2 << 20)
            .unwrap()
            .first_not(1)
            .unwrap_or(2 << 20);
        assert!(now - landed <= 65_536, "{} bytes in a poll", now - landed);
        landed = now;
        assert!(polls < POLL_LIMIT);
    }
    assert!(polls >= 32);
}
