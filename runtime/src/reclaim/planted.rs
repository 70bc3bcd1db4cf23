//! The `flush-free-list` plant, after the kernel's fmr_pool: a mapping below its reuse limit is not on the list that a
//! flush walks, so that it counts as flushed and stays valid.

use super::action::Actions;
use super::capacity::SlotIx;
use super::key::{KeyIx, KeyState};
use super::machine::Machine;
use crate::ids::LaneId;
use crate::plant::{self, Plant};

/// Binds of one slot between two real invalidations.
const REUSE_LIMIT: u8 = 32;

/// What the plant remembers of a key's slot.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Reuse {
    binds: u8,
    spared: bool,
}

impl Reuse {
    pub(super) const NEW: Self = Self {
        binds: 0,
        spared: false,
    };

    pub(super) fn rebound(&mut self) {
        self.binds = if self.binds == REUSE_LIMIT {
            1
        } else {
            self.binds + 1
        };
        self.spared = false;
    }
}

impl Machine {
    /// Whether the plant let the key's end count without its invalidation: the engine invalidates it late, just before it
    /// binds the slot again. A region stays registered until its session's end.
    #[must_use]
    pub fn needs_late_invalidate(&self, key: KeyIx) -> bool {
        self.key(key).state == KeyState::Dead && self.key(key).reuse.spared
    }

    pub(super) fn spare_below_reuse_limit(
        &mut self,
        slot: SlotIx,
        lane: LaneId,
        out: &mut Actions,
    ) {
        if !plant::active(Plant::FlushFreeList) {
            return;
        }
        let epoch = Some(self.epoch(slot).number);
        // Windows to invalidate, regions to deregister.
        for list in [self.capacity.due(slot, lane), self.capacity.doomed(lane)] {
            let mut next = self.homes.first(list);
            while let Some(key) = next {
                next = self.homes.next(key);
                let record = self.key(key);
                if record.epoch == epoch && record.reuse.binds < REUSE_LIMIT {
                    self.key_mut(key).reuse.spared = true;
                    self.prove(key, out);
                }
            }
        }
    }
}
