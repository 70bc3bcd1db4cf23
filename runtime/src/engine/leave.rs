//! The control side's part of a session's orderly end: it begins on all lcores at once, when this engine has closed all its contexts or the peer has said `Bye`, and the session is over when all have done
//! their part (`engine/bye.rs`).

use keyfence_pmd::Device;

use crate::engine::command::Command;
use crate::engine::control::ControlSide;
use crate::engine::peers::PeerPhase;
use crate::ids::{LaneId, LcoreId, PeerId, SessionId};
use crate::session::JoinRefusal;

impl<D: Device> ControlSide<D> {
    /// An lcore has no context left. Behind the last one sessions are left, and those that do not stand are given up.
    pub fn closed_on_one(&mut self) {
        self.all_closed += 1;
        if !self.is_closed() {
            return;
        }
        for at in 0..self.peers.peers.len() {
            let peer = PeerId(at as u16);
            match self.peers.get(peer).phase {
                PeerPhase::Up => self.leave(peer),
                PeerPhase::Waiting { .. } | PeerPhase::Joining { .. } => {
                    self.end_session(peer, JoinRefusal::Ended);
                }
                PeerPhase::Apart { .. } | PeerPhase::Parting { .. } => {}
            }
        }
    }

    /// Whether no lcore has a context left, and none is opened any more.
    pub fn is_closed(&self) -> bool {
        self.all_closed == self.ports.len()
    }

    /// Whether no session is left either.
    pub fn has_left(&self) -> bool {
        let apart = |phase| matches!(phase, PeerPhase::Apart { .. });
        self.is_closed() && self.peers.peers.iter().all(|peer| apart(peer.phase))
    }

    /// Leaves a session that stands, once.
    fn leave(&mut self, peer: PeerId) {
        let lcores = self.peers.lcores;
        let entry = self.peers.get_mut(peer);
        if entry.phase != PeerPhase::Up || entry.staying.is_some() {
            return;
        }
        entry.staying = Some(lcores);
        let session = entry.session;
        for lcore in 0..lcores {
            self.send(LcoreId(lcore), Command::Leave { peer, session });
        }
    }

    /// The peer leaves.
    pub fn bye_came(&mut self, lcore: LcoreId, lane: LaneId) {
        let record = self.peers.lane_mut(lcore, lane);
        let Some((peer, session)) = record.map(|record| (record.peer, record.session)) else {
            return;
        };
        if self.peers.get(peer).session == session {
            self.leave(peer);
        }
    }

    /// An lcore has nothing left to say in a session, or has waited for as long as it may.
    pub fn left_on_one(&mut self, peer: PeerId, session: SessionId) {
        let entry = self.peers.get_mut(peer);
        if entry.phase != PeerPhase::Up || entry.session != session {
            return;
        }
        let Some(staying) = &mut entry.staying else {
            return;
        };
        *staying = staying.saturating_sub(1);
        if *staying == 0 {
            self.end_session(peer, JoinRefusal::Ended);
        }
    }
}
