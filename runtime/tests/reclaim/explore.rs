//! Every life of a small machine, in every order: no state breaks a rule, and from each of them rest can be reached.

use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

use keyfence::ids::LaneId;
use keyfence::reclaim::{Capacity, ContextIx, KeyIx, Scope};

use crate::choice::Choice;
use crate::random::{ends_by_deadlines, is_at_rest};
use crate::world::{Budget, World};

const SMALL: Capacity = Capacity {
    keys: 2,
    contexts: 2,
    lanes: 2,
    epochs: 2,
    tickets: 1,
    flush_watermark: 2,
};

/// The states reached, by fingerprint, and who leads to whom.
#[derive(Default)]
struct Graph {
    found: HashMap<u64, u32>,
    /// For each state, the states that lead to it.
    before: Vec<Vec<u32>>,
    at_rest: Vec<u32>,
}

impl Graph {
    /// The state's number, and whether it is new.
    fn insert(&mut self, world: &World) -> (u32, bool) {
        let mut hasher = DefaultHasher::new();
        world.hash(&mut hasher);
        let next = self.before.len() as u32;
        let number = *self.found.entry(hasher.finish()).or_insert(next);
        let new = number == next;
        if new {
            self.before.push(Vec::new());
            if is_at_rest(world) {
                self.at_rest.push(number);
            }
        }
        (number, new)
    }

    /// How many states can't reach rest, by walking backwards from it.
    fn stranded(&self) -> usize {
        let mut reached = vec![false; self.before.len()];
        let mut stack = self.at_rest.clone();
        while let Some(state) = stack.pop() {
            if !core::mem::replace(&mut reached[state as usize], true) {
                stack.extend(&self.before[state as usize]);
            }
        }
        reached.iter().filter(|&&reached| !reached).count()
    }
}

/// A grant that is live at the start.
type Live = (ContextIx, LaneId);

fn start(capacity: Capacity, live: &[Live], budget: Budget, scope: Scope) -> World {
    let mut world = World::new(capacity, budget, scope);
    world.eager = true;
    for (key, &(context, lane)) in (0..).map(KeyIx).zip(live) {
        world.bind(key, context, lane).unwrap();
        world
            .apply(match scope {
                Scope::Queue => Choice::Complete(lane),
                Scope::Domain => Choice::Register(key),
            })
            .unwrap();
    }
    world
}

/// Explores everything that can follow and checks R6 in each state. Returns the number of states.
fn explore(start: World) -> usize {
    let mut graph = Graph::default();
    let (number, _) = graph.insert(&start);
    let mut frontier = VecDeque::from([(number, start)]);
    while let Some((from, world)) = frontier.pop_front() {
        for choice in world.choices() {
            let mut next = world.clone();
            if let Err(violation) = next.apply(choice) {
                panic!("{choice:?}: {violation:?}\n{world:#?}");
            }
            let (to, new) = graph.insert(&next);
            graph.before[to as usize].push(from);
            if new {
                ends_by_deadlines(next.clone());
                frontier.push_back((to, next));
            }
        }
    }
    assert_eq!(
        graph.stranded(),
        0,
        "R6: states from which rest can't be reached"
    );
    graph.before.len()
}

const C0: ContextIx = ContextIx(0);
const C1: ContextIx = ContextIx(1);
const L0: LaneId = LaneId(0);
const L1: LaneId = LaneId(1);

const NOTHING: Budget = Budget {
    binds: 0,
    cordons: 0,
    own_ops: 0,
    handles: 0,
    flushes: 0,
    breaks: 0,
    swallowed: 0,
    refused: 0,
    failed_binds: 0,
    unnamed: 0,
    failed_deallocs: 0,
    dropped_imports: 0,
    strays: 0,
};

const ONE_LANE: Capacity = Capacity { lanes: 1, ..SMALL };

const SINGLE: Capacity = Capacity {
    lanes: 1,
    keys: 1,
    contexts: 1,
    flush_watermark: 1,
    ..SMALL
};

/// Explores keys that are windows, and asserts that there was something to explore.
fn explore_at_least(states: usize, capacity: Capacity, live: &[Live], budget: Budget) {
    let found = explore(start(capacity, live, budget, Scope::Queue));
    assert!(found >= states, "only {found} states");
}

/// The same for keys that are regions.
fn explore_regions(states: usize, capacity: Capacity, live: &[Live], budget: Budget) {
    let found = explore(start(capacity, live, budget, Scope::Domain));
    assert!(found >= states, "only {found} states");
}

#[test]
fn r6_two_contexts_on_two_lanes_end_from_every_state() {
    let budget = Budget {
        cordons: 1,
        ..NOTHING
    };
    explore_at_least(30_000, SMALL, &[(C0, L0), (C1, L1)], budget);
}

#[test]
fn r6_two_contexts_on_one_lane_end_from_every_state() {
    let budget = Budget {
        cordons: 2,
        ..NOTHING
    };
    explore_at_least(90_000, ONE_LANE, &[(C0, L0), (C1, L0)], budget);
}

#[test]
fn r6_one_context_on_two_lanes_ends_from_every_state() {
    let budget = Budget {
        cordons: 1,
        ..NOTHING
    };
    explore_at_least(30_000, SMALL, &[(C0, L0), (C0, L1)], budget);
}

#[test]
fn r3_r6_batches_and_a_flush_end_from_every_state() {
    let budget = Budget {
        flushes: 1,
        ..NOTHING
    };
    explore_at_least(15_000, SMALL, &[(C0, L0), (C1, L1)], budget);
    explore_at_least(5_000, ONE_LANE, &[(C0, L0), (C1, L0)], budget);
}

#[test]
fn r1_r2_own_operations_end_from_every_state() {
    let budget = Budget {
        cordons: 1,
        own_ops: 1,
        handles: 1,
        swallowed: 2,
        breaks: 1,
        flushes: 1,
        ..NOTHING
    };
    explore_at_least(90_000, SINGLE, &[(C0, L0)], budget);
}

#[test]
fn r3_r8_failures_of_the_device_end_from_every_state() {
    let budget = Budget {
        cordons: 1,
        flushes: 1,
        breaks: 1,
        swallowed: 1,
        refused: 1,
        failed_deallocs: 1,
        dropped_imports: 1,
        ..NOTHING
    };
    explore_at_least(7_000, SINGLE, &[(C0, L0)], budget);
}

#[test]
fn r4_r8_a_slot_bound_again_ends_from_every_state() {
    let budget = Budget {
        binds: 2,
        cordons: 1,
        swallowed: 1,
        failed_binds: 1,
        ..NOTHING
    };
    explore_at_least(1_500, SINGLE, &[], budget);
}

#[test]
fn r6_regions_of_two_contexts_on_one_lane_end_from_every_state() {
    let budget = Budget {
        cordons: 2,
        ..NOTHING
    };
    explore_regions(10_000, ONE_LANE, &[(C0, L0), (C1, L0)], budget);
}

#[test]
fn r3_r8_regions_on_a_device_that_fails_end_from_every_state() {
    let budget = Budget {
        cordons: 1,
        own_ops: 1,
        flushes: 1,
        breaks: 1,
        swallowed: 1,
        failed_deallocs: 1,
        dropped_imports: 1,
        ..NOTHING
    };
    explore_regions(7_000, SINGLE, &[(C0, L0)], budget);
}

#[test]
fn r4_r8_registrations_that_fail_end_from_every_state() {
    let budget = Budget {
        binds: 2,
        cordons: 1,
        failed_binds: 1,
        unnamed: 1,
        breaks: 1,
        failed_deallocs: 1,
        ..NOTHING
    };
    explore_regions(1_500, SINGLE, &[], budget);
}
