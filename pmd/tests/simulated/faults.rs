//! Faults set and counted.

use keyfence_pmd::sim::{Nanos, SimConfig, SimFault, SimFaults, Sometimes};

use super::pair::{Link, Pair};

pub const ALWAYS: u32 = 1_000_000;
pub fn always(min: u64, max: u64) -> Sometimes {
    Sometimes {
        per_million: ALWAYS,
        ns: Nanos::new(min, max),
    }
}

pub fn linked(seed: u64) -> (Pair, Link) {
    linked_on(seed, &SimConfig::default())
}

pub fn linked_on(seed: u64, config: &SimConfig) -> (Pair, Link) {
    let mut pair = Pair::new(seed, config);
    let link = pair.link();
    (pair, link)
}

pub fn set(pair: &Pair, faults: SimFaults) {
    pair.world.set_faults(&faults).unwrap();
}

pub fn fired(pair: &Pair, fault: SimFault) -> u64 {
    pair.world.fired().count(fault)
}

/// The faults that struck.
pub fn struck(pair: &Pair) -> Vec<SimFault> {
    let fired = pair.world.fired();
    let struck = fired.iter().filter(|(_, count)| *count > 0);
    struck.map(|(fault, _)| fault).collect()
}
