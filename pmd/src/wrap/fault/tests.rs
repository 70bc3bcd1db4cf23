//! Each injection strikes where its plan says, and order is kept.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;
use crate::device::DataPath;
use crate::ids::WorkId;
use crate::work::{Remote, SgeList, WorkOp, WorkRequest};
use crate::wrap::script::{Script, ScriptDevice, qp_config};
use crate::{Completion, CompletionKind as Kind, Rkey, WcStatus as Status};

struct Rig {
    script: Script,
    fault: Fault<ScriptDevice>,
    path: FaultPath<ScriptDevice>,
    qps: [QpId; 2],
}

fn rig(injections: &[Injection]) -> Rig {
    let script = Script::default();
    let fault = Fault::new(script.device(), Plan::new(injections));
    let path = fault.open_path(LcoreId(0)).unwrap();
    let qps = [0; 2].map(|_| fault.create_qp(&qp_config(64)).unwrap());
    Rig {
        script,
        fault,
        path,
        qps,
    }
}

impl Rig {
    fn polled(&mut self) -> Vec<u64> {
        let mut done = [Completion::EMPTY; 8];
        let count = self.path.poll_burst(&mut done);
        done[..count].iter().map(|done| done.id.0).collect()
    }

    fn succeed(&self, qp: QpId, ids: Range<u64>) {
        ids.for_each(|id| self.script.completes(qp, id, Status::Success, Kind::Write));
    }
}

fn burst(count: u64) -> Vec<WorkRequest> {
    let op = WorkOp::Write {
        remote: Remote {
            address: 0,
            rkey: Rkey(0),
        },
        immediate: None,
    };
    (0..count)
        .map(|id| WorkRequest::new(WorkId(id), op, SgeList::EMPTY))
        .collect()
}

#[test]
fn held_completions_come_late_and_in_order() {
    let mut rig = rig(&[Injection::HoldBack {
        target: Target::Created(0),
        span: Span::one(1),
        polls: 3,
    }]);
    let [held, free] = rig.qps;
    rig.succeed(held, 0..3);
    rig.succeed(free, 10..12);
    assert_eq!(rig.polled(), [0, 10, 11]);
    rig.succeed(held, 3..4);
    assert_eq!(rig.polled(), []);
    assert_eq!(rig.polled(), []);
    assert_eq!(rig.polled(), [1, 2, 3]);
    assert_eq!(rig.fault.fired(), [1]);
}

#[test]
fn swallowed_completions_never_come() {
    let mut rig = rig(&[
        Injection::Swallow {
            target: Target::Created(1),
            span: Span::EVERY,
        },
        Injection::Swallow {
            target: Target::Created(0),
            span: Span { first: 1, count: 2 },
        },
    ]);
    let [a, b] = rig.qps;
    rig.succeed(a, 0..5);
    rig.succeed(b, 10..13);
    assert_eq!(rig.polled(), [0, 3, 4]);
    assert_eq!(rig.fault.fired(), [3, 2]);
}

#[test]
fn garbage_spares_id_queue_pair_status_and_successes() {
    let mut rig = rig(&[Injection::Garbage { seed: 1 }]);
    let qp = rig.qps[0];
    let mut spoiled = 0;
    for id in 0..32 {
        rig.script.completes(qp, id, Status::Flushed, Kind::Write);
        rig.script.completes(qp, id, Status::Success, Kind::Write);
        let mut done = [Completion::EMPTY; 2];
        assert_eq!(rig.path.poll_burst(&mut done), 2);
        for (done, status) in done.iter().zip([Status::Flushed, Status::Success]) {
            assert_eq!((done.id, done.qp, done.status), (WorkId(id), qp, status));
        }
        assert_eq!(done[1].kind, Kind::Write);
        assert_eq!((done[1].bytes, done[1].immediate), (0, None));
        spoiled += u32::from(done[0].kind != Kind::Write || done[0].bytes != 0);
    }
    assert!(spoiled > 24, "{spoiled} of 32 had garbage");
}

#[test]
fn short_posts_take_a_prefix() {
    let mut rig = rig(&[Injection::ShortPosts {
        target: Target::Every,
        span: Span { first: 1, count: 2 },
        take: 1,
    }]);
    let qp = rig.qps[0];
    let taken = [0; 4].map(|_| rig.path.post_burst(qp, &burst(4)));
    assert_eq!(taken, [4, 1, 1, 4]);
    assert_eq!(rig.script.state().posted.len(), 10);
    assert_eq!(rig.fault.fired(), [2]);
}

#[test]
fn the_queue_pair_comes_into_error_behind_the_very_request() {
    let mut rig = rig(&[Injection::ErrorQp {
        target: Target::Created(0),
        after: 3,
    }]);
    let qp = rig.qps[0];
    assert_eq!(rig.path.post_burst(qp, &burst(2)), 2);
    assert!(!rig.script.state().calls.contains(&"error_qp"));
    assert_eq!(rig.path.post_burst(qp, &burst(4)), 4);
    let calls = rig.script.state().calls.clone();
    assert_eq!(calls.iter().filter(|call| **call == "error_qp").count(), 1);
    assert_eq!(rig.path.post_burst(qp, &burst(4)), 4);
    assert_eq!(rig.fault.fired(), [1]);
}

#[test]
fn control_calls_are_refused_late_or_done_late() {
    let control = |call, number, effect| Injection::Control {
        call,
        span: Span::one(number),
        effect,
    };
    let out = ControlError::Exhausted {
        what: "windows",
        limit: 0,
    };
    let rig = rig(&[
        control(
            ControlCall::AllocWindow,
            0,
            ControlEffect::Refuse(out.clone()),
        ),
        control(ControlCall::DestroyQp, 0, ControlEffect::Late),
        control(ControlCall::DeallocWindow, 0, ControlEffect::LateButDone),
    ]);
    let qp = rig.qps[0];
    let called = |name| {
        let state = rig.script.state();
        state.calls.iter().filter(|call| **call == name).count()
    };
    assert_eq!(rig.fault.alloc_window(qp), Err(out));
    assert_eq!(called("alloc_window"), 0);
    let window = rig.fault.alloc_window(qp).unwrap();
    assert_eq!(rig.fault.dealloc_window(window.id), Err(LATE));
    assert_eq!(called("dealloc_window"), 1);
    assert_eq!(rig.fault.dealloc_window(window.id), Ok(()));
    assert_eq!(called("dealloc_window"), 1, "found done");
    assert_eq!(rig.fault.destroy_qp(qp), Err(LATE));
    assert_eq!(called("destroy_qp"), 0);
    assert_eq!(rig.fault.destroy_qp(qp), Ok(()));
    assert_eq!(rig.fault.fired(), [1, 1, 1]);
}

#[test]
fn a_planned_panic_comes_once_with_its_poll_and_on_its_lcore() {
    let mut rig = rig(&[Injection::Panic {
        lcore: LcoreId(0),
        poll: 2,
    }]);
    let mut other = rig.fault.open_path(LcoreId(1)).unwrap();
    for poll in 0..4 {
        assert_eq!(other.poll_burst(&mut []), 0);
        let polled = catch_unwind(AssertUnwindSafe(|| rig.path.poll_burst(&mut [])));
        assert_eq!(polled.is_err(), poll == 2, "poll {poll}");
        if poll == 2 {
            break;
        }
    }
    assert_eq!(rig.fault.fired(), [1]);
}
