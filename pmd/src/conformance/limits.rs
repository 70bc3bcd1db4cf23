//! Limits: each is exact, and what breaks one is a failed completion and no surprise.

use super::bench::{Bench, End};
use super::grants::write_op;
use super::{Outcome, ensure, tests};
use crate::completion::WcStatus;
use crate::device::{DataPath, Device, QpConfig};
use crate::ids::Lkey;
use crate::work::{Rights, Sge, SgeList, WorkOp};

tests! {
    every_length_moves_byte_exactly,
    the_most_entries_work_and_one_more_fails needs [Gather],
    b47_inline_source_may_be_overwritten_at_once needs [Inline],
    b47_inline_over_the_limit_fails needs [Inline],
    message_longer_than_its_receive_fails_both,
    unknown_local_key_is_refused,
    local_range_outside_its_region_is_refused,
    operation_over_the_limit_fails needs [OperationLimit],
    message_waits_for_its_receive,
    b24_every_signal_interval_at_every_depth,
    b43_misaligned_atomics_are_refused needs [Atomics],
    many_queue_pairs_work_at_a_time,
}

const LOCAL: usize = 0;
const TARGET: usize = 1 << 20;
const SINK: usize = 2 << 20;

fn every_length_moves_byte_exactly<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let link = bench.link()?;
    let most = 300_000;
    let grant = bench.open(End::B, link, TARGET, most + 128, Rights::READ_WRITE)?;
    let slices = [65_535, 65_536, 65_537, 131_071, 131_072, 131_073, most];
    let lens = (0..=40)
        .chain([63, 64, 65, 127, 128, 129, 4095, 4096, 4097])
        .chain(slices);
    for (at, len) in lens.enumerate() {
        // Source, target and sink are aligned differently each time.
        let (from, to) = (LOCAL + at % 8, at * 3 % 8);
        let bytes = bench.pattern(End::A, from, len, at as u8)?;
        bench.fill(End::B, TARGET, len + 64, 0)?;
        let source = bench.one(End::A, from, len);
        let write = bench.work(write_op(grant.at(to as u64)), source);
        bench.succeed(End::A, link.a, write)?;
        bench.holds(End::B, TARGET + to, &bytes, "a write")?;
        bench.all_are(End::B, TARGET, to, 0, "before a write")?;
        bench.all_are(End::B, TARGET + to + len, 16, 0, "behind a write")?;
        bench.fill(End::A, SINK, len + 64, 0)?;
        let sink = bench.one(End::A, SINK + from, len);
        let read = bench.work(
            WorkOp::Read {
                remote: grant.at(to as u64),
            },
            sink,
        );
        let done = bench.succeed(End::A, link.a, read)?;
        ensure!(done.bytes as usize == len, "read {} of {len}", done.bytes);
        bench.holds(End::A, SINK + from, &bytes, "a read")?;
        bench.all_are(End::A, SINK, from, 0, "before a read")?;
        bench.all_are(End::A, SINK + from + len, 16, 0, "behind a read")?;
        // The receive is exactly as long as the message.
        bench.fill(End::B, SINK, len + 64, 0)?;
        let receive = bench.receive(End::B, link.b, SINK + to, len, 1)?[0];
        let send = bench.work(WorkOp::Send { immediate: None }, source);
        bench.succeed(End::A, link.a, send)?;
        let done = bench.wait(End::B, receive)?;
        ensure!(
            done.is_success() && done.bytes as usize == len,
            "{done:?} of {len} bytes"
        );
        bench.holds(End::B, SINK + to, &bytes, "a message")?;
        bench.all_are(End::B, SINK + to + len, 16, 0, "behind a message")?;
    }
    Ok(())
}

fn the_most_entries_work_and_one_more_fails<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let most = bench.caps().max_sge;
    let parts = |bench: &Bench<D>, count: usize| {
        let parts: Vec<Sge> = (0..count)
            .map(|at| bench.sge(End::A, LOCAL + 100 * at, 10))
            .collect();
        SgeList::new(&parts).unwrap_or(SgeList::EMPTY)
    };
    for limit in 1..=most {
        let config = QpConfig {
            max_sge: limit,
            ..bench.config(End::A)
        };
        let link = bench.link_with(&config)?;
        let grant = bench.open(End::B, link, TARGET, 100, Rights::WRITE)?;
        let list = parts(bench, limit);
        let work = bench.work(write_op(grant.at(0)), list);
        bench.succeed(End::A, link.a, work)?;
        if limit == crate::MAX_SGE {
            continue;
        }
        bench.fill(End::B, TARGET, 100, 0)?;
        let list = parts(bench, limit + 1);
        let work = bench.work(write_op(grant.at(0)), list);
        let done = bench.run(End::A, link.a, work)?;
        ensure!(
            !done.is_success(),
            "{} entries worked, {limit} is the limit",
            limit + 1
        );
        bench.all_are(End::B, TARGET, 100, 0, "a request with too many entries")?;
    }
    Ok(())
}

fn b47_inline_source_may_be_overwritten_at_once<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let len = bench.config(End::A).max_inline_bytes;
    let link = bench.link()?;
    let grant = bench.open(End::B, link, TARGET, len, Rights::WRITE)?;
    let receive = bench.receive(End::B, link.b, SINK, len, 1)?[0];
    let source = bench.one(End::A, LOCAL, len);
    let write = bench.work(write_op(grant.at(0)), source).inline(true);
    let bytes = bench.pattern(End::A, LOCAL, len, 1)?;
    bench.post(End::A, link.a, &[write])?;
    let message = bench.pattern(End::A, LOCAL, len, 100)?;
    let send = bench
        .work(WorkOp::Send { immediate: None }, source)
        .inline(true);
    bench.post(End::A, link.a, &[send])?;
    bench.fill(End::A, LOCAL, len, 0)?;
    let done = bench.wait(End::B, receive)?;
    ensure!(done.is_success(), "an inline message ended as {done:?}");
    bench.holds(End::B, TARGET, &bytes, "an inline write")?;
    bench.holds(End::B, SINK, &message, "an inline message")?;
    let done = bench.wait(End::A, write.id)?;
    ensure!(done.is_success(), "an inline write ended as {done:?}");
    Ok(())
}

fn b47_inline_over_the_limit_fails<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let limit = bench.config(End::A).max_inline_bytes;
    let link = bench.link()?;
    let grant = bench.open(End::B, link, TARGET, limit + 1, Rights::WRITE)?;
    let source = bench.one(End::A, LOCAL, limit);
    let fits = bench.work(write_op(grant.at(0)), source).inline(true);
    bench.succeed(End::A, link.a, fits)?;
    bench.fill(End::B, TARGET, limit + 1, 0)?;
    let source = bench.one(End::A, LOCAL, limit + 1);
    let over = bench.work(write_op(grant.at(0)), source).inline(true);
    bench.fail(End::A, link.a, over, WcStatus::LocalLength)?;
    bench.all_are(
        End::B,
        TARGET,
        limit + 1,
        0,
        "an inline request over the limit",
    )
}

fn message_longer_than_its_receive_fails_both<D: Device>(bench: &mut Bench<D>) -> Outcome {
    for (len, room) in [(9, 8), (1, 0), (5000, 4096), (100_000, 99_999)] {
        let link = bench.link()?;
        bench.pattern(End::A, LOCAL, len, 1)?;
        bench.fill(End::B, SINK, len + 64, 0)?;
        let receive = bench.receive(End::B, link.b, SINK, room, 1)?[0];
        let source = bench.one(End::A, LOCAL, len);
        let send = bench.work(WorkOp::Send { immediate: None }, source);
        let done = bench.run(End::A, link.a, send)?;
        // By the adapter's word for a receive that cannot take the message (Soft-RoCE: operation error).
        let refused = matches!(
            done.status,
            WcStatus::RemoteInvalidRequest | WcStatus::RemoteOperation
        );
        ensure!(refused, "the message ended as {:?}", done.status);
        let received = bench.wait(End::B, receive)?;
        let status = received.status;
        ensure!(
            status == WcStatus::LocalLength,
            "the receive ended as {status:?}"
        );
        bench.all_are(End::B, SINK + room, len + 64 - room, 0, "behind a receive")?;
        for (end, qp) in [(End::A, link.a), (End::B, link.b)] {
            let behind = bench.work(super::grants::NOTHING, SgeList::EMPTY);
            bench.fail(end, qp, behind, WcStatus::Flushed)?;
        }
    }
    Ok(())
}

fn unknown_local_key_is_refused<D: Device>(bench: &mut Bench<D>) -> Outcome {
    for read in [false, true] {
        let link = bench.link()?;
        let grant = bench.open(End::B, link, TARGET, 64, Rights::READ_WRITE)?;
        bench.fill(End::B, TARGET, 64, 0)?;
        let mut sge = bench.sge(End::A, LOCAL, 8);
        sge.lkey = Lkey(0xdead_beef).0;
        let op = match read {
            true => WorkOp::Read {
                remote: grant.at(0),
            },
            false => write_op(grant.at(0)),
        };
        let work = bench.work(op, SgeList::one(sge));
        bench.fail(End::A, link.a, work, WcStatus::LocalProtection)?;
        let behind = bench.work(super::grants::NOTHING, SgeList::EMPTY);
        bench.fail(End::A, link.a, behind, WcStatus::Flushed)?;
        bench.all_are(End::B, TARGET, 64, 0, "a write with an unknown local key")?;
    }
    Ok(())
}

fn local_range_outside_its_region_is_refused<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let bytes = bench.a.arena.bytes();
    let start = bench.address_of(End::A, 0);
    let end = start + bytes as u64;
    let lkey = bench.a.region.lkey;
    let outside = [(start - 1, 8), (end - 1, 2), (end, 1), (u64::MAX - 3, 8)];
    for (address, len) in outside {
        let link = bench.link()?;
        let grant = bench.open(End::B, link, TARGET, 64, Rights::READ_WRITE)?;
        let sges = SgeList::one(Sge::new(address, len, lkey));
        let work = bench.work(write_op(grant.at(0)), sges);
        bench.fail(End::A, link.a, work, WcStatus::LocalProtection)?;
    }
    Ok(())
}

fn operation_over_the_limit_fails<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let link = bench.link()?;
    let grant = bench.open(End::B, link, TARGET, 64, Rights::READ_WRITE)?;
    let len = bench.caps().max_operation_bytes + 1;
    let sge = Sge {
        len: len as u32,
        ..bench.sge(End::A, LOCAL, 0)
    };
    let work = bench.work(write_op(grant.at(0)), SgeList::one(sge));
    let done = bench.run(End::A, link.a, work)?;
    let refused = matches!(
        done.status,
        WcStatus::LocalLength | WcStatus::LocalProtection
    );
    ensure!(
        refused,
        "an operation of {len} bytes ended as {:?}",
        done.status
    );
    Ok(())
}

fn message_waits_for_its_receive<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let link = bench.link()?;
    let bytes = bench.pattern(End::A, LOCAL, 100, 1)?;
    let source = bench.one(End::A, LOCAL, 100);
    let send = bench.work(WorkOp::Send { immediate: None }, source);
    let behind = bench.work(super::grants::NOTHING, SgeList::EMPTY);
    bench.post(End::A, link.a, &[send, behind])?;
    for _ in 0..8 {
        bench.step();
    }
    let early = bench.leftovers(End::A);
    ensure!(
        early.is_empty(),
        "completed before there was a receive: {early:?}"
    );
    let receive = bench.receive(End::B, link.b, SINK, 100, 1)?[0];
    let done = bench.wait(End::B, receive)?;
    ensure!(done.is_success(), "the receive ended as {done:?}");
    bench.holds(End::B, SINK, &bytes, "a message that waited")?;
    let done = bench.next(End::A, 2)?;
    ensure!(done[0].id == send.id && done[1].id == behind.id, "{done:?}");
    Ok(())
}

fn b24_every_signal_interval_at_every_depth<D: Device>(bench: &mut Bench<D>) -> Outcome {
    for depth in [1u32, 2, 3, 8, 16] {
        for interval in 1..=depth {
            let config = QpConfig {
                send_depth: depth,
                ..bench.config(End::A)
            };
            let link = bench.link_with(&config)?;
            let grant = bench.open(End::B, link, TARGET, 64, Rights::WRITE)?;
            let local = bench.one(End::A, LOCAL, 8);
            let mut signaled = 0;
            for number in 1..=3 * depth {
                let report = number % interval == 0;
                let work = bench.work(write_op(grant.at(0)), local).signaled(report);
                bench.post(End::A, link.a, &[work])?;
                signaled += usize::from(report);
            }
            // The last ones of an interval wait for one that is reported.
            let last = bench.work(write_op(grant.at(0)), local);
            bench.post(End::A, link.a, &[last])?;
            let done = bench.next(End::A, signaled + 1)?;
            let good = done.iter().all(|done| done.is_success());
            ensure!(
                good && done[signaled].id == last.id,
                "depth {depth}, interval {interval}: {done:?}"
            );
            bench.a.path.release_qp(link.a);
            bench.b.path.release_qp(link.b);
            bench.a.device.destroy_qp(link.a)?;
            bench.b.device.destroy_qp(link.b)?;
        }
    }
    bench.quiet()
}

fn b43_misaligned_atomics_are_refused<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let rights = Rights::ALL;
    for offset in [1, 4, 64 - 7] {
        for swap in [false, true] {
            let link = bench.link()?;
            bench.fill(End::B, TARGET, 128, 0)?;
            let grant = bench.open(End::B, link, TARGET, 64, rights)?;
            let remote = grant.at(offset);
            let op = match swap {
                true => WorkOp::CompareSwap {
                    remote,
                    expected: 0,
                    desired: 1,
                },
                false => WorkOp::FetchAdd { remote, add: 1 },
            };
            let sink = bench.one(End::A, SINK, 8);
            let work = bench.work(op, sink);
            let done = bench.run(End::A, link.a, work)?;
            let refused = matches!(
                done.status,
                WcStatus::RemoteInvalidRequest | WcStatus::RemoteAccess
            );
            ensure!(
                refused,
                "an atomic at offset {offset} ended as {:?}",
                done.status
            );
            bench.all_are(End::B, TARGET, 128, 0, "a misaligned atomic")?;
        }
    }
    Ok(())
}

fn many_queue_pairs_work_at_a_time<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let count = (bench.caps().max_qps / 2).clamp(1, 24) as usize;
    let config = QpConfig {
        send_depth: 4,
        receive_depth: 4,
        ..bench.config(End::A)
    };
    let mut links = Vec::new();
    for at in 0..count {
        let link = bench.link_with(&config)?;
        let grant = bench.open(End::B, link, TARGET + 64 * at, 8, Rights::WRITE)?;
        bench.set_word(End::A, LOCAL + 8 * at, at as u64 + 1)?;
        let source = bench.one(End::A, LOCAL + 8 * at, 8);
        links.push((link, bench.work(write_op(grant.at(0)), source)));
    }
    for (link, work) in &links {
        bench.post(End::A, link.a, &[*work])?;
    }
    for (at, (link, work)) in links.iter().enumerate() {
        let done = bench.wait(End::A, work.id)?;
        ensure!(
            done.is_success() && done.qp == link.a,
            "{done:?} on {}",
            link.a
        );
        let word = bench.word(End::B, TARGET + 64 * at)?;
        ensure!(word == at as u64 + 1, "queue pair {at} wrote {word}");
    }
    Ok(())
}
