//! The send queue of a queue pair: its ring of requests, how far each has come, and what is reported.
//!
//! Five counts, each at most the one before: `posted`, `sent` (handed to the peer, or executed here if the request is a bind or an
//! invalidation), `executed` (known to have been executed, in order), `reported` (its completion polled, or silently passed), `freed`
//! (its place in the queue is free: a silent one's only with the next completion that is polled).

use super::completions::Completions;
use crate::completion::{Completion, CompletionKind, WcStatus};
use crate::ids::{QpId, WorkId};
use crate::work::{SgeList, WorkOp, WorkRequest};

/// How far a request has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// Not begun, or begun and not all handed over.
    Queued,
    /// Handed over; executed when the peer has finished this many slots.
    Sent { end: u64 },
    /// Handed over; executed when all its data has come back.
    Asked,
    /// Executed.
    Done,
    /// Refused on this side. Takes effect when everything before it is executed.
    Failed(WcStatus),
}

/// What the queue knows of one request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flight {
    pub(crate) id: WorkId,
    pub(crate) kind: CompletionKind,
    pub(crate) signaled: bool,
    pub(crate) phase: Phase,
    /// Of the whole operation.
    pub(crate) bytes: u32,
    /// The request's number on the wire, once sent.
    pub(crate) number: u64,
}

/// The queue.
#[derive(Debug)]
pub(crate) struct SendQueue {
    flights: Box<[Flight]>,
    work: Box<[WorkRequest]>,
    inline: Box<[u8]>,
    inline_bytes: usize,
    pub(super) depth: u64,
    pub(crate) posted: u64,
    pub(crate) sent: u64,
    pub(crate) executed: u64,
    reported: u64,
    freed: u64,
    /// Why `executed` stands still for ever, if a request of ours is the reason.
    failure: Option<WcStatus>,
}

impl Flight {
    const EMPTY: Self = Self {
        id: WorkId(u64::MAX),
        kind: CompletionKind::Send,
        signaled: false,
        phase: Phase::Queued,
        bytes: 0,
        number: 0,
    };

    pub(crate) fn of(work: &WorkRequest) -> Self {
        let kind = match work.op {
            WorkOp::Write { .. } => CompletionKind::Write,
            WorkOp::Read { .. } => CompletionKind::Read,
            WorkOp::Send { .. } => CompletionKind::Send,
            WorkOp::FetchAdd { .. } | WorkOp::CompareSwap { .. } => CompletionKind::Atomic,
            WorkOp::Bind { .. } => CompletionKind::Bind,
            WorkOp::Invalidate { .. } => CompletionKind::Invalidate,
        };
        Self {
            id: work.id,
            kind,
            signaled: work.signaled,
            ..Self::EMPTY
        }
    }
}

impl SendQueue {
    pub(crate) fn new(depth: u32, inline_bytes: usize) -> Self {
        let places = (depth as usize).next_power_of_two();
        let nothing = WorkRequest::new(
            WorkId(u64::MAX),
            WorkOp::Send { immediate: None },
            SgeList::EMPTY,
        );
        Self {
            flights: vec![Flight::EMPTY; places].into_boxed_slice(),
            work: vec![nothing; places].into_boxed_slice(),
            inline: vec![0; places * inline_bytes].into_boxed_slice(),
            inline_bytes,
            depth: u64::from(depth),
            posted: 0,
            sent: 0,
            executed: 0,
            reported: 0,
            freed: 0,
            failure: None,
        }
    }

    /// Places that are free.
    #[inline]
    pub(crate) fn room(&self) -> usize {
        (self.depth - (self.posted - self.freed)) as usize
    }

    /// Whether requests wait to be sent.
    #[inline]
    pub(crate) fn is_waiting(&self) -> bool {
        self.sent < self.posted
    }

    #[inline]
    pub(crate) fn flight(&mut self, number: u64) -> &mut Flight {
        &mut self.flights[number as usize & (self.flights.len() - 1)]
    }

    /// The request at `number`, as stored.
    #[inline]
    pub(crate) fn work(&self, number: u64) -> &WorkRequest {
        &self.work[number as usize & (self.work.len() - 1)]
    }

    /// The private copy of an inline request's bytes.
    #[inline]
    pub(crate) fn inline(&self, number: u64) -> &[u8] {
        let place = number as usize & (self.work.len() - 1);
        &self.inline[place * self.inline_bytes..][..self.inline_bytes]
    }

    /// Where the private copy goes.
    #[inline]
    pub(crate) fn inline_mut(&mut self, number: u64) -> &mut [u8] {
        let place = number as usize & (self.work.len() - 1);
        &mut self.inline[place * self.inline_bytes..][..self.inline_bytes]
    }

    /// Adds a request that will need its text later.
    #[inline]
    pub(crate) fn store(&mut self, work: &WorkRequest, flight: Flight) {
        let place = self.posted as usize & (self.work.len() - 1);
        self.work[place] = *work;
        self.add(flight);
    }

    /// Adds a request of which only the outcome is left.
    #[inline]
    pub(crate) fn add(&mut self, flight: Flight) {
        assert!(self.room() > 0, "a request was posted to a full queue");
        *self.flight(self.posted) = flight;
        self.posted += 1;
    }

    /// Counts what is executed now that the peer has finished `finished` slots. The status of a refused request when its turn has come.
    #[inline(always)]
    pub(crate) fn settle(&mut self, finished: u64) -> Option<WcStatus> {
        while self.executed < self.posted {
            match self.flight(self.executed).phase {
                Phase::Sent { end } if finished >= end => {}
                Phase::Done => {}
                Phase::Failed(status) => return Some(status),
                Phase::Sent { .. } | Phase::Asked | Phase::Queued => return None,
            }
            self.executed += 1;
        }
        None
    }

    /// The request whose turn has come failed with `failure`; with `None` the queue pair came into error for another reason.
    pub(crate) fn stop(&mut self, failure: Option<WcStatus>) {
        self.failure = failure;
    }

    /// Reports executed requests, and with `in_error` everything behind them.
    #[inline(always)]
    pub(crate) fn report(&mut self, qp: QpId, in_error: bool, done: &mut Completions<'_>) {
        while self.reported < self.posted {
            let status = if self.reported < self.executed {
                WcStatus::Success
            } else if in_error {
                WcStatus::Flushed
            } else {
                return;
            };
            if !self.report_one(qp, status, done) {
                return;
            }
        }
    }

    #[inline(always)]
    fn report_one(&mut self, qp: QpId, status: WcStatus, done: &mut Completions<'_>) -> bool {
        let success = status == WcStatus::Success;
        let flight = *self.flight(self.reported);
        if success && !flight.signaled {
            self.reported += 1;
            return true;
        }
        if done.is_full() {
            return false;
        }
        let answered = matches!(flight.kind, CompletionKind::Read | CompletionKind::Atomic);
        done.push(Completion {
            id: flight.id,
            qp,
            status: if success {
                status
            } else {
                self.failure.take().unwrap_or(status)
            },
            kind: flight.kind,
            bytes: if answered { flight.bytes } else { 0 },
            immediate: None,
        });
        self.reported += 1;
        self.freed = self.reported;
        true
    }
}
