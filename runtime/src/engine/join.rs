//! Joining a peer: the engine whose name sorts first connects, the other accepts; one connection a lane. Never waits for the other side.

use keyfence_mempool::{Arena, sync::Arc};
use keyfence_pmd::{ControlError, Device, QpConfig, QpId, RequestId, Window};

use crate::context::ops::MAX_RANGES;
use crate::engine::backoff::Backoff;
use crate::engine::command::Command;
use crate::engine::control::ControlSide;
use crate::engine::domain::Home;
use crate::engine::lookup::LOOKUPS;
use crate::engine::peers::{LaneOrigin, LaneRecord, PeerPhase};
use crate::event::EngineEvent;
use crate::ids::{Incarnation, LaneId, LcoreId, PeerId, SessionId};
use crate::lane::{Lane, LaneSetup, LaneSizes};
use crate::limits::Limits;
use crate::session::{Admission, Event, JoinRefusal, LaneNames, Order};

/// What an engine says of itself to every peer.
#[derive(Clone, Debug)]
pub(super) struct Identity {
    pub name: String,
    pub incarnation: Incarnation,
    /// Sizes of one lcore.
    pub limits: Limits,
    pub arena: Arc<Arena>,
    /// Where all queue pairs are made; none if each session has a place of its own (key mode `region`).
    pub home: Option<Home>,
    pub tag_seed: u64,
    /// Bytes of a receive.
    pub frame_bytes: u32,
    pub fence_timeout_ns: u64,
}

impl<D: Device> ControlSide<D> {
    /// Does what is due: begins sessions with peers that are ours to connect, asks again, and gives up what has had its time. Returns whether there
    /// was any.
    pub fn join_due(&mut self) -> bool {
        let mut any = false;
        for at in 0..self.peers.peers.len() {
            let peer = PeerId(at as u16);
            match self.peers.get(peer).phase {
                PeerPhase::Apart { retry_ns } => {
                    if self.now_ns >= retry_ns && !self.parting && self.is_ours_to_join(peer) {
                        any = true;
                        self.join(peer);
                    }
                }
                PeerPhase::Waiting { qp, retry_ns } => {
                    if self.now_ns >= retry_ns && !self.parting {
                        any = true;
                        self.ask_again(peer, qp);
                    }
                }
                PeerPhase::Joining { deadline_ns } => {
                    if self.now_ns >= deadline_ns {
                        any = true;
                        let waited_ns = self.patience.join_ns;
                        self.end_session(peer, JoinRefusal::Timeout { waited_ns });
                    }
                }
                PeerPhase::Up | PeerPhase::Parting { .. } => {}
            }
        }
        any
    }

    /// The engine whose name sorts first asks.
    pub fn is_ours_to_join(&self, peer: PeerId) -> bool {
        self.identity.name < self.peers.get(peer).name
    }

    /// Begins a session with its first lane.
    fn join(&mut self, peer: PeerId) {
        self.last_agreed = self.last_agreed.wrapping_add(1).max(1);
        self.begin_session(peer, self.last_agreed);
        let rest_ns = self.patience.join.least_ns();
        let entry = self.peers.get_mut(peer);
        entry.rest_until_ns = self.now_ns.saturating_add(rest_ns);
        if let Err(error) = self.make_lane(peer, (LcoreId(0), LcoreId(0)), 0, 0, None) {
            self.refuse(peer, error.into());
            let retry_ns = self.peers.get(peer).rest_until_ns;
            self.peers.get_mut(peer).phase = PeerPhase::Apart { retry_ns };
            self.session_left(peer);
        }
    }

    /// Asks for the first lane's connection again.
    fn ask_again(&mut self, peer: PeerId, qp: QpId) {
        self.peers.get_mut(peer).phase = self.joining();
        let record = self.peers.lane_by_qp(qp).filter(|lane| !lane.broken);
        if let Some((lcore, lane)) = record.map(|record| (record.lcore, record.lane)) {
            self.lane_attached(lcore, lane);
        }
    }

    fn joining(&self) -> PeerPhase {
        let deadline_ns = self.now_ns.saturating_add(self.patience.join_ns);
        PeerPhase::Joining { deadline_ns }
    }

    /// The first lane's connection was not taken: it is asked for again, later.
    fn wait(&mut self, peer: PeerId, qp: QpId, why: JoinRefusal) {
        self.refuse(peer, why);
        let retry_ns = self.peers.get(peer).rest_until_ns;
        self.peers.get_mut(peer).phase = PeerPhase::Waiting { qp, retry_ns };
    }

    /// Says that a join has failed, and settles when the next is due. What the peer asks for may fail as often as it likes: that is told more
    /// rarely each time.
    pub fn refuse(&mut self, peer: PeerId, why: JoinRefusal) {
        let ours = self.is_ours_to_join(peer);
        let entry = self.peers.get_mut(peer);
        // Who asks decides how often: what is told of that, and what it costs the next join, must not be his to decide.
        if entry.phase == PeerPhase::Up || (!ours && self.now_ns < entry.rest_until_ns) {
            return;
        }
        let wait_ns = entry.backoff.failed(self.patience.join, &mut self.random);
        let next_ns = self.now_ns.saturating_add(wait_ns);
        entry.rest_until_ns = next_ns.max(entry.rest_until_ns);
        let retry_ns = (ours && !self.parting).then_some(entry.rest_until_ns);
        tracing::info!(peer = entry.name, %why, retry_ns, "no session came about");
        let refused = EngineEvent::JoinRefused {
            peer,
            why,
            retry_ns,
        };
        self.events.push_back(refused);
    }

    /// Ends a session: every queue pair of it goes to error. `why` is told if the session did not stand yet.
    pub fn end_session(&mut self, peer: PeerId, why: JoinRefusal) {
        let entry = self.peers.get(peer);
        if entry.phase.is_joining() {
            self.admissions.sessions_unproven += u64::from(entry.lcores == 0);
            self.refuse(peer, why);
        }
        self.forget_rebuilds(peer);
        let session = self.peers.get(peer).session;
        for lcore in 0..self.peers.lcores {
            self.send(LcoreId(lcore), Command::SessionOver { peer, session });
        }
        for record in self.peers.end_session(peer) {
            self.error_lane(record.lcore, record.lane, record.qp);
        }
        self.session_left(peer);
    }

    /// Gives the session a number that no earlier one of this engine had, whatever number both sides know it by.
    pub fn begin_session(&mut self, peer: PeerId, agreed: u32) {
        self.sessions += 1;
        let phase = self.joining();
        let entry = self.peers.get_mut(peer);
        entry.session = SessionId(self.sessions);
        entry.agreed_session = agreed;
        entry.phase = phase;
        entry.staying = None;
        // Not known before the peer's first hello.
        entry.lcores = 0;
    }

    /// Makes a queue pair and, after it, its windows, and hands them to the lcore: of a lane between `ends`, ours first, that was `asked` for, or that
    /// we ask for.
    pub fn make_lane(
        &mut self,
        peer: PeerId,
        ends: (LcoreId, LcoreId),
        number: u16,
        repair: u32,
        asked: Option<(RequestId, Admission)>,
    ) -> Result<LaneId, ControlError> {
        let (lcore, peer_lcore) = ends;
        let session = self.peers.get(peer).session;
        let slot = self.peers.take_slot(lcore);
        let lane = slot.ok_or(ControlError::Exhausted {
            what: "lane slots",
            limit: self.peers.slots.into(),
        })?;
        let (home, qp, windows) = match self.make_queue_pair(peer, lcore) {
            Ok(made) => made,
            Err(error) => {
                self.peers.give_slot(lcore, lane);
                return Err(error);
            }
        };
        self.domains.qp_made(session);
        let (origin, admission) = match asked {
            Some((id, admission)) => (LaneOrigin::Accepting(id), admission),
            None => {
                let names = LaneNames {
                    session: self.peers.get(peer).agreed_session,
                    source_lcore: lcore,
                    target_lcore: peer_lcore,
                    number,
                    siblings: self.peers.siblings,
                    repair,
                    qp: qp.0,
                };
                let admission = Admission::connecting(&names, &self.known(peer));
                (LaneOrigin::Connecting, admission)
            }
        };
        self.peers.add_lane(LaneRecord {
            peer,
            session,
            lcore,
            lane,
            peer_lcore,
            number,
            repair,
            qp,
            origin,
            windows: windows.iter().map(|window| window.id).collect(),
            admission,
            up: false,
            broken: false,
        });
        let setup = LaneSetup {
            qp,
            peer,
            session,
            agreed_session: self.peers.get(peer).agreed_session,
            number,
            peer_lcore,
            repair,
            arena: home.arena,
            inline_bytes: self.device.caps().inline_pays_bytes as u64,
            windows,
            sizes: lane_sizes(&self.identity.limits),
        };
        self.hand_over(lcore, lane, setup);
        Ok(lane)
    }

    /// A queue pair and, after it, as many of its windows as the device still has; none in key mode `region`.
    fn make_queue_pair(
        &mut self,
        peer: PeerId,
        lcore: LcoreId,
    ) -> Result<(Home, QpId, Vec<Window>), ControlError> {
        let home = self.home(peer)?;
        let (device, limits) = (&self.device, &self.identity.limits);
        let qp = device.create_qp(&QpConfig {
            pd: home.pd,
            lcore,
            send_depth: limits.send_depth,
            receive_depth: limits.receive_depth,
            max_sge: 1 + MAX_RANGES,
            max_inline_bytes: device.caps().inline_pays_bytes,
        })?;
        let mut windows = Vec::new();
        if self.identity.home.is_none() {
            return Ok((home, qp, windows));
        }
        windows.reserve_exact(limits.windows as usize);
        for _ in 0..limits.windows {
            match device.alloc_window(qp) {
                Ok(window) => windows.push(window),
                // The lane works with fewer: `grant` then names the limit that it meets.
                Err(error) => {
                    tracing::warn!(%error, allocated = windows.len(), wanted = limits.windows, "fewer windows than configured");
                    break;
                }
            }
        }
        Ok((home, qp, windows))
    }

    fn hand_over(&mut self, lcore: LcoreId, lane: LaneId, setup: LaneSetup) {
        let tag_seed = self.identity.tag_seed ^ u64::from(setup.qp.0) << 32;
        let entry = Box::new(Lane::new(setup, tag_seed));
        let siblings = self.peers.siblings;
        let command = Command::AttachLane {
            lane,
            siblings,
            entry,
        };
        self.send(lcore, command);
    }

    /// The lcore has posted the lane's receives: connect it, or accept.
    pub fn lane_attached(&mut self, lcore: LcoreId, lane: LaneId) {
        let record = self.peers.lane_mut(lcore, lane).cloned();
        // Its session may have ended meanwhile.
        let Some(record) = record.filter(|record| !record.broken) else {
            return;
        };
        let nonce = self.draw_nonce(record.peer);
        let event = match record.origin {
            LaneOrigin::Connecting => Event::Ask { nonce },
            LaneOrigin::Accepting(_) => Event::Answer {
                qp: record.qp.0,
                nonce,
            },
        };
        let said = match self.admission(lcore, lane, event) {
            Ok(Order::Say(said)) => said,
            other => {
                let why = other.err().unwrap_or(JoinRefusal::Malformed);
                return self.failed(&record, why);
            }
        };
        let started = match record.origin {
            LaneOrigin::Connecting => {
                let address = &self.peers.get(record.peer).address;
                self.device.start_connect(record.qp, address, &said)
            }
            LaneOrigin::Accepting(request) => self.device.accept(request, record.qp, &said),
        };
        let unanswered = self.peers.get(record.peer).lcores == 0;
        match started {
            Ok(()) => {}
            Err(error @ ControlError::Unreachable(_)) if unanswered => {
                self.wait(record.peer, record.qp, error.into());
            }
            Err(error) => self.failed(&record, error.into()),
        }
    }

    /// Makes the lanes to a peer but for the first, which exists.
    pub fn make_other_lanes(&mut self, peer: PeerId) -> Result<(), ControlError> {
        for lcore in 0..self.peers.lcores {
            for peer_lcore in 0..self.peers.get(peer).lcores {
                for number in 0..self.peers.siblings {
                    if (lcore, peer_lcore, number) != (0, 0, 0) {
                        let ends = (LcoreId(lcore), LcoreId(peer_lcore));
                        self.make_lane(peer, ends, number, 0, None)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// The peer refused. While it has said nothing yet it may still be settling an older session: the same lane is tried again.
    pub fn rejected(&mut self, qp: QpId, private: &[u8]) {
        let record = self.peers.lane_by_qp(qp).filter(|lane| !lane.broken);
        let Some(record) = record.cloned() else {
            return;
        };
        let (peer, why) = (record.peer, record.admission.refused(private));
        // What is ended there is not asked for again: the next session has another number.
        if self.peers.get(peer).lcores == 0 && why != JoinRefusal::Ended {
            self.wait(peer, qp, why);
        } else {
            self.failed(&record, why);
        }
    }

    /// A lane of a peer is admitted: the session stands when all are.
    pub fn session_may_stand(&mut self, peer: PeerId) {
        if !self.peers.get(peer).phase.is_joining() || !self.peers.all_up(peer) {
            return;
        }
        let ours = self.is_ours_to_join(peer);
        let entry = self.peers.get_mut(peer);
        entry.phase = PeerPhase::Up;
        entry.was_up = true;
        entry.backoff = Backoff::default();
        if !ours {
            entry.rest_until_ns = 0;
        }
        for lcore in 0..self.peers.lcores {
            self.send(LcoreId(lcore), Command::SessionUp(peer));
        }
        self.events.push_back(EngineEvent::PeerUp(peer));
    }
}

fn lane_sizes(limits: &Limits) -> LaneSizes {
    LaneSizes {
        send_depth: limits.send_depth as usize,
        receive_depth: limits.receive_depth as usize,
        contexts: limits.contexts as usize,
        fences: limits.epochs as usize + limits.contexts as usize,
        // Each grant waits to be made and to be revoked at most; a hello, a sign of life, what repeats revokes, and a farewell.
        requests: 2 * limits.grants as usize + 8,
        lookups: usize::from(LOOKUPS),
        // Each import, context and epoch has at most a few frames waiting. More are the peer's own loss.
        answers: (limits.grants + limits.imports + 4 * limits.contexts + 2 * limits.epochs)
            as usize
            + 64,
    }
}
