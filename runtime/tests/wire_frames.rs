//! The wire frames: each round trip, and that no bytes of a peer's do harm.

#[path = "../fuzz/property.rs"]
mod property;

use keyfence::ids::{ContextId, Epoch, GrantId, Incarnation, LcoreId};
use keyfence::wire::{
    ContextGone, CreditLimit, DecodeError, EncodeError, Found, Frame, Grant, HEADER_BYTES, Header,
    Hello, Kind, List, MAX_CONTROL_BYTES, MAX_CREDIT_LIMITS, MAX_DROPPED_GRANTS,
    MAX_ENDED_CONTEXTS, MAX_GRANTS, MAX_REVOKE_GRANTS, NO_LEASE, Name, Role, WireContext, decode,
    encode,
};
use keyfence_pmd::{Rights, Rkey};
use property::one_encoding_or_refused;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

/// What a frame borrows or holds.
#[derive(Clone, Debug)]
struct Parts {
    name: String,
    grants: Vec<GrantId>,
    limits: Vec<CreditLimit>,
    made: Vec<Grant>,
    contexts: Vec<WireContext>,
    payload: Vec<u8>,
    words: [u64; 5],
    small: [u32; 6],
    bits: [bool; 4],
}

impl Parts {
    fn frame(&self, kind: Kind) -> Frame<'_> {
        let [request, ..] = self.small;
        let [found, ..] = self.bits;
        let epoch = Epoch(self.words[0]);
        let grant = GrantId::from_bits(self.words[0]);
        let grants = |max: usize| List::from(&self.grants[..self.grants.len().min(max)]);
        let name = self.name();
        match kind {
            Kind::Hello => Frame::Hello(self.hello()),
            Kind::Message => Frame::Message(&self.payload),
            Kind::Lookup => Frame::Lookup { request, name },
            Kind::LookupReply => Frame::LookupReply {
                request,
                found: found.then(|| self.found()),
            },
            Kind::Grants => Frame::Grants {
                grants: List::from(&self.made[..]),
            },
            Kind::Revoke => Frame::Revoke {
                epoch,
                last: found,
                grants: grants(MAX_REVOKE_GRANTS),
            },
            Kind::Revoked => Frame::Revoked { epoch },
            Kind::Refused => Frame::Refused { grant },
            Kind::ImportsDropped => Frame::ImportsDropped {
                grants: grants(MAX_DROPPED_GRANTS),
            },
            Kind::Credit => Frame::Credit {
                limits: List::from(&self.limits[..]),
            },
            Kind::ContextGone => Frame::ContextGone(ContextGone {
                context: self.context(),
                quarantined_keys: request,
                quarantined_bytes: self.words[0],
            }),
            Kind::KeepAlive => Frame::KeepAlive { number: request },
            Kind::Begin => Frame::Begin {
                repair: request,
                received: self.small[1],
            },
            Kind::Ended => Frame::Ended {
                contexts: List::from(&self.contexts[..]),
            },
            Kind::End => Frame::End { repair: request },
            Kind::Bye => Frame::Bye { session: request },
            Kind::Landed => Frame::Landed {
                grant,
                immediate: request,
                bytes: self.words[1],
            },
        }
    }

    fn hello(&self) -> Hello<'_> {
        let [session, lane, lcores, frame_bytes, receive_depth, messages] = self.small;
        let [high, low, lane_bytes_cap, slowest_rate, fence_timeout_ns] = self.words;
        let roles = [Role::Accepting, Role::Connecting];
        Hello {
            role: roles[usize::from(self.bits[0])],
            incarnation: Incarnation(u128::from(high) << 64 | u128::from(low)),
            session,
            lane: lane as u16,
            source_lcore: LcoreId(lcores as u16),
            target_lcore: LcoreId((lcores >> 16) as u16),
            siblings: session as u16,
            lcores: lane as u16,
            repair: lcores,
            qp: messages,
            contexts: receive_depth,
            grants: frame_bytes,
            frame_bytes,
            receive_depth,
            messages_per_context: messages,
            lane_bytes_cap,
            slowest_rate,
            fence_timeout_ns,
            mac: (u128::from(low) << 64 | u128::from(high)).to_le_bytes(),
            name: self.name(),
        }
    }

    fn found(&self) -> Found {
        Found {
            context: self.context().on(LcoreId(self.small[3] as u16)),
            credit: self.small[4],
        }
    }

    fn context(&self) -> WireContext {
        WireContext {
            slot: self.small[1] as u16,
            generation: self.small[2],
        }
    }

    fn name(&self) -> Name<'_> {
        Name::new(&self.name).expect("the strategy makes names")
    }
}

fn parts() -> impl Strategy<Value = Parts> {
    let limit = (context(), any::<u32>());
    let limit = limit.prop_map(|(context, limit)| CreditLimit { context, limit });
    (
        // Up to 15 characters of up to four bytes each.
        "[a-zA-Z0-9_.äß漢🦀-]{1,15}",
        vec(any::<u64>().prop_map(GrantId::from_bits), 0..40),
        vec(limit, 0..=MAX_CREDIT_LIMITS),
        vec(grant(), 0..=MAX_GRANTS),
        vec(context(), 0..=MAX_ENDED_CONTEXTS),
        vec(any::<u8>(), 0..600),
        any::<[u64; 5]>(),
        any::<[u32; 6]>(),
        any::<[bool; 4]>(),
    )
        .prop_map(
            |(name, grants, limits, made, contexts, payload, words, small, bits)| Parts {
                name,
                grants,
                limits,
                made,
                contexts,
                payload,
                words,
                small,
                bits,
            },
        )
}

fn grant() -> impl Strategy<Value = Grant> {
    let words = any::<([u64; 4], u32, [bool; 4])>();
    words.prop_map(|([grant, address, len, lease_ns], rkey, bits)| {
        let [forever, read, write, atomic] = bits;
        Grant {
            grant: GrantId::from_bits(grant),
            rkey: Rkey(rkey),
            rights: Rights {
                read,
                write,
                atomic,
            },
            address,
            len: len.clamp(1, (u64::MAX - address).max(1)),
            lease_ns: if forever { NO_LEASE } else { lease_ns },
        }
    })
}

fn context() -> impl Strategy<Value = WireContext> {
    any::<(u16, u32)>().prop_map(|(slot, generation)| WireContext { slot, generation })
}

fn header() -> impl Strategy<Value = Header> {
    (context(), context(), any::<u32>(), any::<u32>()).prop_map(
        |(src, dst, lane_credit, sequence)| Header {
            src,
            dst,
            lane_credit,
            sequence,
        },
    )
}

fn encoded(header: &Header, frame: &Frame<'_>) -> Vec<u8> {
    let mut bytes = vec![0xA5; 1024];
    let len = encode(header, frame, &mut bytes).expect("room for any test frame");
    bytes.truncate(len);
    bytes
}

proptest! {
    #[test]
    fn every_frame_comes_back_as_it_was(header in header(), parts in parts()) {
        for &kind in Kind::ALL {
            let frame = parts.frame(kind);
            let bytes = encoded(&header, &frame);
            prop_assert_eq!(decode(&bytes), Ok((header, frame)));
            prop_assert_eq!(Header::decode(&bytes), Ok((kind, header)));
            prop_assert!(kind == Kind::Message || bytes.len() <= MAX_CONTROL_BYTES);
        }
    }

    /// A message alone has no end of its own.
    #[test]
    fn r12_a_cut_or_longer_frame_is_refused(header in header(), parts in parts(), extra: u8) {
        for &kind in Kind::ALL {
            let mut bytes = encoded(&header, &parts.frame(kind));
            let message = kind == Kind::Message;
            let least = if message { HEADER_BYTES } else { bytes.len() };
            for len in 0..least {
                let refused = decode(&bytes[..len]);
                let short = matches!(refused, Err(DecodeError::TooShort { wanted, got })
                    if got == len && wanted > len);
                prop_assert!(short, "{:?}", refused);
            }
            bytes.push(extra);
            let long = matches!(
                decode(&bytes),
                Err(DecodeError::TrailingBytes { extra: 1 } | DecodeError::BadLength { .. })
            );
            prop_assert_eq!(long, !message);
        }
    }

    #[test]
    fn r12_random_bytes_do_no_harm(bytes in vec(any::<u8>(), 0..400)) {
        let _ = one_encoding_or_refused(&bytes);
    }

    /// Random bytes behind a header that is right, so that each decoder is reached.
    #[test]
    fn r12_random_bodies_do_no_harm(header in header(), body in vec(any::<u8>(), 0..300)) {
        for &kind in Kind::ALL {
            let mut bytes = header.encode_message().to_vec();
            bytes[0] = kind as u8;
            bytes.extend_from_slice(&body);
            let _ = one_encoding_or_refused(&bytes);
        }
    }

    #[test]
    fn r12_damaged_frames_do_no_harm(
        header in header(),
        parts in parts(),
        damage in vec(any::<(Index, u8)>(), 1..4),
    ) {
        for &kind in Kind::ALL {
            let mut bytes = encoded(&header, &parts.frame(kind));
            for (index, value) in &damage {
                let at = index.index(bytes.len());
                bytes[at] = *value;
            }
            let _ = one_encoding_or_refused(&bytes);
        }
    }

    #[test]
    fn a_buffer_too_small_is_left_alone(header in header(), parts in parts(), at: Index) {
        for &kind in Kind::ALL {
            let frame = parts.frame(kind);
            let wanted = encoded(&header, &frame).len();
            let got = at.index(wanted);
            let mut small = vec![0xA5; got];
            let refused = encode(&header, &frame, &mut small);
            prop_assert_eq!(refused, Err(EncodeError::NoRoom { wanted, got }));
            prop_assert!(small.iter().all(|&byte| byte == 0xA5));
        }
    }
}

#[test]
fn a_message_is_a_header_and_its_payload() {
    let header = Header {
        sequence: 9,
        ..Header::default()
    };
    let mut bytes = header.encode_message().to_vec();
    bytes.extend_from_slice(&[7; 1000]);
    assert_eq!(decode(&bytes), Ok((header, Frame::Message(&[7; 1000]))));
}

#[test]
fn a_context_has_its_lcore_from_the_lane() {
    let id = ContextId {
        lcore: LcoreId(3),
        slot: 5,
        generation: 7,
    };
    assert_eq!(WireContext::from(id).on(LcoreId(3)), id);
}
