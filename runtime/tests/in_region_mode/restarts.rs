//! A session that ends while a key is being made.

#[path = "../pair/mod.rs"]
mod pair;

use keyfence::{EngineEvent, Event, KeyRefusal, Lease, Rights};
use pair::judged::{Court, Part};
use pair::scene::{Scene, lookup};
use pair::switched::{on, set};

fn part() -> Part {
    let mut part = Part::quiet();
    part.lcores = 2;
    part.limits.lanes = 1;
    part
}

/// A queue pair of the right side breaks; in the step in which the one lcore sees it, a context of the other makes the session's first grant. Returns
/// whether that came too late to get a key.
fn grant_while_it_breaks(qp: u64) -> bool {
    let mut court = Court::new(part(), part());
    let pair = &mut court.pair;
    let holder = pair.left.puppet(0, "holder");
    let owner = pair.right.puppet(1, "owner");
    pair.steps(10);
    let to = lookup(pair, &owner, "holder");
    set(&court.right_switches.last_qp, qp);
    on(&court.right_switches.break_last);
    pair.step();
    owner.act(move |cx| {
        let buf = cx.alloc(4096).unwrap();
        // Its own lane may be the one that broke.
        let _ = cx.grant(&buf, 0..64, Rights::ALL, to, Lease::None);
    });
    pair.steps(20_000);
    let over = |event: &Event| {
        matches!(
            event,
            Event::KeyRefused {
                why: KeyRefusal::SessionOver,
                ..
            }
        )
    };
    let came_late = owner.events().iter().any(over);
    let ups = |event: &&EngineEvent| matches!(event, EngineEvent::PeerUp(_));
    assert_eq!(pair.right.events.iter().filter(ups).count(), 2);
    drop(holder);
    // R7, R8: no key was ever made in the domain, so it went to the next session; nothing may wait for its end.
    if came_late {
        let grants = pair.right.used(|usage| usage.grants.into());
        assert_eq!(grants, 0, "{:?}", pair.right.lcores[1].usage());
    }
    came_late
}

#[test]
fn r7_a_grant_whose_session_ends_before_its_key_is_made_keeps_no_lane() {
    let first = {
        let mut court = Court::new(part(), part());
        let _ = Scene::new(&mut court.pair);
        court
            .right_switches
            .last_qp
            .load(keyfence_mempool::sync::Ordering::Relaxed)
    };
    let late = (first - 3..=first)
        .filter(|&qp| grant_while_it_breaks(qp))
        .count();
    assert!(late > 0, "the race was not met");
}
