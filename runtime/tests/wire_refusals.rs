//! The wire format byte by byte: what is fixed, and what is refused with which error.

use keyfence::ids::{Epoch, GrantId, Incarnation, LcoreId};
use keyfence::wire::{
    DecodeError, EncodeError, Frame, Grant, HEADER_BYTES, Header, Hello, Kind, List,
    MAX_CONTROL_BYTES, MAX_CREDIT_LIMITS, MAX_DROPPED_GRANTS, MAX_ENDED_CONTEXTS, MAX_GRANTS,
    MAX_REVOKE_GRANTS, Name, NameError, Role, VERSION, WireContext, decode, encode,
};
use keyfence_pmd::{Rights, Rkey};

fn encoded(frame: &Frame<'_>) -> Vec<u8> {
    let mut bytes = vec![0; MAX_CONTROL_BYTES];
    let len = encode(&Header::default(), frame, &mut bytes).expect("a sound control frame");
    bytes.truncate(len);
    bytes
}

fn keep_alive() -> Vec<u8> {
    encoded(&Frame::KeepAlive { number: 1 })
}

fn hello() -> Vec<u8> {
    encoded(&Frame::Hello(Hello {
        role: Role::Connecting,
        incarnation: Incarnation(1),
        session: 2,
        lane: 3,
        source_lcore: LcoreId(4),
        target_lcore: LcoreId(5),
        siblings: 2,
        lcores: 2,
        repair: 9,
        qp: 6,
        contexts: 128,
        grants: 64,
        frame_bytes: 4096,
        receive_depth: 64,
        messages_per_context: 8,
        lane_bytes_cap: 1 << 20,
        slowest_rate: 1 << 28,
        fence_timeout_ns: 20_000_000,
        mac: [7; 16],
        name: Name::new("left").expect("a name"),
    }))
}

/// `bytes` with one byte changed.
fn with(mut bytes: Vec<u8>, at: usize, byte: u8) -> Vec<u8> {
    bytes[at] = byte;
    bytes
}

/// The layout is a promise to other builds: these bytes may change only together with `VERSION`.
#[test]
fn the_layout_is_fixed() {
    let header = Header {
        src: WireContext {
            slot: 0x0102,
            generation: 0x0304_0506,
        },
        dst: WireContext {
            slot: 0x0708,
            generation: 0x090A_0B0C,
        },
        lane_credit: 0x0D0E_0F10,
        sequence: 0x1112_1314,
    };
    let grants = [GrantId {
        slot: 0x2122_2324,
        generation: 0x2526_2728,
    }];
    let frame = Frame::Revoke {
        epoch: Epoch(0x3132_3334_3536_3738),
        last: true,
        grants: List::from(&grants[..]),
    };
    let mut bytes = [0; MAX_CONTROL_BYTES];
    let len = encode(&header, &frame, &mut bytes).expect("a sound frame");
    #[rustfmt::skip]
    let wanted = [
        6, 1, 2, 1, 8, 7, 0, 0, 6, 5, 4, 3, 0xC, 0xB, 0xA, 9, 0x10, 0xF, 0xE, 0xD, 0x14, 0x13, 0x12, 0x11,
        0x38, 0x37, 0x36, 0x35, 0x34, 0x33, 0x32, 0x31,
        1, 0,
        0x28, 0x27, 0x26, 0x25, 0x24, 0x23, 0x22, 0x21,
    ];
    assert_eq!(bytes[..len], wanted);
    let capacities = [
        MAX_GRANTS,
        MAX_REVOKE_GRANTS,
        MAX_DROPPED_GRANTS,
        MAX_CREDIT_LIMITS,
        MAX_ENDED_CONTEXTS,
    ];
    assert_eq!(
        (VERSION, HEADER_BYTES, capacities),
        (4, 24, [12, 59, 60, 48, 81])
    );
}

#[test]
fn the_layout_of_what_begins_a_repair_is_fixed() {
    let context = |slot, generation| WireContext { slot, generation };
    let contexts = [context(0x0102, 0x0304_0506), context(0x0708, 0x090A_0B0C)];
    let begin = Frame::Begin {
        repair: 0x0102_0304,
        received: 0x0506_0708,
    };
    let list = Frame::Ended {
        contexts: List::from(&contexts[..]),
    };
    let end = Frame::End {
        repair: 0x0102_0304,
    };
    let bodies: [(Frame<'_>, u8, &[u8]); 3] = [
        (begin, 15, &[4, 3, 2, 1, 8, 7, 6, 5]),
        (list, 16, &[2, 0, 2, 1, 6, 5, 4, 3, 8, 7, 0xC, 0xB, 0xA, 9]),
        (end, 17, &[4, 3, 2, 1]),
    ];
    for (frame, kind, body) in bodies {
        let bytes = encoded(&frame);
        assert_eq!((bytes[0], &bytes[HEADER_BYTES..]), (kind, body));
    }
    // At both ends no more than fit.
    let (max, got) = (MAX_ENDED_CONTEXTS, MAX_ENDED_CONTEXTS + 1);
    let many = vec![context(1, 1); got];
    let many = Frame::Ended {
        contexts: List::from(&many[..]),
    };
    let refused = encode(&Header::default(), &many, &mut [0; 1024]);
    assert_eq!(refused, Err(EncodeError::ListTooLong { max, got }));
    let bytes = with(encoded(&list), HEADER_BYTES, got as u8);
    assert_eq!(decode(&bytes), Err(DecodeError::ListTooLong { max, got }));
}

#[test]
fn lists_past_the_frame_are_refused_at_both_ends() {
    let revoke = |count: usize| {
        let grants = vec![GrantId::from_bits(1); count];
        let frame = Frame::Revoke {
            epoch: Epoch(1),
            last: true,
            grants: List::from(&grants[..]),
        };
        encode(&Header::default(), &frame, &mut [0; MAX_CONTROL_BYTES])
    };
    let max = MAX_REVOKE_GRANTS;
    assert_eq!(revoke(max), Ok(HEADER_BYTES + 10 + 8 * max));
    for got in [max + 1, 65_536 + max] {
        assert_eq!(revoke(got), Err(EncodeError::ListTooLong { max, got }));
    }

    let mut bytes = encoded(&Frame::ImportsDropped {
        grants: List::from(&[][..]),
    });
    bytes[HEADER_BYTES..].copy_from_slice(&u16::MAX.to_le_bytes());
    let too_long = DecodeError::ListTooLong {
        max: MAX_DROPPED_GRANTS,
        got: 65_535,
    };
    assert_eq!(decode(&bytes), Err(too_long));
}

#[test]
fn r12_unknown_kinds_are_refused() {
    let known = |byte: u8| Kind::ALL.iter().any(|kind| *kind as u8 == byte);
    for kind in (0..=u8::MAX).filter(|byte| !known(*byte)) {
        let bytes = with(keep_alive(), 0, kind);
        assert_eq!(decode(&bytes), Err(DecodeError::UnknownKind { kind }));
    }
}

#[test]
fn r12_flags_and_reserved_fields_must_mean_something() {
    let bad_flags = DecodeError::BadFlags {
        allowed: 0,
        flags: 0x80,
    };
    assert_eq!(decode(&with(keep_alive(), 1, 0x80)), Err(bad_flags));
    for reserved in [6, 7] {
        let bytes = with(keep_alive(), reserved, 1);
        assert_eq!(decode(&bytes), Err(DecodeError::BadReserved));
    }
    // A reply that found nothing says nothing about a context.
    let nothing = Frame::LookupReply {
        request: 1,
        found: None,
    };
    let bytes = encoded(&nothing);
    assert_eq!(decode(&bytes).map(|(_, frame)| frame), Ok(nothing));
    for at in HEADER_BYTES + 4..bytes.len() {
        let bytes = with(bytes.clone(), at, 1);
        assert_eq!(decode(&bytes), Err(DecodeError::BadReserved));
    }
}

#[test]
fn r12_a_control_frame_has_a_bound() {
    let bad_length = DecodeError::BadLength {
        max: MAX_CONTROL_BYTES,
        got: MAX_CONTROL_BYTES + 1,
    };
    let bytes = with(vec![0; MAX_CONTROL_BYTES + 1], 0, Kind::Hello as u8);
    assert_eq!(decode(&bytes), Err(bad_length));
}

#[test]
fn r12_a_hello_of_another_version_says_so_whatever_follows() {
    let bytes = with(hello(), HEADER_BYTES, 5);
    let other = DecodeError::BadVersion { ours: 4, got: 5 };
    assert_eq!(decode(&bytes), Err(other));
    assert_eq!(decode(&bytes[..HEADER_BYTES + 2]), Err(other));
}

#[test]
fn r12_roles_and_names_are_checked() {
    let bytes = with(hello(), HEADER_BYTES + 2, 3);
    assert_eq!(decode(&bytes), Err(DecodeError::BadRole { role: 3 }));

    let name_at = hello().len() - "left".len();
    for (byte, error) in [(0xFF, NameError::NotUtf8), (b'\n', NameError::Control)] {
        let bytes = with(hello(), name_at, byte);
        assert_eq!(decode(&bytes), Err(DecodeError::BadName(error)));
    }
    let too_long = NameError::TooLong { got: 64 };
    let bytes = with(hello(), HEADER_BYTES + 3, 64);
    assert_eq!(decode(&bytes), Err(DecodeError::BadName(too_long)));
    let empty = &with(hello(), HEADER_BYTES + 3, 0)[..name_at];
    assert_eq!(decode(empty), Err(DecodeError::BadName(NameError::Empty)));

    assert_eq!(Name::new(&"x".repeat(64)), Err(too_long));
    assert!(Name::new(&"x".repeat(63)).is_ok());
}

#[test]
fn r12_a_grant_has_known_rights_and_a_sound_range() {
    let address = u64::MAX - 7;
    let grant = Grant {
        grant: GrantId::from_bits(1),
        rkey: Rkey(2),
        rights: Rights::READ,
        address,
        len: 8,
        lease_ns: 1,
    };
    // Each of a list is judged, also the last one.
    let good = [grant; MAX_GRANTS];
    fn granting(grants: List<'_, Grant>) -> Frame<'_> {
        Frame::Grants { grants }
    }
    let bytes = encoded(&granting(List::from(&good[..])));
    assert_eq!(
        decode(&bytes).map(|(_, frame)| frame),
        Ok(granting(List::from(&good[..])))
    );

    let len_at = bytes.len() - 16;
    for len in [0, 9, u64::MAX] {
        let bad = [grant, Grant { len, ..grant }];
        let bad = granting(List::from(&bad[..]));
        let refused = encode(&Header::default(), &bad, &mut [0; MAX_CONTROL_BYTES]);
        assert_eq!(refused, Err(EncodeError::BadRange { address, len }));
        let mut bytes = bytes.clone();
        bytes[len_at..len_at + 8].copy_from_slice(&len.to_le_bytes());
        assert_eq!(decode(&bytes), Err(DecodeError::BadRange { address, len }));
    }
    let rights_at = bytes.len() - 28;
    let unknown = with(bytes.clone(), rights_at, 8);
    assert_eq!(decode(&unknown), Err(DecodeError::BadRights { rights: 8 }));
    let reserved = with(bytes, rights_at + 1, 1);
    assert_eq!(decode(&reserved), Err(DecodeError::BadReserved));
    let many = [grant; MAX_GRANTS + 1];
    let many = granting(List::from(&many[..]));
    let refused = encode(&Header::default(), &many, &mut [0; 1024]);
    let (max, got) = (MAX_GRANTS, MAX_GRANTS + 1);
    assert_eq!(refused, Err(EncodeError::ListTooLong { max, got }));
}
