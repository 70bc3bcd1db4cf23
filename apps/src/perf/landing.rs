//! Where a write of a ping-pong lands: whoever owns the bytes polls the last one, which each write changes.

use keyfence::Buf;

/// The bytes that the other side writes to.
pub struct Landing {
    buf: Buf,
    size: usize,
    /// What the last byte of the next write is.
    next: u8,
}

impl Landing {
    /// A landing for writes of `size` bytes, at least 1. Not granted yet: it writes the last byte.
    pub fn new(buf: Buf, size: usize) -> Self {
        let cleared = buf.write_at(size - 1, &[0]);
        cleared.expect("a landing has its size");
        Self { buf, size, next: 1 }
    }

    /// The buffer, to be granted.
    pub fn buf(&self) -> &Buf {
        &self.buf
    }

    /// Whether the next write has landed. Bytes land in order on one lane, so the last one says it for all.
    pub fn has_landed(&mut self) -> bool {
        let mut last = [0];
        let read = self.buf.read_at(self.size - 1, &mut last);
        read.expect("a landing has its size");
        let has_landed = last[0] == self.next;
        if has_landed {
            self.next = self.next.wrapping_add(1);
        }
        has_landed
    }
}

/// Marks a write's source as the `number`th, the first being 0.
pub fn stamp(source: &Buf, size: usize, number: u64) {
    let stamped = source.write_at(size - 1, &[(number as u8).wrapping_add(1)]);
    stamped.expect("a source has its size");
}
