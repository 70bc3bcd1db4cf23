//! Received frames: read once into private memory, checked, acted on. A bad one is counted and dropped, and never ends the engine (R12).

use crate::context::state::{HeldLanding, HeldMessage, Phase};
use crate::engine::state::Core;
use crate::event::{Event, Message};
use crate::ids::{ContextId, GrantId, LaneId, RemoteContext, SessionId};
use crate::lane::credits::ReceiveWindow;
use crate::lane::greeting::{HeldFrame, PeerHello};
use crate::lane::link::LinkName;
use crate::lane::queue::Answer;
use crate::lane::remote::{RemoteSlot, Standing};
use crate::wire::{self, Frame, HEADER_BYTES, Header, Kind, MAX_CONTROL_BYTES};

impl Core {
    /// A send of the peer has landed in a receive of ours.
    pub(super) fn received(&mut self, lane: LaneId, slot: u32, len: usize) {
        let entry = self.lane_mut(lane);
        let Some(buf) = entry.receives.get_mut(slot as usize).and_then(Option::take) else {
            self.stats.completions_dropped += 1;
            return;
        };
        // Any frame is a sign of life.
        entry.silent_ns = 0;
        let is_up = entry.is_up() || entry.takes_last_messages();
        self.stats.frames_received += 1;
        let frame = HeldFrame { slot, len, buf };
        if is_up {
            self.take_frame(lane, frame);
            return;
        }
        let entry = self.lane_mut(lane);
        match entry.greeting.theirs {
            PeerHello::Awaited(_) => self.take_hello(lane, frame),
            // Nothing is read before the hello is admitted.
            PeerHello::Came(_) | PeerHello::Told => entry.greeting.held.push_back(frame),
        }
    }

    /// The first frame of a lane: the peer's hello, or nothing.
    fn take_hello(&mut self, lane: LaneId, frame: HeldFrame) {
        let (bytes, copied) = copied::<MAX_CONTROL_BYTES>(&frame);
        let bytes = &bytes[..copied];
        match wire::decode(bytes) {
            Ok((_, Frame::Hello(_))) if copied == frame.len => {
                let greeting = &mut self.lane_mut(lane).greeting;
                if let PeerHello::Awaited(mut room) =
                    core::mem::replace(&mut greeting.theirs, PeerHello::Told)
                {
                    room.fill(bytes);
                    greeting.theirs = PeerHello::Came(room);
                }
            }
            Ok(_) => self.stats.frames_refused += 1,
            Err(_) => self.stats.frames_malformed += 1,
        }
        self.repost(lane, frame.slot, frame.buf);
    }

    /// A frame on a lane that is up, or was when the frame came.
    pub(super) fn take_frame(&mut self, lane: LaneId, frame: HeldFrame) {
        let (bytes, copied) = copied::<HEADER_BYTES>(&frame);
        match Header::decode(&bytes[..copied]) {
            Ok((Kind::Message, header)) => {
                self.take_lane_credit(lane, header.lane_credit);
                let message = frame.len - HEADER_BYTES;
                if self.take_number(lane, header.sequence)
                    && let Some(context) = self.admit_message(lane, &header)
                {
                    let from = self.remote_on(lane, header.src.slot, header.src.generation);
                    let link = self.lane(lane).name();
                    self.contexts.get_mut(context).messages.push(HeldMessage {
                        link,
                        session: from.session,
                        id: frame.buf.id(),
                    });
                    // Filled again when the lane posts its receives, in this step.
                    self.lane_mut(lane).empty_receives.push(frame.slot);
                    self.acquaint(context, from);
                    let message = Message::new(from, frame.buf, HEADER_BYTES, message);
                    self.tell(context, Event::Message(message));
                    return;
                }
            }
            Ok(_) => self.take_control_frame(lane, &frame),
            Err(_) => self.stats.frames_malformed += 1,
        }
        self.repost(lane, frame.slot, frame.buf);
    }

    /// Any frame but a message, from a second private copy, of all of it: nothing of the first is used.
    fn take_control_frame(&mut self, lane: LaneId, frame: &HeldFrame) {
        let (bytes, copied) = copied::<MAX_CONTROL_BYTES>(frame);
        match wire::decode(&bytes[..copied]) {
            Ok((header, decoded)) if copied == frame.len => self.frame(lane, &header, &decoded),
            _ => self.stats.frames_malformed += 1,
        }
    }

    fn frame(&mut self, lane: LaneId, header: &Header, frame: &Frame<'_>) {
        // Of a lane that broke messages are taken, and what Landed stands for; the rest is said anew.
        if !self.lane(lane).is_up() && !matches!(frame, Frame::Landed { .. }) {
            self.stats.frames_refused += 1;
            return;
        }
        self.take_lane_credit(lane, header.lane_credit);
        match frame {
            Frame::Lookup { request, name } => {
                let found = self
                    .contexts
                    .named(name.as_str())
                    .map(|slot| self.contexts.id(slot));
                let request = *request;
                self.answer(lane, Answer::LookupReply { request, found });
            }
            Frame::LookupReply { request, found } => {
                self.lookup_answered(lane, *request, found.as_ref())
            }
            Frame::Grants { grants } => self.grants_came(lane, header, grants.iter()),
            Frame::Revoke {
                epoch,
                last,
                grants,
            } => self.revoke_came(lane, *epoch, *last, grants.iter()),
            Frame::Revoked { epoch } => self.revoked(lane, *epoch),
            Frame::Refused { grant } => self.import_dropped(lane, *grant),
            Frame::ImportsDropped { grants } => {
                for grant in grants.iter() {
                    self.import_dropped(lane, grant);
                }
            }
            Frame::Credit { limits } => {
                for limit in limits.iter() {
                    self.context_credit(lane, &limit);
                }
                self.tell_senders(lane);
            }
            Frame::ContextGone(gone) => self.context_gone(lane, gone),
            Frame::Landed {
                grant,
                immediate,
                bytes,
            } => {
                if self.take_number(lane, header.sequence) {
                    self.landed(lane, header, *grant, *immediate, *bytes);
                }
            }
            Frame::Begin { repair, received } => self.begin_came(lane, *repair, *received),
            Frame::Ended { contexts } if self.is_listing(lane) => {
                self.ended_came(lane, contexts.iter());
            }
            Frame::End { repair } => self.end_came(lane, *repair),
            // Its coming was noted.
            Frame::KeepAlive { .. } => {}
            Frame::Bye { session } => self.bye_came(lane, *session),
            // A second hello, a message (taken above), or ends out of place.
            Frame::Hello(_) | Frame::Message(_) | Frame::Ended { .. } => {
                self.stats.frames_refused += 1
            }
        }
    }

    fn take_lane_credit(&mut self, lane: LaneId, credit: u32) {
        let entry = self.lane_mut(lane);
        if !entry.credits.raise(credit, entry.peer_receive_depth) {
            self.stats.frames_refused += 1;
        }
    }

    /// The context that a message is for, if it may have it now.
    fn admit_message(&mut self, lane: LaneId, header: &Header) -> Option<u16> {
        let Some(context) = self.contexts.live(header.dst.slot, header.dst.generation) else {
            self.message_for_nobody(lane, header);
            return None;
        };
        let held = self.contexts.get(context);
        if held.messages.len() >= held.messages_limit {
            // R9: each session has windows of its own, but the receive pool has its share only once.
            self.stats.contexts_deaf += 1;
            self.close(context);
            return None;
        }
        let messages = self.limits.context.messages;
        let on_lane = &mut self.lane_mut(lane).link.contexts[context as usize];
        if on_lane.window_generation != header.dst.generation {
            on_lane.window = ReceiveWindow::new(messages);
            on_lane.window_generation = header.dst.generation;
        }
        if !on_lane.window.admits() {
            self.stats.messages_beyond_credit += 1;
            return None;
        }
        on_lane.window.received = on_lane.window.received.wrapping_add(1);
        Some(context)
    }

    /// Its sender learns that the context is gone only if it really is: not while its reclaim is under way (R2).
    fn message_for_nobody(&mut self, lane: LaneId, header: &Header) {
        self.stats.messages_unclaimed += 1;
        let slot = header.dst.slot;
        if slot >= self.contexts.capacity() {
            self.stats.frames_refused += 1;
            return;
        }
        let now = self.contexts.id(slot);
        let reclaimed = self.contexts.get(slot).phase() == Phase::Free;
        let older = header.dst.generation < now.generation;
        if older || (reclaimed && header.dst.generation == now.generation) {
            let context = ContextId {
                generation: header.dst.generation,
                ..now
            };
            self.answer(
                lane,
                Answer::ContextGone {
                    context,
                    keys: 0,
                    bytes: 0,
                },
            );
        }
    }

    fn landed(
        &mut self,
        lane: LaneId,
        header: &Header,
        grant: GrantId,
        immediate: u32,
        bytes: u64,
    ) {
        let owner = self
            .grant_of_peer(lane, grant)
            // One that has ended keeps its name while its keys' values may be known; its owner's slot may be another's by then (R12).
            .filter(|entry| !entry.ended)
            .map(|entry| entry.context);
        let Some(context) = self.admit_message(lane, header) else {
            return;
        };
        let (link, session) = (self.lane(lane).name(), self.lane(lane).session);
        if owner == Some(context) {
            // The frame took no buffer of the context, but a place among its events: its credit goes back when it is told.
            let landing = HeldLanding { link, session };
            self.contexts.get_mut(context).landed.push_back(landing);
            self.tell(
                context,
                Event::Landed {
                    grant,
                    immediate,
                    bytes,
                },
            );
        } else {
            self.stats.frames_refused += 1;
            self.consumed_one(link, session, context);
        }
    }

    /// The oldest event of a context, to be told now.
    #[inline]
    pub(super) fn next_event(&mut self, slot: u16) -> Option<Event> {
        let context = self.contexts.get_mut(slot);
        let event = context.events.pop_front()?;
        context.events_told += 1;
        context.writable_untold &= !matches!(event, Event::Writable);
        if matches!(event, Event::Landed { .. }) {
            let landing = context.landed.pop_front();
            let HeldLanding { link, session } = landing.expect("each Landed has its lane");
            self.consumed_one(link, session, slot);
        }
        Some(event)
    }

    /// Gives the credit of one message back to its lane, if the session still stands.
    fn consumed_one(&mut self, link: LinkName, session: SessionId, context: u16) {
        let Some(lane) = self.carrier(link, session) else {
            return;
        };
        let window = &mut self.lane_mut(lane).link.contexts[context as usize].window;
        window.consumed = window.consumed.wrapping_add(1);
        self.credit_if_due(lane, context);
    }

    fn context_credit(&mut self, lane: LaneId, limit: &wire::CreditLimit) {
        let entry = self.lane_mut(lane);
        let most = entry.peer_messages;
        let known = entry
            .link
            .peer_contexts
            .get_mut(limit.context.slot as usize);
        let taken = known.and_then(|known| known.credits_of(limit.context.generation));
        if taken.is_some_and(|credits| credits.raise(limit.limit, most)) {
            entry.room_again(limit.context.slot);
        } else {
            self.stats.frames_refused += 1;
        }
    }

    /// Taken once for each context that there can be.
    fn context_gone(&mut self, lane: LaneId, gone: &wire::ContextGone) {
        if !self.context_gone_again(lane, gone) {
            self.stats.frames_refused += 1;
        }
    }

    /// Whether that is news. The walk over the contexts here is made only for one that some of them have met.
    pub(super) fn context_gone_again(&mut self, lane: LaneId, gone: &wire::ContextGone) -> bool {
        let remote = self.remote_on(lane, gone.context.slot, gone.context.generation);
        let first = self.meetings(&remote);
        let met = first.and_then(|known| known.part(remote.id.generation));
        let new = self
            .meetings(&remote)
            .is_some_and(|known| known.standing(remote.id.generation) != Standing::Gone);
        if met.is_none() && !new {
            return false;
        }
        self.on_sisters(&remote, |known, initial| {
            known.end(remote.id.generation, initial)
        });
        if let Some(met) = met {
            self.tell_acquaintances(remote, met, gone);
        }
        true
    }

    /// Gives back the credits of messages that a context has dropped.
    pub(super) fn sweep_messages(&mut self, context: u16) {
        let mut at = 0;
        while at < self.contexts.get(context).messages.len() {
            let held = self.contexts.get(context).messages[at];
            if self
                .memory
                .receives
                .cache
                .handle_is_out(held.id)
                .unwrap_or(false)
            {
                at += 1;
                continue;
            }
            self.contexts.get_mut(context).messages.swap_remove(at);
            self.consumed_one(held.link, held.session, context);
        }
    }

    fn credit_if_due(&mut self, lane: LaneId, context: u16) {
        let messages = self.limits.context.messages;
        let window = &mut self.lane_mut(lane).link.contexts[context as usize].window;
        if let Some(limit) = window.due(messages) {
            window.announced = limit;
            self.answer(lane, Answer::Credit { context });
        }
    }

    /// A frame of a remote context has come for a context here, which so has to do with it and wants to hear of its end.
    pub(super) fn acquaint(&mut self, context: u16, remote: RemoteContext) {
        let generation = remote.id.generation;
        let met = |known: &mut RemoteSlot| {
            known.met == Some(generation) && known.standing(generation) == Standing::Lives
        };
        if self.contexts.get(context).met_last(&remote) && self.meetings(&remote).is_some_and(met) {
            return;
        }
        self.learn(&remote);
        let Some(known) = self.meetings(&remote) else {
            return;
        };
        // A message can come behind the notice of its sender's end, on another lane.
        let newer = |met: u32| met.wrapping_sub(generation) as i32 > 0;
        let gone = known.standing(generation) == Standing::Gone;
        if gone || known.met.is_some_and(newer) {
            return;
        }
        let before = known.part(generation);
        known.met = Some(generation);
        if before.is_some_and(|met| met != generation) {
            // A slot is reused when nothing of its last context is left (R2).
            let gone = wire::ContextGone {
                context: remote.id.into(),
                quarantined_keys: 0,
                quarantined_bytes: 0,
            };
            self.tell_acquaintances(remote, before.expect("seen above"), &gone);
        }
        self.contexts.get_mut(context).acquaint(remote);
    }

    /// Whether a remote context is known to be gone, from a frame of its end or of one that lives in its slot.
    pub(super) fn is_gone(&mut self, remote: &RemoteContext) -> bool {
        let known = self.meetings(remote);
        known.is_some_and(|known| known.standing(remote.id.generation) == Standing::Gone)
    }

    /// A frame has named a remote context: it may be sent to from now on.
    pub(super) fn learn(&mut self, remote: &RemoteContext) {
        let generation = remote.id.generation;
        self.on_sisters(remote, |known, initial| known.learn(generation, initial));
    }

    /// Has what a frame said of a remote context taken on each lane to its lcore. Where that changes who lives in its slot, those who wait for its
    /// predecessor are to be looked at: they would wait for ever.
    fn on_sisters(&mut self, remote: &RemoteContext, take: impl Fn(&mut RemoteSlot, u32) -> bool) {
        let (peer, lcore) = (remote.peer.0 as usize, remote.id.lcore.0 as usize);
        let sisters = self.peers[peer].lanes.get(lcore).map_or(0, Vec::len);
        for number in 0..sisters {
            let Some(sister) = self.peers[peer].lanes[lcore][number] else {
                continue;
            };
            let entry = self.lane_mut(sister);
            let initial = entry.peer_messages;
            if let Some(known) = entry.link.peer_contexts.get_mut(remote.id.slot as usize)
                && take(known, initial)
            {
                entry.room_again(remote.id.slot);
            }
        }
    }

    /// What is known of a remote context, on the first of the lanes to its lcore.
    fn meetings(&mut self, remote: &RemoteContext) -> Option<&mut RemoteSlot> {
        let lanes = self.peers[remote.peer.0 as usize]
            .lanes
            .get(remote.id.lcore.0 as usize)?;
        let first = (*lanes.first()?)?;
        let known = &mut self.lane_mut(first).link.peer_contexts;
        known.get_mut(remote.id.slot as usize)
    }

    /// Tells those who have to do with generation `met` of a remote slot that it is gone.
    fn tell_acquaintances(&mut self, of: RemoteContext, met: u32, gone: &wire::ContextGone) {
        let mut remote = of;
        remote.id.generation = met;
        let same = of.id.generation == met;
        for slot in 0..self.contexts.capacity() {
            if self.contexts.get(slot).is_live() && self.hears_of(slot, remote) {
                self.tell(
                    slot,
                    Event::ContextGone {
                        context: remote,
                        quarantined_keys: if same { gone.quarantined_keys } else { 0 },
                        quarantined_bytes: if same { gone.quarantined_bytes } else { 0 },
                    },
                );
            }
        }
    }

    /// Whether a context is to be told of the end of a remote one. What is not among its remembered acquaintances it hears of only while it
    /// takes its events, so that no peer can fill its queue with the ends of contexts that it has nothing to do with.
    fn hears_of(&mut self, slot: u16, remote: RemoteContext) -> bool {
        const HEARSAY_EVENTS: usize = 128;
        let context = self.contexts.get_mut(slot);
        if context.forget(remote) {
            return true;
        }
        let hears = context.well_connected() && context.events.len() < HEARSAY_EVENTS;
        self.stats.notices_spared += u64::from(context.well_connected() && !hears);
        hears
    }
}

/// The first `N` bytes of a frame in private memory, and how many there are: read once, since the peer's bytes may change under a second look.
#[inline]
fn copied<const N: usize>(frame: &HeldFrame) -> ([u8; N], usize) {
    let mut bytes = [0; N];
    let copied = frame.len.min(N).min(frame.buf.capacity());
    let read = frame.buf.read_at(0, &mut bytes[..copied]);
    read.expect("the range was just cut to the buffer");
    (bytes, copied)
}
