//! What the engine asks: the census, and where things are.

use super::capacity::Capacity;
use super::context::ContextState;
use super::epoch::Phase;
use super::key::{ContextIx, KeyIx, KeyState};
use super::lane::{Lane, LaneState};
use super::machine::{Counts, Machine};
use super::strand::StrandState;
use crate::ids::{Epoch, LaneId};

impl Machine {
    /// The state of a key.
    #[must_use]
    pub fn key_state(&self, key: KeyIx) -> KeyState {
        self.key(key).state
    }

    /// The epoch that carries the key, once it is retired. It can still change for a key in the open batch.
    #[must_use]
    pub fn key_epoch(&self, key: KeyIx) -> Option<Epoch> {
        self.key(key).epoch
    }

    /// Whether nothing is known of what was in the lane's place before.
    #[must_use]
    pub fn lane_is_new(&self, lane: LaneId) -> bool {
        *self.lane(lane) == Lane::NEW
    }

    /// The lane that the key was last bound on.
    #[must_use]
    pub fn key_lane(&self, key: KeyIx) -> LaneId {
        self.key(key).lane
    }

    /// The context that the key was last bound for.
    #[must_use]
    pub fn key_context(&self, key: KeyIx) -> ContextIx {
        self.key(key).context
    }

    /// Keys ever bound for the context that are not proven ended.
    pub fn keys_of(&self, context: ContextIx) -> impl Iterator<Item = KeyIx> + '_ {
        self.members.iter(Self::member_list(context))
    }

    /// Keys by state.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Keys of the lane that are parked: they count against the peer's allowance.
    #[must_use]
    pub fn parked(&self, lane: LaneId) -> u32 {
        self.lane(lane).parked
    }

    /// The state of a lane.
    #[must_use]
    pub fn lane_state(&self, lane: LaneId) -> LaneState {
        self.lane(lane).state
    }

    /// The state of a context.
    #[must_use]
    pub fn context_state(&self, context: ContextIx) -> ContextState {
        match self.epoch(self.capacity.context_slot(context)).phase {
            Phase::Free => ContextState::Open,
            Phase::Lingering => ContextState::Quarantined,
            _ => ContextState::Cordoned,
        }
    }

    /// The epoch of a context that is cordoned or in quarantine.
    #[must_use]
    pub fn context_epoch(&self, context: ContextIx) -> Option<Epoch> {
        let record = self.epoch(self.capacity.context_slot(context));
        (record.phase != Phase::Free).then_some(record.number)
    }

    /// How far an epoch has come on a lane; [`StrandState::Idle`] if it has nothing there or is not under way.
    #[must_use]
    pub fn strand_state(&self, epoch: Epoch, lane: LaneId) -> StrandState {
        self.slot_of(epoch)
            .map_or(StrandState::Idle, |slot| self.strand(slot, lane).state)
    }

    /// Epochs that are sealed and have not ended.
    #[must_use]
    pub fn epochs_under_way(&self) -> usize {
        self.epochs
            .iter()
            .filter(|slot| slot.is_under_way())
            .count()
    }

    /// The sizes it was built with.
    #[must_use]
    pub fn capacity(&self) -> Capacity {
        self.capacity
    }

    /// Keys of the lane that are given up, parked, or being deallocated: among them are those for [`Machine::next_to_remind`].
    #[must_use]
    pub fn aside(&self, lane: LaneId) -> u32 {
        self.homes.len(self.capacity.aside(lane))
    }
}
