//! Counters of one lcore, by name, in the manner of DPDK's extended statistics; and where other threads can read them.

use keyfence_mempool::sync::{Arc, AtomicU64, Ordering};

use crate::latency::LatencyHistogram;
use crate::op::{OpKind, Status};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters since the start. Plain fields, written by the lcore alone.
        #[derive(Clone, Debug)]
        pub struct Stats {
            $($(#[$doc])* pub $name: u64,)*
            /// From the cordon to `Reclaimed`, in nanoseconds.
            pub reclaim_ns: LatencyHistogram,
        }

        const NAMES: &[&str] = &[$(stringify!($name)),*];

        impl Stats {
            /// All zero.
            pub(super) fn new() -> Self {
                Self {
                    $($name: 0,)*
                    reclaim_ns: LatencyHistogram::new(),
                }
            }

            /// Every counter with its name, in a fixed order.
            #[must_use]
            pub fn xstats(&self) -> [(&'static str, u64); NAMES.len()] {
                [$((stringify!($name), self.$name)),*]
            }
        }
    };
}

counters! {
    /// Poll steps.
    steps,
    /// Poll steps that found nothing to do.
    idle_steps,
    /// Lanes repaired: a new queue pair has taken over from one that broke.
    lanes_repaired,
    /// Lanes broken since their peer had more parked keys than it may.
    peers_past_parked,
    /// Notices of ends not given to contexts with more acquaintances than are remembered, since they left too much untaken.
    notices_spared,
    /// Operations accepted.
    ops_submitted,
    /// Submissions refused by a limit.
    submits_refused,
    /// Operations that ended as `Ok`.
    ops_ok,
    /// Operations that ended as `Revoked`.
    ops_revoked,
    /// Operations that ended as `Cancelled`.
    ops_cancelled,
    /// Operations that ended otherwise.
    ops_failed,
    /// Bytes written that were acknowledged.
    bytes_written,
    /// Bytes read.
    bytes_read,
    /// Bytes of messages sent that were acknowledged.
    bytes_sent,
    /// Work requests posted.
    requests_posted,
    /// Work requests that failed or were flushed.
    requests_failed,
    /// Invalidations posted.
    invalidations_posted,
    /// Chains of invalidations that were not posted behind a backlog that would not clear in time; their keys were deallocated.
    chains_refused,
    /// Completions of queue pairs that no lane has any more.
    completions_dropped,
    /// Frames received.
    frames_received,
    /// Frames that were no frames.
    frames_malformed,
    /// Frames that were stale, about another's object, or out of place.
    frames_refused,
    /// Answers not sent, since the peer asked faster than it took them.
    answers_dropped,
    /// Messages that their sender had no credit for.
    messages_beyond_credit,
    /// Messages for a context that is not live.
    messages_unclaimed,
    /// Events of contexts that are past hearing.
    events_unheard,
    /// Times that no receive buffer was free.
    receive_pool_empty,
    /// Calls with a stale or foreign name.
    stale_names,
    /// Allocations that found the pool empty.
    alloc_failures,
    /// Buffers looked at for room in `limits.buffers`.
    buffers_looked_at,
    /// Grants made.
    grants_made,
    /// Grants taken back by their owner or for their lease.
    grants_retired,
    /// Grants proven ended.
    grants_zapped,
    /// Grants whose key could not be made (key mode `region`).
    keys_refused,
    /// Keys that were given to the control side to deregister their region.
    regions_ended,
    /// Grants that could not be proven ended in time.
    grants_quarantined,
    /// Keys proven ended after their quarantine.
    late_proofs,
    /// Grants of peers whose holder was not there, or had no room.
    grants_refused,
    /// Grants of peers that came behind their own revocation.
    grants_dead_on_arrival,
    /// Imports fenced while operations by them were in flight.
    fences_with_ops_in_flight,
    /// Leases that ended without renewal.
    leases_ended,
    /// Contexts opened.
    contexts_opened,
    /// Contexts cordoned.
    contexts_cordoned,
    /// Contexts cordoned while operations of theirs were posted.
    cordons_with_ops_in_flight,
    /// Contexts reclaimed with every proof.
    contexts_reclaimed,
    /// Contexts that ended in quarantine.
    contexts_quarantined,
    /// Operations that broke a lane, in a way that no right one does.
    offences,
    /// Contexts reclaimed for those.
    contexts_expelled,
    /// Contexts reclaimed since they did not take their events.
    contexts_deaf,
    /// Polls of services.
    services_polled,
    /// Services that panicked.
    services_panicked,
    /// Services whose destructor panicked too; they are leaked.
    services_leaked,
    /// Times between two steps longer than `step_max`, by the caller's clock; what an idle policy slept is part of them.
    steps_overran,
    /// The longest of all times between two steps, in ns.
    longest_pause_ns,
    /// Epochs that ended.
    epochs_ended,
    /// Flushes of contexts here that ended.
    flushes_ended,
    /// Events that the reclaim machine found stale or late.
    reclaim_notes,
    /// Lanes that broke.
    lanes_broken,
    /// Lanes given up before their last completion had come.
    drains_cut_short,
    /// Lanes given up since nothing was heard of the peer for too long.
    peers_silent,
    /// Sessions in whose orderly end this lcore and the peer's have said all that was to be said.
    sessions_left,
    /// Sessions that ended, in order or not.
    peers_down,
    /// Buffers found overrun at a reclaim; they are never reused.
    buffers_overrun,
}

impl Stats {
    pub(super) fn count_end(&mut self, kind: OpKind, status: Status, bytes: u64) {
        match status {
            Status::Ok => self.ops_ok += 1,
            Status::Revoked => self.ops_revoked += 1,
            Status::Cancelled => self.ops_cancelled += 1,
            _ => self.ops_failed += 1,
        }
        match kind {
            OpKind::Write | OpKind::WriteImmediate => self.bytes_written += bytes,
            OpKind::Read => self.bytes_read += bytes,
            OpKind::Send => self.bytes_sent += bytes,
            OpKind::FetchAdd | OpKind::CompareSwap => {}
        }
    }

    /// Operations accepted and not yet ended: what is in flight, if the books balance.
    #[must_use]
    pub fn ops_open(&self) -> u64 {
        self.ops_submitted - self.ops_ok - self.ops_revoked - self.ops_cancelled - self.ops_failed
    }
}

/// Counters as other threads see them: published every few thousand steps, whenever an lcore has nothing left to do, and at its end; so exact
/// at rest, and behind under load.
#[derive(Clone, Debug)]
pub struct SharedStats(Arc<[AtomicU64]>);

impl SharedStats {
    pub(super) fn new() -> Self {
        Self(NAMES.iter().map(|_| AtomicU64::new(0)).collect())
    }

    pub(super) fn publish(&self, stats: &Stats) {
        for (shared, (_, value)) in self.0.iter().zip(stats.xstats()) {
            // Relaxed: one writer, and readers need no order between counters.
            shared.store(value, Ordering::Relaxed);
        }
    }

    /// Every counter with its name.
    pub fn read(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        let values = self.0.iter().map(|value| value.load(Ordering::Relaxed));
        NAMES.iter().copied().zip(values)
    }

    /// The counter with this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<u64> {
        let at = NAMES.iter().position(|known| *known == name)?;
        Some(self.0[at].load(Ordering::Relaxed))
    }
}
