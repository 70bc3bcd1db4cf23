//! What travels between two queue pairs, and what is left of it to land.

use super::keys::Place;
use super::qp::{Qp, QpRef};
use crate::completion::{CompletionKind, WcStatus};
use crate::work::{Remote, WorkOp};

/// One packet of a request.
#[derive(Debug)]
pub(super) struct Packet {
    pub(super) from: QpRef,
    /// The request's number on the wire.
    pub(super) number: u64,
    pub(super) op: WorkOp,
    /// Bytes of the whole request, and of it before this packet.
    pub(super) total: u64,
    pub(super) offset: u64,
    pub(super) data: Source,
}

/// The payload.
#[derive(Debug)]
pub(super) enum Source {
    Bytes(Vec<u8>),
    /// Read when it arrives, by [`Breach::ReadsSourcesLate`](super::Breach) alone.
    Late(Vec<Place>),
}

/// What the responder says.
#[derive(Debug)]
pub(super) enum Response {
    /// Everything up to this number is executed.
    Done { number: u64 },
    /// A part of what was asked for.
    Data {
        number: u64,
        offset: u64,
        bytes: Vec<u8>,
    },
    /// This number is refused; everything before is executed.
    Refused { number: u64, status: WcStatus },
}

/// What is accepted by a responder, and is to happen at its memory.
#[derive(Debug)]
pub(super) enum Accepted {
    /// Bytes of a write.
    Write { place: Place, bytes: Vec<u8> },
    /// Bytes of a message, into a receive.
    Receive { places: Vec<Place>, bytes: Vec<u8> },
    /// Bytes of a read, to be taken and sent back.
    Read {
        place: Place,
        number: u64,
        offset: u64,
    },
    /// An atomic.
    Atomic {
        place: Place,
        number: u64,
        op: WorkOp,
    },
    /// The end of a request: the oldest receive that has a message completes, if it takes one, and it is acknowledged.
    End {
        number: u64,
        report: Option<Report>,
        acknowledge: bool,
    },
    /// The request is refused when everything before it has landed.
    Refusal {
        number: u64,
        status: WcStatus,
        /// How the receive ends, if the fault is there.
        receive: Option<WcStatus>,
        /// Whether this side goes to error, too.
        breaks: bool,
    },
}

/// What a receive's completion says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Report {
    pub(super) kind: CompletionKind,
    pub(super) bytes: u32,
    pub(super) immediate: Option<u32>,
}

/// A part of an answer on its way into the requester's memory.
#[derive(Debug)]
pub(super) struct Sink {
    pub(super) number: u64,
    pub(super) places: Vec<Place>,
    pub(super) bytes: Vec<u8>,
}

impl Packet {
    pub(super) fn len(&self) -> u64 {
        match &self.data {
            Source::Bytes(bytes) => bytes.len() as u64,
            Source::Late(places) => places.iter().map(|place| place.len as u64).sum(),
        }
    }

    pub(super) fn is_first(&self) -> bool {
        self.offset == 0
    }

    pub(super) fn is_last(&self) -> bool {
        self.offset + self.len() == self.total
    }

    /// Where the request goes in the peer's memory; nowhere if it is a message.
    pub(super) fn remote(&self) -> Option<Remote> {
        match self.op {
            WorkOp::Write { remote, .. }
            | WorkOp::Read { remote }
            | WorkOp::FetchAdd { remote, .. }
            | WorkOp::CompareSwap { remote, .. } => Some(remote),
            WorkOp::Send { .. } | WorkOp::Bind { .. } | WorkOp::Invalidate { .. } => None,
        }
    }

    /// Whether it cannot be accepted without a receive that has no message yet.
    pub(super) fn needs_receive(&self) -> bool {
        match self.op {
            WorkOp::Send { .. } => self.is_first(),
            WorkOp::Write { immediate, .. } => self.is_last() && immediate.is_some(),
            _ => false,
        }
    }

    /// What the end of the request reports at the responder.
    pub(super) fn report(&self) -> Option<Report> {
        let (kind, immediate) = match self.op {
            WorkOp::Send { immediate } => (CompletionKind::Receive, immediate),
            WorkOp::Write {
                immediate: Some(value),
                ..
            } => (CompletionKind::ReceiveWriteImmediate, Some(value)),
            _ => return None,
        };
        let bytes = self.total as u32;
        Some(Report {
            kind,
            bytes,
            immediate,
        })
    }
}

impl Accepted {
    /// The memory it touches.
    pub(super) fn places(&self) -> &[Place] {
        match self {
            Self::Write { place, .. } | Self::Read { place, .. } | Self::Atomic { place, .. } => {
                core::slice::from_ref(place)
            }
            Self::Receive { places, .. } => places,
            Self::End { .. } | Self::Refusal { .. } => &[],
        }
    }

    /// Whether it touches memory by a local key, that of a receive.
    pub(super) fn is_own(&self) -> bool {
        matches!(self, Self::Receive { .. })
    }
}

impl Qp {
    /// Whether a receive waits for a message.
    pub(super) fn has_receive(&self) -> bool {
        self.receive.receives.len() > self.receive.taken
    }
}
