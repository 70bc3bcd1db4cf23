//! B04: failed completions that hold garbage in every field but those that mean something (ibv_poll_cq(3)): id, status and queue pair. Each operation of
//! each context ends once all the same, as what it was.

#[path = "field/b07.rs"]
mod b07;
mod pair;

use b07::b07_all_that_was_submitted_completes;
use keyfence::pmd::soft::{Fabric, SoftConfig};
use keyfence::pmd::wrap::fault::{Fault, Injection, Plan};
use pair::switched::Switched;
use pair::{Pair, builder};

fn breaks(side: usize, seed: u64) {
    let fabric = Fabric::new();
    let device = || {
        let soft = fabric.device(SoftConfig::default()).unwrap();
        let plan = Plan::new([Injection::Garbage { seed }]);
        Switched::new(Fault::new(soft, plan))
    };
    let (left, left_switches) = device();
    let (right, right_switches) = device();
    let mut pair = Pair::on(
        builder("left", "right", 1),
        left,
        builder("right", "left", 1),
        right,
    );
    let receives = |pair: &Pair<_>| {
        let sides: [&pair::Side<_>; 2] = [&pair.left, &pair.right];
        sides.map(|side| side.engine.receives_in_use())
    };
    let posted = receives(&pair);
    let switches = [left_switches, right_switches];
    b07_all_that_was_submitted_completes(&mut pair, &switches[side], Pair::step);
    let failed = pair.left.stat("requests_failed") + pair.right.stat("requests_failed");
    // Of the receives, each lane's failed too.
    assert!(failed > 0);
    // The lanes of the next session have posted as many, and those of the last one none.
    pair.steps(2_000);
    assert_eq!(receives(&pair), posted);
    for side in [&pair.left, &pair.right] {
        assert_eq!(side.stat("services_panicked"), 0);
        assert_eq!(side.stat("completions_dropped"), 0);
        assert_eq!(side.used(|usage| usage.ops), 0);
    }
}

#[test]
fn b04_garbage_in_failed_completions_misleads_nobody() {
    for seed in 0..20 {
        breaks(seed as usize % 2, seed);
    }
}
