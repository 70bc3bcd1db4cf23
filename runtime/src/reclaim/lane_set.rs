//! A set of lanes of one lcore.

use core::fmt;

use crate::ids::LaneId;

/// A set of lanes, by number, in one word.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct LaneSet(u128);

impl LaneSet {
    /// The most lanes of one machine: a set is one word.
    pub const MAX_LANES: usize = 128;

    /// No lane.
    pub const EMPTY: Self = Self(0);

    /// The set with `lane` in it.
    ///
    /// # Panics
    /// If `lane` is not below [`LaneSet::MAX_LANES`].
    #[must_use]
    pub const fn with(self, lane: LaneId) -> Self {
        assert!((lane.0 as usize) < Self::MAX_LANES);
        Self(self.0 | 1 << lane.0)
    }

    /// Whether `lane` is in the set.
    #[must_use]
    pub const fn contains(self, lane: LaneId) -> bool {
        (lane.0 as usize) < Self::MAX_LANES && self.0 >> lane.0 & 1 == 1
    }

    /// Whether no lane is in the set.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// How many lanes are in the set.
    #[must_use]
    pub const fn len(self) -> u32 {
        self.0.count_ones()
    }

    /// The lanes, by rising number.
    pub fn iter(self) -> impl Iterator<Item = LaneId> {
        (0..Self::MAX_LANES as u16)
            .map(LaneId)
            .filter(move |&lane| self.contains(lane))
    }
}

impl FromIterator<LaneId> for LaneSet {
    fn from_iter<I: IntoIterator<Item = LaneId>>(lanes: I) -> Self {
        lanes.into_iter().fold(Self::EMPTY, Self::with)
    }
}

impl fmt::Debug for LaneSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set()
            .entries(self.iter().map(|lane| lane.0))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_the_first_and_the_last_lane() {
        let set: LaneSet = [LaneId(127), LaneId(0)].into_iter().collect();
        assert_eq!(set.iter().collect::<Vec<_>>(), [LaneId(0), LaneId(127)]);
        assert_eq!(set.len(), 2);
        assert!(!set.contains(LaneId(128)));
        assert!(LaneSet::EMPTY.is_empty());
    }
}
