//! Ends that hear nothing: of a break that nobody tells, and of a peer that is silent.

use keyfence::EngineEvent;
use keyfence::config::Timeouts;
use keyfence::wire::Frame;
use keyfence_mempool::sync::{Arc, Ordering};

use super::pair::judged::{MS, Part};
use super::pair::raw::Duel;
use super::pair::switched::Switches;
use super::{Two, is_down, two};

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
        duel.raw
            .send(lane, &header, &Frame::KeepAlive { number: 0 });
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

/// An engine that is silent for longer than `timeouts.reconnect` is lost, whether the lane would be repaired or not: it is not given the time twice.
#[test]
fn r5_a_peer_that_is_silent_for_too_long_is_lost_after_that_time_once() {
    let (mut pair, _) = two();
    let reconnect_ns = Timeouts::default().reconnect_timeout_ns;
    let alone_for = |pair: &mut Two, ns: u64| {
        let until_ns = pair.now_ns + ns;
        while pair.now_ns < until_ns {
            pair.now_ns += MS / 2;
            let now_ns = pair.now_ns;
            pair.left.step(now_ns);
        }
    };
    alone_for(&mut pair, reconnect_ns - 2 * MS);
    assert!(!is_down(&pair) && pair.left.stat("lanes_broken") == 0);
    // Its queue pair is given as long to drain as any.
    alone_for(&mut pair, reconnect_ns / 4);
    assert!(is_down(&pair), "{:?}", pair.left.events);
    assert_eq!(pair.left.stat("peers_silent"), 1);
    // It finds out, and both join anew.
    let ups = |pair: &Two| {
        let up = |event: &&EngineEvent| matches!(event, EngineEvent::PeerUp(_));
        pair.right.events.iter().filter(up).count()
    };
    // Until its own time for the repair is over it answers that it is busy.
    for _ in 0..2 * reconnect_ns / MS {
        pair.step_for(MS);
    }
    assert_eq!(ups(&pair), 2);
}
