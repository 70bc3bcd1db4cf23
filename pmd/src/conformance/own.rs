//! Rule 7 at an operation's own side: from when on its source is read no more, and its sink written no more. That is from its completion
//! on, whatever the status; from the success of a later request of its queue; or from the return of its queue pair's destruction.

use super::bench::{Bench, End, Link};
use super::grants::NOTHING;
use super::proof::{
    LEN, MARK, SINK, TARGET, is_read_no_more, start_read, start_write, until_some_landed,
};
use super::{Outcome, ensure, tests};
use crate::completion::WcStatus;
use crate::device::{DataPath, Device};
use crate::work::{Rights, SgeList, WorkOp};

tests! {
    r1_destruction_ends_own_reads,
    r1_destruction_ends_own_writes,
    r1_destruction_ends_own_messages,
    r1_destruction_ends_own_atomics needs [Atomics],
    r1_a_flushed_read_writes_its_sink_no_more,
    r1_a_flushed_write_reads_its_source_no_more,
    r1_a_later_success_ends_own_reads,
}

fn destroy<D: Device>(bench: &mut Bench<D>, link: Link) -> Outcome {
    bench.a.path.release_qp(link.a);
    Ok(bench.a.device.destroy_qp(link.a)?)
}

/// The sink is given to somebody else, and nobody but that one may change it.
fn is_written_no_more<D: Device>(bench: &mut Bench<D>, what: &str) -> Outcome {
    bench.fill(End::A, SINK, LEN, MARK)?;
    bench.settle();
    bench.all_are(End::A, SINK, LEN, MARK, what)
}

/// The source is given to somebody else, whose bytes must not get to the peer.
fn source_is_read_no_more<D: Device>(bench: &mut Bench<D>, after: &str) -> Outcome {
    is_read_no_more(bench, (End::A, 0), (End::B, TARGET), after)
}

fn r1_destruction_ends_own_reads<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let link = bench.link()?;
    let grant = bench.open(End::B, link, TARGET, LEN, Rights::READ)?;
    start_read(bench, link, &grant)?;
    destroy(bench, link)?;
    is_written_no_more(bench, "the sink of a destroyed queue pair's read")
}

fn r1_destruction_ends_own_writes<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let link = bench.link()?;
    let grant = bench.open(End::B, link, TARGET, LEN, Rights::WRITE)?;
    start_write(bench, link, &grant)?;
    destroy(bench, link)?;
    source_is_read_no_more(bench, "the destruction of its queue pair")
}

fn r1_destruction_ends_own_messages<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let link = bench.link()?;
    bench.pattern(End::A, 0, LEN, 1)?;
    bench.fill(End::B, TARGET, LEN, 0)?;
    bench.receive(End::B, link.b, TARGET, LEN, 1)?;
    let source = bench.one(End::A, 0, LEN);
    let send = bench.work(WorkOp::Send { immediate: None }, source);
    bench.post(End::A, link.a, &[send])?;
    until_some_landed(bench, End::B, TARGET)?;
    destroy(bench, link)?;
    source_is_read_no_more(bench, "the destruction of its queue pair")
}

fn r1_destruction_ends_own_atomics<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let link = bench.link()?;
    let rights = Rights {
        atomic: true,
        ..Rights::NONE
    };
    let grant = bench.open(End::B, link, TARGET, 8, rights)?;
    let mut work = Vec::new();
    for at in 0..8 {
        let sink = bench.one(End::A, SINK + 8 * at, 8);
        let remote = grant.at(0);
        work.push(bench.work(WorkOp::FetchAdd { remote, add: 1 }, sink));
    }
    bench.post(End::A, link.a, &work)?;
    // Their answers are on the way, and nobody has taken them.
    bench.b.poll();
    destroy(bench, link)?;
    is_written_no_more(bench, "the sinks of a destroyed queue pair's atomics")
}

fn r1_a_flushed_read_writes_its_sink_no_more<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let link = bench.link()?;
    let grant = bench.open(End::B, link, TARGET, LEN, Rights::READ)?;
    let read = start_read(bench, link, &grant)?;
    bench.a.device.error_qp(link.a)?;
    let done = bench.wait(End::A, read)?;
    let ended = matches!(done.status, WcStatus::Flushed | WcStatus::Success);
    ensure!(ended, "a read in error ended as {:?}", done.status);
    is_written_no_more(bench, "the sink of a flushed read")
}

fn r1_a_flushed_write_reads_its_source_no_more<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let link = bench.link()?;
    let grant = bench.open(End::B, link, TARGET, LEN, Rights::WRITE)?;
    let write = start_write(bench, link, &grant)?;
    bench.a.device.error_qp(link.a)?;
    let done = bench.wait(End::A, write)?;
    let ended = matches!(done.status, WcStatus::Flushed | WcStatus::Success);
    ensure!(ended, "a write in error ended as {:?}", done.status);
    source_is_read_no_more(bench, "its completion as flushed")
}

fn r1_a_later_success_ends_own_reads<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let link = bench.link()?;
    let grant = bench.open(End::B, link, TARGET, LEN, Rights::READ)?;
    let bytes = bench.pattern(End::B, TARGET, LEN, 1)?;
    bench.fill(End::A, SINK, LEN, 0)?;
    let sink = bench.one(End::A, SINK, LEN);
    let remote = grant.at(0);
    let read = bench.work(WorkOp::Read { remote }, sink).signaled(false);
    let later = bench.work(NOTHING, SgeList::EMPTY);
    bench.post(End::A, link.a, &[read, later])?;
    let done = bench.wait(End::A, later.id)?;
    ensure!(done.is_success(), "a write of nothing ended as {done:?}");
    bench.holds(End::A, SINK, &bytes, "a read before a later success")?;
    is_written_no_more(bench, "the sink of a read before a later success")
}
