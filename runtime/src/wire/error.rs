//! Why a frame was refused.

use thiserror::Error;

use super::name::NameError;

/// Why [`decode`](super::decode) refused a frame that a peer sent. The lane counts it and drops the frame (R12).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum DecodeError {
    /// The frame ends before what its kind and its counts promise.
    #[error("a frame of {got} bytes where {wanted} are needed")]
    TooShort {
        /// Bytes needed.
        wanted: usize,
        /// Bytes there.
        got: usize,
    },
    /// A control frame longer than any may be.
    #[error("a control frame of {got} bytes; at most {max} are allowed")]
    BadLength {
        /// The most bytes of a control frame.
        max: usize,
        /// Bytes there.
        got: usize,
    },
    /// Bytes after the end of the frame.
    #[error("{extra} bytes after the end of the frame")]
    TrailingBytes {
        /// How many.
        extra: usize,
    },
    /// No frame has this kind. Zero is none, so a zeroed buffer is no frame.
    #[error("kind {kind} is unknown")]
    UnknownKind {
        /// The first byte.
        kind: u8,
    },
    /// A flag that this kind of frame does not have.
    #[error("flags {flags:#04x}; this kind of frame has {allowed:#04x} at most")]
    BadFlags {
        /// The flags that the kind has.
        allowed: u8,
        /// The second byte.
        flags: u8,
    },
    /// A field that must be zero, or that says nothing in this frame, is not zero.
    #[error("a reserved field is not zero")]
    BadReserved,
    /// A hello of another version of the format.
    #[error("version {got}; this engine speaks {ours}")]
    BadVersion {
        /// [`VERSION`](super::VERSION).
        ours: u16,
        /// The peer's.
        got: u16,
    },
    /// A hello that says neither "connecting" nor "accepting".
    #[error("role {role} is unknown")]
    BadRole {
        /// The byte.
        role: u8,
    },
    /// Rights beyond read, write and atomic.
    #[error("rights {rights:#04x} are unknown")]
    BadRights {
        /// The byte.
        rights: u8,
    },
    /// A grant of no bytes, or one that runs past the end of the address space.
    #[error("a range of {len} bytes at {address:#x}")]
    BadRange {
        /// The first byte.
        address: u64,
        /// Bytes.
        len: u64,
    },
    /// A name that no engine or context can have.
    #[error(transparent)]
    BadName(#[from] NameError),
    /// A list with more entries than its frame holds.
    #[error("a list of {got} entries; at most {max} are allowed")]
    ListTooLong {
        /// The most entries of this frame.
        max: usize,
        /// Entries promised.
        got: usize,
    },
}

/// Why [`encode`](super::encode) did not write a frame. Nothing was written then.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum EncodeError {
    /// The caller's buffer is too small.
    #[error("the frame takes {wanted} bytes, the buffer has {got}")]
    NoRoom {
        /// Bytes of the frame.
        wanted: usize,
        /// Bytes of the buffer.
        got: usize,
    },
    /// More entries than the frame holds: cut the list.
    #[error("a list of {got} entries; the frame holds {max}: cut it")]
    ListTooLong {
        /// The most entries of this frame.
        max: usize,
        /// Entries given.
        got: usize,
    },
    /// A grant of no bytes, or one that runs past the end of the address space: the peer would refuse it.
    #[error("a range of {len} bytes at {address:#x} can't be granted")]
    BadRange {
        /// The first byte.
        address: u64,
        /// Bytes.
        len: u64,
    },
}
