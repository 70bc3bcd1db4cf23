//! Random work with every fault at once: R1 holds by the world's own record of who touched what, each request ends once, and everything can end.

mod simulated;

use keyfence_pmd::sim::{Breach, SimConfig, SimFault};
use simulated::slow_and_small;
use simulated::storm::run;

const STEPS: usize = 3000;

#[test]
fn r1_nothing_dead_touches_memory_in_a_storm() {
    let (mut completed, mut succeeded, mut keys_ended) = (0, 0, 0);
    let mut fired = vec![0; SimFault::ALL.len()];
    for seed in 0..24 {
        let outcome = run(seed, STEPS, &slow_and_small());
        assert_eq!(outcome.violations, Vec::<String>::new(), "seed {seed}");
        completed += outcome.completed;
        succeeded += outcome.succeeded;
        keys_ended += outcome.keys_ended;
        for (sum, (_, count)) in fired.iter_mut().zip(outcome.fired.iter()) {
            *sum += count;
        }
    }
    let fired: Vec<_> = SimFault::ALL.iter().zip(fired).collect();
    println!("{fired:?}");
    let unreached = fired.iter().filter(|(_, count)| *count == 0);
    assert_eq!(unreached.count(), 0, "{fired:?}");
    // Neither all good nor all bad.
    println!("{succeeded} of {completed} requests succeeded, {keys_ended} keys ended");
    assert!(succeeded * 4 > completed && succeeded * 10 < completed * 9 && keys_ended > 1000);
}

#[test]
fn r1_nothing_dead_touches_memory_on_any_kind_of_adapter() {
    // One without windows has no keys that could die in a storm.
    for (name, config) in SimConfig::kinds()
        .into_iter()
        .filter(|(_, config)| config.windows)
    {
        for seed in 100..108 {
            let outcome = run(seed, STEPS, &config);
            assert_eq!(
                outcome.violations,
                Vec::<String>::new(),
                "{name}, seed {seed}"
            );
        }
    }
}

#[test]
fn the_same_storm_is_the_same_to_the_last_event() {
    for seed in 0..4 {
        let first = run(seed, STEPS, &slow_and_small());
        assert_eq!(first, run(seed, STEPS, &slow_and_small()));
        assert_ne!(first.hash, run(seed + 100, STEPS, &slow_and_small()).hash);
    }
}

/// The judge of the storm is no rubber stamp: it sees each breach that touches what it should not.
#[test]
fn r1_a_storm_shows_each_breach() {
    for breach in [
        Breach::InvalidationDoesNotFence,
        Breach::InvalidationEndsNothing,
        Breach::DeallocDoesNotFence,
        Breach::DestroyDoesNotFence,
        Breach::FlushDoesNotFence,
        Breach::ReadsSourcesLate,
        Breach::CompletesReadsEarly,
    ] {
        let config = SimConfig {
            breach: Some(breach),
            ..slow_and_small()
        };
        let seen = (0..12).find_map(|seed| run(seed, STEPS, &config).violations.pop());
        assert!(seen.is_some(), "{breach:?}");
    }
}
