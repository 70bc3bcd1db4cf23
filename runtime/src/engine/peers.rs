//! The peers of an engine and the lanes to them, as the control side keeps them.

use keyfence_pmd::{QpId, RequestId, WindowId};

use crate::engine::backoff::Backoff;
use crate::engine::rebuild::Place;
use crate::ids::{Incarnation, LaneId, LcoreId, PeerId, SessionId};
use crate::session::{Admission, Secret, name_tag};

/// How a lane came to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LaneOrigin {
    /// We ask for the connection.
    Connecting,
    /// The peer asked, by this request.
    Accepting(RequestId),
}

/// A lane, as the control side keeps it.
#[derive(Clone, Debug)]
pub(super) struct LaneRecord {
    pub peer: PeerId,
    pub session: SessionId,
    pub lcore: LcoreId,
    pub lane: LaneId,
    pub peer_lcore: LcoreId,
    pub number: u16,
    /// The number of the repair that it was made for; 0 if it is the session's first.
    pub repair: u32,
    pub qp: QpId,
    pub origin: LaneOrigin,
    /// Windows of its queue pair that were not deallocated.
    pub windows: Vec<WindowId>,
    /// How far the two ends are sure of each other.
    pub admission: Admission,
    /// Whether it is admitted.
    pub up: bool,
    pub broken: bool,
}

impl LaneRecord {
    /// Which lane of its session it is, whatever queue pair that has.
    pub fn place(&self) -> Place {
        (self.peer, (self.lcore, self.peer_lcore), self.number)
    }
}

/// Where a peer is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PeerPhase {
    /// No session; if it is ours to connect, the next try is due then.
    Apart { retry_ns: u64 },
    /// Its first lane's queue pair stands, its connection was not taken; the next try is due then.
    Waiting { qp: QpId, retry_ns: u64 },
    /// Lanes are being made; all must stand by then.
    Joining { deadline_ns: u64 },
    /// All lanes are up.
    Up,
    /// The session has ended; it is being settled on this many lcores.
    Parting { lcores: u16 },
}

impl PeerPhase {
    /// Whether a session is being made.
    pub fn is_joining(self) -> bool {
        matches!(self, Self::Waiting { .. } | Self::Joining { .. })
    }
}

/// A configured peer.
#[derive(Clone, Debug)]
pub(super) struct Peer {
    pub name: String,
    pub address: String,
    pub phase: PeerPhase,
    /// If it is ours to connect: no next session is begun before. If not: no further refusal of it is told before.
    pub rest_until_ns: u64,
    /// Joins that failed since a session stood.
    pub backoff: Backoff,
    /// Whether the session was announced.
    pub was_up: bool,
    /// While it is left in order: how many lcores have something left to say.
    pub staying: Option<u16>,
    /// The session, from its agreement to its end.
    pub session: SessionId,
    /// Its number as agreed.
    pub agreed_session: u32,
    pub incarnation: Incarnation,
    /// Lcores of the peer; 0 until a lane of the session is admitted.
    pub lcores: u16,
    /// How many it may have: as many as it was configured with, for which there is memory.
    pub most_lcores: u16,
    /// What it shares with this engine.
    pub secret: Secret,
    /// The last session of which a lane was admitted: its incarnation, and the number as agreed. What is asked for a session of that incarnation that is not newer
    /// was said before (R12).
    pub proven: Option<(Incarnation, u32)>,
}

impl Peer {
    /// One that was never met.
    pub fn new(name: &str, address: &str, most_lcores: u16, secret: Secret) -> Self {
        Self {
            name: name.to_owned(),
            address: address.to_owned(),
            phase: PeerPhase::Apart { retry_ns: 0 },
            rest_until_ns: 0,
            backoff: Backoff::default(),
            was_up: false,
            staying: None,
            session: SessionId(0),
            agreed_session: 0,
            incarnation: Incarnation(0),
            lcores: 0,
            most_lcores,
            secret,
            proven: None,
        }
    }

    /// Whether a session of this incarnation and number has been already.
    pub fn has_had(&self, incarnation: Incarnation, agreed: u32) -> bool {
        let not_newer = |last: u32| agreed.wrapping_sub(last) as i32 <= 0;
        self.proven
            .is_some_and(|(known, last)| known == incarnation && not_newer(last))
    }
}

/// All peers and lanes.
#[derive(Debug)]
pub(super) struct Peers {
    pub peers: Vec<Peer>,
    lanes: Vec<LaneRecord>,
    /// Free lane slots, an lcore each, the lowest last.
    free: Vec<Vec<LaneId>>,
    pub lcores: u16,
    pub siblings: u16,
    /// Lane slots of an lcore.
    pub slots: u16,
}

impl Peers {
    /// `lanes` slots on each of `lcores` lcores; `siblings` lanes between two lcores.
    pub fn new(peers: Vec<Peer>, lcores: u16, lanes: u16, siblings: u16) -> Self {
        Self {
            peers,
            lanes: Vec::new(),
            free: (0..lcores)
                .map(|_| (0..lanes).rev().map(LaneId).collect())
                .collect(),
            lcores,
            siblings,
            slots: lanes,
        }
    }

    pub fn get(&self, peer: PeerId) -> &Peer {
        &self.peers[peer.0 as usize]
    }

    pub fn get_mut(&mut self, peer: PeerId) -> &mut Peer {
        &mut self.peers[peer.0 as usize]
    }

    /// The peer whose name has this tag; the builder sees to it that there is one at most.
    pub fn by_tag(&self, tag: u32) -> Option<PeerId> {
        let at = self
            .peers
            .iter()
            .position(|peer| name_tag(&peer.name) == tag)?;
        Some(PeerId(at as u16))
    }

    pub fn take_slot(&mut self, lcore: LcoreId) -> Option<LaneId> {
        self.free[lcore.0 as usize].pop()
    }

    pub fn give_slot(&mut self, lcore: LcoreId, lane: LaneId) {
        self.free[lcore.0 as usize].push(lane);
    }

    pub fn add_lane(&mut self, record: LaneRecord) {
        self.lanes.push(record);
    }

    pub fn lane_mut(&mut self, lcore: LcoreId, lane: LaneId) -> Option<&mut LaneRecord> {
        self.lanes
            .iter_mut()
            .find(|known| known.lcore == lcore && known.lane == lane)
    }

    /// Whether the session with a peer has this lane.
    pub fn has_lane(&self, peer: PeerId, ends: (LcoreId, LcoreId), number: u16) -> bool {
        let is_it = |lane: &LaneRecord| {
            let place = (lane.peer, (lane.lcore, lane.peer_lcore), lane.number);
            !lane.broken && place == (peer, ends, number)
        };
        self.lanes.iter().any(is_it)
    }

    /// Whether the session with a peer has a lane to an lcore beyond as many.
    pub fn has_lane_beyond(&self, peer: PeerId, lcores: u16) -> bool {
        let beyond =
            |lane: &LaneRecord| !lane.broken && lane.peer == peer && lane.peer_lcore.0 >= lcores;
        self.lanes.iter().any(beyond)
    }

    /// The lanes of a session that are in the table, those that are destroyed included.
    pub fn lanes_of(&self, session: SessionId) -> impl Iterator<Item = (LcoreId, LaneId, QpId)> {
        let its = self
            .lanes
            .iter()
            .filter(move |lane| lane.session == session);
        its.map(|lane| (lane.lcore, lane.lane, lane.qp))
    }

    pub fn lane_by_qp(&self, qp: QpId) -> Option<&LaneRecord> {
        self.lanes.iter().find(|known| known.qp == qp)
    }

    /// The lane's slot is free on its lcore.
    pub fn forget_lane(&mut self, lcore: LcoreId, lane: LaneId) {
        self.lanes
            .retain(|known| !(known.lcore == lcore && known.lane == lane));
        self.give_slot(lcore, lane);
    }

    /// Lanes of a session, when all of them exist.
    pub fn wanted(&self, peer: PeerId) -> usize {
        usize::from(self.lcores) * usize::from(self.get(peer).lcores) * usize::from(self.siblings)
    }

    /// Whether all lanes of the session are admitted.
    pub fn all_up(&self, peer: PeerId) -> bool {
        let up = self
            .lanes
            .iter()
            .filter(|lane| lane.peer == peer && lane.up && !lane.broken)
            .count();
        up == self.wanted(peer)
    }

    /// Ends a session once; gives the lanes that were not broken before.
    pub fn end_session(&mut self, peer: PeerId) -> Vec<LaneRecord> {
        let sound = |lane: &&mut LaneRecord| lane.peer == peer && !lane.broken;
        let mut ended = Vec::new();
        for lane in self.lanes.iter_mut().filter(sound) {
            lane.broken = true;
            ended.push(lane.clone());
        }
        let session = self.get(peer).session;
        let its = |lane: &LaneRecord| lane.peer == peer && lane.session == session;
        let on = |lcore: &u16| {
            let mut lanes = self.lanes.iter().filter(|lane| its(lane));
            lanes.any(|lane| lane.lcore.0 == *lcore)
        };
        let lcores = (0..self.lcores).filter(on).count() as u16;
        let entry = self.get_mut(peer);
        if !matches!(entry.phase, PeerPhase::Parting { .. }) {
            entry.phase = PeerPhase::Parting { lcores };
        }
        ended
    }

    /// A session of which not even the first lane could be made has not begun. Whether this is one.
    pub fn forget_joining(&mut self, peer: PeerId) -> bool {
        // Lanes of sessions before may be there still, with keys in quarantine.
        let session = self.get(peer).session;
        let none = !self.lanes.iter().any(|lane| lane.session == session);
        let entry = self.get_mut(peer);
        if none && entry.phase.is_joining() {
            entry.phase = PeerPhase::Apart { retry_ns: 0 };
        }
        none
    }

    /// One lcore has settled the session; whether it was the last, and the session one that was announced.
    pub fn down_on_one(&mut self, peer: PeerId) -> bool {
        let entry = self.get_mut(peer);
        let PeerPhase::Parting { lcores } = &mut entry.phase else {
            return false;
        };
        *lcores = lcores.saturating_sub(1);
        if *lcores > 0 {
            return false;
        }
        // A peer that is lost as soon as it is found must not keep us busy.
        let retry_ns = entry.rest_until_ns;
        entry.phase = PeerPhase::Apart { retry_ns };
        core::mem::take(&mut entry.was_up)
    }
}
