//! Ground truth: every access that touched bytes, and a hash over all that happened.

use super::random::mix;
use crate::ids::{Lkey, QpId, Rkey};

/// By which key memory was touched.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AccessKey {
    /// By the peer's request.
    Remote(Rkey),
    /// By an operation of the memory's own side: its source, its sink, a receive.
    Local(Lkey),
}

/// One access that touched bytes, at the moment at which it did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access {
    /// When.
    pub at_ns: u64,
    /// The number of the adapter that has the memory, in the order of [`World::device`](super::World::device).
    pub adapter: u32,
    /// The queue pair of that adapter by which it came.
    pub qp: QpId,
    /// The key.
    pub key: AccessKey,
    /// The first byte, in this process.
    pub address: u64,
    /// Bytes, at least 1.
    pub len: u64,
    /// Whether the bytes were written (or, for an atomic, may have been), or read.
    pub is_write: bool,
}

/// The records that nobody has taken, at most as many as the configuration says.
#[derive(Debug)]
pub(super) struct Accesses {
    pub(super) kept: Vec<Access>,
    pub(super) lost: u64,
    max: usize,
}

/// A running hash.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hash {
    state: u64,
    with_bytes: bool,
}

impl Accesses {
    pub(super) fn new(max: usize) -> Self {
        Self {
            kept: Vec::new(),
            lost: 0,
            max,
        }
    }

    pub(super) fn add(&mut self, access: Access) {
        if self.max == 0 {
            return;
        }
        if self.kept.len() < self.max {
            self.kept.push(access);
        } else {
            self.lost += 1;
        }
    }
}

impl Hash {
    pub(super) fn new(seed: u64, with_bytes: bool) -> Self {
        Self {
            state: mix(seed),
            with_bytes,
        }
    }

    pub(super) fn get(self) -> u64 {
        self.state
    }

    pub(super) fn add(&mut self, word: u64) {
        self.state = mix(self.state.rotate_left(5) ^ word);
    }

    /// Bytes that moved.
    pub(super) fn add_bytes(&mut self, bytes: &[u8]) {
        self.add(bytes.len() as u64);
        if !self.with_bytes {
            return;
        }
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.add(u64::from_le_bytes(word));
        }
    }
}
