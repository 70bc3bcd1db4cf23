//! A machine of two contexts and two lanes, told one event at a time.

use keyfence::ids::{Epoch, LaneId};
use keyfence::reclaim::{
    Action, Actions, Capacity, ContextIx, Event, KeyIx, KeyState, LaneSet, Machine, Note, Outcome,
    Quarantine, Scope, Timer, Transition,
};

pub const C0: ContextIx = ContextIx(0);
pub const C1: ContextIx = ContextIx(1);
pub const L0: LaneId = LaneId(0);
pub const L1: LaneId = LaneId(1);
pub const K0: KeyIx = KeyIx(0);
pub const K1: KeyIx = KeyIx(1);
pub const K2: KeyIx = KeyIx(2);

pub struct Bench {
    pub machine: Machine,
    pub transitions: Vec<Transition>,
    pub orders: Vec<Action>,
}

impl Bench {
    pub fn new(flush_watermark: u32) -> Self {
        let capacity = Capacity {
            keys: 8,
            contexts: 2,
            lanes: 2,
            epochs: 3,
            tickets: 2,
            flush_watermark,
        };
        Self {
            machine: Machine::new(capacity),
            transitions: Vec::new(),
            orders: Vec::new(),
        }
    }

    pub fn note(&mut self, event: Event) -> Note {
        let mut out = Actions::new(self.machine.capacity().bound());
        let note = self.machine.handle(event, &mut out);
        self.transitions = out.transitions().to_vec();
        self.orders = out.orders().to_vec();
        note
    }

    /// Tells an event that must be expected, and returns what it orders.
    pub fn tell(&mut self, event: Event) -> &[Action] {
        assert_eq!(self.note(event), Note::Applied, "{event:?}");
        &self.orders
    }

    pub fn live(&mut self, key: KeyIx, context: ContextIx, lane: LaneId) {
        self.bind(key, context, lane);
        self.tell(Event::BindDone { key });
    }

    pub fn bind(&mut self, key: KeyIx, context: ContextIx, lane: LaneId) {
        let scope = Scope::Queue;
        self.tell(Event::Bind {
            key,
            context,
            lane,
            scope,
        });
    }

    /// Retires a key; with a watermark of 1 its epoch is sealed.
    pub fn retire(&mut self, key: KeyIx) -> Epoch {
        self.tell(Event::Retire { key });
        self.machine.key_epoch(key).unwrap()
    }

    pub fn cordon(&mut self, context: ContextIx, own_ops: &[LaneId]) -> Epoch {
        self.cordon_with(context, own_ops, &[], false)
    }

    pub fn cordon_with(
        &mut self,
        context: ContextIx,
        own_ops: &[LaneId],
        flushed_ops: &[LaneId],
        handles_out: bool,
    ) -> Epoch {
        self.tell(Event::Cordon {
            context,
            own_ops: own_ops.iter().copied().collect(),
            flushed_ops: flushed_ops.iter().copied().collect(),
            handles_out,
        });
        self.orders
            .iter()
            .find_map(|order| match *order {
                Action::Arm(Timer::Fence(epoch)) => Some(epoch),
                _ => None,
            })
            .expect("a cordon arms the fence")
    }

    pub fn ack(&mut self, epoch: Epoch, lane: LaneId) -> &[Action] {
        self.tell(Event::Acked { epoch, lane })
    }

    /// Posts every invalidation of the strand.
    pub fn post(&mut self, epoch: Epoch, lane: LaneId) -> Vec<KeyIx> {
        core::iter::from_fn(|| self.machine.next_to_invalidate(epoch, lane)).collect()
    }

    pub fn doomed(&mut self, lane: LaneId) -> Vec<KeyIx> {
        core::iter::from_fn(|| self.machine.next_to_dealloc(lane)).collect()
    }

    /// Lets every deadline of the epoch pass.
    pub fn time_out(&mut self, epoch: Epoch) -> &[Action] {
        self.tell(Event::Expired(Timer::Fence(epoch)));
        self.tell(Event::Expired(Timer::Invalidate(epoch)));
        self.tell(Event::Expired(Timer::Final(epoch)))
    }

    pub fn state(&self, key: KeyIx) -> KeyState {
        self.machine.key_state(key)
    }

    /// How the epoch ended by the last event, if it did.
    pub fn outcome(&self, epoch: Epoch) -> Option<Outcome> {
        self.orders.iter().find_map(|order| match *order {
            Action::EpochEnded {
                epoch: ended,
                outcome,
                ..
            } if ended == epoch => Some(outcome),
            _ => None,
        })
    }

    pub fn flush_ended(&self) -> Option<u32> {
        self.orders.iter().find_map(|order| match *order {
            Action::FlushEnded { quarantined, .. } => Some(quarantined),
            _ => None,
        })
    }
}

pub const NOTHING_LEFT: Quarantine = Quarantine {
    keys: 0,
    own_ops: LaneSet::EMPTY,
    unconfirmed: LaneSet::EMPTY,
    handles_held: false,
};
