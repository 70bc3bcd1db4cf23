//! The words of an admission, by the bytes that the documentation promises: the runtime keeps its own to itself, and a peer that lies speaks them truthfully.

use keyfence::wire::{self, Frame, HEADER_BYTES, Header, Hello, Role};

/// Places in a request. All numbers are little-endian.
const SESSION: usize = 4;
const SOURCE_LCORE: usize = 20;
/// The number below, the lanes between two lcores less one in the upper four bits.
const LANE: usize = 22;
const REPAIR: usize = 23;

/// Bytes of a request, and of a reply.
pub const WORDS_BYTES: usize = 56;

/// Bytes of a reply ahead of its MAC.
const SAID_BYTES: usize = 40;

/// What an engine asks for, of what is needed to answer.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    pub session: u32,
    pub source_lcore: u16,
    pub number: u16,
    pub siblings: u16,
    /// All of it: it is never as many as do not fit the byte.
    pub repair: u32,
    /// The tag of the asking engine's name.
    pub from: [u8; 4],
}

impl Asked {
    /// Of private data that can be a request.
    pub fn read(request: &[u8]) -> Option<Self> {
        (request.len() == WORDS_BYTES).then(|| Self {
            session: u32::from_le_bytes([
                request[SESSION],
                request[SESSION + 1],
                request[SESSION + 2],
                request[SESSION + 3],
            ]),
            source_lcore: request[SOURCE_LCORE].into(),
            number: (request[LANE] & 0xf).into(),
            siblings: u16::from(request[LANE] >> 4) + 1,
            repair: request[REPAIR].into(),
            from: [request[8], request[9], request[10], request[11]],
        })
    }
}

/// What a name is known by in a request: FNV-1a of 64 bits, folded.
pub fn tag(name: &str) -> [u8; 4] {
    let step = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325, step);
    ((hash >> 32) as u32 ^ hash as u32).to_le_bytes()
}

/// The two names of a lane, that of the asking engine first. They share no secret.
#[derive(Clone, Copy, Debug)]
pub struct Oath<'a> {
    pub connecting: &'a str,
    pub accepting: &'a str,
}

impl Oath<'_> {
    pub fn reply(&self, request: &[u8], qp: u32, incarnation: u128, nonce: u128) -> Vec<u8> {
        let mut bytes = request[..4].to_vec();
        bytes.extend(qp.to_le_bytes());
        bytes.extend(incarnation.to_le_bytes());
        bytes.extend(nonce.to_le_bytes());
        let mac = self.mac(1, request, &bytes, &[]);
        bytes.extend(mac);
        bytes
    }

    /// The accepting side's hello with its MAC, behind this request and reply.
    pub fn sign<'h>(&self, request: &[u8], reply: &[u8], hello: Hello<'h>) -> Hello<'h> {
        assert_eq!(hello.role, Role::Accepting, "the step of the other is 2");
        let unsigned = Frame::Hello(Hello {
            mac: [0; 16],
            ..hello
        });
        let mut bytes = [0; wire::MAX_CONTROL_BYTES];
        let len = wire::encode(&Header::default(), &unsigned, &mut bytes);
        let words = &bytes[HEADER_BYTES..len.expect("a hello fits a control frame")];
        let mac = self.mac(3, request, &reply[..SAID_BYTES], words);
        Hello { mac, ..hello }
    }

    fn mac(&self, step: u8, request: &[u8], said: &[u8], hello: &[u8]) -> [u8; 16] {
        let key = blake3::derive_key("keyfence admission, MAC, 2", &[]);
        let mut bytes = vec![step];
        for name in [self.connecting, self.accepting] {
            bytes.extend((name.len() as u64).to_le_bytes());
            bytes.extend(name.as_bytes());
        }
        bytes.extend(request);
        bytes.extend(said);
        bytes.extend(hello);
        let mut mac = [0; 16];
        mac.copy_from_slice(&blake3::keyed_hash(&key, &bytes).as_bytes()[..16]);
        mac
    }
}
