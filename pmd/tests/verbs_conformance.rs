//! The conformance suite on an RDMA adapter, between two devices of one process, and what the driver promises beside it. It has a `main` of
//! its own: what it could not run must not look like a pass.
//!
//! Arguments: `DEVICE ADDRESS SKIPS [NAME...]`. SKIPS is the committed list of skips, each with its reason; NAMEs are the tests to run
//! (all, in each variant, if none). `memlock` among the NAMEs instead checks what is said where little memory can be locked.
//! Exit code: 0 if every test passed or is a skip that the list names, 77 without an adapter, 1 otherwise.

mod adapter;

use std::io::Write;
use std::process::ExitCode;
use std::time::Instant;

use keyfence_mempool::arena::{Arena, ArenaConfig, PageSize, Policy};
use keyfence_mempool::sync::Arc;
use keyfence_pmd::conformance::{self, ARENA_BYTES, Setup, Verdict};
use keyfence_pmd::verbs::{KnownCaps, VerbsConfig, VerbsDevice, VerbsError};

const NOT_RUN: u8 = 77;

/// Ways to use the adapter.
const VARIANTS: &[Variant] = &[
    Variant {
        name: "as measured, posting by ibv_wr_*",
        regions_alone: false,
        extended_posts: true,
        known: SOFT_ROCE,
        only: &[],
        skips: Some("window"),
    },
    Variant {
        name: "posting by lists, and nothing held back",
        regions_alone: false,
        extended_posts: false,
        known: KnownCaps {
            software: Some(false),
            ..SOFT_ROCE
        },
        only: &[],
        skips: Some("window"),
    },
    Variant {
        name: "nothing known of the adapter",
        regions_alone: false,
        extended_posts: true,
        known: UNKNOWN,
        only: &[],
        skips: None,
    },
    Variant {
        name: "keys by regions",
        regions_alone: true,
        extended_posts: true,
        known: SOFT_ROCE,
        only: &[],
        skips: Some("region"),
    },
    // The driver refuses these before the adapter sees them.
    Variant {
        name: "the driver's own books of keys",
        regions_alone: false,
        extended_posts: true,
        known: KnownCaps {
            invalidate_checks: Some(true),
            ..SOFT_ROCE
        },
        only: &[
            "invalidation_on_a_foreign_queue_pair_is_refused",
            "invalidation_of_an_old_key_is_refused",
        ],
        skips: None,
    },
];

/// What Soft-RoCE of kernel 6.1 does, measured.
const SOFT_ROCE: KnownCaps = KnownCaps {
    window_bounds: Some(false),
    window_scope: Some(true),
    window_atomics: Some(true),
    chain_stops: Some(true),
    dealloc_fences: Some(true),
    invalidate_checks: Some(false),
    // The driver finds that out.
    software: None,
};
const UNKNOWN: KnownCaps = KnownCaps {
    window_bounds: None,
    window_scope: None,
    window_atomics: None,
    chain_stops: None,
    dealloc_fences: None,
    invalidate_checks: None,
    software: None,
};

/// What is learned of the adapter is what is known of it.
const SELF_TEST: &str = "the_self_test_learns_what_was_measured";

struct Variant {
    name: &'static str,
    /// Keys are those of regions, as in key mode `region`: no window is used.
    regions_alone: bool,
    extended_posts: bool,
    known: KnownCaps,
    /// All if empty.
    only: &'static [&'static str],
    /// The section of the list that has its skips.
    skips: Option<&'static str>,
}

/// What the run is about.
struct Target {
    device: String,
    host: String,
    next_port: u16,
    arenas: [Arc<Arena>; 2],
    began: Instant,
}

/// How the tests went.
#[derive(Default)]
struct Tally {
    passed: Vec<&'static str>,
    failed: u32,
    skipped: Vec<String>,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [device, host, skips, names @ ..] = &arguments[..] else {
        // Beside other tests, without arguments.
        eprintln!("NOT RUN: name an adapter, an address and the list of skips (.ci/verbs does)");
        return NOT_RUN.into();
    };
    let mut target = Target {
        device: device.clone(),
        host: host.clone(),
        next_port: 20_000,
        arenas: [arena(), arena()],
        began: Instant::now(),
    };
    let opened = match VerbsDevice::open(target.config(&VARIANTS[0])) {
        Ok(opened) => opened,
        Err(error @ (VerbsError::NoAdapter { .. } | VerbsError::Library { .. })) => {
            eprintln!("NOT RUN: {error}");
            return NOT_RUN.into();
        }
        Err(error) => {
            eprintln!("cannot open {device}: {error}");
            return ExitCode::FAILURE;
        }
    };
    let good = match names.iter().any(|name| name == "memlock") {
        true => report(
            "memlock",
            &adapter::little_memory(&opened, &target.arenas[0]),
        ),
        false => run_all(&mut target, names, skips),
    };
    match good {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

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

impl Target {
    fn config(&self, variant: &Variant) -> VerbsConfig {
        VerbsConfig {
            device: Some(self.device.clone()),
            // For ever: how long a peer takes to post a receive is no matter of this suite.
            rnr_retry_count: 7,
            max_qps: 256,
            max_windows: if variant.regions_alone { 0 } else { 1024 },
            max_regions: 256,
            completions: 8192,
            extended_posts: variant.extended_posts,
            known: variant.known,
            ..VerbsConfig::default()
        }
    }

    fn setup(&mut self, variant: &Variant) -> Setup<VerbsDevice> {
        // The last test's connections may not be gone from its port yet.
        self.next_port += 1;
        let open = || VerbsDevice::open(self.config(variant)).expect("it was opened before");
        Setup {
            a: open(),
            b: open(),
            arena_a: Arc::clone(&self.arenas[0]),
            arena_b: Arc::clone(&self.arenas[1]),
            address: format!("{}:{}", self.host, self.next_port),
            poll_limit: 1_000_000,
            settle_polls: 4000,
            pause: std::thread::yield_now,
        }
    }

    /// The beginning of a test's line. A test that hangs is seen by it.
    fn announce(&self, name: &str) {
        print!("{:7.2} {name} ... ", self.began.elapsed().as_secs_f32());
        let _ = std::io::stdout().flush();
    }
}

/// Runs the tests named, or all, in each variant, and prints a line for each. Whether all is as it should be.
fn run_all(target: &mut Target, names: &[String], skips: &str) -> bool {
    let wanted = |name: &str| names.is_empty() || names.iter().any(|of| of == name);
    let mut good = true;
    // The connection manager's library keeps what it opened for the first connection.
    let mut open_files_before = None;
    for variant in VARIANTS {
        println!("== {}", variant.name);
        let tally = run(target, variant, &wanted);
        open_files_before.get_or_insert_with(open_files);
        println!(
            "{}: {} passed, {} FAILED, {} skipped",
            variant.name,
            tally.passed.len(),
            tally.failed,
            tally.skipped.len()
        );
        good &= tally.failed == 0;
        if let (true, Some(section)) = (names.is_empty(), variant.skips) {
            good &= skips_agree(&tally, skips, section);
        }
    }
    println!("== beside the contract");
    for (name, body) in adapter::TESTS.iter().filter(|(name, _)| wanted(name)) {
        let setup = target.setup(&VARIANTS[0]);
        target.announce(name);
        good &= report(name, &body(setup));
    }
    if wanted(SELF_TEST) {
        target.announce(SELF_TEST);
        good &= report(
            SELF_TEST,
            &adapter::learns(&target.config(&VARIANTS[0]), &target.host),
        );
    }
    // Each context, each completion queue's channel, each connection manager's channel is one.
    if !names.is_empty() {
        // A name that matches nothing must not look like a pass.
        return good && names.iter().all(|name| is_a_test(name));
    }
    let (before, after) = (open_files_before, open_files());
    let nothing_left = match before == Some(after) {
        true => Ok(()),
        false => Err(format!("{after} files are open, {before:?} were before")),
    };
    good & report("dropped_devices_leave_no_open_file", &nothing_left)
}

fn is_a_test(name: &str) -> bool {
    let of_suite = conformance::all::<VerbsDevice>();
    let known = of_suite.iter().any(|test| test.name == name)
        || adapter::TESTS.iter().any(|(of, _)| *of == name)
        || name == SELF_TEST;
    if !known {
        println!("FAIL {name}: no such test");
    }
    known
}

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

fn report(name: &str, outcome: &adapter::Outcome) -> bool {
    match outcome {
        Ok(()) => println!("pass {name}"),
        Err(text) => println!("FAIL {name}: {text}"),
    }
    outcome.is_ok()
}

fn run(target: &mut Target, variant: &Variant, wanted: &dyn Fn(&str) -> bool) -> Tally {
    let mut tally = Tally::default();
    let of_variant = |name: &str| variant.only.is_empty() || variant.only.contains(&name);
    for test in conformance::all::<VerbsDevice>() {
        if !wanted(test.name) || !of_variant(test.name) {
            continue;
        }
        target.announce(test.name);
        let report = test.run(target.setup(variant));
        println!("{report}");
        match report.verdict {
            Verdict::Pass => tally.passed.push(report.name),
            Verdict::Fail(_) => tally.failed += 1,
            Verdict::Skip(need) => tally.skipped.push(format!("{} {need:?}", report.name)),
        }
    }
    tally
}

/// Each skip must be in a section of the list with its need, and each of the section must be one. A test of R1, R3, R4 or R7 is no mere skip: its line names
/// the test that proves the same where it does not apply, and that one must have passed.
fn skips_agree(tally: &Tally, list: &str, section: &str) -> bool {
    let text = std::fs::read_to_string(list).unwrap_or_default();
    let header = format!("[{section}]");
    let lines = text.lines().skip_while(|line| *line != header).skip(1);
    let lines = lines.take_while(|line| !line.starts_with('['));
    let listed: Vec<(&str, &str)> = lines
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(|line| line.split_once(" proved_by ").unwrap_or((line, "")))
        .collect();
    let is_listed = |skip: &&String| listed.iter().any(|(listed, _)| listed == skip);
    let unlisted = tally.skipped.iter().filter(|skip| !is_listed(skip));
    let unneeded = listed
        .iter()
        .filter(|(line, _)| !tally.skipped.iter().any(|skip| skip == line));
    let is_proven = |(line, proof): &&(&str, &str)| {
        !["r1_", "r3_", "r4_", "r7_"]
            .iter()
            .any(|of| line.starts_with(of))
            || tally.passed.contains(proof)
    };
    let unproven = listed.iter().filter(|line| !is_proven(line));
    let findings: Vec<String> = unlisted
        .map(|skip| format!("{skip}: skipped, and not in the list of skips"))
        .chain(unneeded.map(|(skip, _)| format!("{skip}: in the list of skips, and not skipped")))
        .chain(unproven.map(|(skip, proof)| {
            format!(
                "{skip}: of a promise that no skip may touch, and {proof:?} did not pass instead"
            )
        }))
        .collect();
    for finding in &findings {
        println!("FAIL {finding}");
    }
    findings.is_empty()
}
