//! Binding and invalidating windows: what a send queue does with keys.

use super::keys::{Extent, Identity, KeyTable, Phase, Refused, region_parts, window_parts};
use crate::ids::{PdId, QpId, RegionId, Rkey, WindowId};
use crate::work::Rights;

/// A bind as posted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bind {
    pub(crate) window: WindowId,
    pub(crate) region: RegionId,
    pub(crate) address: u64,
    pub(crate) len: u64,
    pub(crate) rights: Rights,
    pub(crate) rkey: Rkey,
}

impl KeyTable {
    /// Opens a window. Called by the path of its queue pair alone.
    pub(crate) fn bind(&self, bind: &Bind, qp: QpId, pd: PdId) -> Result<(), Refused> {
        let (index, generation) = window_parts(bind.window);
        let window = self.entry(index).ok_or(Refused)?;
        let idle = window.identity();
        let ours = idle.phase == Phase::WindowIdle
            && idle.generation == generation
            && idle.scope == qp.0
            && bind.rkey.index() == index;
        if !ours || bind.len == 0 {
            return Err(Refused);
        }
        let (region_index, region_generation) = region_parts(bind.region);
        let region = self.entry(region_index).ok_or(Refused)?;
        let owner = region.identity();
        let usable = owner.phase == Phase::Region
            && owner.generation == region_generation
            && owner.scope == pd.0
            && owner.bindable;
        if !usable {
            return Err(Refused);
        }
        let place = region.place(bind.address, bind.len)?;
        // From here on the region cannot be deregistered.
        if !region.add_window() {
            return Err(Refused);
        }
        let extent = Extent {
            base: bind.address,
            bytes: bind.len,
            offset: place.offset as u64,
            arena: place.arena,
        };
        window.set_extent(extent, region_index);
        let bound = Identity {
            phase: Phase::WindowBound,
            rights: bind.rights,
            tag: bind.rkey.tag(),
            ..idle
        };
        if window.change(idle, bound) {
            return Ok(());
        }
        // A control thread deallocates the window at this moment.
        region.remove_window();
        Err(Refused)
    }

    /// Ends a bound window's key. Called by the path of its queue pair alone: no other access is going on, and none passes later.
    pub(crate) fn invalidate(&self, rkey: Rkey, qp: QpId) -> Result<(), Refused> {
        let window = self.entry(rkey.index()).ok_or(Refused)?;
        let bound = window.identity();
        let ours =
            bound.phase == Phase::WindowBound && bound.tag == rkey.tag() && bound.scope == qp.0;
        if !ours || !window.change(bound, bound.in_phase(Phase::WindowIdle)) {
            return Err(Refused);
        }
        self.unbind_from_region(window.region());
        Ok(())
    }

    /// Gives a free index to a window of `qp`; the tag of the last bind stays known.
    pub(crate) fn open_window(&self, index: u32, generation: u8, qp: QpId) -> Rkey {
        let entry = self.entry(index).expect("a window's index is in the table");
        let free = entry.identity();
        let idle = Identity {
            phase: Phase::WindowIdle,
            rights: Rights::NONE,
            bindable: false,
            tag: free.tag,
            generation,
            scope: qp.0,
        };
        let opened = free.phase == Phase::Free && entry.change(free, idle);
        assert!(opened, "a window's index was not free");
        Rkey::new(index, free.tag.wrapping_add(1))
    }

    /// Marks a window dead, bound or not. Returns its region if it was bound.
    pub(crate) fn kill_window(&self, index: u32) -> Option<u32> {
        let entry = self.entry(index).expect("a window's index is in the table");
        loop {
            let identity = entry.identity();
            let bound = match identity.phase {
                Phase::WindowBound => true,
                Phase::WindowIdle => false,
                phase => panic!("a window to be ended is {phase:?}"),
            };
            // The path may bind or invalidate at this moment: then look again.
            if entry.change(identity, identity.in_phase(Phase::Dying)) {
                return bound.then(|| entry.region());
            }
        }
    }

    /// Gives a region's index, range and rights to its keys.
    pub(crate) fn open_region(&self, index: u32, identity: Identity, extent: Extent) {
        let entry = self.entry(index).expect("a region's index is in the table");
        let free = entry.identity();
        assert!(free.phase == Phase::Free, "a region's index was not free");
        entry.set_extent(extent, index);
        entry.open_to_windows();
        assert!(entry.change(free, identity), "two owners of a free index");
    }

    /// Marks a region dead, unless windows are bound to it.
    pub(crate) fn kill_region(&self, index: u32) -> bool {
        let entry = self.entry(index).expect("a region's index is in the table");
        if !entry.close_to_windows() {
            return false;
        }
        let live = entry.identity();
        let killed = live.phase == Phase::Region && entry.change(live, live.in_phase(Phase::Dying));
        assert!(killed, "a region was ended by two");
        true
    }

    /// Gives back a dead index after its quiescent point.
    pub(crate) fn free(&self, index: u32) {
        let entry = self.entry(index).expect("a dead index is in the table");
        let dying = entry.identity();
        let freed = dying.phase == Phase::Dying && entry.change(dying, dying.in_phase(Phase::Free));
        assert!(freed, "a freed index was not dead");
    }

    pub(crate) fn unbind_from_region(&self, region: u32) {
        let region = self.entry(region).expect("a bound window has a region");
        region.remove_window();
    }
}
