//! Windows and regions as a path sees them, and the checks before a bind or an invalidation is posted.
//!
//! Adapters differ in what they refuse: some take a bind outside its region, Soft-RoCE stops the host at an invalidation of a free window. So
//! the driver knows of each window what its next request finds, in the order of posting, and posts only what will be granted. The key
//! of a window belongs to its queue pair, so one path writes it.
//!
//! A region counts what may hold a window to it: a bind from its post until it has ended, and a bound window. It can be deregistered when it
//! counts none.

use keyfence_mempool::dma::DmaSlice;
use keyfence_mempool::sync::{AtomicU32, AtomicU64, Ordering};

use super::by_key::ByKey;
use super::grace::Grace;
use super::numbers::slot_of;
use super::sys::{Inside, Mr, Mw, Table};
use crate::ids::{PdId, QpId, RegionId, Rkey, WindowId};
use crate::work::Sge;

/// A window.
#[derive(Debug)]
pub(crate) struct Window {
    pub(crate) id: WindowId,
    pub(crate) qp: QpId,
    pub(crate) mw: Mw,
    pub(crate) index: u32,
    /// What the next request finds: the live key and [`LIVE`], or no key.
    pub(crate) next: AtomicU64,
    /// The region, one above its slot, that the last bind that succeeded holds; [`DEAD`] once the window is ended.
    pub(crate) bound: AtomicU32,
}

const LIVE: u64 = 1 << 32;
/// It was bound before, and is free again.
const USED: u64 = 1 << 33;
const DEAD: u32 = u32::MAX;

/// A region.
#[derive(Debug)]
pub(crate) struct Region {
    pub(crate) id: RegionId,
    pub(crate) pd: PdId,
    pub(crate) mr: Mr,
    pub(crate) lkey: u32,
    pub(crate) start: u64,
    pub(crate) bytes: u64,
    /// Where the range begins in its arena.
    pub(crate) offset: usize,
    pub(crate) bindable: bool,
}

/// What holds windows to regions, by the slot of the region.
#[derive(Debug)]
pub(crate) struct RegionUses {
    counts: Box<[AtomicU32]>,
}

const CLOSED: u32 = 1 << 31;

/// What a posted request does to a window when it ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Effect {
    None,
    /// The window is bound to the region in this slot.
    Bind(WindowId, u32),
    Invalidate(WindowId),
}

/// A bind that is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BindRequest {
    pub(crate) window: WindowId,
    pub(crate) region: RegionId,
    pub(crate) address: u64,
    pub(crate) len: u64,
    pub(crate) rkey: Rkey,
}

/// All windows and regions of a device.
#[derive(Debug)]
pub(crate) struct Objects {
    pub(crate) windows: Table<Window>,
    pub(crate) window_slots: ByKey,
    pub(crate) regions: Table<Region>,
    pub(crate) region_slots: ByKey,
    pub(crate) uses: RegionUses,
    pub(crate) grace: Grace,
}

/// The objects during a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View<'a> {
    pub(crate) objects: &'a Objects,
    pub(crate) inside: &'a Inside<'a>,
}

impl Window {
    pub(crate) fn new(id: WindowId, qp: QpId, mw: Mw) -> Self {
        Self {
            id,
            qp,
            index: Rkey(mw.rkey()).index(),
            mw,
            next: AtomicU64::new(0),
            bound: AtomicU32::new(0),
        }
    }

    /// Whether it was ever bound, or may have been.
    pub(crate) fn was_used(&self) -> bool {
        self.next.load(Ordering::Acquire) != 0
    }

    /// No completion changes it any more. The slot of the region that it may be bound to.
    pub(crate) fn kill(&self) -> Option<u32> {
        match self.bound.swap(DEAD, Ordering::AcqRel) {
            0 | DEAD => None,
            slot => Some(slot - 1),
        }
    }
}

impl RegionUses {
    pub(crate) fn new(slots: usize) -> Self {
        Self {
            counts: (0..slots).map(|_| AtomicU32::new(0)).collect(),
        }
    }

    /// Nothing may be bound to the region any more. False if something is.
    pub(crate) fn close(&self, slot: usize) -> bool {
        let (free, closed) = (Ordering::AcqRel, Ordering::Acquire);
        let swapped = self.counts[slot].compare_exchange(0, CLOSED, free, closed);
        swapped.is_ok_and(|_| true) || swapped == Err(CLOSED)
    }

    pub(crate) fn open(&self, slot: usize) {
        self.counts[slot].store(0, Ordering::Release);
    }

    /// Counts one more, unless the region is closed.
    fn add(&self, slot: usize) -> bool {
        let before = self.counts[slot].fetch_add(1, Ordering::AcqRel);
        let added = before & CLOSED == 0;
        if !added {
            self.counts[slot].fetch_sub(1, Ordering::AcqRel);
        }
        added
    }

    pub(crate) fn remove(&self, slot: u32) {
        let before = self.counts[slot as usize].fetch_sub(1, Ordering::AcqRel);
        debug_assert!(before & !CLOSED > 0, "a region counts fewer than none");
    }
}

impl<'a> View<'a> {
    pub(crate) fn window(&self, id: WindowId) -> Option<&'a Window> {
        let slot = slot_of(id.0, self.objects.windows.len() as u32);
        let window = self.objects.windows.get(slot, self.inside)?;
        (window.id == id).then_some(window)
    }

    fn region(&self, id: RegionId) -> Option<(u32, &'a Region)> {
        let slot = slot_of(id.0, self.objects.regions.len() as u32);
        let region = self.objects.regions.get(slot, self.inside)?;
        (region.id == id).then_some((slot as u32, region))
    }

    /// Checks a bind for a queue pair, and enters it. What it binds, and its effect.
    pub(crate) fn bind(
        &self,
        (qp, pd): (QpId, PdId),
        bind: &BindRequest,
    ) -> Option<(&'a Mw, &'a Mr, Effect)> {
        let window = self.window(bind.window)?;
        let (slot, region) = self.region(bind.region)?;
        let free = window.next.load(Ordering::Relaxed) & LIVE == 0;
        let granted = window.qp == qp
            && region.pd == pd
            && region.bindable
            && free
            && bind.rkey.index() == window.index
            && bind.len > 0
            && region.covers(bind.address, bind.len);
        if !granted || !self.objects.uses.add(slot as usize) {
            return None;
        }
        let next = LIVE | u64::from(bind.rkey.0);
        window.next.store(next, Ordering::Relaxed);
        let effect = Effect::Bind(window.id, slot);
        Some((&window.mw, &region.mr, effect))
    }

    /// Checks an invalidation for a queue pair, and enters it.
    pub(crate) fn invalidate(&self, qp: QpId, rkey: Rkey) -> Option<Effect> {
        let live = LIVE | u64::from(rkey.0);
        let slots = self.objects.window_slots.slots(rkey.index());
        let mut windows = slots.filter_map(|slot| self.objects.windows.get(slot, self.inside));
        let window = windows
            .find(|window| window.qp == qp && window.next.load(Ordering::Relaxed) == live)?;
        window.next.store(USED, Ordering::Relaxed);
        Some(Effect::Invalidate(window.id))
    }

    /// The bytes that an inline request may read, if its local key and range are good.
    pub(crate) fn inline_bytes(&self, pd: PdId, sge: &Sge) -> Option<DmaSlice<'a>> {
        let region = self.local(pd, sge)?;
        let offset = region.offset + (sge.address - region.start) as usize;
        region.mr.arena().dma(offset, sge.len as usize).ok()
    }

    /// Whether a local key and range are good.
    pub(crate) fn is_local(&self, pd: PdId, sge: &Sge) -> bool {
        sge.len == 0 || self.local(pd, sge).is_some()
    }

    fn local(&self, pd: PdId, sge: &Sge) -> Option<&'a Region> {
        let slots = self.objects.region_slots.slots(sge.lkey);
        let mut regions = slots.filter_map(|slot| self.objects.regions.get(slot, self.inside));
        let region = regions.find(|region| region.lkey == sge.lkey && region.pd == pd)?;
        let len = u64::from(sge.len);
        region.covers(sge.address, len).then_some(region)
    }

    /// The request has been executed.
    pub(crate) fn succeeded(&self, effect: Effect) {
        match effect {
            Effect::None => {}
            Effect::Bind(window, slot) => {
                let bound = self.window(window).is_some_and(|window| {
                    let (set, seen) = (Ordering::AcqRel, Ordering::Acquire);
                    let bound = &window.bound;
                    bound.compare_exchange(0, slot + 1, set, seen).is_ok()
                });
                if !bound {
                    self.objects.uses.remove(slot);
                }
            }
            Effect::Invalidate(window) => {
                let Some(window) = self.window(window) else {
                    return;
                };
                let bound = window.bound.load(Ordering::Acquire);
                let (set, seen) = (Ordering::AcqRel, Ordering::Relaxed);
                let freed = bound != DEAD
                    && bound != 0
                    && window.bound.compare_exchange(bound, 0, set, seen).is_ok();
                if freed {
                    self.objects.uses.remove(bound - 1);
                }
            }
        }
    }

    /// The request was not executed. An invalidation that was not leaves its window bound.
    pub(crate) fn undone(&self, effect: Effect) {
        if let Effect::Bind(_, slot) = effect {
            self.objects.uses.remove(slot);
        }
    }
}

impl Region {
    /// Whether a range lies inside.
    fn covers(&self, address: u64, len: u64) -> bool {
        let Some(offset) = address.checked_sub(self.start) else {
            return false;
        };
        offset <= self.bytes && len <= self.bytes - offset
    }
}
