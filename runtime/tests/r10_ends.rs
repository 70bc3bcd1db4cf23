//! R10, R5: contexts that panic, in whatever call; leases of holders that stand still; and bystanders, who notice none of it.

mod pair;

use keyfence::ids::LcoreId;
use keyfence::{Buf, Context, EngineEvent, Event, Lease, Local, Rights, Service, Status, Work};
use pair::judged::{Court, Judged, MS, Part, fast_limits};
use pair::scene::{Scene, completions, ends, grant, lookup};
use pair::{REGIONS, Side, Slot};

/// Where a service fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Bomb {
    Poll,
    Event,
    Drop,
    PollAndDrop,
}

struct Fragile {
    bomb: Bomb,
    lit: Slot<()>,
    buf: Option<Buf>,
}

impl Service for Fragile {
    fn poll(&mut self, cx: &mut Context<'_>) -> Work {
        if self.buf.is_none() {
            self.buf = cx.alloc(4096).ok();
        }
        if self.lit.take().is_some() {
            match self.bomb {
                Bomb::Poll | Bomb::PollAndDrop => panic!("planned: in poll"),
                Bomb::Event => cx.flush(1).unwrap(),
                Bomb::Drop => cx.close(),
            }
        }
        Work::Idle
    }

    fn on_event(&mut self, _cx: &mut Context<'_>, event: Event) {
        if matches!(event, Event::Flushed { .. }) {
            panic!("planned: in on_event");
        }
    }
}

impl Drop for Fragile {
    fn drop(&mut self) {
        if matches!(self.bomb, Bomb::Drop | Bomb::PollAndDrop) {
            panic!("planned: in drop");
        }
    }
}

#[test]
fn r10_a_service_that_panics_anywhere_is_reclaimed_and_nobody_else() {
    std::panic::set_hook(Box::new(|_| {}));
    let mut court = Court::quiet();
    let scene = Scene::new(&mut court.pair);
    for bomb in [Bomb::Poll, Bomb::Event, Bomb::Drop, Bomb::PollAndDrop] {
        let lit = Slot::new();
        let service = Fragile {
            bomb,
            lit: lit.clone(),
            buf: None,
        };
        let name = format!("{bomb:?}");
        let engine = &mut court.pair.right.engine;
        engine
            .open(LcoreId(0), &name, 1, Box::new(service))
            .unwrap();
        court.pair.steps(10);
        let id = court.pair.right.id_of(&name).unwrap();
        assert_eq!(court.pair.right.engine.buffers_in_use(), 1);
        lit.set(());
        court.pair.until(|pair| pair.right.reclaimed(id));
        assert_eq!(court.pair.right.engine.buffers_in_use(), 0, "{bomb:?}");
        // The same lcore serves the others.
        let to = scene.owner_id;
        scene
            .holder
            .act(move |cx| cx.send(to, b"still there?", 1).unwrap());
        court.pair.until(|_| {
            let events = scene.owner.events();
            events
                .iter()
                .any(|event| matches!(event, Event::Message(_)))
        });
        let panicked = court.pair.right.events.iter();
        let panicked = panicked.filter(
            |event| matches!(event, EngineEvent::ServicePanicked { context } if *context == id),
        );
        assert_eq!(
            panicked.count(),
            usize::from(bomb != Bomb::Drop),
            "{bomb:?}"
        );
    }
    assert_eq!(court.pair.right.stat("services_leaked"), 2);
    let _ = std::panic::take_hook();
    court.acquit();
}

#[test]
fn r10_a_lease_lives_by_its_holder_s_engine_and_ends_without_it() {
    let mut right = Part::quiet();
    right.timeouts.reconnect_timeout_ns = 1_000 * MS;
    let mut court = Court::new(Part::quiet(), right);
    let scene = Scene::new(&mut court.pair);
    let (to, made) = (scene.holder_id, Slot::new());
    let to_made = made.clone();
    scene.owner.act(move |cx| {
        let buf = cx.alloc(64).unwrap();
        to_made.set(
            cx.grant(&buf, 0..64, Rights::ALL, to, Lease::Ns(5 * MS))
                .unwrap(),
        );
    });
    court.pair.steps(20);
    let id = made.take().unwrap();
    for _ in 0..5_000 {
        court.pair.step_for(10_000);
    }
    assert_eq!(court.pair.right.stat("leases_ended"), 0, "ten leases long");
    let mut events = Vec::new();
    let start_ns = court.pair.now_ns;
    while ends(&events, id) == (0, 0) {
        court.pair.now_ns += 10_000;
        court.pair.right.step(court.pair.now_ns);
        events.extend(scene.owner.events());
        assert!(court.pair.now_ns - start_ns < 20 * MS);
    }
    assert!(court.pair.now_ns - start_ns > 4 * MS);
    assert_eq!(ends(&events, id), (1, 0));
    assert_eq!(court.pair.right.stat("leases_ended"), 1);
    assert_eq!(court.right.all_live_keys(), 0);
}

fn broken(side: &Side<Judged>) -> u64 {
    side.stat("lanes_broken") + side.stat("messages_beyond_credit") + side.stat("ops_failed")
}

#[test]
fn r5_bystanders_of_a_hundred_reclaims_lose_nothing_and_keep_their_order() {
    let mut court = Court::quiet();
    let scene = Scene::new(&mut court.pair);
    let steady = scene.grant(&mut court.pair, 4096).import;
    let to = scene.owner_id;
    let (mut sent, mut heard, mut ended) = (0_u64, 0_u64, 0_u64);
    for round in 0..100 {
        let name: &'static str = ["even", "odd"][round % 2];
        let victim = court.pair.right.puppet(0, name);
        court.pair.steps(5);
        let to_holder = lookup(&mut court.pair, &victim, "holder");
        let granted = grant(&mut court.pair, &victim, &scene.holder, to_holder, 64 << 10);
        drop(granted.buf.take());
        let import = granted.import;
        let number = sent;
        scene.holder.act(move |cx| {
            for number in number..number + 4 {
                cx.send(to, &number.to_le_bytes(), number << 1).unwrap();
                let buf = cx.alloc(4096).unwrap();
                let local = [Local::prefix(&buf, 4096)];
                cx.write(&steady, 0, &local, number << 1).unwrap();
                // Against the dying one: it may end in any way.
                let _ = cx.write(&import, 0, &local, number << 1 | 1);
            }
        });
        sent += 4;
        let id = court.pair.right.id_of(name).unwrap();
        court.pair.right.engine.kill(id);
        court.pair.until(|pair| {
            for event in scene.owner.events() {
                if let Event::Message(message) = event {
                    let mut bytes = [0; 8];
                    assert!(message.read_at(0, &mut bytes));
                    assert_eq!(
                        u64::from_le_bytes(bytes),
                        heard,
                        "none lost, doubled or passed"
                    );
                    heard += 1;
                }
            }
            for done in completions(&scene.holder.events()) {
                if done.token & 1 == 0 {
                    assert_eq!(done.status, Status::Ok);
                    ended += 1;
                }
            }
            pair.right.reclaimed(id) && ended == 2 * sent && heard == sent
        });
    }
    assert_eq!(broken(&court.pair.right), 0);
    assert_eq!(court.pair.left.stat("lanes_broken"), 0);
    court.acquit();
}

#[test]
fn r5_a_reclaim_posts_no_more_than_its_budget_in_a_step() {
    let mut limits = fast_limits();
    limits.reclaim_budget_wrs = 3;
    let right = Part {
        limits,
        ..Part::quiet()
    };
    let mut court = Court::new(Part::quiet(), right);
    let scene = Scene::new(&mut court.pair);
    let to = scene.holder_id;
    scene.owner.act(move |cx| {
        let buf = cx.alloc(4096).unwrap();
        for _ in 0..60 {
            cx.grant(&buf, 0..64, Rights::ALL, to, Lease::None).unwrap();
        }
    });
    court.pair.steps(200);
    assert_eq!(court.right.all_live_keys(), 60);
    let id = scene.owner_context();
    court.pair.right.engine.kill(id);
    let (mut posted, mut steps) = (0, 0);
    court.pair.until(|pair| {
        let now = pair.right.stat(if REGIONS {
            "regions_ended"
        } else {
            "invalidations_posted"
        });
        assert!(now - posted <= 3, "{} in one step", now - posted);
        steps += u64::from(now > posted);
        posted = now;
        pair.right.reclaimed(id)
    });
    assert_eq!((posted, steps), (60, 20));
    court.acquit();
}
