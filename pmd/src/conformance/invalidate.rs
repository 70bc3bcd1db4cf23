//! What an invalidation must refuse: a key that is not live on its queue pair. Some hosts do not stand it, so it is asked for by `Caps`.

use super::bench::{Bench, End};
use super::grants::{NOTHING, write_op};
use super::{Outcome, tests};
use crate::completion::WcStatus;
use crate::device::Device;
use crate::work::{Rights, SgeList, WorkOp};

tests! {
    invalidation_on_a_foreign_queue_pair_is_refused needs [InvalidateChecks],
    invalidation_of_an_old_key_is_refused needs [InvalidateChecks],
}

const LOCAL: usize = 0;
const TARGET: usize = 1 << 20;

fn invalidation_on_a_foreign_queue_pair_is_refused<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let owner = bench.link()?;
    let foreign = bench.link()?;
    let grant = bench.open(End::B, owner, TARGET, 64, Rights::WRITE)?;
    let end = bench.work(WorkOp::Invalidate { rkey: grant.rkey }, SgeList::EMPTY);
    bench.fail(End::B, foreign.b, end, WcStatus::MemoryWindowBind)?;
    let behind = bench.work(NOTHING, SgeList::EMPTY);
    bench.fail(End::B, foreign.b, behind, WcStatus::Flushed)?;
    // Its rightful holder does not notice.
    let local = bench.one(End::A, LOCAL, 8);
    let write = bench.work(write_op(grant.at(0)), local);
    bench.succeed(End::A, owner.a, write)?;
    bench.invalidate(End::B, owner, &grant)
}

fn invalidation_of_an_old_key_is_refused<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let link = bench.link()?;
    let window = bench.b.device.alloc_window(link.b)?;
    // A region of its own, so that its refusal to end tells whether the window is still bound.
    let (device, arena) = (&bench.b.device, &bench.b.arena);
    let access = crate::Access {
        remote: Rights::NONE,
        bind: true,
    };
    let region = device.register(bench.b.pd, arena, TARGET..TARGET + 4096, access)?;
    let bind = |tag| WorkOp::Bind {
        window: window.id,
        region: region.id,
        address: arena.address() + TARGET as u64,
        len: 64,
        rights: Rights::WRITE,
        rkey: window.rkey.with_tag(tag),
    };
    let old = WorkOp::Invalidate {
        rkey: window.rkey.with_tag(1),
    };
    for op in [bind(1), old, bind(2)] {
        let work = bench.work(op, SgeList::EMPTY);
        bench.succeed(End::B, link.b, work)?;
    }
    let again = bench.work(old, SgeList::EMPTY);
    bench.fail(End::B, link.b, again, WcStatus::MemoryWindowBind)?;
    let early = bench.b.device.deregister(region.id);
    super::ensure!(
        matches!(early, Err(crate::ControlError::InUse { .. })),
        "an old key's invalidation ended the new one: {early:?}"
    );
    bench.b.device.dealloc_window(window.id)?;
    Ok(bench.b.device.deregister(region.id)?)
}
