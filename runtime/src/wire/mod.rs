//! The frames of a lane: little-endian, fixed layouts, decoded with bounds checks into plain values.
//!
//! A frame is one message of a queue pair: the engine sends it from, and receives it into, its own buffers. Each starts with
//! the 24 bytes of [`Header`]. A *message* is a header and the application's payload; every other frame is the runtime's
//! own, at most [`MAX_CONTROL_BYTES`] long. A context is named by slot and generation alone: a lane joins exactly one
//! lcore here to one there, so it implies both lcores.
//!
//! What a peer sends is not trusted. The lcore copies a control frame (or, of a message, the header) out of the receive buffer into
//! private memory, once, and then decodes that copy: [`decode`] never sees bytes that can change under it. A frame that
//! is too short, too long, of an unknown kind, or has a bit set that means nothing is refused with a typed
//! [`DecodeError`], which the lane counts; nothing here panics, allocates or loops on a length that it did not check.
//! A frame has exactly one encoding: what [`decode`] accepts, [`encode`] turns into the same bytes.
//!
//! A lane that repairs another continues it. Behind its hello each side says [`Frame::Begin`] with the number of the last message that it took before, then what
//! still lives of its lcore: its grants with their new keys as [`Frame::Grants`], and the contexts of it that have ended as [`Frame::Ended`], in as many frames as they take, and
//! [`Frame::End`]. Whether they come in their place is for the engine to judge: each is a sound frame alone.
//!
//! Called by the lcore that owns the lane, and by nobody else.

mod decode;
mod encode;
mod error;
mod frame;
mod header;
mod layout;
mod list;
mod name;

pub use decode::decode;
pub use encode::encode;
pub use error::{DecodeError, EncodeError};
pub use frame::{ContextGone, Found, Frame, Grant, Hello, NO_LEASE, Role};
pub use header::{Header, Kind, WireContext};
pub use list::{CreditLimit, Item, List, ListIter};
pub use name::{MAX_NAME_BYTES, Name, NameError};

/// The version of these layouts. Both ends must have the same: a [`Hello`] of another is refused.
pub const VERSION: u16 = 4;

/// Bytes of the header that each frame starts with.
pub const HEADER_BYTES: usize = size_of::<layout::Header>();

/// The most bytes of a frame that is not a message.
pub const MAX_CONTROL_BYTES: usize = 512;

/// The most grants that one [`Frame::Revoke`] names. A longer list is cut into several frames, the last one marked.
pub const MAX_REVOKE_GRANTS: usize =
    (MAX_CONTROL_BYTES - HEADER_BYTES - size_of::<layout::Revoke>()) / size_of::<u64>();

/// The most grants that one [`Frame::Grants`] makes.
pub const MAX_GRANTS: usize =
    (MAX_CONTROL_BYTES - HEADER_BYTES - size_of::<layout::Count>()) / size_of::<layout::Grant>();

/// The most grants that one [`Frame::ImportsDropped`] names.
pub const MAX_DROPPED_GRANTS: usize =
    (MAX_CONTROL_BYTES - HEADER_BYTES - size_of::<layout::Count>()) / size_of::<u64>();

/// The most contexts that one [`Frame::Ended`] names. A longer list is cut into several frames.
pub const MAX_ENDED_CONTEXTS: usize =
    (MAX_CONTROL_BYTES - HEADER_BYTES - size_of::<layout::Count>()) / size_of::<layout::Context>();

/// The most contexts that one [`Frame::Credit`] names.
pub const MAX_CREDIT_LIMITS: usize =
    (MAX_CONTROL_BYTES - HEADER_BYTES - size_of::<layout::Count>())
        / size_of::<layout::CreditLimit>();
