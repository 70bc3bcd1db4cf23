//! Ends that hear nothing: of a break that nobody tells, and of a peer that is silent.

use keyfence::wire::Frame;

use super::pair::judged::{MS, Part};
use super::pair::raw::Duel;
use super::pair::switched::Switches;
use keyfence_mempool::sync::{Arc, Ordering};

/// A duel in which lanes are repaired, and the raw peer gives no credit of the lane back.
fn without_credit() -> (Duel, Arc<Switches>) {
    let mut part = Part::quiet();
    part.limits.rebuilds = 8;
    let mut duel = Duel::new(part);
    duel.raw.gives_credit = false;
    let switches = Arc::clone(&duel.switches);
    (duel, switches)
}

/// Lets a millisecond pass, an interval of signs of life, in which the raw peer gives one of its own.
fn interval(duel: &mut Duel) {
    for lane in 0..duel.raw.lanes.len() {
        let header = duel.raw.header(lane);
        duel.raw.send(lane, &header, &Frame::KeepAlive { number: 0 });
    }
    duel.now_ns += MS;
    duel.steps(4);
}

#[test]
fn r5_an_end_without_a_credit_learns_of_a_break_after_any_number_of_intervals() {
    let (mut duel, switches) = without_credit();
    let probes = || switches.closings.load(Ordering::Relaxed);
    for _ in 0..200 {
        interval(&mut duel);
    }
    // Each was proven executed, or there would be no second one.
    assert!(probes() > 50, "{}", probes());
    assert_eq!(duel.side.stat("requests_failed"), 0);
    assert_eq!(duel.side.stat("lanes_broken"), 0);
    duel.raw.break_lane(0);
    for _ in 0..4 {
        duel.now_ns += MS;
        duel.steps(4);
    }
    assert_eq!(duel.side.stat("lanes_broken"), 1);
}
