//! One control thread makes and ends the keys of all contexts: who else is reclaimed at the same time takes from nobody's bound (R6).

#[path = "../pair/mod.rs"]
mod pair;

use keyfence::ids::ContextId;
use keyfence::{EngineEvent, Lease, Rights};
use keyfence_mempool::sync::Ordering;
use pair::judged::{Court, Part, US};
use pair::switched::set;

/// Contexts that are reclaimed at once, and the grants of each; as many are made meanwhile by another one.
const OWNERS: u16 = 7;
const GRANTS: u32 = 16;

const NAMES: [&str; OWNERS as usize + 1] = ["0", "1", "2", "3", "4", "5", "6", "busy"];

fn part() -> Part {
    let mut part = Part::quiet();
    part.limits.grants = (u32::from(OWNERS) + 1) * GRANTS;
    part.limits.context.grants = GRANTS;
    part.limits.context.imports = part.limits.grants;
    part.timeouts.per_key_ns = 200 * US;
    part
}

#[test]
fn r6_contexts_that_are_reclaimed_together_end_within_the_bound_of_one() {
    let bound_ns = part().timeouts.reclaim_bound_ns(part().limits.grants);
    let mut court = Court::new(part(), part());
    let owners = NAMES.map(|name| court.pair.right.puppet(0, name));
    let _holder = court.pair.left.puppet(0, "holder");
    court.pair.steps(10);
    let to = pair::scene::lookup(&mut court.pair, &owners[0], "holder");
    let opens_all = move |cx: &mut keyfence::Context<'_>| {
        let buf = cx.alloc(4096).unwrap();
        for _ in 0..GRANTS {
            cx.grant(&buf, 0..64, Rights::ALL, to, Lease::None).unwrap();
        }
    };
    let (busy, owners) = owners.split_last().unwrap();
    for owner in owners {
        owner.act(opens_all);
    }
    court.pair.steps(500);
    let grants = court.pair.left.used(|usage| usage.imports.into());
    assert_eq!(grants, u64::from(OWNERS) * u64::from(GRANTS));
    // As much as a key may take, its making and its end.
    set(&court.right_switches.register_ns, 50 * US);
    set(&court.right_switches.deregister_ns, 150 * US);
    let ids = NAMES.map(|name| court.pair.right.id_of(name).unwrap());
    busy.act(opens_all);
    let (_, ids) = ids.split_last().unwrap();
    for id in ids {
        court.pair.right.engine.kill(*id);
    }
    let begun_ns = court.pair.now_ns;
    let pair = &mut court.pair;
    let spent_ns = &court.right_switches.spent_ns;
    pair.until(|pair| {
        pair.now_ns += spent_ns.swap(0, Ordering::Relaxed);
        assert!(
            pair.now_ns - begun_ns < bound_ns,
            "R6: beyond {bound_ns} ns"
        );
        let ended = |id: &ContextId| pair.right.reclaimed(*id);
        ids.iter().all(ended)
    });
    let lost = |event: &EngineEvent| matches!(event, EngineEvent::Quarantined { .. });
    assert!(!pair.right.events.iter().any(lost));
    assert_eq!(pair.right.stat("lanes_broken"), 0, "R5");
    court.acquit();
}
