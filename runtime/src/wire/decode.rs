//! Bytes to frames.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::header::{FLAG_FOUND, FLAG_LAST};
use super::{
    ContextGone, DecodeError, Found, Frame, Grant, HEADER_BYTES, Header, Hello, Kind, List,
    MAX_CONTROL_BYTES, MAX_CREDIT_LIMITS, MAX_DROPPED_GRANTS, MAX_ENDED_CONTEXTS, MAX_GRANTS,
    MAX_NAME_BYTES, MAX_REVOKE_GRANTS, Name, NameError, Role, VERSION, WireContext, layout,
};
use crate::ids::{Epoch, GrantId, Incarnation, LcoreId};

/// The header and the frame in `bytes`, which is one whole message of the queue pair, copied out of the receive buffer.
///
/// # Errors
/// [`DecodeError`] if it is not exactly one well-formed frame. Never panics.
///
/// ```
/// use keyfence::wire::{DecodeError, Frame, Header, decode, encode};
///
/// let mut bytes = [0; 64];
/// let len = encode(&Header::default(), &Frame::KeepAlive { number: 7 }, &mut bytes).unwrap();
/// assert_eq!(decode(&bytes[..len]).unwrap().1, Frame::KeepAlive { number: 7 });
/// assert_eq!(decode(&bytes[..len - 1]), Err(DecodeError::TooShort { wanted: 28, got: 27 }));
/// ```
pub fn decode(bytes: &[u8]) -> Result<(Header, Frame<'_>), DecodeError> {
    let (kind, flags, header) = Header::decode_with_flags(bytes)?;
    if kind != Kind::Message && bytes.len() > MAX_CONTROL_BYTES {
        return Err(DecodeError::BadLength {
            max: MAX_CONTROL_BYTES,
            got: bytes.len(),
        });
    }
    let body = Body(&bytes[HEADER_BYTES..]);
    let frame = match kind {
        Kind::Hello => Frame::Hello(hello(body)?),
        Kind::Message => Frame::Message(body.0),
        Kind::Lookup => lookup(body)?,
        Kind::LookupReply => lookup_reply(body, flags)?,
        Kind::Grants => grants(body)?,
        Kind::Revoke => revoke(body, flags)?,
        Kind::Revoked => Frame::Revoked {
            epoch: Epoch(body.whole::<U64>()?.get()),
        },
        Kind::Refused => Frame::Refused {
            grant: GrantId::from_bits(body.whole::<U64>()?.get()),
        },
        Kind::ImportsDropped => Frame::ImportsDropped {
            grants: body.counted(MAX_DROPPED_GRANTS)?,
        },
        Kind::Credit => Frame::Credit {
            limits: body.counted(MAX_CREDIT_LIMITS)?,
        },
        Kind::ContextGone => Frame::ContextGone(context_gone(body)?),
        Kind::KeepAlive => Frame::KeepAlive {
            number: body.whole::<U32>()?.get(),
        },
        Kind::Landed => {
            let fixed = body.whole::<layout::Landed>()?;
            Frame::Landed {
                grant: GrantId::from_bits(fixed.grant.get()),
                immediate: fixed.immediate.get(),
                bytes: fixed.bytes.get(),
            }
        }
        Kind::Begin => {
            let fixed = body.whole::<layout::Begin>()?;
            Frame::Begin {
                repair: fixed.repair.get(),
                received: fixed.received.get(),
            }
        }
        Kind::Ended => Frame::Ended {
            contexts: body.counted(MAX_ENDED_CONTEXTS)?,
        },
        Kind::End => Frame::End {
            repair: body.whole::<U32>()?.get(),
        },
        Kind::Bye => Frame::Bye {
            session: body.whole::<U32>()?.get(),
        },
    };
    Ok((header, frame))
}

/// `bytes`, if there are `wanted`, neither fewer nor more. `before` bytes of the frame precede them.
pub(super) const fn exactly(
    bytes: &[u8],
    wanted: usize,
    before: usize,
) -> Result<&[u8], DecodeError> {
    if bytes.len() < wanted {
        return Err(DecodeError::TooShort {
            wanted: before + wanted,
            got: before + bytes.len(),
        });
    }
    if bytes.len() > wanted {
        return Err(DecodeError::TrailingBytes {
            extra: bytes.len() - wanted,
        });
    }
    Ok(bytes)
}

/// What follows the header.
#[derive(Clone, Copy)]
struct Body<'a>(&'a [u8]);

impl<'a> Body<'a> {
    /// The fixed part, and the bytes behind it.
    fn start<L>(self) -> Result<(&'a L, &'a [u8]), DecodeError>
    where
        L: FromBytes + Immutable + KnownLayout + Unaligned,
    {
        L::ref_from_prefix(self.0).map_err(|_| DecodeError::TooShort {
            wanted: HEADER_BYTES + size_of::<L>(),
            got: HEADER_BYTES + self.0.len(),
        })
    }

    /// The fixed part, with nothing behind it.
    fn whole<L>(self) -> Result<&'a L, DecodeError>
    where
        L: FromBytes + Immutable + KnownLayout + Unaligned,
    {
        let (fixed, rest) = self.start::<L>()?;
        exactly(rest, 0, HEADER_BYTES + size_of::<L>())?;
        Ok(fixed)
    }

    /// A count and a list of at most `max`.
    fn counted<T: super::Item>(self, max: usize) -> Result<List<'a, T>, DecodeError> {
        let (fixed, rest) = self.start::<layout::Count>()?;
        let before = HEADER_BYTES + size_of::<layout::Count>();
        List::from_wire(rest, fixed.count.get(), max, before)
    }
}

/// A name of `len` bytes that is all of `bytes`.
fn name(bytes: &[u8], len: u8, before: usize) -> Result<Name<'_>, DecodeError> {
    let len = usize::from(len);
    if len > MAX_NAME_BYTES {
        return Err(NameError::TooLong { got: len }.into());
    }
    Ok(Name::from_wire(exactly(bytes, len, before)?)?)
}

fn hello(body: Body<'_>) -> Result<Hello<'_>, DecodeError> {
    // The rest of another version's hello may look different, so its number is judged first.
    let (version, _) = body.start::<zerocopy::little_endian::U16>()?;
    if version.get() != VERSION {
        return Err(DecodeError::BadVersion {
            ours: VERSION,
            got: version.get(),
        });
    }
    let (fixed, rest) = body.start::<layout::Hello>()?;
    let role = match fixed.role {
        1 => Role::Connecting,
        2 => Role::Accepting,
        role => return Err(DecodeError::BadRole { role }),
    };
    Ok(Hello {
        role,
        incarnation: Incarnation(fixed.incarnation.get()),
        session: fixed.session.get(),
        lane: fixed.lane.get(),
        source_lcore: LcoreId(fixed.source_lcore.get()),
        target_lcore: LcoreId(fixed.target_lcore.get()),
        siblings: fixed.siblings.get(),
        lcores: fixed.lcores.get(),
        repair: fixed.repair.get(),
        qp: fixed.qp.get(),
        contexts: fixed.contexts.get(),
        grants: fixed.grants.get(),
        frame_bytes: fixed.frame_bytes.get(),
        receive_depth: fixed.receive_depth.get(),
        messages_per_context: fixed.messages_per_context.get(),
        lane_bytes_cap: fixed.lane_bytes_cap.get(),
        slowest_rate: fixed.slowest_rate.get(),
        fence_timeout_ns: fixed.fence_timeout_ns.get(),
        mac: fixed.mac,
        name: name(
            rest,
            fixed.name_len,
            HEADER_BYTES + size_of::<layout::Hello>(),
        )?,
    })
}

fn lookup(body: Body<'_>) -> Result<Frame<'_>, DecodeError> {
    let (fixed, rest) = body.start::<layout::Lookup>()?;
    Ok(Frame::Lookup {
        request: fixed.request.get(),
        name: name(
            rest,
            fixed.name_len,
            HEADER_BYTES + size_of::<layout::Lookup>(),
        )?,
    })
}

fn lookup_reply(body: Body<'_>, flags: u8) -> Result<Frame<'_>, DecodeError> {
    let fixed = body.whole::<layout::LookupReply>()?;
    let found = Found {
        context: WireContext {
            slot: fixed.slot.get(),
            generation: fixed.generation.get(),
        }
        .on(LcoreId(fixed.lcore.get())),
        credit: fixed.credit.get(),
    };
    let found = if flags & FLAG_FOUND != 0 {
        Some(found)
    } else if found.context.to_bits() == 0 && found.credit == 0 {
        None
    } else {
        return Err(DecodeError::BadReserved);
    };
    Ok(Frame::LookupReply {
        request: fixed.request.get(),
        found,
    })
}

/// Each entry is judged here, so that a list has none that is not sound.
fn grants(body: Body<'_>) -> Result<Frame<'_>, DecodeError> {
    let grants: List<'_, Grant> = body.counted(MAX_GRANTS)?;
    for layout in grants.layouts() {
        if layout.reserved != [0; 3] {
            return Err(DecodeError::BadReserved);
        }
        let rights = layout.rights;
        if rights & !layout::RIGHTS != 0 {
            return Err(DecodeError::BadRights { rights });
        }
    }
    let unsound = grants.iter().find(|grant| !grant.range_is_sound());
    if let Some(Grant { address, len, .. }) = unsound {
        return Err(DecodeError::BadRange { address, len });
    }
    Ok(Frame::Grants { grants })
}

fn revoke(body: Body<'_>, flags: u8) -> Result<Frame<'_>, DecodeError> {
    let (fixed, rest) = body.start::<layout::Revoke>()?;
    let before = HEADER_BYTES + size_of::<layout::Revoke>();
    Ok(Frame::Revoke {
        epoch: Epoch(fixed.epoch.get()),
        last: flags & FLAG_LAST != 0,
        grants: List::from_wire(rest, fixed.count.get(), MAX_REVOKE_GRANTS, before)?,
    })
}

fn context_gone(body: Body<'_>) -> Result<ContextGone, DecodeError> {
    let fixed = body.whole::<layout::ContextGone>()?;
    if fixed.reserved.get() != 0 {
        return Err(DecodeError::BadReserved);
    }
    Ok(ContextGone {
        context: WireContext {
            slot: fixed.slot.get(),
            generation: fixed.generation.get(),
        },
        quarantined_keys: fixed.quarantined_keys.get(),
        quarantined_bytes: fixed.quarantined_bytes.get(),
    })
}
