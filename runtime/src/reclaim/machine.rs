//! The machine itself: its tables, its one door for events, and what the engine pulls and asks.

use super::action::{Actions, Transition};
use super::batch::{Interval, OpenBatch, Seal, Ticket};
use super::capacity::{Capacity, SlotIx};
use super::context::{Context, ContextState};
use super::epoch::{EpochSlot, Phase};
use super::event::{Event, Note, Timer};
use super::key::{Ack, ContextIx, Key, KeyIx, KeyState, Removal, Scope};
use super::lane::{Lane, LaneState};
use super::list::Lists;
use super::strand::Strand;
use crate::ids::LaneId;

/// The reclaim protocol of one lcore. See the [module](super) for who calls what when.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Machine {
    pub(super) capacity: Capacity,
    keys: Box<[Key]>,
    /// Where each key that is not dead waits: with its lane while it is live or given up, else in a strand.
    pub(super) homes: Lists,
    /// Each context's keys that are not proven.
    pub(super) members: Lists,
    contexts: Box<[Context]>,
    lanes: Box<[Lane]>,
    pub(super) epochs: Box<[EpochSlot]>,
    strands: Box<[Strand]>,
    pub(super) tickets: Box<[Option<Ticket>]>,
    pub(super) tickets_open: u16,
    pub(super) batch: OpenBatch,
    /// Epochs opened so far.
    pub(super) sequence: u64,
    /// Flushes asked for so far.
    pub(super) flushes: u64,
    /// Keys retired and neither proven nor quarantined.
    pub(super) retired: u32,
    pub(super) counts: Counts,
}

/// Keys by state. Their sum is [`Capacity::keys`] (R7).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Counts {
    /// In state [`KeyState::Binding`].
    pub binding: u32,
    /// In state [`KeyState::Live`].
    pub live: u32,
    /// In state [`KeyState::Fencing`].
    pub fencing: u32,
    /// In state [`KeyState::Invalidating`].
    pub invalidating: u32,
    /// In state [`KeyState::Unproven`].
    pub unproven: u32,
    /// In state [`KeyState::Parked`].
    pub parked: u32,
    /// In state [`KeyState::Dead`].
    pub dead: u32,
}

impl Counts {
    fn of(&mut self, state: KeyState) -> &mut u32 {
        match state {
            KeyState::Binding => &mut self.binding,
            KeyState::Live => &mut self.live,
            KeyState::Fencing => &mut self.fencing,
            KeyState::Invalidating => &mut self.invalidating,
            KeyState::Unproven => &mut self.unproven,
            KeyState::Parked => &mut self.parked,
            KeyState::Dead => &mut self.dead,
        }
    }
}

impl Machine {
    /// A machine with nothing bound. Allocates everything it will ever use.
    ///
    /// # Panics
    /// If a size is outside the range that [`Capacity`] states.
    #[must_use]
    pub fn new(capacity: Capacity) -> Self {
        capacity.check();
        let keys = capacity.keys as usize;
        let mut machine = Self {
            capacity,
            keys: vec![Key::NEVER_BOUND; keys].into_boxed_slice(),
            homes: Lists::new(capacity.home_lists(), keys),
            members: Lists::new(usize::from(capacity.contexts), keys),
            contexts: vec![Context::FREE; usize::from(capacity.contexts)].into_boxed_slice(),
            lanes: vec![Lane::NEW; usize::from(capacity.lanes)].into_boxed_slice(),
            epochs: vec![EpochSlot::FREE; capacity.slots()].into_boxed_slice(),
            strands: vec![Strand::IDLE; capacity.strands()].into_boxed_slice(),
            tickets: vec![None; usize::from(capacity.tickets)].into_boxed_slice(),
            tickets_open: 0,
            batch: OpenBatch {
                slot: SlotIx(0),
                seal: Seal::Awaited,
                interval: Interval::Idle,
            },
            sequence: 0,
            flushes: 0,
            retired: 0,
            counts: Counts {
                dead: capacity.keys,
                ..Counts::default()
            },
        };
        machine.open_epoch(SlotIx(0), Phase::Collecting);
        machine
    }

    /// Takes one event and appends what follows from it. Called by the lcore that owns the machine; never blocks, never
    /// allocates. A call that walks keys (a seal, a cordon, a break, a last deadline) walks those of its epoch or lane.
    ///
    /// # Panics
    /// If `out` still holds the answer to an earlier event, or on an event that only a bug of the engine can produce: a bind
    /// of a key that is not dead, a completion of what was never posted, a context cordoned twice.
    pub fn handle(&mut self, event: Event, out: &mut Actions) -> Note {
        assert!(out.is_empty(), "the last event's actions are not cleared");
        let note = self.dispatch(event, out);
        self.end_flushes(out);
        note
    }

    fn dispatch(&mut self, event: Event, out: &mut Actions) -> Note {
        match event {
            Event::Bind {
                key,
                context,
                lane,
                scope,
            } => self.bind(key, context, lane, scope, out),
            Event::BindDone { key } => self.bind_done(key, out),
            Event::BindFailed { key } => self.bind_failed(key, out),
            Event::Retire { key } => self.retire(key, out),
            Event::ImportDropped { key } => self.import_dropped(key, out),
            Event::Cordon {
                context,
                own_ops,
                flushed_ops,
                handles_out,
            } => self.cordon(context, own_ops, flushed_ops, handles_out, out),
            Event::OwnOpsEnded { context, lane } => {
                self.own_ops_ended(self.capacity.context_slot(context), lane, out)
            }
            Event::HandlesReturned { context } => self.handles_returned(context, out),
            Event::Acked { epoch, lane } => self.acked(epoch, lane, out),
            Event::ChainRefused { epoch, lane } => self.chain_refused(epoch, lane, out),
            Event::Invalidated { key } => self.invalidated(key, out),
            Event::InvalidateFailed { key } => self.invalidate_failed(key, out),
            Event::ClosingDone { epoch, lane } => self.closing_done(epoch, lane, out),
            Event::ClosingFailed { epoch, lane } => self.closing_failed(epoch, lane, out),
            Event::Deallocated { key } => self.deallocated(key, out),
            Event::DeallocFailed { key } => self.dealloc_failed(key, out),
            Event::LaneBroken { lane } => self.lane_broken(lane, out),
            Event::QpDestroyed { lane } => self.qp_destroyed(lane, out),
            Event::DomainDestroyed { lane } => self.domain_destroyed(lane, out),
            Event::TargetConfirmed { lane } | Event::TargetLost { lane } => {
                self.target_answered(lane, out)
            }
            Event::Flush { ticket } => self.flush(ticket, out),
            Event::Expired(Timer::FlushInterval) => self.expired_interval(out),
            Event::Expired(Timer::Fence(epoch)) => self.expired_fence(epoch, out),
            Event::Expired(Timer::Invalidate(epoch)) => self.expired_invalidate(epoch, out),
            Event::Expired(Timer::Final(epoch)) => self.expired_final(epoch, out),
        }
    }

    fn bind(
        &mut self,
        key: KeyIx,
        context: ContextIx,
        lane: LaneId,
        scope: Scope,
        out: &mut Actions,
    ) -> Note {
        assert!(
            self.key(key).state == KeyState::Dead,
            "R4: {key:?} is bound in state {:?}",
            self.key(key).state
        );
        assert!(
            self.lane(lane).state == LaneState::Up,
            "{key:?} is bound on {lane:?}, which is not up"
        );
        assert!(
            self.context_state(context) == ContextState::Open,
            "{key:?} is bound for {context:?}, which is cordoned"
        );
        *self.key_mut(key) = Key {
            removal: Removal::None,
            ack: Ack::Awaited,
            scope,
            context,
            lane,
            epoch: None,
            ..*self.key(key)
        };
        #[cfg(feature = "plant")]
        self.key_mut(key).reuse.rebound();
        self.set_state(key, KeyState::Binding, out);
        self.homes.push_back(self.capacity.live(lane), key);
        self.members.push_back(Self::member_list(context), key);
        self.context_mut(context).pending += 1;
        self.lane_mut(lane).keys += 1;
        Note::Applied
    }

    /// R4: the one place where a key's state is written.
    pub(super) fn change(&mut self, key: KeyIx, to: KeyState) {
        let from = self.key(key).state;
        assert!(
            from.may_become(to),
            "R4: {key:?} can't go from {from:?} to {to:?}"
        );
        *self.counts.of(from) -= 1;
        *self.counts.of(to) += 1;
        self.key_mut(key).state = to;
    }

    pub(super) fn set_state(&mut self, key: KeyIx, to: KeyState, out: &mut Actions) {
        let Key {
            state: from, epoch, ..
        } = *self.key(key);
        self.change(key, to);
        out.changed(Transition {
            key,
            from,
            to,
            epoch,
        });
    }
}

/// The tables, by their own indices.
impl Machine {
    pub(super) fn key(&self, key: KeyIx) -> &Key {
        &self.keys[key.0 as usize]
    }

    pub(super) fn key_mut(&mut self, key: KeyIx) -> &mut Key {
        &mut self.keys[key.0 as usize]
    }

    pub(super) fn context(&self, context: ContextIx) -> &Context {
        &self.contexts[usize::from(context.0)]
    }

    pub(super) fn context_mut(&mut self, context: ContextIx) -> &mut Context {
        &mut self.contexts[usize::from(context.0)]
    }

    pub(super) fn lane(&self, lane: LaneId) -> &Lane {
        &self.lanes[usize::from(lane.0)]
    }

    pub(super) fn lane_mut(&mut self, lane: LaneId) -> &mut Lane {
        &mut self.lanes[usize::from(lane.0)]
    }

    pub(super) fn epoch(&self, slot: SlotIx) -> &EpochSlot {
        &self.epochs[slot.0 as usize]
    }

    pub(super) fn epoch_mut(&mut self, slot: SlotIx) -> &mut EpochSlot {
        &mut self.epochs[slot.0 as usize]
    }

    pub(super) fn strand(&self, slot: SlotIx, lane: LaneId) -> &Strand {
        &self.strands[self.capacity.strand(slot, lane)]
    }

    pub(super) fn strand_mut(&mut self, slot: SlotIx, lane: LaneId) -> &mut Strand {
        &mut self.strands[self.capacity.strand(slot, lane)]
    }
}
