//! The fields of `copy`.

use serde::Serialize;

use super::{ChecksReport, ReclaimReport};

/// What `copy` did and saw.
#[derive(Serialize, Clone, PartialEq, Debug, Default)]
pub struct CopyReport {
    /// The copy.
    pub copy: CopyFigures,
    /// What was reclaimed.
    pub reclaim: ReclaimReport,
    /// What went wrong.
    pub checks: ChecksReport,
    /// Whether a signal ended it early.
    pub interrupted: bool,
}

/// The copy.
#[derive(Serialize, Clone, PartialEq, Debug, Default)]
pub struct CopyFigures {
    /// Bytes of the file.
    pub bytes: u64,
    /// Bytes that the device moved; at least the file's.
    pub device_bytes: u64,
    /// Bytes that were sent again since their context died.
    pub resent_bytes: u64,
    /// Contexts killed.
    pub kills: u64,
    /// `blake3:` and the digest of the copy in hex, read back; empty if there is none.
    pub digest: String,
    /// Contexts on each side.
    pub contexts: u64,
    /// Bytes that a context had in transfer at most.
    pub window_bytes: u64,
    /// From the session's start to the last block's arrival in the destination.
    pub duration_s: f64,
}
