//! Grants: ranges of our contexts' memory that are open to a peer's context. What makes them so are [keys](super::keys).

use keyfence_mempool::buf::BufId;
use keyfence_pmd::Rights;

use crate::ids::{GrantId, LaneId, RemoteContext};
use crate::reclaim::KeyIx;

/// What a grant is, from the call that makes it until all its keys are dead.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grant {
    /// The owner's slot.
    pub context: u16,
    /// Who may use it.
    pub holder: RemoteContext,
    /// The lane that it is on: its last key was bound there, and frames about it go there.
    pub lane: LaneId,
    /// Its last key, until that is dead.
    pub key: Option<KeyIx>,
    /// Its keys that are not proven ended.
    pub keys_open: u16,
    /// Those of them that are in quarantine.
    pub keys_unproven: u16,
    /// Its keys that are not dead.
    pub keys_known: u16,
    /// The buffer that it lies in; held until its keys are proven ended.
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
    /// Whether its owner was told that it is in quarantine.
    pub quarantined: bool,
    /// Whether its memory and quota were given back: its keys are proven ended, though their values may still be known.
    pub ended: bool,
}

/// What has become of a grant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// It was taken back, and each of its keys is proven ended, in time: its one event is `Zapped`.
    Zapped,
    /// It was taken back, and what is left of its keys could not be proven ended in time: its one event is `GrantQuarantined`.
    Quarantined,
    /// Each of its keys is proven ended after that.
    ProvenLate,
}

impl Grant {
    /// It has a new key.
    pub fn key_begun(&mut self, key: KeyIx) {
        assert!(!self.ended, "R1: a grant that has ended gets no key");
        self.key = Some(key);
        self.keys_open += 1;
        self.keys_known += 1;
    }

    /// A key of it went into quarantine.
    pub fn key_quarantined(&mut self) {
        self.keys_unproven += 1;
        assert!(
            self.keys_unproven <= self.keys_open,
            "R6: a key is in quarantine once, and not after its proof"
        );
    }

    /// A key of it is proven ended, maybe out of quarantine.
    pub fn key_proven(&mut self, late: bool) {
        assert!(self.keys_open > 0, "R3: a key is proven ended once");
        self.keys_open -= 1;
        self.keys_unproven -= u16::from(late);
    }

    /// A key of it is dead.
    pub fn key_dead(&mut self, key: KeyIx) {
        assert!(
            self.keys_open < self.keys_known,
            "R4: a key is dead after its proof"
        );
        self.keys_known -= 1;
        if self.key == Some(key) {
            self.key = None;
        }
    }

    /// What has become of it since this was last asked.
    pub fn settle(&mut self) -> Option<Fate> {
        if !self.retired || self.ended {
            None
        } else if self.keys_open == 0 {
            self.ended = true;
            Some(if self.quarantined {
                Fate::ProvenLate
            } else {
                Fate::Zapped
            })
        } else if self.keys_open == self.keys_unproven && !self.quarantined {
            self.quarantined = true;
            Some(Fate::Quarantined)
        } else {
            None
        }
    }

    /// Whether nobody can know a value of it any more: its slot may be used again.
    pub fn is_dead(&self) -> bool {
        self.ended && self.keys_known == 0
    }
}

/// The grants of one lcore.
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
            "R4: only a dead grant's slot is on the free list"
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
            .expect("a grant that is not dead is in the table")
    }

    /// The grant in `slot`, to change; it must be there.
    pub fn at_mut(&mut self, slot: u32) -> &mut Grant {
        self.visited();
        self.slots[slot as usize]
            .1
            .as_mut()
            .expect("a grant that is not dead is in the table")
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

    /// Frees the slot of a dead grant.
    pub fn remove(&mut self, slot: u32) -> Grant {
        let grant = self.slots[slot as usize]
            .1
            .take()
            .expect("R4: a grant dies once");
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

    /// Grants that are not dead.
    pub fn in_use(&self) -> u32 {
        (self.slots.len() - self.free.len()) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{ContextId, PeerId, SessionId};

    /// A grant that has two keys, number 0 and 1.
    fn grant_with_two_keys() -> Grant {
        let holder = RemoteContext {
            peer: PeerId(0),
            session: SessionId(1),
            id: ContextId::from_bits(1),
        };
        let mut grant = Grant {
            context: 0,
            holder,
            lane: LaneId(0),
            key: None,
            keys_open: 0,
            keys_unproven: 0,
            keys_known: 0,
            buf: BufId {
                index: 0,
                generation: 0,
            },
            pool: 0,
            address: 0,
            len: 64,
            rights: Rights::READ,
            lease_ns: None,
            made_ns: 0,
            retired: false,
            quarantined: false,
            ended: false,
        };
        grant.key_begun(KeyIx(0));
        grant.key_begun(KeyIx(1));
        grant
    }

    #[test]
    fn r3_a_grant_with_two_keys_ends_with_the_second_s_proof_and_is_free_with_the_second_s_death() {
        let mut grant = grant_with_two_keys();
        grant.retired = true;
        grant.key_proven(false);
        assert_eq!(grant.settle(), None);
        grant.key_proven(false);
        assert_eq!(grant.settle(), Some(Fate::Zapped));
        assert_eq!(grant.settle(), None, "R7: once");
        assert!(!grant.is_dead());
        grant.key_dead(KeyIx(0));
        assert!(!grant.is_dead() && grant.key == Some(KeyIx(1)));
        grant.key_dead(KeyIx(1));
        assert!(grant.is_dead() && grant.key.is_none());
    }

    #[test]
    fn r1_a_grant_that_nobody_took_back_outlives_its_keys() {
        let mut grant = grant_with_two_keys();
        for key in [0, 1] {
            grant.key_proven(false);
            grant.key_dead(KeyIx(key));
            assert!(grant.settle().is_none() && !grant.is_dead());
        }
        grant.retired = true;
        assert_eq!(grant.settle(), Some(Fate::Zapped));
        assert!(grant.is_dead());
    }

    #[test]
    fn r7_two_keys_in_quarantine_are_one_event_and_so_is_one_of_them() {
        for both in [true, false] {
            let mut grant = grant_with_two_keys();
            grant.key_quarantined();
            assert_eq!(grant.settle(), None, "its owner has it still");
            grant.retired = true;
            assert_eq!(grant.settle(), None, "the other key is under way");
            if both {
                grant.key_quarantined();
            } else {
                grant.key_proven(false);
            }
            assert_eq!(grant.settle(), Some(Fate::Quarantined));
            assert_eq!(grant.settle(), None);
            if both {
                grant.key_proven(true);
                assert_eq!(grant.settle(), None, "R6: the other is in quarantine");
            }
            grant.key_proven(true);
            assert_eq!(grant.settle(), Some(Fate::ProvenLate));
        }
    }
}
