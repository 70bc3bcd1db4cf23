//! Each promise R1..R12 is cited where the runtime keeps it, and proven by a test that has its name.

use super::finding::{Finding, assert_none};
use super::source::{Source, workspace};

const PROMISES: std::ops::RangeInclusive<u8> = 1..=12;

/// A promise that can't have its proof yet.
struct Open {
    promise: u8,
    lacks: Lacks,
    reason: &'static str,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Lacks {
    Citation,
    Test,
}

const fn open(promise: u8, lacks: Lacks, reason: &'static str) -> Open {
    Open {
        promise,
        lacks,
        reason,
    }
}

/// One a line. Take a line out when its promise is kept: this list must shrink.
const OPEN: &[Open] = &[open(
    11,
    Lacks::Citation,
    "fork support is a later issue; arenas are MADV_DONTFORK until then",
)];

fn missing(sources: &[Source]) -> Vec<(u8, Lacks)> {
    let runtime = |source: &&Source| source.is_in(&["runtime/src"]) && source.is_rust();
    let cited = |promise: u8| {
        let cites = |source: &Source| has_word(&source.comments, &format!("R{promise}"));
        sources.iter().filter(runtime).any(cites)
    };
    let lacks_citation = PROMISES
        .filter(|r| !cited(*r))
        .map(|r| (r, Lacks::Citation));
    let tested = |promise: u8| sources.iter().any(|source| has_test(source, promise));
    let lacks_test = PROMISES.filter(|r| !tested(*r)).map(|r| (r, Lacks::Test));
    lacks_citation.chain(lacks_test).collect()
}

fn judge(missing: &[(u8, Lacks)], open: &[Open]) -> Vec<Finding> {
    let finding = |what: String| Finding {
        path: "runtime".to_owned(),
        line: 0,
        what,
    };
    let known = |(promise, lacks): &(u8, Lacks)| {
        open.iter()
            .any(|open| open.promise == *promise && open.lacks == *lacks)
    };
    let news = missing
        .iter()
        .filter(|lack| !known(lack))
        .map(|(promise, lacks)| {
            finding(match lacks {
                Lacks::Citation => {
                    format!("no comment in runtime/src cites R{promise} where it is kept")
                }
                Lacks::Test => format!("no test named r{promise}_... proves R{promise}"),
            })
        });
    let kept = |open: &&Open| !missing.contains(&(open.promise, open.lacks));
    let stale = open.iter().filter(kept).map(|open| {
        let Open {
            promise,
            lacks,
            reason,
        } = open;
        finding(format!(
            "R{promise} has its {lacks:?} now: take \"{reason}\" out of tidy"
        ))
    });
    news.chain(stale).collect()
}

/// Whether a test function's name begins with the promise's number.
fn has_test(source: &Source, promise: u8) -> bool {
    if !source.is_rust() {
        return false;
    }
    let tests = source.test_lines();
    let prefix = format!("r{promise}_");
    let tokens = source.tokens();
    tokens.windows(2).any(|pair| {
        pair[0].text == "fn" && pair[1].text.starts_with(&prefix) && tests[pair[1].line]
    })
}

fn has_word(text: &str, word: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let behind = text[at + word.len()..].chars().next();
        !before.is_some_and(part) && !behind.is_some_and(part)
    })
}

#[test]
fn each_promise_is_cited_and_proven() {
    let sources = workspace();
    assert_none(&judge(&missing(&sources), OPEN));
}

#[test]
fn a_promise_without_citation_or_proof_is_seen() {
    let lacks = |runtime: &str, tests: &str| {
        let sources = [
            Source::new("runtime/src/lane.rs", runtime),
            Source::new("runtime/tests/lane.rs", tests),
        ];
        missing(&sources)
    };
    assert_eq!(lacks("", "").len(), 24);
    let both = lacks(
        "// R1: no late access.",
        "#[test]\nfn r1_no_late_access() {}",
    );
    assert!(!both.contains(&(1, Lacks::Citation)) && !both.contains(&(1, Lacks::Test)));
    // R12 is not R1, a string is no citation, and r11_ is not r1_.
    let neither = lacks(
        "/// R12\nconst R1: &str = \"R1\";",
        "fn r11_fork() {}\n// fn r1_a() {}",
    );
    assert!(neither.contains(&(1, Lacks::Citation)) && neither.contains(&(1, Lacks::Test)));
}

#[test]
fn an_open_promise_goes_stale() {
    let open = [open(3, Lacks::Test, "later")];
    assert_eq!(judge(&[(3, Lacks::Test)], &open), []);
    assert_eq!(judge(&[], &open).len(), 1);
    assert_eq!(judge(&[(3, Lacks::Citation)], &open).len(), 2);
}
