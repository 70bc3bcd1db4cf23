//! Everything that a world has, behind its one lock: the clock, what is to happen, and what there is.

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BinaryHeap};

use super::adapter::Adapter;
use super::breach::Breach;
use super::config::{Nanos, SimConfig};
use super::connect::ConnectStep;
use super::faults::{Fired, SimFault, SimFaults, Sometimes};
use super::qp::{Phase, Qp, QpRef};
use super::random::Random;
use super::record::{Accesses, Hash};
use crate::device::Caps;

/// The world.
#[derive(Debug)]
pub(super) struct State {
    pub(super) config: SimConfig,
    pub(super) caps: Caps,
    pub(super) now_ns: u64,
    pub(super) random: Random,
    pub(super) faults: SimFaults,
    pub(super) fired: Fired,
    pub(super) misuses: u64,
    pub(super) hash: Hash,
    pub(super) accesses: Accesses,
    pub(super) adapters: Vec<Adapter>,
    pub(super) listeners: BTreeMap<String, u32>,
    pub(super) qps: BTreeMap<QpRef, Qp>,
    /// The earliest first.
    agenda: BinaryHeap<Reverse<Due>>,
    next_turn: u64,
}

/// The last moment that the clock shows: a time drawn from it still fits in 64 bits.
const END_NS: u64 = 1 << 62;

/// Something that is to happen, and when. What is due at the same time happens in the order in which it was entered.
#[derive(Debug)]
struct Due {
    at_ns: u64,
    /// No other has it.
    turn: u64,
    happening: Happening,
}

impl Due {
    fn order(&self) -> (u64, u64) {
        (self.at_ns, self.turn)
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> Ordering {
        self.order().cmp(&other.order())
    }
}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.order() == other.order()
    }
}

impl Eq for Due {}

/// Something that is to happen.
#[derive(Debug)]
pub(super) enum Happening {
    /// The send queue's next packet, bind or invalidation.
    Issue(QpRef),
    /// A packet of a request arrives.
    Request(QpRef),
    /// The next part of a read is looked up.
    Respond(QpRef),
    /// A response arrives.
    Response(QpRef),
    /// Something that was accepted lands.
    Land(QpRef),
    /// An answer lands in its sink.
    Sink(QpRef),
    /// A queue pair in error gives back what is posted.
    Flush(QpRef),
    /// The patience of a request that nobody acknowledged ends.
    Retry(QpRef),
    /// The patience of a message that waits for a receive ends.
    NoReceive(QpRef, u64),
    Connect(ConnectStep),
}

impl State {
    pub(super) fn new(seed: u64, config: SimConfig) -> Self {
        Self {
            caps: config.caps(),
            now_ns: 0,
            random: Random::new(seed),
            faults: SimFaults::default(),
            fired: Fired::default(),
            misuses: 0,
            hash: Hash::new(seed, config.hash_bytes),
            accesses: Accesses::new(config.accesses_max),
            adapters: Vec::new(),
            listeners: BTreeMap::new(),
            qps: BTreeMap::new(),
            agenda: BinaryHeap::new(),
            next_turn: 0,
            config,
        }
    }

    /// Lets everything happen that is due at `now_ns`. An earlier time than the present changes nothing.
    pub(super) fn advance_to(&mut self, now_ns: u64) {
        let now_ns = now_ns.min(END_NS);
        while let Some(due) = self.pop_due(now_ns) {
            self.now_ns = self.now_ns.max(due.at_ns);
            self.execute(due.happening);
        }
        self.now_ns = self.now_ns.max(now_ns);
    }

    /// When the next thing happens.
    pub(super) fn next_ns(&self) -> Option<u64> {
        self.agenda.peek().map(|Reverse(due)| due.at_ns)
    }

    fn pop_due(&mut self, now_ns: u64) -> Option<Due> {
        let is_due = self.next_ns()? <= now_ns;
        is_due
            .then(|| self.agenda.pop())
            .flatten()
            .map(|Reverse(due)| due)
    }

    pub(super) fn schedule(&mut self, at_ns: u64, happening: Happening) {
        self.next_turn += 1;
        self.agenda.push(Reverse(Due {
            at_ns,
            turn: self.next_turn,
            happening,
        }));
    }

    /// A number that orders things of the same time by when they were made.
    pub(super) fn turn(&mut self) -> u64 {
        self.next_turn += 1;
        self.next_turn
    }

    /// A drawn time from now.
    pub(super) fn after(&mut self, range: Nanos) -> u64 {
        self.now_ns + self.random.time(range)
    }

    /// How long a fault lasts, if it strikes now.
    pub(super) fn sometimes(&mut self, fault: Sometimes) -> Option<u64> {
        let strikes = self.random.strikes(fault.per_million);
        strikes.then(|| self.random.time(fault.ns))
    }

    pub(super) fn breaks(&self, breach: Breach) -> bool {
        self.config.breach == Some(breach)
    }

    pub(super) fn qp(&self, at: QpRef) -> Option<&Qp> {
        self.qps.get(&at)
    }

    pub(super) fn qp_mut(&mut self, at: QpRef) -> Option<&mut Qp> {
        self.qps.get_mut(&at)
    }

    pub(super) fn adapter(&mut self, number: u32) -> &mut Adapter {
        &mut self.adapters[number as usize]
    }

    /// No fault begins from now on, and stalls end.
    pub(super) fn faults_off(&mut self) {
        self.faults = SimFaults::default();
        let (now_ns, mut stalled) = (self.now_ns, Vec::new());
        for (at, qp) in &mut self.qps {
            if qp.stalled_until_ns > now_ns {
                qp.stalled_until_ns = now_ns;
                qp.send.issue_due = false;
                qp.receive.respond_due = false;
                stalled.push(*at);
            }
        }
        for at in stalled {
            self.schedule_issue(at, now_ns);
            self.schedule_respond(at, now_ns);
            self.schedule(now_ns, Happening::Request(at));
            self.schedule(now_ns, Happening::Response(at));
        }
    }

    fn execute(&mut self, happening: Happening) {
        let (code, at) = happening.name();
        self.hash.add(self.now_ns);
        self.hash.add(code);
        if let Some(at) = at {
            self.hash
                .add(u64::from(at.adapter) << 32 | u64::from(at.qp.0));
            if code <= Happening::LAST_TROUBLED {
                self.trouble(at);
            }
        }
        match happening {
            Happening::Issue(at) => self.issue(at),
            Happening::Request(at) => self.take_requests(at),
            Happening::Respond(at) => self.respond(at),
            Happening::Response(at) => self.take_responses(at),
            Happening::Land(at) => self.land_due(at),
            Happening::Sink(at) => self.sink_due(at),
            Happening::Flush(at) => self.flush(at),
            Happening::Retry(at) => self.give_up(at),
            Happening::NoReceive(at, number) => self.stop_waiting(at, number),
            Happening::Connect(step) => self.connect_step(step),
        }
    }

    /// What may go wrong with a queue pair at any moment of its work.
    fn trouble(&mut self, at: QpRef) {
        let Some(peer) = self.healthy(at) else {
            return;
        };
        let faults = &self.faults;
        if self.random.strikes(faults.error_here_per_million) {
            self.fired.add(SimFault::ErrorHere);
            return self.enter_error(at);
        }
        let peer = peer.filter(|peer| self.healthy(*peer).is_some());
        if let Some(peer) = peer {
            if self.random.strikes(self.faults.error_there_per_million) {
                self.fired.add(SimFault::ErrorThere);
                self.enter_error(peer);
            } else if self.random.strikes(self.faults.error_both_per_million) {
                self.fired.add(SimFault::ErrorBoth);
                self.enter_error(peer);
                return self.enter_error(at);
            }
        }
        if self.stalled(at).is_some() {
            return;
        }
        if let Some(ns) = self.sometimes(self.faults.stall).filter(|ns| *ns > 0) {
            let until_ns = self.now_ns + ns;
            if let Some(qp) = self.qp_mut(at) {
                qp.stalled_until_ns = until_ns;
                self.fired.add(SimFault::Stall);
            }
        }
    }

    /// The peer of a queue pair that is connected and not in error.
    fn healthy(&self, at: QpRef) -> Option<Option<QpRef>> {
        let qp = self.qp(at)?;
        let stands = qp.phase == Phase::Connected && !qp.in_error;
        stands.then_some(qp.peer)
    }

    /// Until when a queue pair does nothing, if that is not yet over.
    pub(super) fn stalled(&self, at: QpRef) -> Option<u64> {
        let until_ns = self.qp(at)?.stalled_until_ns;
        (until_ns > self.now_ns).then_some(until_ns)
    }
}

impl Happening {
    /// The last of those at which chance may break a queue pair.
    const LAST_TROUBLED: u64 = 6;

    /// A number for the hash, and the queue pair concerned.
    fn name(&self) -> (u64, Option<QpRef>) {
        match self {
            Self::Issue(at) => (1, Some(*at)),
            Self::Request(at) => (2, Some(*at)),
            Self::Respond(at) => (3, Some(*at)),
            Self::Response(at) => (4, Some(*at)),
            Self::Land(at) => (5, Some(*at)),
            Self::Sink(at) => (6, Some(*at)),
            Self::Flush(at) => (7, Some(*at)),
            Self::Retry(at) => (8, Some(*at)),
            Self::NoReceive(at, _) => (9, Some(*at)),
            Self::Connect(step) => (10, Some(step.names())),
        }
    }
}
