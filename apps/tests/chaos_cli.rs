//! `keyfence run configs/chaos.toml` from outside: a short run in which each trouble strikes, and one in which one does not.

mod load;

use load::{Edit, alone, chaos, keyfence, object};
use serde_json::Value;

/// A few seconds of it, with what a busy machine reaches in them.
fn short(edits: &[Edit<'_>]) -> load::LoadFile {
    let short = [
        Edit::load("duration", "\"4s\""),
        Edit::load("contexts", "16"),
        Edit::load("bystanders", "4"),
        Edit::load("paced_rate", "1000"),
        Edit::load("min_lane_repairs", "2"),
        Edit::load("min_dead_keys", "1"),
        Edit::load("min_panics", "1"),
        Edit::load("min_hangs", "1"),
        Edit::load("peer_stops", "1"),
        Edit::load("peer_restarts", "1"),
        Edit::load("min_peers_down", "6"),
        Edit::load("min_leases_ended", "1"),
    ];
    chaos(&[&short[..], edits].concat())
}

fn run(file: &load::LoadFile) -> (Option<i32>, Value) {
    let output = keyfence(&["run", file.path(), "--json"])
        .output()
        .expect("the launcher starts");
    (output.status.code(), object(&output))
}

#[track_caller]
fn at_least(report: &Value, path: &str, least: u64) {
    let value = report.pointer(path).and_then(Value::as_u64);
    assert!(value >= Some(least), "{path}: {report:#}");
}

#[test]
fn a_short_run_in_chaos_is_good_and_each_trouble_has_struck() {
    let _one = alone();
    let (code, report) = run(&short(&[]));
    assert_eq!(code, Some(0), "{report:#}");
    assert_eq!(report["caught_by"], serde_json::json!([]));
    for (path, least) in [
        ("/lanes/repairs", 2),
        ("/lanes/repair_ns/p50", 1),
        ("/coverage/dead_keys_refused", 1),
        ("/coverage/panics", 1),
        ("/coverage/hangs", 1),
        ("/coverage/leases_ended", 1),
        ("/coverage/operations_with_third", 1),
        ("/peers/down", 6),
        ("/peers/stops", 1),
        ("/peers/restarts", 1),
        ("/bystanders/quiet/p50", 1),
        ("/bystanders/chaos/p50", 1),
    ] {
        at_least(&report, path, least);
    }
}

#[test]
fn a_trouble_that_did_not_strike_is_exit_1_and_is_named() {
    let _one = alone();
    let file = short(&[
        Edit::load("duration", "\"300ms\""),
        Edit::load("peer_stops", "0"),
        Edit::load("peer_restarts", "0"),
        Edit::load("lane_breaks_per_s", "0.1"),
        Edit::load("dead_keys_per_s", "0.1"),
        Edit::load("panics_per_s", "0.1"),
        Edit::load("hangs_per_s", "0.1"),
    ]);
    let (code, report) = run(&file);
    assert_eq!(code, Some(1), "{report:#}");
    let missed = [
        "min_lane_repairs",
        "min_dead_keys",
        "min_panics",
        "min_hangs",
        "min_peers_down",
        "min_leases_ended",
    ];
    assert_eq!(report["caught_by"], serde_json::json!(missed), "{report:#}");
}
