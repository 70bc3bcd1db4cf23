//! What is gone: a call that ends an object says so when it is made again, so that one that came back late may be, and touches nothing that was made since.

use keyfence_mempool::sync::Arc;

use super::bench::{Bench, End};
use super::grants::write_op;
use super::{Failure, Outcome, ensure, tests};
use crate::device::{Access, DataPath, Device};
use crate::error::ControlError;
use crate::work::{Remote, Rights};

tests! {
    a_region_that_is_gone_is_no_such_region,
    a_window_that_is_gone_is_no_such_window needs [Windows],
    a_domain_that_is_gone_is_no_such_domain,
    a_queue_pair_that_is_gone_is_no_such_queue_pair,
}

const LOCAL: usize = 0;
const TARGET: usize = 1 << 20;

const OPEN: Access = Access {
    remote: Rights::READ_WRITE,
    bind: false,
};

fn says(what: &str, said: Result<(), ControlError>, error: &ControlError) -> Outcome {
    ensure!(said.as_ref() == Err(error), "{what}: {said:?}, not {error}");
    Ok(())
}

fn a_region_that_is_gone_is_no_such_region<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let link = bench.link()?;
    let arena = Arc::clone(&bench.b.arena);
    let (device, pd) = (&bench.b.device, bench.b.pd);
    let made = || device.register(pd, &arena, TARGET..TARGET + 64, OPEN);
    let gone = made()?.id;
    device.deregister(gone)?;
    let region = made()?;
    ensure!(region.id != gone, "{gone} is given out at once again");
    for _ in 0..2 {
        says(
            "deregister of what is gone",
            device.deregister(gone),
            &ControlError::NoSuchRegion(gone),
        )?;
    }
    let remote = Remote {
        address: bench.address_of(End::B, TARGET),
        rkey: region.rkey,
    };
    let local = bench.one(End::A, LOCAL, 8);
    let work = bench.work(write_op(remote), local);
    bench.succeed(End::A, link.a, work)?;
    Ok(bench.b.device.deregister(region.id)?)
}

fn a_window_that_is_gone_is_no_such_window<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let link = bench.link()?;
    let device = &bench.b.device;
    let gone = device.alloc_window(link.b)?.id;
    device.dealloc_window(gone)?;
    let window = device.alloc_window(link.b)?.id;
    ensure!(window != gone, "{gone} is given out at once again");
    for _ in 0..2 {
        says(
            "dealloc_window of what is gone",
            device.dealloc_window(gone),
            &ControlError::NoSuchWindow(gone),
        )?;
    }
    Ok(device.dealloc_window(window)?)
}

fn a_domain_that_is_gone_is_no_such_domain<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let arena = Arc::clone(&bench.b.arena);
    let device = &bench.b.device;
    let gone = device.alloc_pd()?;
    device.dealloc_pd(gone)?;
    let pd = device.alloc_pd()?;
    ensure!(pd != gone, "{gone} is given out at once again");
    let region = device.register(pd, &arena, TARGET..TARGET + 64, OPEN)?;
    for _ in 0..2 {
        says(
            "dealloc_pd of what is gone",
            device.dealloc_pd(gone),
            &ControlError::NoSuchPd(gone),
        )?;
    }
    // It is not gone because it was asked for: what stands in it stands.
    let refused = device.dealloc_pd(pd);
    ensure!(
        matches!(refused, Err(ControlError::InUse { .. })),
        "dealloc_pd with a region in it: {refused:?}"
    );
    device.deregister(region.id)?;
    Ok(device.dealloc_pd(pd)?)
}

fn a_queue_pair_that_is_gone_is_no_such_queue_pair<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let config = bench.config(End::B);
    let made = |bench: &mut Bench<D>| -> Result<_, Failure> {
        let side = bench.side(End::B);
        Ok(side.device.create_qp(&config)?)
    };
    let gone = made(bench)?;
    bench.b.path.release_qp(gone);
    bench.b.device.destroy_qp(gone)?;
    let qp = made(bench)?;
    ensure!(qp != gone, "{gone} is given out at once again");
    for _ in 0..2 {
        let error = ControlError::NoSuchQp(gone);
        let device = &bench.b.device;
        says(
            "destroy_qp of what is gone",
            device.destroy_qp(gone),
            &error,
        )?;
        says("error_qp of what is gone", device.error_qp(gone), &error)?;
    }
    let side = bench.side(End::B);
    side.path.release_qp(qp);
    Ok(side.device.destroy_qp(qp)?)
}
