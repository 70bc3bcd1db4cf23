//! B10, R9: a remote context that takes no messages costs its senders back-pressure, and nobody anything else.

mod pair;

use std::sync::Mutex;

use keyfence::ids::{ContextId, LcoreId, RemoteContext};
use keyfence::pmd::wrap::fault::{Injection, Plan, Span, Target};
use keyfence::{Context, Event, Local, OpKind, Service, Status, SubmitError, Work};
use keyfence_mempool::sync::{Arc, AtomicU64, Ordering};
use pair::Slot;
use pair::judged::{Court, Part, fast_limits};
use pair::scene::{Scene, completions, lookup};

/// What a context takes at a time.
const MESSAGES: u32 = 8;

const FULL: SubmitError = SubmitError::NoCredit { messages: MESSAGES };

fn one_lane() -> Court {
    let part = || {
        let mut limits = fast_limits();
        limits.lanes = 1;
        Part {
            limits,
            ..Part::quiet()
        }
    };
    Court::new(part(), part())
}

/// Sends until it is refused, and says how often it was not.
fn fill(cx: &mut Context<'_>, to: RemoteContext) -> Result<(), SubmitError> {
    for token in 0..MESSAGES {
        cx.send(to, b"kept", token.into())?;
    }
    cx.send(to, b"one too many", 99)
}

fn count(events: &[Event], test: fn(&Event) -> bool) -> usize {
    events.iter().filter(|event| test(event)).count()
}

fn is_writable(event: &Event) -> bool {
    matches!(event, Event::Writable)
}

#[test]
fn b10_a_deaf_partner_costs_its_sender_back_pressure_and_nothing_else() {
    let mut court = one_lane();
    let scene = Scene::new(&mut court.pair);
    let import = scene.grant(&mut court.pair, 64).import;
    let deaf = court.pair.right.puppet(0, "deaf");
    court.pair.steps(5);
    let to_deaf = lookup(&mut court.pair, &scene.holder, "deaf");
    let to_owner = scene.owner_id;
    let refused = Slot::new();
    let error = refused.clone();
    scene.holder.act(move |cx| {
        error.set(fill(cx, to_deaf).unwrap_err());
        // Behind those messages, on the same lane.
        let buf = cx.alloc(64).unwrap();
        let local = [Local::prefix(&buf, 64)];
        cx.write(&import, 0, &local, 100).unwrap();
        cx.send(to_owner, b"to one that hears", 101).unwrap();
        cx.write_with_immediate(&import, 0, &local, 7, 102).unwrap();
    });
    court.pair.step();
    assert_eq!(refused.take(), Some(FULL));
    // Much more than the windows, to the one that hears; now and then the deaf one is tried again.
    let (mut sent, mut heard) = (0, 0);
    court.pair.until(|_| {
        scene.holder.act(move |cx| {
            assert_eq!(cx.send(to_deaf, b"and now?", 99), Err(FULL));
            let _ = cx.send(to_owner, b"to one that hears", 101);
        });
        let events = scene.owner.events();
        heard += count(&events, |event| matches!(event, Event::Message(_)));
        let done = completions(&scene.holder.events());
        assert!(done.iter().all(|done| done.status == Status::Ok));
        sent += done.len();
        heard >= 200
    });
    assert!(sent >= 200 + MESSAGES as usize);
    let messages = deaf.events();
    let is_message = |event: &Event| matches!(event, Event::Message(_));
    assert_eq!(count(&messages, is_message), MESSAGES as usize);
    court.pair.steps(50);
    scene.holder.events();
    court.pair.steps(50);
    assert_eq!(count(&scene.holder.events(), is_writable), 0);
    // It gives back, and the sender hears of it.
    drop(messages);
    court
        .pair
        .until(|_| count(&scene.holder.events(), is_writable) == 1);
    scene
        .holder
        .act(move |cx| cx.send(to_deaf, b"at last", 103).unwrap());
    court
        .pair
        .until(|_| completions(&scene.holder.events()).len() == 1);
    court.acquit();
}

#[test]
fn b10_notices_of_landed_data_are_refused_like_messages() {
    let mut court = one_lane();
    let scene = Scene::new(&mut court.pair);
    let import = scene.grant(&mut court.pair, 64).import;
    let to = scene.owner_id;
    let refused = Slot::new();
    let errors = refused.clone();
    scene.holder.act(move |cx| {
        let last = fill(cx, to).unwrap_err();
        let buf = cx.alloc(64).unwrap();
        let local = [Local::prefix(&buf, 64)];
        let landed = cx.write_with_immediate(&import, 0, &local, 7, 102);
        errors.set((last, landed.unwrap_err()));
        cx.write(&import, 0, &local, 100).unwrap();
    });
    court.pair.steps(100);
    assert_eq!(refused.take(), Some((FULL, FULL)));
    let done = completions(&scene.holder.events());
    assert_eq!(done.len(), MESSAGES as usize + 1);
    assert_eq!(done.last().unwrap().kind, OpKind::Write);
    assert_eq!(court.pair.left.engine.buffers_in_use(), 0);
    court.acquit();
}

/// One whose lane is so slow that what is queued behind two writes stays unposted for long.
fn slow_left() -> Part {
    let mut limits = fast_limits();
    limits.lanes = 1;
    limits.slice_bytes = 64 << 10;
    limits.lane_bytes_in_flight = 64 << 10;
    let late = Injection::HoldBack {
        target: Target::Every,
        span: Span {
            first: 0,
            count: u64::MAX,
        },
        polls: 200,
    };
    Part {
        limits,
        ..Part::new(Plan {
            injections: vec![late],
        })
    }
}

#[test]
fn r7_credits_of_messages_that_are_never_posted_come_back() {
    let mut right = Part::quiet();
    right.limits.lanes = 1;
    let mut court = Court::new(slow_left(), right);
    let scene = Scene::new(&mut court.pair);
    let import = scene.grant(&mut court.pair, 1 << 20).import;
    let other = court.pair.left.puppet(0, "other");
    court.pair.steps(5);
    let to = scene.owner_id;
    let refused = Slot::new();
    let error = refused.clone();
    scene.holder.act(move |cx| {
        let buf = cx.alloc(1 << 20).unwrap();
        let local = [Local::prefix(&buf, 1 << 20)];
        cx.write(&import, 0, &local, 100).unwrap();
        fill(cx, to).unwrap_err();
    });
    court.pair.steps(20);
    other.act(move |cx| error.set(cx.send(to, b"no room", 1).unwrap_err()));
    court.pair.steps(20);
    assert_eq!(refused.take(), Some(FULL));
    assert_eq!(count(&other.events(), is_writable), 0);
    // Nothing of the holder's was sent, and nothing will be.
    let id = scene.holder_context();
    court.pair.left.engine.kill(id);
    court.pair.steps(10);
    assert_eq!(count(&other.events(), is_writable), 1);
    let refused = Slot::new();
    let error = refused.clone();
    other.act(move |cx| error.set(fill(cx, to).unwrap_err()));
    court.pair.until(|pair| pair.left.reclaimed(id));
    assert_eq!(refused.take(), Some(FULL), "all eight are there again");
    let mut heard = Vec::new();
    court.pair.until(|_| {
        heard.extend(scene.owner.events());
        count(&heard, |event| matches!(event, Event::Message(_))) == MESSAGES as usize
    });
    court.acquit();
}

/// Is refused once; then, whenever it is told of room, sends if it is of those who do.
struct Waits {
    to: RemoteContext,
    sends: bool,
    board: Arc<Mutex<Board>>,
    tried: bool,
}

#[derive(Default)]
struct Board {
    told: Vec<ContextId>,
    errors: Vec<SubmitError>,
}

impl Service for Waits {
    fn poll(&mut self, cx: &mut Context<'_>) -> Work {
        if !core::mem::replace(&mut self.tried, true) {
            assert_eq!(cx.send(self.to, b"no room", 1), Err(FULL));
        }
        Work::Wait
    }

    fn on_event(&mut self, cx: &mut Context<'_>, event: Event) {
        if !is_writable(&event) {
            return;
        }
        let mut board = self.board.lock().unwrap();
        board.told.push(cx.id());
        if self.sends
            && let Err(why) = cx.send(self.to, b"now", 2)
        {
            board.errors.push(why);
        }
    }
}

/// Twelve contexts on the left that were refused by the owner, in the order of their slots.
fn twelve_refused(court: &mut Court, scene: &Scene, sends: bool) -> Arc<Mutex<Board>> {
    let board = Arc::new(Mutex::new(Board::default()));
    let to = scene.owner_id;
    scene.holder.act(move |cx| drop(fill(cx, to)));
    court.pair.steps(20);
    for _ in 0..12 {
        let service = Waits {
            to,
            sends,
            board: Arc::clone(&board),
            tried: false,
        };
        let left = &mut court.pair.left.engine;
        left.open(LcoreId(0), "waits", 1, Box::new(service))
            .unwrap();
        court.pair.step();
    }
    court.pair.steps(20);
    assert!(board.lock().unwrap().told.is_empty());
    board
}

#[test]
fn r9_as_many_are_told_of_room_as_it_is_enough_for_in_their_order() {
    let mut court = one_lane();
    let scene = Scene::new(&mut court.pair);
    let board = twelve_refused(&mut court, &scene, true);
    // Half a window, so that one notice of it is sent; what comes then is kept too.
    let mut kept = scene.owner.events();
    kept.truncate(MESSAGES as usize / 2);
    for told in [4, 8, 12] {
        court.pair.steps(50);
        kept.extend(scene.owner.events());
        let board = board.lock().unwrap();
        assert_eq!(board.told.len(), told);
        assert!(board.told.is_sorted() && board.errors.is_empty());
        drop(kept.drain(..MESSAGES as usize / 2));
    }
    assert_eq!(court.pair.left.stat("services_panicked"), 0);
    court.acquit();
}

#[test]
fn r9_room_that_those_who_were_told_leave_is_told_to_the_next() {
    let mut court = one_lane();
    let scene = Scene::new(&mut court.pair);
    let board = twelve_refused(&mut court, &scene, false);
    drop(scene.owner.events());
    court.pair.steps(50);
    let mut told = core::mem::take(&mut board.lock().unwrap().told);
    assert_eq!(told.len(), 12);
    told.dedup();
    assert_eq!(told.len(), 12, "each once");
    court.acquit();
}

#[test]
fn r9_senders_refused_by_one_that_dies_are_told() {
    let mut court = one_lane();
    let scene = Scene::new(&mut court.pair);
    let board = twelve_refused(&mut court, &scene, true);
    drop(scene.owner.events());
    let id = scene.owner_context();
    court.pair.right.engine.kill(id);
    court.pair.until(|pair| pair.right.reclaimed(id));
    court.pair.steps(20);
    let board = board.lock().unwrap();
    assert_eq!(board.told.len(), 12);
    assert_eq!(board.errors, [const { SubmitError::ContextGone }; 12]);
    court.acquit();
}

#[test]
fn r5_credits_of_a_lane_go_round_among_those_who_wait_for_them() {
    let mut court = {
        let part = || {
            let mut limits = fast_limits();
            limits.lanes = 1;
            // Four of these are for messages.
            limits.receive_depth = 8;
            Part {
                limits,
                ..Part::quiet()
            }
        };
        Court::new(part(), part())
    };
    let pair = &mut court.pair;
    let mut pairs = Vec::new();
    for (from, to) in [("from a", "to a"), ("from b", "to b"), ("from c", "to c")] {
        let (sender, receiver) = (pair.left.puppet(0, from), pair.right.puppet(0, to));
        pair.steps(20);
        let id = lookup(pair, &sender, to);
        pairs.push((sender, receiver, id, Arc::new(AtomicU64::new(0))));
    }
    for _ in 0..3_000 {
        for (sender, _, to, _) in &pairs {
            let to = *to;
            sender.act(move |cx| while cx.send(to, b"on and on", 0).is_ok() {});
        }
        pair.step();
        for (_, receiver, _, heard) in &pairs {
            let events = receiver.events();
            let messages = count(&events, |event| matches!(event, Event::Message(_)));
            heard.fetch_add(messages as u64, Ordering::Relaxed);
        }
    }
    let heard = pairs.iter().map(|pair| pair.3.load(Ordering::Relaxed));
    let heard: Vec<_> = heard.collect();
    let (least, most) = (heard.iter().min().unwrap(), heard.iter().max().unwrap());
    assert!(*least > 100 && most - least <= most / 10, "{heard:?}");
    court.acquit();
}
