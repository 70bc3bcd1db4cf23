//! What one record says, and how it is packed into words.

use core::fmt;

use crate::completion::{Completion, CompletionKind, WcStatus};
use crate::ids::{LcoreId, QpId, Rkey, WorkId};
use crate::work::{ReceiveRequest, Remote, WorkOp, WorkRequest};

/// One record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record {
    /// Its place in the order of all records of the device.
    pub sequence: u64,
    /// The lcore whose path it is of; `None` for control.
    pub lcore: Option<LcoreId>,
    /// What happened.
    pub event: Event,
}

/// What happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// The device took a work request.
    Posted {
        /// On this queue pair.
        qp: QpId,
        /// With this name.
        id: WorkId,
        /// What.
        op: OpCode,
        /// Whether success is reported.
        signaled: bool,
        /// Bytes of local memory, or of the range of a bind.
        bytes: u64,
        /// First address of the local memory, or of a bind's range; 0 if there is none.
        local: u64,
        /// Address at the peer; 0 if there is none.
        remote: u64,
        /// The key used, bound or invalidated; `Rkey(0)` if there is none.
        rkey: Rkey,
    },
    /// The device took a receive.
    ReceivePosted {
        /// On this queue pair.
        qp: QpId,
        /// With this name.
        id: WorkId,
        /// First address.
        local: u64,
        /// Bytes.
        bytes: u64,
    },
    /// The device took fewer than it was given.
    Short {
        /// On this queue pair.
        qp: QpId,
        /// Given.
        given: u64,
        /// Taken.
        taken: u64,
    },
    /// A completion was polled.
    Completed(Completion),
    /// The lcore gave a queue pair up.
    Released {
        /// This one.
        qp: QpId,
    },
    /// A control call returned, or an event of the control side was polled.
    Control {
        /// Which.
        call: ControlCall,
        /// Numbers of the objects it is about.
        objects: [u64; 2],
        /// Number of the object that it made, or 0; `None` if it failed.
        made: Option<u64>,
    },
}

macro_rules! codes {
    ($(#[$doc:meta])* $name:ident { $($item:ident),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[allow(missing_docs, reason = "the names are those of the contract's calls and operations")]
        pub enum $name { $($item),* }

        impl $name {
            const ALL: &'static [Self] = &[$(Self::$item),*];

            /// The name as in the code.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$item => stringify!($item)),* }
            }

            fn from_code(code: u64) -> Option<Self> {
                Self::ALL.get(code as usize).copied()
            }
        }
    };
}

codes! {
    /// The operation of a work request, without its arguments.
    OpCode { Write, WriteImmediate, Read, Send, SendImmediate, FetchAdd, CompareSwap, Bind, Invalidate }
}

codes! {
    /// A call of the control side, or an event of it.
    ControlCall {
        AllocPd, DeallocPd, Register, Deregister, CreateQp, Listen, StartConnect, Accept, Reject,
        EventConnectRequest, EventConnected, EventRejected, ErrorQp, DestroyQp, AllocWindow, DeallocWindow,
    }
}

pub(super) const PAYLOAD_WORDS: usize = 7;

const POSTED: u64 = 0;
const RECEIVE_POSTED: u64 = 1;
const SHORT: u64 = 2;
const COMPLETED: u64 = 3;
const RELEASED: u64 = 4;
const CONTROL: u64 = 5;

const STATUSES: [WcStatus; 11] = [
    WcStatus::Success,
    WcStatus::LocalLength,
    WcStatus::LocalProtection,
    WcStatus::MemoryWindowBind,
    WcStatus::Flushed,
    WcStatus::RemoteInvalidRequest,
    WcStatus::RemoteAccess,
    WcStatus::RemoteOperation,
    WcStatus::RetryExceeded,
    WcStatus::RnrRetryExceeded,
    WcStatus::General,
];
const KINDS: [CompletionKind; 8] = [
    CompletionKind::Write,
    CompletionKind::Read,
    CompletionKind::Send,
    CompletionKind::Atomic,
    CompletionKind::Bind,
    CompletionKind::Invalidate,
    CompletionKind::Receive,
    CompletionKind::ReceiveWriteImmediate,
];

impl Event {
    pub(super) fn posted(qp: QpId, work: &WorkRequest) -> Self {
        let (op, remote, bind_bytes) = describe(&work.op);
        let first = work.sges.as_slice().first();
        let local = match work.op {
            WorkOp::Bind { address, .. } => address,
            _ => first.map_or(0, |sge| sge.address),
        };
        Self::Posted {
            qp,
            id: work.id,
            op,
            signaled: work.signaled,
            bytes: bind_bytes.unwrap_or(work.sges.bytes()),
            local,
            remote: remote.address,
            rkey: remote.rkey,
        }
    }

    pub(super) fn receive_posted(qp: QpId, receive: &ReceiveRequest) -> Self {
        Self::ReceivePosted {
            qp,
            id: receive.id,
            local: receive.sge.address,
            bytes: receive.sge.len.into(),
        }
    }

    // Word 0: event code, then 8 bits each of two small codes and flags, then 32 bits of queue pair.
    pub(super) fn encode(&self) -> [u64; PAYLOAD_WORDS] {
        let head = |event: u64, qp: QpId, code: u64, flags: u64| {
            event | code << 8 | flags << 16 | u64::from(qp.0) << 32
        };
        match *self {
            Self::Posted {
                qp,
                id,
                op,
                signaled,
                bytes,
                local,
                remote,
                rkey,
            } => [
                head(POSTED, qp, op as u64, signaled.into()),
                id.0,
                bytes,
                local,
                remote,
                rkey.0.into(),
                0,
            ],
            Self::ReceivePosted {
                qp,
                id,
                local,
                bytes,
            } => [head(RECEIVE_POSTED, qp, 0, 0), id.0, bytes, local, 0, 0, 0],
            Self::Short { qp, given, taken } => [head(SHORT, qp, 0, 0), given, taken, 0, 0, 0, 0],
            Self::Completed(done) => [
                head(
                    COMPLETED,
                    done.qp,
                    position(&STATUSES, done.status),
                    position(&KINDS, done.kind) | u64::from(done.immediate.is_some()) << 8,
                ),
                done.id.0,
                done.bytes.into(),
                done.immediate.unwrap_or(0).into(),
                0,
                0,
                0,
            ],
            Self::Released { qp } => [head(RELEASED, qp, 0, 0), 0, 0, 0, 0, 0, 0],
            Self::Control {
                call,
                objects,
                made,
            } => [
                head(CONTROL, QpId(0), call as u64, made.is_some().into()),
                objects[0],
                objects[1],
                made.unwrap_or(0),
                0,
                0,
                0,
            ],
        }
    }

    /// `None` for words that no event packs to.
    pub(super) fn decode(words: &[u64; PAYLOAD_WORDS]) -> Option<Self> {
        let [head, a, b, c, d, e, _] = *words;
        let qp = QpId((head >> 32) as u32);
        let code = head >> 8 & 0xff;
        let flags = head >> 16 & 0xffff;
        Some(match head & 0xff {
            POSTED => Self::Posted {
                qp,
                id: WorkId(a),
                op: OpCode::from_code(code)?,
                signaled: flags & 1 != 0,
                bytes: b,
                local: c,
                remote: d,
                rkey: Rkey(e as u32),
            },
            RECEIVE_POSTED => Self::ReceivePosted {
                qp,
                id: WorkId(a),
                bytes: b,
                local: c,
            },
            SHORT => Self::Short {
                qp,
                given: a,
                taken: b,
            },
            COMPLETED => Self::Completed(Completion {
                id: WorkId(a),
                qp,
                status: *STATUSES.get(code as usize)?,
                kind: *KINDS.get(flags as usize & 0xff)?,
                bytes: b as u32,
                immediate: (flags >> 8 & 1 != 0).then_some(c as u32),
            }),
            RELEASED => Self::Released { qp },
            CONTROL => Self::Control {
                call: ControlCall::from_code(code)?,
                objects: [a, b],
                made: (flags & 1 != 0).then_some(c),
            },
            _ => return None,
        })
    }
}

fn position<T: PartialEq>(all: &[T], one: T) -> u64 {
    let at = all.iter().position(|item| *item == one);
    at.unwrap_or(all.len()) as u64
}

/// The operation, where it goes, and the bytes of a bind's range.
fn describe(op: &WorkOp) -> (OpCode, Remote, Option<u64>) {
    let nowhere = |rkey| Remote { address: 0, rkey };
    match *op {
        WorkOp::Write { remote, immediate } => match immediate {
            None => (OpCode::Write, remote, None),
            Some(_) => (OpCode::WriteImmediate, remote, None),
        },
        WorkOp::Read { remote } => (OpCode::Read, remote, None),
        WorkOp::Send { immediate } => match immediate {
            None => (OpCode::Send, nowhere(Rkey(0)), None),
            Some(_) => (OpCode::SendImmediate, nowhere(Rkey(0)), None),
        },
        WorkOp::FetchAdd { remote, .. } => (OpCode::FetchAdd, remote, None),
        WorkOp::CompareSwap { remote, .. } => (OpCode::CompareSwap, remote, None),
        WorkOp::Bind { rkey, len, .. } => (OpCode::Bind, nowhere(rkey), Some(len)),
        WorkOp::Invalidate { rkey } => (OpCode::Invalidate, nowhere(rkey), None),
    }
}

/// One line without its end: `00000012 lcore 0 qp 3 posted Write 0x2a ...`.
impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08} ", self.sequence)?;
        match self.lcore {
            Some(lcore) => write!(f, "lcore {lcore} ")?,
            None => f.write_str("control ")?,
        }
        write!(f, "{}", self.event)
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Posted {
                qp,
                id,
                op,
                signaled,
                bytes,
                local,
                remote,
                rkey,
            } => {
                let how = if *signaled { "" } else { " unsignaled" };
                write!(f, "qp {qp} posted {op:?} {:#x}{how}", id.0)?;
                write!(
                    f,
                    " bytes {bytes} local {local:#x} remote {remote:#x} key {rkey:?}"
                )
            }
            Self::ReceivePosted {
                qp,
                id,
                local,
                bytes,
            } => write!(
                f,
                "qp {qp} posted Receive {:#x} bytes {bytes} local {local:#x}",
                id.0
            ),
            Self::Short { qp, given, taken } => {
                write!(f, "qp {qp} took {taken} of {given}")
            }
            Self::Completed(done) if done.is_success() => {
                write!(
                    f,
                    "qp {} completed {:?} {:#x}",
                    done.qp, done.kind, done.id.0
                )?;
                write!(f, " bytes {} immediate {:?}", done.bytes, done.immediate)
            }
            Self::Completed(done) => {
                write!(
                    f,
                    "qp {} failed {:#x} {:?}",
                    done.qp, done.id.0, done.status
                )
            }
            Self::Released { qp } => write!(f, "qp {qp} released"),
            Self::Control {
                call,
                objects: [a, b],
                made,
            } => match made {
                Some(made) => write!(f, "{call:?} {a} {b} -> {made}"),
                None => write!(f, "{call:?} {a} {b} -> refused"),
            },
        }
    }
}
