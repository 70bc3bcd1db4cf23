//! Life of keys: registered, bound, ended, and their indexes given out again.

use std::collections::VecDeque;

use keyfence_mempool::arena::Arena;
use keyfence_mempool::sync::Arc;

use super::keys::{Bound, INDEX, Index, Indexes, Key, Keys, Refused, RegionKey, Scope, WindowKey};
use crate::error::ControlError;
use crate::ids::{PdId, QpId, RegionId, Rkey, WindowId};
use crate::work::{Rights, WorkOp};

impl Keys {
    /// Opens a window.
    pub(super) fn bind(&mut self, op: &WorkOp, scope: Scope) -> Result<(), Refused> {
        let WorkOp::Bind {
            window,
            region,
            address,
            len,
            rights,
            rkey,
        } = *op
        else {
            return Err(Refused);
        };
        let region_index = region.0 & INDEX;
        let idle = self.window(window.0 & INDEX).ok_or(Refused)?;
        let ours = idle.id == window && idle.qp == scope.qp && idle.bound.is_none();
        if !ours || idle.is_orphan || rkey.index() != window.0 & INDEX || len == 0 {
            return Err(Refused);
        }
        let target = self.region(region_index).ok_or(Refused)?;
        let usable = target.id == region && target.pd == scope.pd && target.bindable;
        if !usable || !target.contains(address, len) {
            return Err(Refused);
        }
        target.windows += 1;
        let idle = self.window(window.0 & INDEX).expect("just seen");
        idle.tag = rkey.tag();
        idle.bound = Some(Bound {
            region: region_index,
            address,
            len,
            rights,
        });
        Ok(())
    }

    /// Whether an invalidation of this key would end a live key of this queue pair; `Err` if a device without checks meets a window that is
    /// not bound.
    pub(super) fn is_live(&mut self, rkey: Rkey, scope: Scope) -> Result<bool, Refused> {
        let window = self.window(rkey.index()).ok_or(Refused)?;
        if window.bound.is_none() {
            return Err(Refused);
        }
        Ok(window.tag == rkey.tag() && window.qp == scope.qp)
    }

    /// Ends a window's key, and counts it out of its region.
    pub(super) fn unbind(&mut self, index: u32) {
        let Some(bound) = self.window(index).and_then(|window| window.bound.take()) else {
            return;
        };
        if let Some(region) = self.region(bound.region) {
            region.windows -= 1;
        }
    }

    /// Adds a region over bytes of an arena, which are inside of it.
    pub(super) fn add_region(
        &mut self,
        pd: PdId,
        (arena, offset, bytes): (&Arc<Arena>, usize, usize),
        (rights, bindable): (Rights, bool),
    ) -> Result<(RegionId, Rkey), ControlError> {
        let index = self.region_indexes.take()?;
        let id = RegionId(index.handle());
        let region = RegionKey {
            id,
            pd,
            tag: index.tag,
            rights,
            bindable,
            arena: Arc::clone(arena),
            offset,
            base: arena.address() + offset as u64,
            bytes: bytes as u64,
            windows: 0,
        };
        self.table.insert(index.number, Key::Region(region));
        Ok((id, Rkey::new(index.number, index.tag)))
    }

    pub(super) fn remove_region(&mut self, index: u32) {
        if let Some(Key::Region(region)) = self.table.remove(&index) {
            let generation = (region.id.0 >> 24) as u8;
            self.region_indexes.give_back(index, generation, region.tag);
        }
    }

    /// Adds a window for a queue pair.
    pub(super) fn add_window(
        &mut self,
        qp: QpId,
        pd: PdId,
    ) -> Result<(WindowId, Rkey), ControlError> {
        let index = self.window_indexes.take()?;
        let id = WindowId(index.handle());
        let window = WindowKey {
            id,
            qp,
            pd,
            tag: index.tag.wrapping_sub(1),
            bound: None,
            is_orphan: false,
        };
        self.table.insert(index.number, Key::Window(window));
        Ok((id, Rkey::new(index.number, index.tag)))
    }

    pub(super) fn remove_window(&mut self, index: u32) {
        self.unbind(index);
        if let Some(Key::Window(window)) = self.table.remove(&index) {
            let generation = (window.id.0 >> 24) as u8;
            self.window_indexes.give_back(index, generation, window.tag);
        }
    }
}

impl Indexes {
    pub(super) fn new(what: &'static str, first: u32, limit: u32) -> Self {
        Self {
            free: VecDeque::new(),
            next: first,
            end: first + limit,
            what,
            limit,
        }
    }

    fn take(&mut self) -> Result<Index, ControlError> {
        if self.next < self.end {
            self.next += 1;
            return Ok(Index {
                number: self.next - 1,
                generation: 1,
                tag: 1,
            });
        }
        self.free.pop_front().ok_or(ControlError::Exhausted {
            what: self.what,
            limit: u64::from(self.limit),
        })
    }

    fn give_back(&mut self, number: u32, generation: u8, last_tag: u8) {
        self.free.push_back(Index {
            number,
            generation: generation.wrapping_add(1),
            tag: last_tag.wrapping_add(1),
        });
    }
}

impl Index {
    fn handle(self) -> u32 {
        self.number | u32::from(self.generation) << 24
    }
}
