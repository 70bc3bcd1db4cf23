//! Fresh pairs of `soft` devices for the suite.

use keyfence_mempool::arena::{Arena, ArenaConfig, PageSize, Policy};
use keyfence_mempool::sync::Arc;
use keyfence_pmd::Device;
use keyfence_pmd::conformance::{self, ARENA_BYTES, Setup, Verdict};
use keyfence_pmd::soft::{Fabric, SoftConfig, SoftDevice};

fn arena() -> Arc<Arena> {
    let config = ArenaConfig {
        page_size: PageSize::Base4KiB,
        transparent: false,
        hugepages: Policy::Off,
        lock: Policy::Off,
        ..ArenaConfig::new(ARENA_BYTES)
    };
    Arc::new(Arena::map(&config).expect("4 MiB of plain pages"))
}

/// Two fresh devices of the default size on a fabric of their own.
pub fn soft() -> Setup<SoftDevice> {
    soft_with(&SoftConfig::default())
}

/// Two fresh devices of this size.
pub fn soft_with(config: &SoftConfig) -> Setup<SoftDevice> {
    let fabric = Fabric::new();
    let device = || {
        fabric
            .device(config.clone())
            .expect("a legal configuration")
    };
    Setup {
        a: device(),
        b: device(),
        arena_a: arena(),
        arena_b: arena(),
        address: "local:conformance".into(),
        poll_limit: 4000,
        settle_polls: 100,
        pause: || {},
    }
}

/// Runs the whole suite and gives what did not pass.
pub fn failures<D: Device>(mut setup: impl FnMut() -> Setup<D>) -> Vec<String> {
    let reports = conformance::run(&mut || Ok(setup())).expect("a setup that never fails");
    reports
        .iter()
        .filter(|report| report.verdict != Verdict::Pass)
        .map(ToString::to_string)
        .collect()
}
