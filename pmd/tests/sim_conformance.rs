//! The conformance suite on `sim` without faults: every kind of adapter, several seeds, several shapes of time.

mod simulated;

use keyfence_pmd::conformance::{Verdict, all};
use keyfence_pmd::sim::{Nanos, SimConfig};
use keyfence_pmd::wrap::check::{Check, Ledger, Party};
use simulated::{arenas, setup, slow_and_small, sorted, suite, world};

const SEEDS: [u64; 3] = [1, 77, 0xfeed_f00d];

/// The suite passes with these needs skipped and no others.
fn passes(name: &str, config: &SimConfig, skipped: &[&str]) {
    for seed in SEEDS {
        let (reports, _) = suite(seed, config);
        let (failed, needs) = sorted(&reports);
        assert_eq!(failed, Vec::<String>::new(), "{name}, seed {seed}");
        assert_eq!(needs, skipped, "{name}, seed {seed}");
    }
}

fn kind(wanted: &str) -> SimConfig {
    let kinds = SimConfig::kinds();
    let found = kinds.into_iter().find(|(name, _)| *name == wanted);
    found.expect("a kind of this name").1
}

#[test]
fn a_complete_adapter_passes() {
    passes("complete", &kind("complete"), &[]);
}

#[test]
fn an_adapter_like_soft_roce_passes() {
    let skipped = ["chain_stops", "invalidate_checks", "window_bounds"];
    passes("soft-roce", &kind("soft-roce"), &skipped);
}

#[test]
fn an_adapter_that_checks_passes() {
    let skipped = ["chain_stops", "dealloc_fences", "window_atomics"];
    passes("checking", &kind("checking"), &skipped);
}

#[test]
fn an_adapter_without_windows_passes() {
    let config = kind("windowless");
    let (reports, _) = suite(SEEDS[0], &config);
    let (_, skipped) = sorted(&reports);
    let skipped: Vec<&str> = skipped.iter().map(String::as_str).collect();
    assert!(skipped.contains(&"windows") && !skipped.contains(&"atomics"));
    passes("windowless", &config, &skipped);
}

#[test]
fn an_adapter_with_little_else_passes() {
    let config = SimConfig {
        window_scope: false,
        atomics: false,
        max_inline_bytes: 0,
        max_sge: 1,
        ..SimConfig::default()
    };
    let skipped = [
        "atomics",
        "max_inline_bytes",
        "max_sge of 2",
        "window_atomics",
        "window_scope",
    ];
    passes("little", &config, &skipped);
}

#[test]
fn small_packets_that_land_late_pass() {
    passes("slow and small", &slow_and_small(), &[]);
}

#[test]
fn a_network_without_any_delay_passes() {
    let config = SimConfig {
        issue_ns: Nanos::new(1, 1),
        travel_ns: Nanos::default(),
        landing_ns: Nanos::default(),
        completion_ns: Nanos::default(),
        connect_ns: Nanos::default(),
        retry_ns: Nanos::new(1000, 1000),
        flush_ns: Nanos::default(),
        packet_bytes: 4096,
        ..SimConfig::default()
    };
    passes("no delay", &config, &[]);
}

#[test]
fn a_small_adapter_passes() {
    let config = SimConfig {
        max_lcores: 2,
        max_qps: 256,
        max_windows: 64,
        max_regions: 64,
        max_send_depth: 64,
        max_receive_depth: 64,
        max_inline_bytes: 64,
        max_operation_bytes: 1 << 24,
        ..slow_and_small()
    };
    passes("small", &config, &[]);
}

#[test]
fn the_same_seed_is_the_same_run_and_another_is_not() {
    for config in [SimConfig::default(), slow_and_small()] {
        let first = suite(5, &config);
        assert_eq!(first, suite(5, &config));
        let other = suite(6, &config).1;
        let pairs = first.1.iter().zip(&other);
        assert!(pairs.into_iter().all(|(one, other)| one != other));
    }
}

/// The suite on a checked device: it passes, and the oracle has nothing to say against the device.
#[test]
fn a_checked_device_passes_and_the_oracle_is_silent() {
    let arenas = arenas();
    let mut said = Vec::new();
    for (seed, test) in (100..).zip(all()) {
        let world = world(seed, &slow_and_small());
        let mut ledgers = Vec::new();
        let setup = setup(&arenas, &world).map(|device| {
            let check = Check::new(device);
            ledgers.push(check.ledger());
            check
        });
        let report = test.run(setup);
        if report.verdict != Verdict::Pass {
            said.push(report.to_string());
        }
        let device = |ledger: &Ledger| ledger.violations(Party::Device);
        let against = ledgers.iter().filter(|ledger| device(ledger) > 0);
        said.extend(against.map(|ledger| format!("{}: {:?}", test.name, ledger.reports())));
    }
    assert_eq!(said, Vec::<String>::new());
}
