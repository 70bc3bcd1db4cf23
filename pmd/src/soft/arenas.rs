//! Who holds which arena: the device by registration, and every path by a copy of the reference, so that an access takes no lock.

use keyfence_mempool::arena::Arena;
use keyfence_mempool::dma::DmaSlice;
use keyfence_mempool::ring::spsc::{self, Consumer, Producer};
use keyfence_mempool::sync::Arc;

use super::keys::Place;
use crate::error::ControlError;

/// Arenas at a time.
pub(crate) const MAX_ARENAS: usize = 256;
/// Additions and removals that one path has not taken yet.
const MAX_CHANGES: usize = 1024;

/// A slot of the arena tables, and a number that is used once, so that a slot's former arena is never taken for its present one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ArenaRef(pub(crate) u64);

impl ArenaRef {
    const fn new(slot: usize, serial: u64) -> Self {
        Self(serial << 8 | slot as u64)
    }

    const fn slot(self) -> usize {
        (self.0 & 0xff) as usize
    }
}

/// A change of the table that a path takes at its next step.
#[derive(Debug)]
enum Change {
    Add(ArenaRef, Arc<Arena>),
    Remove(ArenaRef),
}

/// The arenas that have regions. Control side.
#[derive(Debug)]
pub(crate) struct ArenaBooks {
    slots: Vec<Option<Held>>,
    serial: u64,
    paths: Vec<PathFeed>,
}

#[derive(Debug)]
struct Held {
    arena: Arc<Arena>,
    name: ArenaRef,
    regions: u32,
}

#[derive(Debug)]
struct PathFeed {
    changes: Producer<Change>,
    /// References that the path gave up: dropped here, since unmapping enters the kernel.
    returned: Consumer<Arc<Arena>>,
}

/// An arena as a path knows it.
type Known = (ArenaRef, Arc<Arena>);

/// The arenas that one path can reach.
#[derive(Debug)]
pub(crate) struct PathArenas {
    slots: Box<[Option<Known>; MAX_ARENAS]>,
    changes: Consumer<Change>,
    returned: Producer<Arc<Arena>>,
}

impl ArenaBooks {
    pub(crate) fn new() -> Self {
        Self {
            slots: Vec::new(),
            serial: 0,
            paths: Vec::new(),
        }
    }

    /// The table of a new path.
    pub(crate) fn open_path(&mut self) -> PathArenas {
        let (changes_in, changes) = spsc::ring(MAX_CHANGES);
        let (returned, returned_out) = spsc::ring(MAX_CHANGES);
        self.paths.push(PathFeed {
            changes: changes_in,
            returned: returned_out,
        });
        let mut slots = Box::new([const { None }; MAX_ARENAS]);
        for held in self.slots.iter().flatten() {
            slots[held.name.slot()] = Some((held.name, Arc::clone(&held.arena)));
        }
        PathArenas {
            slots,
            changes,
            returned,
        }
    }

    /// Counts one more region of `arena`.
    pub(crate) fn add_region(&mut self, arena: &Arc<Arena>) -> Result<ArenaRef, ControlError> {
        self.sweep();
        let known = self
            .slots
            .iter_mut()
            .flatten()
            .find(|held| Arc::ptr_eq(&held.arena, arena));
        if let Some(held) = known {
            held.regions += 1;
            return Ok(held.name);
        }
        let slot = self.free_slot()?;
        self.check_room()?;
        self.serial += 1;
        let name = ArenaRef::new(slot, self.serial);
        self.slots[slot] = Some(Held {
            arena: Arc::clone(arena),
            name,
            regions: 1,
        });
        self.tell(|| Change::Add(name, Arc::clone(arena)));
        Ok(name)
    }

    /// Counts one region less; with the last one the device gives the arena up.
    pub(crate) fn remove_region(&mut self, name: ArenaRef) {
        let held = self.slots[name.slot()]
            .as_mut()
            .expect("a region has an arena");
        assert!(
            held.name == name && held.regions > 0,
            "a region's arena changed"
        );
        held.regions -= 1;
        self.sweep();
    }

    /// Drops what paths have returned, and gives up arenas without regions as far as paths can be told.
    pub(crate) fn sweep(&mut self) {
        for path in &mut self.paths {
            while path.returned.pop().is_some() {}
        }
        for slot in 0..self.slots.len() {
            let unused = self.slots[slot].as_ref().filter(|held| held.regions == 0);
            let Some(name) = unused.map(|held| held.name) else {
                continue;
            };
            if self.check_room().is_err() {
                // A path takes no changes: the arena stays until it does.
                return;
            }
            self.slots[slot] = None;
            self.tell(|| Change::Remove(name));
        }
    }

    fn free_slot(&mut self) -> Result<usize, ControlError> {
        if let Some(slot) = self.slots.iter().position(Option::is_none) {
            return Ok(slot);
        }
        if self.slots.len() == MAX_ARENAS {
            return Err(ControlError::Exhausted {
                what: "arenas",
                limit: MAX_ARENAS as u64,
            });
        }
        self.slots.push(None);
        Ok(self.slots.len() - 1)
    }

    fn check_room(&self) -> Result<(), ControlError> {
        let mut open = self.paths.iter().filter(|path| !path.changes.is_closed());
        if open.all(|path| path.changes.len() < path.changes.capacity()) {
            return Ok(());
        }
        Err(ControlError::Exhausted {
            what: "arena changes that a lcore has not taken; poll it",
            limit: MAX_CHANGES as u64,
        })
    }

    fn tell(&mut self, change: impl Fn() -> Change) {
        for path in &mut self.paths {
            if !path.changes.is_closed() {
                let told = path.changes.push(change());
                assert!(told.is_ok(), "room for an arena change was checked");
            }
        }
    }
}

impl PathArenas {
    /// The bytes of a checked place. `None` only if the table and the keys contradict each other, which a path turns into a
    /// refused access.
    #[inline(always)]
    pub(crate) fn dma(&mut self, place: Place) -> Option<DmaSlice<'_>> {
        if !self.knows(place.arena) {
            // The region is younger than this step.
            self.take_changes();
            if !self.knows(place.arena) {
                return None;
            }
        }
        let (_, arena) = self.slots[place.arena.slot()].as_ref()?;
        arena.dma(place.offset, place.len).ok()
    }

    #[inline]
    fn knows(&self, arena: ArenaRef) -> bool {
        matches!(&self.slots[arena.slot()], Some((name, _)) if *name == arena)
    }

    /// Follows the device's table.
    #[inline]
    pub(crate) fn take_changes(&mut self) {
        while let Some(change) = self.changes.pop() {
            self.take(change);
        }
    }

    #[cold]
    fn take(&mut self, change: Change) {
        match change {
            Change::Add(name, arena) => {
                let former = self.slots[name.slot()].replace((name, arena));
                assert!(former.is_none(), "an arena was added over another");
            }
            Change::Remove(name) => self.give_up(name),
        }
    }

    fn give_up(&mut self, name: ArenaRef) {
        let (known, arena) = self.slots[name.slot()]
            .take()
            .expect("a removed arena was added");
        assert!(known == name, "another arena was removed");
        // There are never more removals under way than the ring holds: each began as a change, and the device empties this ring
        // before it makes one.
        let returned = self.returned.push(arena);
        assert!(returned.is_ok(), "more arenas returned than removed");
    }
}
