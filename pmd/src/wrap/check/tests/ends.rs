//! R3: what ends an own operation, for its source and its sink: its completion, however it ended; the success of a later request of the same
//! queue; the return of its queue pair's destruction. And what does not.

use super::*;

/// The operations that touch local memory, with what their completions say they were.
const OPS: [(OpenOp, Kind); 4] = [
    (OpenOp::Write, Kind::Write),
    (OpenOp::Send, Kind::Send),
    (OpenOp::Read, Kind::Read),
    (OpenOp::Atomic, Kind::Atomic),
];
const PLACE: Range<u64> = 0x5000..0x5008;

/// An operation of this kind over [`PLACE`].
fn operation(op: OpenOp, id: u64) -> WorkRequest {
    let (remote, immediate) = (remote(), None);
    let op = match op {
        OpenOp::Write => WorkOp::Write { remote, immediate },
        OpenOp::Send => WorkOp::Send { immediate },
        OpenOp::Read => WorkOp::Read { remote },
        _ => WorkOp::FetchAdd { remote, add: 1 },
    };
    local(op, id, PLACE.start, 8)
}

impl Rig {
    fn is_open(&self) -> bool {
        self.ledger.open_work(PLACE) > 0
    }
}

#[test]
fn r3_its_completion_ends_an_own_operation_however_it_ended() {
    for (op, kind) in OPS {
        for status in [Status::Success, Status::Flushed, Status::RemoteAccess] {
            let mut rig = rig(8);
            rig.post(&[operation(op, 1)]);
            let open = rig.ledger.first_open_work(PLACE).unwrap();
            assert_eq!((open.op, open.address, open.len), (op, 0x5000, 8));
            rig.script.state().completions.push_back(Completion {
                id: WorkId(1),
                qp: rig.qp,
                status,
                kind,
                bytes: 8,
                immediate: None,
            });
            assert!(rig.is_open(), "{op:?}: a completion that nobody polled");
            rig.path.poll_burst(&mut [Completion::EMPTY]);
            assert!(!rig.is_open(), "{op:?} that ended as {status:?}");
            rig.is_clean();
        }
    }
}

#[test]
fn r3_the_success_of_a_later_request_ends_an_own_operation_and_a_failure_does_not() {
    for (op, _) in OPS {
        for (status, open) in [
            (Status::Success, false),
            (Status::RemoteAccess, true),
            (Status::Flushed, true),
        ] {
            let mut rig = rig(8);
            rig.post(&[operation(op, 1).signaled(false), write(2, 0x9000, 8)]);
            rig.done(2, status, Kind::Write);
            assert_eq!(
                rig.is_open(),
                open,
                "{op:?} before one that ended as {status:?}"
            );
            // What a failure left open is ended by the destruction alone.
            rig.path.release_qp(rig.qp);
            assert_eq!(rig.is_open(), open, "{op:?}: a release");
            rig.check.destroy_qp(rig.qp).unwrap();
            assert!(!rig.is_open());
            rig.is_clean();
        }
    }
}

#[test]
fn r3_a_later_success_of_another_queue_pair_ends_nothing() {
    for (op, _) in OPS {
        let mut rig = rig(8);
        let other = connecting(&rig.check, 8);
        rig.post(&[operation(op, 1).signaled(false)]);
        rig.path.post_burst(other, &[write(2, 0x9000, 8)]);
        rig.done_on(other, 2, Status::Success, Kind::Write);
        assert!(rig.is_open(), "{op:?}");
        rig.is_clean();
    }
}

#[test]
fn r3_the_return_of_the_destruction_ends_an_own_operation_and_nothing_before_it_does() {
    for (op, _) in OPS {
        let mut rig = rig(8);
        rig.post(&[operation(op, 1)]);
        rig.check.error_qp(rig.qp).unwrap();
        assert!(rig.is_open(), "{op:?}: an error proves nothing");
        rig.path.release_qp(rig.qp);
        assert!(rig.is_open(), "{op:?}: a release proves nothing");
        rig.script.state().late = true;
        rig.check.destroy_qp(rig.qp).unwrap_err();
        assert!(rig.is_open(), "{op:?}: a late destruction is none");
        rig.script.state().late = false;
        rig.check.destroy_qp(rig.qp).unwrap();
        assert!(!rig.is_open(), "{op:?}");
        rig.is_clean();
    }
}

#[test]
fn r3_the_end_of_its_path_ends_no_operation_and_allows_the_destruction() {
    let mut rig = rig(8);
    let unseen = connecting(&rig.check, 8);
    rig.post(&[operation(OpenOp::Read, 1)]);
    let Rig {
        check,
        path,
        qp,
        ledger,
        ..
    } = rig;
    drop(path);
    assert_eq!(ledger.open_work(PLACE), 1);
    check.destroy_qp(qp).unwrap();
    check.destroy_qp(unseen).unwrap();
    assert_eq!(ledger.open_work(ALL), 0);
    assert_eq!(ledger.reports(), []);
}

#[test]
fn r3_a_late_call_ends_no_key() {
    let mut rig = rig(8);
    let window = rig.check.alloc_window(rig.qp).unwrap();
    rig.post(&[bind(1, &window, 1, 0x1000, 0x100)]);
    rig.done(1, Status::Success, Kind::Bind);
    let arena = Arena::map(&keyfence_mempool::arena::ArenaConfig::new(1 << 20)).unwrap();
    let access = Access {
        remote: Rights::READ,
        bind: false,
    };
    let region = rig.check.register(PdId(1), &Arc::new(arena), 0..64, access);
    assert_eq!(rig.ledger.all_live_keys(), 2);
    rig.script.state().late = true;
    rig.check.dealloc_window(window.id).unwrap_err();
    rig.check.deregister(region.unwrap().id).unwrap_err();
    rig.path.release_qp(rig.qp);
    rig.check.destroy_qp(rig.qp).unwrap_err();
    assert_eq!(rig.ledger.all_live_keys(), 2);
    rig.is_clean();
}
