//! Binding: what must be refused, and that a chain stops where it fails.

use super::bench::{Bench, End, Link};
use super::grants::{NOTHING, write_op};
use super::{Failure, Outcome, ensure, tests};
use crate::completion::WcStatus;
use crate::device::{Access, DataPath, Device, QpConfig, Window};
use crate::ids::{RegionId, WindowId};
use crate::work::{Rights, SgeList, WorkOp, WorkRequest};

tests! {
    bind_on_a_foreign_queue_pair_is_refused needs [Windows],
    bind_outside_its_region_is_refused needs [Windows],
    bind_to_a_region_not_registered_for_it_is_refused needs [Windows],
    bind_of_an_unknown_region_is_refused needs [Windows],
    bind_of_an_unknown_window_is_refused needs [Windows],
    bind_of_no_bytes_is_refused needs [Windows],
    bind_of_a_bound_window_is_refused needs [Windows],
    bind_with_another_windows_key_is_refused needs [Windows],
    chain_of_binds_stops_at_a_failure needs [ChainStops],
    chain_of_invalidations_stops_at_a_failure needs [ChainStops],
    a_long_chain_of_local_requests_is_taken_and_done_in_order needs [Windows],
    window_may_be_bound_behind_its_invalidation needs [Windows],
    deregistration_is_refused_while_windows_are_bound needs [Windows],
}

const TARGET: usize = 1 << 20;
const BYTES: usize = 4096;

/// A region of [`BYTES`] at [`TARGET`] of side B, a link and a window.
struct Rig {
    link: Link,
    window: Window,
    region: RegionId,
    address: u64,
}

fn rig<D: Device>(bench: &mut Bench<D>) -> Result<Rig, Failure> {
    let link = bench.link()?;
    let side = &bench.b;
    let access = Access {
        remote: Rights::NONE,
        bind: true,
    };
    let range = TARGET..TARGET + BYTES;
    let region = side.device.register(side.pd, &side.arena, range, access)?;
    Ok(Rig {
        link,
        window: side.device.alloc_window(link.b)?,
        region: region.id,
        address: bench.address_of(End::B, TARGET),
    })
}

impl Rig {
    fn bind(&self) -> WorkOp {
        WorkOp::Bind {
            window: self.window.id,
            region: self.region,
            address: self.address,
            len: BYTES as u64,
            rights: Rights::READ_WRITE,
            rkey: self.window.rkey.with_tag(1),
        }
    }
}

/// The bind must end as `MemoryWindowBind` with its queue pair in error, and must have opened nothing.
fn bind_refused<D: Device>(bench: &mut Bench<D>, link: Link, op: WorkOp) -> Outcome {
    let work = bench.work(op, SgeList::EMPTY);
    bench.fail(End::B, link.b, work, WcStatus::MemoryWindowBind)?;
    let behind = bench.work(NOTHING, SgeList::EMPTY);
    bench.fail(End::B, link.b, behind, WcStatus::Flushed)
}

fn bind_on_a_foreign_queue_pair_is_refused<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let rig = rig(bench)?;
    let foreign = bench.link()?;
    bind_refused(bench, foreign, rig.bind())?;
    // Its own queue pair did not notice.
    let work = bench.work(rig.bind(), SgeList::EMPTY);
    bench.succeed(End::B, rig.link.b, work).map(|_| ())
}

fn bind_outside_its_region_is_refused<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let end = BYTES as u64;
    let outside = [
        (u64::MAX, 2),
        (1, end),
        (end, 1),
        (end - 1, 2),
        (0, u64::MAX),
    ];
    for (offset, bytes) in outside {
        let rig = rig(bench)?;
        let mut op = rig.bind();
        if let WorkOp::Bind { address, len, .. } = &mut op {
            *address = address.wrapping_add(offset);
            *len = bytes;
        }
        bind_refused(bench, rig.link, op)
            .map_err(|Failure(text)| Failure(format!("{bytes} bytes at {offset:#x}: {text}")))?;
    }
    Ok(())
}

fn bind_to_a_region_not_registered_for_it_is_refused<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let rig = rig(bench)?;
    let side = &bench.b;
    let access = Access {
        remote: Rights::NONE,
        bind: false,
    };
    let range = TARGET..TARGET + BYTES;
    let closed = side.device.register(side.pd, &side.arena, range, access)?;
    let mut op = rig.bind();
    if let WorkOp::Bind { region, .. } = &mut op {
        *region = closed.id;
    }
    bind_refused(bench, rig.link, op)
}

fn bind_of_an_unknown_region_is_refused<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let rig = rig(bench)?;
    bench.b.device.deregister(rig.region)?;
    bind_refused(bench, rig.link, rig.bind())
}

fn bind_of_an_unknown_window_is_refused<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let rig = rig(bench)?;
    let mut op = rig.bind();
    if let WorkOp::Bind { window, .. } = &mut op {
        *window = WindowId(u32::MAX);
    }
    bind_refused(bench, rig.link, op)
}

fn bind_of_no_bytes_is_refused<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let rig = rig(bench)?;
    let mut op = rig.bind();
    if let WorkOp::Bind { len, .. } = &mut op {
        *len = 0;
    }
    bind_refused(bench, rig.link, op)
}

fn bind_of_a_bound_window_is_refused<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let rig = rig(bench)?;
    let work = bench.work(rig.bind(), SgeList::EMPTY);
    bench.succeed(End::B, rig.link.b, work)?;
    let mut op = rig.bind();
    if let WorkOp::Bind { rkey, .. } = &mut op {
        *rkey = rkey.with_tag(2);
    }
    bind_refused(bench, rig.link, op)
}

fn bind_with_another_windows_key_is_refused<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let rig = rig(bench)?;
    let other = bench.b.device.alloc_window(rig.link.b)?;
    let mut op = rig.bind();
    if let WorkOp::Bind { rkey, .. } = &mut op {
        *rkey = other.rkey;
    }
    bind_refused(bench, rig.link, op)
}

/// Binds of `count` fresh windows to parts of the region, all unsignaled but the last.
fn chain<D: Device>(
    bench: &mut Bench<D>,
    rig: &Rig,
    count: u64,
) -> Result<Vec<(WorkRequest, Window)>, Failure> {
    let mut work = Vec::new();
    for at in 0..count {
        let fresh = bench.b.device.alloc_window(rig.link.b)?;
        let op = WorkOp::Bind {
            window: fresh.id,
            region: rig.region,
            address: rig.address + 16 * at,
            len: 16,
            rights: Rights::READ_WRITE,
            rkey: fresh.rkey.with_tag(1),
        };
        let request = bench.work(op, SgeList::EMPTY);
        work.push((request.signaled(at + 1 == count), fresh));
    }
    Ok(work)
}

/// The chain fails at `at`, unsignaled as that one is, and everything behind is flushed.
fn stops<D: Device>(bench: &mut Bench<D>, link: Link, work: &[WorkRequest], at: usize) -> Outcome {
    bench.post(End::B, link.b, work)?;
    let done = bench.next(End::B, work.len() - at)?;
    for (place, (request, done)) in work[at..].iter().zip(&done).enumerate() {
        let wanted = match place {
            0 => WcStatus::MemoryWindowBind,
            _ => WcStatus::Flushed,
        };
        ensure!(
            done.id == request.id && done.status == wanted,
            "{done:?} came where {wanted:?} of {:?} was next",
            request.id
        );
    }
    bench.quiet()
}

fn chain_of_binds_stops_at_a_failure<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let rig = rig(bench)?;
    let binds = chain(bench, &rig, 5)?;
    let mut work: Vec<_> = binds.iter().map(|(request, _)| *request).collect();
    if let WorkOp::Bind { len, .. } = &mut work[2].op {
        *len = 2 * BYTES as u64;
    }
    stops(bench, rig.link, &work, 2)?;
    // None behind the failure was bound: the region's end asks for the first two alone.
    for (_, window) in &binds[..2] {
        let early = bench.b.device.deregister(rig.region);
        ensure!(
            early.is_err(),
            "a region with bound windows was deregistered"
        );
        bench.b.device.dealloc_window(window.id)?;
    }
    Ok(bench.b.device.deregister(rig.region)?)
}

fn chain_of_invalidations_stops_at_a_failure<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let rig = rig(bench)?;
    let binds = chain(bench, &rig, 4)?;
    let work: Vec<_> = binds.iter().map(|(request, _)| *request).collect();
    bench.post(End::B, rig.link.b, &work)?;
    let done = bench.wait(End::B, work[3].id)?;
    ensure!(
        done.is_success(),
        "a chain of binds ended as {:?}",
        done.status
    );
    let mut ends = Vec::new();
    for (at, (_, window)) in binds.iter().enumerate() {
        let rkey = window.rkey.with_tag(1);
        let request = bench.work(WorkOp::Invalidate { rkey }, SgeList::EMPTY);
        ends.push(request.signaled(at == 3));
    }
    // A bind that cannot succeed stands for the failing member: a key must not be invalidated twice.
    let mut bad = rig.bind();
    if let WorkOp::Bind { len, .. } = &mut bad {
        *len = 2 * BYTES as u64;
    }
    ends.insert(2, bench.work(bad, SgeList::EMPTY).signaled(false));
    stops(bench, rig.link, &ends, 2)?;
    // The two before it are dead, the two behind it live on until their windows end.
    for (_, window) in &binds[2..] {
        let early = bench.b.device.deregister(rig.region);
        ensure!(early.is_err(), "a flushed invalidation ended its key");
        bench.b.device.dealloc_window(window.id)?;
    }
    Ok(bench.b.device.deregister(rig.region)?)
}

/// However little of it one call of the device does.
fn a_long_chain_of_local_requests_is_taken_and_done_in_order<D: Device>(
    bench: &mut Bench<D>,
) -> Outcome {
    let caps = bench.caps();
    let count = caps
        .max_windows
        .saturating_sub(1)
        .min(caps.max_send_depth / 2)
        .min(256);
    let config = QpConfig {
        send_depth: 2 * count,
        ..bench.config(End::B)
    };
    let mut rig = rig(bench)?;
    rig.link = bench.link_with(&QpConfig {
        pd: bench.a.pd,
        ..config
    })?;
    let binds = chain(bench, &rig, u64::from(count))?;
    let mut work: Vec<_> = binds.iter().map(|(bind, _)| bind.signaled(true)).collect();
    for (_, window) in &binds {
        let rkey = window.rkey.with_tag(1);
        work.push(bench.work(WorkOp::Invalidate { rkey }, SgeList::EMPTY));
    }
    let taken = bench.b.path.post_burst(rig.link.b, &work);
    ensure!(
        taken == work.len(),
        "a queue of {} took {taken} of {}",
        2 * count,
        work.len()
    );
    for (request, done) in work.iter().zip(bench.next(End::B, work.len())?) {
        ensure!(
            done.id == request.id && done.is_success(),
            "{done:?} came where the success of {:?} was next",
            request.id
        );
    }
    for (_, window) in &binds {
        bench.b.device.dealloc_window(window.id)?;
    }
    bench.quiet()
}

fn window_may_be_bound_behind_its_invalidation<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let rig = rig(bench)?;
    let first = rig.window.rkey.with_tag(1);
    let mut again = rig.bind();
    if let WorkOp::Bind { rkey, .. } = &mut again {
        *rkey = rkey.with_tag(2);
    }
    let ops = [rig.bind(), WorkOp::Invalidate { rkey: first }, again];
    let work = ops.map(|op| bench.work(op, SgeList::EMPTY));
    bench.post(End::B, rig.link.b, &work)?;
    for (request, done) in work.iter().zip(bench.next(End::B, 3)?) {
        ensure!(
            done.id == request.id && done.is_success(),
            "{:?}: {done:?}",
            request.op
        );
    }
    let remote = crate::Remote {
        address: rig.address,
        rkey: rig.window.rkey.with_tag(2),
    };
    let local = bench.one(End::A, 0, 8);
    let write = bench.work(write_op(remote), local);
    bench.succeed(End::A, rig.link.a, write)?;
    let old = crate::Remote {
        rkey: first,
        ..remote
    };
    let write = bench.work(write_op(old), local);
    bench.refused(End::A, rig.link, write)
}

fn deregistration_is_refused_while_windows_are_bound<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let rig = rig(bench)?;
    let work = bench.work(rig.bind(), SgeList::EMPTY);
    bench.succeed(End::B, rig.link.b, work)?;
    let early = bench.b.device.deregister(rig.region);
    ensure!(
        matches!(early, Err(crate::ControlError::InUse { .. })),
        "a region with a bound window was deregistered: {early:?}"
    );
    let rkey = rig.window.rkey.with_tag(1);
    let end = bench.work(WorkOp::Invalidate { rkey }, SgeList::EMPTY);
    bench.succeed(End::B, rig.link.b, end)?;
    Ok(bench.b.device.deregister(rig.region)?)
}
