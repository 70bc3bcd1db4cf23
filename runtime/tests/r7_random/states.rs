//! R4: each key is in exactly one state, and only a dead key's window is on a free list; seen by the trace, the census, the counts and the books
//! of the device, after each step.

use std::collections::{BTreeMap, BTreeSet};

use keyfence::ids::LcoreId;
use keyfence::pmd::wrap::check::Ledger;
use keyfence::reclaim::{Counts, KeyState};
use keyfence::{GrantRecord, LaneUsage};

use super::books::{Books, Dice};
use super::pair::judged::Judged;
use super::pair::{REGIONS, Side};

/// What is known of the keys of one engine.
#[derive(Default)]
pub struct Keys {
    /// Where the trace has each slot of an lcore that was ever bound.
    traced: BTreeMap<(LcoreId, u32), KeyState>,
    /// Records read of each lcore's trace.
    read: BTreeMap<LcoreId, u64>,
    /// States that keys were seen in.
    pub seen: BTreeSet<KeyState>,
}

impl Keys {
    /// Looks at every key of an engine. `dice` picks the ones that the device is asked about one by one.
    pub fn judge(&mut self, side: &Side<Judged>, ledger: &Ledger, books: &Books, dice: &mut Dice) {
        let (mut open, mut all) = (0, Vec::new());
        for lcore in &side.lcores {
            self.follow(lcore.id(), lcore.trace());
            let census: Vec<_> = lcore.census().collect();
            self.compare(lcore.id(), &census);
            let usage = lcore.usage();
            assert_eq!(usage.grants as usize, census.len());
            assert_eq!(without_dead(usage.keys), counts(&census));
            judge_windows(lcore.lane_usage(), &census);
            open += census.iter().filter(|key| !key.state.is_proven()).count();
            all.extend(census);
        }
        // Of all lcores together: a buffer that a proven key opened may be another lcore's by now.
        if let Some(key) = pick(&all, dice) {
            judge_one(&key, &all, ledger, books);
        }
        // Binds that were posted and not confirmed among them.
        let honoured = ledger.all_live_keys();
        assert!(honoured <= open, "{honoured} of {open}: {ledger:?}");
    }

    /// Each change leads on from the last one of its key, to a state that may follow.
    fn follow(&mut self, lcore: LcoreId, trace: &keyfence::trace::Trace) {
        let read = self.read.entry(lcore).or_default();
        let kept = trace.iter().count();
        let new = (trace.written() - *read) as usize;
        assert!(new <= kept, "the trace is read before it is overwritten");
        for record in trace.iter().skip(kept - new) {
            let change = record.change;
            let known = self.traced.entry((lcore, change.key.0));
            let state = known.or_insert(KeyState::Dead);
            assert_eq!(pulled(*state, change.from), change.from, "{record}");
            assert!(change.from.may_become(change.to), "{record}");
            *state = change.to;
            self.seen.insert(change.to);
        }
        *read = trace.written();
    }

    /// The census has each key that is not dead once, where the trace has it.
    fn compare(&mut self, lcore: LcoreId, census: &[GrantRecord]) {
        for key in census {
            let Some(ix) = key.key else {
                continue;
            };
            if let Some(state) = self.traced.get_mut(&(lcore, ix.0)) {
                *state = pulled(*state, key.state);
                self.seen.insert(*state);
            }
        }
        let listed: BTreeMap<_, _> = census
            .iter()
            .filter_map(|key| Some(((lcore, key.key?.0), key.state)))
            .collect();
        assert_eq!(listed.len(), census.len(), "a key is one grant's");
        let of_lcore = |(at, _): &(&(LcoreId, u32), &KeyState)| at.0 == lcore;
        let traced: BTreeMap<_, _> = self
            .traced
            .iter()
            .filter(of_lcore)
            .filter(|(_, state)| **state != KeyState::Dead)
            .map(|(at, state)| (*at, *state))
            .collect();
        assert_eq!(listed, traced);
    }
}

/// Each lane by itself: what one that broke has deallocated must not make up for what another has freed too early.
fn judge_windows(lanes: impl Iterator<Item = LaneUsage>, census: &[GrantRecord]) {
    let mut seen = 0;
    for usage in lanes {
        let keys = census.iter().filter(|key| key.lane == usage.lane).count();
        seen += keys;
        // A window that was deallocated is on no free list, whether its key is dead or not.
        let bound = (usage.windows - usage.deallocated) as usize;
        let range = bound..=usage.windows as usize;
        // A region is the key's own, and on no list at all.
        assert!(REGIONS || range.contains(&keys), "{usage:?}: {keys} keys");
    }
    assert_eq!(
        seen,
        census.len(),
        "a lane keeps its place while a key of it is not dead"
    );
}

/// The trace has what the machine answers. A posted invalidation is no answer: the engine pulls the key and posts it.
fn pulled(traced: KeyState, now: KeyState) -> KeyState {
    match (traced, now) {
        (KeyState::Fencing, KeyState::Invalidating) => now,
        _ => traced,
    }
}

fn pick(census: &[GrantRecord], dice: &mut Dice) -> Option<GrantRecord> {
    let at = dice.below(census.len().max(1) as u64) as usize;
    census.get(at).copied()
}

/// The device honours a live key; and for the bytes of a proven one no more keys than other grants of these bytes have.
fn judge_one(key: &GrantRecord, census: &[GrantRecord], ledger: &Ledger, books: &Books) {
    let lcore = key.owner.lcore;
    let Some(range) = books.made(lcore, key.grant) else {
        return;
    };
    let overlaps = |other: &&GrantRecord| {
        let other = books.made(other.owner.lcore, other.grant);
        other.is_some_and(|other| other.start < range.end && range.start < other.end)
    };
    let open = census.iter().filter(|other| !other.state.is_proven());
    let open = open.filter(overlaps).count();
    let honoured = ledger.live_keys(range.clone());
    assert!(honoured <= open, "{honoured} of {open} for {key:?}");
    if key.state == KeyState::Live {
        assert!(honoured > 0, "{key:?}");
    }
}

fn counts(census: &[GrantRecord]) -> Counts {
    let of = |state| census.iter().filter(|key| key.state == state).count() as u32;
    Counts {
        binding: of(KeyState::Binding),
        live: of(KeyState::Live),
        fencing: of(KeyState::Fencing),
        invalidating: of(KeyState::Invalidating),
        unproven: of(KeyState::Unproven),
        parked: of(KeyState::Parked),
        dead: 0,
    }
}

fn without_dead(counts: Counts) -> Counts {
    Counts { dead: 0, ..counts }
}
