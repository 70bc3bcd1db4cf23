//! R6: every reclaim ends once and in time, whatever the device swallows or the control calls do. B42.

mod pair;

use keyfence::ids::{ContextId, LcoreId};
use keyfence::reclaim::KeyState;
use keyfence::{EngineEvent, Event, Local, Message, QuarantineReason};
use pair::judged::{Court, Judged, fast_limits, short_timeouts};
use pair::scene::{Granted, Scene, ends};
use pair::switched::{off, on, set};
use pair::{Pair, REGIONS, Side, Slot};

const BYTES: usize = 256 << 10;

/// Everything of one reclaim that the engine's owner was told.
fn told(side: &Side<Judged>, context: ContextId) -> Vec<EngineEvent> {
    let about = |event: &&EngineEvent| match event {
        EngineEvent::Reclaimed { context: known, .. }
        | EngineEvent::Quarantined { context: known, .. } => *known == context,
        _ => false,
    };
    side.events.iter().filter(about).cloned().collect()
}

/// Steps until the reclaim of a context on the chosen side has ended; asserts R6's bound.
fn ends_in_time(
    pair: &mut Pair<Judged>,
    side: fn(&Pair<Judged>) -> &Side<Judged>,
    context: ContextId,
) -> EngineEvent {
    let bound_ns = short_timeouts().reclaim_bound_ns(fast_limits().grants);
    // A step before the kill is seen, and one behind each of the timers.
    let deadline_ns = pair.now_ns + bound_ns + 10_000;
    pair.until(|pair| {
        assert!(pair.now_ns < deadline_ns, "R6: beyond {bound_ns} ns");
        !told(side(pair), context).is_empty()
    });
    told(side(pair), context).pop().unwrap()
}

fn left(pair: &Pair<Judged>) -> &Side<Judged> {
    &pair.left
}

fn right(pair: &Pair<Judged>) -> &Side<Judged> {
    &pair.right
}

/// The holder has a write of several slices posted, whose completions are swallowed from now on.
fn write_in_flight(court: &mut Court, swallow: u64) -> (Scene, Granted) {
    let scene = Scene::new(&mut court.pair);
    let granted = scene.grant(&mut court.pair, BYTES);
    let import = granted.import;
    court.pair.steps(20);
    scene.holder.act(move |cx| {
        let buf = cx.alloc(BYTES).unwrap();
        cx.write(&import, 0, &[Local::prefix(&buf, BYTES)], 1)
            .unwrap();
    });
    set(&court.left_switches.swallow, swallow);
    court.pair.step();
    (scene, granted)
}

fn ups(side: &Side<Judged>) -> usize {
    let up = |event: &&EngineEvent| matches!(event, EngineEvent::PeerUp(_));
    side.events.iter().filter(up).count()
}

/// The session stands that is the how many-th.
fn works_again(court: &mut Court, session: usize) {
    court
        .pair
        .until(|pair| ups(&pair.left) == session && ups(&pair.right) == session);
    let owner = court.pair.right.puppet(0, "owner again");
    let holder = court.pair.left.puppet(0, "holder again");
    court.pair.steps(20);
    let id = pair::scene::lookup(&mut court.pair, &owner, "holder again");
    let granted = pair::scene::grant(&mut court.pair, &owner, &holder, id, 64);
    assert_eq!(court.right.live_keys(granted.range), 1);
    court.acquit();
}

#[test]
fn b42_one_completion_swallowed_is_proven_by_a_later_one() {
    let mut court = Court::quiet();
    // The last of the burst: the one signaled for all.
    let (scene, _granted) = write_in_flight(&mut court, 1);
    court.pair.steps(50);
    let id = scene.holder_context();
    court.pair.left.engine.kill(id);
    let end = ends_in_time(&mut court.pair, left, id);
    assert!(matches!(end, EngineEvent::Reclaimed { .. }), "{end:?}");
    court.pair.steps(5_000);
    assert_eq!(told(&court.pair.left, id).len(), 1);
    assert_eq!(court.pair.left.stat("lanes_broken"), 0);
    assert_eq!(court.pair.left.used(|usage| usage.ops), 0);
    court.acquit();
}

#[test]
fn b42_all_completions_swallowed_sacrifice_the_lane() {
    let mut court = Court::quiet();
    let (scene, granted) = write_in_flight(&mut court, u64::MAX);
    let id = scene.holder_context();
    court.pair.left.engine.kill(id);
    let end = ends_in_time(&mut court.pair, left, id);
    assert!(matches!(end, EngineEvent::Reclaimed { .. }), "{end:?}");
    assert_eq!(court.left.open_requests(), 0, "{:?}", court.left);
    assert!(court.pair.left.stat("lanes_broken") > 0);
    set(&court.left_switches.swallow, 0);
    let mut events = Vec::new();
    let owner = scene.owner.clone();
    court.pair.until(|_| {
        events.extend(owner.events());
        events
            .iter()
            .any(|event| matches!(event, Event::PeerDown(_)))
    });
    assert_eq!(ends(&events, granted.id), (1, 0));
    assert_eq!(told(&court.pair.left, id).len(), 1);
    works_again(&mut court, 2);
}

#[test]
fn b42_when_destruction_hangs_too_the_context_is_quarantined_until_the_late_return() {
    let mut court = Court::quiet();
    let (scene, _granted) = write_in_flight(&mut court, u64::MAX);
    on(&court.left_switches.destroy_hangs);
    let id = scene.holder_context();
    court.pair.left.engine.kill(id);
    let end = ends_in_time(&mut court.pair, left, id);
    assert!(
        matches!(
            end,
            EngineEvent::Quarantined {
                keys: 0,
                bytes: 1_048_576,
                why: QuarantineReason::Unproven,
                ..
            }
        ),
        "{end:?}"
    );
    assert_eq!(court.pair.left.used(|usage| usage.contexts.into()), 1);
    assert_eq!(court.pair.left.engine.buffers_in_use(), 1);
    court.pair.steps(5_000);
    assert_eq!(court.pair.left.used(|usage| usage.contexts.into()), 1);
    set(&court.left_switches.swallow, 0);
    off(&court.left_switches.destroy_hangs);
    court
        .pair
        .until(|pair| pair.left.used(|usage| usage.contexts.into()) == 0);
    assert_eq!(court.pair.left.engine.buffers_in_use(), 0);
    assert_eq!(told(&court.pair.left, id).len(), 1, "no second event");
    works_again(&mut court, 2);
}

/// The session that stands then: a window is invalidated on its lane, which is sick if that does not complete. A deregistration that hangs is no fault of the lane.
const AFTER_A_STUCK_KEY: usize = if REGIONS { 1 } else { 2 };

/// The owner has one key that can only be ended by the control side, and that hangs.
fn stuck_key(hang: fn(&Court)) -> (Court, Scene, Granted) {
    let mut court = Court::quiet();
    let scene = Scene::new(&mut court.pair);
    let granted = scene.grant(&mut court.pair, 4096);
    drop(granted.buf.take());
    court.pair.steps(20);
    set(&court.right_switches.swallow, u64::MAX);
    hang(&court);
    let id = scene.owner_context();
    court.pair.right.engine.kill(id);
    let end = ends_in_time(&mut court.pair, right, id);
    assert!(
        matches!(
            end,
            EngineEvent::Quarantined {
                keys: 1,
                bytes: 4096,
                why: QuarantineReason::Unproven,
                ..
            }
        ),
        "{end:?}"
    );
    assert_eq!(court.pair.right.stat("grants_quarantined"), 1);
    assert_eq!(court.pair.right.engine.buffers_in_use(), 1);
    says_how_much(&mut court, &scene, &granted);
    (court, scene, granted)
}

/// The census names the grant that stays, and the holder hears how much it is.
fn says_how_much(court: &mut Court, scene: &Scene, granted: &Granted) {
    let pair = &mut court.pair;
    pair.right.engine.census(LcoreId(0));
    pair.right.engine.census(LcoreId(9));
    pair.steps(3);
    let mut lists = pair.right.events.iter().filter_map(|event| match event {
        EngineEvent::Census { grants, .. } => Some(grants.clone()),
        _ => None,
    });
    let (list, next) = (lists.next().unwrap(), lists.next());
    assert_eq!((list.len(), next), (1, None));
    assert_eq!(pair.right.lcores[0].census().count(), 1);
    let record = list[0];
    assert_eq!(
        (record.grant, record.bytes, record.state),
        (granted.id, 4096, KeyState::Unproven)
    );
    assert_eq!(record.owner, scene.owner_context());
    assert_eq!(record.holder, scene.holder_id);
    assert!(record.age_ns > 0 && record.age_ns < pair.now_ns);
}

#[test]
fn r6_a_key_in_quarantine_does_not_keep_its_peer_away() {
    let (mut court, scene, granted) = stuck_key(|court| on(&court.right_switches.dealloc_hangs));
    set(&court.right_switches.swallow, 0);
    court.pair.until(|pair| {
        ups(&pair.left) == AFTER_A_STUCK_KEY && ups(&pair.right) == AFTER_A_STUCK_KEY
    });
    assert_eq!(court.pair.right.used(|usage| usage.keys.unproven.into()), 1);
    released_late(court, &scene, &granted);
}

fn released_late(mut court: Court, scene: &Scene, granted: &Granted) {
    set(&court.right_switches.swallow, 0);
    off(&court.right_switches.dealloc_hangs);
    off(&court.right_switches.error_hangs);
    let id = scene.owner_context();
    court
        .pair
        .until(|pair| pair.right.used(|usage| usage.contexts.into()) == 0);
    assert_eq!(court.right.live_keys(granted.range.clone()), 0);
    assert_eq!(court.pair.right.stat("late_proofs"), 1);
    assert_eq!(court.pair.right.stat("grants_zapped"), 0);
    assert_eq!(court.pair.right.engine.buffers_in_use(), 0);
    court
        .pair
        .until(|pair| pair.right.used(|usage| usage.grants.into()) == 0);
    assert_eq!(told(&court.pair.right, id).len(), 1, "no second event");
    works_again(&mut court, AFTER_A_STUCK_KEY);
}

#[test]
fn r6_when_deallocation_hangs_the_key_is_quarantined_and_the_late_proof_releases_it() {
    let (court, scene, granted) = stuck_key(|court| on(&court.right_switches.dealloc_hangs));
    released_late(court, &scene, &granted);
}

#[test]
fn r6_when_the_queue_pair_can_not_be_moved_to_error_nothing_is_concluded() {
    if REGIONS {
        return region_needs_no_queue_pair();
    }
    let (court, scene, granted) = stuck_key(|court| on(&court.right_switches.error_hangs));
    assert_eq!(court.right.live_keys(granted.range.clone()), 1);
    released_late(court, &scene, &granted);
}

/// A region's end asks for nothing of its queue pairs.
fn region_needs_no_queue_pair() {
    let mut court = Court::quiet();
    let scene = Scene::new(&mut court.pair);
    let granted = scene.grant(&mut court.pair, 4096);
    drop(granted.buf.take());
    set(&court.right_switches.swallow, u64::MAX);
    on(&court.right_switches.error_hangs);
    let id = scene.owner_context();
    court.pair.right.engine.kill(id);
    let end = ends_in_time(&mut court.pair, right, id);
    assert!(matches!(end, EngineEvent::Reclaimed { .. }), "{end:?}");
    assert_eq!(court.right.live_keys(granted.range), 0);
    court.acquit();
}

#[test]
fn r6_a_peer_is_told_down_when_its_last_key_is_in_quarantine() {
    let mut court = Court::quiet();
    let scene = Scene::new(&mut court.pair);
    let granted = scene.grant(&mut court.pair, 4096);
    let bystander = court.pair.right.puppet(0, "bystander");
    court.pair.steps(20);
    on(&court.right_switches.dealloc_hangs);
    set(&court.left_switches.swallow, u64::MAX);
    let import = granted.import;
    scene.holder.act(move |cx| {
        let buf = cx.alloc(8).unwrap();
        cx.write(&import, 0, &[Local::prefix(&buf, 8)], 1).unwrap();
    });
    court.pair.steps(5);
    let id = scene.holder_context();
    court.pair.left.engine.kill(id);
    let (mut down, mut events) = (false, Vec::new());
    court.pair.until(|_| {
        let news = bystander.events();
        down |= news.iter().any(|event| matches!(event, Event::PeerDown(_)));
        events.extend(scene.owner.events());
        down
    });
    assert_eq!(ends(&events, granted.id), (0, 1));
    set(&court.left_switches.swallow, 0);
    court
        .pair
        .until(|pair| ups(&pair.left) == 2 && ups(&pair.right) == 2);
    // A region outlives its queue pairs.
    let live = court.right.live_keys(granted.range.clone());
    assert_eq!(live, usize::from(REGIONS));
    off(&court.right_switches.dealloc_hangs);
    court
        .pair
        .until(|pair| pair.right.used(|usage| usage.grants.into()) == 0);
    assert_eq!(court.right.live_keys(granted.range.clone()), 0);
    events.extend(scene.owner.events());
    assert_eq!(ends(&events, granted.id), (0, 1), "no second event");
    works_again(&mut court, 2);
}

#[test]
fn r1_a_buffer_that_is_still_held_is_quarantined_alone_and_its_drop_is_the_proof() {
    let mut court = Court::quiet();
    let scene = Scene::new(&mut court.pair);
    let (kept, other) = (Slot::new(), Slot::new());
    let (to_kept, to_other) = (kept.clone(), other.clone());
    scene.owner.act(move |cx| {
        to_kept.set(cx.alloc(4096).unwrap());
        to_other.set(cx.alloc(1 << 20).unwrap());
    });
    court.pair.steps(5);
    drop(other.take());
    let id = scene.owner_context();
    court.pair.right.engine.kill(id);
    let end = ends_in_time(&mut court.pair, right, id);
    assert!(
        matches!(
            end,
            EngineEvent::Quarantined {
                keys: 0,
                bytes: 4096,
                why: QuarantineReason::HandleHeld,
                ..
            }
        ),
        "{end:?}"
    );
    assert_eq!(court.pair.right.engine.buffers_in_use(), 1);
    court.pair.steps(2_000);
    assert_eq!(court.pair.right.used(|usage| usage.contexts.into()), 1);
    drop(kept.take());
    court
        .pair
        .until(|pair| pair.right.used(|usage| usage.contexts.into()) == 0);
    assert_eq!(court.pair.right.engine.buffers_in_use(), 0);
    assert_eq!(told(&court.pair.right, id).len(), 1);
    court.acquit();
}

#[test]
fn r1_a_buffer_that_comes_back_late_does_not_wait_for_a_key_in_quarantine() {
    let mut court = Court::quiet();
    let scene = Scene::new(&mut court.pair);
    let granted = scene.grant(&mut court.pair, 4096);
    drop(granted.buf.take());
    let kept = Slot::new();
    let to_kept = kept.clone();
    scene
        .owner
        .act(move |cx| to_kept.set(cx.alloc(4096).unwrap()));
    court.pair.steps(20);
    on(&court.right_switches.dealloc_hangs);
    set(&court.right_switches.swallow, u64::MAX);
    let id = scene.owner_context();
    court.pair.right.engine.kill(id);
    ends_in_time(&mut court.pair, right, id);
    assert_eq!(court.pair.right.engine.buffers_in_use(), 2);
    drop(kept.take());
    court
        .pair
        .until(|pair| pair.right.engine.buffers_in_use() == 1);
    assert_eq!(court.pair.right.used(|usage| usage.keys.unproven.into()), 1);
    assert_eq!(told(&court.pair.right, id).len(), 1);
}

#[test]
fn r1_a_message_that_is_still_held_is_quarantined_alone() {
    let mut court = Court::quiet();
    let scene = Scene::new(&mut court.pair);
    let to = scene.owner_id;
    scene
        .holder
        .act(move |cx| cx.send(to, b"keep me", 1).unwrap());
    let mut message: Option<Message> = None;
    court.pair.until(|_| {
        for event in scene.owner.events() {
            if let Event::Message(kept) = event {
                message = Some(kept);
            }
        }
        message.is_some()
    });
    let receives = court.pair.right.engine.receives_in_use();
    let id = scene.owner_context();
    court.pair.right.engine.kill(id);
    let end = ends_in_time(&mut court.pair, right, id);
    assert!(
        matches!(
            end,
            EngineEvent::Quarantined {
                bytes: 2048,
                why: QuarantineReason::HandleHeld,
                ..
            }
        ),
        "{end:?}"
    );
    let mut bytes = [0; 7];
    assert!(message.as_ref().unwrap().read_at(0, &mut bytes));
    assert_eq!(&bytes, b"keep me", "what is held is not reused");
    drop(message);
    court
        .pair
        .until(|pair| pair.right.used(|usage| usage.contexts.into()) == 0);
    assert_eq!(court.pair.right.engine.receives_in_use(), receives - 1);
    court.acquit();
}
