//! The bench's memory: registered bytes of both sides, filled and compared.

use keyfence_mempool::dma::DmaSlice;

use super::bench::{Bench, End};
use super::{Failure, Outcome, ensure};
use crate::device::Device;
use crate::work::{Sge, SgeList};

impl<D: Device> Bench<D> {
    pub fn sge(&self, end: End, offset: usize, len: usize) -> Sge {
        let side = match end {
            End::A => &self.a,
            End::B => &self.b,
        };
        let address = side.arena.address() + offset as u64;
        Sge::new(address, len as u32, side.region.lkey)
    }

    pub fn one(&self, end: End, offset: usize, len: usize) -> SgeList {
        SgeList::one(self.sge(end, offset, len))
    }

    pub fn address_of(&self, end: End, offset: usize) -> u64 {
        self.sge(end, offset, 0).address
    }

    fn dma(&self, end: End, offset: usize, len: usize) -> Result<DmaSlice<'_>, Failure> {
        let side = match end {
            End::A => &self.a,
            End::B => &self.b,
        };
        Ok(side.arena.dma(offset, len)?)
    }

    /// Fills memory with bytes that depend on `seed` and on the place, and gives them.
    pub fn pattern(
        &self,
        end: End,
        offset: usize,
        len: usize,
        seed: u8,
    ) -> Result<Vec<u8>, Failure> {
        let bytes: Vec<u8> = (0..len).map(|at| pattern_byte(at, seed)).collect();
        self.dma(end, offset, len)?.write_from(&bytes)?;
        Ok(bytes)
    }

    pub fn fill(&self, end: End, offset: usize, len: usize, byte: u8) -> Outcome {
        self.dma(end, offset, len)?.fill(byte);
        Ok(())
    }

    pub fn bytes(&self, end: End, offset: usize, len: usize) -> Result<Vec<u8>, Failure> {
        let mut bytes = vec![0; len];
        self.dma(end, offset, len)?.read_into(&mut bytes)?;
        Ok(bytes)
    }

    pub fn word(&self, end: End, offset: usize) -> Result<u64, Failure> {
        Ok(self.dma(end, offset, 8)?.load_u64(0)?)
    }

    pub fn set_word(&self, end: End, offset: usize, value: u64) -> Outcome {
        Ok(self.dma(end, offset, 8)?.store_u64(0, value)?)
    }

    /// Memory must hold exactly these bytes.
    pub fn holds(&self, end: End, offset: usize, bytes: &[u8], what: &str) -> Outcome {
        let first = self
            .dma(end, offset, bytes.len())?
            .first_difference(bytes)?;
        ensure!(
            first.is_none(),
            "{what}: byte {} of {} on side {end:?} is wrong",
            first.unwrap_or(0),
            bytes.len()
        );
        Ok(())
    }

    /// Every byte of memory must be `byte`.
    pub fn all_are(&self, end: End, offset: usize, len: usize, byte: u8, what: &str) -> Outcome {
        let first = self.dma(end, offset, len)?.first_not(byte);
        ensure!(
            first.is_none(),
            "{what}: byte {} of {len} on side {end:?} was changed",
            first.unwrap_or(0)
        );
        Ok(())
    }
}

/// A byte that tells its place and seed, and is never 0.
pub(super) fn pattern_byte(at: usize, seed: u8) -> u8 {
    let mixed = (at as u32).wrapping_mul(0x9e37_79b1) >> 16;
    (mixed as u8).wrapping_add(seed) | 1
}
