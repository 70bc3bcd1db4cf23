//! Whoever changes, cuts or lengthens a word on its way is found out.

use super::{BOTH, Lane, known, said, secret};
use crate::session::admission::{Admission, Event};
use crate::session::refusal::JoinRefusal;
use crate::session::words::{Request, WORDS_BYTES};
use crate::wire::{self, Frame, HEADER_BYTES, Header, MAX_CONTROL_BYTES, Role};

#[test]
fn r12_each_bit_of_a_reply_counts() {
    let lane = Lane::first();
    for bit in 0..8 * WORDS_BYTES {
        let mut lane = Lane::new(lane.names, (1, 2));
        let mut reply = lane.reply;
        reply[bit / 8] ^= 1 << (bit % 8);
        let heard = lane.hear_reply(&reply).unwrap_err();
        let expected = match bit / 8 {
            0 | 1 => heard == JoinRefusal::Malformed,
            2 | 3 => matches!(heard, JoinRefusal::Version { .. }),
            _ => heard == JoinRefusal::Unauthenticated,
        };
        assert!(expected, "bit {bit}: {heard:?}");
        // A refusal is final.
        let reply = lane.reply;
        assert_eq!(lane.hear_reply(&reply), Err(JoinRefusal::Malformed));
    }
    for len in (0..WORDS_BYTES).chain([WORDS_BYTES + 1]) {
        let mut lane = Lane::first();
        let mut reply = lane.reply.to_vec();
        reply.resize(len, 0);
        assert_eq!(
            lane.hear_reply(&reply),
            Err(JoinRefusal::Malformed),
            "{len}"
        );
    }
}

/// On its way to the accepting side, so that the two do not mean the same lane.
#[test]
fn r12_each_bit_of_a_request_counts() {
    for bit in 0..8 * WORDS_BYTES {
        let mut lane = Lane::first();
        let mut request = lane.request;
        request[bit / 8] ^= 1 << (bit % 8);
        let Ok(request) = Request::read(&request) else {
            assert!(bit / 8 < 4, "bit {bit}");
            continue;
        };
        let secret = secret(5);
        let right = known(Role::Accepting, &secret);
        // Where that is the bit, one that expects it so.
        let mut accepting = Admission::accepting(request, request.repair.into()).unwrap();
        let (qp, nonce) = (140, [2; 16]);
        let reply = said(accepting.handle(Event::Answer { qp, nonce }, &right));
        let heard = lane.hear_reply(&reply);
        assert_eq!(heard, Err(JoinRefusal::Unauthenticated), "bit {bit}");
        // Nor is the honest hello taken for one on that lane.
        let lane = Lane::first().proven();
        let hello = lane.hello(Role::Connecting);
        let heard = accepting.handle(Event::Hello(&hello), &right);
        assert_eq!(heard, Err(JoinRefusal::Unauthenticated), "bit {bit}");
    }
    for len in (0..WORDS_BYTES).chain([WORDS_BYTES + 1]) {
        let mut request = Lane::first().request.to_vec();
        request.resize(len, 0);
        assert_eq!(Request::read(&request), Err(JoinRefusal::Malformed));
    }
}

#[test]
fn r12_each_bit_of_a_hello_counts() {
    let lane = Lane::first().proven();
    for role in BOTH {
        let mut bytes = [0; MAX_CONTROL_BYTES];
        let frame = Frame::Hello(lane.hello(role));
        let len = wire::encode(&Header::default(), &frame, &mut bytes).unwrap();
        let mut heard = 0;
        for bit in 8 * HEADER_BYTES..8 * len {
            let mut bytes = bytes;
            bytes[bit / 8] ^= 1 << (bit % 8);
            // Others are no hello at all.
            if let Ok((_, Frame::Hello(hello))) = wire::decode(&bytes[..len]) {
                let judged = lane.hear(role, &hello);
                assert_eq!(judged, Err(JoinRefusal::Unauthenticated), "bit {bit}");
                heard += 1;
            }
        }
        assert!(heard > 8 * (len - HEADER_BYTES) - 64, "{heard} bits tried");
    }
}
