//! Which crate may depend on which.

use super::finding::{Finding, assert_none};
use super::source::{Source, workspace};

/// The crates of the workspace that each manifest may name.
const EDGES: [(&str, &[&str]); 6] = [
    ("mempool/Cargo.toml", &[]),
    ("pmd/Cargo.toml", &["keyfence-mempool"]),
    ("runtime/Cargo.toml", &["keyfence-pmd", "keyfence-mempool"]),
    (
        "apps/Cargo.toml",
        // The probe.
        &[
            "keyfence",
            "keyfence-pmd",
            "keyfence-mempool",
            "keyfence-benches",
        ],
    ),
    (
        "benches/Cargo.toml",
        &["keyfence", "keyfence-pmd", "keyfence-mempool"],
    ),
    ("runtime/fuzz/Cargo.toml", &["keyfence", "keyfence-pmd"]),
];

fn crate_edges(sources: &[Source]) -> Vec<Finding> {
    let manifest = |source: &&Source| source.path.ends_with("/Cargo.toml");
    let mut findings = Vec::new();
    for source in sources.iter().filter(manifest) {
        let edges = EDGES.iter().find(|(path, _)| *path == source.path);
        let Some((_, allowed)) = edges else {
            let what = "a package that tidy does not know: say what it may depend on";
            findings.push(Finding::new(source, 1, what));
            continue;
        };
        for (line, name) in dependencies(source) {
            if name.starts_with("keyfence") && !allowed.contains(&name) {
                let what = format!("depends on {name}, against the direction of the crates");
                findings.push(Finding::new(source, line, what));
            }
        }
    }
    findings
}

/// The keys of all dependency tables, `[dependencies.NAME]` included.
fn dependencies(source: &Source) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut inside = false;
    for (index, line) in source.text.lines().enumerate() {
        let line = line.trim();
        if let Some(table) = line.strip_prefix('[') {
            let table = table.trim_end_matches(']');
            inside = table.ends_with("dependencies");
            if let Some((_, name)) = table.split_once("dependencies.") {
                found.push((index + 1, name));
            }
        } else if inside && !line.starts_with('#') {
            let end = line.find(|c: char| !c.is_alphanumeric() && c != '-' && c != '_');
            found.push((index + 1, &line[..end.unwrap_or(line.len())]));
        }
    }
    found
}

#[test]
fn crates_depend_in_one_direction() {
    assert_none(&crate_edges(&workspace()));
}

#[test]
fn a_crate_that_looks_up_is_seen() {
    let count = |path, text| crate_edges(&[Source::new(path, text)]).len();
    assert_eq!(
        count(
            "mempool/Cargo.toml",
            "[dev-dependencies]\nkeyfence-pmd.workspace = true"
        ),
        1
    );
    assert_eq!(
        count(
            "pmd/Cargo.toml",
            "[dependencies.keyfence]\npath = \"../runtime\""
        ),
        1
    );
    assert_eq!(
        count(
            "pmd/Cargo.toml",
            "[target.'cfg(loom)'.dependencies]\nkeyfence = {}"
        ),
        1
    );
    assert_eq!(
        count(
            "pmd/Cargo.toml",
            "[dependencies]\nkeyfence-mempool = {}\n[lints]\nkeyfence = 1"
        ),
        0
    );
    assert_eq!(count("other/Cargo.toml", ""), 1);
}
