//! The table of what can happen, held against what the explorer meets. That nothing else is met is judged at each event, here and at random (`seen.rs`).

use keyfence::reclaim::{Pair, PairSet};

use crate::explore;

#[test]
fn every_pair_that_can_happen_is_met() {
    let explored = explore::ALL.iter().map(|part| part.seen());
    let met = explored.fold(PairSet::EMPTY, PairSet::union);
    let possible = PairSet::possible();
    println!(
        "{} pairs, {} of them possible, {} met",
        Pair::COUNT,
        possible.len(),
        met.len()
    );
    let missed = possible.minus(met);
    assert!(missed.is_empty(), "possible, but not met: {missed:?}");
}
