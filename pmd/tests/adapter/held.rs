//! The end of a key on an adapter that is software: its success is told when nothing lands any more, and nothing else waits for it.

use super::{BYTES, Outcome, Side, config, connect, ensure, pair, text};
use keyfence_pmd::conformance::Setup;
use keyfence_pmd::verbs::VerbsDevice;
use keyfence_pmd::{
    Completion, Control, DataPath, ReceiveRequest, Rkey, Sge, SgeList, WcStatus, WorkId, WorkOp,
    WorkRequest,
};

/// Binds a window of this side.
fn bind(of: &mut Side) -> Result<Rkey, String> {
    let op = of.bind(1, BYTES as u64)?;
    let bind = WorkRequest::new(WorkId(100), op, SgeList::EMPTY);
    let taken = of.path.post_burst(of.qp, &[bind]);
    ensure(taken == 1 && of.next()?.is_success(), "not bound")?;
    match op {
        WorkOp::Bind { rkey, .. } => Ok(rkey),
        op => Err(format!("{op:?}")),
    }
}

/// What the path gives without anybody polling events, for long enough.
fn polled(of: &mut Side) -> Vec<(u64, WcStatus)> {
    let mut got = Vec::new();
    for _ in 0..20_000 {
        let mut done = [Completion::EMPTY; 4];
        let count = of.path.poll_burst(&mut done);
        got.extend(done[..count].iter().map(|done| (done.id.0, done.status)));
        std::thread::yield_now();
    }
    got
}

/// An invalidation between two other requests of side B, held: the first request alone is reported.
fn hold_one(b: &mut Side) -> Outcome {
    let rkey = bind(b)?;
    let end = WorkRequest::new(WorkId(2), WorkOp::Invalidate { rkey }, SgeList::EMPTY);
    let work = [b.write(1, true), end, b.write(3, true)];
    ensure(b.path.post_burst(b.qp, &work) == 3, "not taken")?;
    let got = polled(b);
    ensure(
        got == [(1, WcStatus::Success)],
        format!("{got:?} where only the first was to end"),
    )
}

/// Receives of the queue pair, and other queue pairs, do not wait; what is behind the invalidation comes after it.
pub fn goes_on(setup: Setup<VerbsDevice>) -> Outcome {
    let address = setup.address.clone();
    let (mut a, mut b) = pair(setup)?;
    let first = (a.qp, b.qp);
    let again = |side: &mut Side| side.device.create_qp(&config(side.pd, 16)).map_err(text);
    (a.qp, b.qp) = (again(&mut a)?, again(&mut b)?);
    connect(&a, &b, &address)?;
    let second = (a.qp, b.qp);
    (a.qp, b.qp) = first;
    let sge = Sge::new(b.arena.address(), 64, b.region.lkey);
    let receive = ReceiveRequest { id: WorkId(7), sge };
    ensure(b.path.post_receives(b.qp, &[receive]) == 1, "no receive")?;
    hold_one(&mut b)?;
    ensure(a.path.post_burst(a.qp, &[a.message(8)]) == 1, "not taken")?;
    ensure(
        b.path.post_burst(second.1, &[b.write(9, true)]) == 1,
        "not taken",
    )?;
    let mut got = polled(&mut b);
    got.sort_unstable_by_key(|done| done.0);
    let wanted = [7, 9].map(|id| (id, WcStatus::Success));
    ensure(
        got == wanted,
        format!("{got:?} where {wanted:?} was to come"),
    )?;
    ends_as(&mut b, &[(2, WcStatus::Success), (3, WcStatus::Success)])
}

fn ends_as(of: &mut Side, wanted: &[(u64, WcStatus)]) -> Outcome {
    for wanted in wanted {
        let done = of.next()?;
        let got = (done.id.0, done.status);
        ensure(
            got == *wanted,
            format!("{got:?} where {wanted:?} was to come"),
        )?;
    }
    Ok(())
}

/// The adapter has executed it: an error that comes after that changes nothing, and what is posted now is flushed behind it.
pub fn in_error(setup: Setup<VerbsDevice>) -> Outcome {
    let (_a, mut b) = pair(setup)?;
    hold_one(&mut b)?;
    b.device.error_qp(b.qp).map_err(text)?;
    ensure(
        b.path.post_burst(b.qp, &[b.write(4, false)]) == 1,
        "not taken",
    )?;
    let got = polled(&mut b);
    ensure(got.is_empty(), format!("{got:?} before the invalidation"))?;
    let good = WcStatus::Success;
    ends_as(&mut b, &[(2, good), (3, good), (4, WcStatus::Flushed)])
}

/// Nobody can run a grace period any more, so nobody is told of a success.
pub fn device_first(setup: Setup<VerbsDevice>) -> Outcome {
    let (a, mut b) = pair(setup)?;
    hold_one(&mut b)?;
    // The last handle of B's goes; its path stays.
    b.device = a.device.clone();
    let got = polled(&mut b);
    let flushed = [2, 3].map(|id| (id, WcStatus::Flushed));
    ensure(
        got == flushed,
        format!("{got:?} where both were to be flushed"),
    )
}

/// Released with something held: nothing of it is reported, and the destruction ends it.
pub fn released(setup: Setup<VerbsDevice>) -> Outcome {
    let (_a, mut b) = pair(setup)?;
    hold_one(&mut b)?;
    b.path.release_qp(b.qp);
    b.device.destroy_qp(b.qp).map_err(text)?;
    while b.device.poll_event().is_some() {}
    let got = polled(&mut b);
    ensure(got.is_empty(), format!("{got:?} after the release"))
}
