//! Which module may import which, within a crate. Tests may reach further: they pick devices and play models.

use super::finding::{Finding, assert_none};
use super::paths::paths;
use super::source::{Source, workspace};
use super::token::Token;

const DRIVERS: [&str; 3] = ["soft", "verbs", "sim"];

/// Folders whose modules may not import the top-level modules named. Drivers do not know each other, and what is generic over the
/// device knows none of them; the parts of the runtime do not know the engine that drives them.
const FORBIDDEN: [(&[&str], &[&str]); 5] = [
    (&["pmd/src/soft"], &["verbs", "sim"]),
    (&["pmd/src/verbs"], &["soft", "sim"]),
    (&["pmd/src/sim"], &["soft", "verbs"]),
    (&["pmd/src/wrap", "pmd/src/conformance"], &DRIVERS),
    (
        &[
            "runtime/src/context",
            "runtime/src/lane",
            "runtime/src/grant",
            "runtime/src/reclaim",
        ],
        &["engine"],
    ),
];

/// Protocols without I/O: beside their own files they may import the id types and the switches of planted faults, and no other
/// crate of the workspace.
const ID_TYPES_ONLY: [(&str, &[&str]); 2] = [
    ("runtime/src/reclaim", &["reclaim"]),
    ("runtime/src/lane/repair", &["lane", "repair"]),
];

/// Where the configuration's words for devices are read.
const READS_DEVICE_NAMES: [&str; 1] = ["runtime/src/config"];

fn forbidden_imports(sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (folders, tops) in FORBIDDEN {
        let package = folders[0]
            .split_once("/src/")
            .expect("a folder of a crate")
            .0;
        let mut forbidden: Vec<String> = tops.iter().map(|top| (*top).to_owned()).collect();
        // What the crate's root re-exports from them would be a way round.
        let root = format!("{package}/src/lib.rs");
        for path in sources
            .iter()
            .filter(|source| source.path == root)
            .flat_map(paths)
        {
            let [first, .., last] = &path.segments[..] else {
                continue;
            };
            if tops.contains(&first.as_str()) {
                forbidden.push(last.clone());
            }
        }
        for source in sources.iter().filter(|source| source.is_in(folders)) {
            for path in imports(source) {
                if let Some(top) = path.top().filter(|top| forbidden.iter().any(|f| f == top)) {
                    let what = format!("imports crate::{top}, which this module must not know");
                    findings.push(Finding::new(source, path.line, what));
                }
            }
        }
    }
    findings
}

fn machines_import_ids_only(sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (folder, own) in ID_TYPES_ONLY {
        for source in sources.iter().filter(|source| source.is_in(&[folder])) {
            for path in imports(source) {
                let inside = path.segments.iter().zip(own).all(|(a, b)| a == b)
                    && path.segments.len() >= own.len();
                let allowed = match path.top() {
                    Some("ids" | "plant") => true,
                    Some(_) => inside,
                    None => !path.segments[0].starts_with("keyfence"),
                };
                if !allowed {
                    let path_text = path.segments.join("::");
                    let what =
                        format!("imports {path_text}; a protocol machine knows the id types only");
                    findings.push(Finding::new(source, path.line, what));
                }
            }
        }
    }
    findings
}

fn runtime_names_no_device(sources: &[Source]) -> Vec<Finding> {
    let runtime = |source: &&Source| source.is_in(&["runtime/src"]) && source.is_rust();
    let names_a_device = |word: &str| {
        let types = ["Soft", "Verbs", "Sim"].iter().any(|name| {
            let rest = word.strip_prefix(name);
            rest.is_some_and(|rest| rest.chars().next().is_none_or(char::is_uppercase))
        });
        types || DRIVERS.contains(&word)
    };
    let mut findings = Vec::new();
    for source in sources.iter().filter(runtime) {
        let tests = source.test_lines();
        let mut found = |line: usize, word: &str| {
            let what =
                format!("names the device `{word}`; the runtime knows a device by its Caps only");
            findings.push(Finding::new(source, line, what));
        };
        for path in paths(source).iter().filter(|path| !tests[path.line]) {
            let [crate_name, rest @ ..] = &path.segments[..] else {
                continue;
            };
            let pmd = ["keyfence_pmd", "pmd"].contains(&crate_name.as_str());
            if let Some(word) = rest.iter().find(|word| pmd && names_a_device(word)) {
                found(path.line, word);
            }
        }
        if source.is_in(&READS_DEVICE_NAMES) {
            continue;
        }
        let strings = super::token::tokens(&source.strings);
        let code = source.tokens();
        for Token { text, line } in code.iter().chain(&strings).filter(|t| !tests[t.line]) {
            if names_a_device(text) {
                found(*line, text);
            }
        }
    }
    findings
}

fn imports(source: &Source) -> Vec<super::paths::NamedPath> {
    let tests = source.test_lines();
    let outside_tests = |path: &super::paths::NamedPath| !tests[path.line];
    paths(source).into_iter().filter(outside_tests).collect()
}

#[test]
fn modules_import_along_the_allowed_edges() {
    assert_none(&forbidden_imports(&workspace()));
}

#[test]
fn machines_know_id_types_only() {
    assert_none(&machines_import_ids_only(&workspace()));
}

#[test]
fn the_runtime_knows_no_concrete_device() {
    assert_none(&runtime_names_no_device(&workspace()));
}

#[cfg(test)]
fn count(rule: fn(&[Source]) -> Vec<Finding>, path: &str, text: &str) -> usize {
    let root = Source::new("runtime/src/lib.rs", "mod engine; pub use engine::Engine;");
    rule(&[root, Source::new(path, text)]).len()
}

#[test]
fn forbidden_imports_are_seen() {
    let count = |path, text| count(forbidden_imports, path, text);
    assert_eq!(
        count("pmd/src/soft/control.rs", "use super::super::verbs::Sys;"),
        1
    );
    assert_eq!(
        count("pmd/src/soft/control.rs", "use crate::{sim, work};"),
        1
    );
    assert_eq!(
        count("pmd/src/wrap/mod.rs", "fn f(d: &crate::soft::Soft) {}"),
        1
    );
    assert_eq!(
        count("runtime/src/lane/mux.rs", "use crate::engine::poll;"),
        1
    );
    assert_eq!(count("runtime/src/lane/mux.rs", "use crate::Engine;"), 1);
    assert_eq!(count("runtime/src/context.rs", "use crate::engine;"), 1);
    assert_eq!(
        count(
            "runtime/src/lane/mux.rs",
            "// crate::engine::poll\nuse crate::ids;"
        ),
        0
    );
    assert_eq!(
        count("runtime/src/engine/poll.rs", "use crate::lane::Lane;"),
        0
    );
}

#[test]
fn a_machine_that_knows_more_is_seen() {
    let count = |text| {
        count(
            machines_import_ids_only,
            "runtime/src/reclaim/machine.rs",
            text,
        )
    };
    assert_eq!(count("use crate::lane::Lane;"), 1);
    assert_eq!(count("use super::super::limits::Limits;"), 1);
    assert_eq!(count("use keyfence_pmd::Rkey;"), 1);
    assert_eq!(
        count("use super::event::Event;\nuse crate::ids::{Epoch, LaneId};"),
        0
    );
    assert_eq!(
        count("use core::fmt;\n#[cfg(test)]\nmod tests { use crate::lane::Lane; }"),
        0
    );
}

#[test]
fn a_named_device_is_seen() {
    let count = |path, text| count(runtime_names_no_device, path, text);
    assert_eq!(
        count(
            "runtime/src/engine/poll.rs",
            "use keyfence_pmd::soft::Path;"
        ),
        2
    );
    assert_eq!(
        count("runtime/src/engine/poll.rs", "if device == \"verbs\" {}"),
        1
    );
    assert_eq!(
        count("runtime/src/engine/poll.rs", "fn f(d: SoftDevice) {}"),
        1
    );
    assert_eq!(
        count(
            "runtime/src/config/engine.rs",
            "use keyfence_pmd::sim::Sim;"
        ),
        1
    );
    assert_eq!(
        count(
            "runtime/src/config/engine.rs",
            "const NAMES: &[&str] = &[\"soft\"];"
        ),
        0
    );
    assert_eq!(
        count("runtime/src/engine/poll.rs", "struct Simple; // soft"),
        0
    );
}
