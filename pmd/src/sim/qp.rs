//! A queue pair: its send queue and what is under way of it, its receives and what it has accepted of its peer.

use std::collections::VecDeque;

use super::keys::{Place, Scope};
use super::landing::Landing;
use super::packet::{Accepted, Packet, Response, Sink};
use crate::completion::{CompletionKind, WcStatus};
use crate::device::QpConfig;
use crate::ids::{PdId, QpId};
use crate::work::{ReceiveRequest, WorkOp, WorkRequest};

/// A queue pair of a world: the adapter's number, and its own of that adapter.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct QpRef {
    pub(super) adapter: u32,
    pub(super) qp: QpId,
}

/// How far the connection is. Whether the queue pair is in error is a flag of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    Unconnected,
    /// Asked, not answered. The number keeps an answer from meeting a later attempt.
    Connecting(u64),
    /// Accepted: it serves the peer, and may not post yet.
    Accepting,
    Connected,
}

/// One queue pair.
#[derive(Debug)]
pub(super) struct Qp {
    pub(super) pd: PdId,
    pub(super) lcore: usize,
    pub(super) limits: QpConfig,
    pub(super) phase: Phase,
    pub(super) in_error: bool,
    pub(super) released: bool,
    /// Destroyed, and kept by [`Breach::DestroyDoesNotFence`](super::Breach) alone.
    pub(super) is_ghost: bool,
    pub(super) peer: Option<QpRef>,
    pub(super) stalled_until_ns: u64,
    pub(super) flush_due: bool,
    pub(super) send: SendSide,
    pub(super) receive: ReceiveSide,
}

/// The requester.
#[derive(Debug)]
pub(super) struct SendSide {
    /// Those not reported yet.
    pub(super) wqes: VecDeque<Wqe>,
    /// Counts of requests: each at most the one before.
    pub(super) posted: u64,
    pub(super) issued: u64,
    pub(super) reported: u64,
    pub(super) freed: u64,
    /// Bytes of the request being sent that have left.
    pub(super) offset: u64,
    /// The next request's number on the wire.
    pub(super) next_number: u64,
    /// A request failed: nothing behind it is begun.
    pub(super) halted: bool,
    pub(super) issue_due: bool,
    pub(super) retry_due: bool,
    pub(super) sinks: Landing<Sink>,
    /// In order: one that is faster waits for those before it.
    pub(super) responses: VecDeque<(u64, Response)>,
    /// When the last completion of the queue is to be seen.
    pub(super) last_seen_ns: u64,
}

/// The responder.
#[derive(Debug)]
pub(super) struct ReceiveSide {
    /// Those not completed.
    pub(super) receives: VecDeque<ReceiveRequest>,
    /// Of those, how many have a message.
    pub(super) taken: usize,
    /// Posted, and their completions not polled.
    pub(super) held: usize,
    /// In order, as above.
    pub(super) requests: VecDeque<(u64, Packet)>,
    pub(super) reading: Option<Reading>,
    /// Whether a message waits for a receive, so that chance has decided about it.
    pub(super) waiting: Option<u64>,
    /// Nothing more is accepted: a refusal is to come, or the peer was told that there is no receive.
    pub(super) halted: bool,
    /// Every packet of the peer is dropped, since it was told that there is no receive.
    pub(super) deaf: bool,
    pub(super) respond_due: bool,
    pub(super) accepted: Landing<Accepted>,
    pub(super) last_seen_ns: u64,
}

/// A read being answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading {
    pub(super) packet: Ask,
    pub(super) offset: u64,
}

/// What a read asks for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ask {
    pub(super) number: u64,
    pub(super) remote: crate::work::Remote,
    pub(super) total: u64,
}

/// A request of a send queue.
#[derive(Debug)]
pub(super) struct Wqe {
    pub(super) work: WorkRequest,
    pub(super) inline: Option<Vec<u8>>,
    pub(super) state: WqeState,
    /// Its number on the wire, once its first packet has left.
    pub(super) number: Option<u64>,
    /// Bytes of its answer that have come, and that have landed.
    pub(super) come: u64,
    pub(super) landed: u64,
    /// When an invalidation that had its turn is done.
    pub(super) ready_ns: Option<u64>,
}

/// How far it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WqeState {
    Open,
    Done,
    /// Takes effect when everything before it is done.
    Failed(WcStatus),
}

impl Qp {
    pub(super) fn new(config: &QpConfig) -> Self {
        Self {
            pd: config.pd,
            lcore: usize::from(config.lcore.0),
            limits: *config,
            phase: Phase::Unconnected,
            in_error: false,
            released: false,
            is_ghost: false,
            peer: None,
            stalled_until_ns: 0,
            flush_due: false,
            send: SendSide::new(),
            receive: ReceiveSide::new(),
        }
    }

    /// Whether it takes what its peer sends.
    pub(super) fn serves(&self, peer: QpRef) -> bool {
        let stands = matches!(self.phase, Phase::Accepting | Phase::Connected);
        stands && !self.in_error && self.peer == Some(peer)
    }

    /// What state the caller of a control call finds it in.
    pub(super) fn state_name(&self) -> &'static str {
        match self.phase {
            _ if self.released => "released",
            _ if self.in_error => "in error",
            Phase::Unconnected => "unconnected",
            Phase::Connecting(_) => "connecting",
            Phase::Accepting => "being accepted",
            Phase::Connected => "connected",
        }
    }

    pub(super) fn waits_for(&self, attempt: u64) -> bool {
        self.phase == Phase::Connecting(attempt) && !self.in_error
    }
}

impl QpRef {
    pub(super) fn scope(self, pd: PdId) -> Scope {
        Scope { qp: self.qp, pd }
    }
}

impl SendSide {
    fn new() -> Self {
        Self {
            wqes: VecDeque::new(),
            posted: 0,
            issued: 0,
            reported: 0,
            freed: 0,
            offset: 0,
            next_number: 0,
            halted: false,
            issue_due: false,
            retry_due: false,
            sinks: Landing::new(),
            responses: VecDeque::new(),
            last_seen_ns: 0,
        }
    }

    /// The request being issued.
    pub(super) fn current(&mut self) -> Option<&mut Wqe> {
        let at = self.issued.checked_sub(self.reported)?;
        self.wqes.get_mut(at as usize)
    }

    /// The request of this number, if it is not reported.
    pub(super) fn by_number(&mut self, number: u64) -> Option<&mut Wqe> {
        let mut open = self.wqes.iter_mut();
        open.find(|wqe| wqe.number == Some(number))
    }

    /// Whether an invalidation of this window is posted and not done.
    pub(super) fn invalidates(&self, window: u32) -> bool {
        self.wqes.iter().any(|wqe| match wqe.work.op {
            WorkOp::Invalidate { rkey } => rkey.index() == window && wqe.state == WqeState::Open,
            _ => false,
        })
    }

    /// The oldest request that the peer owes an answer.
    pub(super) fn owed(&mut self) -> Option<&mut Wqe> {
        let mut open = self.wqes.iter_mut();
        open.find(|wqe| wqe.number.is_some() && !wqe.is_answered())
    }
}

impl ReceiveSide {
    fn new() -> Self {
        Self {
            receives: VecDeque::new(),
            taken: 0,
            held: 0,
            requests: VecDeque::new(),
            reading: None,
            waiting: None,
            halted: false,
            deaf: false,
            respond_due: false,
            accepted: Landing::new(),
            last_seen_ns: 0,
        }
    }
}

impl Wqe {
    pub(super) fn new(work: &WorkRequest) -> Self {
        Self {
            work: *work,
            inline: None,
            state: WqeState::Open,
            number: None,
            come: 0,
            landed: 0,
            ready_ns: None,
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.work.sges.bytes()
    }

    /// Whether its answer brings data, which ends it when all has landed.
    pub(super) fn is_question(&self) -> bool {
        let asks = matches!(
            self.work.op,
            WorkOp::Read { .. } | WorkOp::FetchAdd { .. } | WorkOp::CompareSwap { .. }
        );
        asks && self.bytes() > 0
    }

    fn is_answered(&self) -> bool {
        self.state != WqeState::Open || self.is_question() && self.come == self.bytes()
    }

    pub(super) fn kind(&self) -> CompletionKind {
        match self.work.op {
            WorkOp::Write { .. } => CompletionKind::Write,
            WorkOp::Read { .. } => CompletionKind::Read,
            WorkOp::Send { .. } => CompletionKind::Send,
            WorkOp::FetchAdd { .. } | WorkOp::CompareSwap { .. } => CompletionKind::Atomic,
            WorkOp::Bind { .. } => CompletionKind::Bind,
            WorkOp::Invalidate { .. } => CompletionKind::Invalidate,
        }
    }
}

/// Whether any of these bytes are behind the region.
pub(super) fn in_region(places: &[Place], region: u32) -> bool {
    places.iter().any(|place| place.region == region)
}
