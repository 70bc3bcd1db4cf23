//! Which pairs of event and state the model's machines have met, a thread each: it must not be part of a world, whose states are compared.

use core::cell::Cell;

use keyfence::reclaim::{Event, Machine, PairSet};

use crate::world::{Judged, check};

thread_local! {
    static SEEN: Cell<PairSet> = const { Cell::new(PairSet::EMPTY) };
}

/// Notes what the event meets. All that a model meets must be possible.
pub fn note(machine: &Machine, event: &Event) -> Judged {
    let pair = machine.pair(event);
    SEEN.with(|seen| {
        let mut set = seen.get();
        set.insert(pair);
        seen.set(set);
    });
    check(pair.is_possible(), "pairs", || {
        format!("{pair} is said to be impossible: {:?}", pair.chance())
    })
}

/// What is met while `run` runs.
pub fn during(run: impl FnOnce()) -> PairSet {
    SEEN.set(PairSet::EMPTY);
    run();
    SEEN.take()
}
