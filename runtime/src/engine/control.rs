//! The control side of an engine: connections, repair, deallocation. Everything that may allocate, block or enter the kernel.

use std::collections::VecDeque;

use keyfence_mempool::ring::spsc::{Consumer, Producer};
use keyfence_mempool::sync::{Arc, AtomicBool, Ordering};
use keyfence_pmd::{ControlEvent, Device};

use crate::config::Timeouts;
use crate::engine::backoff::Bounds;
use crate::engine::calls::{KeyObject, LateCall};
use crate::engine::command::{Command, ToControl};
use crate::engine::domains::Domains;
use crate::engine::join::Identity;
use crate::engine::lcore::drop_caught;
use crate::engine::peers::Peers;
use crate::engine::rebuild::Rebuild;
use crate::engine::stats::SharedStats;
use crate::event::EngineEvent;
use crate::ids::LcoreId;
use crate::random::{Random, mix};
use crate::session::AdmissionStats;

/// What is taken in a turn from one lcore, and of the device's events, at most. What an lcore reports may take a call of the device (each key in key mode
/// `region` takes two), and lcores report while that goes on: without an end the other lcores, and the caller, would wait for ever (R5, R6).
const A_TURN: usize = 64;

/// The control side's ends of the rings to one lcore.
pub(super) struct LcorePort {
    commands: Producer<Command>,
    waiting: VecDeque<Command>,
    pub inbox: Consumer<ToControl>,
    pub shared: SharedStats,
    /// Whether the lcore's thread has ended by a panic.
    died: Arc<AtomicBool>,
    death_told: bool,
}

impl LcorePort {
    pub fn new(
        commands: Producer<Command>,
        inbox: Consumer<ToControl>,
        shared: SharedStats,
        died: Arc<AtomicBool>,
    ) -> Self {
        Self {
            commands,
            waiting: VecDeque::new(),
            inbox,
            shared,
            died,
            death_told: false,
        }
    }

    /// Whether the lcore has died, and that is still to be told.
    fn has_died(&self) -> bool {
        // Acquire: pairs with the notice's release, so that all that the lcore reported before it died is there to be taken.
        !self.death_told && self.died.load(Ordering::Acquire)
    }

    /// Sends a command, or queues it in order.
    pub fn send(&mut self, command: Command) {
        self.waiting.push_back(command);
        self.flush();
    }

    /// Sends what waits, as far as there is room.
    pub fn flush(&mut self) {
        while let Some(command) = self.waiting.pop_front() {
            if let Err(command) = self.commands.push(command) {
                self.waiting.push_front(command);
                return;
            }
        }
    }
}

/// How long the control side waits for what.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// For all lanes of a session to stand.
    pub join_ns: u64,
    /// Between two joins of a peer.
    pub join: Bounds,
    /// Between two tries of a call that was late.
    pub call: Bounds,
}

impl Patience {
    fn new(timeouts: &Timeouts) -> Self {
        /// The first wait, and the longest, of each.
        const JOIN_NS: (u64, u64) = (5_000_000, 1_000_000_000);
        const CALL_NS: (u64, u64) = (100_000, 50_000_000);
        // A quarter, so that what comes back within its timeout is found within it.
        let most_ns = |most: u64, timeout_ns: u64| most.min(timeout_ns / 4);
        Self {
            join_ns: timeouts.reconnect_timeout_ns,
            join: Bounds::new(JOIN_NS.0, most_ns(JOIN_NS.1, timeouts.reconnect_timeout_ns)),
            call: Bounds::new(CALL_NS.0, most_ns(CALL_NS.1, timeouts.control_timeout_ns)),
        }
    }
}

/// The control side.
pub(super) struct ControlSide<D> {
    pub device: Arc<D>,
    pub ports: Vec<LcorePort>,
    pub peers: Peers,
    /// Those of sessions, in key mode `region`.
    pub domains: Domains,
    pub events: VecDeque<EngineEvent>,
    pub all_closed: usize,
    pub identity: Identity,
    /// Sessions so far, whoever began them.
    pub sessions: u64,
    /// The number for the wire that was last given to a session begun by us.
    pub last_agreed: u32,
    /// Whether the engine is shutting down: no new session begins.
    pub parting: bool,
    /// The time, as the caller said last.
    pub now_ns: u64,
    pub patience: Patience,
    pub random: Random,
    pub late_calls: Vec<LateCall>,
    /// Lanes of standing sessions that have broken.
    pub rebuilds: Vec<Rebuild>,
    /// Nonces drawn, from all peers' secrets.
    pub nonces: u64,
    pub admissions: AdmissionStats,
}

impl<D: Device> ControlSide<D> {
    pub fn new(
        device: Arc<D>,
        ports: Vec<LcorePort>,
        peers: Peers,
        identity: Identity,
        timeouts: &Timeouts,
    ) -> Self {
        Self {
            device,
            ports,
            peers,
            domains: Domains::default(),
            events: VecDeque::new(),
            all_closed: 0,
            sessions: 0,
            last_agreed: identity.incarnation.0 as u32,
            // A stream of its own beside the lanes' tags.
            random: Random::new(mix(!identity.tag_seed)),
            identity,
            parting: false,
            now_ns: 0,
            patience: Patience::new(timeouts),
            late_calls: Vec::new(),
            rebuilds: Vec::new(),
            nonces: 0,
            admissions: AdmissionStats::default(),
        }
    }

    /// Does a turn of the control work that is due. Returns whether there was any: not while all that is left waits for its time.
    pub fn run(&mut self, now_ns: u64) -> bool {
        self.now_ns = self.now_ns.max(now_ns);
        let mut any = self.call_again();
        any |= self.take_events();
        for lcore in 0..self.ports.len() {
            any |= self.take_reports(LcoreId(lcore as u16));
        }
        any |= self.join_due();
        any | self.rebuild_due()
    }

    fn take_events(&mut self) -> bool {
        for taken in 0..A_TURN {
            let Some(event) = self.device.poll_event() else {
                return taken > 0;
            };
            self.device_event(event);
        }
        true
    }

    fn take_reports(&mut self, id: LcoreId) -> bool {
        let lcore = id.0 as usize;
        let died = self.ports[lcore].has_died();
        let mut taken = 0;
        while taken < A_TURN
            && let Some(message) = self.ports[lcore].inbox.pop()
        {
            taken += 1;
            self.obey(id, message);
        }
        self.ports[lcore].flush();
        // What it reported before comes first.
        let told = died && taken < A_TURN;
        if told {
            self.ports[lcore].death_told = true;
            self.events.push_back(EngineEvent::LcoreDied(id));
        }
        told || taken > 0
    }

    fn obey(&mut self, lcore: LcoreId, message: ToControl) {
        match message {
            ToControl::Event(event) => self.events.push_back(event),
            ToControl::NotOpened { request, why } => {
                let name = request.name.clone();
                let why = why.to_string();
                self.events.push_back(EngineEvent::OpenFailed { name, why });
                // Its service is the application's, and may panic as it does on an lcore.
                drop_caught(request);
            }
            ToControl::LaneAttached(lane) => self.lane_attached(lcore, lane),
            ToControl::HelloCame { lane, hello } => self.hello_came(lcore, lane, &hello),
            ToControl::LaneBroken(lane) => self.lane_broke(lcore, lane),
            ToControl::LaneRepaired(lane) => self.lane_repaired(lcore, lane),
            ToControl::ByeCame(lane) => self.bye_came(lcore, lane),
            ToControl::Left { peer, session } => self.left_on_one(peer, session),
            ToControl::Unrepairable { lane, why } => self.unrepairable(lcore, lane, why),
            ToControl::Dealloc { lane, key, window } => {
                if let Some(record) = self.peers.lane_mut(lcore, lane) {
                    record.windows.retain(|known| *known != window);
                }
                self.dealloc(lcore, key, KeyObject::Window(window));
            }
            ToControl::MakeKey { lane, key, request } => self.make_key(lcore, lane, key, &request),
            ToControl::EndKey(key) => self.end_key(lcore, key),
            ToControl::KeyDead(key) => self.forget_key(lcore, key),
            ToControl::ReplaceWindow { lane, qp, place } => {
                self.replace_window(lcore, lane, qp, place)
            }
            ToControl::EndLane { lane, qp } => self.end_lane(lcore, lane, qp),
            ToControl::LaneGone { lane, entry } => {
                self.peers.forget_lane(lcore, lane);
                drop(entry);
            }
            ToControl::ClientGone(side) => drop(side),
            ToControl::PeerDown(peer) => {
                if self.peers.down_on_one(peer) {
                    self.events.push_back(EngineEvent::PeerDown(peer));
                }
            }
            ToControl::FlushOthers { ticket } => {
                for other in 0..self.ports.len() {
                    if other != lcore.0 as usize {
                        self.ports[other].send(Command::FlushFor {
                            origin: lcore,
                            ticket,
                        });
                    }
                }
            }
            ToControl::FlushDone {
                origin,
                ticket,
                quarantined,
            } => self.send(
                origin,
                Command::FlushPart {
                    ticket,
                    quarantined,
                },
            ),
            ToControl::AllClosed => self.closed_on_one(),
        }
    }

    pub fn send(&mut self, lcore: LcoreId, command: Command) {
        self.ports[lcore.0 as usize].send(command);
    }

    fn device_event(&mut self, event: ControlEvent) {
        match event {
            ControlEvent::ConnectRequest {
                request, private, ..
            } => self.connect_request(request, &private),
            ControlEvent::Connected { qp, private } => self.connected(qp, &private),
            ControlEvent::Rejected { qp, private } => self.rejected(qp, &private),
        }
    }
}
