//! Rules 3 to 5: what an error does to a queue pair, and what it leaves alone.

use super::bench::{Bench, End};
use super::grants::{NOTHING, write_op};
use super::{Outcome, ensure, tests};
use crate::completion::WcStatus;
use crate::device::{DataPath, Device};
use crate::ids::Rkey;
use crate::work::{Remote, Rights, SgeList, WorkOp};

tests! {
    error_flushes_what_is_posted,
    error_flushes_receives_in_order,
    posts_to_a_queue_pair_in_error_are_taken_and_flushed,
    error_is_idempotent,
    unsignaled_failures_are_reported,
    first_failure_says_why_and_the_rest_is_flushed,
    refusal_flushes_what_the_responder_had_posted,
    error_leaves_the_peer_alone,
    the_peers_next_request_ends_as_retry_exceeded,
    keys_stay_live_on_the_side_not_in_error needs [Windows],
    flushed_invalidation_ends_no_key needs [Windows],
    success_before_an_error_is_kept,
}

const TARGET: usize = 1 << 20;
const SINK: usize = 2 << 20;

/// A place that no key opens.
fn nowhere<D: Device>(bench: &Bench<D>) -> Remote {
    Remote {
        address: bench.address_of(End::B, TARGET),
        rkey: Rkey::new(0xff_fffe, 0x5a),
    }
}

fn error_flushes_what_is_posted<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let link = bench.link()?;
    // Nobody receives them, so they are still posted.
    let source = bench.one(End::A, 0, 8);
    let send = WorkOp::Send { immediate: None };
    let work = [0, 1, 2, 3].map(|at| bench.work(send, source).signaled(at % 2 == 0));
    bench.post(End::A, link.a, &work)?;
    bench.step();
    bench.a.device.error_qp(link.a)?;
    for (request, done) in work.iter().zip(bench.next(End::A, 4)?) {
        ensure!(
            done.id == request.id,
            "{done:?} came where {:?} was next",
            request.id
        );
        ensure!(
            done.status == WcStatus::Flushed,
            "flushed as {:?}",
            done.status
        );
    }
    Ok(())
}

fn error_flushes_receives_in_order<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let link = bench.link()?;
    let receives = bench.receive(End::A, link.a, SINK, 64, 3)?;
    bench.a.device.error_qp(link.a)?;
    for (id, done) in receives.iter().zip(bench.next(End::A, 3)?) {
        ensure!(done.id == *id, "{done:?} came where {id:?} was next");
        ensure!(
            done.status == WcStatus::Flushed,
            "flushed as {:?}",
            done.status
        );
    }
    // Also those that are posted later.
    let late = bench.receive(End::A, link.a, SINK, 64, 1)?[0];
    let done = bench.wait(End::A, late)?;
    ensure!(
        done.status == WcStatus::Flushed,
        "flushed as {:?}",
        done.status
    );
    Ok(())
}

fn posts_to_a_queue_pair_in_error_are_taken_and_flushed<D: Device>(
    bench: &mut Bench<D>,
) -> Outcome {
    let link = bench.link()?;
    let to_b = bench.open(End::B, link, TARGET, 64, Rights::READ_WRITE)?;
    bench.fill(End::B, TARGET, 64, 0)?;
    bench.a.device.error_qp(link.a)?;
    bench.fill(End::A, 0, 64, 1)?;
    let local = bench.one(End::A, 0, 64);
    let ops = [
        (write_op(to_b.at(0)), local),
        (WorkOp::Send { immediate: None }, local),
        (WorkOp::Read { remote: to_b.at(0) }, local),
        (NOTHING, SgeList::EMPTY),
    ];
    let work = ops.map(|(op, sges)| bench.work(op, sges).signaled(false));
    let taken = bench.a.path.post_burst(link.a, &work);
    ensure!(taken == work.len(), "took {taken} of {}", work.len());
    for (request, done) in work.iter().zip(bench.next(End::A, work.len())?) {
        ensure!(
            done.id == request.id,
            "{done:?} came where {:?} was next",
            request.id
        );
        ensure!(
            done.status == WcStatus::Flushed,
            "{:?} ended as {:?}",
            request.op,
            done.status
        );
    }
    bench.settle();
    bench.all_are(End::B, TARGET, 64, 0, "a write on a queue pair in error")
}

fn error_is_idempotent<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let link = bench.link()?;
    bench.receive(End::A, link.a, SINK, 64, 1)?;
    bench.a.device.error_qp(link.a)?;
    bench.a.device.error_qp(link.a)?;
    let done = bench.next(End::A, 1)?;
    ensure!(
        done[0].status == WcStatus::Flushed,
        "flushed as {:?}",
        done[0].status
    );
    bench.a.device.error_qp(link.a)?;
    bench.quiet()
}

fn unsignaled_failures_are_reported<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let link = bench.link()?;
    let local = bench.one(End::A, 0, 64);
    let bad = bench.work(write_op(nowhere(bench)), local).signaled(false);
    let behind = bench.work(NOTHING, SgeList::EMPTY).signaled(false);
    bench.post(End::A, link.a, &[bad, behind])?;
    let done = bench.wait(End::A, bad.id)?;
    ensure!(
        done.status == WcStatus::RemoteAccess,
        "ended as {:?}",
        done.status
    );
    let done = bench.wait(End::A, behind.id)?;
    ensure!(
        done.status == WcStatus::Flushed,
        "behind it: {:?}",
        done.status
    );
    Ok(())
}

fn first_failure_says_why_and_the_rest_is_flushed<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let link = bench.link()?;
    let good = bench.open(End::B, link, TARGET, 64, Rights::READ_WRITE)?;
    let local = bench.one(End::A, 0, 8);
    let read = WorkOp::Read {
        remote: nowhere(bench),
    };
    let ops = [
        write_op(good.at(0)),
        read,
        read,
        write_op(good.at(8)),
        NOTHING,
    ];
    let sges = [local, local, local, local, SgeList::EMPTY];
    let mut work = Vec::new();
    for (op, sges) in ops.into_iter().zip(sges) {
        work.push(bench.work(op, sges));
    }
    bench.fill(End::A, 0, 8, 1)?;
    bench.fill(End::B, TARGET, 64, 0)?;
    bench.post(End::A, link.a, &work)?;
    let done = bench.next(End::A, work.len())?;
    use WcStatus::{Flushed, RemoteAccess, Success};
    let wanted = [Success, RemoteAccess, Flushed, Flushed, Flushed];
    for ((request, done), wanted) in work.iter().zip(done).zip(wanted) {
        ensure!(
            done.id == request.id,
            "{done:?} came where {:?} was next",
            request.id
        );
        ensure!(
            done.status == wanted,
            "{:?} ended as {:?}, not {wanted:?}",
            request.op,
            done.status
        );
    }
    bench.all_are(End::B, TARGET + 8, 8, 0, "a write behind a failure")
}

fn refusal_flushes_what_the_responder_had_posted<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let link = bench.link()?;
    let receives = bench.receive(End::B, link.b, SINK, 64, 2)?;
    // Nobody receives it, so it is still posted when its queue pair breaks.
    let source = bench.one(End::B, 0, 8);
    let send = bench.work(WorkOp::Send { immediate: None }, source);
    bench.post(End::B, link.b, &[send])?;
    bench.step();
    let local = bench.one(End::A, 0, 64);
    let bad = bench.work(write_op(nowhere(bench)), local);
    bench.refused(End::A, link, bad)?;
    for id in [receives[0], receives[1], send.id] {
        let done = bench.wait(End::B, id)?;
        ensure!(
            done.status == WcStatus::Flushed,
            "the responder's {id:?} ended as {:?}",
            done.status
        );
    }
    bench.quiet()
}

fn error_leaves_the_peer_alone<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let link = bench.link()?;
    bench.receive(End::B, link.b, SINK, 64, 2)?;
    bench.a.device.error_qp(link.a)?;
    bench.quiet()
}

fn the_peers_next_request_ends_as_retry_exceeded<D: Device>(bench: &mut Bench<D>) -> Outcome {
    for destroyed in [false, true] {
        let link = bench.link()?;
        match destroyed {
            false => bench.a.device.error_qp(link.a)?,
            true => {
                bench.a.path.release_qp(link.a);
                bench.a.device.destroy_qp(link.a)?;
            }
        }
        bench.settle();
        let source = bench.one(End::B, 0, 8);
        let send = bench.work(WorkOp::Send { immediate: None }, source);
        bench.fail(End::B, link.b, send, WcStatus::RetryExceeded)?;
        let behind = bench.work(NOTHING, SgeList::EMPTY);
        bench.fail(End::B, link.b, behind, WcStatus::Flushed)?;
    }
    Ok(())
}

fn keys_stay_live_on_the_side_not_in_error<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let link = bench.link()?;
    let grant = bench.open(End::B, link, TARGET, 64, Rights::READ_WRITE)?;
    bench.a.device.error_qp(link.a)?;
    bench.settle();
    // Through the dead peer nobody can use the key any more; that its own side still can end it says that it lives.
    bench.invalidate(End::B, link, &grant)?;
    bench
        .open(End::B, link, TARGET, 64, Rights::READ_WRITE)
        .map(|_| ())
}

fn flushed_invalidation_ends_no_key<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let link = bench.link()?;
    let side = &bench.b;
    let access = crate::Access {
        remote: Rights::NONE,
        bind: true,
    };
    // A region of its own, so that its refusal to end tells whether the window is still bound.
    let region = side
        .device
        .register(side.pd, &side.arena, TARGET..TARGET + 4096, access)?;
    let window = side.device.alloc_window(link.b)?;
    let rkey = window.rkey.with_tag(9);
    let op = WorkOp::Bind {
        window: window.id,
        region: region.id,
        address: bench.address_of(End::B, TARGET),
        len: 64,
        rights: Rights::READ_WRITE,
        rkey,
    };
    let bind = bench.work(op, SgeList::EMPTY);
    bench.succeed(End::B, link.b, bind)?;
    bench.b.device.error_qp(link.b)?;
    let end = bench.work(WorkOp::Invalidate { rkey }, SgeList::EMPTY);
    bench.fail(End::B, link.b, end, WcStatus::Flushed)?;
    let early = bench.b.device.deregister(region.id);
    ensure!(
        matches!(early, Err(crate::ControlError::InUse { .. })),
        "after a flushed invalidation the region could be ended: {early:?}"
    );
    bench.b.device.dealloc_window(window.id)?;
    Ok(bench.b.device.deregister(region.id)?)
}

fn success_before_an_error_is_kept<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let link = bench.link()?;
    let receive = bench.receive(End::B, link.b, SINK, 64, 1)?[0];
    let source = bench.one(End::A, 0, 8);
    let send = bench.work(WorkOp::Send { immediate: None }, source);
    bench.succeed(End::A, link.a, send)?;
    // Acknowledged, so it was executed: the receive has succeeded, whatever comes now.
    bench.b.device.error_qp(link.b)?;
    let received = bench.wait(End::B, receive)?;
    ensure!(
        received.is_success(),
        "an acknowledged message's receive ended as {:?}",
        received.status
    );
    Ok(())
}
