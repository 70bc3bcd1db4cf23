//! What the workers of one engine have done and were told, and what must hold of it.

use core::ops::Range;
use std::collections::{BTreeMap, BTreeSet};

use keyfence::OpDone;
use keyfence::ids::{ContextId, GrantId, LcoreId};
use keyfence::pmd::wrap::check::Ledger;
use keyfence_mempool::sync::Arc;

/// SplitMix64.
pub struct Dice(pub u64);

impl Dice {
    pub fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, most: u64) -> u64 {
        self.roll() % most
    }
}

pub struct Books {
    ledger: Arc<Ledger>,
    living: BTreeMap<String, ContextId>,
    /// Who a buffer was given to last, by its first address: context and bytes.
    owners: BTreeMap<u64, (ContextId, u64)>,
    /// Operations under way.
    ops: BTreeSet<(ContextId, u64)>,
    grants: BTreeMap<(ContextId, GrantId), Range<u64>>,
    /// Every grant that was ever made.
    made: BTreeMap<(LcoreId, GrantId), Range<u64>>,
    /// Whether a reclaim may end in quarantine: the run holds deallocations back.
    pub may_quarantine: bool,
    /// What was found wrong. A panic in a service would be caught, so it is kept for the end.
    failures: Vec<String>,
    pub ended_ops: u64,
    pub zapped: u64,
    pub reclaimed: u64,
}

impl Books {
    pub fn new(ledger: Arc<Ledger>) -> Self {
        Self {
            ledger,
            living: BTreeMap::new(),
            owners: BTreeMap::new(),
            ops: BTreeSet::new(),
            grants: BTreeMap::new(),
            made: BTreeMap::new(),
            may_quarantine: false,
            failures: Vec::new(),
            ended_ops: 0,
            zapped: 0,
            reclaimed: 0,
        }
    }

    pub fn fail(&mut self, what: String) {
        self.failures.push(what);
    }

    pub fn living(&self, name: &str) -> Option<ContextId> {
        self.living.get(name).copied()
    }

    pub fn opened(&mut self, context: ContextId, name: String) {
        if self.living.insert(name, context).is_some() {
            self.fail(format!("{context} was opened beside one of its name"));
        }
    }

    /// R1, R2: with the notice, nothing can touch the memory. What was given to another meanwhile is that one's.
    pub fn reclaimed(&mut self, context: ContextId) {
        self.reclaimed += 1;
        self.living.retain(|_, known| *known != context);
        let mine: Vec<_> = self
            .owners
            .iter()
            .filter(|(_, (owner, _))| *owner == context)
            .map(|(address, (_, bytes))| *address..*address + *bytes)
            .collect();
        for range in mine {
            self.owners.remove(&range.start);
            if let Some(key) = self.ledger.first_live_key(range.clone()) {
                self.fail(format!("{context} was reclaimed, but {key}"));
            }
            if let Some(open) = self.ledger.first_open_work(range) {
                self.fail(format!("{context} was reclaimed, but {open}"));
            }
        }
        self.ops.retain(|(owner, _)| *owner != context);
        self.grants.retain(|(owner, _), _| *owner != context);
    }

    /// A buffer comes from its pool: nobody else may reach it any more.
    pub fn allocated(&mut self, context: ContextId, range: Range<u64>) {
        if let Some(key) = self.ledger.first_live_key(range.clone()) {
            self.fail(format!("{context} gets a buffer that {key}"));
        }
        if let Some(open) = self.ledger.first_open_work(range.clone()) {
            self.fail(format!("{context} gets a buffer that {open}"));
        }
        self.owners
            .insert(range.start, (context, range.end - range.start));
    }

    pub fn granted(&mut self, context: ContextId, id: GrantId, range: Range<u64>) {
        self.made.insert((context.lcore, id), range.clone());
        if self.grants.insert((context, id), range).is_some() {
            self.fail(format!("{id:?} was given out twice"));
        }
    }

    /// R1, R3: the key is dead for the device too.
    pub fn zapped(&mut self, context: ContextId, id: GrantId) {
        self.zapped += 1;
        let Some(range) = self.grants.remove(&(context, id)) else {
            self.fail(format!("{id:?} of {context} ended twice, or never was"));
            return;
        };
        if let Some(key) = self.ledger.first_live_key(range) {
            self.fail(format!("{id:?} is zapped, but {key}"));
        }
    }

    /// The addresses of a grant, ended or not.
    pub fn made(&self, lcore: LcoreId, id: GrantId) -> Option<Range<u64>> {
        self.made.get(&(lcore, id)).cloned()
    }

    /// A grant ends in quarantine.
    pub fn grant_quarantined(&mut self, context: ContextId, id: GrantId) {
        if !self.may_quarantine || self.grants.remove(&(context, id)).is_none() {
            self.fail(format!("{id:?} of {context} is in quarantine"));
        }
    }

    /// A context ends in quarantine: what of it is unproven stays, and the rest is judged as ever.
    pub fn quarantined(&mut self, context: ContextId) {
        if !self.may_quarantine {
            self.fail(format!("{context} is in quarantine"));
        }
        self.owners.retain(|_, (owner, _)| *owner != context);
        self.reclaimed(context);
    }

    pub fn submitted(&mut self, context: ContextId, token: u64) {
        self.ops.insert((context, token));
    }

    pub fn completed(&mut self, context: ContextId, done: OpDone) {
        self.ended_ops += 1;
        if !self.ops.remove(&(context, done.token)) {
            self.fail(format!("{context} hears a second time of {done:?}"));
        }
    }

    pub fn close(&self, seed: u64) {
        assert!(
            self.failures.is_empty(),
            "seed {seed}: {:#?}",
            self.failures
        );
        assert!(self.ops.is_empty(), "seed {seed}: {:?}", self.ops);
        assert!(self.grants.is_empty(), "seed {seed}: {:?}", self.grants);
        assert!(self.living.is_empty(), "seed {seed}: {:?}", self.living);
    }
}
