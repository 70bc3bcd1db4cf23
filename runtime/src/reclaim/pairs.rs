//! Which events met which states: what a run must have seen to have tried the machine, and not only to have passed.

use core::fmt;

use super::chance::{BASES, Kind, ROWS, Row};
use super::epoch::Phase;
use super::event::{Event, Timer};
use super::key::ContextIx;
use super::machine::Machine;
use crate::ids::{Epoch, LaneId};

/// A kind of event, and the state that it meets: the state by which the machine decides what to do about it. Shown as `invalidated@unproven`.
///
/// | event | state |
/// | --- | --- |
/// | about a key | its [`KeyState`](super::KeyState) |
/// | about an epoch on a lane, or a context's own operations there | the [`StrandState`](super::StrandState); `gone` if the epoch is not known any more |
/// | about a lane | its [`LaneState`](super::LaneState) |
/// | about a context | its [`ContextState`](super::ContextState) |
/// | a timer | the step that its epoch is in (for the interval: `collecting`, while it is armed); `stale` if it is past all |
/// | a flush | `nothing` retired, something `retired` and awaited, or something in `quarantine` alone |
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pair(u8);

/// Behind the states of a strand: the epoch's slot has forgotten it.
const GONE: usize = 6;
/// What timers meet.
const COLLECTING: usize = 0;
const STALE: usize = 4;
/// What a flush meets.
const NOTHING: usize = 0;
const RETIRED: usize = 1;
const QUARANTINE: usize = 2;

impl Pair {
    /// How many there are, those included that can't happen.
    pub const COUNT: usize = {
        let last = ROWS.len() - 1;
        BASES[last] as usize + ROWS[last].states.len()
    };

    /// Each pair, by its index.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..Self::COUNT).map(|index| Self(index as u8))
    }

    /// Its place below [`Pair::COUNT`]. May change from one release to the next: the name does not.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    #[inline(always)]
    const fn new(kind: Kind, state: usize) -> Self {
        Self(BASES[kind as usize] + state as u8)
    }

    /// Its row of the table, and the place in it.
    pub(super) fn place(self) -> (&'static Row, usize) {
        let row = BASES.partition_point(|&base| base <= self.0) - 1;
        (&ROWS[row], (self.0 - BASES[row]) as usize)
    }
}

impl fmt::Display for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (row, state) = self.place();
        write!(f, "{}@{}", row.event, row.states[state])
    }
}

impl fmt::Debug for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A pair is a byte, so that whichever it is has its word.
const WORDS: usize = 256 / 64;

/// A set of pairs, a bit each.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct PairSet([u64; WORDS]);

impl PairSet {
    /// No pair.
    pub const EMPTY: Self = Self([0; WORDS]);

    /// Puts a pair in.
    #[inline(always)]
    pub fn insert(&mut self, pair: Pair) {
        self.0[pair.index() / 64] |= 1 << (pair.index() % 64);
    }

    /// Whether `pair` is in the set.
    #[must_use]
    pub const fn contains(&self, pair: Pair) -> bool {
        self.0[pair.index() / 64] >> (pair.index() % 64) & 1 == 1
    }

    /// What is in either.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self(core::array::from_fn(|at| self.0[at] | other.0[at]))
    }

    /// What is in `self` and not in `other`.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        Self(core::array::from_fn(|at| self.0[at] & !other.0[at]))
    }

    /// How many are in it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether none is in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::EMPTY
    }

    /// The pairs in it, by index.
    pub fn iter(&self) -> impl Iterator<Item = Pair> + '_ {
        Pair::all().filter(|&pair| self.contains(pair))
    }
}

impl FromIterator<Pair> for PairSet {
    fn from_iter<I: IntoIterator<Item = Pair>>(pairs: I) -> Self {
        let mut set = Self::EMPTY;
        pairs.into_iter().for_each(|pair| set.insert(pair));
        set
    }
}

impl fmt::Debug for PairSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

impl Machine {
    /// The pair that `event` makes with what it would meet now. Asked before [`Machine::handle`]; changes nothing, allocates nothing. Any event has one, those
    /// too on which `handle` panics.
    ///
    /// # Panics
    /// If the event names a key, context or lane beyond the machine's [`Capacity`](super::Capacity).
    #[must_use]
    #[inline(always)]
    pub fn pair(&self, event: &Event) -> Pair {
        // Nearly all events are about keys: one look into two small tables, which the compiler makes of this.
        let (kind, key) = match *event {
            Event::Bind { key, .. } => (Kind::Bind, key),
            Event::BindDone { key } => (Kind::BindDone, key),
            Event::BindFailed { key } => (Kind::BindFailed, key),
            Event::Retire { key } => (Kind::Retire, key),
            Event::ImportDropped { key } => (Kind::ImportDropped, key),
            Event::Invalidated { key } => (Kind::Invalidated, key),
            Event::InvalidateFailed { key } => (Kind::InvalidateFailed, key),
            Event::Deallocated { key } => (Kind::Deallocated, key),
            Event::DeallocFailed { key } => (Kind::DeallocFailed, key),
            _ => return self.pair_of_no_key(event),
        };
        Pair::new(kind, self.key(key).state as usize)
    }

    #[inline(never)]
    fn pair_of_no_key(&self, event: &Event) -> Pair {
        match *event {
            Event::Cordon { context, .. } => self.with_context(Kind::Cordon, context),
            Event::OwnOpsEnded { context, lane } => {
                let slot = self.capacity.context_slot(context);
                Pair::new(Kind::OwnOpsEnded, self.strand(slot, lane).state as usize)
            }
            Event::HandlesReturned { context } => self.with_context(Kind::HandlesReturned, context),
            Event::Acked { epoch, lane } => self.with_strand(Kind::Acked, epoch, lane),
            Event::ChainRefused { epoch, lane } => {
                self.with_strand(Kind::ChainRefused, epoch, lane)
            }
            Event::ClosingDone { epoch, lane } => self.with_strand(Kind::ClosingDone, epoch, lane),
            Event::ClosingFailed { epoch, lane } => {
                self.with_strand(Kind::ClosingFailed, epoch, lane)
            }
            Event::LaneBroken { lane } => self.with_lane(Kind::LaneBroken, lane),
            Event::QpDestroyed { lane } => self.with_lane(Kind::QpDestroyed, lane),
            Event::DomainDestroyed { lane } => self.with_lane(Kind::DomainDestroyed, lane),
            Event::TargetConfirmed { lane } => self.with_lane(Kind::TargetConfirmed, lane),
            Event::TargetLost { lane } => self.with_lane(Kind::TargetLost, lane),
            Event::Flush { .. } => Pair::new(Kind::Flush, self.met_by_flush()),
            Event::Expired(timer) => self.with_timer(timer),
            Event::Bind { .. }
            | Event::BindDone { .. }
            | Event::BindFailed { .. }
            | Event::Retire { .. }
            | Event::ImportDropped { .. }
            | Event::Invalidated { .. }
            | Event::InvalidateFailed { .. }
            | Event::Deallocated { .. }
            | Event::DeallocFailed { .. } => unreachable!("the caller has taken {event:?}"),
        }
    }

    fn with_context(&self, kind: Kind, context: ContextIx) -> Pair {
        Pair::new(kind, self.context_state(context) as usize)
    }

    fn with_strand(&self, kind: Kind, epoch: Epoch, lane: LaneId) -> Pair {
        let known = self.slot_of(epoch);
        Pair::new(
            kind,
            known.map_or(GONE, |slot| self.strand(slot, lane).state as usize),
        )
    }

    fn with_lane(&self, kind: Kind, lane: LaneId) -> Pair {
        Pair::new(kind, self.lane(lane).state as usize)
    }

    fn with_timer(&self, timer: Timer) -> Pair {
        let (kind, epoch) = match timer {
            Timer::FlushInterval => {
                let armed = self.is_interval_armed();
                return Pair::new(Kind::Interval, if armed { COLLECTING } else { STALE });
            }
            Timer::Fence(epoch) => (Kind::Fence, epoch),
            Timer::Invalidate(epoch) => (Kind::Invalidate, epoch),
            Timer::Final(epoch) => (Kind::Final, epoch),
        };
        let met = match self.slot_of(epoch).map(|slot| self.epoch(slot).phase) {
            Some(Phase::Fence) => 1,
            Some(Phase::Invalidate) => 2,
            Some(Phase::Final) => 3,
            Some(Phase::Free | Phase::Collecting | Phase::Lingering) | None => STALE,
        };
        Pair::new(kind, met)
    }

    /// By what decides whether a flush ends at once, and what it then says.
    fn met_by_flush(&self) -> usize {
        let running = || self.epochs.iter().filter(|epoch| epoch.running > 0);
        if self.retired > 0 || running().any(|epoch| epoch.is_under_way()) {
            RETIRED
        } else if self.counts.unproven > 0 || running().next().is_some() {
            QUARANTINE
        } else {
            NOTHING
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::context::ContextState;
    use super::super::key::KeyState;
    use super::super::lane::LaneState;
    use super::super::strand::StrandState;
    use super::*;

    /// Names in the table against the states' own, `await_destroy` for `AwaitDestroy`.
    fn is_named(kind: Kind, states: &[&dyn fmt::Debug]) -> bool {
        let row = &ROWS[kind as usize];
        let plain = |name: &str| name.replace('_', "").to_lowercase();
        let same = |(at, state): (usize, &&dyn fmt::Debug)| {
            plain(row.states[at]) == plain(&format!("{state:?}"))
        };
        states.iter().enumerate().all(same)
    }

    #[test]
    fn states_stand_in_the_table_in_their_own_order() {
        let keys = KeyState::ALL.each_ref().map(|it| it as &dyn fmt::Debug);
        assert!(is_named(Kind::Bind, &keys));
        let strands: [&dyn fmt::Debug; 6] = [
            &StrandState::Idle,
            &StrandState::Fencing,
            &StrandState::Closing,
            &StrandState::Deallocating,
            &StrandState::AwaitDestroy,
            &StrandState::Ended,
        ];
        assert!(is_named(Kind::Acked, &strands) && is_named(Kind::OwnOpsEnded, &strands));
        assert_eq!(ROWS[Kind::Acked as usize].states[GONE], "gone");
        let lanes: [&dyn fmt::Debug; 4] = [
            &LaneState::Up,
            &LaneState::Breaking,
            &LaneState::Broken,
            &LaneState::Destroyed,
        ];
        assert!(is_named(Kind::LaneBroken, &lanes));
        let contexts: [&dyn fmt::Debug; 3] = [
            &ContextState::Open,
            &ContextState::Cordoned,
            &ContextState::Quarantined,
        ];
        assert!(is_named(Kind::Cordon, &contexts));
        let timer = ROWS[Kind::Fence as usize].states;
        assert_eq!((timer[COLLECTING], timer[STALE]), ("collecting", "stale"));
        let flush = ROWS[Kind::Flush as usize].states;
        let met = [flush[NOTHING], flush[RETIRED], flush[QUARANTINE]];
        assert_eq!(met, ["nothing", "retired", "quarantine"]);
    }

    #[test]
    fn each_pair_has_a_name_of_its_own() {
        let names: Vec<_> = Pair::all().map(|pair| pair.to_string()).collect();
        let mut distinct = names.clone();
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!((names.len(), distinct.len()), (Pair::COUNT, Pair::COUNT));
        assert_eq!((&*names[0], &*names[6]), ("bind@binding", "bind@dead"));
        assert_eq!(names[Pair::COUNT - 1], "final_expired@stale");
    }

    #[test]
    fn a_set_holds_the_first_and_the_last_pair() {
        let ends = [Pair(0), Pair(Pair::COUNT as u8 - 1)];
        let set: PairSet = ends.into_iter().collect();
        assert_eq!(set.iter().collect::<Vec<_>>(), ends);
        assert_eq!((set.len(), set.contains(Pair(1))), (2, false));
        let first: PairSet = [ends[0]].into_iter().collect();
        assert_eq!(first.union(set), set);
        assert_eq!(set.minus(first).iter().collect::<Vec<_>>(), [ends[1]]);
        assert!(set.minus(set).is_empty() && !set.is_empty());
    }
}
