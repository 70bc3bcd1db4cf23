//! Worlds for tests: the suite's setup on one, whose pauses advance its time.
#![allow(dead_code, reason = "each test file uses its part")]

pub mod faults;
pub mod pair;
pub mod storm;

use std::cell::RefCell;

use keyfence_mempool::arena::{Arena, ArenaConfig, PageSize, Policy};
use keyfence_mempool::sync::Arc;
use keyfence_pmd::conformance::{ARENA_BYTES, Report, Setup, Verdict, all};
use keyfence_pmd::sim::{Nanos, SimConfig, SimDevice, World};

/// How much time passes between two polls of the suite.
const TICK_NS: u64 = 5_000;

thread_local! {
    /// The suite's pause is a plain function, so the world that it advances is kept here.
    static PRESENT: RefCell<Option<World>> = const { RefCell::new(None) };
}

fn tick() {
    PRESENT.with_borrow(|world| {
        if let Some(world) = world {
            world.advance_to(world.now_ns() + TICK_NS);
        }
    });
}

/// Memory of the two sides.
pub fn arenas() -> [Arc<Arena>; 2] {
    [(); 2].map(|()| {
        let config = ArenaConfig {
            page_size: PageSize::Base4KiB,
            transparent: false,
            hugepages: Policy::Off,
            lock: Policy::Off,
            ..ArenaConfig::new(ARENA_BYTES)
        };
        Arc::new(Arena::map(&config).expect("4 MiB of plain pages"))
    })
}

/// Two devices of a fresh world. The suite's pauses advance the world that was made last.
pub fn setup(arenas: &[Arc<Arena>; 2], world: &World) -> Setup<SimDevice> {
    PRESENT.set(Some(world.clone()));
    Setup {
        a: world.device("a"),
        b: world.device("b"),
        arena_a: Arc::clone(&arenas[0]),
        arena_b: Arc::clone(&arenas[1]),
        address: "local:conformance".into(),
        poll_limit: 4000,
        // Two milliseconds: longer than any retry.
        settle_polls: 400,
        pause: tick,
    }
}

pub fn world(seed: u64, config: &SimConfig) -> World {
    World::new(seed, config.clone()).expect("a legal configuration")
}

/// Runs one test of the suite on a fresh world.
pub fn run(name: &str, arenas: &[Arc<Arena>; 2], world: &World) -> Report {
    let tests = all::<SimDevice>();
    let test = tests.iter().find(|test| test.name == name);
    let test = test.unwrap_or_else(|| panic!("the suite has no test {name}"));
    test.run(setup(arenas, world))
}

/// Runs the whole suite, each test on a world of its own. Gives the reports and the worlds' hashes.
pub fn suite(seed: u64, config: &SimConfig) -> (Vec<Report>, Vec<u64>) {
    let arenas = arenas();
    let (mut reports, mut hashes) = (Vec::new(), Vec::new());
    for (number, test) in (0..).zip(all::<SimDevice>()) {
        let world = world(seed + number * 1_000_003, config);
        reports.push(test.run(setup(&arenas, &world)));
        hashes.push(world.hash());
    }
    (reports, hashes)
}

/// What failed, and the capabilities for which tests were skipped.
pub fn sorted(reports: &[Report]) -> (Vec<String>, Vec<String>) {
    let (mut failed, mut needs) = (Vec::new(), Vec::new());
    for report in reports {
        match &report.verdict {
            Verdict::Pass => {}
            Verdict::Fail(_) => failed.push(report.to_string()),
            Verdict::Skip(need) => needs.push(need.to_string()),
        }
    }
    needs.sort_unstable();
    needs.dedup();
    (failed, needs)
}

/// Times and packets at which many things are under way at a time, and land late.
pub fn slow_and_small() -> SimConfig {
    SimConfig {
        packet_bytes: 256,
        issue_ns: Nanos::new(10, 300),
        travel_ns: Nanos::new(100, 20_000),
        landing_ns: Nanos::new(0, 60_000),
        completion_ns: Nanos::new(0, 10_000),
        ..SimConfig::default()
    }
}
