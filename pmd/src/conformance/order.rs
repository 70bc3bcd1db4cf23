//! Rules 1 and 2: executed and completed in the order of posting, once, with what each operation promises.

use super::bench::{Bench, End, Grant, Link};
use super::grants::write_op;
use super::{Failure, Outcome, ensure, tests};
use crate::completion::CompletionKind;
use crate::device::{DataPath, Device, QpConfig};
use crate::work::{Rights, SgeList, WorkOp, WorkRequest};

tests! {
    completions_come_in_the_order_of_posting,
    success_proves_every_earlier_request,
    unsignaled_success_is_silent,
    a_burst_executes_in_order,
    data_is_there_before_a_later_message,
    write_with_immediate_comes_after_its_data,
    read_returns_the_bytes_and_sees_earlier_writes,
    reads_far_apart_behind_many_writes_are_answered,
    fetch_add_returns_the_old_value needs [Atomics],
    compare_swap_stores_only_on_a_match needs [Atomics],
    atomics_execute_exactly_once needs [Atomics],
    several_entries_gather_and_scatter needs [Gather],
    messages_keep_their_boundaries,
    messages_come_once_and_in_order,
    messages_carry_their_immediate,
    both_directions_work_at_a_time,
    invalidation_completes_behind_earlier_requests needs [Windows],
}

const LOCAL: usize = 0;
const TARGET: usize = 1 << 20;
const SINK: usize = 2 << 20;

/// A link, and bytes of side B opened for everything that the device can do.
fn open<D: Device>(bench: &mut Bench<D>, len: usize) -> Result<(Link, Grant), Failure> {
    let link = bench.link()?;
    let rights = Rights {
        atomic: bench.caps().atomics,
        ..Rights::READ_WRITE
    };
    let grant = bench.open(End::B, link, TARGET, len, rights)?;
    Ok((link, grant))
}

fn completions_come_in_the_order_of_posting<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let (link, grant) = open(bench, 64 << 10)?;
    bench.receive(End::B, link.b, SINK, 64, 4)?;
    let small = bench.one(End::A, LOCAL, 8);
    let large = bench.one(End::A, LOCAL, 64 << 10);
    let ops = [
        (write_op(grant.at(0)), large),
        (WorkOp::Send { immediate: None }, small),
        (
            WorkOp::Read {
                remote: grant.at(0),
            },
            large,
        ),
        (write_op(grant.at(8)), small),
        (WorkOp::Send { immediate: None }, small),
        (
            WorkOp::Read {
                remote: grant.at(0),
            },
            small,
        ),
        (write_op(grant.at(0)), SgeList::EMPTY),
    ];
    let work = ops.map(|(op, sges)| bench.work(op, sges));
    bench.post(End::A, link.a, &work)?;
    let done = bench.next(End::A, work.len())?;
    for (posted, done) in work.iter().zip(&done) {
        ensure!(
            done.is_success(),
            "{:?} ended as {:?}",
            posted.op,
            done.status
        );
        ensure!(
            done.id == posted.id,
            "request {:#x} completed where {:#x} was next",
            done.id.0,
            posted.id.0
        );
    }
    Ok(())
}

fn success_proves_every_earlier_request<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let (link, grant) = open(bench, 8 * 4096)?;
    let bytes = bench.pattern(End::A, LOCAL, 8 * 4096, 3)?;
    bench.fill(End::B, TARGET, 8 * 4096, 0)?;
    let mut work = Vec::new();
    for part in 0..8 {
        let local = bench.one(End::A, LOCAL + part * 4096, 4096);
        let write = bench.work(write_op(grant.at(part as u64 * 4096)), local);
        work.push(write.signaled(part == 7));
    }
    bench.post(End::A, link.a, &work)?;
    let done = bench.wait(End::A, work[7].id)?;
    ensure!(done.is_success(), "the last ended as {:?}", done.status);
    bench.holds(End::B, TARGET, &bytes, "writes before a successful one")
}

fn unsignaled_success_is_silent<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let (link, grant) = open(bench, 4096)?;
    let local = bench.one(End::A, LOCAL, 64);
    let silent = bench.work(write_op(grant.at(0)), local).signaled(false);
    bench.post(End::A, link.a, &[silent])?;
    bench.settle();
    let last = bench.work(write_op(grant.at(64)), local);
    bench.succeed(End::A, link.a, last)?;
    bench.quiet()
}

fn a_burst_executes_in_order<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let (link, grant) = open(bench, 64)?;
    let mut work: Vec<WorkRequest> = Vec::new();
    for value in 1..=8u8 {
        bench.fill(End::A, LOCAL + 8 * usize::from(value), 8, value)?;
        let source = bench.one(End::A, LOCAL + 8 * usize::from(value), 8);
        work.push(bench.work(write_op(grant.at(0)), source).signaled(false));
        let sink = bench.one(End::A, SINK + 8 * usize::from(value), 8);
        work.push(bench.work(
            WorkOp::Read {
                remote: grant.at(0),
            },
            sink,
        ));
    }
    bench.post(End::A, link.a, &work)?;
    bench.next(End::A, 8)?;
    for value in 1..=8u8 {
        let at = SINK + 8 * usize::from(value);
        bench.all_are(
            End::A,
            at,
            8,
            value,
            "a read behind a write of the same bytes",
        )?;
    }
    bench.all_are(End::B, TARGET, 8, 8, "the last of several writes")
}

fn data_is_there_before_a_later_message<D: Device>(bench: &mut Bench<D>) -> Outcome {
    for len in [8, 4096, 200_000] {
        let (link, grant) = open(bench, len)?;
        let bytes = bench.pattern(End::A, LOCAL, len, 9)?;
        bench.fill(End::B, TARGET, len, 0)?;
        let receive = bench.receive(End::B, link.b, SINK, 64, 1)?[0];
        let data = bench.one(End::A, LOCAL, len);
        let data = bench.work(write_op(grant.at(0)), data).signaled(false);
        let note = bench.one(End::A, SINK, 8);
        let note = bench.work(WorkOp::Send { immediate: None }, note);
        bench.post(End::A, link.a, &[data, note])?;
        let received = bench.wait(End::B, receive)?;
        ensure!(received.is_success(), "the message ended as {received:?}");
        bench.holds(End::B, TARGET, &bytes, "data written before a message")?;
    }
    Ok(())
}

fn write_with_immediate_comes_after_its_data<D: Device>(bench: &mut Bench<D>) -> Outcome {
    for len in [0, 8, 4096, 200_000] {
        let (link, grant) = open(bench, len.max(1))?;
        let bytes = bench.pattern(End::A, LOCAL, len, 5)?;
        bench.fill(End::B, TARGET, len, 0)?;
        bench.fill(End::B, SINK, 64, 0x77)?;
        let receive = bench.receive(End::B, link.b, SINK, 64, 1)?[0];
        let op = WorkOp::Write {
            remote: grant.at(0),
            immediate: Some(0xfeed_0000 + len as u32),
        };
        let sges = bench.one(End::A, LOCAL, len);
        let work = bench.work(op, sges);
        bench.post(End::A, link.a, &[work])?;
        let received = bench.wait(End::B, receive)?;
        ensure!(received.is_success(), "the receive ended as {received:?}");
        bench.holds(End::B, TARGET, &bytes, "data of a write with immediate")?;
        let kind = CompletionKind::ReceiveWriteImmediate;
        ensure!(
            received.kind == kind,
            "{received:?} is not of kind {kind:?}"
        );
        let immediate = Some(0xfeed_0000 + len as u32);
        ensure!(
            received.immediate == immediate,
            "{received:?} without {immediate:?}"
        );
        bench.all_are(
            End::B,
            SINK,
            64,
            0x77,
            "the receive of a write with immediate",
        )?;
        let done = bench.wait(End::A, work.id)?;
        ensure!(done.is_success(), "the write ended as {:?}", done.status);
    }
    Ok(())
}

fn read_returns_the_bytes_and_sees_earlier_writes<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let len = 150_000;
    let (link, grant) = open(bench, len)?;
    let bytes = bench.pattern(End::B, TARGET, len, 1)?;
    let sink = bench.one(End::A, SINK, len);
    let read = bench.work(
        WorkOp::Read {
            remote: grant.at(0),
        },
        sink,
    );
    let done = bench.succeed(End::A, link.a, read)?;
    ensure!(
        done.bytes as usize == len,
        "read {} of {len} bytes",
        done.bytes
    );
    bench.holds(End::A, SINK, &bytes, "a read")?;
    let bytes = bench.pattern(End::A, LOCAL, len, 2)?;
    let source = bench.one(End::A, LOCAL, len);
    let write = bench.work(write_op(grant.at(0)), source).signaled(false);
    let read = bench.work(
        WorkOp::Read {
            remote: grant.at(0),
        },
        sink,
    );
    bench.post(End::A, link.a, &[write, read])?;
    bench.wait(End::A, read.id)?;
    bench.holds(End::A, SINK, &bytes, "a read behind a write")
}

fn reads_far_apart_behind_many_writes_are_answered<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let config = QpConfig {
        send_depth: bench.caps().max_send_depth.min(64),
        ..bench.config(End::A)
    };
    let depth = config.send_depth as usize;
    let link = bench.link_with(&config)?;
    let grant = bench.open(End::B, link, TARGET, 64, Rights::READ_WRITE)?;
    let source = bench.one(End::A, LOCAL, 8);
    // Places of the queue hold requests of two laps when the answers come.
    for _ in 0..depth * 5 / 8 {
        let write = bench.work(write_op(grant.at(0)), source);
        bench.succeed(End::A, link.a, write)?;
    }
    let remote = grant.at(0);
    let mut work = Vec::new();
    for at in 0..depth * 15 / 16 {
        let sink = bench.one(End::A, SINK + 8 * at, 8);
        work.push(match at == depth / 6 || at == depth / 2 {
            true => bench.work(WorkOp::Read { remote }, sink),
            false => bench.work(write_op(remote), source),
        });
    }
    bench.post(End::A, link.a, &work)?;
    for (posted, done) in work.iter().zip(bench.next(End::A, work.len())?) {
        ensure!(
            done.id == posted.id && done.is_success(),
            "{done:?} came where the success of {:?} was next",
            posted.id
        );
    }
    Ok(())
}

fn fetch_add_returns_the_old_value<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let (link, grant) = open(bench, 64)?;
    bench.set_word(End::B, TARGET + 8, u64::MAX - 1)?;
    for (add, old, new) in [(1, u64::MAX - 1, u64::MAX), (3, u64::MAX, 2), (0, 2, 2)] {
        let sink = bench.one(End::A, SINK, 8);
        let remote = grant.at(8);
        let work = bench.work(WorkOp::FetchAdd { remote, add }, sink);
        bench.succeed(End::A, link.a, work)?;
        let (got, now) = (bench.word(End::A, SINK)?, bench.word(End::B, TARGET + 8)?);
        ensure!(
            got == old,
            "fetch-add returned {got:#x}, the old value is {old:#x}"
        );
        ensure!(now == new, "fetch-add left {now:#x}, not {new:#x}");
    }
    Ok(())
}

fn compare_swap_stores_only_on_a_match<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let (link, grant) = open(bench, 64)?;
    bench.set_word(End::B, TARGET, 5)?;
    for (expected, desired, old, new) in [(4, 9, 5, 5), (5, 9, 5, 9), (9, 5, 9, 5)] {
        let sink = bench.one(End::A, SINK, 8);
        let op = WorkOp::CompareSwap {
            remote: grant.at(0),
            expected,
            desired,
        };
        let work = bench.work(op, sink);
        bench.succeed(End::A, link.a, work)?;
        let (got, now) = (bench.word(End::A, SINK)?, bench.word(End::B, TARGET)?);
        ensure!(
            got == old,
            "compare-swap returned {got}, the old value is {old}"
        );
        ensure!(now == new, "compare-swap left {now}, not {new}");
    }
    Ok(())
}

fn atomics_execute_exactly_once<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let (link, grant) = open(bench, 64)?;
    bench.set_word(End::B, TARGET, 0)?;
    let mut work = Vec::new();
    for at in 0..32 {
        let sink = bench.one(End::A, SINK + 8 * at, 8);
        let remote = grant.at(0);
        work.push(bench.work(WorkOp::FetchAdd { remote, add: 1 }, sink));
    }
    bench.post(End::A, link.a, &work)?;
    bench.next(End::A, 32)?;
    for at in 0..32 {
        let got = bench.word(End::A, SINK + 8 * at)?;
        ensure!(got == at as u64, "the {at}th fetch-add of 1 returned {got}");
    }
    let sum = bench.word(End::B, TARGET)?;
    ensure!(sum == 32, "32 increments left {sum}");
    Ok(())
}

fn several_entries_gather_and_scatter<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let (link, grant) = open(bench, 8192)?;
    let first = bench.pattern(End::A, LOCAL + 1, 701, 1)?;
    let second = bench.pattern(End::A, LOCAL + 5000, 1300, 2)?;
    let whole = [first, second].concat();
    let list = |bench: &Bench<D>, end, parts: [(usize, usize); 2]| {
        let parts = parts.map(|(offset, len)| bench.sge(end, offset, len));
        SgeList::new(&parts).unwrap_or(SgeList::EMPTY)
    };
    let gather = list(bench, End::A, [(LOCAL + 1, 701), (LOCAL + 5000, 1300)]);
    let write = bench.work(write_op(grant.at(3)), gather);
    bench.succeed(End::A, link.a, write)?;
    bench.holds(End::B, TARGET + 3, &whole, "a gathered write")?;
    let scatter = list(bench, End::A, [(SINK, 1999), (SINK + 4000, 2)]);
    let read = bench.work(
        WorkOp::Read {
            remote: grant.at(3),
        },
        scatter,
    );
    bench.succeed(End::A, link.a, read)?;
    bench.holds(End::A, SINK, &whole[..1999], "a scattered read")?;
    bench.holds(
        End::A,
        SINK + 4000,
        &whole[1999..],
        "a scattered read's end",
    )?;
    let receive = bench.receive(End::B, link.b, SINK, 4096, 1)?[0];
    let send = bench.work(WorkOp::Send { immediate: None }, gather);
    bench.post(End::A, link.a, &[send])?;
    let received = bench.wait(End::B, receive)?;
    ensure!(
        received.bytes as usize == whole.len(),
        "{received:?} of {} bytes",
        whole.len()
    );
    bench.holds(End::B, SINK, &whole, "a gathered message")
}

fn messages_keep_their_boundaries<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let link = bench.link()?;
    let lens = [1, 64, 7, 0, 4096, 33];
    let receives = bench.receive(End::B, link.b, SINK, 4096, lens.len())?;
    bench.fill(End::B, SINK, 4096 * lens.len(), 0)?;
    for (at, (len, receive)) in lens.into_iter().zip(receives).enumerate() {
        let bytes = bench.pattern(End::A, LOCAL, len, at as u8)?;
        let source = bench.one(End::A, LOCAL, len);
        let send = bench.work(WorkOp::Send { immediate: None }, source);
        bench.succeed(End::A, link.a, send)?;
        let received = bench.wait(End::B, receive)?;
        ensure!(received.is_success(), "the message ended as {received:?}");
        ensure!(
            received.kind == CompletionKind::Receive && received.bytes as usize == len,
            "{received:?} is not a message of {len} bytes"
        );
        ensure!(
            received.immediate.is_none(),
            "{received:?} has an immediate"
        );
        let at = SINK + 4096 * at;
        bench.holds(End::B, at, &bytes, "a message")?;
        bench.all_are(End::B, at + len, 4096 - len, 0, "behind a message")?;
    }
    Ok(())
}

fn messages_come_once_and_in_order<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let link = bench.link()?;
    let burst = (bench.config(End::A).send_depth.min(16) as usize)
        .min(bench.config(End::B).receive_depth as usize);
    for round in 0..6 {
        let receives = bench.receive(End::B, link.b, SINK, 8, burst)?;
        let mut work = Vec::new();
        for at in 0..burst {
            bench.set_word(End::A, LOCAL + 8 * at, (round * burst + at) as u64)?;
            let source = bench.one(End::A, LOCAL + 8 * at, 8);
            work.push(bench.work(WorkOp::Send { immediate: None }, source));
        }
        bench.post(End::A, link.a, &work)?;
        let received = bench.next(End::B, burst)?;
        for (at, (done, id)) in received.iter().zip(&receives).enumerate() {
            ensure!(
                done.is_success() && done.id == *id,
                "receive {at}: {done:?}"
            );
            let word = bench.word(End::B, SINK + 8 * at)?;
            let sent = (round * burst + at) as u64;
            ensure!(word == sent, "message {word} came where {sent} was next");
        }
        bench.next(End::A, burst)?;
    }
    bench.quiet()
}

fn messages_carry_their_immediate<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let link = bench.link()?;
    for immediate in [0, 1, u32::MAX] {
        let receive = bench.receive(End::B, link.b, SINK, 64, 1)?[0];
        let source = bench.one(End::A, LOCAL, 8);
        let immediate = Some(immediate);
        let send = bench.work(WorkOp::Send { immediate }, source);
        bench.post(End::A, link.a, &[send])?;
        let received = bench.wait(End::B, receive)?;
        ensure!(
            received.immediate == immediate,
            "{received:?} without {immediate:?}"
        );
        bench.wait(End::A, send.id)?;
    }
    Ok(())
}

fn both_directions_work_at_a_time<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let (link, to_b) = open(bench, 100_000)?;
    let to_a = bench.open(End::A, link, TARGET, 100_000, Rights::READ_WRITE)?;
    let from_a = bench.pattern(End::A, LOCAL, 100_000, 1)?;
    let from_b = bench.pattern(End::B, LOCAL, 100_000, 2)?;
    let mut last = Vec::new();
    for (end, grant) in [(End::A, to_b), (End::B, to_a)] {
        let local = bench.one(end, LOCAL, 100_000);
        let sink = bench.one(end, SINK, 100_000);
        let write = bench.work(write_op(grant.at(0)), local).signaled(false);
        let read = bench.work(
            WorkOp::Read {
                remote: grant.at(0),
            },
            sink,
        );
        bench.post(end, link.qp(end), &[write, read])?;
        last.push((end, read.id));
    }
    for (end, id) in last {
        let done = bench.wait(end, id)?;
        ensure!(done.is_success(), "side {end:?} ended as {:?}", done.status);
    }
    bench.holds(End::B, TARGET, &from_a, "writes by side A")?;
    bench.holds(End::A, TARGET, &from_b, "writes by side B")?;
    bench.holds(End::A, SINK, &from_a, "reads by side A")?;
    bench.holds(End::B, SINK, &from_b, "reads by side B")
}

fn invalidation_completes_behind_earlier_requests<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let link = bench.link()?;
    let to_a = bench.open(End::A, link, TARGET, 1 << 20, Rights::READ)?;
    let mine = bench.open(End::B, link, TARGET, 64, Rights::WRITE)?;
    let bytes = bench.pattern(End::A, TARGET, 1 << 20, 4)?;
    let sink = bench.one(End::B, SINK, 1 << 20);
    let read = bench
        .work(WorkOp::Read { remote: to_a.at(0) }, sink)
        .signaled(false);
    let end = bench.work(WorkOp::Invalidate { rkey: mine.rkey }, SgeList::EMPTY);
    let taken = bench.b.path.post_burst(link.b, &[read, end]);
    ensure!(taken == 2, "took {taken} of 2");
    let done = bench.wait(End::B, end.id)?;
    ensure!(
        done.is_success(),
        "the invalidation ended as {:?}",
        done.status
    );
    // Its success says that the read is done, too.
    bench.holds(End::B, SINK, &bytes, "a read before an invalidation")?;
    let window = bench.window_of(&mine)?;
    Ok(bench.b.device.dealloc_window(window)?)
}
