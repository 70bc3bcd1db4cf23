//! Local memory of work requests: scatter/gather lists checked against local keys and copied to and from what crosses a segment.

use keyfence_mempool::dma::DmaSlice;

use super::arenas::PathArenas;
use super::keys::{KeyTable, Place, Refused};
use super::stream::Chunk;
use super::wire::SLOT_PAYLOAD_BYTES;
use crate::ids::{PdId, QpId, Rkey};
use crate::work::{Rights, Sge};

/// What one step of a path works with. The keys say what may be touched, the arenas reach it, the budget bounds it.
#[derive(Debug)]
pub(crate) struct Memory<'a> {
    pub(crate) keys: &'a KeyTable,
    pub(crate) arenas: &'a mut PathArenas,
    /// Bytes that may still be moved; a slice is begun while it is not 0.
    pub(crate) budget: usize,
    /// Bytes moved in this step.
    pub(crate) moved: usize,
}

/// Payload in a slot, or in a chunk ring.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Payload<'a> {
    Slot(&'a [u8; SLOT_PAYLOAD_BYTES]),
    Chunk(Chunk<'a>),
}

/// One piece of a scatter/gather list, and where it is in the operation's slice.
struct Piece<'a> {
    memory: DmaSlice<'a>,
    at: usize,
}

impl<'a> Memory<'a> {
    #[inline]
    pub(crate) fn new(keys: &'a KeyTable, arenas: &'a mut PathArenas, budget: usize) -> Self {
        Self {
            keys,
            arenas,
            budget,
            moved: 0,
        }
    }

    /// Counts `bytes` moved.
    #[inline]
    pub(crate) fn spend(&mut self, bytes: usize) {
        self.budget = self.budget.saturating_sub(bytes);
        self.moved += bytes;
    }

    /// Checks every entry of a list; those without bytes name no memory.
    #[inline]
    pub(crate) fn check(&self, pd: PdId, sges: &[Sge]) -> Result<(), Refused> {
        for sge in sges.iter().filter(|sge| sge.len > 0) {
            self.keys
                .local(sge.lkey, pd, sge.address, u64::from(sge.len))?;
        }
        Ok(())
    }

    /// Copies `len` bytes of a list, from its byte `skip` on, into a chunk ring.
    #[inline(always)]
    pub(crate) fn gather(
        &mut self,
        (pd, sges): (PdId, &[Sge]),
        skip: usize,
        len: usize,
        chunk: Chunk<'_>,
    ) -> Result<(), Refused> {
        self.each(pd, sges, skip, len, |piece| {
            chunk.write(piece.at, piece.memory);
        })
    }

    /// Copies the `len` bytes of a list into private memory.
    #[inline(always)]
    pub(crate) fn gather_private(
        &mut self,
        (pd, sges): (PdId, &[Sge]),
        len: usize,
        sink: &mut [u8],
    ) -> Result<(), Refused> {
        self.each(pd, sges, 0, len, |piece| {
            let sink = &mut sink[piece.at..piece.at + piece.memory.len()];
            let read = piece.memory.read_into(sink);
            read.expect("both pieces have this length");
        })
    }

    /// Copies `len` bytes of payload over those of a list, from its byte `skip` on.
    #[inline]
    pub(crate) fn scatter(
        &mut self,
        (pd, sges): (PdId, &[Sge]),
        skip: usize,
        len: usize,
        payload: Payload<'_>,
    ) -> Result<(), Refused> {
        self.each(pd, sges, skip, len, |piece| {
            payload.copy_to(piece.at, piece.memory);
        })
    }

    /// The bytes behind a remote key, checked now.
    #[inline(always)]
    pub(crate) fn remote(
        &mut self,
        rkey: Rkey,
        scope: (QpId, PdId),
        range: (u64, u64),
        wanted: Rights,
    ) -> Result<DmaSlice<'_>, Refused> {
        let place = self.keys.remote(rkey, scope, range, wanted)?;
        self.arenas.dma(place).ok_or(Refused)
    }

    #[inline(always)]
    fn each(
        &mut self,
        pd: PdId,
        sges: &[Sge],
        skip: usize,
        len: usize,
        mut copy: impl FnMut(Piece<'_>),
    ) -> Result<(), Refused> {
        if let [sge] = sges
            && skip + len <= sge.len as usize
            && len > 0
        {
            // Nearly always one entry has all.
            let address = sge.address.checked_add(skip as u64).ok_or(Refused)?;
            let place = self.keys.local(sge.lkey, pd, address, len as u64)?;
            let memory = self.arenas.dma(place).ok_or(Refused)?;
            copy(Piece { memory, at: 0 });
            return Ok(());
        }
        self.each_of_many((pd, sges), skip, len, copy)
    }

    fn each_of_many(
        &mut self,
        (pd, sges): (PdId, &[Sge]),
        mut skip: usize,
        len: usize,
        mut copy: impl FnMut(Piece<'_>),
    ) -> Result<(), Refused> {
        let mut at = 0;
        for sge in sges {
            let sge_len = sge.len as usize;
            if skip >= sge_len {
                skip -= sge_len;
                continue;
            }
            let take = (sge_len - skip).min(len - at);
            if take == 0 {
                break;
            }
            let address = sge.address.checked_add(skip as u64).ok_or(Refused)?;
            let place: Place = self.keys.local(sge.lkey, pd, address, take as u64)?;
            let memory = self.arenas.dma(place).ok_or(Refused)?;
            copy(Piece { memory, at });
            at += take;
            skip = 0;
        }
        assert!(at == len, "a slice is longer than its list");
        Ok(())
    }
}

impl Payload<'_> {
    /// Copies the bytes at `at` over all of `sink`.
    #[inline(always)]
    pub(crate) fn copy_to(&self, at: usize, sink: DmaSlice<'_>) {
        match self {
            Self::Slot(bytes) => {
                let written = sink.write_from(&bytes[at..at + sink.len()]);
                written.expect("both pieces have this length");
            }
            Self::Chunk(chunk) => chunk.read(at, sink),
        }
    }
}
