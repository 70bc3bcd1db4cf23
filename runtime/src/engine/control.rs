//! The control side of an engine: connections, repair, deallocation. Everything that may allocate, block or enter the kernel.

use std::collections::VecDeque;

use keyfence_mempool::ring::spsc::{Consumer, Producer};
use keyfence_mempool::sync::{Arc, AtomicBool, Ordering};
use keyfence_pmd::{ControlError, ControlEvent, Device, QpId, WindowId};

use crate::engine::command::{Command, ToControl};
use crate::engine::join::Identity;
use crate::engine::peers::Peers;
use crate::engine::stats::SharedStats;
use crate::event::EngineEvent;
use crate::ids::{GrantId, LaneId, LcoreId};

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

    /// Whether the lcore has died since the last call.
    fn just_died(&mut self) -> bool {
        // Acquire: pairs with the notice's release, so that what the lcore reported before it died is taken first.
        if self.death_told || !self.died.load(Ordering::Acquire) {
            return false;
        }
        self.death_told = true;
        true
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

/// A control call that is to be tried again: it was late, and may yet be the proof.
#[derive(Clone, Copy, Debug)]
enum Retry {
    Dealloc {
        lcore: LcoreId,
        grant: GrantId,
        window: WindowId,
    },
    EndLane {
        lcore: LcoreId,
        lane: LaneId,
        qp: QpId,
    },
    /// Of a lane that is gone.
    Window(WindowId),
    Error {
        lcore: LcoreId,
        lane: LaneId,
        qp: QpId,
    },
}

/// The control side.
pub(super) struct ControlSide<D> {
    pub device: Arc<D>,
    pub ports: Vec<LcorePort>,
    pub peers: Peers,
    pub events: VecDeque<EngineEvent>,
    pub all_closed: usize,
    pub identity: Identity,
    /// Sessions so far, whoever began them.
    pub sessions: u64,
    /// The number for the wire that was last given to a session begun by us.
    pub last_agreed: u32,
    /// Whether the engine is shutting down: no new session begins.
    pub parting: bool,
    /// Lanes whose peer was not there; tried again all together.
    pub try_again: Vec<QpId>,
    pub try_again_ns: u64,
    retries: VecDeque<Retry>,
}

impl<D: Device> ControlSide<D> {
    pub fn new(device: Arc<D>, ports: Vec<LcorePort>, peers: Peers, identity: Identity) -> Self {
        Self {
            device,
            ports,
            peers,
            events: VecDeque::new(),
            all_closed: 0,
            sessions: 0,
            last_agreed: identity.incarnation.0 as u32,
            identity,
            parting: false,
            try_again: Vec::new(),
            try_again_ns: 0,
            retries: VecDeque::new(),
        }
    }

    /// Does the control work that is due. Returns whether there was any.
    pub fn run(&mut self, now_ns: u64) -> bool {
        let mut any = self.retry();
        while let Some(event) = self.device.poll_event() {
            any = true;
            self.device_event(event);
        }
        for lcore in 0..self.ports.len() {
            let id = LcoreId(lcore as u16);
            let died = self.ports[lcore].just_died();
            while let Some(message) = self.ports[lcore].inbox.pop() {
                any = true;
                self.obey(id, message);
            }
            self.ports[lcore].flush();
            if died {
                any = true;
                self.events.push_back(EngineEvent::LcoreDied(id));
            }
        }
        any | self.connect_due(now_ns)
    }

    fn obey(&mut self, lcore: LcoreId, message: ToControl) {
        match message {
            ToControl::Event(event) => self.events.push_back(event),
            ToControl::NotOpened { request, why } => {
                let name = request.name.clone();
                let why = why.to_string();
                self.events.push_back(EngineEvent::OpenFailed { name, why });
            }
            ToControl::LaneAttached(lane) => self.lane_attached(lcore, lane),
            ToControl::LaneUp(lane) => self.lane_up(lcore, lane),
            ToControl::LaneBroken(lane) => self.lane_broken(lcore, lane),
            ToControl::Dealloc {
                lane,
                grant,
                window,
            } => {
                if let Some(record) = self.peers.lane_mut(lcore, lane) {
                    record.windows.retain(|known| *known != window);
                }
                self.dealloc(lcore, grant, window);
            }
            ToControl::EndLane { lane, qp } => self.end_lane(lcore, lane, qp),
            ToControl::LaneGone { lane, entry } => {
                self.peers.forget_lane(lcore, lane);
                drop(entry);
            }
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
            ToControl::AllClosed => self.all_closed += 1,
        }
    }

    pub fn send(&mut self, lcore: LcoreId, command: Command) {
        self.ports[lcore.0 as usize].send(command);
    }

    /// A call that is late is tried again until it is done; one retry a window, however often it is asked for.
    fn dealloc(&mut self, lcore: LcoreId, grant: GrantId, window: WindowId) {
        let waits = |retry: &Retry| matches!(retry, Retry::Dealloc { window: known, .. } if *known == window);
        self.retries.retain(|retry| !waits(retry));
        let done = self.try_dealloc(lcore, grant, window);
        self.send(lcore, Command::Deallocated { grant, done });
    }

    fn dealloc_again(&mut self, lcore: LcoreId, grant: GrantId, window: WindowId) {
        if self.try_dealloc(lcore, grant, window) {
            self.send(lcore, Command::Deallocated { grant, done: true });
        }
    }

    fn try_dealloc(&mut self, lcore: LcoreId, grant: GrantId, window: WindowId) -> bool {
        // A window that is gone was deallocated by a call that came back late.
        let done = matches!(
            self.device.dealloc_window(window),
            Ok(()) | Err(ControlError::NoSuchWindow(_))
        );
        if !done {
            self.retries.push_back(Retry::Dealloc {
                lcore,
                grant,
                window,
            });
        }
        done
    }

    /// Ends a drained lane: its windows that no key has, then its queue pair.
    fn end_lane(&mut self, lcore: LcoreId, lane: LaneId, qp: QpId) {
        if let Some(record) = self.peers.lane_mut(lcore, lane) {
            let device = &self.device;
            record
                .windows
                .retain(|window| device.dealloc_window(*window).is_err());
        }
        match self.device.destroy_qp(qp) {
            Ok(()) | Err(ControlError::NoSuchQp(_)) => {
                if let Some(record) = self.peers.lane_mut(lcore, lane) {
                    let left = core::mem::take(&mut record.windows);
                    self.retries.extend(left.into_iter().map(Retry::Window));
                }
                self.send(lcore, Command::QpDestroyed(lane));
            }
            Err(_) => self.retries.push_back(Retry::EndLane { lcore, lane, qp }),
        }
    }

    /// Moves a queue pair to error. The lcore hears of it only when it is: until then an invalidation on it may yet be executed (R3).
    pub fn error_lane(&mut self, lcore: LcoreId, lane: LaneId, qp: QpId) {
        match self.device.error_qp(qp) {
            Ok(()) | Err(ControlError::NoSuchQp(_)) => self.send(lcore, Command::QpInError(lane)),
            Err(_) => self.retries.push_back(Retry::Error { lcore, lane, qp }),
        }
    }

    fn retry(&mut self) -> bool {
        let due = self.retries.len();
        for _ in 0..due {
            match self.retries.pop_front() {
                Some(Retry::Dealloc {
                    lcore,
                    grant,
                    window,
                }) => self.dealloc_again(lcore, grant, window),
                Some(Retry::EndLane { lcore, lane, qp }) => self.end_lane(lcore, lane, qp),
                Some(Retry::Error { lcore, lane, qp }) => self.error_lane(lcore, lane, qp),
                Some(Retry::Window(window)) => match self.device.dealloc_window(window) {
                    Ok(()) | Err(ControlError::NoSuchWindow(_)) => {}
                    Err(_) => self.retries.push_back(Retry::Window(window)),
                },
                None => {}
            }
        }
        due > 0
    }

    /// A lane broke: its session is over, so every queue pair of it goes to error.
    fn lane_broken(&mut self, lcore: LcoreId, lane: LaneId) {
        let Some(peer) = self.peers.lane_mut(lcore, lane).map(|record| record.peer) else {
            return;
        };
        for record in self.peers.end_session(peer) {
            self.error_lane(record.lcore, record.lane, record.qp);
        }
    }

    fn device_event(&mut self, event: ControlEvent) {
        match event {
            ControlEvent::ConnectRequest {
                request, private, ..
            } => self.connect_request(request, &private),
            ControlEvent::Connected { qp, private } => self.connected(qp, &private),
            ControlEvent::Rejected { qp, .. } => self.rejected(qp),
        }
    }
}
