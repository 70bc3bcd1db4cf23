//! Imports: peers' grants to our contexts, and the tombstones of grants that were taken back.

use keyfence_pmd::{Rights, Rkey};

use crate::grant::by_context::ByContext;
use crate::ids::{GrantId, ImportId, LaneId, RemoteContext};

/// Where an import is in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ImportPhase {
    /// It may be used.
    Live,
    /// It was taken back, or its context died; posted operations run down.
    Fencing,
}

/// One import.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ImportEntry {
    /// The holder's slot.
    pub context: u16,
    /// The lane that the key works on.
    pub lane: LaneId,
    /// The grant's name at the peer.
    pub grant: GrantId,
    /// The context whose memory it is.
    pub owner: RemoteContext,
    /// First byte, at the peer.
    pub address: u64,
    /// Bytes.
    pub len: u64,
    /// The key; never shown to an application.
    pub rkey: Rkey,
    /// What it allows.
    pub rights: Rights,
    /// Where it is.
    pub phase: ImportPhase,
    /// Work requests posted by it and not proven executed.
    pub in_flight: u32,
    /// Operations in the slab that name it.
    pub users: u32,
    /// The fence that waits for it.
    pub fence: Option<u16>,
    /// The last repair of its lane in which the owner has named it; 0 if none.
    pub listed: u32,
    /// Whether the owner must be told that the holder gave it up.
    pub tell_owner: bool,
}

/// The imports of one lcore.
#[derive(Debug)]
pub struct Imports {
    slots: Vec<(u32, Option<ImportEntry>)>,
    free: Vec<u32>,
    by_context: ByContext,
    /// Entries looked at.
    #[cfg(test)]
    pub visits: core::cell::Cell<u64>,
}

impl Imports {
    /// Room for `capacity` imports of so many contexts.
    pub fn new(capacity: u32, contexts: u16) -> Self {
        Self {
            slots: vec![(0, None); capacity as usize],
            free: (0..capacity).rev().collect(),
            by_context: ByContext::new(capacity, contexts),
            #[cfg(test)]
            visits: core::cell::Cell::new(0),
        }
    }

    /// Stores an import, or gives `None` when the table is full.
    pub fn insert(&mut self, import: ImportEntry) -> Option<ImportId> {
        let slot = self.free.pop()?;
        let (generation, entry) = &mut self.slots[slot as usize];
        *generation += 1;
        *entry = Some(import);
        self.by_context.insert(import.context, slot);
        Some(ImportId {
            slot,
            generation: *generation,
        })
    }

    /// The import named `id`, unless the name is stale.
    #[inline]
    pub fn get(&self, id: ImportId) -> Option<&ImportEntry> {
        let (generation, import) = self.slots.get(id.slot as usize)?;
        import.as_ref().filter(|_| *generation == id.generation)
    }

    /// The import in `slot`; it must be there.
    #[inline]
    pub fn at(&self, slot: u32) -> &ImportEntry {
        self.visited();
        self.slots[slot as usize]
            .1
            .as_ref()
            .expect("an import in use is in the table")
    }

    /// The import in `slot`, to change; it must be there.
    #[inline]
    pub fn at_mut(&mut self, slot: u32) -> &mut ImportEntry {
        self.visited();
        self.slots[slot as usize]
            .1
            .as_mut()
            .expect("an import in use is in the table")
    }

    /// The full name of the import in `slot`.
    pub fn id(&self, slot: u32) -> ImportId {
        ImportId {
            slot,
            generation: self.slots[slot as usize].0,
        }
    }

    /// Takes an import out, when nothing names it any more.
    pub fn remove(&mut self, slot: u32) -> ImportEntry {
        let import = self.slots[slot as usize]
            .1
            .take()
            .expect("an import ends once");
        assert!(
            import.in_flight == 0 && import.users == 0,
            "an import outlives its operations"
        );
        self.free.push(slot);
        self.by_context.remove(import.context, slot);
        import
    }

    /// The first of a context's imports.
    pub fn first_of(&self, context: u16) -> Option<u32> {
        self.by_context.first(context)
    }

    /// The next of the same context.
    pub fn next_of(&self, slot: u32) -> Option<u32> {
        self.by_context.next(slot)
    }

    #[inline]
    fn visited(&self) {
        #[cfg(test)]
        self.visits.set(self.visits.get() + 1);
    }

    /// Imports in the table.
    pub fn in_use(&self) -> u32 {
        (self.slots.len() - self.free.len()) as u32
    }

    /// Slots of the table.
    pub fn capacity(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Whether `slot` holds an import.
    pub fn is_used(&self, slot: u32) -> bool {
        self.visited();
        self.slots[slot as usize].1.is_some()
    }
}

/// What a lane knows of one grant slot of its peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PeerGrant {
    /// Nothing yet.
    #[default]
    Unknown,
    /// An import of ours.
    Imported {
        /// The grant's generation.
        generation: u32,
        /// The import's slot.
        import: u32,
    },
    /// Taken back up to this generation: a key of it that arrives later is dead on arrival.
    Tombstone {
        /// The newest generation known dead.
        generation: u32,
    },
}

impl PeerGrant {
    /// Whether a grant of `generation` may still come alive in this slot.
    pub fn admits(self, generation: u32) -> bool {
        match self {
            Self::Unknown => true,
            Self::Imported { .. } => false,
            Self::Tombstone { generation: dead } => generation.wrapping_sub(dead) as i32 > 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_behind_its_tombstone_is_dead_on_arrival() {
        let tomb = PeerGrant::Tombstone { generation: 7 };
        assert!(!tomb.admits(7));
        assert!(!tomb.admits(6));
        assert!(tomb.admits(8));
        assert!(PeerGrant::Unknown.admits(0));
    }
}
