//! The control calls of a software adapter: what makes and ends objects. Connecting is in `connect`.

use std::ops::Range;
use std::sync::Arc as StdArc;

use keyfence_mempool::arena::Arena;
use keyfence_mempool::sync::{Arc, AtomicBool, Ordering};

use super::books::{Books, Killed, QpRecord, QpState, RegionRecord, WindowRecord};
use super::datapath::Attach;
use super::device::{Shared, SoftDevice};
use super::endpoint::{Endpoint, QpFlags};
use super::keys::{Extent, Identity, Phase, handle};
use crate::device::{Access, Caps, Control, ControlEvent, QpConfig, Region, Window};
use crate::error::{ControlError, within};
use crate::ids::{Lkey, PdId, QpId, RegionId, RequestId, Rkey, WindowId};

impl Control for SoftDevice {
    fn caps(&self) -> &Caps {
        &self.shared().caps
    }

    fn alloc_pd(&self) -> Result<PdId, ControlError> {
        let mut books = self.shared().books();
        let pd = PdId(books.next_pd);
        // A number is used once: an access with a stale one must never meet a later domain.
        books.next_pd = pd.0.checked_add(1).ok_or(ControlError::Exhausted {
            what: "protection domains in a device's life",
            limit: u64::from(u32::MAX),
        })?;
        books.pds.insert(pd);
        Ok(pd)
    }

    fn dealloc_pd(&self, pd: PdId) -> Result<(), ControlError> {
        let mut books = self.shared().books();
        books.check_pd(pd)?;
        let users = if books.regions.values().any(|region| region.pd == pd) {
            "regions"
        } else if books.qps.values().any(|qp| qp.pd == pd) {
            "queue pairs"
        } else {
            books.pds.remove(&pd);
            return Ok(());
        };
        Err(ControlError::InUse {
            what: "protection domain",
            users,
        })
    }

    fn register(
        &self,
        pd: PdId,
        arena: &Arc<Arena>,
        range: Range<usize>,
        access: Access,
    ) -> Result<Region, ControlError> {
        let bytes = arena.bytes() as u64;
        within("region start", range.start as u64, 0, bytes - 1)?;
        within(
            "region end",
            range.end as u64,
            range.start as u64 + 1,
            bytes,
        )?;
        self.shared().register(pd, arena, range, access)
    }

    fn deregister(&self, region: RegionId) -> Result<(), ControlError> {
        let shared = self.shared();
        let opened = shared.books().kill_region(shared, region)?;
        shared.wait_for_lcores(opened)?;
        let mut books = shared.books();
        let record = books
            .regions
            .remove(&region)
            .ok_or(ControlError::NoSuchRegion(region))?;
        shared.keys.free(record.index);
        books
            .region_indexes
            .give_back((record.index, (region.0 >> 24) as u8));
        books.arenas.remove_region(record.arena);
        Ok(())
    }

    fn create_qp(&self, config: &QpConfig) -> Result<QpId, ControlError> {
        let caps = self.caps();
        within(
            "send_depth",
            config.send_depth,
            1,
            u64::from(caps.max_send_depth),
        )?;
        let max_receives = u64::from(caps.max_receive_depth);
        within("receive_depth", config.receive_depth, 1, max_receives)?;
        within("max_sge", config.max_sge as u64, 1, caps.max_sge as u64)?;
        let max_inline = caps.max_inline_bytes as u64;
        within(
            "max_inline_bytes",
            config.max_inline_bytes as u64,
            0,
            max_inline,
        )?;
        self.shared().create_qp(config)
    }

    fn listen(&self, address: &str) -> Result<(), ControlError> {
        let shared = self.shared();
        shared.fabric.listen(address, shared)
    }

    fn start_connect(&self, qp: QpId, address: &str, private: &[u8]) -> Result<(), ControlError> {
        Shared::start_connect(self.shared(), qp, address, private)
    }

    fn accept(&self, request: RequestId, qp: QpId, private: &[u8]) -> Result<(), ControlError> {
        self.shared().accept(request, qp, private)
    }

    fn reject(&self, request: RequestId, private: &[u8]) -> Result<(), ControlError> {
        self.shared().reject(request, private)
    }

    fn poll_event(&self) -> Option<ControlEvent> {
        self.shared().pop_event()
    }

    fn error_qp(&self, qp: QpId) -> Result<(), ControlError> {
        self.shared().books().qp(qp)?.fail();
        Ok(())
    }

    fn destroy_qp(&self, qp: QpId) -> Result<(), ControlError> {
        let shared = self.shared();
        let lcore = {
            let mut books = shared.books();
            let record = books.qp(qp)?;
            let lcore = record.lcore;
            if !record.flags.released.load(Ordering::Acquire) && !shared.is_path_gone(lcore) {
                return Err(ControlError::NotReleased(qp));
            }
            record.fail();
            lcore
        };
        shared.wait_for_lcores([lcore])?;
        // Freed without the lock.
        let (returned, record);
        let mut books = shared.books();
        returned = books.take_back(lcore);
        record = books.qps.remove(&qp).ok_or(ControlError::NoSuchQp(qp))?;
        books.qp_slots.give_back(qp);
        drop(books);
        shared.forget_events(qp);
        drop((returned, record));
        Ok(())
    }

    fn alloc_window(&self, qp: QpId) -> Result<Window, ControlError> {
        let shared = self.shared();
        let mut books = shared.books();
        books.qp(qp)?;
        let (index, generation) = books.window_indexes.take()?;
        let rkey = shared.keys.open_window(index, generation, qp);
        let id = WindowId(handle(index, generation));
        let dying = None;
        books.windows.insert(id, WindowRecord { index, qp, dying });
        Ok(Window { id, rkey })
    }

    fn dealloc_window(&self, window: WindowId) -> Result<(), ControlError> {
        let shared = self.shared();
        let lcore = shared.books().kill_window(shared, window)?;
        shared.wait_for_lcores(lcore)?;
        let mut books = shared.books();
        let record = books
            .windows
            .remove(&window)
            .ok_or(ControlError::NoSuchWindow(window))?;
        let killed = record.dying.expect("killed by this call or an earlier one");
        if let Some(region) = killed.bound_to {
            shared.keys.unbind_from_region(region);
        }
        shared.keys.free(record.index);
        books
            .window_indexes
            .give_back((record.index, (window.0 >> 24) as u8));
        Ok(())
    }
}

impl Shared {
    fn register(
        &self,
        pd: PdId,
        arena: &Arc<Arena>,
        range: Range<usize>,
        access: Access,
    ) -> Result<Region, ControlError> {
        let mut books = self.books();
        books.check_pd(pd)?;
        let (index, generation) = books.region_indexes.take()?;
        let name = match books.arenas.add_region(arena) {
            Ok(name) => name,
            Err(error) => {
                books
                    .region_indexes
                    .give_back((index, generation.wrapping_sub(1)));
                return Err(error);
            }
        };
        let identity = Identity {
            phase: Phase::Region,
            rights: access.remote,
            bindable: access.bind,
            tag: generation,
            generation,
            scope: pd.0,
        };
        let extent = Extent {
            base: arena.address() + range.start as u64,
            bytes: range.len() as u64,
            offset: range.start as u64,
            arena: name,
        };
        self.keys.open_region(index, identity, extent);
        let id = RegionId(handle(index, generation));
        let record = RegionRecord {
            index,
            pd,
            arena: name,
            dying: false,
        };
        books.regions.insert(id, record);
        let rkey = Rkey::new(index, generation);
        Ok(Region {
            id,
            lkey: Lkey(rkey.0),
            rkey,
        })
    }

    fn create_qp(&self, config: &QpConfig) -> Result<QpId, ControlError> {
        let lcore = usize::from(config.lcore.0);
        let flags = StdArc::new(QpFlags {
            failed: AtomicBool::new(false),
            released: AtomicBool::new(false),
        });
        let qp = self.enter_qp(config, StdArc::clone(&flags))?;
        // The queues take megabytes if they are deep: made and freed without the lock.
        let max_bytes = self.config.max_operation_bytes;
        let endpoint = Box::new(Endpoint::new(qp, config, max_bytes, flags));
        let returned;
        let mut books = self.books();
        if self.is_path_gone(lcore) {
            books.qps.remove(&qp);
            books.qp_slots.give_back(qp);
            return Err(ControlError::NoSuchLcore(config.lcore));
        }
        returned = books.attach(lcore, Attach::Qp(endpoint));
        drop(books);
        drop(returned);
        Ok(qp)
    }

    /// Gives out a number. Its record keeps the protection domain; nobody else knows the number yet.
    fn enter_qp(&self, config: &QpConfig, flags: StdArc<QpFlags>) -> Result<QpId, ControlError> {
        let lcore = usize::from(config.lcore.0);
        let mut books = self.books();
        books.check_pd(config.pd)?;
        let is_open = books.lcores.get(lcore).is_some_and(Option::is_some);
        if !is_open || self.is_path_gone(lcore) {
            return Err(ControlError::NoSuchLcore(config.lcore));
        }
        let qp = books.qp_slots.take()?;
        let record = QpRecord {
            pd: config.pd,
            lcore,
            flags,
            state: QpState::Unconnected,
            link: None,
        };
        books.qps.insert(qp, record);
        Ok(qp)
    }
}

impl Books {
    /// Marks a region dead, once. The lcores to wait for.
    fn kill_region(
        &mut self,
        shared: &Shared,
        region: RegionId,
    ) -> Result<Vec<usize>, ControlError> {
        let record = self
            .regions
            .get_mut(&region)
            .ok_or(ControlError::NoSuchRegion(region))?;
        if !record.dying && !shared.keys.kill_region(record.index) {
            return Err(ControlError::InUse {
                what: "region",
                users: "bound windows",
            });
        }
        record.dying = true;
        let lcores = 0..self.lcores.len();
        Ok(lcores
            .filter(|lcore| self.lcores[*lcore].is_some())
            .collect())
    }

    /// Marks a window dead, once. The lcore to wait for, if its queue pair still has one.
    fn kill_window(
        &mut self,
        shared: &Shared,
        window: WindowId,
    ) -> Result<Option<usize>, ControlError> {
        let record = self
            .windows
            .get_mut(&window)
            .ok_or(ControlError::NoSuchWindow(window))?;
        if record.dying.is_none() {
            let bound_to = shared.keys.kill_window(record.index);
            record.dying = Some(Killed { bound_to });
        }
        Ok(self.qps.get(&record.qp).map(|qp| qp.lcore))
    }
}
