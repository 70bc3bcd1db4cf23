//! What control calls make and end: domains, regions, queue pairs, windows.

use std::ops::Range;

use keyfence_mempool::arena::Arena;
use keyfence_mempool::sync::Arc;

use super::breach::Breach;
use super::keys::{INDEX, Key};
use super::qp::{Qp, QpRef};
use super::state::State;
use crate::device::{Access, QpConfig, Region, Window};
use crate::error::{ControlError, within};
use crate::ids::{Lkey, PdId, QpId, RegionId, WindowId};

impl State {
    pub(super) fn known_qp(&self, at: QpRef) -> Result<&Qp, ControlError> {
        let known = self.qp(at).filter(|qp| !qp.is_ghost);
        known.ok_or(ControlError::NoSuchQp(at.qp))
    }

    pub(super) fn alloc_pd(&mut self, adapter: u32) -> Result<PdId, ControlError> {
        let adapter = self.adapter(adapter);
        let pd = PdId(adapter.next_pd);
        adapter.next_pd = pd.0.checked_add(1).ok_or(ControlError::Exhausted {
            what: "protection domains in a device's life",
            limit: u64::from(u32::MAX),
        })?;
        adapter.pds.insert(pd);
        Ok(pd)
    }

    pub(super) fn dealloc_pd(&mut self, adapter: u32, pd: PdId) -> Result<(), ControlError> {
        self.known_pd(adapter, pd)?;
        let has_qp = self.qps_of(adapter).into_iter().any(|at| {
            let qp = self.known_qp(at);
            qp.is_ok_and(|qp| qp.pd == pd)
        });
        let record = self.adapter(adapter);
        let mut keys = record.keys.table.values();
        let has_region = keys.any(|key| matches!(key, Key::Region(region) if region.pd == pd));
        let users = match (has_region, has_qp) {
            (true, _) => "regions",
            (_, true) => "queue pairs",
            (false, false) => {
                record.pds.remove(&pd);
                return Ok(());
            }
        };
        let what = "protection domain";
        Err(ControlError::InUse { what, users })
    }

    pub(super) fn register(
        &mut self,
        adapter: u32,
        pd: PdId,
        arena: &Arc<Arena>,
        range: Range<usize>,
        access: Access,
    ) -> Result<Region, ControlError> {
        let bytes = arena.bytes() as u64;
        let (start, end) = (range.start as u64, range.end as u64);
        within("region start", start, 0, bytes - 1)?;
        within("region end", end, start + 1, bytes)?;
        self.known_pd(adapter, pd)?;
        let place = (arena, range.start, range.len());
        let rights = (access.remote, access.bind);
        let record = self.adapter(adapter);
        let (id, rkey) = record.keys.add_region(pd, place, rights)?;
        // Of an earlier region of this name, whose late end nobody asked about again.
        record.done_late.remove(&("deregister", id.0.into()));
        Ok(Region {
            id,
            lkey: Lkey(rkey.0),
            rkey,
        })
    }

    pub(super) fn deregister(&mut self, adapter: u32, id: RegionId) -> Result<(), ControlError> {
        let index = id.0 & INDEX;
        let region = self.adapter(adapter).keys.region(index);
        let region = region.filter(|region| region.id == id);
        let region = region.ok_or(ControlError::NoSuchRegion(id))?;
        if region.windows > 0 {
            return Err(ControlError::InUse {
                what: "region",
                users: "bound windows",
            });
        }
        if !self.breaks(Breach::DeregisterDoesNotFence) {
            self.settle_region(adapter, index);
        }
        self.adapter(adapter).keys.remove_region(index);
        Ok(())
    }

    pub(super) fn create_qp(
        &mut self,
        adapter: u32,
        config: &QpConfig,
    ) -> Result<QpId, ControlError> {
        let caps = &self.caps;
        let most = u64::from(caps.max_send_depth);
        within("send_depth", config.send_depth, 1, most)?;
        let most = u64::from(caps.max_receive_depth);
        within("receive_depth", config.receive_depth, 1, most)?;
        let most = caps.max_sge as u64;
        within("max_sge", config.max_sge as u64, 1, most)?;
        let (inline, most) = (config.max_inline_bytes as u64, caps.max_inline_bytes as u64);
        within("max_inline_bytes", inline, 0, most)?;
        self.known_pd(adapter, config.pd)?;
        let limit = self.config.max_qps;
        let count = self.qps_of(adapter).len();
        let record = self.adapter(adapter);
        let lcore = record.lcores.get(usize::from(config.lcore.0));
        if lcore.is_none_or(|lcore| !lcore.is_open || lcore.is_gone) {
            return Err(ControlError::NoSuchLcore(config.lcore));
        }
        if count >= limit as usize || record.next_qp == u32::MAX {
            return Err(ControlError::Exhausted {
                what: "queue pairs",
                limit: u64::from(limit),
            });
        }
        let qp = QpId(record.next_qp);
        record.next_qp += 1;
        self.qps.insert(QpRef { adapter, qp }, Qp::new(config));
        Ok(qp)
    }

    pub(super) fn error_qp(&mut self, at: QpRef) -> Result<(), ControlError> {
        self.known_qp(at)?;
        self.enter_error(at);
        Ok(())
    }

    /// The lcore gives a queue pair up: nothing of it is polled from now on.
    pub(super) fn release(&mut self, at: QpRef) {
        self.enter_error(at);
        if let Some(qp) = self.qp_mut(at) {
            qp.released = true;
            self.adapter(at.adapter).forget_completions(at.qp);
        }
    }

    pub(super) fn destroy_qp(&mut self, at: QpRef) -> Result<(), ControlError> {
        let qp = self.known_qp(at)?;
        let lcore = &self.adapters[at.adapter as usize].lcores[qp.lcore];
        if !qp.released && !lcore.is_gone {
            return Err(ControlError::NotReleased(at.qp));
        }
        self.remove_qp(at);
        Ok(())
    }

    /// Ends a queue pair and all that it does to memory.
    pub(super) fn remove_qp(&mut self, at: QpRef) {
        self.enter_error(at);
        self.orphan_windows(at);
        self.adapter(at.adapter).forget(at.qp);
        if !self.breaks(Breach::DestroyDoesNotFence) {
            self.settle_all(at);
            self.qps.remove(&at);
        } else if let Some(qp) = self.qp_mut(at) {
            qp.is_ghost = true;
        }
    }

    pub(super) fn alloc_window(&mut self, at: QpRef) -> Result<Window, ControlError> {
        if !self.config.windows {
            return Err(ControlError::Unsupported {
                device: "sim",
                what: "windows",
            });
        }
        let pd = self.known_qp(at)?.pd;
        let record = self.adapter(at.adapter);
        let (id, rkey) = record.keys.add_window(at.qp, pd)?;
        record.done_late.remove(&("dealloc_window", id.0.into()));
        Ok(Window { id, rkey })
    }

    pub(super) fn dealloc_window(
        &mut self,
        adapter: u32,
        id: WindowId,
    ) -> Result<(), ControlError> {
        let index = id.0 & INDEX;
        let window = self.adapter(adapter).keys.window(index);
        let window = window.filter(|window| window.id == id);
        let qp = window.ok_or(ControlError::NoSuchWindow(id))?.qp;
        let owner = self.qp(QpRef { adapter, qp }).filter(|qp| !qp.in_error);
        let healthy = owner.is_some();
        if owner.is_some_and(|qp| qp.send.invalidates(index)) {
            self.misuses += 1;
        }
        let fences = self.config.dealloc_fences || !healthy;
        if fences && !self.breaks(Breach::DeallocDoesNotFence) {
            self.settle_window(adapter, index);
        }
        self.adapter(adapter).keys.remove_window(index);
        Ok(())
    }

    fn known_pd(&mut self, adapter: u32, pd: PdId) -> Result<(), ControlError> {
        let known = self.adapter(adapter).pds.contains(&pd);
        known.then_some(()).ok_or(ControlError::NoSuchPd(pd))
    }
}
