//! What the wrong devices of one test know together: enough to do at one side what a broken adapter would do at the other.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use keyfence_mempool::arena::Arena;
use keyfence_mempool::sync;

use super::Rule;
use crate::completion::Completion;
use crate::device::{ControlEvent, QpConfig};
use crate::ids::{Lkey, PdId, QpId, RegionId, RequestId, Rkey, WindowId};

/// Which device of the world.
pub(super) type SideId = usize;

/// The devices that break a rule together.
pub struct World<D> {
    pub(super) rule: Rule,
    facts: Mutex<Facts<D>>,
}

pub(super) struct Facts<D> {
    pub devices: Vec<Weak<D>>,
    pub regions: BTreeMap<(SideId, RegionId), RegionFact>,
    /// By index of the key.
    pub binds: BTreeMap<u32, BindFact>,
    /// Windows and the queue pairs that they were allocated for.
    pub windows: BTreeMap<(SideId, WindowId), QpId>,
    /// Windows that were ended behind the caller's back.
    pub ended_windows: BTreeSet<(SideId, WindowId)>,
    pub qps: BTreeMap<(SideId, QpId), QpFact>,
    /// Who started to connect to an address and is not answered.
    pub connecting: BTreeMap<String, VecDeque<(SideId, QpId)>>,
    pub requests: BTreeMap<(SideId, RequestId), (SideId, QpId)>,
    /// Completions to be made up by the path of a side.
    pub made_up: Vec<(SideId, Completion)>,
    /// Events to be made up by the device of a side.
    pub events: Vec<(SideId, ControlEvent)>,
    /// Control calls that have returned and are still to be done.
    pub delayed: Vec<Delayed>,
}

pub(super) struct RegionFact {
    pub pd: PdId,
    pub arena: sync::Arc<Arena>,
    pub addresses: Range<u64>,
    pub lkey: Lkey,
    pub rkey: Rkey,
    pub opens: bool,
}

#[derive(Clone, Copy)]
pub(super) struct BindFact {
    pub side: SideId,
    pub qp: QpId,
    pub window: WindowId,
    pub rkey: Rkey,
    pub live: bool,
}

#[derive(Clone)]
pub(super) struct QpFact {
    pub config: QpConfig,
    pub peer: Option<(SideId, QpId)>,
    pub in_error: bool,
    pub released: bool,
    /// Lengths of the receives posted and not yet used by a message.
    pub receives: VecDeque<u32>,
}

/// A call that a path does when it has polled often enough.
pub(super) struct Delayed {
    pub side: SideId,
    pub polls_left: u32,
    pub call: DelayedCall,
}

#[derive(Clone, Copy)]
pub(super) enum DelayedCall {
    Dealloc(WindowId),
    Deregister(RegionId),
    Destroy(QpId),
    Error(QpId),
}

/// Polls by which a wrong device is late.
pub(super) const LATE_POLLS: u32 = 8;

impl<D> World<D> {
    /// A world whose devices break this rule.
    #[must_use]
    pub fn new(rule: Rule) -> Arc<Self> {
        Arc::new(Self {
            rule,
            facts: Mutex::new(Facts {
                devices: Vec::new(),
                regions: BTreeMap::new(),
                binds: BTreeMap::new(),
                windows: BTreeMap::new(),
                ended_windows: BTreeSet::new(),
                qps: BTreeMap::new(),
                connecting: BTreeMap::new(),
                requests: BTreeMap::new(),
                made_up: Vec::new(),
                events: Vec::new(),
                delayed: Vec::new(),
            }),
        })
    }

    pub(super) fn facts(&self) -> MutexGuard<'_, Facts<D>> {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<D> Facts<D> {
    /// Whether a key opens something, as far as binds and registrations tell.
    pub fn is_live(&self, rkey: Rkey) -> bool {
        let bound = self.binds.get(&rkey.index());
        bound.is_some_and(|bind| bind.live && bind.rkey == rkey)
            || self
                .regions
                .values()
                .any(|region| region.opens && region.rkey == rkey)
    }

    /// The region that the range lies in.
    pub fn region_at(&self, side: SideId, address: u64, len: u64) -> Option<&RegionFact> {
        let end = address.checked_add(len)?;
        let mut regions = self.regions.iter();
        regions
            .find(|((of, _), region)| {
                *of == side && region.addresses.start <= address && end <= region.addresses.end
            })
            .map(|(_, region)| region)
    }

    /// Whether the region with this property is of another domain than the queue pair.
    pub fn is_elsewhere(
        &self,
        (side, qp): (SideId, QpId),
        mut is_it: impl FnMut(&RegionId, &RegionFact) -> bool,
    ) -> bool {
        let Some(fact) = self.qps.get(&(side, qp)) else {
            return false;
        };
        let mut of_side = self.regions.iter().filter(|((of, _), _)| *of == side);
        of_side.any(|((_, id), region)| is_it(id, region) && region.pd != fact.config.pd)
    }

    /// Whether a range lies in this region.
    pub fn is_inside(&self, side: SideId, region: RegionId, address: u64, len: u64) -> bool {
        let Some(region) = self.regions.get(&(side, region)) else {
            return false;
        };
        let end = address.checked_add(len);
        region.addresses.start <= address && end.is_some_and(|end| end <= region.addresses.end)
    }

    /// Whether a queue pair waits for the answer of a peer.
    pub fn is_connecting(&self, side: SideId, qp: QpId) -> bool {
        let asked = self.connecting.values().flatten();
        asked
            .chain(self.requests.values())
            .any(|of| *of == (side, qp))
    }

    /// The device of this side will say that a queue pair is connected.
    pub fn pretend_connected(&mut self, side: SideId, qp: QpId) {
        let private = Vec::new();
        let event = ControlEvent::Connected { qp, private };
        self.events.push((side, event));
    }

    pub fn device(&self, side: SideId) -> Option<Arc<D>> {
        self.devices.get(side)?.upgrade()
    }

    pub fn note_error(&mut self, side: SideId, qp: QpId) {
        if let Some(fact) = self.qps.get_mut(&(side, qp)) {
            fact.in_error = true;
        }
    }
}
