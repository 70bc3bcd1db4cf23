//! Each rule that `sim` keeps, broken: the suite notices. So the hazard is really there, and it is the rule's code that keeps it away.

mod simulated;

use keyfence_pmd::conformance::Verdict;
use keyfence_pmd::sim::{Breach, Nanos, SimConfig};
use simulated::{arenas, run, world};

/// Which tests fail on a world that breaks the rule.
const SEEN_BY: &[(Breach, &str)] = &[
    (
        Breach::InvalidationDoesNotFence,
        "r1_nothing_lands_after_an_invalidation",
    ),
    (
        Breach::InvalidationDoesNotFence,
        "r1_nothing_is_read_after_an_invalidation",
    ),
    (
        Breach::DeallocDoesNotFence,
        "r1_nothing_lands_after_a_deallocation",
    ),
    (
        Breach::DeallocDoesNotFence,
        "r1_nothing_lands_after_a_deallocation_on_a_queue_pair_in_error",
    ),
    (
        Breach::DeallocDoesNotFence,
        "r1_nothing_is_read_after_a_deallocation",
    ),
    (
        Breach::DeregisterDoesNotFence,
        "r1_nothing_lands_after_a_deregistration",
    ),
    (
        Breach::DeregisterDoesNotFence,
        "r1_nothing_is_read_after_a_deregistration",
    ),
    (
        Breach::DestroyDoesNotFence,
        "r1_nothing_lands_after_the_owners_destruction",
    ),
    (
        Breach::DestroyDoesNotFence,
        "r1_nothing_is_read_after_the_owners_destruction",
    ),
    (
        Breach::DestroyDoesNotFence,
        "r1_nothing_lands_in_receives_of_a_destroyed_queue_pair",
    ),
    (Breach::DestroyDoesNotFence, "r1_destruction_ends_own_reads"),
    (
        Breach::FlushDoesNotFence,
        "r1_a_flushed_read_writes_its_sink_no_more",
    ),
    (
        Breach::ReadsSourcesLate,
        "r1_a_flushed_write_reads_its_source_no_more",
    ),
    (Breach::ReadsSourcesLate, "r1_destruction_ends_own_writes"),
    (Breach::ReadsSourcesLate, "r1_destruction_ends_own_messages"),
    (
        Breach::AcknowledgesBeforeLanding,
        "every_length_moves_byte_exactly",
    ),
    (
        Breach::CompletesReadsEarly,
        "r1_a_later_success_ends_own_reads",
    ),
    (Breach::InvalidationEndsNothing, "r4_dead_key_is_refused"),
    (
        Breach::InvalidationEndsNothing,
        "r1_nothing_lands_after_an_invalidation",
    ),
    (
        Breach::ChecksKeysOnce,
        "r1_nothing_lands_after_an_invalidation",
    ),
];

const SEEDS: std::ops::Range<u64> = 0..6;

/// Landing takes longer than anything else, so that much is accepted and has not landed when a key ends.
fn late(breach: Option<Breach>) -> SimConfig {
    SimConfig {
        packet_bytes: 512,
        travel_ns: Nanos::new(1_000, 60_000),
        landing_ns: Nanos::new(0, 100_000),
        completion_ns: Nanos::new(0, 1_000),
        flush_ns: Nanos::new(0, 2_000),
        breach,
        ..SimConfig::default()
    }
}

/// What the test says on these worlds, without those that pass.
fn failures(name: &str, breach: Option<Breach>) -> Vec<String> {
    let arenas = arenas();
    let reports = SEEDS.map(|seed| run(name, &arenas, &world(seed, &late(breach))));
    let failed = reports.filter(|report| report.verdict != Verdict::Pass);
    failed.map(|report| report.to_string()).collect()
}

#[test]
fn every_breach_is_in_the_table() {
    let mut listed: Vec<Breach> = SEEN_BY.iter().map(|(breach, _)| *breach).collect();
    listed.dedup();
    listed.sort_unstable();
    assert_eq!(listed, Breach::ALL);
}

#[test]
fn r1_each_broken_rule_turns_its_test_red() {
    let mut unseen = Vec::new();
    for (breach, name) in SEEN_BY {
        let failed = failures(name, Some(*breach));
        println!(
            "{breach:?}: {name}: {} of {SEEDS:?}: {failed:?}",
            failed.len()
        );
        if failed.is_empty() {
            unseen.push(format!("{breach:?}: {name}"));
        }
    }
    assert_eq!(unseen, Vec::<String>::new());
}

#[test]
fn without_a_breach_the_same_worlds_pass() {
    for (_, name) in SEEN_BY {
        assert_eq!(failures(name, None), Vec::<String>::new(), "{name}");
    }
}
