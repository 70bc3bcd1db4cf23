//! The sizes of a machine, and where things are in its tables.

use super::action::Bound;
use super::key::ContextIx;
use super::lane_set::LaneSet;
use super::list::ListId;
use crate::ids::{Epoch, LaneId};

/// The sizes of a machine's tables. Everything is allocated for them at construction, nothing later.
///
/// Memory is about 64 bytes a key, and `16 x lanes` bytes for each batch, context and lane.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Capacity {
    /// Grant slots.
    pub keys: u32,
    /// Context slots. Each can have one epoch, so that a cordon never waits for a slot.
    pub contexts: u16,
    /// QPs that exist at the same time, those being destroyed included: 1 to [`LaneSet::MAX_LANES`].
    pub lanes: u16,
    /// Batches of single revokes under way, the open one included: at least 2. If all are under way, the open one grows
    /// past its watermark.
    pub epochs: u16,
    /// Explicit flushes under way.
    pub tickets: u16,
    /// Keys at which the open batch is sealed: at least 1.
    pub flush_watermark: u32,
}

/// What an epoch retires. It follows from its slot: batches first, then one slot a context, then one a lane.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Kind {
    /// Single revokes, collected.
    Batch,
    /// A context.
    Context(ContextIx),
    /// The keys that were live on a lane when it broke.
    Break(LaneId),
}

/// A slot of the table of epochs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct SlotIx(pub u32);

/// The low bits of an epoch's number are its slot, the high ones grow: a number finds its slot and is never repeated.
const SLOT_BITS: u32 = 20;

impl SlotIx {
    pub(super) const fn of(epoch: Epoch) -> Self {
        Self(epoch.0 as u32 & ((1 << SLOT_BITS) - 1))
    }

    pub(super) const fn number(self, sequence: u64) -> Epoch {
        Epoch(sequence << SLOT_BITS | self.0 as u64)
    }
}

impl Capacity {
    /// Refuses sizes that no machine can have.
    ///
    /// # Panics
    /// If one is outside the range that its field states; the configuration has been checked before.
    pub(super) fn check(&self) {
        assert!(
            (1..=LaneSet::MAX_LANES).contains(&usize::from(self.lanes)),
            "lanes: {} is not in 1..={}",
            self.lanes,
            LaneSet::MAX_LANES
        );
        assert!(
            self.epochs >= 2,
            "epochs: {} is below 2, the open batch and one under way",
            self.epochs
        );
        assert!(
            self.flush_watermark >= 1,
            "flush_watermark: 0 seals nothing"
        );
        assert!(self.keys < u32::MAX / 2, "keys: {} is too many", self.keys);
        assert!(self.slots() < 1 << SLOT_BITS);
    }

    /// The most that one event can answer.
    #[must_use]
    pub const fn bound(&self) -> Bound {
        Bound {
            transitions: self.keys as usize,
            // Each epoch: its end, a timer, a context's slot. Each lane: an order, and one for a batch that is sealed behind.
            orders: 3 * self.slots() + 2 * self.lanes as usize + self.tickets as usize + 8,
        }
    }

    /// Places of timers: one an epoch slot, and the interval's.
    #[must_use]
    pub const fn timers(&self) -> usize {
        1 + self.slots()
    }

    pub(super) const fn slots(&self) -> usize {
        self.epochs as usize + self.contexts as usize + self.lanes as usize
    }

    pub(super) fn all_slots(&self) -> impl Iterator<Item = SlotIx> + use<> {
        (0..self.slots() as u32).map(SlotIx)
    }

    pub(super) fn all_lanes(&self) -> impl Iterator<Item = LaneId> + use<> {
        (0..self.lanes).map(LaneId)
    }

    pub(super) const fn strands(&self) -> usize {
        self.slots() * self.lanes as usize
    }

    /// The lists that a key can be in: two a strand, three a lane.
    pub(super) const fn home_lists(&self) -> usize {
        2 * self.strands() + 3 * self.lanes as usize
    }

    pub(super) const fn context_slot(&self, context: ContextIx) -> SlotIx {
        SlotIx(self.epochs as u32 + context.0 as u32)
    }

    pub(super) const fn break_slot(&self, lane: LaneId) -> SlotIx {
        SlotIx(self.epochs as u32 + self.contexts as u32 + lane.0 as u32)
    }

    pub(super) const fn kind(&self, slot: SlotIx) -> Kind {
        let contexts = self.epochs as u32;
        let breaks = contexts + self.contexts as u32;
        if slot.0 < contexts {
            Kind::Batch
        } else if slot.0 < breaks {
            Kind::Context(ContextIx((slot.0 - contexts) as u16))
        } else {
            Kind::Break(LaneId((slot.0 - breaks) as u16))
        }
    }

    pub(super) const fn strand(&self, slot: SlotIx, lane: LaneId) -> usize {
        slot.0 as usize * self.lanes as usize + lane.0 as usize
    }

    /// Keys of the strand that its present step has still to name, post or refuse.
    pub(super) const fn due(&self, slot: SlotIx, lane: LaneId) -> ListId {
        ListId(2 * self.strand(slot, lane) as u32)
    }

    /// Keys of the strand that its present step is done with or can't touch yet.
    pub(super) const fn rest(&self, slot: SlotIx, lane: LaneId) -> ListId {
        ListId(2 * self.strand(slot, lane) as u32 + 1)
    }

    /// Keys of the lane that are not retired.
    pub(super) const fn live(&self, lane: LaneId) -> ListId {
        self.lane_list(lane, 0)
    }

    /// Keys of the lane to deallocate.
    pub(super) const fn doomed(&self, lane: LaneId) -> ListId {
        self.lane_list(lane, 1)
    }

    /// Keys of the lane that no strand needs to walk: in deallocation, quarantined, parked.
    pub(super) const fn aside(&self, lane: LaneId) -> ListId {
        self.lane_list(lane, 2)
    }

    const fn lane_list(&self, lane: LaneId, which: u32) -> ListId {
        ListId(2 * self.strands() as u32 + 3 * lane.0 as u32 + which)
    }
}
