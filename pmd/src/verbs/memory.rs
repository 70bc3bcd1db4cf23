//! The control calls for regions and windows.

use std::ops::Range;
use std::sync::Arc as StdArc;

use keyfence_mempool::arena::Arena;
use keyfence_mempool::sync::Arc;

use super::books::{RegionRecord, WindowRecord};
use super::device::Shared;
use super::error::{no_more, not_registered, system};
use super::numbers::slot_of;
use super::sys::{Mr, Mw, wait_for_accesses};
use super::windows::{Region, Window};
use crate::device;
use crate::device::Access;
use crate::error::ControlError;
use crate::ids::{Lkey, PdId, QpId, RegionId, Rkey, WindowId};

const BOUND: ControlError = ControlError::InUse {
    what: "region",
    users: "bound windows",
};

/// Regions.
impl Shared {
    pub(crate) fn register(
        &self,
        pd: PdId,
        arena: &Arc<Arena>,
        range: Range<usize>,
        access: Access,
    ) -> Result<device::Region, ControlError> {
        let (held, number) = {
            let mut books = self.books();
            (books.pd(pd)?, books.region_numbers.take()?)
        };
        let made = Mr::register(&held, arena, range.clone(), access.remote, access.bind);
        let mr = match made {
            Ok(mr) => mr,
            Err(error) => {
                self.books().region_numbers.give_back(number);
                return Err(not_registered(range.len() as u64, &error));
            }
        };
        let region = StdArc::new(Region {
            id: RegionId(number),
            pd,
            lkey: mr.lkey(),
            start: arena.address() + range.start as u64,
            bytes: range.len() as u64,
            offset: range.start,
            bindable: access.bind,
            mr,
        });
        let named = device::Region {
            id: region.id,
            lkey: Lkey(region.lkey),
            rkey: Rkey(region.mr.rkey()),
        };
        let mut books = self.books();
        self.publish_region(&region);
        let retired = None;
        books
            .regions
            .insert(named.id, RegionRecord { region, retired });
        Ok(named)
    }

    /// Lets paths find a region. With the lock held.
    fn publish_region(&self, region: &StdArc<Region>) {
        let slot = slot_of(region.id.0, self.caps.max_regions);
        self.objects.uses.open(slot);
        self.objects.regions.publish(slot, region);
        self.objects.region_slots.insert(region.lkey, slot);
    }

    pub(crate) fn deregister(&self, id: RegionId) -> Result<(), ControlError> {
        let slot = slot_of(id.0, self.caps.max_regions);
        let RegionRecord { region, retired } = {
            let mut books = self.books();
            let unknown = ControlError::NoSuchRegion(id);
            let mut record = books.regions.remove(&id).ok_or(unknown)?;
            if record.retired.is_none() {
                if !self.objects.uses.close(slot) {
                    books.regions.insert(id, record);
                    return Err(BOUND);
                }
                self.objects.region_slots.remove(record.region.lkey, slot);
                record.retired = self.objects.regions.retire(slot);
            }
            record
        };
        if let Some(retired) = retired
            && let Err((retired, late)) = retired.wait(self.config.quiesce_timeout_ns)
        {
            let retired = Some(retired);
            let record = RegionRecord { region, retired };
            self.books().regions.insert(id, record);
            return Err(late);
        }
        self.free_region(region)
    }

    /// Ends a region that no path looks at.
    fn free_region(&self, region: StdArc<Region>) -> Result<(), ControlError> {
        let id = region.id;
        let region =
            StdArc::into_inner(region).expect("no path looks at it, and its record is ours");
        match region.mr.free() {
            Ok(()) => {
                self.books().region_numbers.give_back(id.0);
                Ok(())
            }
            Err((mr, error)) => {
                let region = StdArc::new(Region { mr, ..region });
                let mut books = self.books();
                self.publish_region(&region);
                let retired = None;
                books.regions.insert(id, RegionRecord { region, retired });
                // What the adapter knows of, and this driver does not: a window that was bound when its queue pair ended.
                match error.raw_os_error() {
                    Some(libc::EBUSY | libc::EINVAL) => Err(BOUND),
                    _ => Err(system("ibv_dereg_mr", &error)),
                }
            }
        }
    }
}

/// Windows.
impl Shared {
    pub(crate) fn alloc_window(&self, qp: QpId) -> Result<device::Window, ControlError> {
        let unsupported = ControlError::Unsupported {
            device: "this adapter",
            what: "memory windows of type 2B",
        };
        let (pd, number) = {
            let mut books = self.books();
            let pd = books.qp(qp)?.pd;
            if !self.caps.windows {
                return Err(unsupported);
            }
            (books.pd(pd)?, books.window_numbers.take()?)
        };
        let mw = match Mw::alloc(&pd) {
            Ok(mw) => mw,
            Err(error) => {
                self.books().window_numbers.give_back(number);
                let call = ("ibv_alloc_mw", "windows");
                return Err(no_more(call, self.caps.max_windows, &error));
            }
        };
        let named = device::Window {
            id: WindowId(number),
            rkey: Rkey(mw.rkey()),
        };
        let window = StdArc::new(Window::new(named.id, qp, mw));
        let mut books = self.books();
        let slot = slot_of(number, self.caps.max_windows);
        self.objects.windows.publish(slot, &window);
        self.objects.window_slots.insert(window.index, slot);
        let record = WindowRecord {
            qp,
            window: Some(window),
            retired: None,
            bound: None,
            was_used: false,
        };
        books.windows.insert(named.id, record);
        Ok(named)
    }

    pub(crate) fn dealloc_window(&self, id: WindowId) -> Result<(), ControlError> {
        let record = self.end_window(id)?;
        // The fence costs a grace period, so it is not for a window that was never bound.
        if self.software && record.was_used {
            let fenced = wait_for_accesses();
            if let Err(error) = fenced {
                self.books_of_the_dying().windows.insert(id, record);
                return Err(system("membarrier", &error));
            }
        }
        self.forget_window(id, &record);
        Ok(())
    }

    /// Deallocates a window whose access may go on for a moment: what has its memory is still registered.
    pub(crate) fn drop_window(&self, id: WindowId) {
        // One that is late ends with the last path.
        if let Ok(record) = self.end_window(id) {
            self.forget_window(id, &record);
        }
    }

    fn forget_window(&self, id: WindowId, record: &WindowRecord) {
        if let Some(region) = record.bound {
            self.objects.uses.remove(region);
        }
        self.books_of_the_dying().window_numbers.give_back(id.0);
    }

    /// Deallocates the adapter's windows of a queue pair that is in error. Bound ones would hold up its destruction (by 51 s on Soft-RoCE of
    /// kernel 6.1). To the caller they stay allocated.
    pub(crate) fn end_windows_of(&self, qp: QpId) -> Result<(), ControlError> {
        let windows: Vec<WindowId> = {
            let books = self.books();
            let windows = books.windows.iter();
            let of_qp = windows.filter(|(_, record)| record.qp == qp && record.window.is_some());
            of_qp.map(|(id, _)| *id).collect()
        };
        for id in windows {
            let record = match self.end_window(id) {
                // Another call ends it.
                Err(ControlError::NoSuchWindow(_)) => continue,
                ended => ended?,
            };
            self.books().windows.insert(id, record);
        }
        Ok(())
    }

    /// Deallocates the adapter's window, if that is not done yet. Its record, which is put back if it fails.
    fn end_window(&self, id: WindowId) -> Result<WindowRecord, ControlError> {
        let slot = slot_of(id.0, self.caps.max_windows);
        let mut record = {
            let mut books = self.books_of_the_dying();
            let unknown = ControlError::NoSuchWindow(id);
            let mut record = books.windows.remove(&id).ok_or(unknown)?;
            if let Some(window) = &record.window
                && let Some(retired) = self.objects.windows.retire(slot)
            {
                self.objects.window_slots.remove(window.index, slot);
                record.retired = Some(retired);
            }
            record
        };
        let ended = self.free_window(&mut record);
        if let Err(error) = ended {
            self.books_of_the_dying().windows.insert(id, record);
            return Err(error);
        }
        Ok(record)
    }

    fn free_window(&self, record: &mut WindowRecord) -> Result<(), ControlError> {
        if let Some(retired) = record.retired.take()
            && let Err((retired, late)) = retired.wait(self.config.quiesce_timeout_ns)
        {
            record.retired = Some(retired);
            return Err(late);
        }
        let Some(window) = record.window.take() else {
            return Ok(());
        };
        record.bound = record.bound.or(window.kill());
        record.was_used |= window.was_used();
        let window = StdArc::into_inner(window);
        let window = window.expect("no path looks at it, and its record is ours");
        window.mw.free().map_err(|(mw, error)| {
            record.window = Some(StdArc::new(Window { mw, ..window }));
            system("ibv_dealloc_mw", &error)
        })
    }
}
