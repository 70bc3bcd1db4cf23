//! The line behind each buffer that shows whether somebody wrote past its end.

use crate::dma::DmaSlice;

/// Bytes of a canary: a cache line.
pub(crate) const CANARY_BYTES: usize = 64;

/// Writes the canary of buffer `index`.
pub(crate) fn plant(line: DmaSlice<'_>, index: u32) {
    line.write_from(&pattern(index))
        .expect("a canary line has the pattern's length");
}

/// Whether the canary of buffer `index` is as it was planted.
#[inline]
pub(crate) fn is_intact(line: DmaSlice<'_>, index: u32) -> bool {
    let mut found = [0; CANARY_BYTES];
    line.read_into(&mut found)
        .expect("a canary line has the pattern's length");
    found == pattern(index)
}

/// Differs from line to line and from word to word, so that a copy of other bytes, or of another canary, shows.
#[inline]
fn pattern(index: u32) -> [u8; CANARY_BYTES] {
    let mut line = [0; CANARY_BYTES];
    let seed = (u64::from(index) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for (number, word) in line.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        *word = (seed ^ (number as u64).wrapping_mul(0xd6e8_feb8_6659_fd93)).to_ne_bytes();
    }
    line
}
