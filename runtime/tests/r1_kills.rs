//! R1, R2: contexts killed with operations of theirs, and of others on their memory, under way.

mod pair;

use keyfence::ids::ContextId;
use keyfence::pmd::wrap::fault::{Injection, Plan, Span, Target};
use keyfence::{Buf, EngineEvent, Event, Local, Status};
use keyfence_mempool::sync::Arc;
use pair::judged::{Court, Judged, MS, Part, fast_limits};
use pair::scene::{Granted, Scene, completions, ends};
use pair::{Pair, Side, Slot};

const MIB: usize = 1 << 20;

/// The left's completions come late, so that what it posts is in flight for long.
fn slow_left() -> Court {
    let late = Injection::HoldBack {
        target: Target::Every,
        span: Span::EVERY,
        polls: 50,
    };
    Court::new(Part::new(Plan::new([late])), Part::quiet())
}

/// Lets a puppet take a big buffer and start `write`s and reads with it; gives the buffer and its first address.
fn start(
    scene: &Scene,
    pair: &mut Pair<Judged>,
    grants: &[Granted],
    sends: bool,
) -> (Slot<Buf>, u64) {
    let (buf, address) = (Slot::new(), Slot::new());
    let (to_buf, to_address) = (buf.clone(), address.clone());
    let imports: Vec<_> = grants.iter().map(|grant| grant.import).collect();
    let owner = scene.owner_id;
    scene.holder.act(move |cx| {
        let memory = cx.alloc(MIB).unwrap();
        memory.dma().fill(0x77);
        for (token, import) in imports.iter().enumerate() {
            let token = token as u64;
            let local = Local::prefix(&memory, import.len as usize);
            cx.write(import, 0, core::slice::from_ref(&local), token)
                .unwrap();
            cx.read(import, 0, &[local], 100 + token).unwrap();
        }
        for token in 0..if sends { 4 } else { 0 } {
            cx.send_from(owner, &[Local::prefix(&memory, 512)], 200 + token)
                .unwrap();
        }
        to_address.set(memory.address());
        to_buf.set(memory);
    });
    pair.step();
    (buf, address.take().expect("the act ran"))
}

fn reclaim_of(side: &Side<Judged>, context: ContextId) -> Vec<&EngineEvent> {
    let about = |event: &&EngineEvent| match event {
        EngineEvent::Reclaimed { context: known, .. }
        | EngineEvent::Quarantined { context: known, .. } => *known == context,
        _ => false,
    };
    side.events.iter().filter(about).collect()
}

#[test]
fn r1_a_killed_initiator_is_reclaimed_after_its_last_slice() {
    let mut court = slow_left();
    let scene = Scene::new(&mut court.pair);
    let grants: Vec<_> = (0..2).map(|_| scene.grant(&mut court.pair, MIB)).collect();
    let (buf, address) = start(&scene, &mut court.pair, &grants, true);
    let range = address..address + MIB as u64;
    assert!(court.left.open_work(range.clone()) > 0, "slices are posted");
    drop(buf.take());
    let context = scene.holder_context();
    court.pair.left.engine.kill(context);
    let left = Arc::clone(&court.left);
    court.pair.until(|pair| {
        let over = pair.left.reclaimed(context);
        if !over {
            assert!(
                pair.left.engine.buffers_in_use() > 0,
                "memory goes back with the notice, not before"
            );
        }
        over
    });
    assert_eq!(left.open_work(range), 0, "{left:?}");
    assert_eq!(court.pair.left.stat("cordons_with_ops_in_flight"), 1);
    assert_eq!(court.pair.left.engine.buffers_in_use(), 0);
    court.pair.steps(2_000);
    assert_eq!(reclaim_of(&court.pair.left, context).len(), 1);
    assert_eq!(court.pair.left.stat("lanes_broken"), 0);
    assert_eq!(court.pair.left.used(|usage| usage.ops), 0);
    // The mirror image: the owner retires what its dead holder had.
    let events = scene.owner.events();
    for grant in &grants {
        assert_eq!(ends(&events, grant.id), (1, 0));
        assert_eq!(court.right.live_keys(grant.range.clone()), 0);
    }
    assert!(events.iter().any(
        |event| matches!(event, Event::ContextGone { context: gone, .. } if gone.id == context)
    ));
    court.acquit();
}

/// Its completion is there to be taken when the kill comes: the cordon is first.
#[test]
fn r1_a_kill_is_cordoned_with_what_was_in_flight_when_it_came() {
    let mut pair = Pair::new();
    let scene = Scene::new(&mut pair);
    let granted = scene.grant(&mut pair, 4096);
    pair.steps(50);
    let import = granted.import;
    scene.holder.act(move |cx| {
        let buf = cx.alloc(64).unwrap();
        cx.write(&import, 0, &[Local::prefix(&buf, 64)], 1).unwrap();
    });
    pair.step();
    let id = scene.holder_context();
    pair.left.engine.kill(id);
    pair.until(|pair| pair.left.reclaimed(id));
    let in_flight = pair.left.events.iter().find_map(|event| match event {
        EngineEvent::Reclaimed {
            context,
            ops_in_flight,
            ..
        } if *context == id => Some(*ops_in_flight),
        _ => None,
    });
    assert_eq!(in_flight, Some(1));
}

#[test]
fn r1_a_killed_owner_is_reclaimed_after_its_last_key() {
    let mut court = slow_left();
    let scene = Scene::new(&mut court.pair);
    let grants: Vec<_> = (0..2).map(|_| scene.grant(&mut court.pair, MIB)).collect();
    let (_buf, _) = start(&scene, &mut court.pair, &grants, false);
    for grant in &grants {
        drop(grant.buf.take());
        assert_eq!(court.right.live_keys(grant.range.clone()), 1);
    }
    let context = scene.owner_context();
    court.pair.right.engine.kill(context);
    let right = Arc::clone(&court.right);
    court.pair.until(|pair| pair.right.reclaimed(context));
    for grant in &grants {
        assert_eq!(right.live_keys(grant.range.clone()), 0, "{right:?}");
    }
    assert_eq!(court.pair.right.engine.buffers_in_use(), 0);
    court.pair.steps(2_000);
    assert_eq!(court.pair.left.stat("lanes_broken"), 0);
    assert_eq!(court.pair.left.stat("fences_with_ops_in_flight"), 2);
    // What had begun ran down or was cut; each operation ended once, and the holder was told.
    let events = scene.holder.events();
    let done = completions(&events);
    assert_eq!(done.len(), 4);
    assert!(done.iter().all(|done| matches!(
        done.status,
        Status::Ok | Status::Revoked | Status::Indeterminate
    )));
    let revoked = events
        .iter()
        .filter(|event| matches!(event, Event::Revoked(_)));
    assert_eq!(revoked.count(), 2);
    court.acquit();
}

#[test]
fn r2_with_imports_and_no_grants_the_notice_follows_the_fence_of_its_operations() {
    let mut court = slow_left();
    let scene = Scene::new(&mut court.pair);
    let grant = scene.grant(&mut court.pair, MIB);
    let (buf, _) = start(
        &scene,
        &mut court.pair,
        core::slice::from_ref(&grant),
        false,
    );
    drop(buf.take());
    let context = scene.holder_context();
    court.pair.left.engine.kill(context);
    // The owner hears of the end only when the holder's engine has proven it.
    let mut gone = false;
    court.pair.until(|pair| {
        gone |= scene
            .owner
            .events()
            .iter()
            .any(|event| matches!(event, Event::ContextGone { .. }));
        assert!(!gone || pair.left.reclaimed(context));
        gone
    });
    court.acquit();
}

#[test]
fn r2_the_slot_is_reused_after_the_reclaim_alone() {
    let mut limits = fast_limits();
    limits.contexts = 1;
    let right = Part {
        limits,
        ..Part::quiet()
    };
    let mut court = Court::new(Part::quiet(), right);
    let scene = Scene::new(&mut court.pair);
    let grant = scene.grant(&mut court.pair, MIB);
    let (_buf, _) = start(
        &scene,
        &mut court.pair,
        core::slice::from_ref(&grant),
        false,
    );
    drop(grant.buf.take());
    let context = scene.owner_context();
    court.pair.right.engine.kill(context);
    let mut tries = 0;
    while court.pair.right.id_of("next").is_none() {
        let reclaimed = court.pair.right.reclaimed(context);
        court.pair.right.puppet(0, "next");
        court.pair.step();
        let opened = court.pair.right.id_of("next");
        assert!(
            opened.is_none() || reclaimed || court.pair.right.reclaimed(context),
            "the slot is taken before its reclaim has ended"
        );
        tries += 1;
        assert!(tries < 10_000);
    }
    assert!(tries > 1, "the first try found the slot taken");
    let next = court.pair.right.id_of("next").unwrap();
    assert_eq!(next.slot, context.slot);
    assert!(next.generation > context.generation);
    court.acquit();
}

#[test]
fn r2_zapped_of_each_grant_precedes_the_end_of_its_memory() {
    // A context that closes by itself hears nothing more, so a bystander's flush stands for the order: it ends behind the last key.
    let mut court = Court::quiet();
    let scene = Scene::new(&mut court.pair);
    let witness = court.pair.right.puppet(0, "witness");
    let grants: Vec<_> = (0..8).map(|_| scene.grant(&mut court.pair, 4096)).collect();
    for grant in &grants {
        drop(grant.buf.take());
    }
    scene.owner.act(|cx| cx.close());
    court.pair.steps(2);
    witness.act(|cx| cx.flush(5).unwrap());
    let mut flushed = false;
    let context = scene.owner_context();
    court.pair.until(|_| {
        flushed = witness.events().iter().any(|event| {
            matches!(
                event,
                Event::Flushed {
                    token: 5,
                    quarantined: 0
                }
            )
        });
        flushed
    });
    for grant in &grants {
        assert_eq!(court.right.live_keys(grant.range.clone()), 0);
    }
    court.pair.until(|pair| pair.right.reclaimed(context));
    assert_eq!(court.pair.right.stat("grants_zapped"), 8);
    court.acquit();
}

#[test]
fn r2_a_peer_that_stands_still_delays_the_end_by_the_bound_at_most() {
    let mut court = Court::quiet();
    let scene = Scene::new(&mut court.pair);
    let grant = scene.grant(&mut court.pair, 4096);
    let id = grant.id;
    scene.owner.act(move |cx| cx.revoke(id).unwrap());
    let start_ns = court.pair.now_ns;
    let mut events = Vec::new();
    // Its adapter takes nothing more, so the lane is sick: it is sacrificed, and that is the proof.
    while ends(&events, id) == (0, 0) {
        court.pair.now_ns += 1_000;
        court.pair.right.step(court.pair.now_ns);
        events.extend(scene.owner.events());
        assert!(court.pair.now_ns - start_ns < 10 * MS);
    }
    assert!(
        court.pair.now_ns - start_ns >= MS,
        "the fence was waited for"
    );
    assert_eq!(ends(&events, id), (1, 0));
    assert_eq!(court.right.live_keys(grant.range.clone()), 0);
    court.acquit();
}
