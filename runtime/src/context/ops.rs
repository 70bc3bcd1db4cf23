//! Operations submitted and not completed: a slab of fixed size, with links for the queues that they wait in.

use crate::ids::{ContextId, LaneId, RemoteContext};
use crate::lane::repair::Verdict;
use crate::op::{OpKind, Status};
use keyfence_mempool::buf::BufId;

/// No operation.
pub const NIL: u32 = u32::MAX;

/// A range of local memory that an operation reads or writes. Its buffer is held until the operation has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LocalRange {
    /// The buffer.
    pub buf: BufId,
    /// Which of the lcore's pools it is of.
    pub pool: u8,
    /// Address of the first byte.
    pub address: u64,
    /// Bytes.
    pub len: u32,
}

/// Most local ranges of one operation.
pub const MAX_RANGES: usize = 2;

/// Where an operation goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// A peer's memory, through an import.
    Memory {
        /// The import's slot.
        import: u32,
        /// The first byte at the peer.
        address: u64,
        /// The context whose memory it is.
        owner: RemoteContext,
    },
    /// A context of a peer.
    Context(RemoteContext),
}

/// How far an operation is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// Waits in its context's queue on its lane; nothing, or only a part, is posted.
    Queued,
    /// All that will ever be posted of it is posted.
    Posted,
}

/// One operation.
#[derive(Clone, Copy, Debug)]
pub struct Op {
    /// The context's slot.
    pub context: u16,
    /// The caller's token.
    pub token: u64,
    /// What it does.
    pub kind: OpKind,
    /// The lane it goes on.
    pub lane: LaneId,
    /// Where it goes.
    pub target: Target,
    /// Its local memory.
    pub ranges: [Option<LocalRange>; MAX_RANGES],
    /// Bytes in all.
    pub bytes: u64,
    /// Bytes posted.
    pub posted_bytes: u64,
    /// Bytes proven transferred.
    pub done_bytes: u64,
    /// Work requests posted and not proven executed.
    pub in_flight: u32,
    /// Work requests that a break has cut off and nobody has judged.
    pub cut: u32,
    /// How far it is.
    pub stage: Stage,
    /// The end that was decided before all of it was posted.
    pub fate: Option<Status>,
    /// Addend or expected value of an atomic; immediate number of a write.
    pub argument: u64,
    /// New value of a compare-and-swap; former value once it is done.
    pub value: u64,
    /// Whether it may be executed twice.
    pub idempotent: bool,
    /// Whether a part of it may have been executed before it was to be posted again.
    pub again: bool,
    /// What a break has left of it, while that is judged.
    pub verdict: Option<Verdict>,
    /// The next in its queue.
    pub next: u32,
}

impl Target {
    /// The remote context of whose messages an operation of `kind` takes one: it gets a message, or the notice behind a write.
    #[inline]
    pub fn receiver(&self, kind: OpKind) -> Option<ContextId> {
        match (kind, self) {
            (_, Self::Context(to)) => Some(to.id),
            (OpKind::WriteImmediate, Self::Memory { owner, .. }) => Some(owner.id),
            _ => None,
        }
    }
}

impl Op {
    /// The slot of the import that it uses.
    #[inline]
    pub fn import(&self) -> Option<u32> {
        match self.target {
            Target::Memory { import, .. } => Some(import),
            Target::Context(_) => None,
        }
    }

    /// The remote context of whose messages it takes one.
    #[inline]
    pub fn receiver(&self) -> Option<ContextId> {
        self.target.receiver(self.kind)
    }
}

/// The slab of one lcore.
#[derive(Debug)]
pub struct Ops {
    slots: Box<[Option<Op>]>,
    free: Vec<u32>,
}

impl Ops {
    /// Room for `capacity` operations.
    pub fn new(capacity: u32) -> Self {
        assert!(capacity < NIL, "slots are numbered in 32 bits");
        Self {
            slots: vec![None; capacity as usize].into_boxed_slice(),
            free: (0..capacity).rev().collect(),
        }
    }

    /// Stores an operation, or gives `None` when the slab is full.
    #[inline(always)]
    pub fn insert(&mut self, op: Op) -> Option<u32> {
        let slot = self.free.pop()?;
        let place = &mut self.slots[slot as usize];
        assert!(place.is_none(), "a free slot holds nothing");
        *place = Some(op);
        Some(slot)
    }

    /// The operation in `slot`; it must be there.
    #[inline]
    pub fn get(&self, slot: u32) -> &Op {
        self.slots[slot as usize]
            .as_ref()
            .expect("an operation in flight is in the slab")
    }

    /// The operation in `slot`, to change; it must be there.
    #[inline]
    pub fn get_mut(&mut self, slot: u32) -> &mut Op {
        self.slots[slot as usize]
            .as_mut()
            .expect("an operation in flight is in the slab")
    }

    /// The operation in `slot`, to change, if there is one.
    pub fn find_mut(&mut self, slot: u32) -> Option<&mut Op> {
        self.slots.get_mut(slot as usize)?.as_mut()
    }

    /// Forgets an operation; it must be there.
    #[inline]
    pub fn remove(&mut self, slot: u32) {
        let place = &mut self.slots[slot as usize];
        assert!(place.is_some(), "an operation ends once");
        *place = None;
        self.free.push(slot);
    }
}

/// A first-in first-out queue of operations, linked through the slab.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpQueue {
    head: u32,
    tail: u32,
}

impl OpQueue {
    /// An empty queue.
    pub const EMPTY: Self = Self {
        head: NIL,
        tail: NIL,
    };

    /// The oldest operation.
    #[inline]
    pub fn head(&self) -> Option<u32> {
        (self.head != NIL).then_some(self.head)
    }

    /// Appends an operation that is in no queue.
    #[inline]
    pub fn push(&mut self, ops: &mut Ops, op: u32) {
        if self.head == NIL {
            self.head = op;
        } else {
            ops.get_mut(self.tail).next = op;
        }
        self.tail = op;
    }

    /// Puts an operation that is in no queue in front of all.
    pub fn push_front(&mut self, ops: &mut Ops, op: u32) {
        ops.get_mut(op).next = self.head;
        if self.head == NIL {
            self.tail = op;
        }
        self.head = op;
    }

    /// The one behind `op`, which is in the queue.
    pub fn after(&self, ops: &Ops, op: u32) -> Option<u32> {
        let next = ops.get(op).next;
        (next != NIL).then_some(next)
    }

    /// Takes the oldest operation out of the queue; it stays in the slab.
    #[inline]
    pub fn pop(&mut self, ops: &mut Ops) -> Option<u32> {
        let op = self.head()?;
        self.head = core::mem::replace(&mut ops.get_mut(op).next, NIL);
        if self.head == NIL {
            self.tail = NIL;
        }
        Some(op)
    }

    /// Takes the first operation that `pred` accepts out of the queue.
    pub fn take_first(&mut self, ops: &mut Ops, mut pred: impl FnMut(&Op) -> bool) -> Option<u32> {
        let mut before = NIL;
        let mut at = self.head;
        while at != NIL && !pred(ops.get(at)) {
            before = at;
            at = ops.get(at).next;
        }
        self.unlink(ops, before, at)
    }

    /// Takes an operation out of the queue, wherever it stands; whether it was there.
    pub fn strike(&mut self, ops: &mut Ops, op: u32) -> bool {
        let mut before = NIL;
        let mut at = self.head;
        while at != NIL && at != op {
            before = at;
            at = ops.get(at).next;
        }
        self.unlink(ops, before, at).is_some()
    }

    /// Takes out the operation `at`, which stands behind `before`.
    fn unlink(&mut self, ops: &mut Ops, before: u32, at: u32) -> Option<u32> {
        if at == NIL {
            return None;
        }
        let next = core::mem::replace(&mut ops.get_mut(at).next, NIL);
        if before == NIL {
            self.head = next;
        } else {
            ops.get_mut(before).next = next;
        }
        if self.tail == at {
            self.tail = before;
        }
        Some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{ContextId, LcoreId, PeerId, SessionId};

    fn op(token: u64) -> Op {
        let id = ContextId {
            lcore: LcoreId(0),
            slot: 0,
            generation: 1,
        };
        Op {
            context: 0,
            token,
            kind: OpKind::Send,
            lane: LaneId(0),
            target: Target::Context(RemoteContext {
                peer: PeerId(0),
                session: SessionId(0),
                id,
            }),
            ranges: [None; MAX_RANGES],
            bytes: 0,
            posted_bytes: 0,
            done_bytes: 0,
            in_flight: 0,
            cut: 0,
            stage: Stage::Queued,
            fate: None,
            argument: 0,
            value: 0,
            idempotent: false,
            again: false,
            verdict: None,
            next: NIL,
        }
    }

    #[test]
    fn r7_a_full_slab_refuses_and_an_emptied_one_takes_as_many_again() {
        let mut ops = Ops::new(2);
        let first = ops.insert(op(1)).unwrap();
        assert!(ops.insert(op(2)).is_some());
        assert!(ops.insert(op(3)).is_none());
        assert_eq!(ops.get(first).token, 1);
        ops.remove(first);
        assert!(ops.insert(op(4)).is_some());
    }

    #[test]
    fn a_queue_keeps_its_order_when_one_in_the_middle_is_taken() {
        let mut ops = Ops::new(4);
        let mut queue = OpQueue::EMPTY;
        for token in 0..4 {
            let slot = ops.insert(op(token)).unwrap();
            queue.push(&mut ops, slot);
        }
        for token in [3, 1] {
            assert!(queue.take_first(&mut ops, |op| op.token == token).is_some());
        }
        let first = queue.pop(&mut ops).unwrap();
        assert_eq!(ops.get(first).token, 0);
        ops.remove(first);
        let last = queue.pop(&mut ops).unwrap();
        assert_eq!(ops.get(last).token, 2);
        assert_eq!(queue, OpQueue::EMPTY);
        queue.push(&mut ops, last);
        assert_eq!(queue.head(), Some(last));
    }
}
