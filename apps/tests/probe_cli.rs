//! `keyfence probe` from outside: the software adapter, and what is said where nothing can be probed.

use std::process::{Command, Output};

use serde_json::Value;

fn probe(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_keyfence"));
    command.arg("probe").args(arguments).env_remove("RUST_LOG");
    command.output().expect("the launcher starts")
}

#[track_caller]
fn object(output: &Output) -> Value {
    let stdout = std::str::from_utf8(&output.stdout).expect("UTF-8");
    serde_json::from_str(stdout).expect("one JSON object")
}

fn results(report: &Value) -> Vec<(&str, &str)> {
    let tests = report["probe"]["tests"].as_array().expect("a list");
    let row = |test| {
        text(test, "note");
        (text(test, "name"), text(test, "result"))
    };
    tests.iter().map(row).collect()
}

fn text<'a>(test: &'a Value, field: &str) -> &'a str {
    test[field].as_str().expect("a text")
}

#[test]
fn the_software_adapter_fails_nothing() {
    for (dangerous, wanted) in [(false, "skip"), (true, "pass")] {
        let mut arguments = vec!["--device", "soft", "--json"];
        arguments.extend(dangerous.then_some("--dangerous"));
        let output = probe(&arguments);
        let report = object(&output);
        assert_eq!(output.status.code(), Some(0), "{report:#}");
        assert_eq!(report["device"], "soft");
        assert_eq!(report["probe"]["device"], "soft");
        assert_eq!(report["probe"]["key_mode"], "window");
        assert_eq!(report["probe"]["interrupted"], false);
        let results = results(&report);
        assert!(
            results.iter().all(|(_, result)| *result != "fail"),
            "{report:#}"
        );
        let one = |name| results.iter().find(|(of, _)| *of == name);
        assert_eq!(one("window_bounds"), Some(&("window_bounds", "pass")));
        assert_eq!(
            one("double_invalidation"),
            Some(&("double_invalidation", wanted))
        );
    }
}

#[test]
fn the_text_has_a_line_a_test_and_the_choice() {
    let output = probe(&["--device", "soft"]);
    assert_eq!(output.status.code(), Some(0));
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let line = text.lines().find(|line| line.starts_with("window_scope "));
    let words: Vec<_> = line.expect("a line").split_whitespace().collect();
    assert_eq!(words[..2], ["window_scope", "PASS"]);
    let last = text.lines().last().expect("a line");
    assert!(
        last.starts_with("key_mode = \"auto\" on soft: window: "),
        "{last}"
    );
}

/// Each test of the program is in the documentation, with what it asks and what a failure means.
#[test]
fn the_documentation_names_each_test() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/probe.md");
    let page = std::fs::read_to_string(page).expect("docs/probe.md");
    for check in keyfence::pmd::probe::Check::ALL {
        let row = format!("| `{}` | {} | ", check.name(), check.asks());
        let (_, rest) = page
            .split_once(&row)
            .unwrap_or_else(|| panic!("no row {row}"));
        let meaning = check.otherwise();
        let first = meaning[..1].to_uppercase();
        let meaning = format!("{first}{}. | ", &meaning[1..]);
        assert!(
            rest.starts_with(&meaning),
            "{}: not {meaning}",
            check.name()
        );
    }
    let rows = page.lines().filter(|line| line.starts_with("| `")).count();
    assert_eq!(rows, keyfence::pmd::probe::Check::ALL.len(), "no row more");
}

#[test]
fn what_cannot_be_probed_is_exit_2_and_says_why() {
    for (arguments, words) in [
        (&["--json"][..], "--device"),
        (&["--json", "--device", "soft", "--port", "0"], "--port"),
        (
            &["--json", "--device", "soft", "--address", "nowhere"],
            "--address",
        ),
    ] {
        let output = probe(arguments);
        let report = object(&output);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {report:#}");
        let message = report["errors"][0]["message"].to_string();
        assert!(message.contains(words), "{arguments:?}: {message}");
    }
}

#[cfg(not(feature = "verbs"))]
#[test]
fn a_build_without_the_driver_says_how_to_get_one_with_it() {
    let output = probe(&["--json", "--device", "mlx5_0"]);
    let report = object(&output);
    assert_eq!(output.status.code(), Some(2), "{report:#}");
    assert_eq!(report["device"], "verbs");
    let message = report["errors"][0]["message"].as_str().expect("a text");
    assert!(
        message.contains("--features verbs") && message.contains("mlx5_0"),
        "{message}"
    );
}

#[cfg(feature = "verbs")]
#[test]
fn an_adapter_that_is_not_there_is_exit_2_and_says_what_is_missing() {
    let output = probe(&["--json", "--device", "no-such-adapter"]);
    let report = object(&output);
    assert_eq!(output.status.code(), Some(2), "{report:#}");
    let message = report["errors"][0]["message"].as_str().expect("a text");
    // Which of them depends on the machine.
    let known = ["no RDMA adapter", "install the packages"];
    assert!(
        known.iter().any(|words| message.contains(words)),
        "{message}"
    );
}
