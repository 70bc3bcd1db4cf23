//! The private data that a connection's request and its answer carry: what of an admission is said before there is a lane. Each fits the 56 bytes of an
//! rdma_cm request.

use zerocopy::little_endian::{U16, U32, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::mac::Mac;
use super::refusal::JoinRefusal;
use super::secret::Nonce;
use crate::wire::VERSION;

/// Marks the private data of keyfence.
const MAGIC: u16 = 0x6b66;

/// The most lanes between two lcores, as the configuration has it.
const MOST_SIBLINGS: u16 = 16;

/// Bytes of a request, and of an answer.
pub(super) const WORDS_BYTES: usize = 56;

const _: () = assert!(size_of::<Request>() == WORDS_BYTES && size_of::<Reply>() == WORDS_BYTES);

/// What private data of every version begins with.
#[derive(
    FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy, PartialEq, Eq, Hash, Debug,
)]
#[repr(C)]
pub(super) struct Preface {
    magic: U16,
    version: U16,
}

/// Asks for a lane. Under no MAC itself; the reply's and both hellos' cover it.
#[derive(
    FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy, PartialEq, Eq, Hash, Debug,
)]
#[repr(C)]
pub(crate) struct Request {
    pub(super) preface: Preface,
    pub session: U32,
    /// The asking engine's name, by its tag.
    pub from: U32,
    /// The name of the engine that it looks for, by its tag.
    pub to: U32,
    /// Its queue pair.
    pub qp: U32,
    pub source_lcore: u8,
    pub target_lcore: u8,
    /// See [`Request::lane_byte`].
    pub(super) lane: u8,
    /// How often the lane was made anew in this session, modulo 256: 0 as its session is made.
    pub repair: u8,
    pub incarnation: U128,
    pub nonce: Nonce,
}

/// Accepts.
#[derive(
    FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy, PartialEq, Eq, Hash, Debug,
)]
#[repr(C)]
pub(super) struct Reply {
    said: Said,
    pub mac: Mac,
}

/// All of a reply but its MAC.
#[derive(
    FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy, PartialEq, Eq, Hash, Debug,
)]
#[repr(C)]
pub(super) struct Said {
    preface: Preface,
    pub qp: U32,
    pub incarnation: U128,
    pub nonce: Nonce,
}

impl Preface {
    /// That of this version.
    pub const fn ours() -> Self {
        Self {
            magic: U16::new(MAGIC),
            version: U16::new(VERSION),
        }
    }

    /// Whether the rest can be understood: it is that version's own.
    pub fn check(private: &[u8]) -> Result<(), JoinRefusal> {
        let (preface, _) = Self::ref_from_prefix(private).map_err(|_| JoinRefusal::Malformed)?;
        if preface.magic.get() != MAGIC {
            return Err(JoinRefusal::Malformed);
        }
        let (ours, theirs) = (VERSION, preface.version.get());
        if theirs != ours {
            return Err(JoinRefusal::Version { ours, theirs });
        }
        Ok(())
    }
}

impl Request {
    /// The byte of a lane: its number, 0 to 15, and above it the lanes between two lcores, 1 to 16, less one. None if one is not in its range.
    pub(super) fn lane_byte(number: u16, siblings: u16) -> Option<u8> {
        let fits = number < MOST_SIBLINGS && (1..=MOST_SIBLINGS).contains(&siblings);
        fits.then(|| ((siblings - 1) * MOST_SIBLINGS + number) as u8)
    }

    /// The lane's number between its two lcores.
    pub fn number(&self) -> u16 {
        u16::from(self.lane) % MOST_SIBLINGS
    }

    /// Lanes between two lcores, at least one.
    pub fn siblings(&self) -> u16 {
        u16::from(self.lane) / MOST_SIBLINGS + 1
    }

    /// The request in a connection's private data.
    pub fn read(private: &[u8]) -> Result<&Self, JoinRefusal> {
        Preface::check(private)?;
        Self::ref_from_bytes(private).map_err(|_| JoinRefusal::Malformed)
    }
}

impl Reply {
    /// Of a queue pair, without its MAC.
    pub fn new(qp: u32, incarnation: u128, nonce: Nonce) -> Self {
        let said = Said {
            preface: Preface::ours(),
            qp: qp.into(),
            incarnation: incarnation.into(),
            nonce,
        };
        let mac = Mac::default();
        Self { said, mac }
    }

    /// The reply in a connection's private data.
    pub fn read(private: &[u8]) -> Result<&Self, JoinRefusal> {
        Preface::check(private)?;
        Self::ref_from_bytes(private).map_err(|_| JoinRefusal::Malformed)
    }

    pub fn said(&self) -> &Said {
        &self.said
    }
}

/// FNV-1a (Fowler, Noll, Vo) of 64 bits, folded to 32: tells configured names apart in a request. It protects nothing; the MACs have the whole names.
pub(crate) fn name_tag(name: &str) -> u32 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325, step);
    (hash >> 32) as u32 ^ hash as u32
}
