//! One adapter of a world: its objects but for the queue pairs, its events, and what its lcores have to poll.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::config::SimConfig;
use super::connect::Request;
use super::keys::Keys;
use super::qp::QpRef;
use super::state::State;
use crate::completion::Completion;
use crate::device::ControlEvent;
use crate::ids::{PdId, QpId, RequestId};

/// An adapter.
#[derive(Debug)]
pub(super) struct Adapter {
    pub(super) name: String,
    pub(super) pds: BTreeSet<PdId>,
    pub(super) next_pd: u32,
    pub(super) keys: Keys,
    pub(super) next_qp: u32,
    pub(super) lcores: Vec<Lcore>,
    pub(super) requests: BTreeMap<RequestId, Request>,
    pub(super) next_request: u64,
    pub(super) events: VecDeque<ControlEvent>,
    /// Calls that were done and came back as late: the call and its object.
    pub(super) done_late: BTreeSet<(&'static str, u64)>,
    /// Its last handle is dropped.
    pub(super) closed: bool,
}

/// One lcore.
#[derive(Debug, Default)]
pub(super) struct Lcore {
    pub(super) is_open: bool,
    /// Its path was dropped: it never polls again.
    pub(super) is_gone: bool,
    /// Completions by the time at which they can be seen.
    pub(super) done: BTreeMap<(u64, u64), Entry>,
}

/// A completion and what its poll frees.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) done: Completion,
    pub(super) frees: Frees,
}

/// Places of queues that are free when a completion is polled.
#[derive(Clone, Copy, Debug)]
pub(super) enum Frees {
    /// Those of the first so many requests.
    Requests(u64),
    /// That of one receive.
    Receive,
}

impl Adapter {
    pub(super) fn new(name: &str, number: u32, config: &SimConfig) -> Self {
        Self {
            name: name.to_owned(),
            pds: BTreeSet::new(),
            next_pd: 1,
            keys: Keys::new(config),
            // Not the same numbers on each, so that one is not taken for another's.
            next_qp: 1 + 17 * number,
            lcores: (0..config.max_lcores).map(|_| Lcore::default()).collect(),
            requests: BTreeMap::new(),
            next_request: 1,
            events: VecDeque::new(),
            done_late: BTreeSet::new(),
            closed: false,
        }
    }

    /// Nobody is told anything more of a queue pair that is destroyed.
    pub(super) fn forget(&mut self, gone: QpId) {
        self.events.retain(|event| match event {
            ControlEvent::Connected { qp, .. } | ControlEvent::Rejected { qp, .. } => *qp != gone,
            ControlEvent::ConnectRequest { .. } => true,
        });
        self.forget_completions(gone);
    }

    pub(super) fn forget_completions(&mut self, gone: QpId) {
        for lcore in &mut self.lcores {
            lcore.done.retain(|_, entry| entry.done.qp != gone);
        }
    }

    fn is_polled(&self) -> bool {
        let mut lcores = self.lcores.iter();
        lcores.any(|lcore| lcore.is_open && !lcore.is_gone)
    }
}

impl State {
    /// Gives out what can be seen now.
    pub(super) fn poll(&mut self, adapter: u32, lcore: usize, done: &mut [Completion]) -> usize {
        let mut count = 0;
        while count < done.len() {
            let now_ns = self.now_ns;
            let queue = &mut self.adapter(adapter).lcores[lcore].done;
            let Some(first) = queue.first_entry() else {
                break;
            };
            if first.key().0 > now_ns {
                break;
            }
            let entry = first.remove();
            let qp = entry.done.qp;
            if let Some(qp) = self.qp_mut(QpRef { adapter, qp }) {
                match entry.frees {
                    Frees::Requests(freed) => qp.send.freed = qp.send.freed.max(freed),
                    Frees::Receive => qp.receive.held -= 1,
                }
            }
            self.hash.add(entry.done.id.0);
            self.hash
                .add(u64::from(qp.0) << 8 | entry.done.status as u64);
            done[count] = entry.done;
            count += 1;
        }
        count
    }

    /// The queue pairs of an adapter, in the order of their making.
    pub(super) fn qps_of(&self, adapter: u32) -> Vec<QpRef> {
        let first = QpRef {
            adapter,
            qp: QpId(0),
        };
        let last = QpRef {
            adapter,
            qp: QpId(u32::MAX),
        };
        self.qps.range(first..=last).map(|(at, _)| *at).collect()
    }

    /// A path was dropped: none of its queue pairs is ever polled again.
    pub(super) fn close_path(&mut self, adapter: u32, lcore: usize) {
        let path = &mut self.adapter(adapter).lcores[lcore];
        path.is_gone = true;
        path.done.clear();
        for at in self.qps_of(adapter) {
            if self.qp(at).is_some_and(|qp| qp.lcore == lcore) {
                self.enter_error(at);
            }
        }
        self.free_if_unused(adapter);
    }

    /// The last handle was dropped: names are free, open requests are refused, every queue pair is in error.
    pub(super) fn close_adapter(&mut self, adapter: u32) {
        self.listeners.retain(|_, listener| *listener != adapter);
        let record = self.adapter(adapter);
        record.closed = true;
        let requests = std::mem::take(&mut record.requests);
        for request in requests.into_values() {
            self.answer_no(&request, Vec::new());
        }
        for at in self.qps_of(adapter) {
            self.enter_error(at);
        }
        self.free_if_unused(adapter);
    }

    /// Frees what is left of an adapter that has neither handle nor path.
    fn free_if_unused(&mut self, adapter: u32) {
        let record = self.adapter(adapter);
        if !record.closed || record.is_polled() {
            return;
        }
        for at in self.qps_of(adapter) {
            self.remove_qp(at);
        }
        let config = self.config.clone();
        let record = self.adapter(adapter);
        record.keys = Keys::new(&config);
        record.events.clear();
        record.pds.clear();
    }
}
