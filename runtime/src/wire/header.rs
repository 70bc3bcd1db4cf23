//! What each frame starts with.

use zerocopy::{FromBytes, IntoBytes};

use super::{DecodeError, HEADER_BYTES, layout};
use crate::ids::{ContextId, LcoreId};

/// A context as its lane names it: the lane implies the lcore.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct WireContext {
    /// Its slot in its lcore's table.
    pub slot: u16,
    /// The slot's generation.
    pub generation: u32,
}

impl WireContext {
    /// The full name, of a context that lives on `lcore`.
    #[must_use]
    pub const fn on(self, lcore: LcoreId) -> ContextId {
        ContextId {
            lcore,
            slot: self.slot,
            generation: self.generation,
        }
    }
}

impl From<ContextId> for WireContext {
    fn from(id: ContextId) -> Self {
        Self {
            slot: id.slot,
            generation: id.generation,
        }
    }
}

/// The part that all frames have, but for the kind and the flags, which follow from the frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Header {
    /// The context that sent it; all zero where the runtime itself speaks.
    pub src: WireContext,
    /// The context that it is for; all zero where the runtime itself is meant.
    pub dst: WireContext,
    /// How many receives the sender of this frame has posted on this lane since it was made, modulo 2^32.
    pub lane_credit: u32,
    /// Its number, of a message: of a [`Kind::Message`] or [`Kind::Landed`]. They are counted on this lane and those that it repairs, from 1, modulo 2^32. Any other frame
    /// has the number of the last message before it, 0 if there was none, and a hello has 0. Nobody judges it yet.
    pub sequence: u32,
}

impl Header {
    /// The header of a message, to be put ahead of its payload.
    #[must_use]
    pub fn encode_message(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes.copy_from_slice(self.layout(Kind::Message, 0).as_bytes());
        bytes
    }

    /// The kind and the header of a frame from its first bytes, however long it is: all that there is to decode of a message.
    ///
    /// # Errors
    /// [`DecodeError`] if there are fewer than [`HEADER_BYTES`], or if the kind, the flags or the reserved field are none.
    pub fn decode(bytes: &[u8]) -> Result<(Kind, Self), DecodeError> {
        let (kind, _flags, header) = Self::decode_with_flags(bytes)?;
        Ok((kind, header))
    }

    pub(super) fn decode_with_flags(bytes: &[u8]) -> Result<(Kind, u8, Self), DecodeError> {
        let (raw, _) =
            layout::Header::ref_from_prefix(bytes).map_err(|_| DecodeError::TooShort {
                wanted: HEADER_BYTES,
                got: bytes.len(),
            })?;
        let kind = Kind::from_wire(raw.kind)?;
        if raw.flags & !kind.flags() != 0 {
            return Err(DecodeError::BadFlags {
                allowed: kind.flags(),
                flags: raw.flags,
            });
        }
        if raw.reserved.get() != 0 {
            return Err(DecodeError::BadReserved);
        }
        let header = Self {
            src: WireContext {
                slot: raw.src_slot.get(),
                generation: raw.src_generation.get(),
            },
            dst: WireContext {
                slot: raw.dst_slot.get(),
                generation: raw.dst_generation.get(),
            },
            lane_credit: raw.lane_credit.get(),
            sequence: raw.sequence.get(),
        };
        Ok((kind, raw.flags, header))
    }

    pub(super) fn layout(&self, kind: Kind, flags: u8) -> layout::Header {
        layout::Header {
            kind: kind as u8,
            flags,
            src_slot: self.src.slot.into(),
            dst_slot: self.dst.slot.into(),
            reserved: 0.into(),
            src_generation: self.src.generation.into(),
            dst_generation: self.dst.generation.into(),
            lane_credit: self.lane_credit.into(),
            sequence: self.sequence.into(),
        }
    }
}

/// In [`Kind::Revoke`]: the epoch has no further grants on this lane.
pub(super) const FLAG_LAST: u8 = 1;
/// In [`Kind::LookupReply`]: the name was found.
pub(super) const FLAG_FOUND: u8 = 1;

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $value:literal,)*) => {
        /// The kind of a frame: its first byte.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(u8)]
        pub enum Kind {
            $($(#[$doc])* $name = $value,)*
        }

        impl Kind {
            /// Each kind once.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            const fn from_wire(kind: u8) -> Result<Self, DecodeError> {
                match kind {
                    $($value => Ok(Self::$name),)*
                    kind => Err(DecodeError::UnknownKind { kind }),
                }
            }
        }
    };
}

kinds! {
    /// [`Frame::Hello`](super::Frame::Hello)
    Hello = 1,
    /// [`Frame::Message`](super::Frame::Message)
    Message = 2,
    /// [`Frame::Lookup`](super::Frame::Lookup)
    Lookup = 3,
    /// [`Frame::LookupReply`](super::Frame::LookupReply)
    LookupReply = 4,
    /// [`Frame::Grants`](super::Frame::Grants)
    Grants = 5,
    /// [`Frame::Revoke`](super::Frame::Revoke)
    Revoke = 6,
    /// [`Frame::Revoked`](super::Frame::Revoked)
    Revoked = 7,
    /// [`Frame::Refused`](super::Frame::Refused)
    Refused = 8,
    /// [`Frame::ImportsDropped`](super::Frame::ImportsDropped)
    ImportsDropped = 9,
    /// [`Frame::Credit`](super::Frame::Credit)
    Credit = 10,
    /// [`Frame::ContextGone`](super::Frame::ContextGone)
    ContextGone = 11,
    /// [`Frame::KeepAlive`](super::Frame::KeepAlive)
    KeepAlive = 12,
    /// [`Frame::Bye`](super::Frame::Bye)
    Bye = 13,
    /// [`Frame::Landed`](super::Frame::Landed)
    Landed = 14,
    /// [`Frame::Begin`](super::Frame::Begin)
    Begin = 15,
    /// [`Frame::Ended`](super::Frame::Ended)
    Ended = 16,
    /// [`Frame::End`](super::Frame::End)
    End = 17,
}

impl Kind {
    /// The flags that a frame of this kind may have.
    const fn flags(self) -> u8 {
        match self {
            Self::Revoke => FLAG_LAST,
            Self::LookupReply => FLAG_FOUND,
            _ => 0,
        }
    }
}
