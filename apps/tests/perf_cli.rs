//! `keyfence perf` from outside: each operation is measured, files are what other tools read, and what is wrong is refused.

use std::process::{Command, Output};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::Value;

/// One at a time: each takes the CPU that it can get.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Both lcores on one CPU, so that it works on any machine; few operations.
fn perf(arguments: &[&str]) -> Output {
    let small = [
        "--cpus", "0,0", "--iters", "400", "--warmup", "50", "--rounds", "4",
    ];
    let mut command = Command::new(env!("CARGO_BIN_EXE_keyfence"));
    command.args(["--json", "perf"]).args(small).args(arguments);
    command.env_remove("RUST_LOG");
    command.output().expect("the launcher starts")
}

#[track_caller]
fn object(output: &Output) -> Value {
    let stdout = std::str::from_utf8(&output.stdout).expect("UTF-8");
    serde_json::from_str(stdout).expect("one JSON object")
}

#[track_caller]
fn measured(arguments: &[&str]) -> Value {
    let _one = alone();
    let output = perf(arguments);
    let report = object(&output);
    assert_eq!(output.status.code(), Some(0), "{report:#}");
    let perf = &report["perf"];
    assert_eq!(perf["iters"], 400, "every operation counts: {report:#}");
    assert_eq!(perf["rounds"], 4);
    let ns = |field: &str| perf["latency_ns"][field].as_u64().expect("a number");
    assert!(ns("min") > 0 && ns("min") <= ns("p50") && ns("p50") <= ns("max"));
    assert!(perf["rate_per_s"].as_f64() > Some(0.0));
    assert!(perf["probe_ns"].as_f64() > Some(0.0));
    report
}

#[test]
fn each_operation_is_measured_at_sizes_from_nothing_to_more_than_a_slice() {
    for op in ["write", "read"] {
        for size in ["0", "8", "4KiB", "1MiB"] {
            let report = measured(&["--op", op, "--size", size]);
            assert_eq!(report["perf"]["op"], op);
        }
    }
    for size in ["0", "64", "4KiB"] {
        let report = measured(&["--op", "send", "--size", size]);
        assert_eq!(report["perf"]["one_way"], true);
    }
}

#[test]
fn many_in_flight_and_a_fixed_rate_end_with_every_operation_counted() {
    for op in ["write", "read", "send"] {
        measured(&["--op", op, "--size", "64", "--depth", "32"]);
        let report = measured(&["--op", op, "--size", "64", "--rate", "20000"]);
        assert_eq!(report["perf"]["open_loop"], true);
    }
}

#[test]
fn writes_go_there_and_back() {
    // One byte's stamps go round more than once in 450 operations.
    for size in ["1", "64", "100000"] {
        let report = measured(&["--ping-pong", "--size", size]);
        assert_eq!(report["perf"]["one_way"], true, "{size}");
        assert_eq!(report["perf"]["op"], "write");
    }
}

#[test]
fn histogram_files_are_readable() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_owned();
    let (hgrm, log) = (path("a.hgrm"), path("a.hlog"));
    measured(&["--hgrm", &hgrm, "--log", &log]);
    let text = std::fs::read_to_string(hgrm).expect("it was written");
    assert!(text.contains("1/(1-Percentile)"), "{text}");
    assert!(text.contains("Total count    =          400"), "{text}");
    let text = std::fs::read_to_string(log).expect("it was written");
    let rounds = text.lines().filter(|line| line.contains("HISTFAAAA"));
    assert_eq!(rounds.count(), 4, "a V2 histogram a round: {text}");
}

#[test]
fn what_is_wrong_is_exit_2_and_says_what_is_allowed() {
    for (arguments, words) in [
        (&["--size", "1GiB"][..], "allowed: 0 to"),
        (&["--op", "swap"], "possible values: write, read, send"),
        (&["--cpus", "0"], "two are wanted"),
        (&["--op", "send", "--size", "1MiB"], "message"),
        (
            &["--ping-pong", "--op", "read"],
            "for writes of at least a byte",
        ),
        (
            &["--ping-pong", "--size", "0"],
            "for writes of at least a byte",
        ),
        (&["--ping-pong", "--depth", "2"], "cannot be used with"),
        (&["--hgrm", "/no/such/folder/a"], "/no/such/folder/a"),
    ] {
        let _one = alone();
        let output = perf(arguments);
        let report = object(&output);
        assert_ne!(output.status.code(), Some(0), "{arguments:?}: {report:#}");
        let message = report["errors"][0]["message"].to_string();
        assert!(message.contains(words), "{arguments:?}: {message}");
    }
}
