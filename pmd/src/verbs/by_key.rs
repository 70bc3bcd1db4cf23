//! From a key that the adapter chose to the slot that it belongs to: chains by hash that paths walk without a lock.
//!
//! Only control calls change it, one at a time. A slot that was taken out is put in again only when every lcore has been outside a step
//! since, so a walk never strays into another chain.

use keyfence_mempool::sync::{AtomicU32, Ordering};

/// The slots of up to so many keys.
#[derive(Debug)]
pub(crate) struct ByKey {
    /// The first slot of each chain, one above it; 0 ends a chain.
    heads: Box<[AtomicU32]>,
    /// The next slot in the chain, by slot.
    nexts: Box<[AtomicU32]>,
}

impl ByKey {
    pub(crate) fn new(slots: usize) -> Self {
        let zeros = |count: usize| (0..count).map(|_| AtomicU32::new(0)).collect();
        Self {
            heads: zeros(slots.next_power_of_two()),
            nexts: zeros(slots),
        }
    }

    /// The slots whose key may be this one.
    #[inline]
    pub(crate) fn slots(&self, key: u32) -> impl Iterator<Item = usize> {
        let mut link = self.head(key).load(Ordering::Acquire);
        std::iter::from_fn(move || {
            let slot = link.checked_sub(1)? as usize;
            link = self.nexts[slot].load(Ordering::Acquire);
            Some(slot)
        })
    }

    pub(crate) fn insert(&self, key: u32, slot: usize) {
        let head = self.head(key);
        let first = head.load(Ordering::Relaxed);
        self.nexts[slot].store(first, Ordering::Relaxed);
        head.store(slot as u32 + 1, Ordering::Release);
    }

    pub(crate) fn remove(&self, key: u32, slot: usize) {
        let mut place = self.head(key);
        loop {
            let link = place.load(Ordering::Relaxed);
            match link.checked_sub(1) {
                None => return,
                Some(at) if at as usize == slot => {
                    let next = self.nexts[slot].load(Ordering::Relaxed);
                    place.store(next, Ordering::Release);
                    return;
                }
                Some(at) => place = &self.nexts[at as usize],
            }
        }
    }

    fn head(&self, key: u32) -> &AtomicU32 {
        let hash = key.wrapping_mul(0x9e37_79b1);
        let bits = self.heads.len().trailing_zeros();
        &self.heads[hash.checked_shr(32 - bits).unwrap_or(0) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_found_until_it_is_taken_out() {
        for slots in [1, 2, 5, 64] {
            let by_key = ByKey::new(slots);
            let key = |slot: usize| 0x1000 + 7 * slot as u32;
            for slot in 0..slots {
                by_key.insert(key(slot), slot);
            }
            for gone in 0..slots {
                for slot in 0..slots {
                    let found = by_key.slots(key(slot)).any(|at| at == slot);
                    assert_eq!(found, slot >= gone);
                }
                by_key.remove(key(gone), gone);
            }
            by_key.insert(key(0), 0);
            assert_eq!(by_key.slots(key(0)).collect::<Vec<_>>(), [0]);
        }
    }
}
