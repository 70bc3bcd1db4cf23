//! B08, R5: the engine of one context posts a dead key again and again, and the lane breaks each time. Another context on that lane loses nothing, and
//! nothing of it comes twice; the engine's owner is told how long each repair took. The dead keys are a device's: no application has a key.

#[path = "field/b08.rs"]
mod b08;
mod pair;

use b08::b08_a_bystander_loses_and_doubles_nothing;
use keyfence::pmd::wrap::fault::{Injection, Plan, Span, Target};
use pair::Pair;
use pair::judged::{Court, MS, Part};
use pair::offender::Books;

const BREAKS: usize = 200;

/// One lane, rebuilt as often as it breaks.
fn part() -> Part {
    let mut part = Part::quiet();
    part.limits.lanes = 1;
    part.limits.rebuilds = 1024;
    part
}

fn dead_keys_beside(reads: bool) {
    // Late completions, so that others have posted behind each dead key.
    let late = Injection::HoldBack {
        target: Target::Every,
        span: Span::EVERY,
        polls: 20,
    };
    let left = Part {
        plan: Plan::new([late]),
        ..part()
    };
    let mut court = Court::new(left, part());
    let books = Books {
        right: &court.right,
        left: &court.left_switches,
    };
    let longest_ns = b08_a_bystander_loses_and_doubles_nothing(
        &mut court.pair,
        &books,
        (reads, BREAKS),
        Pair::step,
    );
    assert!(longest_ns < MS, "{longest_ns} ns");
    court.acquit();
}

#[test]
fn b08_a_bystander_of_dead_keys_loses_and_doubles_nothing_and_each_repair_is_told() {
    dead_keys_beside(false);
    dead_keys_beside(true);
}
