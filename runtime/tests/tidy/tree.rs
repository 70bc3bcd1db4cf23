//! Names of modules, use of the example configurations, and lines that only make sense on one machine.

use super::finding::{Finding, assert_none};
use super::source::{Source, workspace};

/// Names that say nothing: whatever fits nowhere else collects there.
const EMPTY_NAMES: [&str; 6] = ["util", "utils", "common", "helper", "helpers", "misc"];

/// Folders of one machine. Taken apart, so that this file passes its own rule.
const MACHINE_PATHS: [&str; 3] = [
    concat!("/wo", "rk/"),
    concat!("/ro", "ot/"),
    concat!("/ho", "me/"),
];

fn empty_names(sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in sources.iter().filter(|source| source.is_rust()) {
        let mut parts = source.path.trim_end_matches(".rs").split('/');
        if let Some(name) = parts.find(|part| EMPTY_NAMES.contains(part)) {
            let what = format!("a module named {name}: name it after its one idea");
            findings.push(Finding::new(source, 1, what));
        }
        for pair in source.tokens().windows(2) {
            if pair[0].text == "mod" && EMPTY_NAMES.contains(&pair[1].text) {
                let what = format!(
                    "a module named {}: name it after its one idea",
                    pair[1].text
                );
                findings.push(Finding::new(source, pair[1].line, what));
            }
        }
    }
    findings
}

fn unused_configurations(sources: &[Source]) -> Vec<Finding> {
    let configuration =
        |source: &&Source| source.path.starts_with("configs/") && source.path.ends_with(".toml");
    let mut findings = Vec::new();
    for source in sources.iter().filter(configuration) {
        let (_, name) = source.path.rsplit_once('/').expect("in a folder");
        let uses = |other: &Source| {
            let test = other.is_rust() && other.path.contains("/tests/");
            (test || other.path == "README.md") && other.text.contains(name)
        };
        if !sources.iter().any(uses) {
            let what = "neither the README nor a test names this configuration";
            findings.push(Finding::new(source, 1, what));
        }
    }
    findings
}

fn machine_paths(sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in sources {
        for (index, line) in source.text.lines().enumerate() {
            if let Some(path) = MACHINE_PATHS.iter().find(|path| line.contains(**path)) {
                let what = format!("names {path}..., which other machines do not have");
                findings.push(Finding::new(source, index + 1, what));
            }
        }
    }
    findings
}

#[test]
fn modules_have_names_that_say_something() {
    assert_none(&empty_names(&workspace()));
}

#[test]
fn each_example_configuration_is_used() {
    assert_none(&unused_configurations(&workspace()));
}

#[test]
fn no_line_names_a_path_of_one_machine() {
    assert_none(&machine_paths(&workspace()));
}

#[test]
fn an_empty_name_is_seen() {
    let count = |path, text| empty_names(&[Source::new(path, text)]).len();
    assert_eq!(count("pmd/src/util.rs", ""), 1);
    assert_eq!(count("pmd/src/common/keys.rs", ""), 1);
    assert_eq!(count("pmd/src/lib.rs", "pub mod helpers { }"), 1);
    assert_eq!(count("pmd/src/utility.rs", "mod commons; // mod util;"), 0);
}

#[test]
fn an_unused_configuration_is_seen() {
    let count = |user: &str, text: &str| {
        let sources = [Source::new("configs/a.toml", ""), Source::new(user, text)];
        unused_configurations(&sources).len()
    };
    assert_eq!(count("README.md", "nothing"), 1);
    assert_eq!(count("apps/src/a.rs", "configs/a.toml"), 1);
    assert_eq!(count("README.md", "run configs/a.toml"), 0);
    assert_eq!(count("apps/tests/a.rs", "ends_with(\"a.toml\")"), 0);
}

#[test]
fn a_path_of_one_machine_is_seen() {
    for path in MACHINE_PATHS {
        let text = format!("a\n# see {path}x\nnetwork/ rootless/");
        let findings = machine_paths(&[Source::new(".ci/x", &text)]);
        assert_eq!(findings.iter().map(|f| f.line).collect::<Vec<_>>(), [2]);
    }
}
