//! What a break cuts off: requests that were posted and not proven executed. Their queue pair's destruction ends them (R3); what became of them the other end's word says.

use crate::context::ops::{NIL, Op, Stage};
use crate::context::state::Phase;
use crate::engine::state::Core;
use crate::ids::LaneId;
use crate::lane::inflight::Flight;
use crate::lane::repair::{Cut, CutWork, Seen, Verdict, judge};
use crate::op::{OpKind, Status};

impl Core {
    /// Keeps a request of a living context until it is judged. The lane's queue pair is destroyed, its link in the hands of `carrier`.
    pub(super) fn cut_off(&mut self, carrier: LaneId, lane: LaneId, flight: Flight) {
        let (slot, bytes, number) = match flight {
            Flight::Slice { op, bytes } => (op, bytes, None),
            Flight::Message { op, bytes, number } => (op, bytes, Some(number)),
            _ => return,
        };
        let op = self.ops.get_mut(slot);
        let receiver = number.and(op.receiver());
        let cut = Cut {
            op: slot,
            context: op.context,
            bytes,
            work: work_of(op, number),
            receiver: receiver.map(|to| (to.slot, to.generation)),
        };
        let context = self.contexts.get(cut.context);
        let (lives, phase) = (context.is_live(), context.phase());
        if matches!(phase, Phase::Live | Phase::Closing) {
            self.lane_mut(lane).unconfirmed[cut.context as usize] = true;
        }
        if !lives {
            self.destroyed(lane, flight);
            self.keep_number(carrier, cut, number);
            return;
        }
        let op = self.ops.get_mut(slot);
        op.in_flight -= 1;
        op.cut += 1;
        op.lane = carrier;
        let import = op.import();
        let entry = self.lane_mut(lane);
        entry.posted_bytes -= u64::from(bytes);
        entry.posted[cut.context as usize] -= 1;
        self.lane_mut(carrier).link.cut.push(cut);
        if let Some(import) = import {
            self.imports.at_mut(import).in_flight -= 1;
            self.import_ran_down(import);
        }
    }

    /// Keeps what the judgement of others takes of a message whose context has died: its number, and whose credit it has.
    fn keep_number(&mut self, carrier: LaneId, cut: Cut, number: Option<u32>) {
        if let Some(number) = number {
            self.lane_mut(carrier).link.cut.push(Cut {
                op: NIL,
                work: CutWork::Message { number },
                ..cut
            });
        }
    }

    /// A context is cordoned: what of it waits to be judged ends now. Of its messages it stays known whose credits they have.
    pub(super) fn end_cut_of(&mut self, lane: LaneId, context: u16) {
        self.end_cut(lane, |cut| cut.context == context, Status::Indeterminate);
        self.lane_mut(lane)
            .link
            .cut
            .retain(|cut| cut.op != NIL || cut.receiver.is_some());
    }

    /// The session has ended: what waits to be judged never is.
    pub(super) fn end_all_cut(&mut self, lane: LaneId) {
        self.end_cut(lane, |_| true, Status::PeerLost);
        self.lane_mut(lane).link.cut.clear();
    }

    fn end_cut(&mut self, lane: LaneId, ends: impl Fn(&Cut) -> bool, fate: Status) {
        for at in 0..self.lane(lane).link.cut.len() {
            let cut = self.lane(lane).link.cut[at];
            if cut.op == NIL || !ends(&cut) {
                continue;
            }
            for other in &mut self.lane_mut(lane).link.cut[at..] {
                if other.op == cut.op {
                    other.op = NIL;
                    // It is nobody's any more; the number says where the other end stands, and the credit is to be taken back.
                    if let CutWork::Landed { number } = other.work {
                        other.work = CutWork::Message { number };
                    }
                }
            }
            self.end_cut_op(lane, cut.op, fate);
        }
    }

    /// Ends an operation of which nothing is posted any more, wherever it stands. An end that was decided before stays.
    fn end_cut_op(&mut self, lane: LaneId, slot: u32, fate: Status) {
        let op = self.ops.get_mut(slot);
        op.cut = 0;
        op.fate = op.fate.or(Some(fate));
        let op = *op;
        if op.stage == Stage::Queued {
            // A part of it was not posted yet.
            let on_lane = &mut self.lanes[lane.0 as usize]
                .as_deref_mut()
                .expect("the lane that carries the link")
                .link
                .contexts[op.context as usize];
            let queued = on_lane.queue.strike(&mut self.ops, slot);
            assert!(queued, "what is not all posted waits in its queue");
            self.give_credit_back(&op);
        }
        self.end_op(slot);
    }

    /// Judges what breaks have cut off: `received` is the number of the last message that the other end took.
    pub(super) fn judge_cut(&mut self, lane: LaneId, received: u32) {
        let link = &mut self.lane_mut(lane).link;
        link.messages_sent = received;
        link.messages_proven = received;
        let mut cut = core::mem::take(&mut link.cut);
        let mut seen = core::mem::take(&mut self.seen);
        seen.fill(Seen::default());
        judge(&cut, received, &mut seen, |cut, verdict| {
            self.note_verdict(lane, cut, verdict);
        });
        // An operation of which several requests were cut off may have ended with the first.
        for one in &cut {
            let op = self.ops.find_mut(one.op);
            if let Some(verdict) =
                op.and_then(|op| op.verdict.take_if(|verdict| *verdict != Verdict::Repeat))
            {
                self.sentence(lane, one.op, verdict);
            }
        }
        // The last one first, so that they end up in their order in front of what waits.
        for one in cut.iter().rev() {
            let op = self.ops.find_mut(one.op);
            if let Some(verdict) = op.and_then(|op| op.verdict.take()) {
                self.sentence(lane, one.op, verdict);
            }
        }
        for (context, seen) in seen.iter().enumerate() {
            if seen.stalled && self.contexts.get(context as u16).is_live() {
                self.stall(lane, context as u16);
            }
        }
        cut.clear();
        self.lane_mut(lane).link.cut = cut;
        self.seen = seen;
    }

    /// An operation's verdict is the worst of its requests'. A message that never came has not used its credit.
    fn note_verdict(&mut self, lane: LaneId, cut: &Cut, verdict: Verdict) {
        let lives = cut.op != NIL;
        if lives {
            let op = self.ops.get_mut(cut.op);
            op.verdict = op.verdict.max(Some(verdict));
            if verdict == Verdict::Executed {
                op.done_bytes += u64::from(cut.bytes);
            }
        }
        if let Some((slot, generation)) = cut.receiver
            && verdict != Verdict::Executed
        {
            let entry = self.lane_mut(lane);
            let known = &mut entry.link.peer_contexts[slot as usize];
            if let Some(credits) = known.credits_of(generation) {
                credits.unspend(lives && verdict == Verdict::Repeat);
            }
            entry.room_again(slot);
        }
    }

    fn sentence(&mut self, lane: LaneId, slot: u32, verdict: Verdict) {
        let op = self.ops.get_mut(slot);
        op.cut = 0;
        match verdict {
            Verdict::Executed if op.stage == Stage::Posted => self.end_op(slot),
            // The rest of it waits to be posted.
            Verdict::Executed => {}
            Verdict::Repeat if op.fate.is_none() => self.repeat(lane, slot),
            Verdict::NotSent => self.end_cut_op(lane, slot, Status::NotSent),
            Verdict::Repeat | Verdict::Indeterminate => {
                self.end_cut_op(lane, slot, Status::Indeterminate);
            }
        }
    }

    /// Has what is not known to be executed of an operation posted again.
    fn repeat(&mut self, lane: LaneId, slot: u32) {
        let op = self.ops.get_mut(slot);
        op.posted_bytes = op.done_bytes;
        // A message that did not come was surely not executed.
        op.again |= op.kind != OpKind::Send;
        let context = op.context;
        if core::mem::replace(&mut op.stage, Stage::Queued) == Stage::Posted {
            let entry = self.lanes[lane.0 as usize].as_deref_mut();
            let link = &mut entry.expect("the lane that carries the link").link;
            link.contexts[context as usize]
                .queue
                .push_front(&mut self.ops, slot);
        }
    }

    /// An operation of the context has an unknown end: what it submitted behind it is not posted, nor what it submits until it says so.
    fn stall(&mut self, lane: LaneId, context: u16) {
        while let Some(op) = self.take_queued(lane, context, |_| true) {
            self.end_unposted(op, Status::NotSent);
        }
        self.stall_until_told(lane, context);
    }

    /// An operation is submitted on a lane where its context is stalled.
    pub(super) fn hold_back(&mut self, lane: LaneId, context: u16, op: u32) {
        self.end_unposted(op, Status::NotSent);
        self.stall_until_told(lane, context);
    }

    /// To resume counts only when the context was told all that has ended so: else it would go on without knowing behind what.
    fn stall_until_told(&mut self, lane: LaneId, context: u16) {
        let state = self.contexts.get(context);
        let told = state.events_told + state.events.len() as u64;
        self.lane_mut(lane).link.contexts[context as usize].stalled = Some(told);
    }

    /// A context goes on behind operations of unknown end, where it was told of all of them.
    pub(super) fn resume(&mut self, context: u16) {
        let told = self.contexts.get(context).events_told;
        self.unstall(context, |until| until <= told);
    }

    /// A context has ended: the next one in its slot is not stalled.
    pub(super) fn unstall_all(&mut self, context: u16) {
        self.unstall(context, |_| true);
    }

    fn unstall(&mut self, context: u16, ends: impl Fn(u64) -> bool) {
        for lane in self.lane_ids() {
            let stalled = &mut self.lane_mut(lane).link.contexts[context as usize].stalled;
            stalled.take_if(|until| ends(*until));
        }
    }
}

fn work_of(op: &Op, number: Option<u32>) -> CutWork {
    match (op.kind, number) {
        (OpKind::Send, Some(number)) => CutWork::Message { number },
        (_, Some(number)) => CutWork::Landed { number },
        (OpKind::Read, None) => CutWork::Read,
        (OpKind::FetchAdd | OpKind::CompareSwap, None) => CutWork::Atomic,
        (_, None) => CutWork::Write {
            idempotent: op.idempotent,
        },
    }
}
