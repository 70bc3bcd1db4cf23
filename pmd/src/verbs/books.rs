//! The control side's records. Behind one lock that no step of a path ever takes.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use keyfence_mempool::ring::spsc::{self, Consumer, Producer};

use super::config::VerbsConfig;
use super::endpoint::Endpoint;
use super::events::AsyncCounts;
use super::numbers::Numbers;
use super::qp::{QpRecord, QpState};
use super::sys::{ClockHandle, CmId, Cq, EventChannel, Pd, Retired};
use super::windows::{Region, Window};
use crate::device::{Caps, ControlEvent};
use crate::error::ControlError;
use crate::ids::{PdId, QpId, RegionId, RequestId, WindowId};

/// All records of one device. Windows stand first: they are to end before what they are bound on.
#[derive(Debug)]
pub(crate) struct Books {
    pub(crate) windows: BTreeMap<WindowId, WindowRecord>,
    pub(crate) window_numbers: Numbers,
    pub(crate) qps: BTreeMap<QpId, QpRecord>,
    pub(crate) qp_numbers: Numbers,
    pub(crate) requests: BTreeMap<RequestId, Request>,
    pub(crate) next_request: u64,
    pub(crate) listeners: BTreeMap<String, CmId>,
    pub(crate) channel: Arc<EventChannel>,
    pub(crate) regions: BTreeMap<RegionId, RegionRecord>,
    pub(crate) region_numbers: Numbers,
    pub(crate) pds: BTreeMap<PdId, Arc<Pd>>,
    pub(crate) next_pd: u32,
    pub(crate) lcores: Vec<LcoreRecord>,
    pub(crate) events: VecDeque<ControlEvent>,
    pub(crate) async_events: AsyncCounts,
    /// The device is dropped: nothing is made any more.
    pub(crate) closed: bool,
}

#[derive(Debug)]
pub(crate) struct WindowRecord {
    pub(crate) qp: QpId,
    /// Until the adapter's window is deallocated: by the caller, or with its queue pair.
    pub(crate) window: Option<Arc<Window>>,
    /// No path finds it any more, and some may still look at it.
    pub(crate) retired: Option<Retired<Window>>,
    /// The slot of the region that it may have been bound to when it was ended. The region is in use until the caller ends the window.
    pub(crate) bound: Option<u32>,
    /// It was ended, and was bound before.
    pub(crate) was_used: bool,
}

#[derive(Debug)]
pub(crate) struct RegionRecord {
    pub(crate) region: Arc<Region>,
    /// No path finds it any more, and some may still look at it.
    pub(crate) retired: Option<Retired<Region>>,
}

/// A peer's wish to connect.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) id: CmId,
    /// Reads and atomics under way that the peer begins, and that it answers.
    pub(crate) responded: u8,
    pub(crate) initiated: u8,
}

/// The control side's part of a lcore.
#[derive(Debug)]
pub(crate) struct LcoreRecord {
    /// Until its path is opened.
    clock: Option<ClockHandle>,
    pub(crate) open: Option<OpenLcore>,
}

/// A lcore whose path was opened. Both rings hold as many queue pairs as there are: a path takes in all before it releases one, and what it
/// has released is taken back before a number is given out again.
#[derive(Debug)]
pub(crate) struct OpenLcore {
    pub(crate) cq: Arc<Cq>,
    pub(crate) attach: Producer<Box<Endpoint>>,
    pub(crate) returned: Consumer<Box<Endpoint>>,
    /// Completions kept free for its queue pairs.
    pub(crate) reserved: u32,
    /// Completions of queue pairs that are destroyed may still be in the queue: how many, and the count of empty polls that tells that
    /// they are out.
    pub(crate) leaving: Vec<(u64, u32)>,
}

/// The path's ends of the rings, and what else is its own.
#[derive(Debug)]
pub(crate) struct LcoreRings {
    pub(crate) cq: Arc<Cq>,
    pub(crate) clock: ClockHandle,
    pub(crate) attach: Consumer<Box<Endpoint>>,
    pub(crate) returned: Producer<Box<Endpoint>>,
}

impl Books {
    pub(crate) fn new(caps: &Caps, channel: EventChannel, clocks: Vec<ClockHandle>) -> Self {
        let lcore = |clock| LcoreRecord {
            clock: Some(clock),
            open: None,
        };
        Self {
            windows: BTreeMap::new(),
            window_numbers: Numbers::new("windows", caps.max_windows, false),
            qps: BTreeMap::new(),
            qp_numbers: Numbers::new("queue pairs", caps.max_qps, true),
            requests: BTreeMap::new(),
            next_request: 1,
            listeners: BTreeMap::new(),
            channel: Arc::new(channel),
            regions: BTreeMap::new(),
            region_numbers: Numbers::new("regions", caps.max_regions, false),
            pds: BTreeMap::new(),
            next_pd: 1,
            lcores: clocks.into_iter().map(lcore).collect(),
            events: VecDeque::new(),
            async_events: AsyncCounts::default(),
            closed: false,
        }
    }

    pub(crate) fn pd(&self, pd: PdId) -> Result<Arc<Pd>, ControlError> {
        let found = self.pds.get(&pd).map(Arc::clone);
        found.ok_or(ControlError::NoSuchPd(pd))
    }

    pub(crate) fn qp(&mut self, qp: QpId) -> Result<&mut QpRecord, ControlError> {
        self.qps.get_mut(&qp).ok_or(ControlError::NoSuchQp(qp))
    }

    /// The queue pair, if it can begin to connect or to accept.
    pub(crate) fn unconnected(&mut self, qp: QpId) -> Result<&mut QpRecord, ControlError> {
        let record = self.qp(qp)?;
        let (state, wanted) = (record.state_name(), "unconnected");
        match state == wanted {
            true => Ok(record),
            false => Err(ControlError::WrongState { qp, state, wanted }),
        }
    }

    /// The queue pair that an id belongs to.
    pub(crate) fn qp_of_id(&mut self, name: usize) -> Option<(QpId, &mut QpRecord)> {
        let mut records = self.qps.iter_mut();
        let has_id = |record: &QpRecord| record.id.as_ref().is_some_and(|id| id.name() == name);
        let (qp, record) = records.find(|(_, record)| has_id(record))?;
        Some((*qp, record))
    }

    /// No queue pair of this lcore is polled any more: each goes to error.
    pub(crate) fn path_is_gone(&mut self, lcore: usize) {
        for record in self.qps.values().filter(|record| record.lcore == lcore) {
            // What the adapter refuses now ends with the queue pair.
            let _ = record.fail();
        }
    }

    /// Opens a lcore, once.
    pub(crate) fn open_lcore(&mut self, lcore: usize, cq: Cq, max_qps: u32) -> Option<LcoreRings> {
        let record = &mut self.lcores[lcore];
        let clock = record.clock.take()?;
        let (attach_in, attach) = spsc::ring(max_qps as usize);
        let (returned, returned_out) = spsc::ring(max_qps as usize);
        let cq = Arc::new(cq);
        record.open = Some(OpenLcore {
            cq: Arc::clone(&cq),
            attach: attach_in,
            returned: returned_out,
            reserved: 0,
            leaving: Vec::new(),
        });
        Some(LcoreRings {
            cq,
            clock,
            attach,
            returned,
        })
    }

    /// Nobody is told anything more of a queue pair that is destroyed.
    pub(crate) fn forget_events(&mut self, gone: QpId) {
        self.events.retain(|event| match event {
            ControlEvent::Connected { qp, .. } | ControlEvent::Rejected { qp, .. } => *qp != gone,
            ControlEvent::ConnectRequest { .. } => true,
        });
    }
}

impl LcoreRecord {
    pub(crate) fn is_open(&self) -> bool {
        self.clock.is_none()
    }
}

impl OpenLcore {
    /// Keeps completions free, so that the queue never overflows. `empty_polls` polls have found it empty.
    pub(crate) fn reserve(
        &mut self,
        completions: u32,
        empty_polls: u64,
        config: &VerbsConfig,
    ) -> Result<(), ControlError> {
        let mut out = 0;
        self.leaving.retain(|(until, count)| {
            let left = empty_polls >= *until;
            out += if left { *count } else { 0 };
            !left
        });
        self.reserved -= out;
        let reserved = self.reserved + completions;
        if reserved > config.completions {
            return Err(ControlError::Exhausted {
                what: "completions of a lcore (`completions` of its configuration)",
                limit: config.completions.into(),
            });
        }
        self.reserved = reserved;
        Ok(())
    }

    /// A queue pair is destroyed. What it completed before is out when a poll that begins from now on has found the queue empty.
    pub(crate) fn let_go(&mut self, completions: u32, empty_polls: u64) {
        // The poll that is under way may have begun before.
        self.leaving.push((empty_polls + 2, completions));
    }

    /// What the path has handed back; to be dropped without the lock.
    #[must_use]
    pub(crate) fn take_back(&mut self) -> impl Sized + use<> {
        let returned: VecDeque<_> = std::iter::from_fn(|| self.returned.pop()).collect();
        returned
    }
}

impl QpState {
    pub(crate) fn is_waiting(self) -> bool {
        matches!(self, Self::Connecting | Self::Accepting)
    }
}
