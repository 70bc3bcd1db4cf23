//! The load's random choices: repeatable from a seed, and different for each user of it.

/// SplitMix64: a choice costs a few cycles, and any seed is as good as another.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The stream number `stream` of `seed`.
    pub fn new(seed: u64, stream: u64) -> Self {
        Self(mix(seed ^ mix(stream)))
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `bound`, which is not 0.
    pub fn below(&mut self, bound: usize) -> usize {
        // The bias of a bound this small is far below what anyone could see.
        ((u128::from(self.bits()) * bound as u128) >> 64) as usize
    }

    /// True once in `times`.
    pub fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }
}

/// Spreads every bit of a word over all of it.
pub const fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_repeats_and_differs_from_the_next() {
        let draw = |stream| {
            let mut random = Random::new(7, stream);
            (0..8).map(|_| random.bits()).collect::<Vec<_>>()
        };
        assert_eq!(draw(0), draw(0));
        assert_ne!(draw(0), draw(1));
        let mut random = Random::new(7, 0);
        assert!((0..1000).all(|_| random.below(3) < 3));
    }
}
