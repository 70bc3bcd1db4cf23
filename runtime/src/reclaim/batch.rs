//! Single revokes: the open batch, its sealing, and explicit flushes.

use super::action::{Action, Actions};
use super::capacity::SlotIx;
use super::epoch::Phase;
use super::event::{Note, Timer};
use super::key::{Key, KeyIx, KeyState, TicketIx};
use super::machine::Machine;
use crate::plant::{self, Plant};

/// Whether the open batch is to be sealed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Seal {
    /// At the watermark, the interval's end or a flush.
    Awaited,
    /// As soon as there is a slot for the next open batch.
    Due,
}

/// The batch that takes the next single revoke.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct OpenBatch {
    pub slot: SlotIx,
    pub seal: Seal,
    pub interval: Interval,
}

/// The timer of `flush_interval`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Interval {
    Idle,
    Armed,
}

/// An explicit flush under way.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Ticket {
    /// It captures each key retired before so many flushes were asked for, this one included.
    flush: u64,
    /// Keys that are neither proven nor quarantined.
    keys: u32,
    /// Lanes of cordoned contexts on which own operations run that no epoch's end has given up.
    own_ops: u32,
    /// Keys in quarantine, and lanes of contexts in quarantine on which own operations run.
    quarantined: u32,
}

impl Ticket {
    const fn is_over(&self) -> bool {
        self.keys == 0 && self.own_ops == 0
    }
}

impl Machine {
    /// Puts a key into the open batch, unless it is retired.
    pub(super) fn retire(&mut self, key: KeyIx, out: &mut Actions) -> Note {
        match self.key(key).state {
            KeyState::Dead => panic!("R4: {key:?} is dead, it can't be retired"),
            KeyState::Parked => return Note::AlreadyProven,
            _ if self.key(key).epoch.is_some() => return Note::AlreadyRetired,
            _ => {}
        }
        self.homes.remove(key);
        self.mark_retired(key);
        self.attach(self.batch.slot, key);
        if self.batch.interval == Interval::Idle {
            self.batch.interval = Interval::Armed;
            out.order(Action::Arm(Timer::FlushInterval));
        }
        let collected = self.epoch(self.batch.slot).pending;
        if collected >= self.capacity.flush_watermark && self.batch.seal == Seal::Awaited {
            self.seal(out);
        }
        Note::Applied
    }

    /// Whether no sealed epoch carries the key: it is live, or waits in the open batch.
    pub(super) fn is_unsealed(&self, key: KeyIx) -> bool {
        let open = self.epoch(self.batch.slot).number;
        let key = self.key(key);
        !key.state.is_proven() && key.epoch.is_none_or(|epoch| epoch == open)
    }

    pub(super) fn mark_retired(&mut self, key: KeyIx) {
        self.key_mut(key).retired_at = self.flushes;
        self.retired += 1;
    }

    pub(super) fn is_interval_armed(&self) -> bool {
        self.batch.interval == Interval::Armed
    }

    pub(super) fn expired_interval(&mut self, out: &mut Actions) -> Note {
        if !self.is_interval_armed() {
            return Note::StaleTimer;
        }
        self.batch.interval = Interval::Idle;
        self.seal(out);
        Note::Applied
    }

    /// Starts step 2 for the open batch. Without a slot for its successor it goes on collecting: a retirement never has to
    /// be refused, and the next end of a batch seals it.
    fn seal(&mut self, out: &mut Actions) {
        let slot = self.batch.slot;
        self.batch.seal = Seal::Awaited;
        if self.epoch(slot).pending == 0 {
            return;
        }
        let mut batches = (0..u32::from(self.capacity.epochs)).map(SlotIx);
        let Some(next) = batches.find(|&batch| self.epoch(batch).phase == Phase::Free) else {
            self.batch.seal = Seal::Due;
            return;
        };
        if self.batch.interval == Interval::Armed {
            self.batch.interval = Interval::Idle;
            out.order(Action::Disarm(Timer::FlushInterval));
        }
        let record = self.epoch_mut(slot);
        record.phase = Phase::Fence;
        out.order(Action::Arm(Timer::Fence(record.number)));
        self.open_epoch(next, Phase::Collecting);
        self.batch.slot = next;
        for lane in self.capacity.all_lanes() {
            let mut keys = self.homes.first(self.capacity.due(slot, lane));
            while let Some(key) = keys {
                keys = self.homes.next(key);
                if self.key(key).state == KeyState::Live {
                    self.set_state(key, KeyState::Fencing, out);
                }
            }
            self.start_strand(slot, lane, out);
        }
    }

    pub(super) fn seal_if_due(&mut self, out: &mut Actions) {
        if self.batch.seal == Seal::Due {
            self.seal(out);
        }
    }

    /// R3: captures everything retired before the call, whoever retired it, whichever epoch carries it.
    pub(super) fn flush(&mut self, ticket: TicketIx, out: &mut Actions) -> Note {
        assert!(
            self.tickets[usize::from(ticket.0)].is_none(),
            "{ticket:?} is in use"
        );
        let batch_is_empty = self.epoch(self.batch.slot).pending == 0;
        let mut captured = Ticket {
            flush: self.flushes,
            keys: self.retired,
            own_ops: 0,
            quarantined: self.counts().unproven,
        };
        for epoch in &self.epochs {
            let running = u32::from(epoch.running);
            if epoch.is_under_way() {
                captured.own_ops += running;
            } else {
                captured.quarantined += running;
            }
        }
        self.flushes += 1;
        self.tickets_open += 1;
        self.tickets[usize::from(ticket.0)] = Some(captured);
        self.seal(out);
        if plant::active(Plant::FlushCounters) && batch_is_empty {
            self.tickets[usize::from(ticket.0)] = Some(Ticket {
                keys: 0,
                own_ops: 0,
                ..captured
            });
        }
        Note::Applied
    }

    /// Counts a key's proof or quarantine in each flush that captured it.
    pub(super) fn count_in_flushes(&mut self, key: KeyIx, from: KeyState) {
        if self.tickets_open == 0 {
            return;
        }
        let Key {
            state: to,
            retired_at,
            ..
        } = *self.key(key);
        for ticket in self.tickets.iter_mut().flatten() {
            if retired_at > ticket.flush {
                continue;
            }
            match (from, to) {
                (KeyState::Unproven, _) => ticket.quarantined -= 1,
                (_, KeyState::Unproven) => {
                    ticket.keys -= 1;
                    ticket.quarantined += 1;
                }
                _ => ticket.keys -= 1,
            }
        }
    }

    /// Counts the proven end of a context's own operations on one lane in each flush that captured them.
    pub(super) fn count_own_ops_in_flushes(&mut self, slot: SlotIx) {
        let given_up = !self.epoch(slot).is_under_way();
        for ticket in self.tickets_behind(slot) {
            if given_up {
                ticket.quarantined -= 1;
            } else {
                ticket.own_ops -= 1;
            }
        }
    }

    /// Behind the end of a context's epoch: what still runs is in quarantine, and no flush waits for it any more.
    pub(super) fn give_up_own_ops_in_flushes(&mut self, slot: SlotIx) {
        let running = u32::from(self.epoch(slot).running);
        for ticket in self.tickets_behind(slot) {
            ticket.own_ops -= running;
            ticket.quarantined += running;
        }
    }

    /// The flushes that were asked for after the cordon that opened the slot's epoch.
    fn tickets_behind(&mut self, slot: SlotIx) -> impl Iterator<Item = &mut Ticket> {
        let cordoned_at = self.epoch(slot).cordoned_at;
        self.tickets
            .iter_mut()
            .flatten()
            .filter(move |ticket| cordoned_at <= ticket.flush)
    }

    /// Behind each event, so that a flush's end follows the ends of the epochs it waited for.
    pub(super) fn end_flushes(&mut self, out: &mut Actions) {
        if self.tickets_open == 0 {
            return;
        }
        for (index, slot) in self.tickets.iter_mut().enumerate() {
            if let Some(ticket) = *slot
                && ticket.is_over()
            {
                *slot = None;
                self.tickets_open -= 1;
                out.order(Action::FlushEnded {
                    ticket: TicketIx(index as u16),
                    quarantined: ticket.quarantined,
                });
            }
        }
    }
}
