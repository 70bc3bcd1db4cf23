//! Operations of a client that the context has accepted: their buffers and the caller's tokens, until their completions.

use crate::client::Locals;

/// A table of fixed size. The context knows an operation by its slot here.
#[derive(Debug)]
pub(super) struct Pending {
    slots: Box<[Option<(u64, Locals)>]>,
    free: Vec<u32>,
}

impl Pending {
    /// Room for `capacity` operations, allocated now.
    pub fn new(capacity: u32) -> Self {
        Self {
            slots: (0..capacity).map(|_| None).collect(),
            free: (0..capacity).rev().collect(),
        }
    }

    /// The slot that the next operation will have; `None` if there is no room.
    pub fn next(&self) -> Option<u32> {
        self.free.last().copied()
    }

    /// Stores an operation in the slot that [`Pending::next`] gave.
    pub fn insert(&mut self, token: u64, locals: Locals) {
        let slot = self
            .free
            .pop()
            .expect("next() has shown that there is room");
        self.slots[slot as usize] = Some((token, locals));
    }

    /// Drops what is left: no completion comes any more.
    pub fn clear(&mut self) {
        self.slots.fill_with(|| None);
    }

    /// Takes the operation in `slot` out.
    pub fn take(&mut self, slot: u64) -> (u64, Locals) {
        let entry = usize::try_from(slot)
            .ok()
            .and_then(|slot| self.slots.get_mut(slot))
            .and_then(Option::take)
            .expect("R7: each operation completes once");
        self.free.push(slot as u32);
        entry
    }
}
