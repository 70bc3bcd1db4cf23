//! What crosses a queue pair's segment: the encoding of a request and of a response in one slot of eight words.
//!
//! Word 0 is the slot's header; its upper 16 bits are the ring's sequence, so 48 are left: operation (8), flags (8), length (32).
//! Word 1 is an address or a request's number, word 2 a key with the immediate data above it, words 3 to 7 are 40 bytes of payload.
//! Everything decoded here was written by somebody else: an unknown operation or flag is [`Malformed`], never a panic.

use crate::completion::WcStatus;
use crate::ids::Rkey;

/// Words of a slot behind its header.
pub(crate) const BODY_WORDS: usize = 7;
/// Words of a slot that hold payload.
pub(crate) const PAYLOAD_WORDS: usize = 5;
/// Payload up to this many bytes crosses in the slot itself, longer payload in the chunk ring.
pub(crate) const SLOT_PAYLOAD_BYTES: usize = PAYLOAD_WORDS * 8;

const FLAG_IMMEDIATE: u64 = 1;
const FLAG_PROMPT: u64 = 2;

/// A slot that no correct peer would have written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Malformed;

/// What a request slot asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum RequestOp {
    Write = 1,
    Send = 2,
    Read = 3,
    FetchAdd = 4,
    CompareSwap = 5,
    /// The next slice of the write or send before it.
    More = 6,
}

/// A request, or a further slice of one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Request {
    pub(crate) op: RequestOp,
    /// Bytes of the whole operation; of this slice for [`RequestOp::More`].
    pub(crate) len: u32,
    pub(crate) address: u64,
    pub(crate) rkey: Rkey,
    pub(crate) immediate: Option<u32>,
    /// The requester waits for the acknowledgement of this one.
    pub(crate) prompt: bool,
    pub(crate) payload: [u64; PAYLOAD_WORDS],
}

impl Request {
    #[inline(always)]
    pub(crate) fn encode(&self) -> (u64, [u64; BODY_WORDS]) {
        let mut flags = 0;
        if self.immediate.is_some() {
            flags |= FLAG_IMMEDIATE;
        }
        if self.prompt {
            flags |= FLAG_PROMPT;
        }
        let key = u64::from(self.rkey.0) | u64::from(self.immediate.unwrap_or(0)) << 32;
        (
            header(self.op as u8, flags, self.len),
            body(self.address, key, &self.payload),
        )
    }

    #[inline(always)]
    pub(crate) fn decode(slot: &[u64; 8]) -> Result<Self, Malformed> {
        let op = match slot[0] as u8 {
            1 => RequestOp::Write,
            2 => RequestOp::Send,
            3 => RequestOp::Read,
            4 => RequestOp::FetchAdd,
            5 => RequestOp::CompareSwap,
            6 => RequestOp::More,
            _ => return Err(Malformed),
        };
        let flags = flags(slot);
        let takes_immediate = matches!(op, RequestOp::Write | RequestOp::Send);
        if flags & !(FLAG_IMMEDIATE | FLAG_PROMPT) != 0
            || (flags & FLAG_IMMEDIATE != 0 && !takes_immediate)
        {
            return Err(Malformed);
        }
        Ok(Self {
            op,
            len: len(slot),
            address: slot[1],
            rkey: Rkey(slot[2] as u32),
            immediate: (flags & FLAG_IMMEDIATE != 0).then_some((slot[2] >> 32) as u32),
            prompt: flags & FLAG_PROMPT != 0,
            payload: payload(slot),
        })
    }
}

/// Why a responder refused a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Refusal {
    Access = 1,
    Invalid = 2,
    Failed = 3,
}

impl Refusal {
    /// How the requester reports it.
    pub(crate) fn status(self) -> WcStatus {
        match self {
            Self::Access => WcStatus::RemoteAccess,
            Self::Invalid => WcStatus::RemoteInvalidRequest,
            Self::Failed => WcStatus::RemoteOperation,
        }
    }
}

/// What a response slot carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Answer {
    /// The next `len` bytes of a read; up to [`SLOT_PAYLOAD_BYTES`] of them in the slot.
    Data { len: u32 },
    /// The former value of an atomic.
    Former { value: u64 },
    /// The request is refused, and both queue pairs are in error.
    Refused(Refusal),
}

/// A response to the request of this number (requests are counted from 0 on each direction of a queue pair).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Response {
    pub(crate) request: u64,
    pub(crate) answer: Answer,
    pub(crate) payload: [u64; PAYLOAD_WORDS],
}

impl Response {
    #[inline]
    pub(crate) fn encode(&self) -> (u64, [u64; BODY_WORDS]) {
        let (op, len, value) = match self.answer {
            Answer::Data { len } => (1, len, 0),
            Answer::Former { value } => (2, 8, value),
            Answer::Refused(refusal) => (3, 0, refusal as u64),
        };
        (header(op, 0, len), body(self.request, value, &self.payload))
    }

    #[inline]
    pub(crate) fn decode(slot: &[u64; 8]) -> Result<Self, Malformed> {
        if flags(slot) != 0 {
            return Err(Malformed);
        }
        let answer = match (slot[0] as u8, slot[2]) {
            (1, _) => Answer::Data { len: len(slot) },
            (2, value) => Answer::Former { value },
            (3, 1) => Answer::Refused(Refusal::Access),
            (3, 2) => Answer::Refused(Refusal::Invalid),
            (3, 3) => Answer::Refused(Refusal::Failed),
            _ => return Err(Malformed),
        };
        Ok(Self {
            request: slot[1],
            answer,
            payload: payload(slot),
        })
    }
}

/// The words of up to 40 bytes.
#[inline]
pub(crate) fn pack(bytes: &[u8; SLOT_PAYLOAD_BYTES]) -> [u64; PAYLOAD_WORDS] {
    let mut words = [0; PAYLOAD_WORDS];
    for (word, eight) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
        *word = u64::from_ne_bytes(*eight);
    }
    words
}

/// The bytes of five words.
#[inline]
pub(crate) fn unpack(words: &[u64; PAYLOAD_WORDS]) -> [u8; SLOT_PAYLOAD_BYTES] {
    let mut bytes = [0; SLOT_PAYLOAD_BYTES];
    for (eight, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *eight = word.to_ne_bytes();
    }
    bytes
}

#[inline]
fn header(op: u8, flags: u64, len: u32) -> u64 {
    u64::from(op) | flags << 8 | u64::from(len) << 16
}

#[inline]
fn flags(slot: &[u64; 8]) -> u64 {
    slot[0] >> 8 & 0xff
}

#[inline]
fn len(slot: &[u64; 8]) -> u32 {
    (slot[0] >> 16) as u32
}

#[inline]
fn body(first: u64, second: u64, payload: &[u64; PAYLOAD_WORDS]) -> [u64; BODY_WORDS] {
    let [a, b, c, d, e] = *payload;
    [first, second, a, b, c, d, e]
}

#[inline]
fn payload(slot: &[u64; 8]) -> [u64; PAYLOAD_WORDS] {
    [slot[3], slot[4], slot[5], slot[6], slot[7]]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn slot((header, body): (u64, [u64; BODY_WORDS]), lap: u16) -> [u64; 8] {
        let mut slot = [0; 8];
        slot[0] = header | u64::from(lap) << 48;
        slot[1..].copy_from_slice(&body);
        slot
    }

    proptest! {
        #[test]
        fn a_request_survives_the_slot_and_any_lap(
            op in 1u8..=6, len: u32, address: u64, rkey: u32, immediate: Option<u32>, prompt: bool,
            payload: [u64; PAYLOAD_WORDS], lap: u16,
        ) {
            let op = [RequestOp::Write, RequestOp::Send, RequestOp::Read, RequestOp::FetchAdd, RequestOp::CompareSwap,
                RequestOp::More][op as usize - 1];
            let immediate = immediate.filter(|_| matches!(op, RequestOp::Write | RequestOp::Send));
            let request = Request { op, len, address, rkey: Rkey(rkey), immediate, prompt, payload };
            prop_assert_eq!(Request::decode(&slot(request.encode(), lap)), Ok(request));
        }

        #[test]
        fn any_slot_decodes_or_is_malformed(words: [u64; 8]) {
            if let Ok(request) = Request::decode(&words) {
                prop_assert_eq!(request.len, (words[0] >> 16) as u32);
            }
            if let Ok(response) = Response::decode(&words) {
                prop_assert_eq!(response.request, words[1]);
            }
        }

        #[test]
        fn packed_payload_unpacks(bytes: [u8; SLOT_PAYLOAD_BYTES]) {
            prop_assert_eq!(unpack(&pack(&bytes)), bytes);
        }
    }

    #[test]
    fn each_answer_survives_the_slot() {
        let answers = [
            Answer::Data { len: 7 },
            Answer::Former { value: u64::MAX },
            Answer::Refused(Refusal::Access),
            Answer::Refused(Refusal::Invalid),
            Answer::Refused(Refusal::Failed),
        ];
        for answer in answers {
            let response = Response {
                request: 1 << 40,
                answer,
                payload: [1, 2, 3, 4, 5],
            };
            assert_eq!(Response::decode(&slot(response.encode(), 9)), Ok(response));
        }
    }

    #[test]
    fn empty_and_unknown_slots_are_malformed() {
        assert_eq!(Request::decode(&[0; 8]), Err(Malformed));
        assert_eq!(Response::decode(&[0; 8]), Err(Malformed));
        assert_eq!(
            Request::decode(&slot((header(3, FLAG_IMMEDIATE, 1), [0; 7]), 1)),
            Err(Malformed)
        );
        assert_eq!(
            Response::decode(&slot((header(3, 0, 0), [0; 7]), 1)),
            Err(Malformed)
        );
    }
}
