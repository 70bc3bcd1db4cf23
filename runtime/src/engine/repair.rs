//! The repair of a lane on its lcore: the link of one that broke moves to a new one, both ends name what is live, and what the break cut off is judged. What is to be
//! done when is the machine's to say (`lane/repair`); the control side's part, queue pairs and connections, is `engine/rebuild.rs`.

use crate::engine::command::{ToControl, Unrepairable};
use crate::engine::state::Core;
use crate::grant::import::{ImportPhase, PeerGrant};
use crate::grant::table::Grant;
use crate::ids::{ContextId, LaneId, SessionId};
use crate::lane::link::{LinkName, Listed};
use crate::lane::queue::{Answer, Request};
use crate::lane::repair::{Event, Order};
use crate::lane::{Lane, LanePhase};
use crate::limits::{Limit, LimitError};
use crate::reclaim::{self, ContextIx};
use crate::wire::{self, Header, WireContext};

impl Core {
    /// Whether lanes are repaired at all.
    pub(super) fn repairs(&self) -> bool {
        self.limits.rebuilds > 0
    }

    /// Whether the lane carries its link, in a session that stands.
    pub(super) fn carries(&self, lane: LaneId) -> bool {
        let entry = self.lane(lane);
        let session = self.peers[entry.peer.0 as usize].session;
        session == Some(entry.session) && self.carrier(entry.name(), entry.session) == Some(lane)
    }

    /// A lane has broken: the one that carries its link, or one that `was_admitted` to.
    pub(super) fn repair_broke(&mut self, lane: LaneId, was_admitted: bool) {
        if !self.repairs() {
            return;
        }
        if self.carries(lane) {
            self.lane_mut(lane).has_carried = true;
            self.tell_repair(lane, Event::Broke);
            return;
        }
        let entry = self.lane(lane);
        let repair = entry.repair;
        if was_admitted
            && let Some(carrier) = self.carrier(entry.name(), entry.session)
            && self.lane(carrier).link.repair.is_adrift()
        {
            self.tell_repair(carrier, Event::Withdrawn { repair });
        }
    }

    /// A new lane is admitted. The peer asks for one only when its end of the last one is in error, and we do: so that one has broken, whether it was seen or not.
    pub(super) fn repair_admitted(&mut self, lane: LaneId) {
        let entry = self.lane_mut(lane);
        entry.phase = LanePhase::Admitted;
        let (name, session, repair) = (entry.name(), entry.session, entry.repair);
        if let Some(carrier) = self.carrier(name, session) {
            self.break_lane(carrier);
            self.tell_repair(carrier, Event::Admitted { repair });
        }
    }

    /// The queue pair of a lane has been given up by the path: nothing more is taken of it.
    pub(super) fn repair_drained(&mut self, lane: LaneId) {
        if self.carries(lane) && self.lane(lane).link.repair.is_adrift() {
            self.tell_repair(lane, Event::Drained);
        }
    }

    /// The queue pair of a lane that has carried a link is destroyed.
    pub(super) fn repair_destroyed(&mut self, lane: LaneId) {
        let entry = self.lane(lane);
        if let Some(carrier) = self.carrier(entry.name(), entry.session)
            && !self.lane(carrier).link.repair.is_whole()
        {
            self.tell_repair(carrier, Event::Destroyed);
        }
    }

    /// Tells the machine of a lane's link, and does what it says.
    pub(super) fn tell_repair(&mut self, lane: LaneId, event: Event) {
        let entry = self.lane_mut(lane);
        let (name, session) = (entry.name(), entry.session);
        let Ok(orders) = entry.link.repair.handle(event) else {
            self.stats.frames_refused += 1;
            return;
        };
        for order in orders.iter() {
            self.obey_repair(name, session, order);
        }
    }

    fn obey_repair(&mut self, name: LinkName, session: SessionId, order: Order) {
        let Some(lane) = self.carrier(name, session) else {
            return;
        };
        match order {
            Order::TakeOver { repair } => self.take_over(lane, repair),
            Order::Confirm => {
                self.confirm_targets(lane);
                self.values_forgotten(lane);
                self.say_lists_due();
            }
            Order::Judge { received } => {
                self.judge_cut(lane, received);
                self.tell_repair(lane, Event::Judged);
            }
            Order::Apply => {
                self.apply_list(lane);
                self.tell_repair(lane, Event::Applied);
            }
            Order::Resume => self.repaired(lane),
        }
    }

    /// The lanes of a link but for the one that carries it: their queue pairs broke, or were never used.
    fn other_lanes_of(&self, carrier: LaneId) -> impl Iterator<Item = LaneId> + use<> {
        let entry = self.lane(carrier);
        let (name, session) = (entry.name(), entry.session);
        let is_other = |lane: &LaneId| {
            let other = self.lane(*lane);
            *lane != carrier && (other.name(), other.session) == (name, session)
        };
        let mut others = 0_u128;
        for lane in self.lane_ids().filter(is_other) {
            others |= 1 << lane.0;
        }
        (0..128)
            .filter(move |slot| others & 1 << slot != 0)
            .map(LaneId)
    }

    /// The link moves to the new lane. All that the old one had to say is dropped: it is said anew, by lists.
    fn take_over(&mut self, old: LaneId, repair: u32) {
        let admitted = |lane: &LaneId| {
            let lane = self.lane(*lane);
            lane.phase == LanePhase::Admitted && lane.repair == repair
        };
        let new = self.other_lanes_of(old).find(admitted);
        let new = new.expect("one that breaks before it carries the link is withdrawn");
        let [Some(from), Some(to)] = self
            .lanes
            .get_disjoint_mut([old.0 as usize, new.0 as usize])
            .expect("two lanes of the table")
        else {
            unreachable!("both were found in the table");
        };
        core::mem::swap(&mut from.link, &mut to.link);
        to.phase = LanePhase::Up;
        to.has_been_up = true;
        to.has_carried = true;
        to.start_afresh();
        let name = to.name();
        self.peers[name.peer.0 as usize].lanes[name.lcore.0 as usize][name.number as usize] =
            Some(new);
        self.move_users(old, new);
        self.say_what_is_live(old, new);
        while let Some(frame) = self.lane_mut(new).greeting.held.pop_front() {
            self.take_frame(new, frame);
        }
        self.lane_may_be_over(old);
    }

    /// Imports and operations go by the new lane.
    fn move_users(&mut self, old: LaneId, new: LaneId) {
        for slot in 0..self.imports.capacity() {
            if self.imports.is_used(slot) && self.imports.at(slot).lane == old {
                let import = self.imports.at_mut(slot);
                import.lane = new;
                // The peer ends its keys of the old lane without our answer.
                import.fence = None;
            }
        }
        let entry = self.lanes[new.0 as usize].as_deref_mut();
        let link = &entry.expect("the lane that carries the link").link;
        for cut in &link.cut {
            if cut.op != crate::context::ops::NIL {
                self.ops.get_mut(cut.op).lane = new;
            }
        }
        for on_lane in &link.contexts {
            let mut next = on_lane.queue.head();
            while let Some(op) = next {
                self.ops.get_mut(op).lane = new;
                next = on_lane.queue.after(&self.ops, op);
            }
        }
    }

    /// Asks for the frames that name what is live here: grants with new keys, and the contexts that have ended.
    fn say_what_is_live(&mut self, old: LaneId, new: LaneId) {
        self.lane_mut(new).link.control.ask(Request::Begin);
        self.list_when_keyed(old, new);
        for context in 0..self.contexts.capacity() {
            let window = &self.lane(new).link.contexts[context as usize].window;
            if window.received != 0 {
                self.answer(new, Answer::Credit { context });
            }
        }
    }

    /// Whether a grant may be made on a lane that gives none a key now: there must be a window for each, those that the queue pair has or the next one will have.
    pub(super) fn admit_keyless_grant(&mut self, lane: LaneId) -> Result<(), LimitError> {
        if self.caps.regions {
            return Ok(());
        }
        let entry = self.lane(lane);
        let windows = match entry.is_up() {
            true => entry.windows.len() as u64,
            false => u64::from(self.limits.windows),
        };
        let waiting = self.grants_on(lane);
        Limit::Windows.admit(windows, waiting, 1)
    }

    /// Grants of a lane that were not taken back. A walk over the table: for a lane that is being repaired.
    fn grants_on(&self, lane: LaneId) -> u64 {
        let slots = 0..self.grants.touched();
        let live = |slot: &u32| {
            let grant = self.grants.in_slot(*slot);
            grant.is_some_and(|grant| grant.lane == lane && !grant.retired)
        };
        slots.filter(live).count() as u64
    }

    /// A context is cordoned: its grants that have no key, or none that is not in quarantine, since their lane broke, end now.
    pub(super) fn end_keyless_grants(&mut self, context: u16) {
        if !self.repairs() {
            return;
        }
        // A walk over the table, which a context whose grants all have open keys is spared.
        let mut keyed = 0;
        for key in self.machine.keys_of(ContextIx(context)) {
            let grant = self.grants.at(self.keys.at(key).grant);
            keyed += u64::from(grant.key == Some(key) && grant.keys_open > grant.keys_unproven);
        }
        if self.contexts.get(context).quota.grants.used() == keyed {
            return;
        }
        for slot in 0..self.grants.touched() {
            let keyless =
                |grant: &&Grant| grant.context == context && grant.keys_open == grant.keys_unproven;
            if self.grants.in_slot(slot).filter(keyless).is_some() {
                self.take_back(slot);
            }
        }
    }

    /// The other end's queue pairs before this one are in error.
    fn confirm_targets(&mut self, lane: LaneId) {
        for other in self.other_lanes_of(lane) {
            let entry = self.lane_mut(other);
            entry.unconfirmed.fill(false);
            if !entry.is_sound() && !entry.free {
                self.drive(reclaim::Event::TargetConfirmed { lane: other });
                self.lane_may_be_over(other);
            }
        }
    }

    /// Notes the number of a message. Where lanes are repaired, one that came already is dropped, and behind one that is missing nothing is taken: its completion was swallowed,
    /// so the lane breaks, and the other end learns which the last one was.
    pub(super) fn take_number(&mut self, lane: LaneId, number: u32) -> bool {
        let repairs = self.repairs();
        let link = &mut self.lane_mut(lane).link;
        let ahead = number.wrapping_sub(link.messages_received) as i32;
        if ahead == 1 || !repairs {
            link.messages_received = number;
            return true;
        }
        self.stats.frames_refused += 1;
        if ahead > 1 {
            self.break_lane(lane);
        }
        false
    }

    /// The other end begins the repair. What it says that it has taken lies between what is known to have arrived and what was sent, or the two ends do not
    /// speak of the same lane: then the session ends.
    pub(super) fn begin_came(&mut self, lane: LaneId, repair: u32, received: u32) {
        let link = &self.lane(lane).link;
        let beyond_proof = received.wrapping_sub(link.messages_proven);
        let sent = link.messages_sent.wrapping_sub(link.messages_proven);
        if beyond_proof > sent && link.repair.awaits_begin(repair) {
            self.stats.frames_refused += 1;
            let why = Unrepairable::Contradiction;
            return self.outbox.push(ToControl::Unrepairable { lane, why });
        }
        self.tell_repair(lane, Event::Begin { repair, received });
    }

    /// The other end has named all that is live there.
    pub(super) fn end_came(&mut self, lane: LaneId, repair: u32) {
        self.tell_repair(lane, Event::End { repair });
    }

    /// A grant that the other end names, with its new key: kept until all are named.
    pub(super) fn list_grant(&mut self, lane: LaneId, header: &Header, grant: wire::Grant) {
        let listed = &mut self.lane_mut(lane).listed;
        if listed.len() == listed.capacity() {
            self.stats.frames_refused += 1;
            return;
        }
        let header = *header;
        listed.push(Listed { header, grant });
    }

    /// Whether grants that come on the lane are the other end's list.
    pub(super) fn is_listing(&self, lane: LaneId) -> bool {
        self.lane(lane).link.repair.is_listing()
    }

    /// What the other end has named is in force; imports that it has not named are dead.
    fn apply_list(&mut self, lane: LaneId) {
        let listed = core::mem::take(&mut self.lane_mut(lane).listed);
        let repair = self.lane(lane).repair;
        for one in &listed {
            self.apply_grant(lane, one, repair);
        }
        for slot in 0..self.imports.capacity() {
            if self.imports.is_used(slot)
                && self.imports.at(slot).lane == lane
                && self.imports.at(slot).listed != repair
            {
                self.fence_import(slot);
                self.import_ran_down(slot);
            }
        }
        self.lane_mut(lane).listed = listed;
    }

    fn apply_grant(&mut self, lane: LaneId, listed: &Listed, repair: u32) {
        let grant = &listed.grant;
        match self.known_grant(lane, grant.grant) {
            Some(PeerGrant::Imported { generation, import })
                if generation == grant.grant.generation =>
            {
                let entry = self.imports.at_mut(import);
                entry.listed = repair;
                entry.rkey = grant.rkey;
                // Its context has died here, and the notice of that may have been lost.
                let gone = entry.phase != ImportPhase::Live;
                if gone {
                    self.answer(lane, Answer::Refused(grant.grant));
                }
            }
            // Likewise.
            Some(known) if !known.admits(grant.grant.generation) => {
                self.answer(lane, Answer::Refused(grant.grant));
            }
            _ => self.grant_came(lane, &listed.header, grant),
        }
    }

    /// The other end names contexts that have ended.
    pub(super) fn ended_came(&mut self, lane: LaneId, contexts: impl Iterator<Item = WireContext>) {
        for context in contexts {
            let gone = wire::ContextGone {
                context,
                quarantined_keys: 0,
                quarantined_bytes: 0,
            };
            self.context_gone_again(lane, &gone);
        }
    }

    /// The last context of each slot that has ended, from slot `from` on: as many as fit a frame, and the slot after them.
    pub(super) fn ended_contexts(
        &self,
        from: u16,
        ended: &mut [WireContext],
    ) -> (usize, Option<u16>) {
        let mut len = 0;
        for slot in from..self.contexts.capacity() {
            if len == ended.len() {
                return (len, Some(slot));
            }
            if let Some(ContextId {
                slot, generation, ..
            }) = self.contexts.last_ended(slot)
            {
                ended[len] = WireContext { slot, generation };
                len += 1;
            }
        }
        (len, None)
    }

    /// Contexts that have operations waiting may post them: those that have broken a lane of late, or the others.
    fn enqueue_turns(&mut self, lane: LaneId, offenders: bool) {
        for slot in 0..self.contexts.capacity() {
            let context = &self.lane(lane).link.contexts[slot as usize];
            if context.queue.head().is_some()
                && self.contexts.get(slot).offences.are_any() == offenders
            {
                self.lane_mut(lane).enqueue_turn(slot);
            }
        }
    }

    /// Operations are posted again.
    fn repaired(&mut self, lane: LaneId) {
        self.stats.lanes_repaired += 1;
        self.lane_mut(lane).has_resumed = true;
        self.lane_mut(lane).link.end_turns();
        self.enqueue_turns(lane, false);
        // Else what breaks the lane again and again would stand before what others have waiting, each time (R5).
        self.enqueue_turns(lane, true);
        self.look_up_again(lane);
        self.outbox.push(ToControl::LaneRepaired(lane));
    }
}

impl Lane {
    /// Drops what its link had to say on the queue pair before.
    fn start_afresh(&mut self) {
        let link = &mut self.link;
        link.control.clear();
        link.fences.clear();
        link.reminders.clear();
        link.promised = 0;
        for on_lane in &mut link.contexts {
            on_lane.promised = None;
            on_lane.leave_turn();
        }
        while let Some(context) = link.starved.pop() {
            link.turns.push(context);
        }
    }
}
