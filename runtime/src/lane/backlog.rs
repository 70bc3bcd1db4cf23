//! Whether what a lane has posted moves, and how fast: what the choice between invalidation and deallocation rests on (REQUIREMENTS section 4, step 3).

/// The progress of one lane while anything is posted on it. Nothing is known of an idle one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Backlog {
    /// When something was last proven executed, or the first request posted.
    moved_ns: u64,
    /// Since when `moved_bytes` are counted.
    since_ns: u64,
    /// Bytes of operations proven executed since then.
    moved_bytes: u64,
}

impl Backlog {
    /// The first request is posted on an idle lane.
    pub fn begin(&mut self, now_ns: u64) {
        *self = Self {
            moved_ns: now_ns,
            since_ns: now_ns,
            moved_bytes: 0,
        };
    }

    /// Requests with `bytes` bytes were proven executed. What is older than two times `window_ns` counts half, so that the pace is that of late.
    pub fn moved(&mut self, now_ns: u64, bytes: u64, window_ns: u64) {
        self.moved_ns = now_ns;
        self.moved_bytes = self.moved_bytes.saturating_add(bytes);
        let counted_ns = now_ns.saturating_sub(self.since_ns);
        if counted_ns > window_ns.saturating_mul(2) {
            self.since_ns = now_ns - counted_ns / 2;
            self.moved_bytes /= 2;
        }
    }

    /// Whether nothing has moved for `window_ns`.
    pub fn stands(&self, now_ns: u64, window_ns: u64) -> bool {
        now_ns.saturating_sub(self.moved_ns) >= window_ns
    }

    /// Whether `bytes` that are left take longer than `left_ns` at the pace of late. A lane that was not watched for `window_ns` gets the benefit of
    /// the doubt.
    pub fn outlasts(&self, now_ns: u64, bytes: u64, left_ns: u64, window_ns: u64) -> bool {
        let counted_ns = now_ns.saturating_sub(self.since_ns);
        let wanted = u128::from(bytes) * u128::from(counted_ns);
        counted_ns >= window_ns && wanted > u128::from(self.moved_bytes) * u128::from(left_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW_NS: u64 = 100;

    #[test]
    fn a_lane_on_which_nothing_is_proven_stands() {
        let mut backlog = Backlog::default();
        backlog.begin(1_000);
        assert!(!backlog.stands(1_099, WINDOW_NS));
        assert!(backlog.stands(1_100, WINDOW_NS));
        backlog.moved(1_090, 0, WINDOW_NS);
        assert!(!backlog.stands(1_189, WINDOW_NS));
        assert!(backlog.stands(1_190, WINDOW_NS));
        backlog.begin(5_000);
        assert!(!backlog.stands(5_000, WINDOW_NS));
        assert!(!backlog.stands(0, WINDOW_NS), "a clock that goes back");
    }

    #[test]
    fn what_is_left_is_held_against_the_pace_of_late() {
        let mut backlog = Backlog::default();
        backlog.begin(0);
        backlog.moved(50, 50, WINDOW_NS);
        assert!(!backlog.outlasts(99, 1_000, 1, WINDOW_NS), "too early");
        backlog.moved(100, 50, WINDOW_NS);
        // A byte a nanosecond.
        assert!(!backlog.outlasts(100, 500, 500, WINDOW_NS));
        assert!(backlog.outlasts(100, 501, 500, WINDOW_NS));
    }

    #[test]
    fn an_old_pace_is_forgotten() {
        let mut backlog = Backlog::default();
        backlog.begin(0);
        for now_ns in 1..=1_000 {
            backlog.moved(now_ns, 1_000, WINDOW_NS);
        }
        assert!(!backlog.outlasts(1_000, 100_000, 1_000, WINDOW_NS));
        // A thousand times slower from now on.
        for now_ns in 1_001..=3_000 {
            backlog.moved(now_ns, 1, WINDOW_NS);
        }
        assert!(backlog.outlasts(3_000, 100_000, 1_000, WINDOW_NS));
        assert!(!backlog.outlasts(3_000, 400, 1_000, WINDOW_NS));
    }

    #[test]
    fn nothing_overflows() {
        let mut backlog = Backlog::default();
        backlog.moved(u64::MAX, u64::MAX, u64::MAX);
        backlog.moved(u64::MAX, u64::MAX, 0);
        assert!(!backlog.outlasts(u64::MAX, 1, u64::MAX, 0));
        assert!(backlog.outlasts(u64::MAX, u64::MAX, 0, 0));
    }
}
