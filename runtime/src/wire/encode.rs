//! Frames to bytes.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{Immutable, IntoBytes};

use super::header::{FLAG_FOUND, FLAG_LAST};
use super::{
    ContextGone, EncodeError, Found, Frame, Grant, HEADER_BYTES, Header, Hello, Item, Kind, List,
    MAX_CREDIT_LIMITS, MAX_DROPPED_GRANTS, MAX_ENDED_CONTEXTS, MAX_GRANTS, MAX_REVOKE_GRANTS,
    VERSION, layout,
};

/// Writes the frame to the start of `out` and returns its length. [`MAX_CONTROL_BYTES`](super::MAX_CONTROL_BYTES) are enough for
/// each frame but a message.
///
/// # Errors
/// [`EncodeError`] if `out` is too small, a list too long or a grant's range none; `out` is as it was then.
pub fn encode(header: &Header, frame: &Frame<'_>, out: &mut [u8]) -> Result<usize, EncodeError> {
    let put = Put {
        header,
        kind: frame.kind(),
        flags: flags(frame),
        out,
    };
    match frame {
        Frame::Hello(hello) => put.frame(&hello_layout(hello), hello.name.as_str().as_bytes()),
        Frame::Message(payload) => put.frame(&(), payload),
        Frame::Lookup { request, name } => {
            let fixed = layout::Lookup {
                request: (*request).into(),
                name_len: name.wire_len(),
            };
            put.frame(&fixed, name.as_str().as_bytes())
        }
        Frame::LookupReply { request, found } => {
            put.frame(&lookup_reply_layout(*request, *found), &[])
        }
        Frame::Grants { grants } => {
            if let Some(Grant { address, len, .. }) = grants.iter().find(|it| !it.range_is_sound())
            {
                return Err(EncodeError::BadRange { address, len });
            }
            put.counted(grants, MAX_GRANTS)
        }
        Frame::Revoke { epoch, grants, .. } => {
            let fixed = layout::Revoke {
                epoch: epoch.0.into(),
                count: grants.count(MAX_REVOKE_GRANTS)?.into(),
            };
            put.list(&fixed, grants)
        }
        Frame::Revoked { epoch } => put.frame(&U64::new(epoch.0), &[]),
        Frame::Refused { grant } => put.frame(&U64::new(grant.to_bits()), &[]),
        Frame::ImportsDropped { grants } => put.counted(grants, MAX_DROPPED_GRANTS),
        Frame::Credit { limits } => put.counted(limits, MAX_CREDIT_LIMITS),
        Frame::ContextGone(gone) => put.frame(&context_gone_layout(gone), &[]),
        Frame::KeepAlive { number } => put.frame(&U32::new(*number), &[]),
        Frame::Landed {
            grant,
            immediate,
            bytes,
        } => {
            let fixed = layout::Landed {
                grant: grant.to_bits().into(),
                immediate: (*immediate).into(),
                bytes: (*bytes).into(),
            };
            put.frame(&fixed, &[])
        }
        Frame::Begin { repair, received } => {
            let fixed = layout::Begin {
                repair: (*repair).into(),
                received: (*received).into(),
            };
            put.frame(&fixed, &[])
        }
        Frame::Ended { contexts } => put.counted(contexts, MAX_ENDED_CONTEXTS),
        Frame::End { repair } => put.frame(&U32::new(*repair), &[]),
        Frame::Bye { session } => put.frame(&U32::new(*session), &[]),
    }
}

/// A frame on its way into `out`.
struct Put<'a> {
    header: &'a Header,
    kind: Kind,
    flags: u8,
    out: &'a mut [u8],
}

impl Put<'_> {
    fn frame<L: IntoBytes + Immutable>(self, fixed: &L, tail: &[u8]) -> Result<usize, EncodeError> {
        let (len, rest) = self.start(fixed, tail.len())?;
        rest.copy_from_slice(tail);
        Ok(len)
    }

    fn list<L, T>(self, fixed: &L, list: &List<'_, T>) -> Result<usize, EncodeError>
    where
        L: IntoBytes + Immutable,
        T: Item,
    {
        let (len, rest) = self.start(fixed, list.bytes())?;
        list.write(rest);
        Ok(len)
    }

    fn counted<T: Item>(self, list: &List<'_, T>, max: usize) -> Result<usize, EncodeError> {
        let fixed = layout::Count {
            count: list.count(max)?.into(),
        };
        self.list(&fixed, list)
    }
}

impl<'a> Put<'a> {
    /// Writes header and fixed part; gives the frame's length and the `tail` bytes that follow.
    fn start<L>(self, fixed: &L, tail: usize) -> Result<(usize, &'a mut [u8]), EncodeError>
    where
        L: IntoBytes + Immutable,
    {
        let len = HEADER_BYTES + size_of::<L>() + tail;
        let got = self.out.len();
        let no_room = EncodeError::NoRoom { wanted: len, got };
        let out = self.out.get_mut(..len).ok_or(no_room)?;
        let (head, rest) = out.split_at_mut(HEADER_BYTES);
        let (middle, rest) = rest.split_at_mut(size_of::<L>());
        head.copy_from_slice(self.header.layout(self.kind, self.flags).as_bytes());
        middle.copy_from_slice(fixed.as_bytes());
        Ok((len, rest))
    }
}

const fn flags(frame: &Frame<'_>) -> u8 {
    match frame {
        Frame::Revoke { last: true, .. } => FLAG_LAST,
        Frame::LookupReply { found: Some(_), .. } => FLAG_FOUND,
        _ => 0,
    }
}

fn hello_layout(hello: &Hello<'_>) -> layout::Hello {
    layout::Hello {
        version: VERSION.into(),
        role: hello.role as u8,
        name_len: hello.name.wire_len(),
        session: hello.session.into(),
        incarnation: hello.incarnation.0.into(),
        lane: hello.lane.into(),
        source_lcore: hello.source_lcore.0.into(),
        target_lcore: hello.target_lcore.0.into(),
        siblings: hello.siblings.into(),
        lcores: hello.lcores.into(),
        repair: hello.repair.into(),
        qp: hello.qp.into(),
        contexts: hello.contexts.into(),
        grants: hello.grants.into(),
        frame_bytes: hello.frame_bytes.into(),
        receive_depth: hello.receive_depth.into(),
        messages_per_context: hello.messages_per_context.into(),
        lane_bytes_cap: hello.lane_bytes_cap.into(),
        slowest_rate: hello.slowest_rate.into(),
        fence_timeout_ns: hello.fence_timeout_ns.into(),
        mac: hello.mac,
    }
}

fn lookup_reply_layout(request: u32, found: Option<Found>) -> layout::LookupReply {
    let (lcore, slot, generation, credit) = match found {
        Some(Found { context, credit }) => {
            (context.lcore.0, context.slot, context.generation, credit)
        }
        None => (0, 0, 0, 0),
    };
    layout::LookupReply {
        request: request.into(),
        lcore: lcore.into(),
        slot: slot.into(),
        generation: generation.into(),
        credit: credit.into(),
    }
}

fn context_gone_layout(gone: &ContextGone) -> layout::ContextGone {
    layout::ContextGone {
        slot: gone.context.slot.into(),
        reserved: 0.into(),
        generation: gone.context.generation.into(),
        quarantined_keys: gone.quarantined_keys.into(),
        quarantined_bytes: gone.quarantined_bytes.into(),
    }
}
