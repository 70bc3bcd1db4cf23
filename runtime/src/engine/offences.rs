//! Operations that break the lane that others share, and the contexts that they are of (REQUIREMENTS section 5, "An offender"). The engine that posted knows them; the other end knows its peer.

use keyfence_pmd::WcStatus;

use crate::engine::command::ToControl;
use crate::engine::state::Core;
use crate::event::EngineEvent;
use crate::grant::import::ImportPhase;
use crate::ids::LaneId;
use crate::lane::inflight::Flight;

impl Core {
    /// A request has failed on a lane that was sound: what breaks is the lane of all. One that was flushed, or found nobody, is no fault of its context, nor one by a grant that its owner
    /// has taken back meanwhile.
    #[cold]
    pub(super) fn look_for_offence(&mut self, lane: LaneId, low: u64, status: WcStatus) {
        let is_fault = matches!(
            status,
            WcStatus::LocalLength
                | WcStatus::LocalProtection
                | WcStatus::RemoteInvalidRequest
                | WcStatus::RemoteAccess
                | WcStatus::RemoteOperation
        );
        let flight = self.lane(lane).inflight.flight(low);
        let (Some(Flight::Slice { op, .. } | Flight::Message { op, .. }), true) =
            (flight, is_fault)
        else {
            return;
        };
        let op = self.ops.get(op);
        let is_late = |import| self.imports.at(import).phase != ImportPhase::Live;
        if !op.import().is_some_and(is_late) {
            self.offended(lane, op.context);
        }
    }

    fn offended(&mut self, lane: LaneId, slot: u16) {
        self.stats.offences += 1;
        let (now_ns, window_ns) = (self.now_ns, self.timeouts.reconnect_timeout_ns);
        let most = self.limits.context.offences;
        let context = self.contexts.get_mut(slot);
        let offences = context.offences.one_more(now_ns, window_ns);
        let is_expelled = context.is_live() && most > 0 && offences >= most;
        if is_expelled {
            self.stats.contexts_expelled += 1;
            self.close(slot);
        }
        let offence = EngineEvent::Offence {
            context: self.contexts.id(slot),
            peer: self.lane(lane).peer,
            offences,
            is_expelled,
        };
        self.outbox.push(ToControl::Event(offence));
    }
}
