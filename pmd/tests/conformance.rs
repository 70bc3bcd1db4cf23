//! The conformance suite on `soft`: each test of it by its name, and all of it on decorated devices.

mod conform;

use conform::{arenas, failures, soft, soft_on};
use keyfence_pmd::Device;
use keyfence_pmd::conformance::{self, Verdict};
use keyfence_pmd::soft::{SoftConfig, SoftDevice};
use keyfence_pmd::wrap::check::{Check, Ledger, Party};
use keyfence_pmd::wrap::fault::{Fault, Injection, Plan, Span, Target};
use keyfence_pmd::wrap::trace::Trace;

/// Runs one test of the suite on `soft`, which has every capability: a skip is a failure here.
fn pass(name: &str) {
    let tests = conformance::all::<SoftDevice>();
    let test = tests.iter().find(|test| test.name == name);
    let test = test.unwrap_or_else(|| panic!("the suite has no test {name}"));
    let report = test.run(soft());
    assert_eq!(report.verdict, Verdict::Pass, "{report}");
}

macro_rules! suite {
    ($($name:ident)*) => {
        const NAMES: &[&str] = &[$(stringify!($name)),*];
        $(#[test] fn $name() { pass(stringify!($name)); })*
    };
}

suite! {
    completions_come_in_the_order_of_posting
    success_proves_every_earlier_request
    unsignaled_success_is_silent
    a_burst_executes_in_order
    data_is_there_before_a_later_message
    write_with_immediate_comes_after_its_data
    read_returns_the_bytes_and_sees_earlier_writes
    reads_far_apart_behind_many_writes_are_answered
    fetch_add_returns_the_old_value
    compare_swap_stores_only_on_a_match
    atomics_execute_exactly_once
    several_entries_gather_and_scatter
    messages_keep_their_boundaries
    messages_come_once_and_in_order
    messages_carry_their_immediate
    both_directions_work_at_a_time
    invalidation_completes_behind_earlier_requests
    b27_zero_length_with_a_live_key
    b27_zero_length_with_a_dead_key
    b27_zero_length_with_a_garbage_key
    error_flushes_what_is_posted
    error_flushes_receives_in_order
    posts_to_a_queue_pair_in_error_are_taken_and_flushed
    error_is_idempotent
    unsignaled_failures_are_reported
    first_failure_says_why_and_the_rest_is_flushed
    refusal_flushes_what_the_responder_had_posted
    error_leaves_the_peer_alone
    the_peers_next_request_ends_as_retry_exceeded
    keys_stay_live_on_the_side_not_in_error
    flushed_invalidation_ends_no_key
    success_before_an_error_is_kept
    a_full_queue_takes_a_prefix
    a_full_queue_in_error_takes_a_prefix
    a_full_receive_queue_takes_a_prefix
    a_polled_completion_frees_the_slots_before_it
    posts_to_a_queue_pair_that_is_not_connected_are_not_taken
    a_small_array_loses_no_completion
    a_released_queue_pair_takes_no_posts
    no_completion_comes_after_the_release
    destruction_needs_the_release
    no_completion_comes_after_destruction
    numbers_of_queue_pairs_are_not_used_again
    windows_of_a_destroyed_queue_pair_can_be_deallocated
    r4_dead_key_is_refused
    r4_dead_key_reads_nothing
    wrong_tag_is_refused
    unknown_index_is_refused
    r12_bounds_are_byte_exact
    r12_ranges_that_wrap_around_are_refused
    b02_first_value_is_dead_for_255_binds_and_valid_again_after_256
    rebinding_ends_the_old_value
    deallocated_windows_key_is_refused
    other_windows_of_the_queue_pair_stay_live
    refusal_spares_other_queue_pairs
    rights_are_enforced
    atomic_rights_are_enforced
    window_works_through_its_queue_pair_alone
    arena_key_opens_nothing
    region_key_works_through_its_domain_until_deregistered
    region_key_has_byte_exact_bounds
    region_rights_are_enforced
    message_behind_its_bind_carries_a_usable_key
    r12_local_key_of_another_domain_is_refused
    r12_region_key_of_another_domain_is_refused
    r12_bind_to_a_region_of_another_domain_is_refused
    bind_on_a_foreign_queue_pair_is_refused
    bind_outside_its_region_is_refused
    bind_to_a_region_not_registered_for_it_is_refused
    bind_of_an_unknown_region_is_refused
    bind_of_an_unknown_window_is_refused
    bind_of_no_bytes_is_refused
    bind_of_a_bound_window_is_refused
    bind_with_another_windows_key_is_refused
    chain_of_binds_stops_at_a_failure
    chain_of_invalidations_stops_at_a_failure
    a_long_chain_of_local_requests_is_taken_and_done_in_order
    window_may_be_bound_behind_its_invalidation
    deregistration_is_refused_while_windows_are_bound
    invalidation_on_a_foreign_queue_pair_is_refused
    invalidation_of_an_old_key_is_refused
    r1_nothing_lands_after_an_invalidation
    r1_nothing_is_read_after_an_invalidation
    r1_nothing_is_read_after_a_deallocation
    r1_nothing_is_read_after_a_deregistration
    r1_nothing_is_read_after_the_owners_destruction
    r1_nothing_lands_after_a_deallocation
    r1_nothing_lands_after_a_deallocation_on_a_queue_pair_in_error
    r1_nothing_lands_after_a_deregistration
    r1_nothing_lands_after_the_owners_destruction
    r1_nothing_lands_in_receives_of_a_destroyed_queue_pair
    r1_destruction_ends_own_reads
    r1_destruction_ends_own_writes
    r1_destruction_ends_own_messages
    r1_destruction_ends_own_atomics
    r1_a_flushed_read_writes_its_sink_no_more
    r1_a_flushed_write_reads_its_source_no_more
    r1_a_later_success_ends_own_reads
    every_length_moves_byte_exactly
    the_most_entries_work_and_one_more_fails
    b47_inline_source_may_be_overwritten_at_once
    b47_inline_over_the_limit_fails
    message_longer_than_its_receive_fails_both
    unknown_local_key_is_refused
    local_range_outside_its_region_is_refused
    operation_over_the_limit_fails
    message_waits_for_its_receive
    b24_every_signal_interval_at_every_depth
    b43_misaligned_atomics_are_refused
    many_queue_pairs_work_at_a_time
    unknown_objects_are_named
    objects_in_use_cannot_be_ended
    sizes_outside_the_limits_are_named
    ranges_outside_the_arena_are_refused
    paths_open_once
    addresses_are_listened_on_once
    unreachable_and_bad_addresses_are_named
    a_connection_carries_private_data_both_ways
    a_rejected_queue_pair_can_connect_again
    connecting_twice_is_refused
    requests_are_answered_once
    windows_run_out_with_a_named_limit
    domains_come_and_go
    a_region_that_is_gone_is_no_such_region
    a_window_that_is_gone_is_no_such_window
    a_domain_that_is_gone_is_no_such_domain
    a_queue_pair_that_is_gone_is_no_such_queue_pair
    a_queue_pair_that_ended_while_it_connected_gets_no_event
    no_event_names_a_destroyed_queue_pair
}

#[test]
fn every_test_of_the_suite_is_listed_here_once() {
    let tests = conformance::all::<SoftDevice>();
    let names: Vec<&str> = tests.iter().map(|test| test.name).collect();
    assert_eq!(names, NAMES);
    let mut sorted = names.clone();
    sorted.sort_unstable();
    sorted.dedup();
    assert_eq!(sorted.len(), names.len(), "names are unique");
}

/// Nothing of the suite fails on a device that `decorate` makes.
fn passes<D: Device>(decorate: impl FnMut(SoftDevice) -> D) {
    let failures = failures(&SoftConfig::default(), decorate);
    assert_eq!(failures, Vec::<String>::new());
}

#[test]
fn an_adapter_with_the_smallest_rings_passes() {
    let config = SoftConfig {
        // As many as the suite makes in one test.
        max_qps: 256,
        max_regions: 64,
        max_windows: 64,
        ..SoftConfig::TEST_MIN
    };
    assert_eq!(failures(&config, |device| device), Vec::<String>::new());
}

#[test]
fn a_traced_device_passes() {
    passes(|device| Trace::new(device, 64));
}

/// The suite on a checked device: it passes, and the oracle has nothing to say against the device.
#[test]
fn a_checked_device_passes_and_the_oracle_is_silent() {
    let arenas = arenas();
    let mut said = Vec::new();
    for test in conformance::all() {
        let mut ledgers = Vec::new();
        let setup = soft_on(&arenas, &SoftConfig::default()).map(|device| {
            let check = Check::new(device);
            ledgers.push(check.ledger());
            check
        });
        let report = test.run(setup);
        if report.verdict != Verdict::Pass {
            said.push(report.to_string());
        }
        let device = |ledger: &Ledger| ledger.violations(Party::Device);
        let against = ledgers.iter().filter(|ledger| device(ledger) > 0);
        said.extend(against.map(|ledger| format!("{}: {:?}", test.name, ledger.reports())));
    }
    assert_eq!(said, Vec::<String>::new());
}

#[test]
fn b04_garbage_in_undefined_fields_changes_nothing() {
    passes(|device| Fault::new(device, Plan::new([Injection::Garbage { seed: 4 }])));
}

#[test]
fn late_completions_change_nothing() {
    let late = Injection::HoldBack {
        target: Target::Every,
        span: Span::EVERY,
        polls: 5,
    };
    passes(|device| Fault::new(device, Plan::new([late.clone()])));
}

#[test]
fn decorators_stack() {
    let plan = Plan::new([Injection::Garbage { seed: 9 }]);
    passes(|device| Trace::new(Check::new(Fault::new(device, plan.clone())), 256));
}
