//! Rule 7: each proof of a key's end holds with a large access in flight. Not a byte moves after it.

use super::bench::{Bench, End, Grant, Link};
use super::grants::write_op;
use super::{Failure, Outcome, ensure, tests};
use crate::completion::WcStatus;
use crate::device::{DataPath, Device};
use crate::ids::WorkId;
use crate::work::{Rights, SgeList, WorkOp};

tests! {
    r1_nothing_lands_after_an_invalidation needs [Windows],
    r1_nothing_is_read_after_an_invalidation needs [Windows],
    r1_nothing_is_read_after_a_deallocation needs [DeallocFences],
    r1_nothing_is_read_after_a_deregistration,
    r1_nothing_is_read_after_the_owners_destruction,
    r1_nothing_lands_after_a_deallocation needs [DeallocFences],
    r1_nothing_lands_after_a_deallocation_on_a_queue_pair_in_error needs [Windows],
    r1_nothing_lands_after_a_deregistration,
    r1_nothing_lands_after_the_owners_destruction,
    r1_nothing_lands_in_receives_of_a_destroyed_queue_pair,
}

pub(super) const TARGET: usize = 1 << 20;
pub(super) const SINK: usize = 2 << 20;
pub(super) const LEN: usize = 1 << 20;
pub(super) const MARK: u8 = 0xee;

/// Starts a write of a mebibyte into the grant and polls until some of it has landed, where the device lets that be seen.
pub(super) fn start_write<D: Device>(
    bench: &mut Bench<D>,
    link: Link,
    grant: &Grant,
) -> Result<WorkId, Failure> {
    bench.pattern(End::A, 0, LEN, 1)?;
    bench.fill(End::B, TARGET, LEN, 0)?;
    let source = bench.one(End::A, 0, LEN);
    let write = bench.work(write_op(grant.at(0)), source);
    bench.post(End::A, link.a, &[write])?;
    until_some_landed(bench, End::B, TARGET)?;
    Ok(write.id)
}

/// The same for a read of a mebibyte out of the grant.
pub(super) fn start_read<D: Device>(
    bench: &mut Bench<D>,
    link: Link,
    grant: &Grant,
) -> Result<WorkId, Failure> {
    bench.pattern(End::B, TARGET, LEN, 1)?;
    bench.fill(End::A, SINK, LEN, 0)?;
    let (remote, sink) = (grant.at(0), bench.one(End::A, SINK, LEN));
    let read = bench.work(WorkOp::Read { remote }, sink);
    bench.post(End::A, link.a, &[read])?;
    until_some_landed(bench, End::A, SINK)?;
    Ok(read.id)
}

pub(super) fn until_some_landed<D: Device>(
    bench: &mut Bench<D>,
    end: End,
    offset: usize,
) -> Outcome {
    for _ in 0..64 {
        bench.step();
        let landed = landed(bench, end, offset)?;
        if landed > 0 {
            bench.set_note(format!("{landed} of {LEN} bytes had landed"));
            break;
        }
    }
    Ok(())
}

fn landed<D: Device>(bench: &Bench<D>, end: End, offset: usize) -> Result<usize, Failure> {
    let bytes = bench.bytes(end, offset, LEN)?;
    Ok(bytes.iter().filter(|byte| **byte != 0).count())
}

/// The memory `from` is given to somebody else, whose bytes must not get to `to`. No pattern has the byte that marks them.
pub(super) fn is_read_no_more<D: Device>(
    bench: &mut Bench<D>,
    from: (End, usize),
    to: (End, usize),
    after: &str,
) -> Outcome {
    bench.fill(from.0, from.1, LEN, MARK)?;
    bench.settle();
    let bytes = bench.bytes(to.0, to.1, LEN)?;
    let late = bytes.iter().filter(|byte| **byte == MARK).count();
    ensure!(late == 0, "{late} bytes were read after {after}");
    Ok(())
}

/// The same for the target of a read by side A.
fn nothing_is_read<D: Device>(bench: &mut Bench<D>, after: &str) -> Outcome {
    is_read_no_more(bench, (End::B, TARGET), (End::A, SINK), after)
}

/// The memory is given to someone else, and nobody but that one may change it.
fn nothing_lands<D: Device>(bench: &mut Bench<D>, after: &str) -> Outcome {
    bench.fill(End::B, TARGET, LEN, MARK)?;
    bench.settle();
    bench.all_are(End::B, TARGET, LEN, MARK, after)
}

/// The write itself was refused, unless all of it had been done before.
fn write_ends<D: Device>(
    bench: &mut Bench<D>,
    link: Link,
    write: WorkId,
    allowed: &[WcStatus],
) -> Outcome {
    let done = bench.wait(End::A, write)?;
    ensure!(
        done.qp == link.a && (done.is_success() || allowed.contains(&done.status)),
        "a write whose key died under it ended as {:?}",
        done.status
    );
    Ok(())
}

fn r1_nothing_lands_after_an_invalidation<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let link = bench.link()?;
    let grant = bench.open(End::B, link, TARGET, LEN, Rights::WRITE)?;
    let write = start_write(bench, link, &grant)?;
    bench.invalidate(End::B, link, &grant)?;
    nothing_lands(bench, "a write after the key's invalidation")?;
    write_ends(bench, link, write, &[WcStatus::RemoteAccess])
}

fn r1_nothing_is_read_after_an_invalidation<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let link = bench.link()?;
    let grant = bench.open(End::B, link, TARGET, LEN, Rights::READ)?;
    start_read(bench, link, &grant)?;
    bench.invalidate(End::B, link, &grant)?;
    nothing_is_read(bench, "the key's invalidation")
}

fn r1_nothing_is_read_after_a_deallocation<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let link = bench.link()?;
    let grant = bench.open(End::B, link, TARGET, LEN, Rights::READ)?;
    start_read(bench, link, &grant)?;
    let window = bench.window_of(&grant)?;
    bench.b.device.dealloc_window(window)?;
    nothing_is_read(bench, "its window's deallocation")
}

fn r1_nothing_is_read_after_a_deregistration<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let link = bench.link()?;
    let (grant, region) = bench.open_region(End::B, TARGET, LEN, Rights::READ)?;
    start_read(bench, link, &grant)?;
    bench.b.device.deregister(region)?;
    nothing_is_read(bench, "its region's deregistration")
}

fn r1_nothing_is_read_after_the_owners_destruction<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let link = bench.link()?;
    let grant = bench.open(End::B, link, TARGET, LEN, Rights::READ)?;
    start_read(bench, link, &grant)?;
    bench.b.path.release_qp(link.b);
    bench.b.device.destroy_qp(link.b)?;
    nothing_is_read(bench, "the destruction of its queue pair")
}

fn r1_nothing_lands_after_a_deallocation<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let link = bench.link()?;
    let grant = bench.open(End::B, link, TARGET, LEN, Rights::WRITE)?;
    let write = start_write(bench, link, &grant)?;
    let window = bench.window_of(&grant)?;
    bench.b.device.dealloc_window(window)?;
    nothing_lands(bench, "a write after its window's deallocation")?;
    write_ends(bench, link, write, &[WcStatus::RemoteAccess])
}

fn r1_nothing_lands_after_a_deallocation_on_a_queue_pair_in_error<D: Device>(
    bench: &mut Bench<D>,
) -> Outcome {
    let link = bench.link()?;
    let grant = bench.open(End::B, link, TARGET, LEN, Rights::WRITE)?;
    let write = start_write(bench, link, &grant)?;
    bench.b.device.error_qp(link.b)?;
    // On the sick queue pair the invalidation is but flushed.
    let work = bench.work(WorkOp::Invalidate { rkey: grant.rkey }, SgeList::EMPTY);
    bench.fail(End::B, link.b, work, WcStatus::Flushed)?;
    let window = bench.window_of(&grant)?;
    bench.b.device.dealloc_window(window)?;
    nothing_lands(
        bench,
        "a write after a sick queue pair's window's deallocation",
    )?;
    write_ends(
        bench,
        link,
        write,
        &[WcStatus::RetryExceeded, WcStatus::RemoteAccess],
    )
}

fn r1_nothing_lands_after_a_deregistration<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let link = bench.link()?;
    let (grant, region) = bench.open_region(End::B, TARGET, LEN, Rights::WRITE)?;
    let write = start_write(bench, link, &grant)?;
    bench.b.device.deregister(region)?;
    nothing_lands(bench, "a write after its region's deregistration")?;
    write_ends(bench, link, write, &[WcStatus::RemoteAccess])
}

fn r1_nothing_lands_after_the_owners_destruction<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let link = bench.link()?;
    let grant = bench.open(End::B, link, TARGET, LEN, Rights::WRITE)?;
    let write = start_write(bench, link, &grant)?;
    bench.b.path.release_qp(link.b);
    bench.b.device.destroy_qp(link.b)?;
    nothing_lands(bench, "a write after the destruction of its queue pair")?;
    write_ends(bench, link, write, &[WcStatus::RetryExceeded])
}

fn r1_nothing_lands_in_receives_of_a_destroyed_queue_pair<D: Device>(
    bench: &mut Bench<D>,
) -> Outcome {
    let link = bench.link()?;
    bench.pattern(End::A, 0, LEN, 1)?;
    bench.fill(End::B, TARGET, LEN, 0)?;
    bench.receive(End::B, link.b, TARGET, LEN, 1)?;
    let source = bench.one(End::A, 0, LEN);
    let send = bench.work(WorkOp::Send { immediate: None }, source);
    bench.post(End::A, link.a, &[send])?;
    until_some_landed(bench, End::B, TARGET)?;
    bench.b.path.release_qp(link.b);
    bench.b.device.destroy_qp(link.b)?;
    nothing_lands(bench, "a message after the destruction of its queue pair")
}
