//! The control side's part of a lane's hellos: it makes ours, and judges the peer's by the lane's admission.

use keyfence_pmd::{Device, QpId};

use crate::engine::command::{Command, PeerSizes};
use crate::engine::control::ControlSide;
use crate::engine::peers::{LaneOrigin, LaneRecord};
use crate::grant::import::PeerGrant;
use crate::ids::{LaneId, LcoreId, PeerId};
use crate::lane::credits::SendCredits;
use crate::lane::greeting::HelloBytes;
use crate::lane::remote::RemoteSlot;
use crate::session::{Event, JoinRefusal, Known, Order, Pace};
use crate::wire::{self, Frame, Header, Hello, MAX_CONTROL_BYTES, Name, Role};

/// The most grants of an lcore that a peer may claim, so that its word can't exhaust our memory: as many as a configuration may have.
const MAX_GRANTS: u32 = 1 << 20;

/// And the most contexts.
const MAX_CONTEXTS: u32 = 1 << 16;

/// The peer's hello, and what follows from its frame's header.
type Heard<'a> = (SendCredits, Hello<'a>);

impl<D: Device> ControlSide<D> {
    /// What this engine knows of a peer without its word.
    pub fn known(&self, peer: PeerId) -> Known<'_> {
        let peer = self.peers.get(peer);
        Known {
            our_name: &self.identity.name,
            our_incarnation: self.identity.incarnation,
            pace: self.pace(),
            peer_name: &peer.name,
            secret: &peer.secret,
            peer_incarnation: (peer.lcores > 0).then_some(peer.incarnation),
        }
    }

    fn pace(&self) -> Pace {
        let limits = &self.identity.limits;
        Pace {
            cap_bytes: limits.lane_bytes_in_flight,
            slowest_rate_bytes_per_s: limits.slowest_rate_bytes_per_s,
            fence_timeout_ns: self.identity.fence_timeout_ns,
        }
    }

    /// A nonce that was never drawn in this start of the engine.
    pub fn draw_nonce(&mut self, peer: PeerId) -> [u8; 16] {
        self.nonces += 1;
        let secret = &self.peers.get(peer).secret;
        secret.nonce(self.identity.incarnation, self.nonces)
    }

    /// Tells a lane's admission what happened.
    pub fn admission<'a>(
        &mut self,
        lcore: LcoreId,
        lane: LaneId,
        event: Event<'a>,
    ) -> Result<Order<'a>, JoinRefusal> {
        let Some(record) = self.peers.lane_mut(lcore, lane) else {
            return Err(JoinRefusal::LaneBroke);
        };
        let (peer, mut admission) = (record.peer, record.admission.clone());
        let order = admission.handle(event, &self.known(peer));
        if let Some(record) = self.peers.lane_mut(lcore, lane) {
            record.admission = admission;
        }
        order
    }

    /// A connection stands: say hello on it, if the peer's answer is authentic.
    pub fn connected(&mut self, qp: QpId, private: &[u8]) {
        let record = self.peers.lane_by_qp(qp).filter(|lane| !lane.broken);
        let Some(record) = record.cloned() else {
            return;
        };
        let (lcore, lane) = (record.lcore, record.lane);
        tracing::debug!(?qp, repair = record.repair, "a lane is connected");
        if record.origin == LaneOrigin::Connecting
            && let Err(why) = self.admission(lcore, lane, Event::Reply(private))
        {
            self.admissions.replies_refused += 1;
            self.failed(&record, why);
            return;
        }
        match self.signed_hello(&record) {
            Ok(hello) => self.send(lcore, Command::LaneConnected { lane, hello }),
            Err(why) => self.failed(&record, why),
        }
    }

    /// What this engine says on a lane, as bytes.
    fn signed_hello(&mut self, record: &LaneRecord) -> Result<Box<HelloBytes>, JoinRefusal> {
        // Borrowed from here, so that the admission can be had to change.
        let name = self.identity.name.clone();
        let hello = self.hello(
            record,
            Name::new(&name).map_err(|_| JoinRefusal::Malformed)?,
        );
        let order = self.admission(record.lcore, record.lane, Event::Greet(hello))?;
        let Order::Hello(hello) = order else {
            return Err(JoinRefusal::Malformed);
        };
        let mut bytes = [0; MAX_CONTROL_BYTES];
        let frame = Frame::Hello(hello);
        let len = wire::encode(&Header::default(), &frame, &mut bytes);
        let mut said = HelloBytes::new();
        said.fill(&bytes[..len.expect("a hello fits a control frame")]);
        Ok(said)
    }

    fn hello<'a>(&self, record: &LaneRecord, name: Name<'a>) -> Hello<'a> {
        let limits = &self.identity.limits;
        Hello {
            role: match record.origin {
                LaneOrigin::Connecting => Role::Connecting,
                LaneOrigin::Accepting(_) => Role::Accepting,
            },
            incarnation: self.identity.incarnation,
            session: self.peers.get(record.peer).agreed_session,
            lane: record.number,
            source_lcore: record.lcore,
            target_lcore: record.peer_lcore,
            siblings: self.peers.siblings,
            lcores: self.peers.lcores,
            repair: record.admission.repair(),
            qp: record.qp.0,
            contexts: limits.contexts,
            grants: limits.grants,
            frame_bytes: self.identity.frame_bytes,
            receive_depth: limits.receive_depth,
            messages_per_context: limits.context.messages,
            lane_bytes_cap: limits.lane_bytes_in_flight,
            slowest_rate: limits.slowest_rate_bytes_per_s,
            fence_timeout_ns: self.identity.fence_timeout_ns,
            mac: [0; 16],
            name,
        }
    }

    /// The peer's hello on a lane is there.
    pub fn hello_came(&mut self, lcore: LcoreId, lane: LaneId, bytes: &HelloBytes) {
        let record = self.peers.lane_mut(lcore, lane).cloned();
        let Some(record) = record.filter(|record| !record.broken) else {
            return;
        };
        tracing::debug!(qp = ?record.qp, repair = record.repair, "a hello has come");
        let admitted = match self.judge_hello(&record, bytes.as_slice()) {
            Ok(heard) => self.admitted(&record, &heard),
            Err(why) => {
                self.admissions.hellos_refused += 1;
                Err(why)
            }
        };
        if let Err(why) = admitted {
            self.failed(&record, why);
        }
    }

    fn judge_hello<'a>(
        &mut self,
        record: &LaneRecord,
        bytes: &'a [u8],
    ) -> Result<Heard<'a>, JoinRefusal> {
        let Ok((header, Frame::Hello(hello))) = wire::decode(bytes) else {
            return Err(JoinRefusal::Malformed);
        };
        self.admission(record.lcore, record.lane, Event::Hello(&hello))?;
        let entry = self.peers.get(record.peer);
        // R12: the secret makes it a peer, not a larger one than was configured.
        let (configured, claimed) = (entry.most_lcores, hello.lcores);
        if claimed > configured {
            return Err(JoinRefusal::Lcores {
                configured,
                claimed,
            });
        }
        let lcores = entry.lcores;
        let credits = SendCredits::behind_hello(header.lane_credit, hello.receive_depth);
        let credits = credits.filter(|_| lcores == 0 || lcores == hello.lcores);
        Ok((credits.ok_or(JoinRefusal::Hello)?, hello))
    }

    /// Lets traffic begin on a lane. The first one leads to the others.
    fn admitted(&mut self, record: &LaneRecord, heard: &Heard<'_>) -> Result<(), JoinRefusal> {
        let (credits, hello) = heard;
        let contexts = hello.contexts.min(MAX_CONTEXTS) as usize;
        let grants = hello.grants.min(MAX_GRANTS) as usize;
        let first = record.repair == 0;
        let command = Command::LaneAdmitted {
            lane: record.lane,
            credits: *credits,
            peer: PeerSizes {
                receive_depth: hello.receive_depth,
                messages: hello.messages_per_context,
                frame_bytes: hello.frame_bytes,
            },
            // A repair's come with the link.
            peer_contexts: vec![RemoteSlot::default(); if first { contexts } else { 0 }]
                .into_boxed_slice(),
            peer_grants: vec![PeerGrant::Unknown; if first { grants } else { 0 }]
                .into_boxed_slice(),
            listed: Vec::with_capacity(if first { 0 } else { grants }),
        };
        // All lanes of a session that stands are proven. One that is asked for beyond them, by whomever, would end it when it breaks.
        if self.peers.has_lane_beyond(record.peer, hello.lcores) {
            return Err(JoinRefusal::Malformed);
        }
        self.send(record.lcore, command);
        self.admissions.lanes_admitted += 1;
        if let Some(record) = self.peers.lane_mut(record.lcore, record.lane) {
            record.up = true;
        }
        if !first {
            self.rebuild_admitted(record);
            return Ok(());
        }
        let entry = self.peers.get_mut(record.peer);
        if entry.lcores == 0 {
            entry.lcores = hello.lcores;
            entry.incarnation = hello.incarnation;
            // The connecting side's number, which only grows.
            if let LaneOrigin::Accepting(_) = record.origin {
                entry.proven = Some((hello.incarnation, entry.agreed_session));
            }
            if record.origin == LaneOrigin::Connecting {
                self.make_other_lanes(record.peer)?;
            }
        }
        self.session_may_stand(record.peer);
        Ok(())
    }
}
