//! Completions: what each one proves, and the end of operations.

use keyfence_pmd::{Completion, CompletionKind};

use crate::context::ops::{Op, Stage};
use crate::context::state::Phase;
use crate::engine::state::Core;
use crate::event::Event;
use crate::grant::import::ImportPhase;
use crate::ids::LaneId;
use crate::lane::inflight::{Flight, SEQUENCE_MASK};
use crate::op::{OpDone, OpKind, Status};
use crate::reclaim::{self, ContextIx, KeyIx};

/// Marks the work id of a receive.
const RECEIVE_BIT: u64 = 1 << 63;

/// The name of a receive: the lane and the slot of its buffer.
pub(super) fn receive_id(lane: LaneId, slot: u32) -> keyfence_pmd::WorkId {
    keyfence_pmd::WorkId(RECEIVE_BIT | u64::from(lane.0) << 48 | u64::from(slot))
}

/// The slot that the name of a receive says.
pub(super) fn receive_slot(id: keyfence_pmd::WorkId) -> u32 {
    id.0 as u32
}

impl Core {
    /// Takes one completion. It is attributed by its work id; one of a queue pair that a lane no longer has is counted and dropped.
    pub(super) fn complete(&mut self, done: &Completion) {
        let lane = LaneId(((done.id.0 & !RECEIVE_BIT) >> 48) as u16);
        let known = self
            .lanes
            .get(lane.0 as usize)
            .and_then(|lane| lane.as_deref());
        let Some(entry) = known.filter(|entry| entry.qp == done.qp) else {
            self.stats.completions_dropped += 1;
            return;
        };
        let sound = entry.is_sound();
        let takes_messages = sound || entry.takes_last_messages();
        if done.id.0 & RECEIVE_BIT != 0 {
            let slot = receive_slot(done.id);
            let is_message = done.kind == CompletionKind::Receive;
            if !done.is_success() {
                self.receive_flushed(lane, slot);
            } else if takes_messages && is_message {
                self.received(lane, slot, done.bytes as usize);
            } else {
                self.receive_unwanted(lane, slot);
            }
        } else if done.is_success() {
            self.posted_done(lane, done.id.0 & SEQUENCE_MASK);
        } else {
            self.stats.requests_failed += 1;
            let sequence = done.id.0 & SEQUENCE_MASK;
            if sound {
                self.look_for_offence(lane, sequence, done.status);
            }
            self.lane_mut(lane).inflight.note_failed(sequence);
        }
        if !done.is_success() && sound {
            self.break_lane(lane);
        }
    }

    fn posted_done(&mut self, lane: LaneId, low: u64) {
        let (first, before) = self.lane(lane).unproven();
        while let Some((_, flight)) = self.lane_mut(lane).inflight.take_proven(low) {
            self.proven(lane, flight);
        }
        let (now_ns, window_ns) = (self.now_ns, self.lane_drain_ns);
        let entry = self.lane_mut(lane);
        let (next, left) = entry.unproven();
        if next != first {
            entry.backlog.moved(now_ns, before - left, window_ns);
        }
    }

    /// One request is proven executed: by its own completion or by a later one's success.
    #[inline(always)]
    fn proven(&mut self, lane: LaneId, flight: Flight) {
        match flight {
            Flight::Slice { op, bytes } => self.slice_done(lane, op, bytes, true),
            Flight::Message { op, bytes, number } => {
                self.lane_mut(lane).link.messages_proven = number;
                self.slice_done(lane, op, bytes, true);
            }
            Flight::Frame | Flight::Ignored => {}
            Flight::Bind { key } => self.drive(reclaim::Event::BindDone { key: KeyIx(key) }),
            Flight::Invalidate { key } => {
                self.drive(reclaim::Event::Invalidated { key: KeyIx(key) })
            }
            Flight::Closing { epoch } => self.drive(reclaim::Event::ClosingDone { epoch, lane }),
        }
    }

    /// One request was ended by the destruction of its queue pair; whether it was executed is unknown.
    pub(super) fn destroyed(&mut self, lane: LaneId, flight: Flight) {
        match flight {
            Flight::Slice { op, bytes } | Flight::Message { op, bytes, .. } => {
                self.slice_done(lane, op, bytes, false);
            }
            // These keys and epochs are in the hands of the lane's break since it happened. A key's slot may by now be another key's.
            Flight::Frame
            | Flight::Ignored
            | Flight::Bind { .. }
            | Flight::Invalidate { .. }
            | Flight::Closing { .. } => {}
        }
    }

    #[inline(always)]
    fn slice_done(&mut self, lane: LaneId, slot: u32, bytes: u32, executed: bool) {
        let op = self.ops.get_mut(slot);
        op.in_flight -= 1;
        if executed {
            op.done_bytes += u64::from(bytes);
        } else if op.fate.is_none() || op.fate.is_some_and(Status::surely_not_executed) {
            op.fate = Some(Status::PeerLost);
        }
        let context = op.context;
        let import = op.import();
        let over = op.stage == Stage::Posted && op.in_flight == 0;
        let entry = self.lane_mut(lane);
        entry.posted_bytes -= u64::from(bytes);
        let posted = &mut entry.posted[context as usize];
        *posted -= 1;
        let last_of_context = *posted == 0;
        if let Some(import) = import {
            self.imports.at_mut(import).in_flight -= 1;
        }
        if over {
            self.end_op(slot);
        } else if let Some(import) = import {
            self.import_ran_down(import);
        }
        if last_of_context
            && matches!(
                self.contexts.get(context).phase(),
                Phase::Cordoned { .. } | Phase::Quarantined
            )
        {
            self.drive(reclaim::Event::OwnOpsEnded {
                context: ContextIx(context),
                lane,
            });
        }
    }

    /// Decides the end of an operation of which nothing more will be posted; it ends now, or when what is posted has ended.
    pub(super) fn end_unposted(&mut self, slot: u32, fate: Status) {
        let before = *self.ops.get(slot);
        if before.stage == Stage::Queued {
            self.give_credit_back(&before);
        }
        let op = self.ops.get_mut(slot);
        op.stage = Stage::Posted;
        let untouched = op.posted_bytes == 0 && op.in_flight == 0 && !op.again;
        // What was executed in part can't be said not to have been executed.
        op.fate = Some(if untouched || !fate.surely_not_executed() {
            fate
        } else {
            Status::Indeterminate
        });
        if op.in_flight == 0 && op.cut == 0 {
            self.end_op(slot);
        }
    }

    /// Ends an operation: gives back what it held, and tells its context.
    pub(super) fn end_op(&mut self, slot: u32) {
        let value = self.former_value(slot);
        let op = self.ops.get(slot);
        assert!(
            op.in_flight == 0 && op.cut == 0,
            "an operation ends after its requests"
        );
        let &Op {
            context: of,
            ranges,
            bytes,
            ..
        } = op;
        let import = op.import();
        let status = op.fate.unwrap_or(Status::Ok);
        let done = OpDone {
            token: op.token,
            kind: op.kind,
            status,
            bytes: op.done_bytes,
            value: if status == Status::Ok { value } else { 0 },
        };
        self.ops.remove(slot);
        self.unhold_ranges(&ranges);
        if let Some(import) = import {
            self.imports.at_mut(import).users -= 1;
            self.import_ran_down(import);
        }
        self.ops_in_flight.give(1);
        self.bytes_in_flight.give(bytes);
        self.stats.count_end(done.kind, status, done.bytes);
        let context = self.contexts.get_mut(of);
        context.quota.ops.give(1);
        context.quota.bytes.give(bytes);
        context.completed_ops += 1;
        let writable = core::mem::take(&mut context.wants_writable);
        let at_rest = core::mem::take(&mut context.free_when_at_rest);
        self.tell(of, Event::Completed(done));
        if writable {
            self.tell_writable(of);
        }
        if at_rest {
            self.context_free(of);
        }
        if !self.wants_room.is_empty() {
            self.tell_of_room();
        }
    }

    /// Tells one of those who were refused for want of shared room that an operation has left some: all of them would find it taken by the
    /// first. Nothing comes after the last operation, so its end is told to each: the one that was told before may not have used its chance.
    fn tell_of_room(&mut self) {
        let last = self.ops_in_flight.used() == 0;
        while let Some(slot) = self.wants_room.pop_front() {
            let context = self.contexts.get_mut(slot);
            context.wants_room = false;
            if context.is_live() && core::mem::take(&mut context.wants_writable) {
                self.tell_writable(slot);
                if !last {
                    return;
                }
            }
        }
    }

    #[inline(always)]
    fn former_value(&self, slot: u32) -> u64 {
        match self.ops.get(slot).kind {
            OpKind::FetchAdd | OpKind::CompareSwap => {
                let offset = self.op_slot(slot);
                let slot = self.memory.arena.dma(offset, 8);
                slot.expect("an operation's slot lies in the arena")
                    .load_u64(0)
                    .expect("an operation's slot is aligned")
            }
            _ => 0,
        }
    }

    /// Looks whether a fencing import has no posted request any more, and no operation that names it.
    #[inline(always)]
    pub(super) fn import_ran_down(&mut self, slot: u32) {
        if self.imports.is_used(slot) && self.imports.at(slot).phase == ImportPhase::Fencing {
            self.fencing_import_ran_down(slot);
        }
    }

    fn fencing_import_ran_down(&mut self, slot: u32) {
        let import = self.imports.at(slot);
        if import.in_flight > 0 {
            return;
        }
        let (fence, lane) = (import.fence, import.lane);
        self.imports.at_mut(slot).fence = None;
        if let Some(fence) = fence {
            self.fence_lost_one(lane, fence);
        }
        let import = *self.imports.at(slot);
        if import.users == 0 {
            self.bury_import(slot);
        }
    }
}
