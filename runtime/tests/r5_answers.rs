//! A peer that asks without end gets its answers, and holds up no reclaim with them: on a short queue answers and requests take turns.

mod pair;

use std::cell::Cell;

use keyfence_mempool::sync::{Arc, AtomicU64, Ordering};

use keyfence::ids::PeerId;
use keyfence::pmd::sim::{SimConfig, SimDevice, World};
use keyfence::{Context, EngineEvent, Event, Service, Work};
use pair::judged::{US, fast_limits, short_timeouts};
use pair::scene::{Scene, ends};
use pair::{Pair, builder};

/// Asks for somebody who is not there, as often as it may, and counts the answers.
struct Asker(Arc<AtomicU64>);

impl Service for Asker {
    fn poll(&mut self, cx: &mut Context<'_>) -> Work {
        while cx.lookup(PeerId(0), "nobody", 0).is_ok() {}
        Work::Busy
    }

    fn on_event(&mut self, _cx: &mut Context<'_>, event: Event) {
        if let Event::Resolved { context, .. } = event {
            assert_eq!(context, None);
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn pair() -> Pair<SimDevice> {
    let world = World::new(1, SimConfig::default()).unwrap();
    let of = |name, peer| {
        let mut limits = fast_limits();
        (limits.send_depth, limits.receive_depth, limits.lanes) = (4, 4, 1);
        let builder = builder(name, peer, 1).limits(limits);
        builder.timeouts(short_timeouts())
    };
    let (left, right) = (of("left", "right"), of("right", "left"));
    Pair::simulated(&world, left, right)
}

/// A pair in which one or both sides ask as much as they can.
fn asking(left_too: bool) -> (Pair<SimDevice>, Scene, Vec<Arc<AtomicU64>>) {
    let mut pair = pair();
    let mut answers = Vec::new();
    let scene = Scene::new(&mut pair);
    let sides = [&mut pair.right, &mut pair.left];
    for side in sides.into_iter().take(1 + usize::from(left_too)) {
        for name in ["p", "q", "r", "s"] {
            let lcore = keyfence::ids::LcoreId(0);
            let asker = Asker(Arc::default());
            answers.push(Arc::clone(&asker.0));
            side.engine.open(lcore, name, 1, Box::new(asker)).unwrap();
        }
    }
    (pair, scene, answers)
}

fn is_lost(pair: &Pair<SimDevice>) -> bool {
    let lost = |event: &EngineEvent| matches!(event, EngineEvent::PeerDown(_));
    pair.right.events.iter().any(lost)
}

#[test]
fn r5_answers_do_not_hold_up_a_revoke() {
    revoke_in_time(true);
}

/// The owner's own engine asks: its invalidations stand behind its requests.
#[test]
fn r5_requests_do_not_hold_up_an_invalidation() {
    revoke_in_time(false);
}

fn revoke_in_time(left_too: bool) {
    let (mut pair, scene, answers) = asking(left_too);
    for round in 1..=20 {
        let granted = scene.grant(&mut pair, 4096);
        pair.steps(100);
        let (began_ns, took_ns) = (pair.now_ns, Cell::new(None));
        scene.owner.act(move |cx| cx.revoke(granted.id).unwrap());
        pair.until(|pair| {
            if ends(&scene.owner.events(), granted.id) == (1, 0) {
                took_ns.set(Some(pair.now_ns - began_ns));
            }
            took_ns.get().is_some()
        });
        // Not by the end of the fence: the holder has answered.
        assert!(took_ns.get().unwrap() < 500 * US, "{took_ns:?}");
        // And those who ask have their answers meanwhile, as many as there is room for open look-ups.
        let all = answers
            .iter()
            .map(|answers| answers.load(Ordering::Relaxed));
        let all = all.sum::<u64>();
        assert!(all >= 4 * round, "{all} in round {round}");
    }
    assert!(!is_lost(&pair));
}
