//! How often a context has broken a lane.

/// Offences of one context.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Offences {
    /// How many, since that time.
    count: u32,
    since_ns: u64,
}

impl Offences {
    /// Whether there were any since it was opened.
    pub fn are_any(&self) -> bool {
        self.count > 0
    }

    /// One more, at `now_ns`; how many there are of the last `window_ns`.
    pub fn one_more(&mut self, now_ns: u64, window_ns: u64) -> u32 {
        if now_ns.saturating_sub(self.since_ns) >= window_ns {
            *self = Self {
                count: 0,
                since_ns: now_ns,
            };
        }
        self.count += 1;
        self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offences_are_those_of_the_last_window() {
        let mut offences = Offences::default();
        let mut at = |now_ns| offences.one_more(now_ns, 100);
        assert_eq!([at(500), at(510), at(599)], [1, 2, 3]);
        assert_eq!([at(600), at(601), at(2_000)], [1, 2, 1]);
        assert_eq!(at(1_000), 2, "a clock that goes back");
    }
}
