//! Grace periods: what a path wants, and what the control side has run.
//!
//! A path that sees an invalidation done asks for a grace period, which costs it one addition. The control side runs one without a lock and
//! says how much it has covered: what was asked for before it began. So one serves all that asked in time, of all lcores.

use std::io;

use crossbeam_utils::CachePadded;
use keyfence_mempool::sync::{AtomicBool, AtomicU64, Ordering};

/// The grace periods of one device.
#[derive(Debug)]
pub(crate) struct Grace {
    /// Asked for, ever.
    wanted: CachePadded<AtomicU64>,
    /// Of these, how many are over.
    over: CachePadded<AtomicU64>,
    /// There will be no more.
    ended: AtomicBool,
}

impl Grace {
    pub(crate) fn new() -> Self {
        Self {
            wanted: CachePadded::new(AtomicU64::new(0)),
            over: CachePadded::new(AtomicU64::new(0)),
            ended: AtomicBool::new(false),
        }
    }

    /// Asks for a grace period that begins after what this lcore has seen. Its number; they start at 1.
    #[inline]
    pub(crate) fn want(&self) -> u64 {
        // Release: who sees the number runs its grace period behind what came before this.
        self.wanted.fetch_add(1, Ordering::Release) + 1
    }

    /// The number up to which all are over; `None` if there will be no more.
    #[inline]
    pub(crate) fn over(&self) -> Option<u64> {
        // Acquire: what was under way before the grace period has happened before what follows.
        let over = self.over.load(Ordering::Acquire);
        (!self.ended.load(Ordering::Acquire)).then_some(over)
    }

    /// Runs a grace period, which is what `wait` waits for, if one is wanted. Several threads may; each then runs its own.
    ///
    /// # Errors
    /// Those of `wait`: nothing is over that was not before.
    pub(crate) fn serve(&self, wait: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let wanted = self.wanted.load(Ordering::Acquire);
        if self.over.load(Ordering::Relaxed) >= wanted {
            return Ok(());
        }
        wait()?;
        self.over.fetch_max(wanted, Ordering::AcqRel);
        Ok(())
    }

    /// Nobody will run any more.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_grace_period_covers_what_was_wanted_before_it_began_and_no_more() {
        let grace = Grace::new();
        let never = || panic!("none is wanted");
        grace.serve(never).unwrap();
        let (first, second) = (grace.want(), grace.want());
        let mut late = 0;
        let during = || {
            late = grace.want();
            Ok(())
        };
        grace.serve(during).unwrap();
        let over = grace.over().unwrap();
        assert!(first <= over && second <= over && late > over);
        grace.serve(|| Ok(())).unwrap();
        assert!(grace.over() >= Some(late));
        grace.serve(never).unwrap();
    }

    #[test]
    fn a_grace_period_that_fails_proves_nothing() {
        let grace = Grace::new();
        let wanted = grace.want();
        grace
            .serve(|| Err(io::ErrorKind::Other.into()))
            .unwrap_err();
        assert!(grace.over() < Some(wanted));
        grace.serve(|| Ok(())).unwrap();
        assert!(grace.over() >= Some(wanted));
        grace.end();
        assert_eq!(grace.over(), None);
    }
}
