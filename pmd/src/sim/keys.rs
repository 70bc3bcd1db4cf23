//! The keys of one adapter: regions and windows in one index space, and the check of every access against them.

use std::collections::{BTreeMap, VecDeque};

use keyfence_mempool::arena::Arena;
use keyfence_mempool::sync::Arc;

use super::config::SimConfig;
use super::record::AccessKey;
use crate::ids::{Lkey, PdId, QpId, RegionId, Rkey, WindowId};
use crate::work::{Rights, Sge};

/// A region.
#[derive(Debug)]
pub(super) struct RegionKey {
    pub(super) id: RegionId,
    pub(super) pd: PdId,
    pub(super) tag: u8,
    pub(super) rights: Rights,
    pub(super) bindable: bool,
    pub(super) arena: Arc<Arena>,
    pub(super) offset: usize,
    pub(super) base: u64,
    pub(super) bytes: u64,
    /// Windows bound to it, those of destroyed queue pairs included.
    pub(super) windows: u32,
}

/// A window.
#[derive(Debug)]
pub(super) struct WindowKey {
    pub(super) id: WindowId,
    pub(super) qp: QpId,
    pub(super) pd: PdId,
    /// Of the last bind.
    pub(super) tag: u8,
    pub(super) bound: Option<Bound>,
    /// Its queue pair is destroyed: the key opens nothing, and the region stays in use until the window's end.
    pub(super) is_orphan: bool,
}

/// What a bound window opens.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bound {
    pub(super) region: u32,
    pub(super) address: u64,
    pub(super) len: u64,
    pub(super) rights: Rights,
}

/// One index of the key space.
#[derive(Debug)]
pub(super) enum Key {
    Region(RegionKey),
    Window(WindowKey),
}

/// All keys of an adapter.
#[derive(Debug)]
pub(super) struct Keys {
    pub(super) table: BTreeMap<u32, Key>,
    pub(super) window_indexes: Indexes,
    pub(super) region_indexes: Indexes,
}

/// Checked bytes, and by what they were checked. It holds on to the memory, not to the key: what was accepted lands if nobody stops it.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) arena: Arc<Arena>,
    pub(super) offset: usize,
    pub(super) len: usize,
    pub(super) address: u64,
    pub(super) key: AccessKey,
    pub(super) region: u32,
    pub(super) window: Option<u32>,
}

/// Indexes of one kind with the generation and tag of their next owner; the one that was free longest is taken first, so that a key's value
/// comes back as late as can be.
#[derive(Debug)]
pub(super) struct Indexes {
    pub(super) free: VecDeque<Index>,
    pub(super) next: u32,
    pub(super) end: u32,
    pub(super) what: &'static str,
    pub(super) limit: u32,
}

/// A free index.
#[derive(Clone, Copy, Debug)]
pub(super) struct Index {
    pub(super) number: u32,
    pub(super) generation: u8,
    /// A tag that has not been live yet, if there is one.
    pub(super) tag: u8,
}

/// An access that the keys refuse.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Refused;

/// Whose access is checked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scope {
    pub(super) qp: QpId,
    pub(super) pd: PdId,
}

impl Keys {
    pub(super) fn new(config: &SimConfig) -> Self {
        Self {
            table: BTreeMap::new(),
            window_indexes: Indexes::new("windows", 1, config.max_windows),
            region_indexes: Indexes::new("regions", config.max_windows + 1, config.max_regions),
        }
    }

    pub(super) fn region(&mut self, index: u32) -> Option<&mut RegionKey> {
        match self.table.get_mut(&index) {
            Some(Key::Region(region)) => Some(region),
            _ => None,
        }
    }

    pub(super) fn window(&mut self, index: u32) -> Option<&mut WindowKey> {
        match self.table.get_mut(&index) {
            Some(Key::Window(window)) => Some(window),
            _ => None,
        }
    }

    /// Checks `len` bytes at `skip` of a scatter/gather list; entries without bytes name no memory.
    pub(super) fn local(
        &self,
        pd: PdId,
        sges: &[Sge],
        skip: u64,
        len: u64,
    ) -> Result<Vec<Place>, Refused> {
        let (mut places, mut start) = (Vec::new(), 0);
        for sge in sges {
            let end = start + u64::from(sge.len);
            let (from, to) = (start.max(skip), end.min(skip + len));
            if from < to {
                let address = sge.address.checked_add(from - start).ok_or(Refused)?;
                places.push(self.local_one(pd, sge.lkey, address, to - from)?);
            }
            start = end;
        }
        Ok(places)
    }

    fn local_one(&self, pd: PdId, lkey: u32, address: u64, len: u64) -> Result<Place, Refused> {
        let key = Rkey(lkey);
        let Some(Key::Region(region)) = self.table.get(&key.index()) else {
            return Err(Refused);
        };
        if region.tag != key.tag() || region.pd != pd {
            return Err(Refused);
        }
        region.place(key.index(), (address, len), AccessKey::Local(Lkey(lkey)))
    }

    /// Checks an access of the peer of a queue pair.
    pub(super) fn remote(
        &self,
        config: &SimConfig,
        rkey: Rkey,
        scope: Scope,
        (address, len): (u64, u64),
        wanted: Rights,
    ) -> Result<Place, Refused> {
        let key = AccessKey::Remote(rkey);
        match self.table.get(&rkey.index()) {
            Some(Key::Region(region)) => {
                let live = region.tag == rkey.tag() && region.pd == scope.pd;
                if !live || !region.rights.allow(wanted) {
                    return Err(Refused);
                }
                region.place(rkey.index(), (address, len), key)
            }
            Some(Key::Window(window)) => {
                let bound = window.bound.ok_or(Refused)?;
                let ours = match config.window_scope {
                    true => window.qp == scope.qp,
                    false => window.pd == scope.pd,
                };
                let live = window.tag == rkey.tag() && ours && !window.is_orphan;
                let allowed =
                    bound.rights.allow(wanted) && (config.window_atomics || !wanted.atomic);
                let inside = !config.window_bounds || bound.contains(address, len);
                if !live || !allowed || !inside {
                    return Err(Refused);
                }
                let Some(Key::Region(region)) = self.table.get(&bound.region) else {
                    return Err(Refused);
                };
                let place = region.place(bound.region, (address, len), key)?;
                let window = Some(rkey.index());
                Ok(Place { window, ..place })
            }
            None => Err(Refused),
        }
    }

    /// These bytes of whatever region has them, for [`Breach::ChecksKeysOnce`](super::Breach) alone.
    pub(super) fn anywhere(&self, address: u64, len: u64) -> Option<Place> {
        self.table.iter().find_map(|(index, key)| match key {
            Key::Region(region) => {
                let key = AccessKey::Remote(Rkey::new(*index, region.tag));
                region.place(*index, (address, len), key).ok()
            }
            Key::Window(_) => None,
        })
    }
}

/// The part of a handle, or of a key without its tag, that is the index.
pub(super) const INDEX: u32 = 0xff_ffff;

impl RegionKey {
    pub(super) fn contains(&self, address: u64, len: u64) -> bool {
        within(self.base, self.bytes, address, len)
    }

    fn place(
        &self,
        index: u32,
        (address, len): (u64, u64),
        key: AccessKey,
    ) -> Result<Place, Refused> {
        if !self.contains(address, len) {
            return Err(Refused);
        }
        Ok(Place {
            arena: Arc::clone(&self.arena),
            offset: self.offset + (address - self.base) as usize,
            len: len as usize,
            address,
            key,
            region: index,
            window: None,
        })
    }
}

impl Bound {
    pub(super) fn contains(&self, address: u64, len: u64) -> bool {
        within(self.address, self.len, address, len)
    }
}

fn within(base: u64, bytes: u64, address: u64, len: u64) -> bool {
    match address.checked_sub(base) {
        Some(skip) => len <= bytes && skip <= bytes - len,
        None => false,
    }
}
