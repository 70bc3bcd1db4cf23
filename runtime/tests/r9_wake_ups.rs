//! R9, R5: whoever waits is woken, and what waits is bounded, also when the peer takes its time or the slot changes hands.

mod pair;

use keyfence::ids::{LcoreId, PeerId};
use keyfence::limits::Limit;
use keyfence::{Context, Event, LookupError, Service, Status, SubmitError, Work};
use keyfence::{EngineEvent, Local};
use keyfence_mempool::sync::{Arc, AtomicU64, Ordering};
use pair::judged::{Court, MS, Part, fast_limits};
use pair::scene::{Scene, completions, lookup};
use pair::switched::set;
use pair::{Pair, Slot};

/// Asks for a flush whenever one has ended; with nothing retired it ends at once.
struct Restless(Arc<AtomicU64>);

impl Service for Restless {
    fn poll(&mut self, cx: &mut Context<'_>) -> Work {
        if self.0.load(Ordering::Relaxed) == 0 {
            cx.flush(0).unwrap();
        }
        Work::Wait
    }

    fn on_event(&mut self, cx: &mut Context<'_>, event: Event) {
        if matches!(event, Event::Flushed { .. }) {
            self.0.fetch_add(1, Ordering::Relaxed);
            cx.flush(0).unwrap();
        }
    }
}

#[test]
fn r5_an_event_that_causes_another_is_told_once_a_step() {
    let mut pair = Pair::new();
    let told = Arc::new(AtomicU64::new(0));
    let service = Box::new(Restless(Arc::clone(&told)));
    pair.left
        .engine
        .open(LcoreId(0), "restless", 1, service)
        .unwrap();
    pair.steps(10);
    let before = told.load(Ordering::Relaxed);
    assert!(before > 0);
    pair.steps(100);
    assert_eq!(told.load(Ordering::Relaxed) - before, 100);
}

#[test]
fn r9_the_next_context_of_a_slot_does_not_wait_for_the_credits_of_the_last() {
    let mut limits = fast_limits();
    limits.contexts = 1;
    limits.receive_depth = 4;
    let left = Part {
        limits,
        ..Part::quiet()
    };
    let mut right = Part::quiet();
    right.limits.receive_depth = 4;
    let mut court = Court::new(left, right);
    let pair = &mut court.pair;
    let scene = Scene::new(pair);
    let to = scene.owner_id;
    // The right stands still, so the sender waits for a credit of the lane.
    for _ in 0..8 {
        scene.holder.act(move |cx| cx.send(to, b"more", 1).unwrap());
    }
    for _ in 0..200 {
        pair.now_ns += 1_000;
        pair.left.step(pair.now_ns);
    }
    assert_eq!(pair.left.used(|usage| usage.ops), 8);
    let id = scene.holder_context();
    pair.left.engine.kill(id);
    pair.until(|pair| pair.left.reclaimed(id));
    let next = pair.left.puppet(0, "next");
    pair.until(|pair| pair.left.id_of("next").is_some());
    let next_id = lookup(pair, &scene.owner, "next");
    let kept: Vec<Event> = scene.owner.events();
    let granted = pair::scene::grant(pair, &scene.owner, &next, next_id, 64);
    let import = granted.import;
    next.act(move |cx| {
        let buf = cx.alloc(64).unwrap();
        cx.write(&import, 0, &[Local::prefix(&buf, 64)], 5).unwrap();
    });
    let mut done = Vec::new();
    pair.until(|_| {
        done.extend(completions(&next.events()));
        !done.is_empty()
    });
    assert_eq!(done[0].status, Status::Ok);
    drop(kept);
}

#[test]
fn r9_who_was_refused_for_want_of_shared_room_hears_when_there_is_some() {
    let mut limits = fast_limits();
    limits.ops_in_flight = 4;
    let left = Part {
        limits,
        ..Part::quiet()
    };
    let mut court = Court::new(left, Part::quiet());
    let pair = &mut court.pair;
    let scene = Scene::new(pair);
    let to = scene.owner_id;
    let other = pair.left.puppet(0, "other");
    pair.steps(5);
    let refused = Slot::new();
    let error = refused.clone();
    scene.holder.act(move |cx| {
        for token in 0..4 {
            cx.send(to, b"full", token).unwrap();
        }
    });
    // Polled behind the holder, in the same step.
    other.act(move |cx| error.set(cx.send(to, b"one too many", 9).unwrap_err()));
    pair.step();
    let Some(SubmitError::Limit(error)) = refused.take() else {
        panic!("not refused by a limit");
    };
    assert_eq!(
        (error.limit, error.value, error.in_use, error.wanted),
        (Limit::OpsInFlight, 4, 4, 1)
    );
    let mut writable = false;
    pair.until(|_| {
        writable |= other
            .events()
            .iter()
            .any(|event| matches!(event, Event::Writable));
        writable
    });
}

#[test]
fn r9_one_operation_that_ends_wakes_one_of_those_who_wait_for_shared_room() {
    let mut limits = fast_limits();
    limits.ops_in_flight = 4;
    let left = Part {
        limits,
        ..Part::quiet()
    };
    let mut court = Court::new(left, Part::quiet());
    let scene = Scene::new(&mut court.pair);
    let to = scene.owner_id;
    let other = court.pair.left.puppet(0, "on the other lane");
    let waiting: Vec<_> = (0..3)
        .map(|at| court.pair.left.puppet(0, &format!("waits {at}")))
        .collect();
    court.pair.steps(20);
    // Three that do not end for now, and one that does.
    set(&court.left_switches.swallow, 1);
    scene.holder.act(move |cx| {
        for token in 0..3 {
            cx.send(to, b"long", token).unwrap();
        }
    });
    court.pair.steps(20);
    assert_eq!(court.left_switches.swallow.load(Ordering::Relaxed), 0);
    assert_eq!(court.pair.left.used(|usage| usage.ops), 3);
    other.act(move |cx| cx.send(to, b"short", 9).unwrap());
    for puppet in &waiting {
        puppet.act(move |cx| assert!(cx.send(to, b"one too many", 9).is_err()));
    }
    let woken = || {
        let events = waiting.iter().flat_map(|puppet| puppet.events());
        events
            .filter(|event| matches!(event, Event::Writable))
            .count()
    };
    court.pair.steps(100);
    assert_eq!(completions(&other.events()).len(), 1);
    assert_eq!(woken(), 1);
    // A later request on that lane proves the three; with nothing in flight, nobody is left waiting.
    scene.holder.act(move |cx| cx.send(to, b"last", 4).unwrap());
    court.pair.steps(100);
    assert_eq!(court.pair.left.used(|usage| usage.ops), 0);
    assert_eq!(woken(), 2);
}

#[test]
fn r9_look_ups_and_signs_of_life_for_a_peer_that_takes_none_are_bounded() {
    let mut left = Part::quiet();
    left.timeouts.reconnect_timeout_ns = 10_000 * MS;
    let mut court = Court::new(left, Part::quiet());
    let scene = Scene::new(&mut court.pair);
    let refused = Slot::new();
    for _ in 0..600 {
        let error = refused.clone();
        scene.holder.act(move |cx| {
            if let Err(why) = cx.lookup(PeerId(0), "owner", 1) {
                error.set(why);
            }
        });
    }
    // The right stands still.
    let mut now_ns = court.pair.now_ns;
    for _ in 0..3_000 {
        now_ns += MS;
        court.pair.left.step(now_ns);
    }
    assert!(matches!(refused.take(), Some(LookupError::TooMany { .. })));
    // Contexts that ask and die leave nothing that grows.
    for _ in 0..20 {
        let puppet = court.pair.left.puppet(0, "asks");
        for _ in 0..64 {
            puppet.act(|cx| {
                let _ = cx.lookup(PeerId(0), "owner", 1);
            });
        }
        for _ in 0..100 {
            now_ns += 1_000;
            court.pair.left.step(now_ns);
        }
        let id = court.pair.left.id_of("asks").unwrap();
        court.pair.left.engine.kill(id);
        for _ in 0..100 {
            now_ns += 1_000;
            court.pair.left.step(now_ns);
        }
        assert!(court.pair.left.reclaimed(id));
    }
    assert_eq!(court.pair.left.stat("lanes_broken"), 0);
    // When the right goes on, every question that still stands is answered.
    court.pair.now_ns = now_ns;
    let mut answered = 0;
    court.pair.until(|_| {
        answered += scene
            .holder
            .events()
            .iter()
            .filter(|event| {
                matches!(
                    event,
                    Event::Resolved {
                        context: Some(_),
                        ..
                    }
                )
            })
            .count();
        answered >= 256
    });
}

#[test]
fn r9_both_sides_spend_all_credits_on_each_other_and_go_on() {
    for depth in [4, 5, 8, 16] {
        let part = || {
            let mut limits = fast_limits();
            limits.receive_depth = depth;
            Part {
                limits,
                ..Part::quiet()
            }
        };
        let mut court = Court::new(part(), part());
        let scene = Scene::new(&mut court.pair);
        for round in 0..4 {
            // Ends of contexts, that both sides tell each other of at the same time.
            for number in 0..12 {
                let name = format!("{round}-{number}");
                court.pair.left.puppet(0, &name);
                court.pair.right.puppet(0, &name);
            }
            court.pair.steps(20);
            for side in [&mut court.pair.left, &mut court.pair.right] {
                for number in 0..12 {
                    let id = side.id_of(&format!("{round}-{number}")).unwrap();
                    side.engine.kill(id);
                }
            }
            court.pair.steps(200);
        }
        let closed = court.pair.left.events.iter();
        let closed = closed.filter(|event| matches!(event, EngineEvent::Reclaimed { .. }));
        assert_eq!(closed.count(), 48);
        // The lane carries on: questions are answered both ways.
        lookup(&mut court.pair, &scene.owner, "holder");
        lookup(&mut court.pair, &scene.holder, "owner");
        // And when nobody says anything, nothing is said but signs of life.
        court.pair.steps(500);
        let before = court.pair.left.stat("frames_received");
        court.pair.steps(1_000);
        let idle = court.pair.left.stat("frames_received") - before;
        assert!(idle <= 8, "{idle} frames in an idle millisecond");
    }
}

#[test]
fn r9_a_stale_name_of_a_slot_does_not_take_the_credits_of_its_next_context() {
    let mut court = Court::quiet();
    let scene = Scene::new(&mut court.pair);
    let old = scene.owner_id;
    let id = scene.owner_context();
    court.pair.right.engine.kill(id);
    court.pair.until(|pair| pair.right.reclaimed(id));
    let next = court.pair.right.puppet(0, "next");
    court.pair.steps(20);
    scene.holder.events();
    let new = lookup(&mut court.pair, &scene.holder, "next");
    assert_eq!((new.id.slot, old.id.slot), (id.slot, id.slot));
    for _ in 0..40 {
        // Refused from the ninth on.
        scene
            .holder
            .act(move |cx| drop(cx.send(new, b"to the living", 1)));
        scene.holder.act(move |cx| {
            assert_eq!(
                cx.send(old, b"to the dead", 2),
                Err(SubmitError::ContextGone)
            );
        });
    }
    // `next` keeps what it gets: the window is one context's.
    court.pair.steps(500);
    assert_eq!(court.pair.left.stat("services_panicked"), 0);
    assert_eq!(court.pair.right.stat("messages_beyond_credit"), 0);
    assert_eq!(next.events().len(), 8);
}
