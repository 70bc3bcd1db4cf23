//! `keyfence run` from outside: a short good run, signals, and what is refused before traffic.

mod load;

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use load::{Edit, alone, keyfence, loopback, object, strangers, text};

#[test]
fn a_short_run_is_good_and_its_report_is_whole() {
    let _one = alone();
    let file = loopback(&[Edit::load("duration", "\"1s\"")]);
    let output = keyfence(&["run", file.path(), "--json"])
        .output()
        .expect("the launcher starts");
    let report = object(&output);
    assert_eq!(output.status.code(), Some(0), "{report:#}");
    assert_eq!(
        (&report["ok"], &report["interrupted"]),
        (&true.into(), &false.into())
    );
    assert_eq!(report["caught_by"], serde_json::json!([]));
    assert_eq!(report["errors"], serde_json::json!([]));
    assert_eq!(report["memory"]["bytes"], 256 << 20);
    let phases = report["phases"].as_array().expect("a list");
    let names: Vec<_> = phases.iter().map(|phase| &phase["name"]).collect();
    assert_eq!(names, ["paced", "flat"]);
    for op in phases
        .iter()
        .flat_map(|phase| ["write", "read", "send"].map(|op| &phase["ops"][op]))
    {
        let number = |field: &str| op[field].as_u64().expect("a number");
        assert!(
            number("count") > 0 && number("bytes") > number("count"),
            "{op}"
        );
        assert!(
            number("samples") > 0 && number("samples") <= number("count"),
            "{op}"
        );
        assert!(op["latency_ns"]["p50"].as_u64() <= op["latency_ns"]["p99"].as_u64());
    }
    for (field, least) in [
        ("reuses", 10),
        ("bytes_scanned", 1 << 20),
        ("reclaims_with_ops_in_flight", 3),
    ] {
        assert!(
            report["coverage"][field].as_u64() >= Some(least),
            "{field}: {report:#}"
        );
    }
    assert!(
        report["reclaim"]["contexts_reclaimed"].as_u64() >= Some(5),
        "{report:#}"
    );
    assert_eq!(report["lcores"].as_array().map(Vec::len), Some(2));
    assert!(report["probe_ns"].is_u64());
}

#[test]
fn a_missed_minimum_is_exit_1_and_is_named() {
    let _one = alone();
    let file = loopback(&[
        Edit::load("duration", "\"100ms\""),
        Edit::load("min_operations", "1_000_000_000"),
    ]);
    let output = keyfence(&["run", file.path(), "--json"])
        .output()
        .expect("the launcher starts");
    let report = object(&output);
    assert_eq!(output.status.code(), Some(1), "{report:#}");
    assert_eq!(report["caught_by"], serde_json::json!(["min_operations"]));
    assert!(text(&output.stderr).contains("load.min_operations: "));
}

/// Starts a long run and gives it back when a line of its stderr contains `words`.
fn started(words: &str) -> (Child, load::LoadFile) {
    let file = loopback(&[
        Edit::load("duration", "\"60s\""),
        // The flat stage is soon reached.
        Edit::load("paced_share", "0.01"),
    ]);
    (started_on(&file, words), file)
}

fn started_on(file: &load::LoadFile, words: &str) -> Child {
    let mut command = keyfence(&["run", file.path(), "--json"]);
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the launcher starts");
    let stderr = child.stderr.take().expect("piped");
    let mut lines = BufReader::new(stderr).lines();
    let found = lines.any(|line| line.expect("UTF-8").contains(words));
    assert!(found, "{words} was never said");
    // The rest is read, so that the pipe does not fill.
    std::thread::spawn(move || lines.for_each(drop));
    child
}

/// What it wrote, once it has ended; it must not take ten times what a first signal may.
fn ended(mut child: Child) -> std::process::Output {
    const HANG: Duration = Duration::from_secs(20);
    let began = Instant::now();
    while child.try_wait().expect("a child").is_none() {
        assert!(began.elapsed() < HANG, "it hangs after a signal");
        std::thread::park_timeout(Duration::from_millis(5));
    }
    child.wait_with_output().expect("it has ended")
}

fn signal(child: &Child, signal: i32) {
    let pid = child.id().to_string();
    let status = std::process::Command::new("kill")
        .args([&format!("-{signal}"), &pid])
        .status();
    assert!(status.expect("there is a kill").success());
}

/// What a run says when it enters its stages.
const STAGES: [&str; 5] = ["seed of", "connecting", "warming up", "paced", "flat out"];

#[test]
fn b15_a_signal_in_any_stage_closes_everything_and_reports() {
    let _one = alone();
    for (words, signal_number) in STAGES
        .iter()
        .flat_map(|words| [1, 2, 15].map(|at| (words, at)))
    {
        let (child, _file) = started(words);
        signal(&child, signal_number);
        let output = ended(child);
        let report = object(&output);
        assert_eq!(
            output.status.code(),
            Some(0),
            "signal {signal_number} at {words}: {report:#}"
        );
        assert_eq!(report["interrupted"], true, "{report:#}");
        assert_eq!(report["checks"]["books_balance"], true);
    }
}

#[test]
fn b15_a_signal_while_a_peer_is_waited_for_ends_the_wait() {
    let _one = alone();
    for signal_number in [1, 2, 15] {
        // One key more: longer than a run that hangs is given.
        let patient = Edit::timeouts("lease", "\"10s\"\nreconnect = \"60s\"");
        let file = strangers(&[patient]);
        let child = started_on(&file, "no session came about");
        signal(&child, signal_number);
        let output = ended(child);
        let report = object(&output);
        assert_eq!(report["interrupted"], true, "{report:#}");
        assert_eq!(report["checks"]["books_balance"], true, "{report:#}");
        assert_eq!(output.status.code(), Some(0), "{report:#}");
    }
}

#[test]
fn b15_a_second_signal_ends_at_once_and_there_is_one_object_all_the_same() {
    let _one = alone();
    for number in [2, 15] {
        let (mut child, _file) = started("paced");
        // Two that come at the same moment are one.
        while child.try_wait().expect("a child").is_none() {
            signal(&child, number);
        }
        let output = ended(child);
        assert_eq!(output.status.code(), Some(128 + number));
        let report = object(&output);
        assert_eq!(
            (&report["command"], &report["ok"]),
            (&"run".into(), &false.into())
        );
    }
}

#[test]
fn b12_hugepages_that_are_required_and_not_there_are_exit_2_with_the_numbers() {
    let file = loopback(&[
        Edit::memory("page_size", "\"1GiB\""),
        Edit::memory("hugepages", "\"require\""),
    ]);
    let output = keyfence(&["run", file.path(), "--json"])
        .output()
        .expect("the launcher starts");
    let report = object(&output);
    assert_eq!(output.status.code(), Some(2), "{report:#}");
    let message = report["errors"][0]["message"].as_str().expect("a message");
    for words in ["engine left: ", "1GiB", "wanted"] {
        assert!(message.contains(words), "{message}");
    }
    assert_eq!(report["device"], "soft");
}

#[test]
fn b20_a_cpu_that_is_not_there_is_exit_2_and_is_named() {
    let file = loopback(&[Edit::engines("lcores", "[1000]")]);
    let output = keyfence(&["run", file.path(), "--json"])
        .output()
        .expect("the launcher starts");
    let report = object(&output);
    assert_eq!(output.status.code(), Some(2), "{report:#}");
    let message = report["errors"][0]["message"].as_str().expect("a message");
    assert!(message.contains("1000"), "{message}");
}

#[test]
fn a_file_for_something_else_is_exit_2_and_says_what_is_missing() {
    for (file, words) in [
        ("../configs/test_min.toml", "has no [load]"),
        ("none.toml", "cannot be read"),
    ] {
        let output = keyfence(&["run", file])
            .output()
            .expect("the launcher starts");
        assert_eq!(output.status.code(), Some(2));
        assert!(output.stdout.is_empty());
        assert!(
            text(&output.stderr).contains(words),
            "{}",
            text(&output.stderr)
        );
    }
}
