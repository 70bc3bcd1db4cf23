//! The control side's records: protection domains, regions, windows, queue pairs, lcores. Behind one lock that no path ever takes.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Weak};

use keyfence_mempool::ring::spsc::{self, Consumer, Producer};
use keyfence_mempool::sync::Ordering;

use super::arenas::{ArenaBooks, ArenaRef};
use super::config::SoftConfig;
use super::datapath::{Attach, Returned};
use super::device::Shared;
use super::endpoint::QpFlags;
use super::link::{End, Link, Side};
use crate::error::ControlError;
use crate::ids::{PdId, QpId, RegionId, RequestId, WindowId};

/// Connection requests that a device holds unanswered.
pub(crate) const MAX_REQUESTS: usize = 1024;

/// All records of one device.
#[derive(Debug)]
pub(crate) struct Books {
    pub(crate) pds: BTreeSet<PdId>,
    pub(crate) next_pd: u32,
    pub(crate) regions: BTreeMap<RegionId, RegionRecord>,
    pub(crate) region_indexes: Indexes,
    pub(crate) windows: BTreeMap<WindowId, WindowRecord>,
    pub(crate) window_indexes: Indexes,
    pub(crate) qps: BTreeMap<QpId, QpRecord>,
    pub(crate) qp_slots: QpSlots,
    pub(crate) arenas: ArenaBooks,
    pub(crate) lcores: Vec<Option<LcoreRecord>>,
    pub(crate) requests: BTreeMap<RequestId, Request>,
    pub(crate) next_request: u64,
    /// The device is dropped: nobody can connect to it any more.
    pub(crate) closed: bool,
}

#[derive(Debug)]
pub(crate) struct RegionRecord {
    pub(crate) index: u32,
    pub(crate) pd: PdId,
    pub(crate) arena: ArenaRef,
    /// Its keys are dead, and a call waits or waited for a quiescent point.
    pub(crate) dying: bool,
}

#[derive(Debug)]
pub(crate) struct WindowRecord {
    pub(crate) index: u32,
    pub(crate) qp: QpId,
    /// Its key is dead, and a call waits or waited for a quiescent point.
    pub(crate) dying: Option<Killed>,
}

/// What a window was when it was killed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Killed {
    pub(crate) bound_to: Option<u32>,
}

#[derive(Debug)]
pub(crate) struct QpRecord {
    pub(crate) pd: PdId,
    pub(crate) lcore: usize,
    pub(crate) flags: Arc<QpFlags>,
    pub(crate) state: QpState,
    pub(crate) link: Option<(Arc<Link>, Side)>,
}

/// How far a queue pair's connection is. Whether it is in error is its flag.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum QpState {
    Unconnected,
    /// Asked, not answered. The number keeps an answer from meeting a later attempt.
    Connecting(u64),
    Accepting,
    Connected,
}

/// A peer's wish to connect.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) from: Weak<Shared>,
    pub(crate) qp: QpId,
    pub(crate) attempt: u64,
    pub(crate) link: Arc<Link>,
    pub(crate) address: String,
}

/// The control side's ends of the rings to a path.
#[derive(Debug)]
pub(crate) struct LcoreRecord {
    pub(crate) attach: Producer<Attach>,
    pub(crate) returned: Consumer<Returned>,
}

/// The other ends of those rings.
#[derive(Debug)]
pub(crate) struct LcoreRings {
    pub(crate) attach: Consumer<Attach>,
    pub(crate) returned: Producer<Returned>,
}

/// Indexes of the key table with the generation of their next owner. The one that was free longest is taken first, so that a key's
/// value comes back as late as can be.
#[derive(Debug)]
pub(crate) struct Indexes {
    free: VecDeque<(u32, u8)>,
    what: &'static str,
    limit: u32,
}

/// Numbers of queue pairs: a slot, and above it how often it was used. A number is used once.
#[derive(Debug)]
pub(crate) struct QpSlots {
    free: VecDeque<(u32, u32)>,
    bits: u32,
    limit: u32,
}

impl Books {
    pub(crate) fn new(config: &SoftConfig) -> Self {
        let first_region = config.max_windows + 1;
        Self {
            pds: BTreeSet::new(),
            next_pd: 1,
            regions: BTreeMap::new(),
            region_indexes: Indexes::new("regions", first_region, config.max_regions),
            windows: BTreeMap::new(),
            window_indexes: Indexes::new("windows", 1, config.max_windows),
            qps: BTreeMap::new(),
            qp_slots: QpSlots::new(config.max_qps),
            arenas: ArenaBooks::new(),
            lcores: (0..config.max_lcores).map(|_| None).collect(),
            requests: BTreeMap::new(),
            next_request: 1,
            closed: false,
        }
    }

    pub(crate) fn check_pd(&self, pd: PdId) -> Result<(), ControlError> {
        if self.pds.contains(&pd) {
            Ok(())
        } else {
            Err(ControlError::NoSuchPd(pd))
        }
    }

    pub(crate) fn qp(&mut self, qp: QpId) -> Result<&mut QpRecord, ControlError> {
        self.qps.get_mut(&qp).ok_or(ControlError::NoSuchQp(qp))
    }

    /// The queue pair, if it still is as `accept` left it.
    pub(crate) fn accepting(&mut self, qp: QpId) -> Result<&mut QpRecord, ControlError> {
        self.in_state(qp, "being accepted")
    }

    /// The queue pair, if it can begin to connect or to accept.
    pub(crate) fn unconnected(&mut self, qp: QpId) -> Result<&mut QpRecord, ControlError> {
        self.in_state(qp, "unconnected")
    }

    fn in_state(&mut self, qp: QpId, wanted: &'static str) -> Result<&mut QpRecord, ControlError> {
        let record = self.qp(qp)?;
        let state = record.state_name();
        if state != wanted {
            return Err(ControlError::WrongState { qp, state, wanted });
        }
        Ok(record)
    }

    /// Hands a link's end to the queue pair's path. What comes back is to be dropped without the lock.
    #[must_use]
    pub(crate) fn connect(
        &mut self,
        qp: QpId,
        (link, side): (&Arc<Link>, Side),
        end: Box<End>,
    ) -> Vec<Returned> {
        let record = self.qps.get_mut(&qp).expect("the caller has looked it up");
        record.state = QpState::Connected;
        record.link = Some((Arc::clone(link), side));
        // Between the caller's look and this its path may have put it in error.
        if record.flags.failed.load(Ordering::Acquire) {
            link.mark_error(side);
        }
        let lcore = record.lcore;
        self.attach(lcore, Attach::Connect(qp, end))
    }

    /// Hands something to a path, and takes back what the path has done with; that is to be dropped without the lock.
    ///
    /// With N queue pairs at a time the way in holds 3 N: a path empties it before it releases a queue pair, so those destroyed since were
    /// released before and add one late end each, N at most, and those that exist add two each. The way back holds 4 N: it is emptied
    /// here, so it holds the endpoints of queue pairs that are released and not destroyed, and ends that were on their way in.
    #[must_use]
    pub(crate) fn attach(&mut self, lcore: usize, attach: Attach) -> Vec<Returned> {
        let returned = self.take_back(lcore);
        let record = self.lcores[lcore]
            .as_mut()
            .expect("a queue pair's lcore is open");
        let pushed = record.attach.push(attach);
        assert!(pushed.is_ok(), "more queue pairs attached than exist");
        returned
    }

    /// What a path has handed back; to be dropped without the lock.
    #[must_use]
    pub(crate) fn take_back(&mut self, lcore: usize) -> Vec<Returned> {
        let record = self.lcores[lcore].as_mut();
        let ring = &mut record.expect("a queue pair's lcore is open").returned;
        std::iter::from_fn(|| ring.pop()).collect()
    }

    /// No queue pair of this lcore is polled any more: each is in error, attached or not.
    pub(crate) fn path_is_gone(&mut self, lcore: usize) {
        let records = self.qps.values().filter(|record| record.lcore == lcore);
        records.for_each(QpRecord::fail);
    }

    /// Opens a lcore.
    pub(crate) fn open_lcore(&mut self, lcore: usize, max_qps: u32) -> LcoreRings {
        let qps = max_qps as usize;
        let (attach_in, attach) = spsc::ring(3 * qps);
        let (returned, returned_out) = spsc::ring(4 * qps);
        self.lcores[lcore] = Some(LcoreRecord {
            attach: attach_in,
            returned: returned_out,
        });
        LcoreRings { attach, returned }
    }
}

impl QpRecord {
    pub(crate) fn state_name(&self) -> &'static str {
        // A released one is in error, too.
        if self.flags.released.load(Ordering::Acquire) {
            return "released";
        }
        if self.flags.failed.load(Ordering::Acquire) {
            return "in error";
        }
        match self.state {
            QpState::Unconnected => "unconnected",
            QpState::Connecting(_) => "connecting",
            QpState::Accepting => "being accepted",
            QpState::Connected => "connected",
        }
    }

    /// Whether it waits for the answer to this attempt. In error or released it waits for nothing any more.
    pub(crate) fn waits_for(&self, attempt: u64) -> bool {
        self.state == QpState::Connecting(attempt) && self.state_name() == "connecting"
    }

    /// The queue pair goes to error: its path learns it by the flag, its peer by the link.
    pub(crate) fn fail(&self) {
        self.flags.failed.store(true, Ordering::Release);
        if let Some((link, side)) = &self.link {
            link.mark_error(*side);
        }
    }
}

impl Indexes {
    fn new(what: &'static str, first: u32, count: u32) -> Self {
        Self {
            free: (first..first + count).map(|index| (index, 1)).collect(),
            what,
            limit: count,
        }
    }

    pub(crate) fn take(&mut self) -> Result<(u32, u8), ControlError> {
        self.free.pop_front().ok_or(ControlError::Exhausted {
            what: self.what,
            limit: u64::from(self.limit),
        })
    }

    /// Gives an index back, never used or freed from the table.
    pub(crate) fn give_back(&mut self, (index, generation): (u32, u8)) {
        self.free.push_back((index, generation.wrapping_add(1)));
    }
}

impl QpSlots {
    fn new(max_qps: u32) -> Self {
        Self {
            free: (0..max_qps).map(|slot| (slot, 1)).collect(),
            bits: max_qps.next_power_of_two().trailing_zeros(),
            limit: max_qps,
        }
    }

    pub(crate) fn take(&mut self) -> Result<QpId, ControlError> {
        let (slot, use_count) = self.free.pop_front().ok_or(ControlError::Exhausted {
            what: "queue pairs",
            limit: u64::from(self.limit),
        })?;
        Ok(QpId(use_count << self.bits | slot))
    }

    pub(crate) fn give_back(&mut self, qp: QpId) {
        let slot = qp.0 & ((1 << self.bits) - 1);
        let use_count = (qp.0 >> self.bits) + 1;
        // A slot whose numbers are used up is retired.
        if use_count < u32::MAX >> self.bits {
            self.free.push_back((slot, use_count));
        }
    }
}
