//! Grants: ranges of our contexts' memory that are open to a peer's context. The state of each key is the reclaim machine's; here are the facts.

use keyfence_mempool::buf::BufId;
use keyfence_pmd::{Rights, Rkey};

use crate::ids::{GrantId, LaneId, RemoteContext};

/// What a grant is, from the bind of its key until the key is dead.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grant {
    /// The owner's slot.
    pub context: u16,
    /// Who may use it.
    pub holder: RemoteContext,
    /// The lane that the key is bound on.
    pub lane: LaneId,
    /// The window, in the lane's table; `None` if the key is a region of its own.
    pub window: Option<u32>,
    /// The key's value; of a region's, zero until that is registered.
    pub rkey: Rkey,
    /// The buffer that it lies in; held until the key is proven ended.
    pub buf: BufId,
    /// Which of the lcore's pools the buffer is of.
    pub pool: u8,
    /// First byte.
    pub address: u64,
    /// Bytes.
    pub len: u64,
    /// What the holder may do.
    pub rights: Rights,
    /// How long it lives without renewal; `None` for ever.
    pub lease_ns: Option<u64>,
    /// When it was made. What renews it is any word of the holder's engine: [`Lane::silent_ns`](crate::lane::Lane).
    pub made_ns: u64,
    /// Whether its owner, or its owner's reclaim, has taken it back.
    pub retired: bool,
    /// Whether its memory and quota were given back: the key is proven ended, though its value may still be known.
    pub ended: bool,
    /// Whether a reminder names it, until that is answered.
    pub reminded: bool,
}

/// The grants of one lcore. A slot is a key of the reclaim machine.
#[derive(Debug)]
pub struct Grants {
    slots: Vec<(u32, Option<Grant>)>,
    free: Vec<u32>,
    /// Slots from here on were never used.
    touched: u32,
    /// Entries looked at.
    #[cfg(test)]
    pub visits: core::cell::Cell<u64>,
}

impl Grants {
    /// Room for `capacity` grants.
    pub fn new(capacity: u32) -> Self {
        Self {
            slots: vec![(0, None); capacity as usize],
            free: (0..capacity).rev().collect(),
            touched: 0,
            #[cfg(test)]
            visits: core::cell::Cell::new(0),
        }
    }

    /// Stores a grant, or gives `None` when the table is full.
    pub fn insert(&mut self, grant: Grant) -> Option<GrantId> {
        let slot = self.free.pop()?;
        let (generation, entry) = &mut self.slots[slot as usize];
        assert!(
            entry.is_none(),
            "R4: only a dead key's slot is on the free list"
        );
        *generation += 1;
        *entry = Some(grant);
        self.touched = self.touched.max(slot + 1);
        Some(GrantId {
            slot,
            generation: *generation,
        })
    }

    /// The grant named `id`, unless the name is stale.
    pub fn get(&self, id: GrantId) -> Option<&Grant> {
        let (generation, grant) = self.slots.get(id.slot as usize)?;
        grant.as_ref().filter(|_| *generation == id.generation)
    }

    /// The grant in `slot`; it must be there.
    pub fn at(&self, slot: u32) -> &Grant {
        self.visited();
        self.slots[slot as usize]
            .1
            .as_ref()
            .expect("a key that is not dead has a grant")
    }

    /// The grant in `slot`, to change; it must be there.
    pub fn at_mut(&mut self, slot: u32) -> &mut Grant {
        self.visited();
        self.slots[slot as usize]
            .1
            .as_mut()
            .expect("a key that is not dead has a grant")
    }

    /// The grant in `slot`, if there is one.
    pub fn in_slot(&self, slot: u32) -> Option<&Grant> {
        self.visited();
        self.slots[slot as usize].1.as_ref()
    }

    /// The full name of the grant in `slot`.
    pub fn id(&self, slot: u32) -> GrantId {
        GrantId {
            slot,
            generation: self.slots[slot as usize].0,
        }
    }

    /// Frees a slot whose key is dead.
    pub fn remove(&mut self, slot: u32) -> Grant {
        let grant = self.slots[slot as usize]
            .1
            .take()
            .expect("R4: a key dies once");
        self.free.push(slot);
        grant
    }

    /// Every grant that is not dead, by slot.
    pub fn iter(&self) -> impl Iterator<Item = (GrantId, &Grant)> {
        self.slots
            .iter()
            .enumerate()
            .inspect(|_| self.visited())
            .filter_map(|(slot, (generation, grant))| {
                let id = GrantId {
                    slot: slot as u32,
                    generation: *generation,
                };
                grant.as_ref().map(|grant| (id, grant))
            })
    }

    fn visited(&self) {
        #[cfg(test)]
        self.visits.set(self.visits.get() + 1);
    }

    /// Slots that were ever used: none from here on holds a grant.
    pub fn touched(&self) -> u32 {
        self.touched
    }

    /// Slots of the table.
    pub fn capacity(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Grants that are not dead.
    pub fn in_use(&self) -> u32 {
        (self.slots.len() - self.free.len()) as u32
    }
}
