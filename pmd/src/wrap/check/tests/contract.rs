//! Rules of the contract that posts, completions and control calls of one device show, each broken once.

use super::*;

fn receive(rig: &mut Rig, id: u64, len: u32) {
    let sge = Sge::new(0x8000, len, Lkey(1));
    let id = WorkId(id);
    let taken = rig
        .path
        .post_receives(rig.qp, &[ReceiveRequest { id, sge }]);
    assert_eq!(taken, 1);
}

#[test]
fn behind_a_failure_and_in_error_everything_is_flushed() {
    let mut rig = rig(8);
    rig.post(&[1, 2, 3].map(|id| write(id, 0x1000, 8)));
    rig.done(1, Status::RemoteAccess, Kind::Write);
    rig.done(2, Status::Flushed, Kind::Write);
    rig.is_clean();
    rig.done(3, Status::RemoteAccess, Kind::Write);
    assert_eq!(rig.violated(Violation::NotFlushed), 1);
}

#[test]
fn what_is_posted_in_error_is_flushed() {
    for (status, violation) in [
        (Status::Success, Violation::SuccessInError),
        (Status::RetryExceeded, Violation::NotFlushed),
    ] {
        let mut rig = rig(8);
        rig.post(&[write(1, 0x1000, 8)]);
        rig.check.error_qp(rig.qp).unwrap();
        rig.post(&[write(2, 0x1000, 8), write(3, 0x1000, 8)]);
        rig.done(1, Status::Success, Kind::Write);
        rig.is_clean();
        rig.done(2, status, Kind::Write);
        assert_eq!(rig.violated(violation), 1);
        rig.done(3, Status::Flushed, Kind::Write);
        assert_eq!(rig.ledger.violations(Party::Device), 1);
    }
}

#[test]
fn receives_posted_in_error_are_flushed() {
    let mut rig = rig(8);
    rig.check.error_qp(rig.qp).unwrap();
    receive(&mut rig, 1, 64);
    rig.done(1, Status::Success, Kind::Receive);
    assert_eq!(rig.violated(Violation::SuccessInError), 1);
}

#[test]
fn an_access_of_no_bytes_checks_no_key() {
    for status in [Status::RemoteAccess, Status::LocalProtection] {
        let mut rig = rig(8);
        rig.post(&[write(1, 0x1000, 0)]);
        rig.done(1, status, Kind::Write);
        assert_eq!(rig.violated(Violation::ZeroLengthRefused), 1);
    }
    let mut rig = rig(8);
    rig.post(&[write(1, 0x1000, 8).inline(true)]);
    rig.done(1, Status::RemoteAccess, Kind::Write);
    rig.is_clean();
}

#[test]
fn successes_name_the_bytes_that_moved() {
    let mut rig = rig(8);
    rig.post(&[read(1, 0x1000, 64), read(2, 0x1000, 64)]);
    rig.moved(1, Kind::Read, 64);
    receive(&mut rig, 3, 64);
    receive(&mut rig, 4, 64);
    receive(&mut rig, 5, 8);
    rig.moved(3, Kind::Receive, 64);
    rig.is_clean();
    rig.moved(2, Kind::Read, 63);
    assert_eq!(rig.violated(Violation::WrongBytes), 1);
    rig.moved(4, Kind::Receive, 65);
    assert_eq!(rig.violated(Violation::WrongBytes), 2);
    // A write with immediate may be longer than the receive that it takes.
    rig.moved(5, Kind::ReceiveWriteImmediate, 1000);
    assert_eq!(rig.ledger.violations(Party::Device), 2);
}

#[test]
fn a_poll_writes_no_more_than_its_array_holds() {
    let mut rig = rig(8);
    rig.script.state().overstate = 2;
    let count = rig.path.poll_burst(&mut [Completion::EMPTY; 1]);
    assert_eq!((count, rig.violated(Violation::PolledTooMany)), (1, 1));
}

#[test]
fn posts_are_taken_only_when_somebody_has_begun_to_connect() {
    let mut rig = rig(8);
    for (accepts, violated) in [(true, 0), (false, 1)] {
        rig.qp = rig.check.create_qp(&qp_config(8)).unwrap();
        if accepts {
            rig.check.accept(RequestId(1), rig.qp, &[]).unwrap();
        }
        receive(&mut rig, 1, 64);
        rig.post(&[write(1, 0x1000, 8)]);
        assert_eq!(rig.violated(Violation::TookUnconnected), violated);
    }
    // In error it may take posts, connected or not.
    rig.qp = rig.check.create_qp(&qp_config(8)).unwrap();
    rig.check.error_qp(rig.qp).unwrap();
    rig.post(&[write(1, 0x1000, 8)]);
    assert_eq!(rig.violated(Violation::TookUnconnected), 1);
}

#[test]
fn a_window_belongs_to_one_queue_pair() {
    let mut rig = rig(8);
    let other = connecting(&rig.check, 8);
    let window = rig.check.alloc_window(rig.qp).unwrap();
    rig.path
        .post_burst(other, &[bind(1, &window, 1, 0x1000, 8)]);
    rig.done_on(other, 1, Status::Success, Kind::Bind);
    assert_eq!(rig.violated(Violation::BoundElsewhere), 1);
    let second = rig.check.alloc_window(rig.qp).unwrap();
    rig.post(&[bind(2, &second, 1, 0x1000, 8)]);
    rig.done(2, Status::Success, Kind::Bind);
    assert_eq!(rig.ledger.violations(Party::Caller), 0);
    rig.path.post_burst(other, &[invalidate(3, &second, 1)]);
    assert_eq!(rig.violated(Violation::InvalidateNotBound), 1);
    rig.done_on(other, 3, Status::Success, Kind::Invalidate);
    assert_eq!(rig.violated(Violation::InvalidatedElsewhere), 1);
}

#[test]
fn a_key_has_its_windows_index() {
    let mut rig = rig(8);
    let [one, other] = [(); 2].map(|()| rig.check.alloc_window(rig.qp).unwrap());
    let crossed = Window {
        id: one.id,
        rkey: other.rkey,
    };
    rig.post(&[bind(1, &crossed, 1, 0x1000, 8)]);
    rig.done(1, Status::Success, Kind::Bind);
    assert_eq!(rig.violated(Violation::BoundElsewhere), 1);
}

#[test]
fn a_region_is_not_ended_under_a_bound_window() {
    for (invalidating, violated) in [(false, 1), (true, 0)] {
        let mut rig = rig(8);
        let window = rig.check.alloc_window(rig.qp).unwrap();
        rig.post(&[bind(1, &window, 1, 0x1000, 8)]);
        rig.done(1, Status::Success, Kind::Bind);
        if invalidating {
            // It may have been executed, and its completion not polled.
            rig.post(&[invalidate(2, &window, 1)]);
        }
        rig.check.deregister(RegionId(7)).unwrap();
        rig.check.deregister(RegionId(0)).unwrap();
        assert_eq!(rig.violated(Violation::DeregisteredBound), violated);
    }
}

#[test]
fn a_domain_is_not_ended_while_something_uses_it() {
    let mut rig = rig(8);
    rig.check.dealloc_pd(PdId(2)).unwrap();
    rig.is_clean();
    rig.check.dealloc_pd(PdId(1)).unwrap();
    assert_eq!(rig.violated(Violation::DomainEndedInUse), 1);
    rig.path.release_qp(rig.qp);
    rig.check.destroy_qp(rig.qp).unwrap();
    rig.check.dealloc_pd(PdId(1)).unwrap();
    assert_eq!(rig.violated(Violation::DomainEndedInUse), 1);
}

#[test]
fn no_event_names_a_queue_pair_that_is_destroyed_or_never_was() {
    let mut rig = rig(8);
    let connected = |qp| ControlEvent::Connected {
        qp,
        private: Vec::new(),
    };
    let told = |rig: &Rig, qp| {
        rig.script.state().events.push_back(connected(qp));
        assert_eq!(rig.check.poll_event(), Some(connected(qp)));
    };
    told(&rig, rig.qp);
    rig.is_clean();
    rig.path.release_qp(rig.qp);
    rig.check.destroy_qp(rig.qp).unwrap();
    told(&rig, rig.qp);
    assert_eq!(rig.violated(Violation::StrayEvent), 1);
    told(&rig, QpId(4711));
    assert_eq!(rig.violated(Violation::StrayEvent), 2);
}

#[test]
fn the_number_of_a_destroyed_queue_pair_is_not_used_again() {
    let mut rig = rig(8);
    let used = rig.qp;
    rig.path.release_qp(used);
    rig.check.destroy_qp(used).unwrap();
    rig.script.state().next_is(used.0);
    rig.check.create_qp(&qp_config(8)).unwrap();
    assert_eq!(rig.violated(Violation::NameReused), 1);
}

#[test]
fn a_window_is_not_ended_while_its_invalidation_is_posted_unless_in_error() {
    for (in_error, violated) in [(false, 1), (true, 0)] {
        let mut rig = rig(8);
        let window = rig.check.alloc_window(rig.qp).unwrap();
        rig.post(&[bind(1, &window, 1, 0x1000, 8), invalidate(2, &window, 1)]);
        if in_error {
            rig.check.error_qp(rig.qp).unwrap();
        }
        rig.check.dealloc_window(window.id).unwrap();
        assert_eq!(rig.violated(Violation::DeallocInvalidating), violated);
        assert_eq!(rig.ledger.violations(Party::Caller), violated);
    }
}

#[test]
fn completions_and_posts_after_the_release_are_violations() {
    let mut rig = rig(4);
    rig.post(&[write(1, 0x1000, 8)]);
    rig.path.release_qp(rig.qp);
    rig.check.destroy_qp(rig.qp).unwrap();
    rig.is_clean();
    rig.done(1, Status::Flushed, Kind::Write);
    assert_eq!(rig.violated(Violation::UnknownQp), 1);
    assert_eq!(rig.path.post_burst(rig.qp, &[write(2, 0x1000, 8)]), 1);
    assert_eq!(rig.violated(Violation::TookOnUnknownQp), 1);
}
