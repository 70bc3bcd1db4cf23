//! What an admission says, written a second time for tests: by the bytes that the documentation promises, and with none of the runtime's code.

use keyfence::wire::{self, Frame, HEADER_BYTES, Header, Hello, Role};

/// Places in a request. All numbers are little-endian.
pub mod request {
    pub const VERSION: usize = 2;
    pub const SESSION: usize = 4;
    pub const FROM: usize = 8;
    pub const TO: usize = 12;
    pub const QP: usize = 16;
    pub const SOURCE_LCORE: usize = 20;
    pub const TARGET_LCORE: usize = 21;
    /// The number below, the lanes between two lcores less one in the upper four bits.
    pub const LANE: usize = 22;
    pub const REPAIR: usize = 23;
    pub const INCARNATION: usize = 24;
    pub const NONCE: usize = 40;
    pub const BYTES: usize = 56;
}

/// Places in a reply.
pub mod reply {
    pub const QP: usize = 4;
    pub const INCARNATION: usize = 8;
    pub const NONCE: usize = 24;
    pub const MAC: usize = 40;
}

/// A lane's two names and what they share.
#[derive(Clone, Debug)]
pub struct Oath {
    pub connecting: String,
    pub accepting: String,
    pub secret: Vec<u8>,
}

impl Oath {
    pub fn none(connecting: &str, accepting: &str) -> Self {
        Self {
            connecting: connecting.into(),
            accepting: accepting.into(),
            secret: Vec::new(),
        }
    }

    /// FNV-1a of 64 bits, folded.
    pub fn tag(name: &str) -> [u8; 4] {
        let step = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325, step);
        ((hash >> 32) as u32 ^ hash as u32).to_le_bytes()
    }

    pub fn request(&self, session: u32, qp: u32, number: u8, incarnation: [u8; 16]) -> Vec<u8> {
        let mut bytes = vec![0x66, 0x6b];
        bytes.extend(wire::VERSION.to_le_bytes());
        bytes.extend(session.to_le_bytes());
        bytes.extend(Self::tag(&self.connecting));
        bytes.extend(Self::tag(&self.accepting));
        bytes.extend(qp.to_le_bytes());
        bytes.extend([0, 0, 0x10 | number, 0]);
        bytes.extend(incarnation);
        bytes.extend([0xA0 + number; 16]);
        bytes
    }

    pub fn reply(&self, request: &[u8], qp: u32, incarnation: [u8; 16], nonce: u8) -> Vec<u8> {
        let mut bytes = request[..4].to_vec();
        bytes.extend(qp.to_le_bytes());
        bytes.extend(incarnation);
        bytes.extend([nonce; 16]);
        let mac = self.mac(1, request, &bytes, &[]);
        bytes.extend(mac);
        bytes
    }

    /// The hello with its MAC, behind this request and reply.
    pub fn sign<'a>(&self, request: &[u8], reply: &[u8], hello: Hello<'a>) -> Hello<'a> {
        let mut bytes = [0; 256];
        let unsigned = Frame::Hello(Hello {
            mac: [0; 16],
            ..hello
        });
        let len = wire::encode(&Header::default(), &unsigned, &mut bytes).unwrap();
        let step = match hello.role {
            Role::Connecting => 2,
            Role::Accepting => 3,
        };
        let said = &reply[..reply::MAC];
        let mac = self.mac(step, request, said, &bytes[HEADER_BYTES..len]);
        Hello { mac, ..hello }
    }

    fn mac(&self, step: u8, request: &[u8], said: &[u8], hello: &[u8]) -> [u8; 16] {
        let key = blake3::derive_key("keyfence admission, MAC, 2", &self.secret);
        let mut bytes = vec![step];
        for name in [&self.connecting, &self.accepting] {
            bytes.extend((name.len() as u64).to_le_bytes());
            bytes.extend(name.as_bytes());
        }
        bytes.extend(request);
        bytes.extend(said);
        bytes.extend(hello);
        blake3::keyed_hash(&key, &bytes).as_bytes()[..16]
            .try_into()
            .unwrap()
    }
}

/// A number of a request or reply.
pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}
