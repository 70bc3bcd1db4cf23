//! Control frames on their way out.

use keyfence_pmd::{Sge, SgeList, WorkOp};

use crate::engine::pump::work_id;
use crate::engine::state::Core;
use crate::ids::{ContextId, Epoch, GrantId, LaneId};
use crate::lane::LanePhase;
use crate::lane::credits::Class;
use crate::lane::inflight::Flight;
use crate::lane::queue::{Answer, Request};
use crate::lane::repair::Event as RepairEvent;
use crate::reclaim::StrandState;
use crate::wire::{
    self, Frame, HEADER_BYTES, Header, List, MAX_CONTROL_BYTES, MAX_ENDED_CONTEXTS,
    MAX_REVOKE_GRANTS, Name, WireContext,
};

impl Core {
    /// Answers, as far as room and credits go.
    pub(super) fn pump_answers(&mut self, lane: LaneId) {
        while self.lane(lane).link.control.has_answers() && self.may_send(lane, Class::Answer) {
            let Some(answer) = self.lane_mut(lane).link.control.next_answer() else {
                break;
            };
            self.post_answer(lane, answer);
        }
    }

    /// Requests, likewise; of a lane that greets the hello alone.
    pub(super) fn pump_requests(&mut self, lane: LaneId) {
        let greeting = self.lane(lane).phase == LanePhase::Greeting;
        while self.lane(lane).link.control.peek_request().is_some()
            && self.may_send(lane, Class::Request)
        {
            if self.send_room(lane, Class::Request) < self.slots_of_next_request(lane) {
                break;
            }
            let Some(request) = self.lane_mut(lane).link.control.next_request() else {
                break;
            };
            if greeting && request != Request::Hello {
                // Nothing but the hello is said before the peer's is admitted.
                self.lane_mut(lane).link.control.ask_again(request);
                break;
            }
            // R5: what names keys is part of a reclaim, and is paid for like it.
            if matches!(request, Request::Revoke(_) | Request::Remind) {
                if self.reclaim_budget_wrs == 0 {
                    let control = &mut self.lane_mut(lane).link.control;
                    match request {
                        // Nothing waits for it: it stays behind the others.
                        Request::Remind => control.ask(request),
                        _ => control.ask_again(request),
                    }
                    break;
                }
                self.reclaim_budget_wrs -= 1;
            }
            self.post_request(lane, request);
        }
    }

    /// Send slots that the next request takes.
    pub(super) fn slots_of_next_request(&self, lane: LaneId) -> usize {
        match self.lane(lane).link.control.peek_request() {
            // The invalidation that a planted fault has left out, the bind, the frame.
            Some(Request::Grant(_)) if !self.caps.regions => 3,
            _ => 1,
        }
    }

    /// Whether a request waits for send slots and nothing else. Operations then wait too: else they would keep a short queue so full that
    /// no request ever fits.
    pub(super) fn request_waits_for_room(&self, lane: LaneId) -> bool {
        let entry = self.lane(lane);
        !entry.link.control.is_empty()
            && entry.link.control.peek_request().is_some()
            && self.send_room(lane, Class::Request) < self.slots_of_next_request(lane)
            && entry
                .credits
                .allows(Class::Request, entry.peer_receive_depth)
    }

    /// Queues a request of an epoch or a grant. A peer that takes none for long makes those pile up whose fence or grant has ended meanwhile;
    /// they are struck before they fill the queue, so that its bound is what can be wanted at a time (R12).
    pub(super) fn ask(&mut self, lane: LaneId, request: Request) {
        if self.lane(lane).link.control.is_full() {
            let (machine, grants) = (&self.machine, &self.grants);
            let entry = self.lanes[lane.0 as usize].as_deref_mut();
            let wanted = |request| match request {
                Request::Revoke(epoch) => machine.strand_state(epoch, lane) == StrandState::Fencing,
                Request::Grant(id) => grants.get(id).is_some(),
                _ => true,
            };
            entry.expect("seen above").link.control.keep_wanted(wanted);
        }
        self.lane_mut(lane).link.control.ask(request);
    }

    fn may_send(&self, lane: LaneId, class: Class) -> bool {
        let entry = self.lane(lane);
        let hello = entry.phase == LanePhase::Greeting;
        self.send_room(lane, class) > 0
            && (hello || entry.credits.allows(class, entry.peer_receive_depth))
    }

    /// Tells the peer of receives posted again, when a quarter of them is untold and no other frame has told it.
    pub(super) fn announce_receives(&mut self, lane: LaneId) {
        let entry = self.lane(lane);
        if !entry.is_up() || !entry.has_receives_to_tell() || !self.may_send(lane, Class::Notice) {
            return;
        }
        self.post_answer(lane, Answer::LaneCredit);
    }

    fn post_answer(&mut self, lane: LaneId, answer: Answer) {
        match answer {
            Answer::LookupReply { request, found } => {
                let found = found.map(|context| wire::Found {
                    context,
                    credit: self.limits.context.messages,
                });
                self.post_frame(lane, None, &Frame::LookupReply { request, found });
            }
            Answer::Revoked(epoch) => self.post_frame(lane, None, &Frame::Revoked { epoch }),
            Answer::Refused(grant) => self.post_frame(lane, None, &Frame::Refused { grant }),
            Answer::ImportDropped(grant) => {
                let grants = [grant];
                let grants = List::from(&grants[..]);
                self.post_frame(lane, None, &Frame::ImportsDropped { grants });
            }
            Answer::Credit { context } => self.post_credit(lane, context),
            Answer::LaneCredit => self.post_keepalive(lane),
            Answer::ContextGone {
                context,
                keys,
                bytes,
            } => {
                let gone = wire::ContextGone {
                    context: context.into(),
                    quarantined_keys: keys,
                    quarantined_bytes: bytes,
                };
                self.post_frame(lane, None, &Frame::ContextGone(gone));
            }
        }
    }

    fn post_credit(&mut self, lane: LaneId, context: u16) {
        let messages = self.limits.context.messages;
        let id = self.contexts.id(context);
        let on_lane = &mut self.lane_mut(lane).link.contexts[context as usize];
        if on_lane.window_generation != id.generation {
            // The slot has a new context, which has taken nothing on this lane yet: what its predecessor took is not its own.
            return;
        }
        let window = &mut on_lane.window;
        let limit = window.consumed.wrapping_add(messages);
        window.announced = limit;
        let limits = [wire::CreditLimit {
            context: id.into(),
            limit,
        }];
        let limits = List::from(&limits[..]);
        self.post_frame(lane, None, &Frame::Credit { limits });
    }

    fn post_keepalive(&mut self, lane: LaneId) {
        let entry = self.lane_mut(lane);
        entry.link.keepalives = entry.link.keepalives.wrapping_add(1);
        let number = entry.link.keepalives;
        self.post_frame(lane, None, &Frame::KeepAlive { number });
    }

    fn post_request(&mut self, lane: LaneId, request: Request) {
        match request {
            Request::Hello => self.post_hello(lane),
            Request::Lookup { pending } => self.post_lookup(lane, pending),
            Request::Grant(grant) => self.post_grants(lane, grant),
            Request::Revoke(epoch) => self.post_revoke(lane, epoch),
            Request::KeepAlive => {
                self.post_keepalive(lane);
                self.begin_reminders(lane);
            }
            Request::Remind => self.post_reminder(lane),
            Request::Begin => {
                let entry = self.lane(lane);
                let (repair, received) = (entry.repair, entry.link.messages_received);
                self.post_frame(lane, None, &Frame::Begin { repair, received });
            }
            Request::Ended { from } => self.post_ended(lane, from),
            Request::End => {
                let repair = self.lane(lane).repair;
                self.post_frame(lane, None, &Frame::End { repair });
                self.tell_repair(lane, RepairEvent::Said);
            }
            Request::Bye => self.post_bye(lane),
        }
    }

    /// The hello as the control side has made it, with the receives of now.
    fn post_hello(&mut self, lane: LaneId) {
        let entry = self.lane_mut(lane);
        let hello = entry.greeting.ours.as_deref();
        let hello = hello.expect("it is asked for when it is there");
        let (_, hello) = wire::decode(hello.as_slice()).expect("made by this engine");
        let header = Header {
            lane_credit: entry.receives_posted,
            ..Header::default()
        };
        let mut bytes = [0; MAX_CONTROL_BYTES];
        let len = wire::encode(&header, &hello, &mut bytes).expect("as long as it was");
        entry.receives_announced = entry.receives_posted;
        self.post_bytes(lane, &bytes[..len]);
    }

    fn post_lookup(&mut self, lane: LaneId, pending: u32) {
        let Some(name) = self.lookups.name(pending) else {
            return;
        };
        let name = Name::new(name.as_str()).expect("checked when it was asked");
        let frame = Frame::Lookup {
            request: pending,
            name,
        };
        let mut bytes = [0; MAX_CONTROL_BYTES];
        let header = self.runtime_header(lane);
        let len = wire::encode(&header, &frame, &mut bytes).expect("a look-up fits a frame");
        self.spend_and_post(lane, &bytes[..len]);
    }

    /// The names of an epoch's keys on this lane; what does not fit follows in a frame of its own.
    fn post_revoke(&mut self, lane: LaneId, epoch: Epoch) {
        if self.machine.strand_state(epoch, lane) != StrandState::Fencing {
            // The fence is over. Keys that it did not name are named by reminders: the answer to a frame without them must not count for them (R8).
            return;
        }
        let mut grants = [GrantId {
            slot: 0,
            generation: 0,
        }; MAX_REVOKE_GRANTS];
        let mut len = 0;
        let mut last = false;
        while len < grants.len() {
            let Some(key) = self.machine.next_to_revoke(epoch, lane) else {
                last = true;
                break;
            };
            grants[len] = self.grant_of(key);
            len += 1;
        }
        let frame = Frame::Revoke {
            epoch,
            last,
            grants: List::from(&grants[..len]),
        };
        self.post_frame(lane, None, &frame);
        if !last {
            self.lane_mut(lane)
                .link
                .control
                .ask_again(Request::Revoke(epoch));
        }
    }

    /// Names the last context of each slot that has ended, from slot `from` on; what does not fit follows in a frame of its own.
    fn post_ended(&mut self, lane: LaneId, from: u16) {
        let mut ended = [WireContext::default(); MAX_ENDED_CONTEXTS];
        let (len, next) = self.ended_contexts(from, &mut ended);
        if len > 0 {
            let contexts = List::from(&ended[..len]);
            self.post_frame(lane, None, &Frame::Ended { contexts });
        }
        if let Some(from) = next {
            let control = &mut self.lane_mut(lane).link.control;
            control.ask_again(Request::Ended { from });
        }
    }

    fn runtime_header(&mut self, lane: LaneId) -> Header {
        let entry = self.lane_mut(lane);
        entry.receives_announced = entry.receives_posted;
        Header {
            lane_credit: entry.receives_posted,
            sequence: entry.link.messages_sent,
            ..Header::default()
        }
    }

    pub(super) fn post_frame(
        &mut self,
        lane: LaneId,
        contexts: Option<(ContextId, ContextId)>,
        frame: &Frame<'_>,
    ) {
        let mut header = self.runtime_header(lane);
        if let Some((src, dst)) = contexts {
            header.src = src.into();
            header.dst = dst.into();
        }
        self.lane_mut(lane).credits.spend();
        let sges = self.encode_frame(lane, &header, frame);
        self.stage(lane, Flight::Frame, WorkOp::Send { immediate: None }, sges);
    }

    fn spend_and_post(&mut self, lane: LaneId, bytes: &[u8]) {
        self.lane_mut(lane).credits.spend();
        self.post_bytes(lane, bytes);
    }

    fn post_bytes(&mut self, lane: LaneId, bytes: &[u8]) {
        let sges = self.put_in_frame_slot(lane, bytes);
        self.stage(lane, Flight::Frame, WorkOp::Send { immediate: None }, sges);
    }

    /// Encodes a frame into the slot of the request that is staged next.
    pub(super) fn encode_frame(
        &mut self,
        lane: LaneId,
        header: &Header,
        frame: &Frame<'_>,
    ) -> SgeList {
        let mut bytes = [0; MAX_CONTROL_BYTES];
        let len = wire::encode(header, frame, &mut bytes).expect("the runtime's frames fit");
        self.put_in_frame_slot(lane, &bytes[..len])
    }

    fn put_in_frame_slot(&mut self, lane: LaneId, bytes: &[u8]) -> SgeList {
        debug_assert!(bytes.len() >= HEADER_BYTES);
        let sequence = self.lane(lane).inflight.next_sequence();
        debug_assert_eq!(work_id(lane, sequence).0 >> 63, 0);
        let offset = self.frame_slot(lane, sequence);
        self.memory
            .arena
            .dma(offset, bytes.len())
            .and_then(|slot| slot.write_from(bytes))
            .expect("a lane's frame slots lie in the arena");
        let address = self.memory.arena.address() + offset as u64;
        SgeList::one(Sge::new(
            address,
            bytes.len() as u32,
            self.lane(lane).arena.lkey,
        ))
    }
}
