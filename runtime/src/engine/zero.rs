//! Zeroing the buffers of reclaimed contexts, a bounded number of bytes in each step (R5). It delays no event: the context is gone by then,
//! and the buffers are in nobody's hands until they are back in their pool.

use std::collections::VecDeque;

use crate::context::state::OwnedBuf;
use crate::engine::state::Core;

/// Buffers being zeroed: retained, with neither handle nor hold.
#[derive(Debug)]
pub(super) struct Zeroing {
    waiting: VecDeque<OwnedBuf>,
    /// Bytes of the first one that are done.
    done_bytes: usize,
    /// Bytes of all that are not.
    left_bytes: u64,
}

impl Zeroing {
    /// Room for every buffer that there is.
    pub fn new(buffers: usize) -> Self {
        Self {
            waiting: VecDeque::with_capacity(buffers),
            done_bytes: 0,
            left_bytes: 0,
        }
    }

    /// Bytes that are still to be zeroed.
    pub fn left_bytes(&self) -> u64 {
        self.left_bytes
    }
}

impl Core {
    /// Takes a buffer of a context that has ended, if it is to be zeroed and nothing keeps it.
    pub(super) fn take_for_zeroing(&mut self, owned: OwnedBuf) -> bool {
        let idle = self.memory.pools[owned.pool as usize]
            .cache
            .is_idle(owned.id)
            .unwrap_or(false);
        match &mut self.zeroing {
            Some(zeroing) if idle => {
                zeroing.waiting.push_back(owned);
                zeroing.left_bytes += self.memory.pools[owned.pool as usize].buffer_bytes as u64;
                true
            }
            _ => false,
        }
    }

    /// Whether anything is to be zeroed.
    #[inline]
    pub(super) fn is_zeroing(&self) -> bool {
        let zeroing = self.zeroing.as_ref();
        zeroing.is_some_and(|zeroing| !zeroing.waiting.is_empty())
    }

    /// Zeroes what one step may, and gives back what is done.
    pub(super) fn zero_some(&mut self) -> bool {
        let Some(zeroing) = &mut self.zeroing else {
            return false;
        };
        let any = !zeroing.waiting.is_empty();
        let mut budget = self.limits.zero_budget_bytes as usize;
        while let Some(owned) = zeroing.waiting.front().copied()
            && budget > 0
        {
            let pool = &mut self.memory.pools[owned.pool as usize];
            let bytes = budget.min(pool.buffer_bytes - zeroing.done_bytes);
            let offset =
                (owned.address - self.memory.arena.address()) as usize + zeroing.done_bytes;
            let slice = self.memory.arena.dma(offset, bytes);
            slice.expect("a buffer lies in the arena").zero();
            budget -= bytes;
            zeroing.done_bytes += bytes;
            zeroing.left_bytes -= bytes as u64;
            if zeroing.done_bytes == pool.buffer_bytes {
                zeroing.waiting.pop_front();
                zeroing.done_bytes = 0;
                // One that was overrun stays with its pool's quarantine.
                if pool.cache.reclaim(owned.id).is_err() {
                    self.stats.buffers_overrun += 1;
                }
            }
        }
        any
    }
}
