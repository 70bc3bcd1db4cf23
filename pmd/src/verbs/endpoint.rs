//! A queue pair as its path has it: what is posted, and what comes of it.

use std::sync::Arc;

use keyfence_mempool::sync::Ordering;

use super::qp::QpFlags;
use super::receive_queue::{ReceiveQueue, Received};
use super::send_queue::{SendQueue, Sent};
use super::sys::{Chain, Posting, Qp, SendOp, Wc};
use super::windows::{BindRequest, Effect, View};
use crate::Rkey;
use crate::completion::{Completion, CompletionKind, WcStatus};
use crate::ids::{PdId, QpId};
use crate::work::{ReceiveRequest, Remote, Sge, WorkOp, WorkRequest};

/// In a request's number: it is a receive.
const RECEIVE: u64 = 1 << 31;

/// What a path's part of a queue pair is made of.
#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(crate) id: QpId,
    pub(crate) pd: PdId,
    pub(crate) qp: Arc<Qp>,
    pub(crate) flags: Arc<QpFlags>,
    pub(crate) limits: RequestLimits,
    pub(crate) sends: SendQueue,
    pub(crate) receives: ReceiveQueue,
    /// In the path's list of those that have something to report.
    pub(crate) listed: bool,
    /// In the path's list of those that hold something back.
    pub(crate) held: bool,
}

/// Limits of one request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestLimits {
    pub(crate) max_sge: usize,
    pub(crate) max_inline_bytes: usize,
    pub(crate) max_bytes: u64,
    pub(crate) atomics: bool,
    /// Each bind and each invalidation gets a completion of its own.
    pub(crate) all_local_signaled: bool,
}

/// The queue pair, the kind and the place that a completion's number says.
#[inline]
pub(crate) fn decode(wr_id: u64) -> (QpId, bool, u32) {
    let qp = QpId((wr_id >> 32) as u32);
    (
        qp,
        wr_id & RECEIVE != 0,
        wr_id as u32 & (RECEIVE as u32 - 1),
    )
}

#[inline]
fn encode(qp: QpId, kind: u64, place: u32) -> u64 {
    u64::from(qp.0) << 32 | kind | u64::from(place)
}

impl Endpoint {
    fn is_in_error(&self) -> bool {
        self.sends.ring.is_broken()
            || self.receives.ring.is_broken()
            || self.flags.failed.load(Ordering::Acquire)
    }

    /// Posts a prefix of `work`.
    pub(crate) fn post(
        &mut self,
        chain: &mut Chain,
        view: Option<View<'_>>,
        work: &[WorkRequest],
    ) -> usize {
        let count = work.len().min(self.sends.ring.room());
        let work = &work[..count];
        if self.is_in_error() {
            for request in work {
                self.sends.ring.push(Sent::kept_back(request.id));
            }
            return count;
        }
        if count == 0 || !self.flags.connected.load(Ordering::Acquire) {
            return 0;
        }
        let qp = Arc::clone(&self.qp);
        let several = |request: &WorkRequest| !request.inline && request.sges.as_slice().len() > 1;
        let mut posting = chain.begin(&qp, work.iter().any(several));
        for request in work {
            self.push(&mut posting, view, request);
        }
        let given = posting.finish();
        if given < count {
            self.not_given(count - given);
        }
        count
    }

    /// The adapter refused the last `count` requests: the queue pair ends here.
    #[cold]
    fn not_given(&mut self, count: usize) {
        for back in 1..=count as u32 {
            let sent = self.sends.ring.before_end(back);
            sent.given = false;
            // All that an adapter's library can find wrong with an atomic is its alignment, as the peer would.
            sent.refused = sent.refused.or(match sent.kind {
                CompletionKind::Atomic => Some(WcStatus::RemoteInvalidRequest),
                _ => Some(WcStatus::General),
            });
        }
        self.refuse();
    }

    /// Lets the control side move the queue pair to error, which a path cannot.
    #[cold]
    fn refuse(&mut self) {
        self.flags.failed.store(true, Ordering::Release);
        self.flags.refused.store(true, Ordering::Release);
    }

    fn push<'a>(
        &mut self,
        posting: &mut Posting<'a>,
        view: Option<View<'a>>,
        request: &WorkRequest,
    ) {
        let wr_id = encode(self.id, 0, self.sends.ring.next_place());
        let kind = kind_of(&request.op);
        let local = matches!(kind, CompletionKind::Bind | CompletionKind::Invalidate);
        let mut sent = Sent {
            kind,
            bytes: request.sges.bytes() as u32,
            reported: request.signaled,
            given: true,
            ..Sent::kept_back(request.id)
        };
        match self.prepare(posting, view, request) {
            Ok((op, effect, inline)) => {
                sent.effect = effect;
                let signaled = request.signaled || (local && self.limits.all_local_signaled);
                // An invalidation proves what is before it, reads and atomics too.
                let fenced = kind == CompletionKind::Invalidate;
                let sges = if local { &[] } else { request.sges.as_slice() };
                posting.push((wr_id, signaled, fenced), op, sges, inline);
            }
            Err(status) => {
                sent.refused = Some(status);
                posting.push((wr_id, true, true), POISON, &POISON_SGE, None);
            }
        }
        self.sends.ring.push(sent);
    }

    /// Checks a request. What is to be posted, its effect, and how many inline bytes are in their place.
    fn prepare<'a>(
        &self,
        posting: &mut Posting<'a>,
        view: Option<View<'a>>,
        request: &WorkRequest,
    ) -> Result<(SendOp<'a>, Effect, Option<usize>), WcStatus> {
        let op = match request.op {
            WorkOp::Bind { .. } | WorkOp::Invalidate { .. } => {
                let view = view.ok_or(WcStatus::General)?;
                let (op, effect) = self.local(view, &request.op)?;
                return Ok((op, effect, None));
            }
            WorkOp::Write { remote, immediate } => SendOp::Write(remote, immediate),
            WorkOp::Read { remote } => SendOp::Read(remote),
            WorkOp::Send { immediate } => SendOp::Send(immediate),
            WorkOp::FetchAdd { remote, add } => SendOp::FetchAdd(remote, add),
            WorkOp::CompareSwap {
                remote,
                expected,
                desired,
            } => SendOp::CompareSwap(remote, expected, desired),
        };
        self.check_lengths(request)?;
        let inline = match request.inline {
            true => Some(self.copy_inline(posting, view, request)?),
            false => None,
        };
        Ok((op, Effect::None, inline))
    }

    /// Checks a bind or an invalidation.
    fn local<'a>(&self, view: View<'a>, op: &WorkOp) -> Result<(SendOp<'a>, Effect), WcStatus> {
        let refused = WcStatus::MemoryWindowBind;
        match *op {
            WorkOp::Bind {
                window,
                region,
                address,
                len,
                rights,
                rkey,
            } => {
                let request = BindRequest {
                    window,
                    region,
                    address,
                    len,
                    rkey,
                };
                let scope = (self.id, self.pd);
                let (window, region, effect) = view.bind(scope, &request).ok_or(refused)?;
                let op = SendOp::Bind {
                    window,
                    region,
                    address,
                    len,
                    rights,
                    rkey: rkey.0,
                };
                Ok((op, effect))
            }
            WorkOp::Invalidate { rkey } => {
                let effect = view.invalidate(self.id, rkey).ok_or(refused)?;
                Ok((SendOp::Invalidate(rkey.0), effect))
            }
            _ => Err(refused),
        }
    }

    fn check_lengths(&self, request: &WorkRequest) -> Result<(), WcStatus> {
        let (sges, bytes) = (request.sges.as_slice(), request.sges.bytes());
        let atomic = kind_of(&request.op) == CompletionKind::Atomic;
        let may_be_inline = matches!(request.op, WorkOp::Write { .. } | WorkOp::Send { .. });
        let fits = sges.len() <= self.limits.max_sge
            && bytes <= self.limits.max_bytes
            && (!atomic || (bytes == 8 && self.limits.atomics))
            && (!request.inline || (may_be_inline && bytes <= self.limits.max_inline_bytes as u64));
        fits.then_some(()).ok_or(WcStatus::LocalLength)
    }

    /// Copies inline bytes to where the adapter's library takes them from: it would read any address.
    fn copy_inline<'a>(
        &self,
        posting: &mut Posting<'a>,
        view: Option<View<'a>>,
        request: &WorkRequest,
    ) -> Result<usize, WcStatus> {
        let view = view.ok_or(WcStatus::General)?;
        let room = posting.inline_room();
        let mut at = 0;
        for sge in request.sges.as_slice().iter().filter(|sge| sge.len > 0) {
            let bytes = view
                .inline_bytes(self.pd, sge)
                .ok_or(WcStatus::LocalProtection)?;
            let room = &mut room[at..at + bytes.len()];
            bytes
                .read_into(room)
                .map_err(|_| WcStatus::LocalProtection)?;
            at += bytes.len();
        }
        Ok(at)
    }

    /// Posts a prefix of `receives`.
    pub(crate) fn post_receives(
        &mut self,
        chain: &mut Chain,
        receives: &[ReceiveRequest],
    ) -> usize {
        let count = receives.len().min(self.receives.ring.room());
        let receives = &receives[..count];
        let given = !self.is_in_error();
        let first = self.receives.ring.next_place();
        for receive in receives {
            let ReceiveRequest { id, sge } = *receive;
            self.receives.ring.push(Received { id, sge, given });
        }
        if given && count > 0 {
            let qp = self.id;
            let numbered = receives.iter().enumerate().map(|(at, receive)| {
                let place = first.wrapping_add(at as u32) & (RECEIVE as u32 - 1);
                (encode(qp, RECEIVE, place), receive.sge)
            });
            let posted = chain.post_receives(&self.qp, numbered);
            for back in 1..=(count - posted) as u32 {
                self.receives.ring.before_end(back).given = false;
            }
            if posted < count {
                self.refuse();
            }
        }
        count
    }

    /// Takes in a completion. What is to be reported now.
    pub(crate) fn complete(
        &mut self,
        (receive, place): (bool, u32),
        wc: &Wc,
        view: &View<'_>,
    ) -> Option<Completion> {
        match receive {
            true => self.receives.complete((self.id, self.pd, place), wc, view),
            false => self.sends.complete((self.id, place), wc.status(), view),
        }
    }

    /// Whether an end is known that is not told yet.
    pub(crate) fn can_report(&self) -> bool {
        self.sends.can_report() || self.receives.can_report()
    }

    /// Reports one request or receive whose turn has come.
    pub(crate) fn report(&mut self, view: &View<'_>) -> Option<Completion> {
        let sent = self.sends.report(self.id, view);
        sent.or_else(|| self.receives.report(self.id))
    }

    /// Whether a request needs the table of windows and regions.
    pub(crate) fn needs_view(work: &[WorkRequest]) -> bool {
        work.iter().any(|request| {
            let local = matches!(request.op, WorkOp::Bind { .. } | WorkOp::Invalidate { .. });
            request.inline || local
        })
    }
}

/// What is posted for a request that was refused before: a request that its own side must refuse, in its turn. No region has
/// address 0, whatever the key, so no byte of it is read and nothing behind it is executed.
const POISON: SendOp<'static> = SendOp::Write(
    Remote {
        address: 0,
        rkey: Rkey(0),
    },
    None,
);
const POISON_SGE: [Sge; 1] = [Sge {
    address: 0,
    len: 1,
    lkey: 0xffff_ff00,
}];

fn kind_of(op: &WorkOp) -> CompletionKind {
    match op {
        WorkOp::Write { .. } => CompletionKind::Write,
        WorkOp::Read { .. } => CompletionKind::Read,
        WorkOp::Send { .. } => CompletionKind::Send,
        WorkOp::FetchAdd { .. } | WorkOp::CompareSwap { .. } => CompletionKind::Atomic,
        WorkOp::Bind { .. } => CompletionKind::Bind,
        WorkOp::Invalidate { .. } => CompletionKind::Invalidate,
    }
}
