//! Writes the seeds of the corpus: a frame of each kind (`ok-*`), and frames that are refused, each for another reason
//! (`bad-*`). To be run in this folder, after a change of the format.

use std::{fs, io, path::Path};

use keyfence::ids::{ContextId, Epoch, GrantId, Incarnation, LcoreId};
use keyfence::wire::{
    ContextGone, CreditLimit, Found, Frame, Grant, HEADER_BYTES, Header, Hello, List,
    MAX_CONTROL_BYTES, MAX_ENDED_CONTEXTS, MAX_GRANTS, NO_LEASE, Name, Role, WireContext, encode,
};

fn main() -> io::Result<()> {
    let folder = Path::new("corpus/wire_frame");
    fs::create_dir_all(folder)?;
    for (name, bytes) in [sound(), of_a_repair(), refused()].concat() {
        fs::write(folder.join(name), bytes)?;
    }
    Ok(())
}

const CONTEXT: WireContext = WireContext {
    slot: 3,
    generation: 9,
};

fn encoded(frame: &Frame<'_>) -> Vec<u8> {
    let header = Header {
        src: CONTEXT,
        dst: WireContext::default(),
        lane_credit: 64,
        sequence: 1,
    };
    let mut bytes = vec![0; MAX_CONTROL_BYTES];
    let len = encode(&header, frame, &mut bytes).expect("a seed is a sound control frame");
    bytes.truncate(len);
    bytes
}

fn hello() -> Frame<'static> {
    Frame::Hello(Hello {
        role: Role::Connecting,
        incarnation: Incarnation(0x0123_4567_89AB_CDEF),
        session: 1,
        lane: 0,
        source_lcore: LcoreId(0),
        target_lcore: LcoreId(1),
        siblings: 2,
        lcores: 2,
        repair: 0,
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
    })
}

/// One grant, or several that are alike.
fn grants(count: usize) -> Vec<u8> {
    let grant = Grant {
        grant: GrantId::from_bits(7),
        rkey: keyfence_pmd::Rkey(0x0102),
        rights: keyfence_pmd::Rights::READ_WRITE,
        address: 0x7F00_0000_0000,
        len: 4096,
        lease_ns: NO_LEASE,
    };
    let grants = vec![grant; count];
    encoded(&Frame::Grants {
        grants: List::from(&grants[..]),
    })
}

fn contexts(count: usize) -> Vec<u8> {
    let contexts = vec![CONTEXT; count];
    encoded(&Frame::Ended {
        contexts: List::from(&contexts[..]),
    })
}

/// What a lane begins with that repairs another.
fn of_a_repair() -> Vec<(&'static str, Vec<u8>)> {
    let (repair, received) = (1, 1000);
    vec![
        ("ok-begin", encoded(&Frame::Begin { repair, received })),
        ("ok-contexts-none", contexts(0)),
        ("ok-contexts", contexts(1)),
        ("ok-contexts-full", contexts(MAX_ENDED_CONTEXTS)),
        ("ok-end", encoded(&Frame::End { repair })),
    ]
}

fn sound() -> Vec<(&'static str, Vec<u8>)> {
    let names = [GrantId::from_bits(7), GrantId::from_bits(1 << 32 | 8)];
    let limit = CreditLimit {
        context: CONTEXT,
        limit: 16,
    };
    let found = Found {
        context: ContextId {
            lcore: LcoreId(1),
            slot: 3,
            generation: 9,
        },
        credit: 16,
    };
    let name = Name::new("store").expect("a name");
    let names = List::from(&names[..]);
    let limits = [limit; 2];
    let gone = ContextGone {
        context: CONTEXT,
        quarantined_keys: 1,
        quarantined_bytes: 4096,
    };
    let reply = |found| Frame::LookupReply { request: 1, found };
    let revoke = |last| Frame::Revoke {
        epoch: Epoch(5),
        last,
        grants: names,
    };
    let limits = List::from(&limits[..]);
    vec![
        ("ok-hello", encoded(&hello())),
        ("ok-message", encoded(&Frame::Message(b"payload"))),
        ("ok-message-empty", encoded(&Frame::Message(b""))),
        ("ok-lookup", encoded(&Frame::Lookup { request: 1, name })),
        ("ok-lookup-found", encoded(&reply(Some(found)))),
        ("ok-lookup-nothing", encoded(&reply(None))),
        ("ok-grants-none", grants(0)),
        ("ok-grants", grants(1)),
        ("ok-grants-full", grants(MAX_GRANTS)),
        ("ok-revoke", encoded(&revoke(false))),
        ("ok-revoke-last", encoded(&revoke(true))),
        ("ok-revoked", encoded(&Frame::Revoked { epoch: Epoch(5) })),
        (
            "ok-refused",
            encoded(&Frame::Refused {
                grant: GrantId::from_bits(7),
            }),
        ),
        (
            "ok-imports-dropped",
            encoded(&Frame::ImportsDropped { grants: names }),
        ),
        ("ok-credit", encoded(&Frame::Credit { limits })),
        ("ok-context-gone", encoded(&Frame::ContextGone(gone))),
        ("ok-keep-alive", encoded(&Frame::KeepAlive { number: 1 })),
        ("ok-bye", encoded(&Frame::Bye { session: 1 })),
        (
            "ok-landed",
            encoded(&Frame::Landed {
                grant: GrantId {
                    slot: 3,
                    generation: 4,
                },
                immediate: 5,
                bytes: 6,
            }),
        ),
    ]
}

fn refused() -> Vec<(&'static str, Vec<u8>)> {
    let hello = || encoded(&hello());
    // The first one's fields stand behind the count.
    let grant = HEADER_BYTES + 2;
    let dropped = encoded(&Frame::ImportsDropped {
        grants: List::from(&[][..]),
    });
    let with = |mut bytes: Vec<u8>, at: usize, byte: u8| {
        bytes[at] = byte;
        bytes
    };
    let cut = |bytes: Vec<u8>, len: usize| bytes[..len].to_vec();
    let longer = |mut bytes: Vec<u8>, len: usize| {
        bytes.resize(len, 0);
        bytes
    };
    let bye = || encoded(&Frame::Bye { session: 1 });
    vec![
        ("bad-empty", Vec::new()),
        ("bad-cut-header", cut(bye(), HEADER_BYTES - 1)),
        ("bad-cut-body", cut(grants(1), grant + 11)),
        ("bad-cut-name", cut(hello(), hello().len() - 1)),
        ("bad-length", longer(bye(), MAX_CONTROL_BYTES + 1)),
        ("bad-trailing-byte", longer(bye(), bye().len() + 1)),
        ("bad-kind", with(bye(), 0, 0)),
        ("bad-flags", with(bye(), 1, 1)),
        ("bad-reserved", with(bye(), 6, 1)),
        ("bad-version", with(hello(), HEADER_BYTES, 0xFF)),
        ("bad-role", with(hello(), HEADER_BYTES + 2, 0)),
        ("bad-name-too-long", with(hello(), HEADER_BYTES + 3, 0xFF)),
        ("bad-name-not-utf8", with(hello(), hello().len() - 1, 0xFF)),
        ("bad-rights", with(grants(1), grant + 12, 0x80)),
        ("bad-range-of-none", with(grants(1), grant + 25, 0)),
        ("bad-cut-contexts", cut(contexts(2), grant + 11)),
        ("bad-list-too-long", with(dropped, HEADER_BYTES + 1, 0xFF)),
    ]
}
