//! The accepting side of a join: who may have which lane.

use keyfence_pmd::{Device, RequestId};
use zerocopy::IntoBytes;

use crate::engine::control::ControlSide;
use crate::engine::peers::{LaneOrigin, PeerPhase};
use crate::engine::private::{Private, understood};
use crate::engine::refusal::{JoinRefusal, Refused};
use crate::ids::{Incarnation, LcoreId, PeerId};

impl<D: Device> ControlSide<D> {
    /// The peer wants a lane.
    pub fn connect_request(&mut self, request: RequestId, private: &[u8]) {
        if let Err(why) = self.admit(request, private) {
            tracing::debug!(%why, "a lane was refused");
            let said = Refused::new(&why, self.peers.siblings);
            // The asker may have gone meanwhile.
            let _ = self.device.reject(request, said.as_bytes());
        }
    }

    fn admit(&mut self, request: RequestId, private: &[u8]) -> Result<(), JoinRefusal> {
        let private = *understood(private)?;
        // Who it is: known by its configured name alone (R12).
        let peer = self.peers.by_hash(private.name_hash.get());
        let peer = peer.ok_or(JoinRefusal::NotConfigured)?;
        if self.parting {
            return Err(JoinRefusal::Ended);
        }
        if let Err(why) = self.check_request(&private) {
            self.refuse(peer, why.clone());
            return Err(why);
        }
        self.admit_to_session(peer, &private)?;
        let (lcore, peer_lcore) = (private.target_lcore.get(), private.source_lcore.get());
        let made = self.make_lane(
            peer,
            LcoreId(lcore),
            LcoreId(peer_lcore),
            private.number.get(),
            LaneOrigin::Accepting(request),
        );
        made.map_err(|error| {
            if self.peers.forget_joining(peer) {
                self.refuse(peer, error.into());
            } else {
                self.end_session(peer, error.into());
            }
            JoinRefusal::Full
        })
    }

    fn check_request(&self, private: &Private) -> Result<(), JoinRefusal> {
        let (ours, theirs) = (self.peers.siblings, private.siblings.get());
        if theirs != ours {
            return Err(JoinRefusal::Lanes { ours, theirs });
        }
        let fits = private.target_lcore.get() < self.peers.lcores
            && private.source_lcore.get() < private.lcores.get()
            && private.number.get() < ours;
        fits.then_some(()).ok_or(JoinRefusal::Malformed)
    }

    /// Whether a request fits the session that is being made, or may begin one.
    fn admit_to_session(&mut self, peer: PeerId, private: &Private) -> Result<(), JoinRefusal> {
        let incarnation = Incarnation(private.incarnation.get());
        let entry = self.peers.get(peer);
        match entry.phase {
            PeerPhase::Apart { .. } => {
                self.begin_session(peer, private.session.get());
                self.peers.get_mut(peer).introduce(private);
                Ok(())
            }
            PeerPhase::Joining { .. }
                if entry.agreed_session == private.session.get()
                    && entry.incarnation == incarnation =>
            {
                Ok(())
            }
            // Both losses must have ended before a new session opens.
            _ => Err(JoinRefusal::Busy),
        }
    }
}
