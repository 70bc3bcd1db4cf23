//! Random lives of a model engine, judged at each step; then the faults stop, and everything must end.

use keyfence::ids::LaneId;
use keyfence::reclaim::{Capacity, KeyState, LaneState, Scope, Timer};
use proptest::prelude::*;

use crate::choice::Choice;
use crate::world::{Budget, Qp, Stage, World};

fn capacity() -> impl Strategy<Value = Capacity> {
    (1..=8u32, 1..=3u16, 1..=3u16, 2..=4u16, 1..=2u16, 1..=3u32).prop_map(
        |(keys, contexts, lanes, epochs, tickets, flush_watermark)| Capacity {
            keys,
            contexts,
            lanes,
            epochs,
            tickets,
            flush_watermark,
        },
    )
}

fn budget() -> impl Strategy<Value = Budget> {
    (0..=3u32, 0..=3u32, 0..=3u32, 0..=3u32).prop_map(
        |(breaks, swallowed, refused, failed_deallocs)| Budget {
            binds: 30,
            cordons: 6,
            own_ops: 20,
            handles: 3,
            flushes: 6,
            breaks,
            swallowed,
            refused,
            failed_binds: refused,
            unnamed: refused,
            failed_deallocs,
            dropped_imports: 3,
            strays: 2,
            repeats: 3,
            polled_late: swallowed,
        },
    )
}

/// Of windows or of regions.
fn scope() -> impl Strategy<Value = Scope> {
    prop_oneof![Just(Scope::Queue), Just(Scope::Domain)]
}

/// Timers are drawn as seldom as they run out: one step in eight.
fn draw(world: &World, dice: u32) -> Option<Choice> {
    let (timers, others): (Vec<_>, Vec<_>) = world
        .choices()
        .into_iter()
        .partition(|choice| matches!(choice, Choice::Expire(_)));
    let pool = if others.is_empty() || (dice.is_multiple_of(8) && !timers.is_empty()) {
        timers
    } else {
        others
    };
    (!pool.is_empty()).then(|| pool[dice as usize / 8 % pool.len()])
}

/// R6: with nobody answering any more, the deadlines alone end every epoch and every flush.
pub fn ends_by_deadlines(mut world: World) {
    for _ in 0..4 * world.machine.capacity().keys + 16 {
        let Some(&timer) = world.timers.first() else {
            break;
        };
        world.apply(Choice::Expire(timer)).unwrap();
    }
    assert!(world.open_epochs().is_empty(), "R6: {:?}", world.timers);
    assert_eq!(world.machine.epochs_under_way(), 0, "R6");
    assert!(
        world.tickets.iter().all(Option::is_none),
        "R6: a flush is open"
    );
    let cordoned = |stage| matches!(stage, Stage::Cordoned(_));
    assert!(
        !world.contexts.iter().any(|context| cordoned(context.stage)),
        "R6"
    );
}

/// R6, R7: with the faults over, everything is released, the quarantined too.
pub fn comes_to_rest(mut world: World) {
    world.budget = Budget {
        cordons: 99,
        ..Budget::default()
    };
    for _ in 0..2_000 {
        let mut choices = Vec::new();
        world.progress(&mut choices);
        let live = (0..).zip(&world.keys).find(|(_, key)| {
            matches!(key.state, KeyState::Binding | KeyState::Live) && !key.retired
        });
        let next = choices
            .first()
            .copied()
            .or_else(|| live.map(|(index, _)| Choice::Retire(keyfence::reclaim::KeyIx(index))));
        let Some(next) = next.or_else(|| world.timers.first().copied().map(Choice::Expire)) else {
            break;
        };
        world.apply(next).unwrap();
    }
    assert!(is_at_rest(&world), "R7: {world:#?}");
}

pub fn is_at_rest(world: &World) -> bool {
    let lanes = (0..world.lanes.len() as u16).map(LaneId);
    world
        .timers
        .iter()
        .all(|&timer| timer == Timer::FlushInterval)
        && world.keys.iter().all(|key| key.state == KeyState::Dead)
        && world
            .contexts
            .iter()
            .all(|context| context.stage == Stage::Open)
        && world.lanes.iter().all(|lane| lane.qp == Qp::Up)
        && world.tickets.iter().all(Option::is_none)
        && lanes
            .into_iter()
            .all(|lane| world.machine.lane_state(lane) == LaneState::Up)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn r1_r2_r3_r4_r6_r7_r8_hold_at_random(
        capacity in capacity(),
        budget in budget(),
        scope in scope(),
        dice in proptest::collection::vec(any::<u32>(), 20..250),
    ) {
        let mut world = World::new(capacity, budget, scope);
        for roll in dice {
            let Some(choice) = draw(&world, roll) else { break };
            if let Err(violation) = world.apply(choice) {
                prop_assert!(false, "{choice:?}: {violation:?}\n{world:#?}");
            }
        }
        ends_by_deadlines(world.clone());
        comes_to_rest(world);
    }
}
