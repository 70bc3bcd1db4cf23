//! The suite rejects each device that breaks one rule of the contract. A rule whose breach no test sees is a hole in the suite.

use keyfence_mempool::arena::Arena;
use keyfence_mempool::sync::Arc;
use keyfence_pmd::conformance::{Test, Verdict, all};
use keyfence_pmd::soft::{SoftConfig, SoftDevice};
use keyfence_pmd::wrap::check::{Check, Violation};
use keyfence_pmd::wrap::wrong::{Rule, World, Wrong};

use super::{arenas, soft_on};

/// Which tests must fail on a device that breaks the rule. Others may fail, too.
const REJECTED_BY: &[(Rule, &str)] = &[
    (
        Rule::CompletesOutOfOrder,
        "completions_come_in_the_order_of_posting",
    ),
    (
        Rule::LosesCompletions,
        "completions_come_in_the_order_of_posting",
    ),
    (
        Rule::LosesFailedUnsignaled,
        "unsignaled_failures_are_reported",
    ),
    (
        Rule::ReportsUnsignaledSuccess,
        "unsignaled_success_is_silent",
    ),
    (
        Rule::ZeroLengthCompletesTwice,
        "b27_zero_length_with_a_live_key",
    ),
    (Rule::FlushReportsSuccess, "error_flushes_what_is_posted"),
    (Rule::FlushIsSilent, "error_flushes_receives_in_order"),
    (Rule::FlushesInReverse, "error_flushes_receives_in_order"),
    (
        Rule::NamesWrongQueuePair,
        "read_returns_the_bytes_and_sees_earlier_writes",
    ),
    (
        Rule::NamesWrongKind,
        "read_returns_the_bytes_and_sees_earlier_writes",
    ),
    (Rule::MiscountsBytes, "messages_keep_their_boundaries"),
    (Rule::LosesImmediate, "messages_carry_their_immediate"),
    (
        Rule::RetriesForEver,
        "the_peers_next_request_ends_as_retry_exceeded",
    ),
    (Rule::HidesTheReason, "r4_dead_key_is_refused"),
    (
        Rule::CompletesAfterDestroy,
        "no_completion_comes_after_destruction",
    ),
    (
        Rule::AtomicReturnsNewValue,
        "fetch_add_returns_the_old_value",
    ),
    (
        Rule::ImmediateTouchesReceive,
        "write_with_immediate_comes_after_its_data",
    ),
    (
        Rule::MessageOvertakesData,
        "data_is_there_before_a_later_message",
    ),
    (
        Rule::ImmediateOvertakesData,
        "write_with_immediate_comes_after_its_data",
    ),
    (Rule::ExecutesTwice, "atomics_execute_exactly_once"),
    (Rule::LosesMessages, "messages_come_once_and_in_order"),
    (
        Rule::InlineReadsLate,
        "b47_inline_source_may_be_overwritten_at_once",
    ),
    (
        Rule::RefusesOverlongInline,
        "b47_inline_over_the_limit_fails",
    ),
    (
        Rule::CutsEntries,
        "the_most_entries_work_and_one_more_fails",
    ),
    (Rule::TakesSuffix, "a_full_queue_takes_a_prefix"),
    (Rule::TakesBeyondDepth, "a_full_queue_takes_a_prefix"),
    (
        Rule::RefusesPostsInError,
        "posts_to_a_queue_pair_in_error_are_taken_and_flushed",
    ),
    (
        Rule::TakesPostsAfterRelease,
        "a_released_queue_pair_takes_no_posts",
    ),
    (
        Rule::TakesPostsUnconnected,
        "posts_to_a_queue_pair_that_is_not_connected_are_not_taken",
    ),
    (
        Rule::CompletesInvalidateEarly,
        "r1_nothing_lands_after_an_invalidation",
    ),
    (Rule::AcceptsDeadKey, "r4_dead_key_is_refused"),
    (Rule::IgnoresRights, "rights_are_enforced"),
    (Rule::IgnoresBounds, "r12_bounds_are_byte_exact"),
    (
        Rule::IgnoresScope,
        "window_works_through_its_queue_pair_alone",
    ),
    (Rule::IgnoresTag, "wrong_tag_is_refused"),
    (Rule::ArenaKeyOpens, "arena_key_opens_nothing"),
    (
        Rule::RefusalLeavesRequesterRunning,
        "r4_dead_key_is_refused",
    ),
    (
        Rule::RefusalLeavesResponderRunning,
        "refusal_flushes_what_the_responder_had_posted",
    ),
    (Rule::ErrorSpreadsToPeer, "error_leaves_the_peer_alone"),
    (
        Rule::ErrorEndsPeersKeys,
        "keys_stay_live_on_the_side_not_in_error",
    ),
    (Rule::FlushEndsKey, "flushed_invalidation_ends_no_key"),
    (
        Rule::DeallocDoesNotFence,
        "r1_nothing_lands_after_a_deallocation",
    ),
    (
        Rule::DeregisterDoesNotFence,
        "r1_nothing_lands_after_a_deregistration",
    ),
    (
        Rule::DeallocDoesNotFence,
        "r1_nothing_is_read_after_a_deallocation",
    ),
    (
        Rule::DeregisterDoesNotFence,
        "r1_nothing_is_read_after_a_deregistration",
    ),
    (
        Rule::CompletesInvalidateEarly,
        "r1_nothing_is_read_after_an_invalidation",
    ),
    (
        Rule::DestroyDoesNotFence,
        "r1_nothing_is_read_after_the_owners_destruction",
    ),
    (
        Rule::DestroyDoesNotFence,
        "r1_nothing_lands_after_the_owners_destruction",
    ),
    (
        Rule::DestroyDoesNotFence,
        "r1_nothing_lands_in_receives_of_a_destroyed_queue_pair",
    ),
    (Rule::DestroyDoesNotFence, "r1_destruction_ends_own_reads"),
    (Rule::DestroyDoesNotFence, "r1_destruction_ends_own_writes"),
    (
        Rule::DestroyDoesNotFence,
        "r1_destruction_ends_own_messages",
    ),
    (Rule::DestroyDoesNotFence, "r1_destruction_ends_own_atomics"),
    (
        Rule::FlushesEarly,
        "r1_a_flushed_read_writes_its_sink_no_more",
    ),
    (
        Rule::FlushesEarly,
        "r1_a_flushed_write_reads_its_source_no_more",
    ),
    (Rule::SucceedsEarly, "r1_a_later_success_ends_own_reads"),
    (
        Rule::ForgetsBacklog,
        "a_long_chain_of_local_requests_is_taken_and_done_in_order",
    ),
    (
        Rule::TakesAllInError,
        "a_full_queue_in_error_takes_a_prefix",
    ),
    (
        Rule::LosesWhatDoesNotFit,
        "a_small_array_loses_no_completion",
    ),
    (
        Rule::CompletesAfterRelease,
        "no_completion_comes_after_the_release",
    ),
    (
        Rule::ConnectsInError,
        "a_queue_pair_that_ended_while_it_connected_gets_no_event",
    ),
    (
        Rule::EventAfterDestroy,
        "no_event_names_a_destroyed_queue_pair",
    ),
    (
        Rule::ChainRunsOn,
        "chain_of_invalidations_stops_at_a_failure",
    ),
    (Rule::DestroysUnreleased, "destruction_needs_the_release"),
    (
        Rule::BindIgnoresRegion,
        "bind_outside_its_region_is_refused",
    ),
    (
        Rule::BindIgnoresQueuePair,
        "bind_on_a_foreign_queue_pair_is_refused",
    ),
    (Rule::BindsTwice, "bind_of_a_bound_window_is_refused"),
    (Rule::ChainRunsOn, "chain_of_binds_stops_at_a_failure"),
    (
        Rule::DeregistersUnderWindows,
        "deregistration_is_refused_while_windows_are_bound",
    ),
    (Rule::ZeroLengthChecksKey, "b27_zero_length_with_a_dead_key"),
    (
        Rule::TruncatesMessages,
        "message_longer_than_its_receive_fails_both",
    ),
    (Rule::AlignsAtomics, "b43_misaligned_atomics_are_refused"),
    (Rule::IgnoresLocalKey, "unknown_local_key_is_refused"),
    (
        Rule::IgnoresLocalDomain,
        "r12_local_key_of_another_domain_is_refused",
    ),
    (
        Rule::IgnoresRegionDomain,
        "r12_region_key_of_another_domain_is_refused",
    ),
    (
        Rule::BindIgnoresDomain,
        "r12_bind_to_a_region_of_another_domain_is_refused",
    ),
    (
        Rule::InvalidateIgnoresQueuePair,
        "invalidation_on_a_foreign_queue_pair_is_refused",
    ),
    (
        Rule::InvalidateIgnoresTag,
        "invalidation_of_an_old_key_is_refused",
    ),
    (
        Rule::LosesPrivateData,
        "a_connection_carries_private_data_both_ways",
    ),
    (
        Rule::EndsWhatIsGone,
        "a_region_that_is_gone_is_no_such_region",
    ),
    (
        Rule::EndsWhatIsGone,
        "a_window_that_is_gone_is_no_such_window",
    ),
    (
        Rule::EndsWhatIsGone,
        "a_domain_that_is_gone_is_no_such_domain",
    ),
    (
        Rule::EndsWhatIsGone,
        "a_queue_pair_that_is_gone_is_no_such_queue_pair",
    ),
];

/// How a test of the suite goes on devices that break the rule.
fn verdict(test: &Test<Wrong<SoftDevice>>, rule: Rule, arenas: &[Arc<Arena>; 2]) -> Verdict {
    let world = World::new(rule);
    let mut setup =
        soft_on(arenas, &SoftConfig::default()).map(|device| Wrong::new(device, &world));
    // What never comes need not be waited for as long as elsewhere.
    setup.poll_limit = 1000;
    test.run(setup).verdict
}

#[test]
fn every_rule_is_in_the_table() {
    let mut listed: Vec<Rule> = REJECTED_BY.iter().map(|(rule, _)| *rule).collect();
    listed.sort_unstable();
    listed.dedup();
    assert_eq!(listed, Rule::ALL);
}

#[test]
fn the_suite_rejects_a_device_that_breaks_any_one_rule() {
    let arenas = arenas();
    let tests = all();
    let mut accepted = Vec::new();
    for (rule, name) in REJECTED_BY {
        let test = tests.iter().find(|test| test.name == *name);
        let test = test.unwrap_or_else(|| panic!("the suite has no test {name}"));
        match verdict(test, *rule, &arenas) {
            Verdict::Fail(text) => println!("{rule:?}: {name}: {text}"),
            other => accepted.push(format!("{rule:?}: {name}: {other:?}")),
        }
    }
    assert_eq!(accepted, Vec::<String>::new());
}

/// The rejection is the broken rule's doing: with only private data lost, every test that carries none passes.
#[test]
fn the_wrong_device_keeps_the_rules_that_it_does_not_break() {
    let arenas = arenas();
    let failed: Vec<&str> = all()
        .iter()
        .filter(|test| verdict(test, Rule::LosesPrivateData, &arenas) != Verdict::Pass)
        .map(|test| test.name)
        .collect();
    assert_eq!(failed, ["a_connection_carries_private_data_both_ways"]);
}

/// What the oracle, which looks at one device alone, must say about breaches that one device's posts and completions show.
const CAUGHT_AS: &[(Rule, &str, Violation)] = &[
    (
        Rule::CompletesOutOfOrder,
        "completions_come_in_the_order_of_posting",
        Violation::SkippedRequest,
    ),
    (
        Rule::LosesCompletions,
        "completions_come_in_the_order_of_posting",
        Violation::SkippedRequest,
    ),
    (
        Rule::ReportsUnsignaledSuccess,
        "unsignaled_success_is_silent",
        Violation::UnsignaledSuccess,
    ),
    (
        Rule::ZeroLengthCompletesTwice,
        "b27_zero_length_with_a_live_key",
        Violation::UnknownWork,
    ),
    (
        Rule::NamesWrongKind,
        "read_returns_the_bytes_and_sees_earlier_writes",
        Violation::WrongKind,
    ),
    (
        Rule::NamesWrongQueuePair,
        "read_returns_the_bytes_and_sees_earlier_writes",
        Violation::UnknownQp,
    ),
    (
        Rule::CompletesAfterDestroy,
        "no_completion_comes_after_destruction",
        Violation::UnknownQp,
    ),
    (
        Rule::TakesBeyondDepth,
        "a_full_queue_takes_a_prefix",
        Violation::BeyondDepth,
    ),
    (
        Rule::TakesPostsAfterRelease,
        "a_released_queue_pair_takes_no_posts",
        Violation::TookOnUnknownQp,
    ),
    (
        Rule::DestroysUnreleased,
        "destruction_needs_the_release",
        Violation::DestroyedUnreleased,
    ),
    (
        Rule::BindsTwice,
        "bind_of_a_bound_window_is_refused",
        Violation::BoundTwice,
    ),
    (
        Rule::ChainRunsOn,
        "chain_of_binds_stops_at_a_failure",
        Violation::SuccessAfterFailure,
    ),
    (
        Rule::BindIgnoresQueuePair,
        "bind_on_a_foreign_queue_pair_is_refused",
        Violation::BoundElsewhere,
    ),
    (
        Rule::InvalidateIgnoresQueuePair,
        "invalidation_on_a_foreign_queue_pair_is_refused",
        Violation::InvalidatedElsewhere,
    ),
    (
        Rule::DeregistersUnderWindows,
        "deregistration_is_refused_while_windows_are_bound",
        Violation::DeregisteredBound,
    ),
    (
        Rule::TakesPostsUnconnected,
        "posts_to_a_queue_pair_that_is_not_connected_are_not_taken",
        Violation::TookUnconnected,
    ),
    (
        Rule::TakesAllInError,
        "a_full_queue_in_error_takes_a_prefix",
        Violation::BeyondDepth,
    ),
    (
        Rule::ZeroLengthChecksKey,
        "b27_zero_length_with_a_dead_key",
        Violation::ZeroLengthRefused,
    ),
    (
        Rule::CompletesAfterRelease,
        "no_completion_comes_after_the_release",
        Violation::UnknownQp,
    ),
    (
        Rule::EventAfterDestroy,
        "no_event_names_a_destroyed_queue_pair",
        Violation::StrayEvent,
    ),
];

#[test]
fn the_oracle_names_what_one_device_shows() {
    let arenas = arenas();
    let tests = all();
    let mut missed = Vec::new();
    for (rule, name, violation) in CAUGHT_AS {
        let test = tests.iter().find(|test| test.name == *name);
        let test = test.unwrap_or_else(|| panic!("the suite has no test {name}"));
        let world = World::new(*rule);
        let mut ledgers = Vec::new();
        let mut setup = soft_on(&arenas, &SoftConfig::default()).map(|device| {
            let check = Check::new(Wrong::new(device, &world));
            ledgers.push(check.ledger());
            check
        });
        setup.poll_limit = 1000;
        test.run(setup);
        if ledgers.iter().all(|ledger| ledger.count(*violation) == 0) {
            missed.push(format!("{rule:?}: {ledgers:?}"));
        }
    }
    assert_eq!(missed, Vec::<String>::new());
}
