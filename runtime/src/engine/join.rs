//! Joining a peer: the engine whose name sorts first connects, the other accepts; one connection a lane. Never waits for the other side.

use keyfence_pmd::{ControlError, Device, QpConfig, QpId, RequestId, Window};
use zerocopy::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::context::ops::MAX_RANGES;
use crate::engine::command::Command;
use crate::engine::control::ControlSide;
use crate::engine::lookup::LOOKUPS;
use crate::engine::peers::{LaneOrigin, LaneRecord, PeerPhase, name_hash};
use crate::event::EngineEvent;
use crate::grant::import::PeerGrant;
use crate::ids::{Incarnation, LaneId, LcoreId, PeerId, SessionId};
use crate::lane::credits::ContextCredits;
use crate::lane::{Lane, LaneSetup, LaneSizes};
use crate::limits::Limits;
use crate::wire::VERSION;

/// Marks the private data of keyfence.
const MAGIC: u16 = 0x6b66;

/// How long a refused or unreachable peer is left alone.
const RETRY_NS: u64 = 5_000_000;

/// The most contexts or grants of an lcore that a peer may claim, so that its word can't exhaust our memory.
const MAX_TABLE: u32 = 1 << 20;

/// What each side tells the other with the connection; it fits the 56 bytes of a rdma_cm request.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
struct Private {
    magic: U16,
    version: U16,
    source_lcore: U16,
    target_lcore: U16,
    number: U16,
    siblings: U16,
    lcores: U16,
    reserved: U16,
    session: U32,
    contexts: U32,
    grants: U32,
    name_hash: U64,
    incarnation: U128,
}

/// What an engine says of itself to every peer.
#[derive(Clone, Debug)]
pub(super) struct Identity {
    pub name: String,
    pub incarnation: Incarnation,
    /// Sizes of one lcore.
    pub limits: Limits,
    pub pd: keyfence_pmd::PdId,
    pub tag_seed: u64,
}

impl<D: Device> ControlSide<D> {
    /// Starts what is due: the first lane to a peer that is ours to connect.
    pub fn connect_due(&mut self, now_ns: u64) -> bool {
        let mut any = self.connect_again(now_ns);
        for at in 0..self.peers.peers.len() {
            let peer = PeerId(at as u16);
            let entry = self.peers.get(peer);
            let due = matches!(entry.phase, PeerPhase::Apart { retry_ns } if now_ns >= retry_ns);
            if !due || self.identity.name >= entry.name || self.parting {
                continue;
            }
            any = true;
            self.last_agreed = self.last_agreed.wrapping_add(1).max(1);
            self.begin_session(peer, self.last_agreed);
            let entry = self.peers.get_mut(peer);
            entry.rest_until_ns = now_ns.saturating_add(RETRY_NS);
            // Not known before the peer's first word.
            entry.lcores = 0;
            if self
                .make_lane(peer, LcoreId(0), LcoreId(0), 0, LaneOrigin::Connecting)
                .is_err()
            {
                self.put_off(peer, now_ns);
            }
        }
        any
    }

    /// Gives the session a number that no earlier one of this engine had, whatever number both sides know it by.
    fn begin_session(&mut self, peer: PeerId, agreed: u32) {
        self.sessions += 1;
        let entry = self.peers.get_mut(peer);
        entry.session = SessionId(self.sessions);
        entry.agreed_session = agreed;
        entry.phase = PeerPhase::Joining;
    }

    fn connect_again(&mut self, now_ns: u64) -> bool {
        if self.try_again.is_empty() || now_ns < self.try_again_ns {
            return false;
        }
        self.try_again_ns = now_ns.saturating_add(RETRY_NS);
        for qp in core::mem::take(&mut self.try_again) {
            let record = self.peers.lane_by_qp(qp).filter(|lane| !lane.broken);
            if let Some((lcore, lane)) = record.map(|record| (record.lcore, record.lane)) {
                self.lane_attached(lcore, lane);
            }
        }
        true
    }

    fn put_off(&mut self, peer: PeerId, now_ns: u64) {
        let retry_ns = now_ns.saturating_add(RETRY_NS);
        self.peers.get_mut(peer).phase = PeerPhase::Apart { retry_ns };
    }

    /// Makes a queue pair and, after it, its windows, and hands them to the lcore.
    fn make_lane(
        &mut self,
        peer: PeerId,
        lcore: LcoreId,
        peer_lcore: LcoreId,
        number: u16,
        origin: LaneOrigin,
    ) -> Result<(), ControlError> {
        let limits = &self.identity.limits;
        let slot = self.peers.take_slot(lcore);
        let lane = slot.ok_or(ControlError::Exhausted {
            what: "lane slots",
            limit: self.peers.slots.into(),
        })?;
        let made = make_queue_pair(&*self.device, self.identity.pd, lcore, limits);
        let (qp, windows) = match made {
            Ok(made) => made,
            Err(error) => {
                self.peers.give_slot(lcore, lane);
                return Err(error);
            }
        };
        self.peers.add_lane(LaneRecord {
            peer,
            lcore,
            lane,
            peer_lcore,
            number,
            qp,
            origin,
            windows: windows.iter().map(|window| window.id).collect(),
            up: false,
            broken: false,
        });
        let entry = Box::new(Lane::new(
            LaneSetup {
                qp,
                peer,
                session: self.peers.get(peer).session,
                agreed_session: self.peers.get(peer).agreed_session,
                number,
                peer_lcore,
                connecting: origin == LaneOrigin::Connecting,
                windows,
                sizes: lane_sizes(&self.identity.limits),
            },
            self.identity.tag_seed ^ u64::from(qp.0) << 32,
        ));
        let siblings = self.peers.siblings;
        self.send(
            lcore,
            Command::AttachLane {
                lane,
                siblings,
                entry,
            },
        );
        Ok(())
    }

    /// The lcore has posted the lane's receives: connect it, or accept.
    pub fn lane_attached(&mut self, lcore: LcoreId, lane: LaneId) {
        let record = self.peers.lane_mut(lcore, lane).cloned();
        // Its session may have ended meanwhile.
        let Some(record) = record.filter(|record| !record.broken) else {
            return;
        };
        let private = self.private(&record);
        let started = match record.origin {
            LaneOrigin::Connecting => {
                let address = self.peers.get(record.peer).address.clone();
                self.device
                    .start_connect(record.qp, &address, private.as_bytes())
            }
            LaneOrigin::Accepting(request) => {
                self.device.accept(request, record.qp, private.as_bytes())
            }
        };
        match started {
            Ok(()) => {}
            Err(ControlError::Unreachable(_)) => self.try_again.push(record.qp),
            Err(error) => {
                tracing::warn!(%error, "a lane could not be connected");
                self.lane_broken_by(&record);
            }
        }
    }

    fn lane_broken_by(&mut self, record: &LaneRecord) {
        for record in self.peers.end_session(record.peer) {
            self.error_lane(record.lcore, record.lane, record.qp);
        }
    }

    /// The peer wants a lane.
    pub fn connect_request(&mut self, request: RequestId, private: &[u8]) {
        let admitted = Private::ref_from_bytes(private)
            .ok()
            .copied()
            .and_then(|private| {
                let peer = self.admit(&private)?;
                let (lcore, peer_lcore) = (private.target_lcore.get(), private.source_lcore.get());
                let origin = LaneOrigin::Accepting(request);
                let made = self.make_lane(
                    peer,
                    LcoreId(lcore),
                    LcoreId(peer_lcore),
                    private.number.get(),
                    origin,
                );
                if made.is_err() {
                    self.peers.forget_joining(peer);
                }
                made.ok()
            });
        if admitted.is_none() {
            // The asker may have gone meanwhile.
            let _ = self.device.reject(request, &[]);
        }
    }

    /// The peer that a request is of, if it fits the session that stands or may begin one.
    fn admit(&mut self, private: &Private) -> Option<PeerId> {
        if self.parting
            || private.magic.get() != MAGIC
            || private.version.get() != VERSION
            || private.siblings.get() != self.peers.siblings
            || private.target_lcore.get() >= self.peers.lcores
            || private.source_lcore.get() >= private.lcores.get()
            || private.number.get() >= self.peers.siblings
        {
            return None;
        }
        let peer = self.peers.by_hash(private.name_hash.get())?;
        let incarnation = Incarnation(private.incarnation.get());
        let entry = self.peers.get(peer);
        match entry.phase {
            PeerPhase::Apart { .. } => {
                self.begin_session(peer, private.session.get());
                let entry = self.peers.get_mut(peer);
                entry.incarnation = incarnation;
                entry.lcores = private.lcores.get();
                entry.contexts = private.contexts.get().min(MAX_TABLE);
                entry.grants = private.grants.get().min(MAX_TABLE);
                Some(peer)
            }
            PeerPhase::Joining => {
                let same = entry.agreed_session == private.session.get()
                    && entry.incarnation == incarnation;
                same.then_some(peer)
            }
            // Both losses must have ended before a new session opens.
            PeerPhase::Up | PeerPhase::Parting { .. } => None,
        }
    }

    /// A connection stands.
    pub fn connected(&mut self, qp: QpId, private: &[u8]) {
        let record = self.peers.lane_by_qp(qp).filter(|lane| !lane.broken);
        let Some(record) = record.cloned() else {
            return;
        };
        if record.origin == LaneOrigin::Connecting && !self.answered(&record, private) {
            self.lane_broken_by(&record);
            return;
        }
        let entry = self.peers.get(record.peer);
        let command = Command::LaneConnected {
            lane: record.lane,
            peer_contexts: vec![ContextCredits::default(); entry.contexts as usize]
                .into_boxed_slice(),
            peer_grants: vec![PeerGrant::Unknown; entry.grants as usize].into_boxed_slice(),
        };
        self.send(record.lcore, command);
    }

    /// Takes the accepting side's word; its first one leads to the other lanes.
    fn answered(&mut self, record: &LaneRecord, private: &[u8]) -> bool {
        let Ok(private) = Private::ref_from_bytes(private).copied() else {
            return false;
        };
        let entry = self.peers.get_mut(record.peer);
        let fits = private.magic.get() == MAGIC
            && private.version.get() == VERSION
            && private.session.get() == entry.agreed_session
            && private.siblings.get() == self.peers.siblings
            && private.lcores.get() > 0;
        if !fits {
            return false;
        }
        let entry = self.peers.get_mut(record.peer);
        if entry.lcores > 0 {
            return entry.incarnation.0 == private.incarnation.get();
        }
        entry.lcores = private.lcores.get();
        entry.incarnation = Incarnation(private.incarnation.get());
        entry.contexts = private.contexts.get().min(MAX_TABLE);
        entry.grants = private.grants.get().min(MAX_TABLE);
        let lcores = entry.lcores;
        for lcore in 0..self.peers.lcores {
            for peer_lcore in 0..lcores {
                for number in 0..self.peers.siblings {
                    let first = (lcore, peer_lcore, number) == (0, 0, 0);
                    let (lcore, peer_lcore) = (LcoreId(lcore), LcoreId(peer_lcore));
                    let origin = LaneOrigin::Connecting;
                    if !first
                        && self
                            .make_lane(record.peer, lcore, peer_lcore, number, origin)
                            .is_err()
                    {
                        return false;
                    }
                }
            }
        }
        true
    }

    /// The peer refused. While it has said nothing yet it may still be settling an older session: the same lane is tried again.
    pub fn rejected(&mut self, qp: QpId) {
        let Some(record) = self.peers.lane_by_qp(qp).cloned() else {
            return;
        };
        if self.peers.get(record.peer).lcores == 0 && !record.broken {
            self.try_again.push(record.qp);
        } else {
            self.lane_broken_by(&record);
        }
    }

    /// Both hellos of a lane are in.
    pub fn lane_up(&mut self, lcore: LcoreId, lane: LaneId) {
        let Some(record) = self.peers.lane_mut(lcore, lane) else {
            return;
        };
        record.up = true;
        let peer = record.peer;
        if self.peers.get(peer).phase == PeerPhase::Joining && self.peers.all_up(peer) {
            self.peers.get_mut(peer).phase = PeerPhase::Up;
            self.peers.get_mut(peer).was_up = true;
            for lcore in 0..self.peers.lcores {
                self.send(LcoreId(lcore), Command::SessionUp(peer));
            }
            self.events.push_back(EngineEvent::PeerUp(peer));
        }
    }

    fn private(&self, record: &LaneRecord) -> Private {
        let limits = &self.identity.limits;
        Private {
            magic: MAGIC.into(),
            version: VERSION.into(),
            source_lcore: record.lcore.0.into(),
            target_lcore: record.peer_lcore.0.into(),
            number: record.number.into(),
            siblings: self.peers.siblings.into(),
            lcores: self.peers.lcores.into(),
            reserved: 0.into(),
            session: self.peers.get(record.peer).agreed_session.into(),
            contexts: limits.contexts.into(),
            grants: limits.grants.into(),
            name_hash: name_hash(&self.identity.name).into(),
            incarnation: self.identity.incarnation.0.into(),
        }
    }
}

/// A queue pair and, after it, as many of its windows as the device still has; one at least.
fn make_queue_pair(
    device: &impl Device,
    pd: keyfence_pmd::PdId,
    lcore: LcoreId,
    limits: &Limits,
) -> Result<(QpId, Vec<Window>), ControlError> {
    let qp = device.create_qp(&QpConfig {
        pd,
        lcore,
        send_depth: limits.send_depth,
        receive_depth: limits.receive_depth,
        max_sge: 1 + MAX_RANGES,
        max_inline_bytes: 0,
    })?;
    let mut windows = Vec::with_capacity(limits.windows as usize);
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
    Ok((qp, windows))
}

fn lane_sizes(limits: &Limits) -> LaneSizes {
    LaneSizes {
        send_depth: limits.send_depth as usize,
        receive_depth: limits.receive_depth as usize,
        contexts: limits.contexts as usize,
        fences: limits.epochs as usize + limits.contexts as usize,
        // Each grant waits to be made and to be revoked at most; a hello, a sign of life, and what repeats revokes.
        requests: 2 * limits.grants as usize + 4,
        lookups: usize::from(LOOKUPS),
        // Each import, context and epoch has at most a few frames waiting. More are the peer's own loss.
        answers: (limits.grants + limits.imports + 4 * limits.contexts + 2 * limits.epochs)
            as usize
            + 64,
    }
}
