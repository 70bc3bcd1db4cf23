//! The shared store behind the caches: a lock-free stack of indices.
//!
//! Treiber's stack over indices instead of pointers. The head carries a tag that every change raises, so that a thread
//! which was suspended between reading the head and changing it cannot mistake a later head with the same index for
//! the one it read. The tag has 32 bits: it would take 2^32 changes during that one suspension to fool it.
//! Whole chains go in and come out by one exchange.

use crate::sync::{AtomicU32, AtomicU64, Ordering};

const NONE: u32 = u32::MAX;

/// A stack of distinct indices below a fixed count.
#[derive(Debug)]
pub struct IndexStack {
    head: AtomicU64,
    /// The index below each index that is on the stack.
    below: Box<[AtomicU32]>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Head {
    top: u32,
    tag: u32,
}

impl IndexStack {
    /// An empty stack for indices below `count`, itself at most `u32::MAX - 1`.
    pub fn new(count: u32) -> IndexStack {
        assert_ne!(count, NONE, "the last index marks the end");
        let below = (0..count).map(|_| AtomicU32::new(NONE)).collect();
        IndexStack {
            head: AtomicU64::new(Head { top: NONE, tag: 0 }.pack()),
            below,
        }
    }

    /// Pushes indices that the caller alone has; the last one ends on top.
    pub fn push_many(&self, indices: impl IntoIterator<Item = u32>) {
        let mut indices = indices.into_iter();
        let Some(bottom) = indices.next() else { return };
        let mut top = bottom;
        for index in indices {
            self.below[index as usize].store(top, Ordering::Relaxed);
            top = index;
        }
        let mut seen = self.head.load(Ordering::Relaxed);
        loop {
            let head = Head::unpack(seen);
            self.below[bottom as usize].store(head.top, Ordering::Relaxed);
            // Release: whoever pops must see the links, and what was done to the buffers.
            match self.replace(seen, head.then(top), Ordering::Release) {
                Ok(_) => return,
                Err(found) => seen = found,
            }
        }
    }

    /// Pops up to `most` indices and calls `each` with every one, from the top. Returns how many.
    pub fn pop_many(&self, most: usize, mut each: impl FnMut(u32)) -> usize {
        let mut seen = self.head.load(Ordering::Acquire);
        loop {
            let head = Head::unpack(seen);
            let (count, rest) = self.walk(head.top, most);
            if count == 0 {
                return 0;
            }
            match self.replace(seen, head.then(rest), Ordering::Acquire) {
                Ok(_) => {
                    // The chain is this thread's own now.
                    let mut index = head.top;
                    for _ in 0..count {
                        let below = self.below[index as usize].load(Ordering::Relaxed);
                        each(index);
                        index = below;
                    }
                    return count;
                }
                Err(found) => seen = found,
            }
        }
    }

    /// Follows up to `most` links. Others may be changing them meanwhile; then the exchange that follows fails.
    fn walk(&self, top: u32, most: usize) -> (usize, u32) {
        let (mut count, mut index) = (0, top);
        while count < most && index != NONE {
            index = self.below[index as usize].load(Ordering::Relaxed);
            count += 1;
        }
        (count, index)
    }

    fn replace(&self, seen: u64, next: Head, success: Ordering) -> Result<u64, u64> {
        self.head
            .compare_exchange_weak(seen, next.pack(), success, Ordering::Acquire)
    }
}

impl Head {
    fn pack(self) -> u64 {
        u64::from(self.tag) << 32 | u64::from(self.top)
    }

    fn unpack(word: u64) -> Head {
        Head {
            top: word as u32,
            tag: (word >> 32) as u32,
        }
    }

    fn then(self, top: u32) -> Head {
        Head {
            top,
            tag: self.tag.wrapping_add(1),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn pop(stack: &IndexStack, most: usize) -> Vec<u32> {
        let mut popped = Vec::new();
        assert_eq!(
            stack.pop_many(most, |index| popped.push(index)),
            popped.len()
        );
        popped
    }

    #[test]
    fn chains_come_out_in_stack_order() {
        let stack = IndexStack::new(5);
        assert_eq!(pop(&stack, 1), []);
        stack.push_many([3, 0, 4]);
        stack.push_many([]);
        stack.push_many([1]);
        assert_eq!(pop(&stack, 0), []);
        assert_eq!(pop(&stack, 3), [1, 4, 0]);
        assert_eq!(pop(&stack, 3), [3]);
        assert_eq!(pop(&stack, 3), []);
    }

    #[test]
    fn a_head_seen_before_cannot_be_replaced_after_it_came_back() {
        let stack = IndexStack::new(2);
        stack.push_many([0, 1]);
        let seen = stack.head.load(Ordering::Relaxed);
        pop(&stack, 1);
        stack.push_many([1]);
        assert_eq!(
            Head::unpack(stack.head.load(Ordering::Relaxed)).top,
            Head::unpack(seen).top
        );
        let stale = stack.replace(seen, Head::unpack(seen).then(NONE), Ordering::Relaxed);
        assert!(stale.is_err());
    }
}
