//! What counts as open, what ends it, and what is a violation.

mod contract;
mod ends;

use super::*;
use crate::device::DataPath;
use crate::ids::{Lkey, Rkey, WorkId};
use crate::work::{ReceiveRequest, Remote, Sge, SgeList, WorkOp, WorkRequest};
use crate::wrap::script::{Script, ScriptDevice, ScriptPath, bind, invalidate, qp_config};
use crate::{Completion, CompletionKind as Kind, WcStatus as Status};

struct Rig {
    script: Script,
    check: Check<ScriptDevice>,
    path: CheckPath<ScriptPath>,
    qp: QpId,
    ledger: Arc<Ledger>,
}

fn rig(depth: u32) -> Rig {
    let script = Script::default();
    let check = Check::new(script.device());
    let path = check.open_path(LcoreId(0)).unwrap();
    let qp = connecting(&check, depth);
    let ledger = check.ledger();
    Rig {
        script,
        check,
        path,
        qp,
        ledger,
    }
}

/// A queue pair that the device may take posts to.
fn connecting(check: &Check<ScriptDevice>, depth: u32) -> QpId {
    let qp = check.create_qp(&qp_config(depth)).unwrap();
    check.start_connect(qp, "there", &[]).unwrap();
    qp
}

impl Rig {
    fn post(&mut self, work: &[WorkRequest]) {
        assert_eq!(self.path.post_burst(self.qp, work), work.len());
    }

    /// The device reports this, and the checker sees it.
    fn done(&mut self, id: u64, status: Status, kind: Kind) {
        self.done_on(self.qp, id, status, kind);
    }

    fn done_on(&mut self, qp: QpId, id: u64, status: Status, kind: Kind) {
        self.script.completes(qp, id, status, kind);
        let mut done = [Completion::EMPTY; 4];
        assert_eq!(self.path.poll_burst(&mut done), 1);
    }

    /// The device reports a success that moved this many bytes.
    fn moved(&mut self, id: u64, kind: Kind, bytes: u32) {
        self.script.state().completions.push_back(Completion {
            id: WorkId(id),
            qp: self.qp,
            status: Status::Success,
            kind,
            bytes,
            immediate: None,
        });
        assert_eq!(self.path.poll_burst(&mut [Completion::EMPTY]), 1);
    }

    fn violated(&self, violation: Violation) -> u64 {
        self.ledger.count(violation)
    }

    #[track_caller]
    fn is_clean(&self) {
        assert_eq!(self.ledger.reports(), []);
    }
}

fn local(op: WorkOp, id: u64, address: u64, len: u32) -> WorkRequest {
    WorkRequest::new(
        WorkId(id),
        op,
        SgeList::one(Sge::new(address, len, Lkey(1))),
    )
}

fn remote() -> Remote {
    Remote {
        address: 0,
        rkey: Rkey::new(9, 9),
    }
}

fn write(id: u64, address: u64, len: u32) -> WorkRequest {
    let op = WorkOp::Write {
        remote: remote(),
        immediate: None,
    };
    local(op, id, address, len)
}

fn read(id: u64, address: u64, len: u32) -> WorkRequest {
    local(WorkOp::Read { remote: remote() }, id, address, len)
}

const ALL: Range<u64> = 0..u64::MAX;

#[test]
fn r3_a_region_with_remote_rights_has_a_key_until_its_deregistration() {
    let rig = rig(8);
    let arena = Arena::map(&keyfence_mempool::arena::ArenaConfig::new(1 << 20)).unwrap();
    let (base, arena) = (arena.address(), Arc::new(arena));
    let register = |range, remote| {
        let access = Access {
            remote,
            bind: false,
        };
        let region = rig.check.register(PdId(1), &arena, range, access);
        region.unwrap().id
    };
    register(0..1 << 20, Rights::NONE);
    assert_eq!(rig.ledger.live_keys(ALL), 0, "an arena's key opens nothing");
    let open = register(4096..4196, Rights::READ);
    assert_eq!(rig.ledger.live_keys(base..base + 4096), 0);
    assert_eq!(rig.ledger.live_keys(base + 4195..base + 4196), 1);
    assert_eq!(rig.ledger.first_live_key(ALL).unwrap().qp, None);
    rig.check.deregister(open).unwrap();
    assert_eq!(rig.ledger.live_keys(ALL), 0);
}

#[test]
fn r3_a_key_is_live_from_the_post_of_its_bind_to_the_success_of_its_invalidation() {
    let mut rig = rig(8);
    let window = rig.check.alloc_window(rig.qp).unwrap();
    assert_eq!(rig.ledger.live_keys(ALL), 0);
    rig.post(&[bind(1, &window, 1, 0x1000, 0x100)]);
    assert_eq!(rig.ledger.live_keys(0x10ff..0x1100), 1);
    assert_eq!(rig.ledger.live_keys(0x1100..0x2000), 0);
    assert_eq!(rig.ledger.live_keys(0..0x1000), 0);
    assert!(!rig.ledger.first_live_key(ALL).unwrap().confirmed);
    rig.done(1, Status::Success, Kind::Bind);
    let live = rig.ledger.first_live_key(ALL).unwrap();
    assert!(live.confirmed);
    assert_eq!(
        (live.address, live.len, live.qp),
        (0x1000, 0x100, Some(rig.qp))
    );
    rig.post(&[invalidate(2, &window, 1)]);
    assert_eq!(rig.ledger.live_keys(ALL), 1, "posting proves nothing");
    rig.done(2, Status::Success, Kind::Invalidate);
    assert_eq!(rig.ledger.live_keys(ALL), 0);
    rig.is_clean();
}

#[test]
fn r3_the_success_of_the_last_of_a_chain_proves_each() {
    let mut rig = rig(64);
    let windows: Vec<_> = (0..8)
        .map(|_| rig.check.alloc_window(rig.qp).unwrap())
        .collect();
    let binds: Vec<_> = windows
        .iter()
        .zip(0..)
        .map(|(window, n)| bind(n, window, 1, 0x1000 * n, 0x100).signaled(n == 7))
        .collect();
    rig.post(&binds);
    rig.done(7, Status::Success, Kind::Bind);
    assert_eq!(rig.ledger.live_keys(ALL), 8);
    let chain: Vec<_> = windows
        .iter()
        .zip(10..)
        .map(|(window, n)| invalidate(n, window, 1).signaled(n == 17))
        .collect();
    rig.post(&chain);
    assert_eq!(rig.ledger.live_keys(ALL), 8);
    rig.done(17, Status::Success, Kind::Invalidate);
    assert_eq!(rig.ledger.live_keys(ALL), 0);
    assert_eq!(rig.ledger.open_requests(), 0);
    rig.is_clean();
}

#[test]
fn r3_a_flushed_invalidation_ends_no_key_and_the_windows_end_does() {
    let mut rig = rig(8);
    let window = rig.check.alloc_window(rig.qp).unwrap();
    rig.post(&[bind(1, &window, 1, 0x1000, 0x100)]);
    rig.done(1, Status::Success, Kind::Bind);
    rig.post(&[invalidate(2, &window, 1)]);
    rig.done(2, Status::Flushed, Kind::Invalidate);
    assert_eq!(rig.ledger.live_keys(ALL), 1);
    rig.check.dealloc_window(window.id).unwrap();
    assert_eq!(rig.ledger.live_keys(ALL), 0);
    rig.is_clean();
}

#[test]
fn r3_a_failed_bind_may_have_opened_its_key_until_its_window_is_deallocated() {
    for status in [Status::Flushed, Status::MemoryWindowBind] {
        let mut rig = rig(8);
        let window = rig.check.alloc_window(rig.qp).unwrap();
        rig.post(&[bind(1, &window, 1, 0x1000, 0x100)]);
        rig.done(1, status, Kind::Bind);
        assert_eq!(rig.ledger.live_keys(ALL), 1);
        rig.check.dealloc_window(window.id).unwrap();
        assert_eq!(rig.ledger.live_keys(ALL), 0);
        rig.is_clean();
    }
}

#[test]
fn r3_deallocation_ends_a_bind_that_is_still_queued() {
    let mut rig = rig(8);
    let window = rig.check.alloc_window(rig.qp).unwrap();
    rig.post(&[bind(1, &window, 1, 0x1000, 0x100)]);
    rig.check.dealloc_window(window.id).unwrap();
    assert_eq!(rig.ledger.live_keys(ALL), 0);
    rig.done(1, Status::Success, Kind::Bind);
    assert_eq!(
        rig.ledger.live_keys(ALL),
        0,
        "a late completion raises no dead key"
    );
    rig.is_clean();
}

#[test]
fn r3_destruction_ends_keys_and_work_of_its_queue_pair_alone() {
    let mut rig = rig(8);
    let other = connecting(&rig.check, 8);
    let (mine, its) = (
        rig.check.alloc_window(rig.qp).unwrap(),
        rig.check.alloc_window(other).unwrap(),
    );
    rig.post(&[bind(1, &mine, 1, 0x1000, 0x100), read(2, 0x5000, 64)]);
    rig.done(1, Status::Success, Kind::Bind);
    assert_eq!(
        rig.path
            .post_burst(other, &[bind(1, &its, 1, 0x9000, 0x100)]),
        1
    );
    rig.path.release_qp(rig.qp);
    assert_eq!(rig.ledger.open_work(0x5000..0x5001), 1);
    rig.check.destroy_qp(rig.qp).unwrap();
    assert_eq!(rig.ledger.open_work(ALL), 0);
    assert_eq!(rig.ledger.live_keys(0x1000..0x2000), 0);
    assert_eq!(rig.ledger.live_keys(0x9000..0xa000), 1);
    rig.is_clean();
}

#[test]
fn r1_own_work_is_open_over_its_local_ranges_until_proven_ended() {
    let mut rig = rig(8);
    rig.post(&[
        write(1, 0x1000, 16).signaled(false),
        read(2, 0x2000, 16).signaled(false),
        write(3, 0x3000, 16),
    ]);
    assert_eq!(rig.ledger.open_work(0x100f..0x1010), 1);
    assert_eq!(rig.ledger.open_work(0x1010..0x2000), 0);
    let open = rig.ledger.first_open_work(0x2000..0x2001).unwrap();
    assert_eq!((open.id, open.op), (WorkId(2), OpenOp::Read));
    assert!(open.op.writes_local());
    assert!(
        open.to_string().contains("not proven ended: may store to"),
        "{open}"
    );
    rig.done(3, Status::Success, Kind::Write);
    assert_eq!(rig.ledger.open_work(ALL), 0);
    rig.is_clean();
}

#[test]
fn r2_work_on_a_peers_range_is_open_until_proven_ended() {
    let mut rig = rig(8);
    let at = |address| Remote {
        address,
        rkey: Rkey::new(9, 9),
    };
    let reads = local(WorkOp::Read { remote: at(0x7000) }, 1, 0x1000, 16);
    let writes = WorkOp::Write {
        remote: at(0x7020),
        immediate: None,
    };
    rig.post(&[reads, local(writes, 2, 0x2000, 8).inline(true)]);
    assert_eq!(rig.ledger.open_remote(0x7000..0x7001), 1);
    assert_eq!(rig.ledger.open_remote(0x7010..0x7020), 0, "between the two");
    assert_eq!(
        rig.ledger.open_remote(0x7027..0x7028),
        1,
        "an inline one too"
    );
    assert_eq!(rig.ledger.open_remote(0x1000..0x3000), 0, "local memory");
    rig.moved(1, Kind::Read, 16);
    assert_eq!(rig.ledger.open_remote(0x7000..0x7010), 0);
    rig.done(2, Status::Success, Kind::Write);
    assert_eq!(rig.ledger.open_remote(ALL), 0);
    rig.is_clean();
}

#[test]
fn r3_a_failure_ends_itself_alone() {
    let mut rig = rig(8);
    rig.post(&[
        read(1, 0x1000, 16).signaled(false),
        write(2, 0x2000, 16),
        write(3, 0x3000, 16),
    ]);
    rig.done(2, Status::RemoteAccess, Kind::Write);
    assert_eq!(
        rig.ledger.open_work(0x1000..0x1001),
        1,
        "not proven by a failure"
    );
    assert_eq!(rig.ledger.open_work(0x2000..0x2001), 0);
    rig.done(3, Status::Flushed, Kind::Write);
    // However much is posted and flushed behind it, the unproven one stays and takes no room.
    for id in 10..50 {
        rig.post(&[write(id, 0x4000, 16)]);
        rig.done(id, Status::Flushed, Kind::Write);
    }
    assert_eq!(rig.ledger.open_work(ALL), 1);
    rig.is_clean();
}

#[test]
fn receives_are_open_until_completed_or_their_queue_pair_is_destroyed() {
    let mut rig = rig(8);
    let receives = [1, 2].map(|id| ReceiveRequest {
        id: WorkId(id),
        sge: Sge::new(0x1000 * id, 64, Lkey(1)),
    });
    assert_eq!(rig.path.post_receives(rig.qp, &receives), 2);
    assert_eq!(rig.ledger.open_work(ALL), 2);
    rig.done(1, Status::Success, Kind::Receive);
    assert_eq!(rig.ledger.open_work(0x1000..0x1040), 0);
    rig.path.release_qp(rig.qp);
    rig.check.destroy_qp(rig.qp).unwrap();
    assert_eq!(rig.ledger.open_work(ALL), 0);
    rig.is_clean();
}

#[test]
fn inline_work_leaves_no_local_memory_open() {
    let mut rig = rig(8);
    rig.post(&[write(1, 0x1000, 8).inline(true)]);
    assert_eq!(rig.ledger.open_work(ALL), 0);
    assert_eq!(rig.ledger.open_requests(), 1);
}

#[test]
fn what_the_device_does_not_take_is_not_open() {
    let mut rig = rig(8);
    rig.script.state().take = Some(1);
    let burst = [write(1, 0x1000, 8), write(2, 0x2000, 8)];
    assert_eq!(rig.path.post_burst(rig.qp, &burst), 1);
    assert_eq!(rig.ledger.open_requests(), 1);
    assert_eq!(rig.ledger.open_work(0x2000..0x2008), 0);
    assert_eq!(rig.path.post_burst(rig.qp, &burst[1..]), 1);
    assert_eq!(rig.ledger.open_work(0x2000..0x2008), 1);
    rig.is_clean();
}

#[test]
fn a_swallowed_completion_is_a_violation_and_the_next_success_ends_it_all_the_same() {
    let mut rig = rig(8);
    rig.post(&[write(1, 0x1000, 8), write(2, 0x2000, 8)]);
    rig.done(2, Status::Success, Kind::Write);
    assert_eq!(rig.violated(Violation::SkippedRequest), 1);
    assert_eq!(rig.ledger.open_work(ALL), 0);
    rig.done(1, Status::Success, Kind::Write);
    assert_eq!(rig.violated(Violation::UnknownWork), 1);
}

#[test]
fn the_devices_violations_are_counted_and_described() {
    let mut rig = rig(4);
    rig.post(&[
        write(1, 0x1000, 8).signaled(false),
        write(2, 0x1000, 8),
        write(3, 0x1000, 8),
    ]);
    rig.done(1, Status::Success, Kind::Write);
    assert_eq!(rig.violated(Violation::UnsignaledSuccess), 1);
    rig.done(2, Status::Success, Kind::Read);
    assert_eq!(rig.violated(Violation::WrongKind), 1);
    rig.done(3, Status::RetryExceeded, Kind::Write);
    rig.done(3, Status::Flushed, Kind::Write);
    assert_eq!(rig.violated(Violation::UnknownWork), 1);
    rig.post(&[write(4, 0x1000, 8)]);
    rig.done(4, Status::Success, Kind::Write);
    assert_eq!(rig.violated(Violation::SuccessAfterFailure), 1);
    rig.script.state().boast = 1;
    assert_eq!(rig.path.post_burst(rig.qp, &[write(5, 0x1000, 8)]), 1);
    assert_eq!(rig.violated(Violation::TookTooMany), 1);
    rig.script.state().boast = 0;
    rig.post(&[6, 7, 8, 9].map(|id| write(id, 0x1000, 8)));
    assert_eq!(rig.violated(Violation::BeyondDepth), 1);
    rig.check.destroy_qp(rig.qp).unwrap();
    assert_eq!(rig.violated(Violation::DestroyedUnreleased), 1);
    assert_eq!(rig.ledger.violations(Party::Device), 7);
    assert_eq!(rig.ledger.violations(Party::Caller), 0);
    let text = rig.ledger.reports()[0].to_string();
    assert!(text.contains("success of an unsignaled request"), "{text}");
}

#[test]
fn an_invalidation_posted_twice_is_the_callers_violation() {
    let mut rig = rig(8);
    let window = rig.check.alloc_window(rig.qp).unwrap();
    // In one queue with its bind it is no violation.
    rig.post(&[
        bind(1, &window, 1, 0x1000, 8).signaled(false),
        invalidate(2, &window, 1),
    ]);
    rig.is_clean();
    rig.post(&[invalidate(3, &window, 1)]);
    assert_eq!(rig.violated(Violation::InvalidateTwice), 1);
    rig.done(2, Status::Success, Kind::Invalidate);
    assert_eq!(rig.ledger.live_keys(ALL), 0);
    rig.done(3, Status::Success, Kind::Invalidate);
    assert_eq!(rig.violated(Violation::DeadInvalidated), 1);
    rig.post(&[invalidate(4, &window, 7)]);
    assert_eq!(rig.violated(Violation::InvalidateNotBound), 1);
    assert_eq!(rig.ledger.violations(Party::Caller), 2);
}

#[test]
fn a_bind_of_a_bound_window_must_not_succeed() {
    let mut rig = rig(8);
    let window = rig.check.alloc_window(rig.qp).unwrap();
    rig.post(&[
        bind(1, &window, 1, 0x1000, 8),
        bind(2, &window, 2, 0x2000, 8),
    ]);
    rig.done(1, Status::Success, Kind::Bind);
    rig.done(2, Status::Success, Kind::Bind);
    assert_eq!(rig.violated(Violation::BoundTwice), 1);
    assert_eq!(
        rig.ledger.live_keys(0x2000..0x2001),
        1,
        "the newer one is in the books"
    );
}

#[test]
fn a_window_may_be_bound_again_behind_its_invalidation() {
    let mut rig = rig(8);
    let window = rig.check.alloc_window(rig.qp).unwrap();
    rig.post(&[
        bind(1, &window, 1, 0x1000, 8),
        invalidate(2, &window, 1),
        bind(3, &window, 2, 0x2000, 8),
    ]);
    for (id, kind) in [(1, Kind::Bind), (2, Kind::Invalidate), (3, Kind::Bind)] {
        rig.done(id, Status::Success, kind);
    }
    assert_eq!(rig.ledger.live_keys(0x1000..0x1008), 0);
    assert_eq!(rig.ledger.live_keys(0x2000..0x2008), 1);
    rig.is_clean();
}

#[test]
fn queries_run_beside_the_path() {
    let mut rig = rig(8);
    let window = rig.check.alloc_window(rig.qp).unwrap();
    let ledger = Arc::clone(&rig.ledger);
    let looker = std::thread::spawn(move || {
        for _ in 0..2000 {
            // Never a torn range: each is one of the two that are ever bound.
            if let Some(key) = ledger.first_live_key(ALL) {
                assert_eq!(key.address, key.len << 8);
            }
        }
    });
    for round in 0..2000u64 {
        let len = 8 + round % 2;
        let tag = round as u8;
        rig.post(&[
            bind(1, &window, tag, len << 8, len),
            invalidate(2, &window, tag),
        ]);
        rig.done(1, Status::Success, Kind::Bind);
        rig.done(2, Status::Success, Kind::Invalidate);
    }
    looker.join().unwrap();
    assert_eq!(rig.ledger.live_keys(ALL), 0);
    rig.is_clean();
}
