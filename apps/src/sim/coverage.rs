//! What seeds have reached, all together, so that a run that shows nothing is no pass.

use std::collections::BTreeMap;

use keyfence::config::KeyMode;
use keyfence::pmd::sim::SimFault;
use keyfence::reclaim::{PairSet, Scope};

use super::harm::Harm;
use super::held_back::is_held_back;
use super::seed::Outcome;

/// From so many seeds on all of it is asked for.
pub const ASKED_FROM_SEEDS: u64 = 500;

/// Work requests that the median seed has at least.
const DEVICE_OPS: u64 = 2_000;

/// Reclaims that it has at least.
const RECLAIMS: u64 = 10;

/// Of a hundred seeds, those in which each kind of fault strikes at least.
const PERCENT_OF_SEEDS: u64 = 1;

/// The sums over all seeds.
#[derive(Clone, Debug, Default)]
pub struct Reached {
    pub seeds: u64,
    pub ops: u64,
    pub reclaims: u64,
    pub sessions_lost: u64,
    /// In how many seeds each kind struck.
    pub faults: BTreeMap<&'static str, u64>,
    pub hash: u64,
    device_ops: Vec<u64>,
    reclaims_of: Vec<u64>,
    windows: PairSet,
    regions: PairSet,
}

impl Reached {
    pub fn add(&mut self, outcome: &Outcome) {
        self.seeds += 1;
        self.ops += outcome.tally.ops;
        self.reclaims += outcome.tally.reclaims;
        self.sessions_lost += outcome.tally.sessions_lost;
        self.device_ops.push(outcome.posted);
        self.reclaims_of.push(outcome.tally.reclaims);
        // The same in whatever order seeds end.
        self.hash ^= crate::random::mix(outcome.seed ^ crate::random::mix(outcome.hash));
        let strikes = outcome
            .fired
            .iter()
            .map(|(kind, count)| (kind.name(), count));
        let harms = Harm::ALL.map(|harm| (harm.name(), outcome.harms.count(harm)));
        for (name, count) in strikes.chain(harms) {
            *self.faults.entry(name).or_default() += u64::from(count > 0);
        }
        let seen = match outcome.key_mode {
            KeyMode::Window => &mut self.windows,
            KeyMode::Region => &mut self.regions,
        };
        *seen = seen.union(outcome.pairs);
    }

    pub fn pairs(&self) -> usize {
        self.windows.union(self.regions).len()
    }

    pub fn device_ops_p50(&self) -> u64 {
        median(&self.device_ops)
    }

    pub fn reclaims_p50(&self) -> u64 {
        median(&self.reclaims_of)
    }

    /// What should have been reached, and was not.
    pub fn unreached(&self) -> Vec<String> {
        if self.seeds < ASKED_FROM_SEEDS {
            return Vec::new();
        }
        let mut lacks = Vec::new();
        let medians = [
            ("device operations", self.device_ops_p50(), DEVICE_OPS),
            ("reclaims", self.reclaims_p50(), RECLAIMS),
        ];
        for (what, has, least) in medians {
            if has < least {
                lacks.push(format!(
                    "the median seed has {has} {what}, and should have {least}"
                ));
            }
        }
        let kinds = SimFault::ALL.iter().map(|kind| kind.name());
        for name in kinds.chain(Harm::ALL.map(Harm::name)) {
            let seeds = self.faults.get(name).copied().unwrap_or(0);
            let exempt = is_held_back(name);
            if !exempt && seeds * 100 < self.seeds * PERCENT_OF_SEEDS {
                lacks.push(format!("{name} struck in {seeds} of {} seeds", self.seeds));
            }
        }
        for (scope, seen) in [(Scope::Queue, self.windows), (Scope::Domain, self.regions)] {
            for pair in PairSet::expected(scope).minus(seen).iter() {
                lacks.push(format!("{pair} was not met by keys of scope {scope:?}"));
            }
        }
        lacks
    }

    /// What engines of this version do not do, and did.
    pub fn untold(&self) -> Vec<String> {
        let mut found = Vec::new();
        for (scope, seen) in [(Scope::Queue, self.windows), (Scope::Domain, self.regions)] {
            for pair in seen.minus(PairSet::told(scope)).iter() {
                found.push(format!("{pair} was met by keys of scope {scope:?}, and the table says that no engine does"));
            }
        }
        found
    }
}

fn median(values: &[u64]) -> u64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 2).copied().unwrap_or(0)
}
