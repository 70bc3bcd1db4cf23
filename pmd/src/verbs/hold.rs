//! What a send queue of a software adapter does not report yet.
//!
//! Such an adapter says that an invalidation is done while it still copies a packet that it had let in before. So the success is held back, and
//! all that follows on that queue, until a grace period is over that began after it was seen. Two marks move through the queue: up
//! to the first the adapter has executed, up to the second that may be reported. A failed invalidation proves nothing, so it only waits
//! for its turn.

use super::grace::Grace;
use super::ring::Ring;
use super::send_queue::Sent;
use crate::completion::{CompletionKind, WcStatus};

/// The marks of one send queue, counted from its oldest request.
#[derive(Debug)]
pub(crate) struct Hold {
    /// The adapter is software. If not, nothing is ever held.
    on: bool,
    /// Requests that the adapter has executed, and that are not reported yet.
    executed: u32,
    /// How many of these may be reported.
    proven: u32,
    /// How the request behind them failed.
    failure: Option<WcStatus>,
}

impl Hold {
    pub(crate) fn new(on: bool) -> Self {
        Self {
            on,
            executed: 0,
            proven: 0,
            failure: None,
        }
    }

    /// Takes in the end of the request that has `before` others in front of it, all executed. False if there is nothing to hold back.
    #[inline]
    pub(crate) fn takes(
        &mut self,
        ring: &mut Ring<Sent>,
        before: u32,
        outcome: WcStatus,
        grace: &Grace,
    ) -> bool {
        self.on && self.take(ring, before, outcome, grace)
    }

    fn take(
        &mut self,
        ring: &mut Ring<Sent>,
        before: u32,
        outcome: WcStatus,
        grace: &Grace,
    ) -> bool {
        let good = outcome == WcStatus::Success;
        let executed = before + u32::from(good);
        let mut wanted = false;
        for at in self.executed..executed {
            let sent = ring.at(at);
            if sent.kind == CompletionKind::Invalidate {
                sent.grace = grace.want();
                wanted = true;
            }
        }
        if !wanted && !self.is_in_use() {
            return false;
        }
        self.executed = executed;
        if !good {
            self.failure = Some(outcome);
            ring.break_behind(executed + 1);
        }
        true
    }

    /// Moves the second mark: the grace periods up to this number are over.
    pub(crate) fn prove(&mut self, ring: &mut Ring<Sent>, over: u64) {
        while self.proven < self.executed && ring.at(self.proven).grace <= over {
            self.proven += 1;
        }
    }

    /// Nothing more will be proven: what waits counts as flushed, which says nothing of a key.
    pub(crate) fn give_up(&mut self, ring: &mut Ring<Sent>) {
        if self.is_waiting() {
            ring.break_behind(self.executed);
            self.failure = None;
            self.executed = self.proven;
        }
    }

    /// Whether reports go through the marks.
    #[inline]
    pub(crate) fn is_in_use(&self) -> bool {
        self.executed > 0 || self.failure.is_some()
    }

    /// Whether something waits for a grace period.
    #[inline]
    pub(crate) fn is_waiting(&self) -> bool {
        self.proven < self.executed
    }

    /// Whether the oldest request may be reported, if it is in use.
    pub(crate) fn can_report(&self) -> bool {
        self.proven > 0 || self.executed == 0
    }

    /// Counts the oldest request as reported, if it was executed and may be.
    #[inline]
    pub(crate) fn take_proven(&mut self) -> bool {
        let proven = self.proven > 0;
        self.proven -= u32::from(proven);
        self.executed -= u32::from(proven);
        proven
    }

    /// How the oldest request failed, once it is its turn.
    pub(crate) fn take_failure(&mut self) -> Option<WcStatus> {
        debug_assert!(self.executed == 0, "a failure before its turn");
        self.failure.take()
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
