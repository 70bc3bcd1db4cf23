//! The control calls of an adapter: queue pairs, and the doors to the others. Calls into the kernel are made without the lock where they may
//! take long.

use std::ops::Range;
use std::sync::Arc as StdArc;

use keyfence_mempool::arena::Arena;
use keyfence_mempool::sync::{Arc, Ordering};

use super::device::{Shared, VerbsDevice};
use super::endpoint::{Endpoint, RequestLimits};
use super::error::{no_more, system};
use super::qp::{QpFlags, QpRecord, QpState};
use super::receive_queue::ReceiveQueue;
use super::send_queue::SendQueue;
use super::sys::{Cq, Pd, Qp, QpSizes, RemoteAccess};
use crate::device::{Access, Caps, Control, ControlEvent, QpConfig, Region, Window};
use crate::error::{ControlError, within};
use crate::ids::{PdId, QpId, RegionId, RequestId, WindowId};

impl Control for VerbsDevice {
    fn caps(&self) -> &Caps {
        &self.shared().caps
    }

    fn alloc_pd(&self) -> Result<PdId, ControlError> {
        let shared = self.shared();
        let made = Pd::alloc(&shared.context);
        let made = made.map_err(|error| system("ibv_alloc_pd", &error))?;
        let mut books = shared.books();
        let pd = PdId(books.next_pd);
        // A number is used once: an access with a stale one must never meet a later domain.
        books.next_pd = pd.0.checked_add(1).ok_or(ControlError::Exhausted {
            what: "protection domains in a device's life",
            limit: u64::from(u32::MAX),
        })?;
        books.pds.insert(pd, StdArc::new(made));
        Ok(pd)
    }

    fn dealloc_pd(&self, pd: PdId) -> Result<(), ControlError> {
        let mut books = self.shared().books();
        books.pd(pd)?;
        let regions = books.regions.values();
        let users = if regions.map(|of| of.region.pd).any(|of| of == pd) {
            "regions"
        } else if books.qps.values().any(|qp| qp.pd == pd) {
            "queue pairs"
        } else {
            return self.shared().free_pd(&mut books, pd);
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
        let start = range.start as u64;
        within("region start", start, 0, bytes - 1)?;
        within("region end", range.end as u64, start + 1, bytes)?;
        self.shared().register(pd, arena, range, access)
    }

    fn deregister(&self, region: RegionId) -> Result<(), ControlError> {
        self.shared().deregister(region)
    }

    fn create_qp(&self, config: &QpConfig) -> Result<QpId, ControlError> {
        let caps = self.caps();
        let (sends, receives) = (caps.max_send_depth, caps.max_receive_depth);
        within("send_depth", config.send_depth, 1, sends.into())?;
        within("receive_depth", config.receive_depth, 1, receives.into())?;
        within("max_sge", config.max_sge as u64, 1, caps.max_sge as u64)?;
        let (inline, max_inline) = (config.max_inline_bytes, caps.max_inline_bytes);
        within("max_inline_bytes", inline as u64, 0, max_inline as u64)?;
        self.shared().create_qp(config)
    }

    fn listen(&self, address: &str) -> Result<(), ControlError> {
        self.shared().listen(address)
    }

    fn start_connect(&self, qp: QpId, address: &str, private: &[u8]) -> Result<(), ControlError> {
        self.shared().start_connect(qp, address, private)
    }

    fn accept(&self, request: RequestId, qp: QpId, private: &[u8]) -> Result<(), ControlError> {
        self.shared().accept(request, qp, private)
    }

    fn reject(&self, request: RequestId, private: &[u8]) -> Result<(), ControlError> {
        self.shared().reject(request, private)
    }

    fn poll_event(&self) -> Option<ControlEvent> {
        self.shared().poll_event()
    }

    fn error_qp(&self, qp: QpId) -> Result<(), ControlError> {
        let mut books = self.shared().books();
        let failed = books.qp(qp)?.fail();
        failed.map_err(|error| system("ibv_modify_qp to error", &error))
    }

    fn destroy_qp(&self, qp: QpId) -> Result<(), ControlError> {
        self.shared().destroy_qp(qp)
    }

    fn alloc_window(&self, qp: QpId) -> Result<Window, ControlError> {
        self.shared().alloc_window(qp)
    }

    fn dealloc_window(&self, window: WindowId) -> Result<(), ControlError> {
        self.shared().dealloc_window(window)
    }
}

impl Shared {
    fn free_pd(&self, books: &mut super::books::Books, pd: PdId) -> Result<(), ControlError> {
        let in_use = ControlError::InUse {
            what: "protection domain",
            users: "windows, or calls that are not over",
        };
        let Some(held) = books.pds.remove(&pd) else {
            return Err(ControlError::NoSuchPd(pd));
        };
        let held = match StdArc::try_unwrap(held) {
            Ok(held) => held,
            Err(held) => {
                books.pds.insert(pd, held);
                return Err(in_use);
            }
        };
        held.free().map_err(|(held, error)| {
            books.pds.insert(pd, StdArc::new(held));
            system("ibv_dealloc_pd", &error)
        })
    }

    fn create_qp(&self, config: &QpConfig) -> Result<QpId, ControlError> {
        let (qp, pd, cq) = self.reserve_qp(config)?;
        let made = self.make_qp(config, &pd, &cq);
        let failed = made.is_err();
        let attached = made.and_then(|made| self.attach_qp(qp, config, StdArc::new(made)));
        if attached.is_err() {
            let mut books = self.books();
            books.qp_numbers.give_back(qp.0);
            let empty_polls = self.empty_polls(usize::from(config.lcore.0));
            if let Some(lcore) = &mut books.lcores[usize::from(config.lcore.0)].open {
                lcore.let_go(completions_of(config), empty_polls);
            }
            debug_assert!(failed || self.is_path_gone(usize::from(config.lcore.0)));
        }
        attached.map(|()| qp)
    }

    /// A number, and room for its completions.
    fn reserve_qp(
        &self,
        config: &QpConfig,
    ) -> Result<(QpId, StdArc<Pd>, StdArc<Cq>), ControlError> {
        let number = usize::from(config.lcore.0);
        let mut books = self.books();
        let pd = books.pd(config.pd)?;
        let books = &mut *books;
        let no_lcore = ControlError::NoSuchLcore(config.lcore);
        let lcore = books.lcores.get_mut(number);
        let lcore = lcore.and_then(|lcore| lcore.open.as_mut());
        let lcore = lcore.ok_or(no_lcore.clone())?;
        if self.is_path_gone(number) || books.closed {
            return Err(no_lcore);
        }
        let qp = books.qp_numbers.take()?;
        let empty_polls = self.empty_polls(number);
        let reserved = lcore.reserve(completions_of(config), empty_polls, &self.config);
        if let Err(full) = reserved {
            books.qp_numbers.give_back(qp);
            return Err(full);
        }
        Ok((QpId(qp), pd, StdArc::clone(&lcore.cq)))
    }

    fn make_qp(
        &self,
        config: &QpConfig,
        pd: &StdArc<Pd>,
        cq: &StdArc<Cq>,
    ) -> Result<Qp, ControlError> {
        let sizes = QpSizes {
            send_depth: config.send_depth,
            receive_depth: config.receive_depth,
            max_sge: config.max_sge as u32,
            max_inline_bytes: config.max_inline_bytes as u32,
            windows: self.caps.windows,
            atomics: self.caps.atomics,
            extended: self.config.extended_posts,
        };
        let call = ("ibv_create_qp", "queue pairs");
        let made = Qp::create(pd, cq, &sizes);
        let made = made.map_err(|error| no_more(call, self.caps.max_qps, &error))?;
        let ready = made.initialise(self.config.port, self.remote_access());
        ready.map_err(|error| system("ibv_modify_qp to init", &error))?;
        Ok(made)
    }

    /// What peers may do on any queue pair, as far as a key lets them.
    pub(crate) fn remote_access(&self) -> RemoteAccess {
        RemoteAccess {
            atomics: self.caps.atomics,
        }
    }

    /// Enters a queue pair, and hands it to its path.
    fn attach_qp(&self, id: QpId, config: &QpConfig, qp: StdArc<Qp>) -> Result<(), ControlError> {
        let number = usize::from(config.lcore.0);
        let flags = StdArc::new(QpFlags::new());
        let endpoint = Box::new(Endpoint {
            id,
            pd: config.pd,
            qp: StdArc::clone(&qp),
            flags: StdArc::clone(&flags),
            limits: self.request_limits(config),
            sends: SendQueue::new(config.send_depth, self.software),
            receives: ReceiveQueue::new(config.receive_depth),
            listed: false,
            held: false,
        });
        let no_lcore = ControlError::NoSuchLcore(config.lcore);
        let returned;
        let mut books = self.books();
        if self.is_path_gone(number) || books.closed {
            return Err(no_lcore);
        }
        let lcore = books.lcores[number].open.as_mut().ok_or(no_lcore)?;
        // Freed without the lock.
        returned = lcore.take_back();
        let pushed = lcore.attach.push(endpoint);
        assert!(pushed.is_ok(), "more queue pairs attached than exist");
        let record = QpRecord {
            pd: config.pd,
            lcore: number,
            flags,
            state: QpState::Unconnected,
            id: None,
            private: Vec::new(),
            completions: completions_of(config),
            qp,
        };
        books.qps.insert(id, record);
        drop(books);
        drop(returned);
        Ok(())
    }

    fn request_limits(&self, config: &QpConfig) -> RequestLimits {
        RequestLimits {
            max_sge: config.max_sge,
            max_inline_bytes: config.max_inline_bytes,
            max_bytes: self.caps.max_operation_bytes,
            atomics: self.caps.atomics,
            all_local_signaled: !self.caps.chain_stops,
        }
    }

    fn destroy_qp(&self, id: QpId) -> Result<(), ControlError> {
        let lcore = {
            let mut books = self.books();
            let record = books.qp(id)?;
            let released = record.flags.released.load(Ordering::Acquire);
            if !released && !self.is_path_gone(record.lcore) {
                return Err(ControlError::NotReleased(id));
            }
            // In error nothing invalidates a window while it is deallocated.
            let failed = record.fail();
            failed.map_err(|error| system("ibv_modify_qp to error", &error))?;
            record.lcore
        };
        self.end_windows_of(id)?;
        // Freed without the lock.
        let returned;
        let mut record = {
            let mut books = self.books();
            let open = books.lcores[lcore].open.as_mut();
            returned = open.map(super::books::OpenLcore::take_back);
            books.forget_events(id);
            books.qps.remove(&id).ok_or(ControlError::NoSuchQp(id))?
        };
        drop(returned);
        // Its id first, so that the connection manager tells the peer's that it is over.
        record.id = None;
        let destroyed = free_qp(record.qp);
        let mut books = self.books();
        if let Err((qp, error)) = destroyed {
            books.qps.insert(id, QpRecord { qp, ..record });
            return Err(error);
        }
        books.qp_numbers.give_back(id.0);
        let empty_polls = self.empty_polls(lcore);
        if let Some(lcore) = &mut books.lcores[lcore].open {
            lcore.let_go(record.completions, empty_polls);
        }
        Ok(())
    }
}

fn free_qp(qp: StdArc<Qp>) -> Result<(), (StdArc<Qp>, ControlError)> {
    match StdArc::try_unwrap(qp) {
        Ok(qp) => qp.free().map_err(|(qp, error)| {
            let error = system("ibv_destroy_qp", &error);
            (StdArc::new(qp), error)
        }),
        Err(qp) => Err((
            qp,
            ControlError::InUse {
                what: "queue pair",
                users: "calls that are not over",
            },
        )),
    }
}

/// Completions that a queue pair can have in its lcore's queue.
fn completions_of(config: &QpConfig) -> u32 {
    config.send_depth + config.receive_depth
}
