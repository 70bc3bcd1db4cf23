//! The line behind each buffer that shows whether somebody wrote past its end.

use crate::dma::DmaSlice;

/// Bytes of a canary: a cache line.
pub(crate) const CANARY_BYTES: usize = 64;

/// Writes the canary of buffer `index`.
pub(crate) fn plant(line: DmaSlice<'_>, index: u32) {
    let mut bytes = [0; CANARY_BYTES];
    for (eight, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(pattern(index)) {
        *eight = word.to_ne_bytes();
    }
    line.write_from(&bytes)
        .expect("a canary line has the pattern's length");
}

/// Whether the canary of buffer `index` is as it was planted.
#[inline]
pub(crate) fn is_intact(line: DmaSlice<'_>, index: u32) -> bool {
    line.is_words(&pattern(index))
}

/// Differs from line to line and from word to word, so that a copy of other bytes, or of another canary, shows.
#[inline]
fn pattern(index: u32) -> [u64; CANARY_BYTES / 8] {
    let seed = (u64::from(index) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    core::array::from_fn(|number| seed ^ (number as u64).wrapping_mul(0xd6e8_feb8_6659_fd93))
}
