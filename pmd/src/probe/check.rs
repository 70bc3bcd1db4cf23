//! The checks: names, what each asks, what a failure means, and how it is done.

use crate::conformance::in_flight::Ending;

/// What a check needs to be done at all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Need {
    /// Nothing.
    Nothing,
    /// Type-2 windows.
    Windows,
    /// Type-2 windows and atomics.
    Atomics,
    /// To be asked for by name: it can stop the host.
    Consent,
}

/// How a check is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum By {
    /// By these tests of the conformance suite, all of which must pass.
    Suite(&'static [&'static str]),
    /// The same over memory in hugepages.
    SuiteInHugepages(&'static [&'static str]),
    /// The same, and the note has the limits.
    SuiteAndLimits(&'static [&'static str]),
    /// By accesses that are under way.
    InFlight(Ending),
    /// By the subject alone.
    Subject,
}

macro_rules! checks {
    ($($variant:ident $name:literal needs $need:ident by $by:expr;
        asks $asks:literal; else $otherwise:literal;)*) => {
        /// One thing that reclaim needs of an adapter.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum Check {
            $(#[doc = $asks] $variant,)*
        }

        impl Check {
            /// All, in the order in which they are done.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// Its name in reports. Stable.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }

            /// What it asks.
            #[must_use]
            pub const fn asks(self) -> &'static str {
                match self {
                    $(Self::$variant => $asks,)*
                }
            }

            /// What follows if the answer is no.
            #[must_use]
            pub const fn otherwise(self) -> &'static str {
                match self {
                    $(Self::$variant => $otherwise,)*
                }
            }

            /// What it needs to be done at all.
            #[must_use]
            pub const fn need(self) -> Need {
                match self {
                    $(Self::$variant => Need::$need,)*
                }
            }

            pub(super) const fn by(self) -> By {
                match self {
                    $(Self::$variant => $by,)*
                }
            }
        }
    };
}

use By::{InFlight, Suite, SuiteAndLimits, SuiteInHugepages};

checks! {
    Limits "limits" needs Nothing
        by SuiteAndLimits(&["many_queue_pairs_work_at_a_time", "the_most_entries_work_and_one_more_fails"]);
        asks "Do queue pairs and entries work up to the limits that the adapter states?";
        else "its stated limits can't be relied on";
    Windows "windows" needs Windows
        by Suite(&["message_behind_its_bind_carries_a_usable_key", "window_may_be_bound_behind_its_invalidation",
            "other_windows_of_the_queue_pair_stay_live"]);
        asks "Do type-2B windows bind, open, end and bind again?";
        else "windows can't be used";
    WindowBounds "window_bounds" needs Windows
        by Suite(&["r12_bounds_are_byte_exact", "r12_ranges_that_wrap_around_are_refused"]);
        asks "Is an access one byte beyond a window refused?";
        else "a window's key opens more than its range: only the peer's own check confines it";
    WindowRights "window_rights" needs Windows by Suite(&["rights_are_enforced"]);
        asks "Is an access refused that the window's rights do not allow?";
        else "a window's key allows more than was granted";
    WindowScope "window_scope" needs Windows by Suite(&["window_works_through_its_queue_pair_alone"]);
        asks "Is a window's key refused on any queue pair but its own?";
        else "a window's key works for other peers";
    WindowAtomics "window_atomics" needs Atomics by Suite(&["atomic_rights_are_enforced"]);
        asks "Do atomics work through a window, and only with the right?";
        else "no atomics through windows: grants with atomics need regions";
    DeadKey "dead_key" needs Windows
        by Suite(&["r4_dead_key_is_refused", "r4_dead_key_reads_nothing", "rebinding_ends_the_old_value", "wrong_tag_is_refused",
            "deallocated_windows_key_is_refused", "refusal_spares_other_queue_pairs"]);
        asks "Is a key refused that was invalidated, deallocated, rebound or never bound?";
        else "a revoked key still opens memory: nothing can be taken back";
    TagWrap "tag_wrap" needs Windows by Suite(&["b02_first_value_is_dead_for_255_binds_and_valid_again_after_256"]);
        asks "Is a key's value dead for the 255 binds after its own?";
        else "an old key is valid again sooner than its 8 bits of tag say";
    InvalidationInFlight "invalidation_in_flight" needs Windows by InFlight(Ending::Invalidation);
        asks "Does nothing land after an invalidation's completion, with large writes under way?";
        else "an invalidation's completion proves nothing: memory must not be reused on it";
    DeallocHealthy "dealloc_healthy" needs Windows by InFlight(Ending::Deallocation);
        asks "Does nothing land after a window's deallocation on a healthy queue pair?";
        else "a window must be invalidated, or its queue pair destroyed, before its memory is reused";
    DeallocSick "dealloc_sick" needs Windows by InFlight(Ending::DeallocationInError);
        asks "Does nothing land after a window's deallocation on a queue pair in error?";
        else "a broken lane's memory can't be proven free";
    DeregistrationInFlight "deregistration_in_flight" needs Nothing by InFlight(Ending::Deregistration);
        asks "Does nothing land after a region's deregistration, with large writes under way?";
        else "a deregistration proves nothing: memory must not be reused on it";
    DestroyInFlight "destroy_in_flight" needs Nothing by InFlight(Ending::OwnersDestruction);
        asks "Does nothing land after the destruction of the queue pair that serves the writes?";
        else "a destroyed queue pair still serves its peer";
    OwnReadsDestroyed "own_reads_destroyed" needs Nothing by InFlight(Ending::OwnDestruction);
        asks "Do own reads write nothing after the destruction of their queue pair?";
        else "memory that was a read's sink can't be reused";
    OwnReadsFlushed "own_reads_flushed" needs Nothing by InFlight(Ending::Flush);
        asks "Do own reads write nothing after they were completed as flushed?";
        else "a flushed read's sink can't be reused before its queue pair is destroyed";
    FlushOnError "flush_on_error" needs Nothing
        by Suite(&["error_flushes_what_is_posted", "error_flushes_receives_in_order",
            "posts_to_a_queue_pair_in_error_are_taken_and_flushed", "first_failure_says_why_and_the_rest_is_flushed",
            "refusal_flushes_what_the_responder_had_posted"]);
        asks "Does a queue pair in error complete everything that is posted as flushed, in order?";
        else "operations of a broken lane never end";
    FiniteRetries "finite_retries" needs Nothing
        by Suite(&["the_peers_next_request_ends_as_retry_exceeded", "error_leaves_the_peer_alone"]);
        asks "Does a request to a peer that does not answer end by itself (6 retries)?";
        else "operations to a lost peer never end";
    ChainStops "chain_stops" needs Windows
        by Suite(&["chain_of_binds_stops_at_a_failure", "chain_of_invalidations_stops_at_a_failure"]);
        asks "Does an unsignaled bind or invalidation that fails stop what is behind it?";
        else "each bind and invalidation needs a completion of its own";
    InvalidateChecks "invalidate_checks" needs Windows by Suite(&["invalidation_on_a_foreign_queue_pair_is_refused"]);
        asks "Is an invalidation refused on another queue pair than the window's, or with a wrong tag?";
        else "an invalidation can end another's key: the driver must never post one that isn't live on its queue pair";
    SendWithInvScope "send_with_inv_scope" needs Windows by By::Subject;
        asks "Is a peer's SEND_WITH_INV refused for a window of another queue pair?";
        else "any connected peer can end anybody's window: let in only peers that you trust (keyfence never posts SEND_WITH_INV)";
    ArenaKey "arena_key" needs Nothing by Suite(&["arena_key_opens_nothing"]);
        asks "Does the key of a region without remote rights open nothing?";
        else "whoever guesses the arena's key has all of it";
    RegionBounds "region_bounds" needs Nothing by Suite(&["region_key_has_byte_exact_bounds"]);
        asks "Is an access one byte beyond a region refused?";
        else "a region's key opens more than its range";
    RegionRights "region_rights" needs Nothing by Suite(&["region_rights_are_enforced"]);
        asks "Is an access refused that the region's rights do not allow?";
        else "a region's key allows more than was granted";
    RegionScope "region_scope" needs Nothing
        by Suite(&["region_key_works_through_its_domain_until_deregistered", "r12_region_key_of_another_domain_is_refused"]);
        asks "Does a region's key work on the queue pairs of its protection domain alone, until its deregistration?";
        else "a protection domain a peer does not keep peers apart";
    Hugepages "hugepages" needs Nothing by SuiteInHugepages(&["every_length_moves_byte_exactly"]);
        asks "Do regions in pages of 2 MiB work?";
        else "arenas need plain pages here (`hugepages = \"off\"`)";
    Fork "fork" needs Nothing by By::Subject;
        asks "Is registered memory safe from a fork() of the process?";
        else "a forked child can take pages away from the adapter: keep programs that fork out of the process";
    DoubleInvalidation "double_invalidation" needs Consent by Suite(&["invalidation_of_an_old_key_is_refused"]);
        asks "Is a second invalidation of the same key refused?";
        else "one invalidation too many ends another key or stops the host";
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::conformance;
    use crate::soft::SoftDevice;

    /// So that it costs nothing else if it stops the host.
    #[test]
    fn what_can_stop_the_host_comes_last() {
        let harmless = Check::ALL
            .iter()
            .take_while(|check| check.need() != Need::Consent);
        assert_eq!(harmless.count(), Check::ALL.len() - 1);
        assert_eq!(Check::ALL.last(), Some(&Check::DoubleInvalidation));
    }

    #[test]
    fn names_are_words_and_unique() {
        let mut names: Vec<_> = Check::ALL.iter().map(|check| check.name()).collect();
        for name in &names {
            assert!(
                name.bytes()
                    .all(|byte| byte == b'_' || byte.is_ascii_lowercase())
            );
        }
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn each_test_of_the_suite_that_a_check_names_exists() {
        let tests = conformance::all::<SoftDevice>();
        for check in Check::ALL {
            let (By::Suite(names) | By::SuiteInHugepages(names) | By::SuiteAndLimits(names)) =
                check.by()
            else {
                continue;
            };
            for name in names {
                assert!(tests.iter().any(|test| test.name == *name), "{name}");
            }
        }
    }
}
