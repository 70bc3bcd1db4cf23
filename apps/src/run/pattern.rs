//! Patterns that say whose memory it is: each word of a fill differs from the word in the same place of every other fill, so that a byte
//! that someone else has stored is seen, and a byte that someone has read says where it came from.

use keyfence::DmaSlice;

use crate::random::mix;

/// One fill of a buffer: by whom, and the how many-eth of his.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fill {
    /// The context, with its side: see [`identity`].
    pub owner: u64,
    /// Counted by the owner.
    pub number: u64,
}

/// Bytes at the front of a fill that name it in clear.
pub const HEADER_BYTES: usize = 16;

const WORD: usize = 8;
const BLOCK: usize = 4096;

/// A context's name among those of all engines of the run, three at most.
pub fn identity(engine: usize, id: keyfence::ids::ContextId) -> u64 {
    id.to_bits() | (engine as u64) << 62
}

impl Fill {
    /// The fill that a header names. Any bytes name some fill.
    pub fn of_header(header: [u8; HEADER_BYTES]) -> Self {
        let word = |at: usize| {
            let bytes = header[at..at + WORD].try_into();
            u64::from_ne_bytes(bytes.expect("8 bytes"))
        };
        Self {
            owner: word(0),
            number: word(WORD),
        }
    }

    /// The words of this fill.
    pub fn words(self) -> Words {
        Words {
            fill: self,
            base: mix(self.owner ^ mix(self.number.wrapping_add(1))),
        }
    }
}

/// What a fill has at each place.
#[derive(Clone, Copy, Debug)]
pub struct Words {
    fill: Fill,
    base: u64,
}

impl Words {
    #[inline]
    fn at(&self, index: usize) -> u64 {
        match index {
            0 => self.fill.owner,
            1 => self.fill.number,
            _ => self
                .base
                .wrapping_add((index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)),
        }
    }

    /// Fills bytes `range` of a buffer; both ends are multiples of 8, but for the end of the buffer.
    pub fn fill(&self, memory: &DmaSlice<'_>, range: core::ops::Range<usize>) {
        each_block(range, |at, block| {
            for (index, word) in block.chunks_mut(WORD).enumerate() {
                let bytes = self.at(at / WORD + index).to_ne_bytes();
                word.copy_from_slice(&bytes[..word.len()]);
            }
            let sink = memory.slice(at, block.len()).expect("inside the buffer");
            sink.write_from(block).expect("as long as the block");
        });
    }

    /// Bytes of `range` that are not this fill's.
    pub fn changed(&self, memory: &DmaSlice<'_>, range: core::ops::Range<usize>) -> u64 {
        let mut changed = 0;
        each_block(range, |at, block| {
            let source = memory.slice(at, block.len()).expect("inside the buffer");
            source.read_into(block).expect("as long as the block");
            changed += foreign_bytes(block, at, core::slice::from_ref(self));
        });
        changed
    }
}

/// Bytes that none of the fills has in that place. `offset`, a multiple of 8, is where `bytes` begin in their buffer.
pub fn foreign_bytes(bytes: &[u8], offset: usize, fills: &[Words]) -> u64 {
    let mut foreign = 0;
    for (index, found) in bytes.chunks(WORD).enumerate() {
        let place = offset / WORD + index;
        let same = |fill: &Words| fill.at(place).to_ne_bytes()[..found.len()] == *found;
        if fills.iter().any(same) {
            continue;
        }
        // A word may have been written in part.
        for (at, byte) in found.iter().enumerate() {
            let same = |fill: &Words| fill.at(place).to_ne_bytes()[at] == *byte;
            foreign += u64::from(!fills.iter().any(same));
        }
    }
    foreign
}

fn each_block(range: core::ops::Range<usize>, mut visit: impl FnMut(usize, &mut [u8])) {
    let mut block = [0; BLOCK];
    let mut at = range.start;
    while at < range.end {
        let len = BLOCK.min(range.end - at);
        visit(at, &mut block[..len]);
        at += len;
    }
}

#[cfg(test)]
mod tests {
    use keyfence_mempool::{Arena, ArenaConfig, Policy};

    use super::*;

    fn arena() -> Arena {
        let config = ArenaConfig {
            hugepages: Policy::Off,
            lock: Policy::Off,
            ..ArenaConfig::new(16 << 10)
        };
        Arena::map(&config).expect("a few pages")
    }

    #[test]
    fn r1_one_changed_byte_of_a_fill_is_seen() {
        let arena = arena();
        let memory = arena.dma(0, 10_001).expect("inside");
        let words = Fill {
            owner: 5,
            number: 1,
        }
        .words();
        words.fill(&memory, 0..10_001);
        assert_eq!(words.changed(&memory, 0..10_001), 0);
        for at in [0, 15, 4096, 10_000] {
            let byte = arena.dma(at, 1).expect("inside");
            let mut old = [0];
            byte.read_into(&mut old).expect("one byte");
            byte.fill(!old[0]);
            assert_eq!(words.changed(&memory, 0..10_001), 1, "at {at}");
            byte.fill(old[0]);
        }
    }

    #[test]
    fn bytes_of_allowed_fills_pass_and_of_others_do_not() {
        let arena = arena();
        let memory = arena.dma(0, 256).expect("inside");
        let [owner, holder, next] = [1, 2, 3].map(|owner| Fill { owner, number: 0 }.words());
        owner.fill(&memory, 0..256);
        holder.fill(&memory, 64..128);
        let mut bytes = [0; 250];
        memory
            .slice(0, 250)
            .expect("inside")
            .read_into(&mut bytes)
            .expect("fits");
        assert_eq!(foreign_bytes(&bytes, 0, &[owner, holder]), 0);
        assert!(foreign_bytes(&bytes, 0, &[owner]) > 48);
        next.fill(&memory, 128..136);
        memory
            .slice(0, 250)
            .expect("inside")
            .read_into(&mut bytes)
            .expect("fits");
        assert!(foreign_bytes(&bytes, 0, &[owner, holder]) > 0);
        let header = bytes[..HEADER_BYTES].try_into().expect("16 bytes");
        assert_eq!(
            Fill::of_header(header),
            Fill {
                owner: 1,
                number: 0
            }
        );
    }
}
