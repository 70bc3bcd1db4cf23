//! Faults of control calls and connections, and what `sim` says to values that make no sense.

mod simulated;

use keyfence_pmd::sim::{Nanos, SimConfig, SimFault, SimFaults, Sometimes};
use keyfence_pmd::*;
use simulated::faults::{ALWAYS, always, fired, linked, set, struck};
use simulated::pair::{ADDRESS, Pair};
use simulated::world;

#[test]
fn control_calls_fail_or_are_late_undone_or_done() {
    let (mut pair, link) = linked(7);
    pair.sides[0].path.release_qp(link.0[0]);
    let device = pair.sides[0].device.clone();
    let failed = SimFaults {
        failed_call_per_million: ALWAYS,
        ..SimFaults::default()
    };
    let undone = SimFaults {
        late_call_undone_per_million: ALWAYS,
        ..SimFaults::default()
    };
    let done = SimFaults {
        late_call_done_per_million: ALWAYS,
        ..SimFaults::default()
    };
    set(&pair, failed);
    assert!(matches!(
        device.destroy_qp(link.0[0]),
        Err(ControlError::System { .. })
    ));
    set(&pair, undone);
    assert!(matches!(
        device.destroy_qp(link.0[0]),
        Err(ControlError::Late { .. })
    ));
    assert!(matches!(device.alloc_pd(), Err(ControlError::Late { .. })));
    pair.world.faults_off();
    // None of them did anything: the queue pair is there, and holds its domain.
    assert!(matches!(
        device.start_connect(link.0[0], ADDRESS, &[]),
        Err(ControlError::WrongState { .. })
    ));
    set(&pair, done);
    assert!(matches!(
        device.destroy_qp(link.0[0]),
        Err(ControlError::Late { .. })
    ));
    pair.world.faults_off();
    assert_eq!(device.destroy_qp(link.0[0]), Ok(()), "found done");
    assert_eq!(
        device.destroy_qp(link.0[0]),
        Err(ControlError::NoSuchQp(link.0[0]))
    );
    for kind in [
        SimFault::FailedCall,
        SimFault::LateCallUndone,
        SimFault::LateCallDone,
    ] {
        assert!(fired(&pair, kind) > 0, "{}", kind.name());
    }
}

#[test]
fn a_refused_connection_is_rejected_and_can_be_tried_again() {
    let mut pair = Pair::new(8, &SimConfig::default());
    let qp = pair.create(0);
    set(
        &pair,
        SimFaults {
            refused_connection_per_million: ALWAYS,
            ..SimFaults::default()
        },
    );
    pair.sides[0]
        .device
        .start_connect(qp, ADDRESS, &[])
        .unwrap();
    assert!(matches!(pair.event(0), Some(ControlEvent::Rejected { qp: of, .. }) if of == qp));
    assert_eq!(struck(&pair), [SimFault::RefusedConnection]);
    pair.world.faults_off();
    pair.sides[0]
        .device
        .start_connect(qp, ADDRESS, &[])
        .unwrap();
    assert!(matches!(
        pair.event(1),
        Some(ControlEvent::ConnectRequest { .. })
    ));
}

#[test]
fn a_slow_connection_comes_about_late() {
    let mut pair = Pair::new(9, &SimConfig::default());
    let qp = pair.create(0);
    set(
        &pair,
        SimFaults {
            slow_connection: always(4_000_000, 4_000_000),
            ..SimFaults::default()
        },
    );
    pair.sides[0]
        .device
        .start_connect(qp, ADDRESS, &[])
        .unwrap();
    pair.run_for(3_900_000);
    assert_eq!(pair.sides[1].device.poll_event(), None);
    assert!(matches!(
        pair.event(1),
        Some(ControlEvent::ConnectRequest { .. })
    ));
    assert_eq!(struck(&pair), [SimFault::SlowConnection]);
}

#[test]
fn wrong_ranges_are_named() {
    let backwards = Nanos::new(2, 1);
    let config = SimConfig {
        travel_ns: backwards,
        ..SimConfig::default()
    };
    let error = keyfence_pmd::sim::World::new(1, config).unwrap_err();
    assert!(
        matches!(
            error,
            ControlError::OutOfRange {
                what: "travel_ns",
                ..
            }
        ),
        "{error}"
    );
    let faults = SimFaults {
        stall: Sometimes {
            per_million: 1,
            ns: Nanos::new(0, u64::MAX),
        },
        ..SimFaults::default()
    };
    let error = world(1, &SimConfig::default())
        .set_faults(&faults)
        .unwrap_err();
    assert!(
        matches!(error, ControlError::OutOfRange { what: "stall", .. }),
        "{error}"
    );
}

#[test]
fn time_goes_forward_alone_and_ends() {
    let (pair, link) = linked(11);
    let now_ns = pair.world.now_ns();
    pair.world.advance_to(now_ns - 1);
    assert_eq!(pair.world.now_ns(), now_ns);
    pair.sides[0].device.error_qp(link.0[0]).unwrap();
    pair.world.advance_to(u64::MAX);
    pair.world.advance_to(u64::MAX);
    assert_eq!(pair.world.now_ns(), 1 << 62);
}

#[test]
fn a_late_start_that_was_rejected_is_not_found_done_by_the_next() {
    let mut pair = Pair::new(12, &SimConfig::default());
    let qp = pair.create(0);
    let faults = SimFaults {
        late_call_done_per_million: ALWAYS,
        ..SimFaults::default()
    };
    set(&pair, faults);
    let device = pair.sides[0].device.clone();
    let started = device.start_connect(qp, ADDRESS, &[]);
    assert!(matches!(started, Err(ControlError::Late { .. })));
    pair.world.faults_off();
    for _ in 0..2 {
        let Some(ControlEvent::ConnectRequest { request, .. }) = pair.event(1) else {
            panic!("nobody asks");
        };
        pair.sides[1].device.reject(request, &[]).unwrap();
        assert!(matches!(pair.event(0), Some(ControlEvent::Rejected { .. })));
        device.start_connect(qp, ADDRESS, &[]).unwrap();
    }
}
