//! Protection domains: nothing of one domain works through a queue pair of another.

use super::bench::{Bench, End};
use super::grants::{NOTHING, write_op};
use super::{Failure, Outcome, ensure, tests};
use crate::completion::WcStatus;
use crate::device::{Access, Device, Region};
use crate::work::{Remote, Rights, Sge, SgeList, WorkOp};

tests! {
    r12_local_key_of_another_domain_is_refused,
    r12_region_key_of_another_domain_is_refused,
    r12_bind_to_a_region_of_another_domain_is_refused needs [Windows],
}

const LOCAL: usize = 0;
const TARGET: usize = 1 << 20;
const BYTES: usize = 4096;

/// A region in a domain of its own, over bytes that the side's own domain has too.
fn foreign<D: Device>(
    bench: &mut Bench<D>,
    end: End,
    offset: usize,
    access: Access,
) -> Result<Region, Failure> {
    let side = bench.side(end);
    let pd = side.device.alloc_pd()?;
    let range = offset..offset + BYTES;
    Ok(side.device.register(pd, &side.arena, range, access)?)
}

fn r12_local_key_of_another_domain_is_refused<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let region = foreign(bench, End::A, LOCAL, Access::default())?;
    for read in [false, true] {
        let link = bench.link()?;
        let grant = bench.open(End::B, link, TARGET, 64, Rights::READ_WRITE)?;
        bench.fill(End::B, TARGET, 64, 0)?;
        bench.fill(End::A, LOCAL, 64, 0x55)?;
        let sge = Sge {
            lkey: region.lkey.0,
            ..bench.sge(End::A, LOCAL, 8)
        };
        let op = match read {
            true => WorkOp::Read {
                remote: grant.at(0),
            },
            false => write_op(grant.at(0)),
        };
        let work = bench.work(op, SgeList::one(sge));
        bench.fail(End::A, link.a, work, WcStatus::LocalProtection)?;
        let behind = bench.work(NOTHING, SgeList::EMPTY);
        bench.fail(End::A, link.a, behind, WcStatus::Flushed)?;
        bench.all_are(End::B, TARGET, 64, 0, "a write from another domain")?;
        bench.all_are(End::A, LOCAL, 64, 0x55, "a read into another domain")?;
    }
    Ok(())
}

fn r12_region_key_of_another_domain_is_refused<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let access = Access {
        remote: Rights::READ_WRITE,
        bind: false,
    };
    let region = foreign(bench, End::B, TARGET, access)?;
    let remote = Remote {
        address: bench.address_of(End::B, TARGET),
        rkey: region.rkey,
    };
    for op in [write_op(remote), WorkOp::Read { remote }] {
        let link = bench.link()?;
        bench.fill(End::B, TARGET, 64, 0)?;
        bench.fill(End::A, LOCAL, 64, 0x55)?;
        let local = bench.one(End::A, LOCAL, 8);
        let work = bench.work(op, local);
        bench.refused(End::A, link, work)?;
        bench.all_are(End::B, TARGET, 64, 0, "a write into another domain")?;
        bench.all_are(End::A, LOCAL, 64, 0x55, "a read from another domain")?;
    }
    Ok(())
}

fn r12_bind_to_a_region_of_another_domain_is_refused<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let access = Access {
        remote: Rights::NONE,
        bind: true,
    };
    let region = foreign(bench, End::B, TARGET, access)?;
    let link = bench.link()?;
    let window = bench.b.device.alloc_window(link.b)?;
    let op = WorkOp::Bind {
        window: window.id,
        region: region.id,
        address: bench.address_of(End::B, TARGET),
        len: 64,
        rights: Rights::READ_WRITE,
        rkey: window.rkey.with_tag(1),
    };
    let bind = bench.work(op, SgeList::EMPTY);
    bench.fail(End::B, link.b, bind, WcStatus::MemoryWindowBind)?;
    let behind = bench.work(NOTHING, SgeList::EMPTY);
    bench.fail(End::B, link.b, behind, WcStatus::Flushed)?;
    // Nothing is bound to it.
    let ended = bench.b.device.deregister(region.id);
    ensure!(ended.is_ok(), "after a refused bind: {ended:?}");
    Ok(())
}
