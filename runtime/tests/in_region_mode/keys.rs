//! Making and ending a grant's region: what can go wrong in between, and what is proven when (R1, R3, R7).

#[path = "../pair/mod.rs"]
mod pair;

use keyfence::config::KeyMode;
use keyfence::pmd::ControlError;
use keyfence::pmd::soft::{Fabric, SoftConfig};
use keyfence::pmd::wrap::fault::{ControlEffect, Injection, Plan, Span};
use keyfence::pmd::wrap::trace::ControlCall;
use keyfence::{
    BuildError, EngineEvent, Event, KeyRefusal, Lease, Local, QuarantineReason, Rights, Work,
};
use keyfence_mempool::sync::Ordering;
use pair::judged::{Court, Judged, MS, Part, US};
use pair::scene::{Scene, ends};
use pair::switched::{Switched, off, on, set};
use pair::{Pair, Side, Slot, builder};

/// The owner's calls of a kind from the how many-th on go wrong. The first region of a session is the arena.
fn court(call: ControlCall, first: u64, count: u64, effect: ControlEffect) -> Court {
    let fault = Injection::Control {
        call,
        span: Span { first, count },
        effect,
    };
    Court::new(Part::quiet(), Part::new(Plan::new([fault])))
}

/// The owner opens a buffer; `also` is done in the same call.
fn open(
    pair: &mut Pair<Judged>,
    scene: &Scene,
    also: fn(&mut keyfence::Context<'_>, keyfence::ids::GrantId),
) -> keyfence::ids::GrantId {
    let (to, made) = (scene.holder_id, Slot::new());
    let to_made = made.clone();
    scene.owner.act(move |cx| {
        let buf = cx.alloc(4096).unwrap();
        let id = cx.grant(&buf, 0..64, Rights::ALL, to, Lease::None).unwrap();
        also(cx, id);
        to_made.set(id);
    });
    pair.step();
    made.take().unwrap()
}

fn is_granted(events: &[Event]) -> bool {
    events
        .iter()
        .any(|event| matches!(event, Event::Granted(_)))
}

fn refusal(events: &[Event]) -> Option<KeyRefusal> {
    events.iter().find_map(|event| match event {
        Event::KeyRefused { why, .. } => Some(*why),
        _ => None,
    })
}

/// R7: of the right side only the session is left; its regions are as many.
fn at_rest(court: &mut Court, regions: u64) {
    court
        .pair
        .until(|pair| pair.right.used(|usage| usage.grants.into()) == 0);
    court.pair.steps(20);
    assert_eq!(court.pair.right.engine.buffers_in_use(), 0);
    assert_eq!(court.right.all_live_keys(), 0);
    let switches = &court.right_switches;
    assert_eq!(switches.regions.load(Ordering::Relaxed), regions);
    assert_eq!(court.pair.right.stat("lanes_broken"), 0);
    court.acquit();
}

#[test]
fn r1_a_grant_that_is_revoked_while_its_region_is_registered_is_never_told_and_ends() {
    let mut court = Court::quiet();
    let scene = Scene::new(&mut court.pair);
    let id = open(&mut court.pair, &scene, |cx, id| cx.revoke(id).unwrap());
    let mut events = Vec::new();
    court.pair.until(|_| {
        events.extend(scene.owner.events());
        ends(&events, id) == (1, 0)
    });
    at_rest(&mut court, 1);
    assert!(!is_granted(&scene.holder.events()));
    assert_eq!(court.pair.left.used(|usage| usage.imports.into()), 0);
    assert_eq!(court.pair.right.stat("regions_ended"), 1);
}

#[test]
fn r1_a_context_that_ends_while_its_region_is_registered_takes_it_along() {
    let mut court = Court::quiet();
    let scene = Scene::new(&mut court.pair);
    open(&mut court.pair, &scene, |cx, _| cx.close());
    let id = scene.owner_context();
    court.pair.until(|pair| pair.right.reclaimed(id));
    assert_eq!(court.right.all_live_keys(), 0);
    at_rest(&mut court, 1);
    assert!(!is_granted(&scene.holder.events()));
}

#[test]
fn r7_a_registration_that_is_refused_ends_the_grant_with_the_reason_and_the_books_balance() {
    let locked = ControlError::LockedMemory {
        limit_bytes: 7,
        needed_bytes: 8,
    };
    let exhausted = ControlError::Exhausted {
        what: "regions",
        limit: 9,
    };
    let whys = [
        (
            locked,
            KeyRefusal::LockedMemory {
                limit_bytes: 7,
                needed_bytes: 8,
            },
        ),
        (
            exhausted,
            KeyRefusal::Exhausted {
                what: "regions",
                limit: 9,
            },
        ),
    ];
    for (error, why) in whys {
        let mut court = court(ControlCall::Register, 1, 1, ControlEffect::Refuse(error));
        let scene = Scene::new(&mut court.pair);
        let id = open(&mut court.pair, &scene, |_, _| {});
        let mut events = Vec::new();
        court.pair.until(|_| {
            events.extend(scene.owner.events());
            ends(&events, id) == (1, 0)
        });
        assert_eq!(refusal(&events), Some(why));
        assert!(!is_granted(&scene.holder.events()));
        assert_eq!(court.pair.right.stat("keys_refused"), 1);
        at_rest(&mut court, 1);
        // The next one has a key.
        let granted = scene.grant(&mut court.pair, 64);
        assert_eq!(court.right.live_keys(granted.range), 1);
    }
}

/// Each key is a call of the device, and lcores ask for more while they are made.
#[test]
fn r5_r6_a_turn_of_the_control_side_ends_however_many_keys_are_asked_for() {
    const KEYS: u32 = 200;
    let [holder, owner] = [(); 2].map(|()| {
        let mut part = Part::quiet();
        part.limits.context.grants = KEYS;
        part.limits.context.imports = KEYS;
        part
    });
    let mut court = Court::new(holder, owner);
    let scene = Scene::new(&mut court.pair);
    let to = scene.holder_id;
    scene.owner.act(move |cx| {
        let buf = cx.alloc(4096).unwrap();
        for _ in 0..KEYS {
            cx.grant(&buf, 0..64, Rights::ALL, to, Lease::None).unwrap();
        }
    });
    let switches = court.right_switches.clone();
    let keys = || switches.regions.load(Ordering::Relaxed) - 1;
    court.pair.step();
    assert!((1..u64::from(KEYS)).contains(&keys()), "{} keys", keys());
    court.pair.until(|_| keys() == u64::from(KEYS));
    court.acquit();
}

#[test]
fn r3_a_late_deregistration_is_made_again_and_proves_nothing_before_it_returns() {
    for effect in [ControlEffect::Late, ControlEffect::LateButDone] {
        let mut court = court(ControlCall::Deregister, 0, 3, effect.clone());
        let scene = Scene::new(&mut court.pair);
        let granted = scene.grant(&mut court.pair, 4096);
        drop(granted.buf.take());
        let id = granted.id;
        scene.owner.act(move |cx| cx.revoke(id).unwrap());
        let mut events = Vec::new();
        let (right, switches) = (court.right.clone(), court.right_switches.clone());
        court.pair.until(|pair| {
            events.extend(scene.owner.events());
            let zapped = ends(&events, id) == (1, 0);
            assert!(!zapped || right.live_keys(granted.range.clone()) == 0, "R3");
            assert!(zapped || pair.right.engine.buffers_in_use() == 1, "R1");
            zapped
        });
        assert_eq!(court.pair.right.stat("grants_quarantined"), 0);
        // Done below the books of the switches, if it was.
        let done = u64::from(effect == ControlEffect::LateButDone);
        assert!(switches.regions.load(Ordering::Relaxed) <= 1 + done);
        at_rest(&mut court, 1);
    }
}

/// The left side stands still until the right has lost it.
fn lose(court: &mut Court) {
    let downs = |side: &Side<Judged>| {
        let down = |event: &&EngineEvent| matches!(event, EngineEvent::PeerDown(_));
        side.events.iter().filter(down).count()
    };
    while downs(&court.pair.right) == 0 {
        court.pair.now_ns += 10 * US;
        court.pair.right.step(court.pair.now_ns);
    }
}

/// The owner's context with a grant whose registration does not come back, in quarantine.
fn lost_registration(effect: ControlEffect) -> (Court, Scene) {
    let mut court = court(ControlCall::Register, 1, 1, effect);
    let scene = Scene::new(&mut court.pair);
    open(&mut court.pair, &scene, |_, _| {});
    let mut events = Vec::new();
    court.pair.until(|_| {
        events.extend(scene.owner.events());
        refusal(&events).is_some()
    });
    assert_eq!(refusal(&events), Some(KeyRefusal::Late));
    let id = scene.owner_context();
    court.pair.right.engine.kill(id);
    court.pair.until(|pair| {
        let quarantined = |event: &EngineEvent| {
            let unproven = QuarantineReason::Unproven;
            matches!(event, EngineEvent::Quarantined { context, keys: 1, bytes: 4096, why, .. } if *context == id && *why == unproven)
        };
        pair.right.events.iter().any(quarantined)
    });
    assert_eq!(court.pair.right.stat("lanes_broken"), 0, "R5");
    court.pair.steps(10_000);
    assert_eq!(court.pair.right.engine.buffers_in_use(), 1, "R1");
    (court, scene)
}

#[test]
fn r3_a_registration_that_never_comes_back_is_proven_void_by_the_end_of_its_domain() {
    let (mut court, scene) = lost_registration(ControlEffect::Late);
    lose(&mut court);
    court
        .pair
        .until(|pair| pair.right.used(|usage| usage.keys.unproven.into()) == 0);
    assert_eq!(court.pair.right.stat("late_proofs"), 1);
    assert_eq!(court.pair.right.engine.buffers_in_use(), 0);
    let id = scene.owner_context();
    let told = |event: &&EngineEvent| matches!(event, EngineEvent::Quarantined { context, .. } | EngineEvent::Reclaimed { context, .. } if *context == id);
    assert_eq!(court.pair.right.events.iter().filter(told).count(), 1);
    court.acquit();
}

#[test]
fn r1_a_region_that_nobody_can_name_keeps_its_memory_for_good_and_no_peer_away() {
    let (mut court, _scene) = lost_registration(ControlEffect::LateButDone);
    lose(&mut court);
    let ups = |side: &Side<Judged>| {
        let up = |event: &&EngineEvent| matches!(event, EngineEvent::PeerUp(_));
        side.events.iter().filter(up).count()
    };
    court.pair.until(|pair| ups(&pair.right) == 2);
    court.pair.steps(20_000);
    assert_eq!(court.pair.right.used(|usage| usage.keys.unproven.into()), 1);
    assert_eq!(court.pair.right.engine.buffers_in_use(), 1);
    let pds = court.right_switches.pds.load(Ordering::Relaxed);
    assert_eq!(pds, 2, "the domain with that region in it can't be ended");
    court.acquit();
}

#[test]
fn a_device_without_windows_serves_regions_and_the_error_says_so() {
    let fabric = Fabric::new();
    let device = || {
        let soft = fabric.device(SoftConfig::default()).unwrap();
        Switched::new(soft).0.saying(|caps| {
            caps.windows = false;
            caps.window_atomics = false;
        })
    };
    let windows = builder("left", "right", 1).key_mode(KeyMode::Window);
    let error = windows.build(device(), 1).unwrap_err();
    assert!(matches!(error, BuildError::Unfit { .. }));
    assert!(
        error.to_string().contains("key_mode = \"region\""),
        "{error}"
    );
    let part = Part::quiet();
    let builders = (part.builder("left", "right"), part.builder("right", "left"));
    let mut pair = Pair::on(builders.0, device(), builders.1, device());
    // Atomics among the rights: only windows can't have them.
    Scene::new(&mut pair).grant(&mut pair, 64);
}

/// An lcore that would sleep while ends of regions are due would keep them until something else wakes it.
#[test]
fn r6_a_step_that_ends_regions_is_no_idle_one() {
    let mut part = Part::quiet();
    part.limits.reclaim_budget_wrs = 1;
    let mut court = Court::new(Part::quiet(), part);
    let scene = Scene::new(&mut court.pair);
    for _ in 0..4 {
        open(&mut court.pair, &scene, |_, _| {});
    }
    let pair = &mut court.pair;
    pair.until(|pair| {
        pair.right.stat("keys_refused") == 0 && pair.left.used(|usage| usage.imports.into()) == 4
    });
    let owner = pair.right.id_of("owner").unwrap();
    pair.right.engine.kill(owner);
    let mut ends = 0;
    for _ in 0..100_000 {
        if ends == 4 {
            break;
        }
        pair.now_ns += 1_000;
        let now_ns = pair.now_ns;
        pair.left.step(now_ns);
        let before = pair.right.stat("regions_ended");
        let work = pair.right.lcores[0].step(now_ns);
        let ended = pair.right.stat("regions_ended") - before;
        assert!(ended == 0 || work == Work::Busy, "{ended} in an idle step");
        assert!(ended <= 1, "R5: the budget of a step");
        ends += ended;
        if ends == 0 {
            // Behind that, nothing else is there to be done.
            pair.right.engine.control(now_ns);
        }
    }
    assert_eq!(ends, 4);
}

/// Nothing is said on a lane that would prove by the way what was posted before.
fn taciturn() -> Part {
    let mut part = Part::quiet();
    part.timeouts.keepalive_interval_ns = 1_000 * MS;
    part.timeouts.reconnect_timeout_ns = 10_000 * MS;
    part
}

/// The owner makes a grant, and has one on the same lane.
fn both_ways(court: &mut Court, scene: &Scene) -> keyfence::Import {
    let target = court.pair.left.puppet(0, "target");
    court.pair.steps(10);
    let owner = pair::scene::lookup(&mut court.pair, &target, "owner");
    let granted = pair::scene::grant(&mut court.pair, &target, &scene.owner, owner, 4096);
    open(&mut court.pair, scene, |_, _| {});
    court.pair.steps(200);
    granted.import
}

/// The owner writes and is killed. The completion of the write is swallowed, and so is that of the Revoke behind it.
fn kill_behind_a_swallowed_write(court: &mut Court, scene: &Scene, import: keyfence::Import) {
    scene.owner.act(move |cx| {
        let buf = cx.alloc(8).unwrap();
        cx.write(&import, 0, &[Local::prefix(&buf, 8)], 1).unwrap();
    });
    let swallow = &court.right_switches.swallow;
    set(swallow, 1);
    let pair = &mut court.pair;
    pair.until(|_| swallow.load(Ordering::Relaxed) == 0);
    pair.steps(2);
    assert_eq!(pair.right.used(|usage| usage.ops), 1, "swallowed");
    set(swallow, 1);
    pair.right.engine.kill(scene.owner_context());
}

/// A region's deregistration hangs: that is no fault of the lane, and what proves the operations must not stand behind it.
#[test]
fn r5_own_operations_end_while_a_deregistration_hangs() {
    let mut court = Court::new(taciturn(), taciturn());
    let scene = Scene::new(&mut court.pair);
    let id = scene.owner_context();
    let import = both_ways(&mut court, &scene);
    on(&court.right_switches.dealloc_hangs);
    kill_behind_a_swallowed_write(&mut court, &scene, import);
    let pair = &mut court.pair;
    pair.until(|pair| pair.right.used(|usage| usage.ops) == 0);
    let quarantined = |event: &EngineEvent| matches!(event, EngineEvent::Quarantined { context, .. } if *context == id);
    assert!(!pair.right.events.iter().any(quarantined), "not yet");
    pair.until(|pair| pair.right.events.iter().any(quarantined));
    off(&court.right_switches.dealloc_hangs);
    at_rest(&mut court, 1);
}

/// Others' regions may use up the budget of every step: a closing request goes before them.
#[test]
fn r6_a_closing_request_does_not_wait_for_others_regions() {
    const KEYS: u32 = 200;
    let mut part = taciturn();
    part.limits.context.grants = KEYS;
    part.limits.reclaim_budget_wrs = 1;
    let mut court = Court::new(taciturn(), part);
    let scene = Scene::new(&mut court.pair);
    let other = court.pair.right.puppet(0, "other");
    court.pair.steps(10);
    let to = pair::scene::lookup(&mut court.pair, &other, "holder");
    other.act(move |cx| {
        let buf = cx.alloc(4096).unwrap();
        for _ in 0..KEYS {
            cx.grant(&buf, 0..64, Rights::ALL, to, Lease::None).unwrap();
        }
    });
    let import = both_ways(&mut court, &scene);
    let pair = &mut court.pair;
    pair.right.engine.kill(pair.right.id_of("other").unwrap());
    pair.until(|pair| pair.right.stat("regions_ended") > 0);
    // Its operation runs, as far as anybody knows.
    set(&court.right_switches.swallow, u64::MAX);
    scene.owner.act(move |cx| {
        let buf = cx.alloc(8).unwrap();
        cx.write(&import, 0, &[Local::prefix(&buf, 8)], 1).unwrap();
    });
    pair.until(|pair| pair.right.used(|usage| usage.ops) == 1);
    pair.right.engine.kill(scene.owner_context());
    let closings = &court.right_switches.closings;
    pair.until(|_| closings.load(Ordering::Relaxed) == 1);
    let ended = pair.right.stat("regions_ended");
    assert!(ended < u64::from(KEYS), "all regions went before");
    court.acquit();
}
