//! Every life of a small machine, in every order: no state breaks a rule, and from each of them rest can be reached.

use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::OnceLock;

use keyfence::ids::LaneId;
use keyfence::reclaim::{Capacity, ContextIx, KeyIx, PairSet, Scope};

use crate::choice::Choice;
use crate::random::{ends_by_deadlines, is_at_rest};
use crate::seen;
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
    repeats: 0,
    polled_late: 0,
};

const ONE_LANE: Capacity = Capacity { lanes: 1, ..SMALL };

const SINGLE: Capacity = Capacity {
    lanes: 1,
    keys: 1,
    contexts: 1,
    flush_watermark: 1,
    ..SMALL
};

/// A machine to start from, and how many states must follow from it at least: so that there was something to explore.
struct Small {
    capacity: Capacity,
    live: &'static [Live],
    budget: Budget,
    scope: Scope,
    states: usize,
}

/// Some of them, and the pairs of event and state that they met: explored once, whoever asks first.
pub struct Exploration {
    of: &'static [Small],
    seen: OnceLock<PairSet>,
}

impl Exploration {
    const fn new(of: &'static [Small]) -> Self {
        Self {
            of,
            seen: OnceLock::new(),
        }
    }

    pub fn seen(&self) -> PairSet {
        *self.seen.get_or_init(|| {
            seen::during(|| {
                for small in self.of {
                    let start = start(small.capacity, small.live, small.budget, small.scope);
                    let found = explore(start);
                    assert!(found >= small.states, "only {found} states");
                }
            })
        })
    }
}

static TWO_CONTEXTS_ON_TWO_LANES: Exploration = Exploration::new(&[Small {
    capacity: SMALL,
    live: &[(C0, L0), (C1, L1)],
    budget: Budget {
        cordons: 1,
        ..NOTHING
    },
    scope: Scope::Queue,
    states: 30_000,
}]);

#[test]
fn r6_two_contexts_on_two_lanes_end_from_every_state() {
    TWO_CONTEXTS_ON_TWO_LANES.seen();
}

static TWO_CONTEXTS_ON_ONE_LANE: Exploration = Exploration::new(&[Small {
    capacity: ONE_LANE,
    live: &[(C0, L0), (C1, L0)],
    budget: Budget {
        cordons: 2,
        ..NOTHING
    },
    scope: Scope::Queue,
    states: 90_000,
}]);

#[test]
fn r6_two_contexts_on_one_lane_end_from_every_state() {
    TWO_CONTEXTS_ON_ONE_LANE.seen();
}

static ONE_CONTEXT_ON_TWO_LANES: Exploration = Exploration::new(&[Small {
    capacity: SMALL,
    live: &[(C0, L0), (C0, L1)],
    budget: Budget {
        cordons: 1,
        ..NOTHING
    },
    scope: Scope::Queue,
    states: 30_000,
}]);

#[test]
fn r6_one_context_on_two_lanes_ends_from_every_state() {
    ONE_CONTEXT_ON_TWO_LANES.seen();
}

static BATCHES_AND_A_FLUSH: Exploration = Exploration::new(&[
    Small {
        capacity: SMALL,
        live: &[(C0, L0), (C1, L1)],
        budget: Budget {
            flushes: 1,
            ..NOTHING
        },
        scope: Scope::Queue,
        states: 15_000,
    },
    Small {
        capacity: ONE_LANE,
        live: &[(C0, L0), (C1, L0)],
        budget: Budget {
            flushes: 1,
            ..NOTHING
        },
        scope: Scope::Queue,
        states: 5_000,
    },
]);

#[test]
fn r3_r6_batches_and_a_flush_end_from_every_state() {
    BATCHES_AND_A_FLUSH.seen();
}

static OWN_OPERATIONS: Exploration = Exploration::new(&[Small {
    capacity: SINGLE,
    live: &[(C0, L0)],
    budget: Budget {
        cordons: 1,
        own_ops: 1,
        handles: 1,
        swallowed: 2,
        breaks: 1,
        flushes: 1,
        ..NOTHING
    },
    scope: Scope::Queue,
    states: 90_000,
}]);

#[test]
fn r1_r2_own_operations_end_from_every_state() {
    OWN_OPERATIONS.seen();
}

static FAILURES_OF_THE_DEVICE: Exploration = Exploration::new(&[Small {
    capacity: SINGLE,
    live: &[(C0, L0)],
    budget: Budget {
        cordons: 1,
        flushes: 1,
        breaks: 1,
        swallowed: 1,
        refused: 1,
        failed_deallocs: 1,
        dropped_imports: 1,
        ..NOTHING
    },
    scope: Scope::Queue,
    states: 7_000,
}]);

#[test]
fn r3_r8_failures_of_the_device_end_from_every_state() {
    FAILURES_OF_THE_DEVICE.seen();
}

static A_SLOT_BOUND_AGAIN: Exploration = Exploration::new(&[Small {
    capacity: SINGLE,
    live: &[],
    budget: Budget {
        binds: 2,
        cordons: 1,
        swallowed: 1,
        failed_binds: 1,
        ..NOTHING
    },
    scope: Scope::Queue,
    states: 1_500,
}]);

#[test]
fn r4_r8_a_slot_bound_again_ends_from_every_state() {
    A_SLOT_BOUND_AGAIN.seen();
}

static REGIONS_OF_TWO_CONTEXTS_ON_ONE_LANE: Exploration = Exploration::new(&[Small {
    capacity: ONE_LANE,
    live: &[(C0, L0), (C1, L0)],
    budget: Budget {
        cordons: 2,
        ..NOTHING
    },
    scope: Scope::Domain,
    states: 10_000,
}]);

#[test]
fn r6_regions_of_two_contexts_on_one_lane_end_from_every_state() {
    REGIONS_OF_TWO_CONTEXTS_ON_ONE_LANE.seen();
}

static REGIONS_ON_A_DEVICE_THAT_FAILS: Exploration = Exploration::new(&[Small {
    capacity: SINGLE,
    live: &[(C0, L0)],
    budget: Budget {
        cordons: 1,
        own_ops: 1,
        flushes: 1,
        breaks: 1,
        swallowed: 1,
        failed_deallocs: 1,
        dropped_imports: 1,
        ..NOTHING
    },
    scope: Scope::Domain,
    states: 7_000,
}]);

#[test]
fn r3_r8_regions_on_a_device_that_fails_end_from_every_state() {
    REGIONS_ON_A_DEVICE_THAT_FAILS.seen();
}

static REGISTRATIONS_THAT_FAIL: Exploration = Exploration::new(&[Small {
    capacity: SINGLE,
    live: &[],
    budget: Budget {
        binds: 2,
        cordons: 1,
        failed_binds: 1,
        unnamed: 1,
        breaks: 1,
        failed_deallocs: 1,
        ..NOTHING
    },
    scope: Scope::Domain,
    states: 1_500,
}]);

#[test]
fn r4_r8_registrations_that_fail_end_from_every_state() {
    REGISTRATIONS_THAT_FAIL.seen();
}

static SUCCESSES_POLLED_LATE: Exploration = Exploration::new(&[
    Small {
        capacity: SINGLE,
        live: &[(C0, L0)],
        budget: Budget {
            cordons: 1,
            own_ops: 1,
            breaks: 1,
            swallowed: 1,
            polled_late: 2,
            ..NOTHING
        },
        scope: Scope::Queue,
        states: 1_000,
    },
    Small {
        capacity: SINGLE,
        live: &[],
        budget: Budget {
            binds: 1,
            cordons: 1,
            breaks: 1,
            dropped_imports: 1,
            polled_late: 2,
            ..NOTHING
        },
        scope: Scope::Queue,
        states: 100,
    },
]);

#[test]
fn r3_successes_that_are_polled_late_end_from_every_state() {
    SUCCESSES_POLLED_LATE.seen();
}

static WHAT_IS_KNOWN_ALREADY: Exploration = Exploration::new(&[
    Small {
        capacity: SINGLE,
        live: &[],
        budget: Budget {
            binds: 1,
            cordons: 1,
            own_ops: 1,
            refused: 1,
            failed_deallocs: 1,
            strays: 1,
            repeats: 1,
            ..NOTHING
        },
        scope: Scope::Queue,
        states: 1_000,
    },
    Small {
        capacity: SINGLE,
        live: &[(C0, L0)],
        budget: Budget {
            cordons: 1,
            failed_deallocs: 1,
            strays: 1,
            repeats: 1,
            ..NOTHING
        },
        scope: Scope::Domain,
        states: 100,
    },
]);

#[test]
fn r7_what_is_known_already_changes_nothing_in_any_state() {
    WHAT_IS_KNOWN_ALREADY.seen();
}

/// All of them.
pub static ALL: &[&Exploration] = &[
    &TWO_CONTEXTS_ON_TWO_LANES,
    &TWO_CONTEXTS_ON_ONE_LANE,
    &ONE_CONTEXT_ON_TWO_LANES,
    &BATCHES_AND_A_FLUSH,
    &OWN_OPERATIONS,
    &FAILURES_OF_THE_DEVICE,
    &A_SLOT_BOUND_AGAIN,
    &REGIONS_OF_TWO_CONTEXTS_ON_ONE_LANE,
    &REGIONS_ON_A_DEVICE_THAT_FAILS,
    &REGISTRATIONS_THAT_FAIL,
    &SUCCESSES_POLLED_LATE,
    &WHAT_IS_KNOWN_ALREADY,
];
