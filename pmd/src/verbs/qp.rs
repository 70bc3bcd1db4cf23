//! A queue pair as the control side has it.

use std::sync::Arc;

use keyfence_mempool::sync::{AtomicBool, Ordering};

use super::sys::{CmId, Qp};
use crate::ids::PdId;

/// What both sides of a queue pair say to each other.
#[derive(Debug)]
pub(crate) struct QpFlags {
    /// Posting is allowed.
    pub(crate) connected: AtomicBool,
    /// It is in error, or about to be: nothing more is given to the adapter.
    pub(crate) failed: AtomicBool,
    /// The path has given it up.
    pub(crate) released: AtomicBool,
    /// The adapter took a post no more; the control side is to move it to error.
    pub(crate) refused: AtomicBool,
}

/// How far a queue pair's connection is. Whether it is in error is its flag.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum QpState {
    Unconnected,
    Connecting,
    Accepting,
    Connected,
}

#[derive(Debug)]
pub(crate) struct QpRecord {
    pub(crate) pd: PdId,
    pub(crate) lcore: usize,
    pub(crate) flags: Arc<QpFlags>,
    pub(crate) state: QpState,
    /// Its connection, or the try for one.
    pub(crate) id: Option<CmId>,
    /// What a request to connect will carry.
    pub(crate) private: Vec<u8>,
    /// Completions that are kept free for it.
    pub(crate) completions: u32,
    pub(crate) qp: Arc<Qp>,
}

impl QpFlags {
    pub(crate) fn new() -> Self {
        Self {
            connected: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            released: AtomicBool::new(false),
            refused: AtomicBool::new(false),
        }
    }
}

impl QpRecord {
    pub(crate) fn state_name(&self) -> &'static str {
        // A released one may be in error, too.
        if self.flags.released.load(Ordering::Acquire) {
            return "released";
        }
        if self.flags.failed.load(Ordering::Acquire) {
            return "in error";
        }
        match self.state {
            QpState::Unconnected => "unconnected",
            QpState::Connecting => "connecting",
            QpState::Accepting => "being accepted",
            QpState::Connected => "connected",
        }
    }

    /// The queue pair goes to error. The path learns it first, so that it gives nothing more to the adapter.
    pub(crate) fn fail(&self) -> std::io::Result<()> {
        self.flags.failed.store(true, Ordering::Release);
        self.qp.fail()
    }
}
