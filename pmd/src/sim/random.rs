//! The world's only source of chance: splitmix64 from the seed.

use super::config::Nanos;

/// A stream of numbers that its seed determines.
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `limit`, which is not 0. The bias is below `limit / 2^64`.
    pub(super) fn below(&mut self, limit: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(limit)) >> 64) as u64
    }

    /// A time in the range, both ends included.
    pub(super) fn time(&mut self, range: Nanos) -> u64 {
        let width = range.max - range.min;
        match width.checked_add(1) {
            Some(width) => range.min + self.below(width),
            None => self.next(),
        }
    }

    /// Whether something that happens `rate` times in a million happens now. A rate of 0 draws nothing.
    pub(super) fn strikes(&mut self, rate_per_million: u32) -> bool {
        rate_per_million > 0 && self.below(1_000_000) < u64::from(rate_per_million)
    }

    pub(super) fn coin(&mut self) -> bool {
        self.next() & 1 == 0
    }
}

/// The finalizer of splitmix64.
pub(super) fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}
