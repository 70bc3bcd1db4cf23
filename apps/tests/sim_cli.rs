//! `keyfence sim` from outside: one object, the same trace in each process, and what is wrong is refused.

use std::process::{Command, Output};

use serde_json::Value;

fn sim(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_keyfence"));
    command.arg("sim").args(arguments).env_remove("RUST_LOG");
    command.output().expect("the launcher starts")
}

#[track_caller]
fn object(output: &Output) -> Value {
    let stdout = std::str::from_utf8(&output.stdout).expect("UTF-8");
    serde_json::from_str(stdout).expect("one JSON object")
}

#[test]
fn seeds_are_run_and_two_processes_see_the_same() {
    let [one, two] = [(); 2].map(|()| object(&sim(&["--seeds", "25", "--json"])));
    assert_eq!(one["ok"], true, "{one:#}");
    let (one, two) = (&one["sim"], &two["sim"]);
    assert_eq!(one["seeds"], 25);
    assert_eq!(one["failed"], Value::Array(Vec::new()));
    let [ops, reclaims] = ["ops", "reclaims"].map(|field| one[field].as_u64());
    assert!(ops > Some(1000) && reclaims > Some(250), "{one:#}");
    assert_eq!(one["trace_hash"], two["trace_hash"]);
    for field in ["ops", "reclaims", "sessions_lost", "faults", "pairs"] {
        assert_eq!(one[field], two[field], "{field}");
    }
    let struck = one["faults"].as_object().expect("an object");
    assert!(struck["kill"].as_u64() > Some(0), "{struck:?}");
    let held_back = one["held_back"].as_array().expect("a list");
    assert!(held_back.is_empty(), "{held_back:?}");
}

#[test]
fn other_seeds_are_other_runs_and_one_seed_is_one() {
    let hash = |arguments: &[&str]| object(&sim(arguments))["sim"]["trace_hash"].clone();
    let first = hash(&["--seeds", "3", "--json"]);
    let next = hash(&["--seeds", "3", "--first", "3", "--json"]);
    assert_ne!(first, next);
    let alone = hash(&["--seed", "4", "--json"]);
    assert_eq!(alone, hash(&["--seeds", "1", "--first", "4", "--json"]));
}

#[test]
fn what_is_wrong_is_refused_before_anything_runs() {
    for arguments in [
        &["--seeds", "0"][..],
        &["--seeds", "many"],
        &["--minutes", "0"],
        &["--seed", "1", "--seeds", "2"],
    ] {
        let output = sim(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty());
    }
}

#[test]
fn the_text_says_how_many_and_what_was_not_asked() {
    let output = sim(&["--seeds", "2"]);
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(text.contains("2 seeds, 0 failed"), "{text}");
    assert!(text.contains("fewer than 500 seeds"), "{text}");
    assert_eq!(output.status.code(), Some(0));
}

/// What the simulator assumes of an adapter is asked of it by the probe: the table names checks that there are.
#[test]
fn what_is_assumed_of_adapters_is_probed() {
    let read = |path: &str| {
        let path = format!("{}/../{path}", env!("CARGO_MANIFEST_DIR"));
        std::fs::read_to_string(path).expect("it is in the repository")
    };
    let (design, probe) = (read("runtime/DESIGN.md"), read("docs/probe.md"));
    let table = design.split_once("| assumption | `keyfence probe` |");
    let (_, table) = table.expect("the table of assumptions");
    let rows: Vec<&str> = table
        .lines()
        .skip(2)
        .take_while(|line| line.starts_with('|'))
        .collect();
    assert!(rows.len() > 8, "{rows:?}");
    for row in rows {
        let checks = row
            .trim_end_matches(" |")
            .rsplit_once("| ")
            .expect("two columns")
            .1;
        for check in checks.split(", ") {
            let line = format!("\n| {check} |");
            assert!(probe.contains(&line), "{check} of {row}");
        }
    }
}
