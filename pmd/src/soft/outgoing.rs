//! Turning work requests into request slots and their payload.

use super::keys::Refused;
use super::memory::Memory;
use super::stream::Outbound;
use super::wire::{PAYLOAD_WORDS, Request, RequestOp, SLOT_PAYLOAD_BYTES, pack};
use crate::ids::{PdId, Rkey};
use crate::work::{Sge, WorkOp, WorkRequest};

/// Where the bytes of a message are.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Source<'a> {
    List(PdId, &'a [Sge]),
    /// Taken at the post; may be longer than the message.
    Private(&'a [u8]),
}

/// The part of a message that one slot carries.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slice<'a> {
    pub(crate) source: Source<'a>,
    pub(crate) skip: usize,
    pub(crate) len: usize,
}

/// The request of a write or send of `len` bytes; `None` for other operations.
#[inline(always)]
pub(crate) fn message(work: &WorkRequest, len: u32) -> Option<Request> {
    let (op, address, rkey, immediate) = match work.op {
        WorkOp::Write { remote, immediate } => {
            (RequestOp::Write, remote.address, remote.rkey, immediate)
        }
        WorkOp::Send { immediate } => (RequestOp::Send, 0, Rkey(0), immediate),
        _ => return None,
    };
    Some(Request {
        op,
        len,
        address,
        rkey,
        immediate,
        prompt: work.signaled,
        payload: [0; PAYLOAD_WORDS],
    })
}

/// The request of a read or an atomic of `len` bytes.
pub(crate) fn question(work: &WorkRequest, len: u32) -> Request {
    let mut payload = [0; PAYLOAD_WORDS];
    let (op, remote) = match work.op {
        WorkOp::Read { remote } => (RequestOp::Read, remote),
        WorkOp::FetchAdd { remote, add } => {
            payload[0] = add;
            (RequestOp::FetchAdd, remote)
        }
        WorkOp::CompareSwap {
            remote,
            expected,
            desired,
        } => {
            payload[..2].copy_from_slice(&[expected, desired]);
            (RequestOp::CompareSwap, remote)
        }
        _ => unreachable!("{:?} asks nothing of the peer", work.op),
    };
    Request {
        op,
        len,
        address: remote.address,
        rkey: remote.rkey,
        immediate: None,
        prompt: true,
        payload,
    }
}

/// Bytes of the chunk ring that a slice of `len` bytes takes: none if the whole operation fits in its slot.
#[inline]
pub(crate) const fn chunk_bytes(whole: usize, len: usize) -> usize {
    if whole <= SLOT_PAYLOAD_BYTES { 0 } else { len }
}

/// Writes the slot of one slice, with its payload. The caller has checked room.
#[inline(always)]
pub(crate) fn put_slice(
    memory: &mut Memory<'_>,
    out: &mut Outbound,
    mut request: Request,
    slice: Slice<'_>,
) -> Result<(), Refused> {
    let Slice { source, skip, len } = slice;
    let whole = request.len as usize;
    let in_chunk = chunk_bytes(whole, len);
    if in_chunk == 0 {
        let mut private = [0; SLOT_PAYLOAD_BYTES];
        match source {
            Source::List(pd, sges) => memory.gather_private((pd, sges), len, &mut private)?,
            Source::Private(bytes) => private[..len].copy_from_slice(&bytes[..len]),
        }
        request.payload = pack(&private);
    } else {
        let chunk = out.chunk(len);
        match source {
            Source::List(pd, sges) => memory.gather((pd, sges), skip, len, chunk)?,
            Source::Private(bytes) => chunk.write_bytes(0, &bytes[skip..skip + len]),
        }
        // The room of a long message is needed again soon.
        request.prompt |= skip + len < whole;
    }
    if skip > 0 {
        request.op = RequestOp::More;
        request.len = len as u32;
        request.immediate = None;
    }
    memory.spend(len);
    out.write(request.encode(), in_chunk);
    Ok(())
}
