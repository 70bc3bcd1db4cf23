//! R2, R7: sessions that are lost, by a broken queue pair, a dropped engine or silence; and the sessions after them.

mod pair;

use std::collections::BTreeMap;

use keyfence::pmd::wrap::fault::{Injection, Plan, Target};
use keyfence::{EngineEvent, Event, Local, Status};
use keyfence_mempool::sync::Ordering;
use pair::judged::{Court, Judged, MS, Part};
use pair::scene::{completions, grant, lookup};
use pair::switched::{Switches, off, on};
use pair::{Pair, Puppet, REGIONS, Side};

/// Of two lanes.
const WINDOWS: u64 = if REGIONS { 0 } else { 2 * 64 };

fn ups(side: &Side<Judged>) -> usize {
    let ups = |event: &&EngineEvent| matches!(event, EngineEvent::PeerUp(_));
    side.events.iter().filter(ups).count()
}

fn downs(side: &Side<Judged>) -> usize {
    let downs = |event: &&EngineEvent| matches!(event, EngineEvent::PeerDown(_));
    side.events.iter().filter(downs).count()
}

/// Contexts of one session: two on each side, so that both lanes carry traffic.
struct Traffic {
    writers: Vec<Puppet>,
    owners: Vec<Puppet>,
    submitted: u64,
    ends: BTreeMap<u64, Status>,
}

impl Traffic {
    fn start(court: &mut Court, round: usize) -> Self {
        let names: [&'static str; 4] = [
            ["w0", "w1", "o0", "o1"],
            ["w2", "w3", "o2", "o3"],
            ["w4", "w5", "o4", "o5"],
            ["w6", "w7", "o6", "o7"],
        ][round];
        let pair = &mut court.pair;
        let writers: Vec<_> = names[..2]
            .iter()
            .map(|name| pair.left.puppet(0, name))
            .collect();
        let owners: Vec<_> = names[2..]
            .iter()
            .map(|name| pair.right.puppet(0, name))
            .collect();
        pair.steps(20);
        let mut traffic = Self {
            writers,
            owners,
            submitted: 0,
            ends: BTreeMap::new(),
        };
        for (at, name) in names[..2].iter().enumerate() {
            let (owner, writer) = (&traffic.owners[at], &traffic.writers[at]);
            let to = lookup(pair, owner, name);
            let granted = grant(pair, owner, writer, to, 64 << 10);
            let import = granted.import;
            // Writes whenever there is room, each with a token of its own.
            let base = (at as u64) << 32;
            for number in 0..400_u64 {
                writer.act(move |cx| {
                    let Ok(buf) = cx.alloc(64 << 10) else { return };
                    let local = [Local::prefix(&buf, 64 << 10)];
                    let _ = cx.write(&import, 0, &local, base | number);
                });
            }
            traffic.submitted += 400;
        }
        traffic
    }

    fn collect(&mut self) -> usize {
        let mut down = 0;
        for writer in &self.writers {
            let events = writer.events();
            for done in completions(&events) {
                let twice = self.ends.insert(done.token, done.status);
                assert_eq!(twice, None, "R7: one completion each");
            }
            down += events
                .iter()
                .filter(|event| matches!(event, Event::PeerDown(_)))
                .count();
        }
        down
    }

    /// Every operation has ended, and none as if it could not have been executed but surely was.
    fn audit(&mut self, court: &Court) {
        assert!(self.ends.values().any(|status| *status == Status::Ok));
        assert_eq!(court.pair.left.used(|usage| usage.ops), 0);
        assert_eq!(court.pair.left.used(|usage| usage.op_bytes), 0);
        let zapped = |owner: &Puppet| {
            let events = owner.events();
            let zapped = events
                .iter()
                .filter(|event| matches!(event, Event::Zapped(_)));
            let downs = events
                .iter()
                .filter(|event| matches!(event, Event::PeerDown(_)));
            (zapped.count(), downs.count())
        };
        for owner in &self.owners {
            assert_eq!(
                zapped(owner),
                (1, 1),
                "each grant and each loss is told once"
            );
        }
    }
}

/// Steps until both sides have told the loss number `round`; at each notice the books of that side know no key.
fn lost(court: &mut Court, traffic: &mut Traffic, round: usize) {
    let (left, right) = (court.left.clone(), court.right.clone());
    let mut told = 0;
    court.pair.until(|pair| {
        told += traffic.collect();
        if downs(&pair.right) == round && ups(&pair.right) == round {
            assert_eq!(right.all_live_keys(), 0, "R2: {right:?}");
        }
        if downs(&pair.left) == round && ups(&pair.left) == round {
            assert_eq!(left.open_requests(), 0, "R2: {left:?}");
        }
        downs(&pair.left) == round && downs(&pair.right) == round
    });
    court.pair.steps(10);
    told += traffic.collect();
    assert_eq!(told, 2, "each of the writers hears of it once");
}

#[test]
fn r7_three_sessions_are_lost_and_a_fourth_stands() {
    let error = |created, after| Injection::ErrorQp {
        target: Target::Created(created),
        after,
    };
    let plan = Plan::new([error(0, 200), error(3, 220), error(4, 180)]);
    let mut court = Court::new(Part::new(plan), Part::quiet());
    for round in 1..=3 {
        let mut traffic = Traffic::start(&mut court, round - 1);
        lost(&mut court, &mut traffic, round);
        traffic.audit(&court);
        court
            .pair
            .until(|pair| ups(&pair.left) == round + 1 && ups(&pair.right) == round + 1);
    }
    let mut traffic = Traffic::start(&mut court, 3);
    court.pair.steps(2_000);
    traffic.collect();
    assert!(!traffic.ends.is_empty());
    assert!(traffic.ends.values().all(|status| *status == Status::Ok));
    // Nothing of the lost ones is left: not at the devices, not in the tables.
    for (side, switches) in [
        (&court.pair.left, &court.left_switches),
        (&court.pair.right, &court.right_switches),
    ] {
        assert_eq!(switches.qps.load(Ordering::Relaxed), 2);
        assert_eq!(switches.windows.load(Ordering::Relaxed), WINDOWS);
        assert_eq!(switches.pds.load(Ordering::Relaxed), 1);
        assert_eq!(side.used(|usage| usage.lanes.into()), 2);
        assert_eq!(side.engine.receives_in_use(), 2 * 64);
        assert_eq!(side.stat("drains_cut_short"), 0);
    }
    let keys = court.pair.right.used(|usage| usage.windows.into());
    let regions = |switches: &Switches| switches.regions.load(Ordering::Relaxed);
    assert_eq!(keys, if REGIONS { 0 } else { 2 });
    assert_eq!(regions(&court.left_switches), 1, "the arena");
    assert_eq!(
        regions(&court.right_switches),
        if REGIONS { 1 + 2 } else { 1 }
    );
    court.acquit();
}

#[test]
fn r2_a_peer_that_stands_still_is_lost_and_found_again() {
    let mut court = Court::quiet();
    let mut traffic = Traffic::start(&mut court, 0);
    court.pair.steps(5);
    let mut told = 0;
    let start_ns = court.pair.now_ns;
    while downs(&court.pair.left) == 0 {
        court.pair.now_ns += 10_000;
        court.pair.left.step(court.pair.now_ns);
        told += traffic.collect();
        assert!(court.pair.now_ns - start_ns < 40 * MS);
    }
    assert!(court.pair.now_ns - start_ns >= 20 * MS);
    told += traffic.collect();
    assert_eq!(told, 2);
    assert_eq!(court.left.open_requests(), 0);
    assert_eq!(court.pair.left.used(|usage| usage.ops), 0);
    assert!(
        traffic
            .ends
            .values()
            .any(|status| *status == Status::PeerLost)
    );
    // What it did not know while it stood still it learns now: by its own loss, and then both begin anew.
    court
        .pair
        .until(|pair| ups(&pair.left) == 2 && ups(&pair.right) == 2);
    assert_eq!(downs(&court.pair.right), 1);
    court.acquit();
}

#[test]
fn r5_an_idle_session_is_not_taken_for_a_lost_one() {
    let mut court = Court::quiet();
    for _ in 0..10_000 {
        court.pair.step_for(10_000);
    }
    // Nor is a pause of everybody.
    court.pair.step_for(1_000 * MS);
    court.pair.steps(100);
    court.pair.step_for(1_000 * MS);
    court.pair.steps(100);
    assert_eq!(court.pair.left.stat("lanes_broken"), 0);
    assert_eq!(court.pair.right.stat("lanes_broken"), 0);
}

#[test]
fn r2_an_engine_that_is_dropped_is_lost_and_its_next_start_is_found() {
    let mut court = Court::quiet();
    let mut traffic = Traffic::start(&mut court, 0);
    court.pair.steps(5);
    let Court {
        pair,
        left: ledger,
        left_switches,
        fabric,
        ..
    } = court;
    let Pair {
        mut left,
        right,
        mut now_ns,
        ..
    } = pair;
    drop(right);
    let mut told = 0;
    for _ in 0..30_000 {
        now_ns += 1_000;
        left.step(now_ns);
        told += traffic.collect();
    }
    assert_eq!((downs(&left), told), (1, 2));
    assert_eq!(ledger.open_requests(), 0);
    assert_eq!(left.used(|usage| usage.ops), 0);
    assert!(
        left_switches.qps.load(Ordering::Relaxed) <= 1,
        "the next try"
    );
    let (device, _, _) = pair::judged::device(&fabric, Plan::default());
    let builder = Part::quiet().builder("right", "left");
    let mut right = pair::started(builder, device, 77);
    for _ in 0..30_000 {
        now_ns += 1_000;
        left.step(now_ns);
        right.step(now_ns);
    }
    assert_eq!((ups(&left), ups(&right)), (2, 1));
    assert_eq!(left_switches.qps.load(Ordering::Relaxed), 2);
}

#[test]
fn r7_queue_pairs_that_can_not_be_made_for_a_while_keep_nobody_from_joining() {
    for which in [0, 1] {
        let plan = Plan::new([Injection::ErrorQp {
            target: Target::Created(0),
            after: 60,
        }]);
        let mut court = Court::new(Part::new(plan), Part::quiet());
        let mut traffic = Traffic::start(&mut court, 0);
        let switches = [&court.left_switches, &court.right_switches][which].clone();
        on(&switches.create_fails);
        lost(&mut court, &mut traffic, 1);
        court.pair.steps(30_000);
        assert_eq!((ups(&court.pair.left), ups(&court.pair.right)), (1, 1));
        off(&switches.create_fails);
        court
            .pair
            .until(|pair| ups(&pair.left) == 2 && ups(&pair.right) == 2);
        for switches in [&court.left_switches, &court.right_switches] {
            assert_eq!(switches.qps.load(Ordering::Relaxed), 2);
            assert_eq!(switches.windows.load(Ordering::Relaxed), WINDOWS);
            assert_eq!(switches.pds.load(Ordering::Relaxed), 1);
        }
    }
}

#[test]
fn r7_a_join_that_is_cut_short_at_any_request_is_begun_again() {
    for (created, after) in (0..2).flat_map(|created| (0..6).map(move |after| (created, after))) {
        for left in [true, false] {
            let plan = Plan::new([Injection::ErrorQp {
                target: Target::Created(created),
                after,
            }]);
            let (left, right) = if left {
                (plan, Plan::default())
            } else {
                (Plan::default(), plan)
            };
            // Waits until both are up.
            let mut court = Court::new(Part::new(left), Part::new(right));
            court.pair.steps(30_000);
            assert_eq!(court.pair.left.used(|usage| usage.lanes.into()), 2);
            assert_eq!(court.pair.right.used(|usage| usage.lanes.into()), 2);
            let ups = (ups(&court.pair.left), ups(&court.pair.right));
            let downs = (downs(&court.pair.left), downs(&court.pair.right));
            assert_eq!((ups.0 - downs.0, ups.1 - downs.1), (1, 1));
        }
    }
}

/// Each session gives a context's senders fresh credits: what it holds back of earlier ones counts all the same.
#[test]
fn r9_messages_held_over_sessions_stay_within_one_share_of_the_pool() {
    let mut court = Court::quiet();
    let hoarder = court.pair.right.puppet(0, "hoarder");
    let sender = court.pair.left.puppet(0, "sender");
    let mut held = Vec::new();
    // Two lanes of eight messages each.
    for round in 1..=3 {
        court
            .pair
            .until(|pair| ups(&pair.left) == round && ups(&pair.right) == round);
        court.pair.steps(20);
        let to = lookup(&mut court.pair, &sender, "hoarder");
        for token in 0..8 {
            sender.act(move |cx| cx.send(to, &[7; 32], token).unwrap());
        }
        court.pair.steps(200);
        held.extend(hoarder.events());
        let messages = held
            .iter()
            .filter(|event| matches!(event, Event::Message(_)));
        assert_eq!(messages.count(), (8 * round).min(16));
        // The left is not heard of until the right gives it up.
        for _ in 0..40 {
            court.pair.now_ns += MS;
            let now_ns = court.pair.now_ns;
            court.pair.right.step(now_ns);
        }
    }
    assert_eq!(court.pair.right.stat("contexts_deaf"), 1);
}

#[test]
fn a_session_that_does_not_stand_yet_is_not_shown() {
    let fabric = keyfence::pmd::soft::Fabric::new();
    let device = |plan| pair::judged::device(&fabric, plan).0;
    let part = Part::quiet();
    let mut left = pair::side(part.builder("left", "right"), device(Plan::default()));
    let mut right = pair::side(part.builder("right", "left"), device(Plan::default()));
    let puppet = left.puppet(0, "early");
    let shown = pair::Slot::new();
    let mut told = false;
    for step in 1..200 {
        let to_shown = shown.clone();
        puppet.act(move |cx| to_shown.set(cx.peers().count()));
        left.step(step * 1_000);
        right.step(step * 1_000);
        if let Some(count) = shown.take() {
            told |= puppet
                .events()
                .iter()
                .any(|event| matches!(event, Event::PeerUp(_)));
            assert_eq!(count, usize::from(told), "step {step}");
        }
    }
    assert!(told);
}
