//! Fresh pairs of `soft` devices.

use keyfence_mempool::arena::{Arena, ArenaConfig, PageSize, Policy};
use keyfence_mempool::sync::Arc;
use keyfence_pmd::conformance::{ARENA_BYTES, Setup};
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
    soft_on(&arenas(), &SoftConfig::default())
}

/// Memory of the two sides. Mapping it takes longer than most tests do, so a run of the whole suite uses it again.
pub fn arenas() -> [Arc<Arena>; 2] {
    [arena(), arena()]
}

/// Two fresh devices of this size over this memory.
pub fn soft_on(arenas: &[Arc<Arena>; 2], config: &SoftConfig) -> Setup<SoftDevice> {
    let fabric = Fabric::new();
    let device = || {
        fabric
            .device(config.clone())
            .expect("a legal configuration")
    };
    Setup {
        a: device(),
        b: device(),
        arena_a: Arc::clone(&arenas[0]),
        arena_b: Arc::clone(&arenas[1]),
        address: "local:conformance".into(),
        poll_limit: 4000,
        settle_polls: 100,
        pause: || {},
    }
}
