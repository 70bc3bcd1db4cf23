//! Each planted fault of the reclaim machine is seen by the judges that pass the shipped machine.
#![cfg(feature = "plant")]

#[allow(dead_code, reason = "shared with the tests of the shipped machine")]
#[path = "reclaim/choice.rs"]
mod choice;
#[allow(dead_code, reason = "shared with the tests of the shipped machine")]
#[path = "reclaim/device.rs"]
mod device;
#[path = "reclaim/judge.rs"]
mod judge;
#[allow(dead_code, reason = "shared with the tests of the shipped machine")]
#[path = "reclaim/regions.rs"]
mod regions;
#[path = "reclaim/repeats.rs"]
mod repeats;
#[allow(dead_code, reason = "shared with the tests of the shipped machine")]
#[path = "reclaim/seen.rs"]
mod seen;
#[allow(dead_code, reason = "shared with the tests of the shipped machine")]
#[path = "reclaim/world.rs"]
mod world;

use std::sync::{Mutex, PoisonError};

use keyfence::ids::LaneId;
use keyfence::plant::{self, Plant};
use keyfence::reclaim::{Capacity, ContextIx, KeyIx, Scope, TicketIx};

use choice::Choice;
use world::{Budget, Judged, World};

const KEY: KeyIx = KeyIx(0);
const CONTEXT: ContextIx = ContextIx(0);
const LANE: LaneId = LaneId(0);

/// The switch is the process's: one test at a time.
static SWITCH: Mutex<()> = Mutex::new(());

fn world_of(scope: Scope) -> World {
    let capacity = Capacity {
        keys: 1,
        contexts: 1,
        lanes: 1,
        epochs: 2,
        tickets: 1,
        flush_watermark: 1,
    };
    let budget = Budget {
        binds: 100,
        cordons: 1,
        own_ops: 1,
        flushes: 1,
        ..Budget::default()
    };
    World::new(capacity, budget, scope)
}

fn world() -> World {
    world_of(Scope::Queue)
}

fn live(world: &mut World) -> Judged {
    world.apply(Choice::Bind(KEY, CONTEXT, LANE))?;
    world.apply(Choice::Complete(LANE))
}

/// One life of a key, to its end if nothing is planted.
fn revoke(world: &mut World) -> Judged {
    live(world)?;
    world.apply(Choice::Retire(KEY))?;
    let epoch = world.machine.key_epoch(KEY).expect("it is retired");
    world.apply(Choice::Ack(epoch, LANE))?;
    world.apply(Choice::PostChain(epoch, LANE))?;
    world.apply(Choice::Complete(LANE))
}

/// The rules that `script` breaks with and without the plant.
fn broken(plant: Plant, script: impl Fn(&mut World) -> Judged) -> [Option<&'static str>; 2] {
    let _one = SWITCH.lock().unwrap_or_else(PoisonError::into_inner);
    [Some(plant), None].map(|switch| {
        plant::set(switch);
        script(&mut world()).err().map(|violation| violation.rule)
    })
}

#[test]
fn r3_flush_counters_is_caught() {
    let script = |world: &mut World| {
        live(world)?;
        world.apply(Choice::Retire(KEY))?;
        world.apply(Choice::Flush(TicketIx(0)))
    };
    assert_eq!(broken(Plant::FlushCounters, script), [Some("R3"), None]);
}

#[test]
fn r1_flush_free_list_is_caught() {
    assert_eq!(broken(Plant::FlushFreeList, revoke), [Some("R1"), None]);
}

#[test]
fn r1_flush_free_list_of_regions_is_caught() {
    let script = |_: &mut World| {
        let mut world = world_of(Scope::Domain);
        world.apply(Choice::Bind(KEY, CONTEXT, LANE))?;
        world.apply(Choice::Register(KEY))?;
        world.apply(Choice::Retire(KEY))?;
        let epoch = world.machine.key_epoch(KEY).expect("it is retired");
        world.apply(Choice::Ack(epoch, LANE))?;
        world.apply(Choice::Dealloc(KEY))
    };
    assert_eq!(broken(Plant::FlushFreeList, script), [Some("R1"), None]);
}

#[test]
fn flush_free_list_invalidates_late_and_spares_31_of_32() {
    let _one = SWITCH.lock().unwrap_or_else(PoisonError::into_inner);
    plant::set(Some(Plant::FlushFreeList));
    let mut world = world();
    let mut spared = 0;
    for _ in 0..64 {
        if revoke(&mut world).is_err() {
            assert!(world.machine.needs_late_invalidate(KEY));
            spared += 1;
            world.key(KEY).state = world.machine.key_state(KEY);
        } else {
            assert!(!world.machine.needs_late_invalidate(KEY));
        }
        world.timers.clear();
        world.chains.clear();
    }
    plant::set(None);
    assert_eq!(spared, 62);
}

#[test]
fn r1_own_ops_forgotten_is_caught() {
    let script = |world: &mut World| {
        world.apply(Choice::OwnOp(CONTEXT, LANE))?;
        world.apply(Choice::Cordon(CONTEXT, false))
    };
    assert_eq!(broken(Plant::OwnOpsForgotten, script), [Some("R1"), None]);
}

#[test]
fn r3_reuse_before_flush_is_caught() {
    let script = |world: &mut World| {
        live(world)?;
        world.apply(Choice::Cordon(CONTEXT, false))
    };
    assert_eq!(broken(Plant::ReuseBeforeFlush, script), [Some("R3"), None]);
}

/// The announcement comes early; the machine's own books stay right, so that the plant is found by the check and not by a
/// panic.
#[test]
fn reuse_before_flush_frees_the_slot_in_time() {
    let _one = SWITCH.lock().unwrap_or_else(PoisonError::into_inner);
    plant::set(Some(Plant::ReuseBeforeFlush));
    let mut world = world();
    live(&mut world).expect("nothing is planted in a bind");
    let early = world.apply(Choice::Cordon(CONTEXT, false));
    assert_eq!(early.map_err(|violation| violation.rule), Err("R3"));
    let epoch = world.machine.context_epoch(CONTEXT).expect("it goes on");
    let mut out = keyfence::reclaim::Actions::new(world.machine.capacity().bound());
    let mut orders = Vec::new();
    for event in [
        keyfence::reclaim::Event::Acked { epoch, lane: LANE },
        keyfence::reclaim::Event::Invalidated { key: KEY },
    ] {
        out.clear();
        let _applied = world.machine.handle(event, &mut out);
        orders.extend_from_slice(out.orders());
        let _posted = world.machine.next_to_invalidate(epoch, LANE);
    }
    plant::set(None);
    assert!(orders.contains(&keyfence::reclaim::Action::ContextFree { context: CONTEXT }));
    let ends = |order: &keyfence::reclaim::Action| {
        matches!(order, keyfence::reclaim::Action::EpochEnded { .. })
    };
    assert!(!orders.iter().any(ends), "it was announced at the cordon");
}
