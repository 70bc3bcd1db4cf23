//! The design names the lines that keep each promise by file and function: each is there, and no promise is left out.

use super::finding::{Finding, assert_none};
use super::source::{Source, workspace};

const DESIGN: &str = include_str!("../../DESIGN.md");

/// Fork support is a later issue (R11).
const PROMISES: [u8; 11] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12];

/// The fewest places that keep a promise.
const LEAST: usize = 3;

fn finding(what: String) -> Finding {
    Finding {
        path: "runtime/DESIGN.md".to_owned(),
        line: 0,
        what,
    }
}

/// What stands in backticks and is a file and a function of it.
fn places(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let quoted = text.split('`').skip(1).step_by(2);
    quoted.filter_map(|quoted| {
        let (path, function) = quoted.split_once(".rs::")?;
        Some((path, function))
    })
}

fn row(design: &str, promise: u8) -> Option<&str> {
    let start = format!("| R{promise} | ");
    design.lines().find(|line| line.starts_with(&start))
}

fn judge(design: &str, sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for promise in PROMISES {
        let named = row(design, promise).map_or(0, |row| places(row).count());
        if named < LEAST {
            let what = format!("R{promise} is kept by {named} places, and not by {LEAST} at least");
            findings.push(finding(what));
        }
    }
    for (path, function) in places(design) {
        let file = format!("runtime/src/{path}.rs");
        let head = format!("fn {function}");
        let has = |source: &Source| {
            let mut heads = source.code.match_indices(&head);
            heads.any(|(at, _)| {
                let next = source.code[at + head.len()..].chars().next();
                matches!(next, Some('(' | '<'))
            })
        };
        if !sources
            .iter()
            .any(|source| source.path == file && has(source))
        {
            findings.push(finding(format!("{file} has no function {function}")));
        }
    }
    findings
}

#[test]
fn each_promise_is_kept_where_the_design_says() {
    assert_none(&judge(DESIGN, &workspace()));
}

#[test]
fn a_place_that_is_gone_and_a_promise_without_places_are_found() {
    let source = Source::new("runtime/src/a.rs", "fn kept(x: u8) {}\n// fn told() {}\n");
    let rows = PROMISES.map(|r| format!("| R{r} | `a.rs::kept` `a.rs::kept` `a.rs::kept` |\n"));
    let good = rows.concat();
    assert!(judge(&good, core::slice::from_ref(&source)).is_empty());
    let bad = good.replace("| R4 | `a.rs::kept`", "| R4 | `a.rs::told`");
    assert_eq!(judge(&bad, core::slice::from_ref(&source)).len(), 1);
    let bare = good.replace("| R9 | ", "| R11 | ");
    assert_eq!(judge(&bare, &[source]).len(), 1);
}
