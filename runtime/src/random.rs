//! Random numbers from the engine's seed: the same run for the same seed. They protect nothing.

/// A stream of them (SplitMix64, Steele et al. 2014).
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

impl Random {
    /// A stream that `seed` alone decides.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number up to `most`. The bias is below 2^-32 for what is drawn here.
    pub fn up_to(&mut self, most: u64) -> u64 {
        let drawn = mix(self.0);
        self.0 = self.0.wrapping_add(GAMMA);
        drawn % most.saturating_add(1)
    }
}

/// A bijective mixing of 64 bits (the step and finalizer of SplitMix64).
pub(crate) fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(GAMMA);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
