//! The accepting side of a join: who may have which lane. Nothing here is authentic yet; `engine/hello.rs` is where it becomes so.

use keyfence_pmd::{Device, RequestId};
use zerocopy::IntoBytes;

use crate::engine::control::ControlSide;
use crate::engine::peers::PeerPhase;
use crate::ids::{Incarnation, LcoreId, PeerId};
use crate::session::{Admission, JoinRefusal, Refused, Request, name_tag};

impl<D: Device> ControlSide<D> {
    /// The peer wants a lane.
    pub fn connect_request(&mut self, id: RequestId, private: &[u8]) {
        if let Err(why) = self.admit(id, private) {
            self.admissions.requests_refused += 1;
            tracing::debug!(%why, "a lane was refused");
            let said = Refused::new(&why);
            // The asker may have gone meanwhile.
            let _ = self.device.reject(id, said.as_bytes());
        }
    }

    fn admit(&mut self, id: RequestId, private: &[u8]) -> Result<(), JoinRefusal> {
        let request = *Request::read(private)?;
        // Who it says it is: one that is configured, or nobody (R12).
        let peer = self.peers.by_tag(request.from.get());
        let peer = peer.ok_or(JoinRefusal::NotConfigured)?;
        if self.parting {
            return Err(JoinRefusal::Ended);
        }
        self.check_request(peer, &request).inspect_err(|why| {
            self.refuse(peer, why.clone());
        })?;
        if request.repair != 0 {
            return self.admit_rebuild(id, peer, &request);
        }
        let admission = Admission::accepting(&request, 0)?;
        self.admit_to_session(peer, &request)?;
        let asked = Some((id, admission));
        let made = self.make_lane(peer, ends(&request), request.number(), 0, asked);
        made.map(drop).map_err(|error| {
            if self.peers.forget_joining(peer) {
                self.session_left(peer);
                self.refuse(peer, error.into());
            } else {
                self.end_session(peer, error.into());
            }
            JoinRefusal::Full
        })
    }

    fn check_request(&self, peer: PeerId, request: &Request) -> Result<(), JoinRefusal> {
        if request.to.get() != name_tag(&self.identity.name) {
            return Err(JoinRefusal::WrongName);
        }
        if self.is_ours_to_join(peer) {
            return Err(JoinRefusal::Role);
        }
        let (ours, theirs) = (self.peers.siblings, request.siblings());
        if theirs != ours {
            return Err(JoinRefusal::Lanes { ours, theirs });
        }
        let fits = u16::from(request.target_lcore) < self.peers.lcores
            && u16::from(request.source_lcore) < self.peers.get(peer).most_lcores
            && request.number() < ours;
        fits.then_some(()).ok_or(JoinRefusal::Malformed)
    }

    /// Whether a request fits the session that is being made, or may begin one.
    fn admit_to_session(&mut self, peer: PeerId, request: &Request) -> Result<(), JoinRefusal> {
        let (agreed, incarnation) = (
            request.session.get(),
            Incarnation(request.incarnation.get()),
        );
        let entry = self.peers.get(peer);
        match entry.phase {
            PeerPhase::Apart { .. } => {
                if entry.has_had(incarnation, agreed) {
                    return Err(JoinRefusal::Ended);
                }
                self.begin_session(peer, agreed);
                self.peers.get_mut(peer).incarnation = incarnation;
                Ok(())
            }
            PeerPhase::Joining { .. }
                if entry.agreed_session == agreed && entry.incarnation == incarnation =>
            {
                // As soon as that is known: there is none from an lcore that the peer has not.
                if entry.lcores > 0 && u16::from(request.source_lcore) >= entry.lcores {
                    return Err(JoinRefusal::Malformed);
                }
                let had = self.peers.has_lane(peer, ends(request), request.number());
                (!had).then_some(()).ok_or(JoinRefusal::Duplicate)
            }
            // Both losses must have ended before a new session opens.
            _ => Err(JoinRefusal::Busy),
        }
    }
}

/// The lcores of a lane that the peer asks for, ours first.
pub(super) fn ends(request: &Request) -> (LcoreId, LcoreId) {
    let lcore = |lcore: u8| LcoreId(lcore.into());
    (lcore(request.target_lcore), lcore(request.source_lcore))
}
