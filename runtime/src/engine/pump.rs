//! Posting: what a lane sends of contexts' operations, in turns, each class of traffic leaving room for the ones above it (REQUIREMENTS section 4:
//! reclaim never starves).

use keyfence_pmd::{Lkey, Remote, Sge, SgeList, WorkId, WorkOp, WorkRequest};

use crate::context::ops::{MAX_RANGES, Op, Stage, Target};
use crate::engine::state::Core;
use crate::grant::import::ImportPhase;
use crate::ids::LaneId;
use crate::lane::Lane;
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
    /// Send slots that a class may still take.
    #[inline(always)]
    pub(super) fn send_room(&self, lane: LaneId, class: Class) -> usize {
        let leaves = class.leaves(self.limits.send_depth) as usize;
        self.lane(lane).inflight.room().saturating_sub(leaves)
    }

    /// Stages a request. The caller has seen that there is room.
    #[inline(always)]
    pub(super) fn stage(&mut self, lane: LaneId, flight: Flight, op: WorkOp, sges: SgeList) -> u64 {
        self.stats.requests_posted += 1;
        let now_ns = self.now_ns;
        stage_on(self.lane_mut(lane), lane, now_ns, flight, op, sges)
    }

    pub(super) fn pump_operations(&mut self, lane: LaneId) {
        if !self.lane(lane).link.repair.is_whole() {
            return;
        }
        if !self.lane(lane).link.starved.is_empty() {
            self.wake_starved(lane);
        }
        for _ in 0..self.lane(lane).link.turns.len() {
            let Some(context) = self.lane_mut(lane).link.turns.pop() else {
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
        self.lane_mut(lane).link.contexts[context as usize].begin_turn(turn);
        loop {
            let entry = self.lane_mut(lane);
            let on_lane = &mut entry.link.contexts[context as usize];
            let Some(op) = on_lane.queue.head() else {
                on_lane.queued = false;
                on_lane.leave_turn();
                entry.end_promise(context);
                return true;
            };
            if on_lane.turn_bytes <= 0 {
                entry.end_promise(context);
                entry.link.turns.push(context);
                return true;
            }
            match self.post_part(lane, context, op) {
                Posted::Part(bytes) | Posted::All(bytes) => {
                    let on_lane = &mut self.lane_mut(lane).link.contexts[context as usize];
                    on_lane.use_turn(bytes.max(MIN_TURN_BYTES));
                }
                Posted::LaneFull => {
                    // A whole new turn would keep it in front for as long as each completion frees less than that.
                    self.lane_mut(lane).link.turns.push_front(context);
                    return false;
                }
                Posted::NoCredit => {
                    let entry = self.lane_mut(lane);
                    entry.link.contexts[context as usize].leave_turn();
                    entry.end_promise(context);
                    entry.link.starved.push(context);
                    return true;
                }
            }
        }
    }

    /// Posts the next part of the operation at the head of a context's queue.
    #[inline(always)]
    fn post_part(&mut self, lane: LaneId, context: u16, slot: u32) -> Posted {
        if let Some(fate) = self.fate_before_posting(lane, slot) {
            self.pop_queue(lane, context, slot);
            self.end_unposted(slot, fate);
            return Posted::All(0);
        }
        if self.send_room(lane, Class::Message) == 0 {
            return Posted::LaneFull;
        }
        let op = self.ops.get(slot);
        match op.kind {
            OpKind::Send => self.post_message(lane, context, slot),
            OpKind::WriteImmediate if op.posted_bytes == op.bytes => {
                self.post_landed(lane, context, slot)
            }
            _ => self.post_slice(lane, context, slot),
        }
    }

    /// Whether an operation that is not all posted has its end decided.
    #[inline(always)]
    fn fate_before_posting(&self, lane: LaneId, slot: u32) -> Option<Status> {
        let op = self.ops.get(slot);
        if op.fate.is_some() {
            return op.fate;
        }
        if let Target::Memory { import, .. } = op.target
            && self.imports.at(import).phase != ImportPhase::Live
        {
            return Some(Status::Revoked);
        }
        let to = op.receiver()?;
        let known = &self.lane(lane).link.peer_contexts[to.slot as usize];
        let gone = known.standing(to.generation) == Standing::Gone;
        gone.then_some(Status::ContextGone)
    }

    /// Takes an operation out of its queue that is all posted, or never will be.
    #[inline(always)]
    fn pop_queue(&mut self, lane: LaneId, context: u16, slot: u32) {
        let entry = self.lanes[lane.0 as usize]
            .as_deref_mut()
            .expect("the lane being pumped exists");
        let popped = entry.link.contexts[context as usize]
            .queue
            .pop(&mut self.ops);
        assert_eq!(popped, Some(slot), "the head of the queue is being posted");
    }

    fn post_message(&mut self, lane: LaneId, context: u16, slot: u32) -> Posted {
        let &Op { target, bytes, .. } = self.ops.get(slot);
        let Target::Context(to) = target else {
            unreachable!("a message goes to a context");
        };
        let most = self.limits.lane_bytes_in_flight;
        if !self.lane(lane).has_room_for(bytes, most) {
            return Posted::LaneFull;
        }
        if !self.spend_message_credit(lane, context, to.id) {
            return Posted::NoCredit;
        }
        let header = self.header(lane, context, to.id.slot, to.id.generation);
        let offset = self.op_slot(slot);
        self.memory
            .arena
            .dma(offset, HEADER_BYTES)
            .and_then(|slot| slot.write_from(&header.encode_message()))
            .expect("an operation's slot lies in the arena");
        let sges = self.message_sges(lane, offset, slot);
        self.stage_frame(lane, context, slot, bytes, sges);
        Posted::All(bytes)
    }

    /// The local memory of a message's frame: the header with what was copied behind it, then the buffers.
    #[inline]
    fn message_sges(&self, lane: LaneId, offset: usize, slot: u32) -> SgeList {
        let op = self.ops.get(slot);
        let address = self.memory.arena.address() + offset as u64;
        let lkey = self.lane(lane).arena.lkey;
        if op.ranges[0].is_none() {
            let frame_bytes = HEADER_BYTES as u32 + op.bytes as u32;
            return SgeList::one(Sge::new(address, frame_bytes, lkey));
        }
        let mut sges = [Sge::default(); 1 + MAX_RANGES];
        sges[0] = Sge::new(address, HEADER_BYTES as u32, lkey);
        let mut len = 1;
        for range in op.ranges.iter().flatten() {
            sges[len] = Sge::new(range.address, range.len, lkey);
            len += 1;
        }
        SgeList::new(&sges[..len]).expect("three entries fit")
    }

    /// The frame behind a write with immediate.
    fn post_landed(&mut self, lane: LaneId, context: u16, slot: u32) -> Posted {
        let &Op {
            target,
            bytes,
            argument,
            ..
        } = self.ops.get(slot);
        let Target::Memory { import, owner, .. } = target else {
            unreachable!("a write goes to memory");
        };
        if !self.spend_message_credit(lane, context, owner.id) {
            return Posted::NoCredit;
        }
        let frame = crate::wire::Frame::Landed {
            grant: self.imports.at(import).grant,
            immediate: argument as u32,
            bytes,
        };
        let header = self.header(lane, context, owner.id.slot, owner.id.generation);
        let sges = self.encode_frame(lane, &header, &frame);
        self.stage_frame(lane, context, slot, 0, sges);
        Posted::All(0)
    }

    #[inline(always)]
    fn post_slice(&mut self, lane: LaneId, context: u16, slot: u32) -> Posted {
        let Self {
            lanes,
            ops,
            imports,
            memory,
            limits,
            ..
        } = self;
        let entry = lanes[lane.0 as usize].as_deref_mut();
        let entry = entry.expect("the lane being pumped exists");
        let op = ops.get_mut(slot);
        let Target::Memory {
            import, address, ..
        } = op.target
        else {
            unreachable!("only messages go to contexts");
        };
        let import = imports.at_mut(import);
        let bytes = (op.bytes - op.posted_bytes).min(limits.slice_bytes);
        if !entry.has_room_for(bytes, limits.lane_bytes_in_flight) {
            return Posted::LaneFull;
        }
        let remote = Remote {
            address: address + op.posted_bytes,
            // Of now: a repair gives an import another one.
            rkey: import.rkey,
        };
        let former = || {
            let address = memory.arena.address() + memory.op_slot(slot) as u64;
            SgeList::one(Sge::new(address, 8, entry.arena.lkey))
        };
        let (work, sges) = work_of(op, remote, bytes, entry.arena.lkey, former);
        op.posted_bytes += bytes;
        op.in_flight += 1;
        let ends = op.posted_bytes == op.bytes && op.kind != OpKind::WriteImmediate;
        import.in_flight += 1;
        let on_lane = &mut entry.link.contexts[context as usize];
        entry.posted[context as usize] += 1;
        if ends {
            op.stage = Stage::Posted;
            let popped = on_lane.queue.pop(ops);
            assert_eq!(popped, Some(slot), "the head of the queue is being posted");
        }
        entry.posted_bytes += bytes;
        let flight = Flight::Slice {
            op: slot,
            bytes: bytes as u32,
        };
        stage_on(entry, lane, self.now_ns, flight, work, sges);
        self.stats.requests_posted += 1;
        if ends {
            Posted::All(bytes)
        } else {
            Posted::Part(bytes)
        }
    }

    /// Stages the frame of a message, or of the notice behind a write, and with it all of its operation.
    fn stage_frame(&mut self, lane: LaneId, context: u16, slot: u32, bytes: u64, sges: SgeList) {
        let flight = Flight::Message {
            op: slot,
            bytes: bytes as u32,
            number: self.lane(lane).link.messages_sent,
        };
        self.stage(lane, flight, WorkOp::Send { immediate: None }, sges);
        let entry = self.lane_mut(lane);
        entry.posted_bytes += bytes;
        entry.posted[context as usize] += 1;
        let op = self.ops.get_mut(slot);
        op.in_flight += 1;
        op.stage = Stage::Posted;
        if let Target::Memory { import, .. } = op.target {
            self.imports.at_mut(import).in_flight += 1;
        }
        self.pop_queue(lane, context, slot);
    }

    /// The header of a message, or of the notice behind a write, from a context here to one of the peer: the next number of the link is its own. Every frame tells the
    /// peer our posted receives.
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
        let sequence = entry.link.messages_sent.wrapping_add(1);
        entry.link.messages_sent = sequence;
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

/// Adds a request to what a lane has for its device. The caller has seen that there is room.
#[inline(always)]
fn stage_on(
    entry: &mut Lane,
    lane: LaneId,
    now_ns: u64,
    flight: Flight,
    op: WorkOp,
    sges: SgeList,
) -> u64 {
    if entry.inflight.len() == 0 {
        entry.backlog.begin(now_ns);
    }
    let sequence = entry.inflight.push(flight);
    let request = WorkRequest::new(work_id(lane, sequence), op, sges).signaled(false);
    let inline = entry.inline_bytes > 0 && takes_inline(&request, entry.inline_bytes);
    entry.staged.push(request.inline(inline));
    sequence
}

/// Whether a request's bytes go with it: of a write or a send that is short enough, and has any.
fn takes_inline(request: &WorkRequest, most: u64) -> bool {
    let writes = matches!(request.op, WorkOp::Write { .. } | WorkOp::Send { .. });
    writes && (1..=most).contains(&request.sges.bytes())
}

/// The request for the next `bytes` bytes of an operation on memory, and its local memory; an atomic's is where the former value lands.
#[inline(always)]
fn work_of(
    op: &Op,
    remote: Remote,
    bytes: u64,
    lkey: Lkey,
    former: impl Fn() -> SgeList,
) -> (WorkOp, SgeList) {
    match op.kind {
        OpKind::Read => (WorkOp::Read { remote }, slice_sges(op, bytes, lkey)),
        OpKind::FetchAdd => {
            let add = op.argument;
            (WorkOp::FetchAdd { remote, add }, former())
        }
        OpKind::CompareSwap => {
            let (expected, desired) = (op.argument, op.value);
            let work = WorkOp::CompareSwap {
                remote,
                expected,
                desired,
            };
            (work, former())
        }
        _ => {
            let immediate = None;
            let work = WorkOp::Write { remote, immediate };
            (work, slice_sges(op, bytes, lkey))
        }
    }
}

/// The local memory of the next `bytes` bytes of an operation.
#[inline(always)]
fn slice_sges(op: &Op, bytes: u64, lkey: Lkey) -> SgeList {
    match &op.ranges[0] {
        // Nearly always one range has all of them.
        Some(range) if op.posted_bytes + bytes <= u64::from(range.len) && bytes > 0 => {
            let address = range.address + op.posted_bytes;
            SgeList::one(Sge::new(address, bytes as u32, lkey))
        }
        _ => slice_of_ranges(op, bytes, lkey),
    }
}

fn slice_of_ranges(op: &Op, bytes: u64, lkey: Lkey) -> SgeList {
    let mut sges = [Sge::default(); MAX_RANGES];
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
