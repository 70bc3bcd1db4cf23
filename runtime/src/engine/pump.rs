//! Posting: what a lane sends in a step, and in what order. Answers go first, then requests, then invalidations, then operations, each
//! class leaving room for the ones above it (REQUIREMENTS section 4: reclaim never starves).

use keyfence_pmd::{Remote, Sge, SgeList, WorkId, WorkOp, WorkRequest};

use crate::context::ops::{Op, Stage, Target};
use crate::engine::state::Core;
use crate::grant::import::ImportPhase;
use crate::ids::LaneId;
use crate::lane::LanePhase;
use crate::lane::credits::Class;
use crate::lane::inflight::{Flight, SEQUENCE_MASK};
use crate::lane::remote::Standing;
use crate::op::{OpKind, Status};
use crate::wire::{HEADER_BYTES, Header};

/// What a small operation counts for in a turn at least, so that a flood of tiny ones is a turn's worth too.
const MIN_TURN_BYTES: u64 = 256;

/// Bytes of one turn of a context of weight 1, at least; a whole slice where slices are longer.
const BYTES_OF_A_TURN: u64 = 16 * 1024;

/// How the try to post the next part of an operation went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Posted {
    /// A part was posted; more remains.
    Part(u64),
    /// It needs no further posting; it left the queue.
    All(u64),
    /// The lane is full: nobody can post.
    LaneFull,
    /// The lane has no credit for a message of this context now.
    NoCredit,
}

/// The name of a posted request: the lane and the low bits of its sequence number there.
pub(super) fn work_id(lane: LaneId, sequence: u64) -> WorkId {
    WorkId(u64::from(lane.0) << 48 | (sequence & SEQUENCE_MASK))
}

impl Core {
    /// The next step starts at another lane: what a step may spend on reclaims must not go to the lowest lane for ever (R6).
    pub(super) fn rotate_lanes(&mut self) {
        let next = self.lane_ids_from(self.first_lane + 1).next();
        self.first_lane = next.map_or(0, |lane| lane.0);
    }

    /// Lets a lane post what it may. Returns whether it posted anything.
    pub(super) fn pump(&mut self, lane: LaneId) -> bool {
        if self.lane(lane).has_nothing_to_post() {
            return false;
        }
        let before = self.lane(lane).inflight.next_sequence();
        if matches!(self.lane(lane).phase, LanePhase::Greeting | LanePhase::Up) {
            self.pump_control(lane);
        }
        if self.lane(lane).is_up() {
            self.tell_senders(lane);
            self.pump_closing(lane);
            if !self.request_waits_for_room(lane) {
                self.pump_operations(lane);
            }
        }
        let lane = self.lane_mut(lane);
        let posted = lane.inflight.next_sequence() != before;
        if posted && let Some(last) = lane.staged.last_mut() {
            // The success of the last one proves the whole burst.
            last.signaled = true;
        }
        posted
    }

    /// Send slots that a class may still take.
    pub(super) fn send_room(&self, lane: LaneId, class: Class) -> usize {
        let leaves = class.leaves(self.limits.send_depth) as usize;
        self.lane(lane).inflight.room().saturating_sub(leaves)
    }

    /// Stages a request. The caller has seen that there is room.
    pub(super) fn stage(&mut self, lane: LaneId, flight: Flight, op: WorkOp, sges: SgeList) -> u64 {
        let now_ns = self.now_ns;
        let entry = self.lane_mut(lane);
        if entry.inflight.len() == 0 {
            entry.backlog.begin(now_ns);
        }
        let sequence = entry.inflight.push(flight);
        let request = WorkRequest::new(work_id(lane, sequence), op, sges).signaled(false);
        entry.staged.push(request);
        self.stats.requests_posted += 1;
        sequence
    }

    fn pump_operations(&mut self, lane: LaneId) {
        self.wake_starved(lane);
        for _ in 0..self.lane(lane).turns.len() {
            let Some(context) = self.lane_mut(lane).turns.pop() else {
                return;
            };
            if !self.take_turn(lane, context) {
                return;
            }
        }
    }

    /// One context's turn, or what a full lane left of it; false when the lane is full (again). What it posts beyond its turn is taken off
    /// its next one, so that shares follow the weights whatever the operations' sizes.
    fn take_turn(&mut self, lane: LaneId, context: u16) -> bool {
        let weight = u64::from(self.contexts.get(context).weight);
        let turn = weight.saturating_mul(BYTES_OF_A_TURN.max(self.limits.slice_bytes));
        self.lane_mut(lane).contexts[context as usize].begin_turn(turn);
        loop {
            let entry = self.lane_mut(lane);
            let on_lane = &mut entry.contexts[context as usize];
            let Some(op) = on_lane.queue.head() else {
                on_lane.queued = false;
                on_lane.leave_turn();
                entry.end_promise(context);
                return true;
            };
            if on_lane.turn_bytes <= 0 {
                entry.end_promise(context);
                entry.turns.push(context);
                return true;
            }
            match self.post_part(lane, context, op) {
                Posted::Part(bytes) | Posted::All(bytes) => {
                    let on_lane = &mut self.lane_mut(lane).contexts[context as usize];
                    on_lane.use_turn(bytes.max(MIN_TURN_BYTES));
                }
                Posted::LaneFull => {
                    // A whole new turn would keep it in front for as long as each completion frees less than that.
                    self.lane_mut(lane).turns.push_front(context);
                    return false;
                }
                Posted::NoCredit => {
                    let entry = self.lane_mut(lane);
                    entry.contexts[context as usize].leave_turn();
                    entry.end_promise(context);
                    entry.starved.push(context);
                    return true;
                }
            }
        }
    }

    /// Posts the next part of the operation at the head of a context's queue.
    fn post_part(&mut self, lane: LaneId, context: u16, slot: u32) -> Posted {
        let op = *self.ops.get(slot);
        if let Some(fate) = self.fate_before_posting(lane, &op) {
            self.pop_queue(lane, context, slot);
            self.end_unposted(slot, fate);
            return Posted::All(0);
        }
        if self.send_room(lane, Class::Message) == 0 {
            return Posted::LaneFull;
        }
        match op.kind {
            OpKind::Send => self.post_message(lane, context, slot, &op),
            OpKind::WriteImmediate if op.posted_bytes == op.bytes => {
                self.post_landed(lane, context, slot, &op)
            }
            _ => self.post_slice(lane, context, slot, &op),
        }
    }

    /// Whether an operation that is not all posted has its end decided.
    fn fate_before_posting(&self, lane: LaneId, op: &Op) -> Option<Status> {
        if op.fate.is_some() {
            return op.fate;
        }
        if let Target::Memory { import, .. } = op.target
            && self.imports.at(import).phase != ImportPhase::Live
        {
            return Some(Status::Revoked);
        }
        let to = op.receiver()?;
        let known = &self.lane(lane).peer_contexts[to.slot as usize];
        let gone = known.standing(to.generation) == Standing::Gone;
        gone.then_some(Status::ContextGone)
    }

    /// All of an operation is posted.
    fn leave_queue(&mut self, lane: LaneId, context: u16, slot: u32) {
        self.pop_queue(lane, context, slot);
        self.ops.get_mut(slot).stage = Stage::Posted;
    }

    fn pop_queue(&mut self, lane: LaneId, context: u16, slot: u32) {
        let entry = self.lanes[lane.0 as usize]
            .as_deref_mut()
            .expect("the lane being pumped exists");
        let popped = entry.contexts[context as usize].queue.pop(&mut self.ops);
        assert_eq!(popped, Some(slot), "the head of the queue is being posted");
    }

    fn post_message(&mut self, lane: LaneId, context: u16, slot: u32, op: &Op) -> Posted {
        let Target::Context(to) = op.target else {
            unreachable!("a message goes to a context");
        };
        if !self.has_room_for(lane, op.bytes) {
            return Posted::LaneFull;
        }
        if !self.spend_message_credit(lane, context, to.id) {
            return Posted::NoCredit;
        }
        let header = self.header(lane, context, to.id.slot, to.id.generation);
        let offset = self.op_slot(slot);
        let copied = op.ranges.iter().flatten().count() == 0;
        let inline = if copied { op.bytes as usize } else { 0 };
        self.memory
            .arena
            .dma(offset, HEADER_BYTES)
            .and_then(|slot| slot.write_from(&header.encode_message()))
            .expect("an operation's slot lies in the arena");
        let address = self.memory.arena.address() + offset as u64;
        let lkey = self.lane(lane).arena.lkey;
        let mut sges = [Sge::default(); 1 + crate::context::ops::MAX_RANGES];
        sges[0] = Sge::new(address, (HEADER_BYTES + inline) as u32, lkey);
        let mut len = 1;
        for range in op.ranges.iter().flatten() {
            sges[len] = Sge::new(range.address, range.len, lkey);
            len += 1;
        }
        let sges = SgeList::new(&sges[..len]).expect("three entries fit");
        self.stage_slice(
            lane,
            context,
            slot,
            op.bytes,
            WorkOp::Send { immediate: None },
            sges,
        );
        self.leave_queue(lane, context, slot);
        Posted::All(op.bytes)
    }

    /// The frame behind a write with immediate.
    fn post_landed(&mut self, lane: LaneId, context: u16, slot: u32, op: &Op) -> Posted {
        let Target::Memory { import, owner, .. } = op.target else {
            unreachable!("a write goes to memory");
        };
        if !self.spend_message_credit(lane, context, owner.id) {
            return Posted::NoCredit;
        }
        let frame = crate::wire::Frame::Landed {
            grant: self.imports.at(import).grant,
            immediate: op.argument as u32,
            bytes: op.bytes,
        };
        let header = self.header(lane, context, owner.id.slot, owner.id.generation);
        let sges = self.encode_frame(lane, &header, &frame);
        self.stage_slice(
            lane,
            context,
            slot,
            0,
            WorkOp::Send { immediate: None },
            sges,
        );
        self.leave_queue(lane, context, slot);
        Posted::All(0)
    }

    fn post_slice(&mut self, lane: LaneId, context: u16, slot: u32, op: &Op) -> Posted {
        let Target::Memory { address, rkey, .. } = op.target else {
            unreachable!("only messages go to contexts");
        };
        let bytes = (op.bytes - op.posted_bytes).min(self.limits.slice_bytes);
        if !self.has_room_for(lane, bytes) {
            return Posted::LaneFull;
        }
        let remote = Remote {
            address: address + op.posted_bytes,
            rkey,
        };
        let (work, sges) = match op.kind {
            OpKind::Read => (WorkOp::Read { remote }, self.slice_sges(lane, op, bytes)),
            OpKind::FetchAdd => {
                let add = op.argument;
                (
                    WorkOp::FetchAdd { remote, add },
                    self.former_value_sge(lane, slot),
                )
            }
            OpKind::CompareSwap => {
                let (expected, desired) = (op.argument, op.value);
                let work = WorkOp::CompareSwap {
                    remote,
                    expected,
                    desired,
                };
                (work, self.former_value_sge(lane, slot))
            }
            _ => {
                let immediate = None;
                (
                    WorkOp::Write { remote, immediate },
                    self.slice_sges(lane, op, bytes),
                )
            }
        };
        self.stage_slice(lane, context, slot, bytes, work, sges);
        let op = self.ops.get_mut(slot);
        op.posted_bytes += bytes;
        if op.posted_bytes < op.bytes || op.kind == OpKind::WriteImmediate {
            return Posted::Part(bytes);
        }
        self.leave_queue(lane, context, slot);
        Posted::All(bytes)
    }

    /// Whether so many bytes more may be posted on the lane: what is posted must run down within the fence timeout.
    fn has_room_for(&self, lane: LaneId, bytes: u64) -> bool {
        let posted = self.lane(lane).posted_bytes;
        posted == 0 || posted + bytes <= self.limits.lane_bytes_in_flight
    }

    fn stage_slice(
        &mut self,
        lane: LaneId,
        context: u16,
        slot: u32,
        bytes: u64,
        work: WorkOp,
        sges: SgeList,
    ) {
        let flight = Flight::Slice {
            op: slot,
            bytes: bytes as u32,
        };
        self.stage(lane, flight, work, sges);
        let entry = self.lane_mut(lane);
        entry.posted_bytes += bytes;
        entry.contexts[context as usize].posted += 1;
        let op = self.ops.get_mut(slot);
        op.in_flight += 1;
        if let Target::Memory { import, .. } = op.target {
            self.imports.at_mut(import).in_flight += 1;
        }
    }

    /// The local memory of the next `bytes` bytes of an operation.
    fn slice_sges(&self, lane: LaneId, op: &Op, bytes: u64) -> SgeList {
        let lkey = self.lane(lane).arena.lkey;
        let mut sges = [Sge::default(); crate::context::ops::MAX_RANGES];
        let (mut len, mut skip, mut left) = (0, op.posted_bytes, bytes);
        for range in op.ranges.iter().flatten() {
            let here = u64::from(range.len).saturating_sub(skip).min(left);
            if here > 0 {
                sges[len] = Sge::new(range.address + skip, here as u32, lkey);
                len += 1;
                left -= here;
            }
            skip = skip.saturating_sub(range.len.into());
        }
        assert_eq!(left, 0, "an operation's ranges cover its bytes");
        SgeList::new(&sges[..len]).expect("two entries fit")
    }

    fn former_value_sge(&self, lane: LaneId, slot: u32) -> SgeList {
        let address = self.memory.arena.address() + self.op_slot(slot) as u64;
        SgeList::one(Sge::new(address, 8, self.lane(lane).arena.lkey))
    }

    /// The header of a frame from a context here to one of the peer. Every frame tells the peer our posted receives.
    pub(super) fn header(
        &mut self,
        lane: LaneId,
        src: u16,
        dst_slot: u16,
        dst_generation: u32,
    ) -> Header {
        let src = self.contexts.id(src).into();
        let entry = self.lane_mut(lane);
        entry.receives_announced = entry.receives_posted;
        let sequence = entry.messages_sent;
        entry.messages_sent = sequence.wrapping_add(1);
        Header {
            src,
            dst: crate::wire::WireContext {
                slot: dst_slot,
                generation: dst_generation,
            },
            lane_credit: entry.receives_posted,
            sequence,
        }
    }
}
