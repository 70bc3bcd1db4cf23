//! The table of windows and regions, and the check of every access against it.
//!
//! One entry of one cache line an index of the 24-bit space that windows and regions share. Who an entry is and whether it
//! lives is one atomic word; the other fields never change while that word says live, and an entry is given to somebody else only
//! after every path that may have read them has passed a quiescent point (`quiesce`). So a check is a load of the word, compares, and
//! loads of fields, without a lock.

use keyfence_mempool::sync::{AtomicU32, AtomicU64, Ordering};

use super::arenas::ArenaRef;
use crate::ids::{PdId, QpId, RegionId, Rkey, WindowId};
use crate::work::Rights;

/// An access that the table refuses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Refused;

/// Where checked bytes are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    pub(crate) arena: ArenaRef,
    pub(crate) offset: usize,
    pub(crate) len: usize,
}

/// Life of an entry. Only control calls leave and enter `Free` and `Dying`; only the path of its queue pair binds and unbinds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Phase {
    Free = 0,
    Region = 1,
    WindowIdle = 2,
    WindowBound = 3,
    /// No check passes any more; freed after a quiescent point.
    Dying = 4,
}

/// The word that says who an entry is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Identity {
    pub(crate) phase: Phase,
    pub(crate) rights: Rights,
    /// A region to which windows may be bound.
    pub(crate) bindable: bool,
    /// The lowest byte of the key that is valid now, or was last.
    pub(crate) tag: u8,
    /// Tells apart the handles of successive owners of the index.
    pub(crate) generation: u8,
    /// The queue pair of a window, the protection domain of a region. Both are numbers used once.
    pub(crate) scope: u32,
}

/// One index of the key space.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Entry {
    identity: AtomicU64,
    /// A region's windows; [`CLOSED`] when it takes no more.
    bound: AtomicU64,
    base: AtomicU64,
    bytes: AtomicU64,
    offset: AtomicU64,
    arena: AtomicU64,
    /// The region of a bound window.
    region: AtomicU32,
}

/// The range behind an entry, written before its identity is published.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Extent {
    pub(crate) base: u64,
    pub(crate) bytes: u64,
    /// Of `base` in the arena.
    pub(crate) offset: u64,
    pub(crate) arena: ArenaRef,
}

const CLOSED: u64 = u64::MAX;

/// All entries of one device. Index 0 is nobody's, so that a zero key is never valid.
#[derive(Debug)]
pub(crate) struct KeyTable {
    entries: Box<[Entry]>,
}

impl KeyTable {
    pub(crate) fn new(entries: u32) -> Self {
        Self {
            entries: (0..=entries).map(|_| Entry::new()).collect(),
        }
    }

    #[inline]
    pub(crate) fn entry(&self, index: u32) -> Option<&Entry> {
        self.entries.get(index as usize)
    }

    /// Checks a range of local memory of a work request.
    #[inline(always)]
    pub(crate) fn local(
        &self,
        lkey: u32,
        pd: PdId,
        address: u64,
        len: u64,
    ) -> Result<Place, Refused> {
        let key = Rkey(lkey);
        let entry = self.entry(key.index()).ok_or(Refused)?;
        let word = entry.identity.load(Ordering::Acquire);
        if word & WHO == who(Phase::Region, key.tag(), pd.0) {
            entry.place(address, len)
        } else {
            Err(Refused)
        }
    }

    /// Checks an access of the peer of queue pair `qp`.
    #[inline(always)]
    pub(crate) fn remote(
        &self,
        rkey: Rkey,
        (qp, pd): (QpId, PdId),
        (address, len): (u64, u64),
        wanted: Rights,
    ) -> Result<Place, Refused> {
        let entry = self.entry(rkey.index()).ok_or(Refused)?;
        let word = entry.identity.load(Ordering::Acquire);
        let tag = rkey.tag();
        let live = word & WHO == who(Phase::WindowBound, tag, qp.0)
            || word & WHO == who(Phase::Region, tag, pd.0);
        let wanted = rights_bits(wanted);
        if live && word & wanted == wanted {
            entry.place(address, len)
        } else {
            Err(Refused)
        }
    }
}

impl Entry {
    fn new() -> Self {
        Self {
            identity: AtomicU64::new(0),
            bound: AtomicU64::new(0),
            base: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            offset: AtomicU64::new(0),
            arena: AtomicU64::new(0),
            region: AtomicU32::new(0),
        }
    }

    #[inline]
    pub(crate) fn identity(&self) -> Identity {
        Identity::unpack(self.identity.load(Ordering::Acquire))
    }

    /// Replaces `from` by `to`, unless somebody was faster. What was written to the other fields before is published.
    pub(crate) fn change(&self, from: Identity, to: Identity) -> bool {
        self.identity
            .compare_exchange(from.pack(), to.pack(), Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    pub(crate) fn set_extent(&self, extent: Extent, region: u32) {
        self.base.store(extent.base, Ordering::Relaxed);
        self.bytes.store(extent.bytes, Ordering::Relaxed);
        self.offset.store(extent.offset, Ordering::Relaxed);
        self.arena.store(extent.arena.0, Ordering::Relaxed);
        self.region.store(region, Ordering::Relaxed);
    }

    /// Where `len` bytes at `address` are, if the entry has them.
    #[inline(always)]
    pub(crate) fn place(&self, address: u64, len: u64) -> Result<Place, Refused> {
        let skip = address
            .checked_sub(self.base.load(Ordering::Relaxed))
            .ok_or(Refused)?;
        let bytes = self.bytes.load(Ordering::Relaxed);
        if len > bytes || skip > bytes - len {
            return Err(Refused);
        }
        Ok(Place {
            arena: ArenaRef(self.arena.load(Ordering::Relaxed)),
            offset: (self.offset.load(Ordering::Relaxed) + skip) as usize,
            len: len as usize,
        })
    }

    /// The region that a bound window opens.
    pub(crate) fn region(&self) -> u32 {
        self.region.load(Ordering::Relaxed)
    }

    /// Counts one more window, unless the region takes no more.
    pub(crate) fn add_window(&self) -> bool {
        let counted = self
            .bound
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |windows| {
                (windows != CLOSED).then(|| windows + 1)
            });
        counted.is_ok()
    }

    pub(crate) fn remove_window(&self) {
        let windows = self.bound.fetch_sub(1, Ordering::AcqRel);
        assert!(
            windows != 0 && windows != CLOSED,
            "a region lost count of its windows"
        );
    }

    /// Takes no more windows from now on, if there are none.
    pub(crate) fn close_to_windows(&self) -> bool {
        self.bound
            .compare_exchange(0, CLOSED, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    pub(crate) fn open_to_windows(&self) {
        self.bound.store(0, Ordering::Release);
    }
}

/// Of an identity's word: phase, tag and scope, which a check of a key compares in one go.
const WHO: u64 = 0xffff_ffff_0000_ff0f;

const fn who(phase: Phase, tag: u8, scope: u32) -> u64 {
    phase as u64 | (tag as u64) << 8 | (scope as u64) << 32
}

const fn rights_bits(rights: Rights) -> u64 {
    (rights.read as u64) << 4 | (rights.write as u64) << 5 | (rights.atomic as u64) << 6
}

impl Identity {
    const fn pack(self) -> u64 {
        who(self.phase, self.tag, self.scope)
            | rights_bits(self.rights)
            | (self.bindable as u64) << 7
            | (self.generation as u64) << 16
    }

    const fn unpack(word: u64) -> Self {
        Self {
            phase: match word & 0xf {
                0 => Phase::Free,
                1 => Phase::Region,
                2 => Phase::WindowIdle,
                3 => Phase::WindowBound,
                4 => Phase::Dying,
                _ => panic!("a key entry is in no phase"),
            },
            rights: Rights {
                read: word & 1 << 4 != 0,
                write: word & 1 << 5 != 0,
                atomic: word & 1 << 6 != 0,
            },
            bindable: word & 1 << 7 != 0,
            tag: (word >> 8) as u8,
            generation: (word >> 16) as u8,
            scope: (word >> 32) as u32,
        }
    }

    /// The same owner in another phase.
    pub(crate) const fn in_phase(mut self, phase: Phase) -> Self {
        self.phase = phase;
        self
    }
}

/// The number of a handle: an index with the generation of its owner above it.
pub(crate) const fn handle(index: u32, generation: u8) -> u32 {
    index | (generation as u32) << 24
}

/// The index and generation of a window's handle.
pub(crate) const fn window_parts(window: WindowId) -> (u32, u8) {
    (window.0 & 0xff_ffff, (window.0 >> 24) as u8)
}

/// The index and generation of a region's handle.
pub(crate) const fn region_parts(region: RegionId) -> (u32, u8) {
    (region.0 & 0xff_ffff, (region.0 >> 24) as u8)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const QP: QpId = QpId(7);
    const PD: PdId = PdId(3);

    fn entry_of(phase: Phase, scope: u32, rights: Rights) -> KeyTable {
        let table = KeyTable::new(4);
        let entry = table.entry(2).unwrap();
        entry.set_extent(
            Extent {
                base: 0x1000,
                bytes: 100,
                offset: 40,
                arena: ArenaRef(9),
            },
            1,
        );
        let free = entry.identity();
        let identity = Identity {
            phase,
            rights,
            bindable: false,
            tag: 5,
            generation: 1,
            scope,
        };
        assert!(entry.change(free, identity));
        table
    }

    #[test]
    fn r12_a_key_opens_exactly_its_bytes() {
        let table = entry_of(Phase::WindowBound, QP.0, Rights::WRITE);
        let check =
            |address, len| table.remote(Rkey::new(2, 5), (QP, PD), (address, len), Rights::WRITE);
        let place = check(0x1000, 100).unwrap();
        assert_eq!((place.offset, place.len), (40, 100));
        assert_eq!(check(0x1000 + 99, 1).unwrap().offset, 139);
        for (address, len) in [
            (0xfff, 1),
            (0x1000, 101),
            (0x1000 + 100, 1),
            (0x1000 + 99, 2),
            (u64::MAX, 1),
            (u64::MAX, u64::MAX),
            (0x1000, u64::MAX),
            (0, 0x1000),
            (0, u64::MAX),
        ] {
            assert_eq!(check(address, len), Err(Refused), "{address:#x}+{len}");
        }
    }

    #[test]
    fn r12_a_key_opens_exactly_its_scope_its_tag_and_its_rights() {
        let window = entry_of(Phase::WindowBound, QP.0, Rights::READ);
        let check = |table: &KeyTable, rkey, qp, pd, rights| {
            table.remote(rkey, (qp, pd), (0x1000, 1), rights).is_ok()
        };
        let key = Rkey::new(2, 5);
        assert!(check(&window, key, QP, PD, Rights::READ));
        assert!(!check(&window, key, QpId(8), PD, Rights::READ));
        assert!(!check(&window, key.with_tag(6), QP, PD, Rights::READ));
        assert!(!check(&window, Rkey::new(1, 5), QP, PD, Rights::READ));
        assert!(!check(
            &window,
            Rkey::new(0xff_ffff, 5),
            QP,
            PD,
            Rights::READ
        ));
        assert!(!check(&window, key, QP, PD, Rights::WRITE));
        assert!(!check(&window, key, QP, PD, Rights::READ_WRITE));
        let region = entry_of(Phase::Region, PD.0, Rights::READ);
        assert!(check(&region, key, QpId(8), PD, Rights::READ));
        assert!(!check(&region, key, QP, PdId(4), Rights::READ));
        for dead in [Phase::WindowIdle, Phase::Dying, Phase::Free] {
            let table = entry_of(dead, QP.0, Rights::ALL);
            assert!(!check(&table, key, QP, PD, Rights::NONE), "{dead:?}");
        }
    }

    #[test]
    fn a_region_closes_only_without_windows_and_stays_closed() {
        let entry = Entry::new();
        assert!(entry.add_window());
        assert!(!entry.close_to_windows());
        entry.remove_window();
        assert!(entry.close_to_windows());
        assert!(!entry.add_window());
    }

    proptest! {
        #[test]
        fn an_identity_survives_its_word(
            phase in 0u8..5, read: bool, write: bool, atomic: bool, bindable: bool, tag: u8, generation: u8, scope: u32,
        ) {
            let phases = [Phase::Free, Phase::Region, Phase::WindowIdle, Phase::WindowBound, Phase::Dying];
            let identity = Identity {
                phase: phases[phase as usize], rights: Rights { read, write, atomic }, bindable, tag, generation, scope,
            };
            prop_assert_eq!(Identity::unpack(identity.pack()), identity);
        }
    }
}
