//! The keys of grants. A grant has one at a time; one that a key was taken from may get another while the first is not proven ended. The state
//! of each is the reclaim machine's; here are the facts.

use keyfence_pmd::Rkey;

use crate::ids::LaneId;
use crate::reclaim::KeyIx;

/// The name of a key in this engine: its slot in the table of its lcore, and the slot's generation. A holder knows the grant's name alone.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct KeyId {
    /// Its slot.
    pub slot: u32,
    /// How often the slot has been given out.
    pub generation: u32,
}

impl KeyId {
    /// Its slot, as the reclaim machine names it.
    pub const fn ix(self) -> KeyIx {
        KeyIx(self.slot)
    }
}

/// What a key is, from before its bind until it is dead.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Key {
    /// The slot of its grant, which stays there for as long.
    pub grant: u32,
    /// The lane that it is bound on.
    pub lane: LaneId,
    /// The window, in the lane's table; `None` if the key is a region of its own.
    pub window: Option<u32>,
    /// Its value; of a region's, zero until that is registered.
    pub rkey: Rkey,
    /// Whether a reminder names it, until that is answered.
    pub reminded: bool,
    /// Whether the list of a repair waits for it.
    pub listed: bool,
    /// Whether it counts against its peer as parked.
    pub charged: bool,
}

/// The keys of one lcore. A slot is a key of the reclaim machine.
#[derive(Debug)]
pub struct Keys {
    slots: Vec<(u32, Option<Key>)>,
    free: Vec<u32>,
}

impl Keys {
    /// Room for `capacity` keys.
    pub fn new(capacity: u32) -> Self {
        Self {
            slots: vec![(0, None); capacity as usize],
            // From the top, unlike grants: taken for one of theirs, a slot is a wrong one from the first key on.
            free: (0..capacity).collect(),
        }
    }

    /// Stores a key, or gives `None` when the table is full.
    pub fn insert(&mut self, key: Key) -> Option<KeyId> {
        let slot = self.free.pop()?;
        let (generation, entry) = &mut self.slots[slot as usize];
        assert!(
            entry.is_none(),
            "R4: only a dead key's slot is on the free list"
        );
        *generation += 1;
        *entry = Some(key);
        Some(KeyId {
            slot,
            generation: *generation,
        })
    }

    /// The key named `id`, unless the name is stale.
    pub fn get(&self, id: KeyId) -> Option<&Key> {
        let (generation, key) = self.slots.get(id.slot as usize)?;
        key.as_ref().filter(|_| *generation == id.generation)
    }

    /// Slots.
    pub fn capacity(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Slots without a key.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// The key in a slot, if there is one.
    pub fn in_slot(&self, key: KeyIx) -> Option<&Key> {
        self.slots[key.0 as usize].1.as_ref()
    }

    /// A key that is not dead.
    pub fn at(&self, key: KeyIx) -> &Key {
        let entry = self.slots[key.0 as usize].1.as_ref();
        entry.expect("a key that is not dead is in the table")
    }

    /// A key that is not dead, to change.
    pub fn at_mut(&mut self, key: KeyIx) -> &mut Key {
        let entry = self.slots[key.0 as usize].1.as_mut();
        entry.expect("a key that is not dead is in the table")
    }

    /// Its full name.
    pub fn id(&self, key: KeyIx) -> KeyId {
        KeyId {
            slot: key.0,
            generation: self.slots[key.0 as usize].0,
        }
    }

    /// Those of a grant that are not dead. A walk over the table: for diagnosis.
    pub fn of_grant(&self, grant: u32) -> impl Iterator<Item = KeyIx> {
        let slots = self.slots.iter().zip(0..);
        slots.filter_map(move |((_, key), slot)| {
            key.is_some_and(|key| key.grant == grant)
                .then_some(KeyIx(slot))
        })
    }

    /// Frees the slot of a dead key.
    pub fn remove(&mut self, key: KeyIx) -> Key {
        let entry = self.slots[key.0 as usize].1.take();
        self.free.push(key.0);
        entry.expect("R4: a key dies once")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: Key = Key {
        grant: 3,
        lane: LaneId(0),
        window: None,
        rkey: Rkey(1),
        reminded: false,
        listed: false,
        charged: false,
    };

    #[test]
    fn r4_the_name_of_a_dead_key_is_stale_when_its_slot_is_used_again() {
        let mut keys = Keys::new(1);
        let first = keys.insert(KEY).unwrap();
        assert_eq!(keys.insert(KEY), None, "the table is full");
        keys.remove(first.ix());
        assert_eq!(keys.get(first), None);
        let next = keys.insert(KEY).unwrap();
        assert_eq!((next.ix(), keys.id(next.ix())), (first.ix(), next));
        assert_eq!(keys.get(first), None);
        assert_eq!(keys.get(next), Some(&KEY));
    }

    #[test]
    fn a_grant_s_keys_are_found_by_it() {
        let mut keys = Keys::new(3);
        let give = |grant| keys.insert(Key { grant, ..KEY }).unwrap().ix();
        let [one, _, other] = [3, 4, 3].map(give);
        assert!(keys.of_grant(3).eq([other, one]));
        keys.remove(one);
        assert!(keys.of_grant(3).eq([other]));
    }
}
