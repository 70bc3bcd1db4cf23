//! Each planted fault is caught, by the check that the table names for it; and the same build without one is good.
#![cfg(feature = "plant")]

mod load;

use load::{Edit, alone, keyfence, loopback, object};
use serde_json::Value;

/// Runs a short load, with a fault or without one.
fn run(plant: Option<&str>) -> (Option<i32>, Value) {
    let file = loopback(&[
        Edit::load("duration", "\"3s\""),
        Edit::load("paced_share", "0.1"),
        Edit::load("kills_per_s", "60"),
        Edit::load("revokes_per_s", "120"),
    ]);
    let mut command = keyfence(&["run", file.path(), "--json"]);
    command.args(plant.map(|plant| format!("--plant={plant}")));
    let output = command.output().expect("the launcher starts");
    (output.status.code(), object(&output))
}

#[track_caller]
fn is_caught(plant: &str) {
    let _one = alone();
    let output = keyfence(&["run", "--plant", "list", "--json"])
        .output()
        .expect("the launcher starts");
    let list = object(&output);
    let plants = list["plants"].as_array().expect("a list");
    let row = plants
        .iter()
        .find(|row| row["name"] == plant)
        .expect("it is in the list");
    let (code, report) = run(Some(plant));
    assert_eq!(code, Some(1), "{report:#}");
    let caught_by = report["caught_by"].as_array().expect("a list");
    assert!(caught_by.contains(&row["caught_by"]), "{plant}: {report:#}");
}

#[test]
fn flush_counters_is_caught() {
    is_caught("flush-counters");
}

#[test]
fn flush_free_list_is_caught() {
    is_caught("flush-free-list");
}

#[test]
fn ack_before_drain_is_caught() {
    is_caught("ack-before-drain");
}

#[test]
fn ack_before_invalidate_is_caught() {
    is_caught("ack-before-invalidate");
}

#[test]
fn reuse_before_flush_is_caught() {
    is_caught("reuse-before-flush");
}

#[test]
fn own_ops_forgotten_is_caught() {
    is_caught("own-ops-forgotten");
}

#[test]
fn without_a_plant_the_same_build_is_good() {
    let _one = alone();
    let (code, report) = run(None);
    assert_eq!(code, Some(0), "{report:#}");
}

#[test]
fn an_unknown_plant_is_exit_2() {
    let output = keyfence(&["run", "--plant", "weed", "--json"])
        .output()
        .expect("the launcher starts");
    assert_eq!(output.status.code(), Some(2));
    let message = object(&output)["errors"][0]["message"].to_string();
    assert!(
        message.contains("weed") && message.contains("flush-counters"),
        "{message}"
    );
}
