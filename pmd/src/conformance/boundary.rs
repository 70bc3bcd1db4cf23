//! The ends of a queue pair and of its queues: prefixes, release, destruction.

use super::bench::{Bench, End, Link};
use super::grants::{NOTHING, write_op};
use super::{Failure, Outcome, ensure, tests};
use crate::completion::{Completion, WcStatus};
use crate::device::{DataPath, Device, QpConfig};
use crate::error::ControlError;
use crate::ids::{QpId, WorkId};
use crate::work::{ReceiveRequest, Rights, SgeList, WorkOp};

tests! {
    a_full_queue_takes_a_prefix,
    a_full_queue_in_error_takes_a_prefix,
    a_full_receive_queue_takes_a_prefix,
    a_polled_completion_frees_the_slots_before_it,
    posts_to_a_queue_pair_that_is_not_connected_are_not_taken,
    a_small_array_loses_no_completion,
    a_released_queue_pair_takes_no_posts,
    no_completion_comes_after_the_release,
    destruction_needs_the_release,
    no_completion_comes_after_destruction,
    numbers_of_queue_pairs_are_not_used_again,
    windows_of_a_destroyed_queue_pair_can_be_deallocated needs [Windows],
}

const TARGET: usize = 1 << 20;
const SINK: usize = 2 << 20;

fn linked<D: Device>(bench: &mut Bench<D>, depth: u32) -> Result<Link, Failure> {
    let config = QpConfig {
        send_depth: depth,
        receive_depth: depth,
        ..bench.config(End::A)
    };
    bench.link_with(&config)
}

fn a_full_queue_takes_a_prefix<D: Device>(bench: &mut Bench<D>) -> Outcome {
    for depth in [1, 2, 7, 16] {
        let link = linked(bench, depth)?;
        bench.receive(End::B, link.b, SINK, 8, depth as usize)?;
        let mut work = Vec::new();
        for at in 0..depth as usize + 3 {
            bench.set_word(End::A, 8 * at, at as u64)?;
            let source = bench.one(End::A, 8 * at, 8);
            work.push(bench.work(WorkOp::Send { immediate: None }, source));
        }
        let taken = bench.a.path.post_burst(link.a, &work);
        ensure!(
            taken == depth as usize,
            "a queue of {depth} took {taken} of {}",
            work.len()
        );
        let again = bench.a.path.post_burst(link.a, &work[taken..]);
        ensure!(again == 0, "a full queue of {depth} took {again} more");
        for (request, done) in work.iter().zip(bench.next(End::A, taken)?) {
            ensure!(
                done.id == request.id && done.is_success(),
                "{done:?} came where the success of {:?} was next",
                request.id
            );
        }
        bench.next(End::B, taken)?;
        for at in 0..taken {
            let word = bench.word(End::B, SINK + 8 * at)?;
            ensure!(word == at as u64, "message {word} came where {at} was next");
        }
        bench.quiet()?;
    }
    Ok(())
}

fn a_full_queue_in_error_takes_a_prefix<D: Device>(bench: &mut Bench<D>) -> Outcome {
    for (depth, connected) in [(1, true), (7, true), (16, true), (7, false)] {
        let config = QpConfig {
            send_depth: depth,
            ..bench.config(End::A)
        };
        let qp = match connected {
            true => bench.link_with(&config)?.a,
            false => bench.a.device.create_qp(&config)?,
        };
        bench.a.device.error_qp(qp)?;
        let depth = depth as usize;
        for round in 0..2 {
            let mut work = Vec::new();
            for at in 0..depth + 3 {
                let request = bench.work(NOTHING, SgeList::EMPTY);
                work.push(request.signaled(at % 2 == 0));
            }
            let taken = bench.a.path.post_burst(qp, &work);
            ensure!(
                taken == depth,
                "round {round}: in error a queue of {depth} took {taken} of {}",
                work.len()
            );
            let again = bench.a.path.post_burst(qp, &work[taken..]);
            ensure!(again == 0, "a full queue in error took {again} more");
            for (request, done) in work.iter().zip(bench.next(End::A, taken)?) {
                let flushed = done.status == WcStatus::Flushed;
                ensure!(
                    done.id == request.id && flushed,
                    "{done:?} came where the flush of {:?} was next",
                    request.id
                );
            }
        }
        bench.quiet()?;
    }
    Ok(())
}

fn a_full_receive_queue_takes_a_prefix<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let link = linked(bench, 4)?;
    let receives: Vec<_> = (0..6)
        .map(|at| ReceiveRequest {
            id: WorkId(900 + at),
            sge: bench.sge(End::B, SINK, 64),
        })
        .collect();
    let taken = bench.b.path.post_receives(link.b, &receives);
    ensure!(taken == 4, "a receive queue of 4 took {taken} of 6");
    let source = bench.one(End::A, 0, 8);
    let send = bench.work(WorkOp::Send { immediate: None }, source);
    bench.succeed(End::A, link.a, send)?;
    let received = bench.wait(End::B, WorkId(900))?;
    ensure!(received.is_success(), "{received:?}");
    let taken = bench.b.path.post_receives(link.b, &receives[4..]);
    ensure!(taken == 1, "with one receive free it took {taken} of 2");
    Ok(())
}

fn a_polled_completion_frees_the_slots_before_it<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let depth = 8;
    let link = linked(bench, depth)?;
    let grant = bench.open(End::B, link, TARGET, 64, Rights::WRITE)?;
    let local = bench.one(End::A, 0, 8);
    for round in 0..4 {
        let mut work = Vec::new();
        for at in 1..=depth {
            let write = bench.work(write_op(grant.at(0)), local);
            work.push(write.signaled(at == depth));
        }
        let taken = bench.a.path.post_burst(link.a, &work);
        ensure!(
            taken == depth as usize,
            "round {round}: took {taken} of {depth}"
        );
        let done = bench.next(End::A, 1)?[0];
        ensure!(done.id == work[7].id && done.is_success(), "{done:?}");
    }
    Ok(())
}

fn posts_to_a_queue_pair_that_is_not_connected_are_not_taken<D: Device>(
    bench: &mut Bench<D>,
) -> Outcome {
    let qp = bench.a.device.create_qp(&bench.config(End::A))?;
    let receive = bench.receive(End::A, qp, SINK, 64, 1);
    ensure!(
        receive.is_ok(),
        "receives may be posted at once: {receive:?}"
    );
    let work = [bench.work(NOTHING, SgeList::EMPTY)];
    for qp in [qp, QpId(0xfff_ffff)] {
        let taken = bench.a.path.post_burst(qp, &work);
        ensure!(taken == 0, "qp {qp} is not connected and took {taken}");
    }
    bench.quiet()
}

fn a_small_array_loses_no_completion<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let link = bench.link()?;
    let receives = bench.receive(End::B, link.b, SINK, 8, 12)?;
    let source = bench.one(End::A, 0, 8);
    let send = WorkOp::Send { immediate: None };
    let work: Vec<_> = (0..12).map(|_| bench.work(send, source)).collect();
    bench.post(End::A, link.a, &work)?;
    for _ in 0..8 {
        // Without room nothing is written, and nothing is lost.
        let wrote = bench.a.path.poll_burst(&mut []) + bench.b.path.poll_burst(&mut []);
        ensure!(wrote == 0, "{wrote} completions for an empty array");
        bench.pause();
    }
    let sent: Vec<_> = work.iter().map(|request| request.id).collect();
    let mut got = [Vec::new(), Vec::new()];
    for _ in 0..bench.poll_limit {
        for (end, got) in [End::A, End::B].into_iter().zip(&mut got) {
            let mut one = [Completion::EMPTY];
            let wrote = bench.side(end).path.poll_burst(&mut one);
            ensure!(wrote <= 1, "{wrote} completions for an array of one");
            got.extend((wrote == 1).then_some((one[0].id, one[0].status)));
        }
        if got.iter().all(|got| got.len() == 12) {
            break;
        }
        bench.pause();
    }
    for (got, wanted) in got.iter().zip([&sent, &receives]) {
        let ids: Vec<_> = got.iter().map(|(id, _)| *id).collect();
        let good = got.iter().all(|(_, status)| *status == WcStatus::Success);
        ensure!(
            good && ids == *wanted,
            "{got:?} where {wanted:?} was to come"
        );
    }
    bench.quiet()
}

fn a_released_queue_pair_takes_no_posts<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let link = bench.link()?;
    bench.works(End::A, link.a)?;
    bench.a.path.release_qp(link.a);
    let work = [bench.work(NOTHING, SgeList::EMPTY)];
    let taken = bench.a.path.post_burst(link.a, &work);
    ensure!(taken == 0, "a released queue pair took {taken} requests");
    let receive = ReceiveRequest {
        id: bench.fresh_id(),
        sge: bench.sge(End::A, SINK, 64),
    };
    let taken = bench.a.path.post_receives(link.a, &[receive]);
    ensure!(taken == 0, "a released queue pair took {taken} receives");
    bench.a.device.destroy_qp(link.a)?;
    let taken = bench.a.path.post_burst(link.a, &work);
    ensure!(taken == 0, "a destroyed queue pair took {taken} requests");
    bench.quiet()
}

fn no_completion_comes_after_the_release<D: Device>(bench: &mut Bench<D>) -> Outcome {
    for end in [End::A, End::B] {
        let link = bench.link()?;
        bench.receive(End::B, link.b, SINK, 64, 4)?;
        let source = bench.one(End::A, 0, 8);
        let send = WorkOp::Send { immediate: None };
        let work = [(); 3].map(|()| bench.work(send, source));
        bench.post(End::A, link.a, &work)?;
        // Executed where it is received, so there are completions that nobody has polled, and a receive that is still posted.
        bench.b.path.poll_burst(&mut []);
        let qp = link.qp(end);
        bench.side(end).path.release_qp(qp);
        bench.settle();
        let late = bench.leftovers(end);
        let late: Vec<_> = late.iter().filter(|done| done.qp == qp).collect();
        ensure!(late.is_empty(), "completed after the release: {late:?}");
        bench.leftovers(end.other());
    }
    Ok(())
}

fn destruction_needs_the_release<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let link = bench.link()?;
    let early = bench.a.device.destroy_qp(link.a);
    ensure!(
        early == Err(ControlError::NotReleased(link.a)),
        "destroyed before its lcore released it: {early:?}"
    );
    bench.works(End::A, link.a)?;
    bench.a.path.release_qp(link.a);
    bench.a.device.destroy_qp(link.a)?;
    let again = bench.a.device.destroy_qp(link.a);
    ensure!(
        again == Err(ControlError::NoSuchQp(link.a)),
        "destroyed twice: {again:?}"
    );
    Ok(())
}

fn no_completion_comes_after_destruction<D: Device>(bench: &mut Bench<D>) -> Outcome {
    for end in [End::A, End::B] {
        let link = bench.link()?;
        let grant = bench.open(End::B, link, TARGET, 200_000, Rights::READ_WRITE)?;
        bench.receive(End::A, link.a, SINK, 64, 3)?;
        bench.receive(End::B, link.b, SINK, 64, 3)?;
        let local = bench.one(End::A, 0, 200_000);
        let write = bench.work(write_op(grant.at(0)), local);
        let send = bench.work(WorkOp::Send { immediate: None }, SgeList::EMPTY);
        bench.post(End::A, link.a, &[write, send, send, send, send])?;
        bench.step();
        let qp = link.qp(end);
        let side = bench.side(end);
        side.path.release_qp(qp);
        side.device.destroy_qp(qp)?;
        bench.leftovers(end);
        bench.settle();
        let late = bench.leftovers(end);
        let late: Vec<_> = late.iter().filter(|done| done.qp == qp).collect();
        ensure!(late.is_empty(), "completed after the destruction: {late:?}");
    }
    Ok(())
}

fn numbers_of_queue_pairs_are_not_used_again<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let mut seen = Vec::new();
    for _ in 0..8 {
        let qp = bench.a.device.create_qp(&bench.config(End::A))?;
        ensure!(!seen.contains(&qp), "qp number {qp} was used before");
        seen.push(qp);
        bench.step();
        bench.a.path.release_qp(qp);
        bench.a.device.destroy_qp(qp)?;
    }
    Ok(())
}

fn windows_of_a_destroyed_queue_pair_can_be_deallocated<D: Device>(
    bench: &mut Bench<D>,
) -> Outcome {
    let link = bench.link()?;
    let grant = bench.open(End::B, link, TARGET, 64, Rights::READ_WRITE)?;
    let window = bench.window_of(&grant)?;
    bench.b.path.release_qp(link.b);
    bench.b.device.destroy_qp(link.b)?;
    let local = bench.one(End::A, 0, 8);
    let write = bench.work(write_op(grant.at(0)), local);
    let done = bench.run(End::A, link.a, write)?;
    let dead = matches!(done.status, WcStatus::RetryExceeded | WcStatus::Flushed);
    ensure!(
        dead,
        "a write to a destroyed queue pair ended as {:?}",
        done.status
    );
    Ok(bench.b.device.dealloc_window(window)?)
}
