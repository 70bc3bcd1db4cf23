//! `keyfence check` from outside: exit codes, lines, and the one JSON object.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;

const THREE_MISTAKES: &str = "[[engine]]\nname = \"a\"\nlcores = [0]\n\n[memory]\nbytes = \"64 MiB\"\n\n[timeouts]\n\
                              fense = \"20ms\"\ninvalidate = \"1s\"\ncontrol = \"1s\"\n";

fn keyfence(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_keyfence"));
    command
        .args(arguments)
        .env_remove("RUST_LOG")
        .output()
        .expect("the launcher starts")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("UTF-8")
}

/// The one object on stdout.
#[track_caller]
fn object(output: &Output) -> Value {
    let stdout = text(&output.stdout);
    assert_eq!(stdout.lines().count(), 1, "{stdout}");
    let object: Value = serde_json::from_str(stdout).expect("one JSON object");
    assert_eq!(object["version"], 1);
    object
}

fn example(name: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../configs")
        .join(name);
    path.to_str().expect("UTF-8").to_owned()
}

#[test]
fn three_mistakes_are_three_lines_and_exit_2() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("three.toml");
    fs::write(&file, THREE_MISTAKES).expect("writable");
    let file = file.to_str().expect("UTF-8");
    let output = keyfence(&["check", file]);
    assert_eq!(output.status.code(), Some(2));
    assert!(output.stdout.is_empty());
    let lines: Vec<&str> = text(&output.stderr).lines().collect();
    assert_eq!(lines.len(), 3, "{lines:#?}");
    let starts = [
        "6:9: memory.bytes: is the string \"64 MiB\", which is no whole number with a unit; allowed: a size from",
        "8:1: timeouts.shutdown: is 2s, below the reclaim bound 4563840us = fence 200ms + invalidate 1s + ",
        "9:1: timeouts.fense: unknown key, did you mean fence?; allowed: fence, invalidate, ",
    ];
    for (line, start) in lines.iter().zip(starts) {
        assert!(
            line.starts_with(&format!("{file}:{start}")),
            "{line}\n{start}"
        );
    }
    assert!(
        lines[1].ends_with("; allowed: at least \"4563840us\", or shorter terms"),
        "{}",
        lines[1]
    );

    let output = keyfence(&["--json", "check", file]);
    assert_eq!(output.status.code(), Some(2));
    let object = object(&output);
    assert_eq!(
        (&object["command"], &object["ok"]),
        (&"check".into(), &false.into())
    );
    let errors = object["errors"].as_array().expect("a list");
    assert_eq!(errors.len(), 3);
    for (error, line) in errors.iter().zip(lines) {
        assert_eq!(error["message"], *line);
    }
    assert_eq!(
        (&errors[0]["line"], &errors[0]["column"]),
        (&6.into(), &9.into())
    );
    assert_eq!(
        (&errors[0]["file"], &errors[0]["key"]),
        (&file.into(), &"memory.bytes".into())
    );
}

#[test]
fn a_good_file_prints_the_budget_and_the_reclaim_bound_with_its_terms() {
    let file = example("loopback.toml");
    let output = keyfence(&["check", &file]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(output.stderr.is_empty());
    let stdout = text(&output.stdout);
    for words in [
        "engine left: device soft",
        "engine right: device soft",
        "receives",
        "sum",
        "128.0 MiB",
    ] {
        assert!(stdout.contains(words), "{words}: {stdout}");
    }
    let bound = "reclaim bound 2563840us = fence 800ms + invalidate 800ms + drain 200ms + 3 x control 200ms + 8192 keys x 20us; shutdown 3s";
    assert_eq!(stdout.matches(bound).count(), 2, "{stdout}");

    let object = object(&keyfence(&["check", "--json", &file]));
    assert_eq!(
        (&object["ok"], &object["device"]),
        (&true.into(), &"soft".into())
    );
    assert_eq!(object["errors"], Value::Array(Vec::new()));
    let engines = object["check"]["files"][0]["engines"]
        .as_array()
        .expect("a list");
    assert_eq!(engines.len(), 2);
    for engine in engines {
        let budget = engine["budget"].as_array().expect("a list");
        let sum: u64 = budget
            .iter()
            .map(|item| item["bytes"].as_u64().expect("bytes"))
            .sum();
        assert_eq!(engine["budget_bytes"], sum);
        assert!(sum <= engine["arena_bytes"].as_u64().expect("bytes"));
        let term = |name: &str| engine["reclaim_bound"][name].as_u64().expect("ns");
        let terms =
            term("fence_ns") + term("invalidate_ns") + term("drain_ns") + 3 * term("control_ns");
        assert_eq!(terms + term("keys") * term("per_key_ns"), term("total_ns"));
    }
}

#[test]
fn what_this_machine_lacks_is_named_and_is_no_error() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("elsewhere.toml");
    let loopback = fs::read_to_string(example("loopback.toml")).expect("it is there");
    let elsewhere = loopback
        .replace("lcores = [0]", "lcores = [1000]")
        .replace("page_size = \"2MiB\"", "page_size = \"1GiB\"")
        .replace("hugepages = \"prefer\"", "hugepages = \"require\"");
    fs::write(&path, elsewhere).expect("writable");
    let file = path.to_str().expect("UTF-8");
    let output = keyfence(&["check", file]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let stdout = text(&output.stdout);
    for words in [
        "not on this machine: CPU 1000: ",
        "not on this machine: 1 hugepages of 1GiB: ",
    ] {
        assert!(stdout.contains(words), "{words}: {stdout}");
    }
    let object = object(&keyfence(&["check", "--json", file]));
    let missing = &object["check"]["files"][0]["engines"][0]["missing_here"];
    assert_eq!(missing.as_array().map(Vec::len), Some(2), "{object:#}");
}

#[test]
fn one_bad_file_among_good_ones_is_exit_2_and_the_good_ones_are_shown() {
    let good = example("test_min.toml");
    let output = keyfence(&["check", "none.toml", &good]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).starts_with("none.toml:0:0: file: cannot be read: "));
    assert!(text(&output.stdout).contains("test_min.toml: good"));
    let object = object(&keyfence(&["check", "--json", "none.toml", &good]));
    let oks: Vec<&Value> = object["check"]["files"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|file| &file["ok"])
        .collect();
    assert_eq!(oks, [&Value::Bool(false), &Value::Bool(true)]);
}

#[test]
fn wrong_usage_is_exit_2_and_one_object_in_json_too() {
    for arguments in [
        &["check"][..],
        &["chekc", "a"],
        &["check", "--nope", "a"],
        &["--nope"],
    ] {
        let output = keyfence(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(
            output.stdout.is_empty() && !output.stderr.is_empty(),
            "{arguments:?}"
        );
        let output = keyfence(&[arguments, &["--json"]].concat());
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let object = object(&output);
        assert_eq!(object["ok"], false);
        let command = arguments.contains(&"check").then_some("check");
        assert_eq!(object["command"], Value::from(command), "{arguments:?}");
        assert_eq!(object["errors"].as_array().map(Vec::len), Some(1));
    }
}

#[test]
fn help_and_version_are_exit_0_on_stdout() {
    for arguments in [&["--help"][..], &["check", "--help"], &["--version"]] {
        let output = keyfence(arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}");
        assert!(
            output.stderr.is_empty() && !output.stdout.is_empty(),
            "{arguments:?}"
        );
    }
    assert!(text(&keyfence(&["check", "--help"]).stdout).contains("Example:\n  keyfence check "));
}
