//! The private data that a connection's request and its answer carry.

use keyfence_pmd::Device;
use zerocopy::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::engine::control::ControlSide;
use crate::engine::peers::{LaneRecord, Peer, name_hash};
use crate::engine::refusal::JoinRefusal;
use crate::ids::Incarnation;
use crate::wire::VERSION;

/// Marks the private data of keyfence.
const MAGIC: u16 = 0x6b66;

/// The most contexts or grants of an lcore that a peer may claim, so that its word can't exhaust our memory.
const MAX_TABLE: u32 = 1 << 20;

/// What private data of every version begins with.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Preface {
    magic: U16,
    version: U16,
}

/// What each side tells the other with the connection; it fits the 56 bytes of a rdma_cm request.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Private {
    preface: Preface,
    pub source_lcore: U16,
    pub target_lcore: U16,
    pub number: U16,
    pub siblings: U16,
    pub lcores: U16,
    pub reserved: U16,
    pub session: U32,
    pub contexts: U32,
    pub grants: U32,
    pub name_hash: U64,
    pub incarnation: U128,
}

impl Preface {
    /// That of this version.
    pub fn ours() -> Self {
        Self {
            magic: MAGIC.into(),
            version: VERSION.into(),
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

/// The private data of a request or an answer.
pub(super) fn understood(private: &[u8]) -> Result<&Private, JoinRefusal> {
    Preface::check(private)?;
    Private::ref_from_bytes(private).map_err(|_| JoinRefusal::Malformed)
}

impl Peer {
    /// Takes over what a peer says of itself, in a session that begins.
    pub(super) fn introduce(&mut self, private: &Private) {
        self.incarnation = Incarnation(private.incarnation.get());
        self.lcores = private.lcores.get();
        self.contexts = private.contexts.get().min(MAX_TABLE);
        self.grants = private.grants.get().min(MAX_TABLE);
    }
}

impl<D: Device> ControlSide<D> {
    /// What this engine says on a lane.
    pub fn private(&self, record: &LaneRecord) -> Private {
        let limits = &self.identity.limits;
        Private {
            preface: Preface::ours(),
            source_lcore: record.lcore.0.into(),
            target_lcore: record.peer_lcore.0.into(),
            number: record.number.into(),
            siblings: self.peers.siblings.into(),
            lcores: self.peers.lcores.into(),
            reserved: 0.into(),
            session: self.peers.get(record.peer).agreed_session.into(),
            contexts: limits.contexts.into(),
            grants: limits.grants.into(),
            name_hash: name_hash(&self.identity.name).into(),
            incarnation: self.identity.incarnation.0.into(),
        }
    }
}
