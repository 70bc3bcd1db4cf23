//! Work requests: what a poll path posts.

use crate::ids::{Lkey, RegionId, Rkey, WindowId, WorkId};

/// The most scatter/gather entries of one work request that the contract can carry. A device may allow fewer
/// (`Caps::max_sge`).
pub const MAX_SGE: usize = 4;

/// What a remote peer may do through a key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Rights {
    /// The peer may read.
    pub read: bool,
    /// The peer may write, also with immediate data.
    pub write: bool,
    /// The peer may fetch-and-add and compare-and-swap.
    pub atomic: bool,
}

impl Rights {
    /// Nothing: the rights of an arena's own region.
    pub const NONE: Self = Self {
        read: false,
        write: false,
        atomic: false,
    };
    /// Read only.
    pub const READ: Self = Self {
        read: true,
        write: false,
        atomic: false,
    };
    /// Write only.
    pub const WRITE: Self = Self {
        read: false,
        write: true,
        atomic: false,
    };
    /// Read and write.
    pub const READ_WRITE: Self = Self {
        read: true,
        write: true,
        atomic: false,
    };
    /// Everything.
    pub const ALL: Self = Self {
        read: true,
        write: true,
        atomic: true,
    };

    /// Whether each right in `wanted` is in `self`.
    #[must_use]
    pub const fn allow(self, wanted: Self) -> bool {
        (self.read || !wanted.read)
            && (self.write || !wanted.write)
            && (self.atomic || !wanted.atomic)
    }
}

/// One range of local registered memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sge {
    /// Address of the first byte, in this process.
    pub address: u64,
    /// Bytes; 0 is allowed and names no memory.
    pub len: u32,
    /// The region's local key.
    pub lkey: u32,
}

impl Sge {
    /// The entry for `len` bytes at `address`.
    #[must_use]
    pub const fn new(address: u64, len: u32, lkey: Lkey) -> Self {
        Self {
            address,
            len,
            lkey: lkey.0,
        }
    }
}

/// Up to [`MAX_SGE`] entries, held in place: a work request owns no heap memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SgeList {
    entries: [Sge; MAX_SGE],
    len: u8,
}

impl SgeList {
    /// No local memory: for a zero-length operation, a bind, an invalidation.
    pub const EMPTY: Self = Self {
        entries: [Sge {
            address: 0,
            len: 0,
            lkey: 0,
        }; MAX_SGE],
        len: 0,
    };

    /// A list of one.
    #[inline]
    #[must_use]
    pub const fn one(sge: Sge) -> Self {
        let mut list = Self::EMPTY;
        list.entries[0] = sge;
        list.len = 1;
        list
    }

    /// A list of `entries`, or `None` if there are more than [`MAX_SGE`].
    #[must_use]
    pub fn new(entries: &[Sge]) -> Option<Self> {
        let mut list = Self::EMPTY;
        list.entries
            .get_mut(..entries.len())?
            .copy_from_slice(entries);
        list.len = entries.len() as u8;
        Some(list)
    }

    /// The entries in order.
    #[inline]
    #[must_use]
    pub fn as_slice(&self) -> &[Sge] {
        &self.entries[..self.len as usize]
    }

    /// The sum of the entries' lengths. Four entries of at most 4 GiB each fit in 64 bits.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> u64 {
        if self.len == 1 {
            return u64::from(self.entries[0].len);
        }
        self.as_slice().iter().map(|sge| u64::from(sge.len)).sum()
    }
}

/// A place in the peer's memory, and the key that opens it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Remote {
    /// Address of the first byte, in the peer's process.
    pub address: u64,
    /// The key.
    pub rkey: Rkey,
}

/// The operations of the contract. Local memory of each is the request's scatter/gather list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WorkOp {
    /// Write the local bytes to the peer's memory. With `immediate` the peer also gets a receive completion, after the data.
    Write {
        /// Where to.
        remote: Remote,
        /// Tells the peer that the data has landed; takes one of its posted receives.
        immediate: Option<u32>,
    },
    /// Read the peer's memory into the local bytes.
    Read {
        /// Where from.
        remote: Remote,
    },
    /// Send the local bytes into the peer's next posted receive.
    Send {
        /// Handed over with the receive completion.
        immediate: Option<u32>,
    },
    /// Add to 8 aligned bytes of the peer; the former value lands in the 8 local bytes.
    FetchAdd {
        /// Where; a multiple of 8.
        remote: Remote,
        /// What is added, modulo 2^64.
        add: u64,
    },
    /// Set 8 aligned bytes of the peer if they hold `expected`; the former value lands in the 8 local bytes.
    CompareSwap {
        /// Where; a multiple of 8.
        remote: Remote,
        /// The value that must be there.
        expected: u64,
        /// The value that is stored then.
        desired: u64,
    },
    /// Open a byte range of a region through a free window, for the peer of this queue pair alone.
    Bind {
        /// A window allocated for this queue pair, not bound.
        window: WindowId,
        /// The region that has the range; registered for window binding.
        region: RegionId,
        /// First byte, in this process.
        address: u64,
        /// Bytes, at least 1.
        len: u64,
        /// What the peer may do.
        rights: Rights,
        /// The key from now on: the window's index with a tag of the caller's choice. The device does not choose it.
        rkey: Rkey,
    },
    /// End a bound window's key. Its successful completion is the proof that no access by the key goes on or comes.
    ///
    /// Never post it twice for one bind: on Soft-RoCE of kernel 6.1 that panics the host.
    Invalidate {
        /// The bound key.
        rkey: Rkey,
    },
}

/// One work request. Plain data: it can be copied, queued and traced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WorkRequest {
    /// The caller's name for it.
    pub id: WorkId,
    /// What to do.
    pub op: WorkOp,
    /// The local memory.
    pub sges: SgeList,
    /// Whether success is reported. Failure always is.
    pub signaled: bool,
    /// Whether the local bytes are taken at the post, so that the caller may overwrite them at once. Writes and sends up to
    /// `Caps::max_inline_bytes` only.
    pub inline: bool,
}

impl WorkRequest {
    /// A signaled request that is not inline.
    #[must_use]
    pub const fn new(id: WorkId, op: WorkOp, sges: SgeList) -> Self {
        Self {
            id,
            op,
            sges,
            signaled: true,
            inline: false,
        }
    }

    /// The same request, signaled or not.
    #[must_use]
    pub const fn signaled(mut self, signaled: bool) -> Self {
        self.signaled = signaled;
        self
    }

    /// The same request, inline or not.
    #[must_use]
    pub const fn inline(mut self, inline: bool) -> Self {
        self.inline = inline;
        self
    }
}

/// One receive buffer of a queue pair. Receives are taken in the order of their posting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReceiveRequest {
    /// The caller's name for it, given back by its completion.
    pub id: WorkId,
    /// Where the message lands.
    pub sge: Sge,
}
