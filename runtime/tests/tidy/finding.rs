//! What a rule found.

use std::fmt;

use super::source::Source;

/// A broken rule at a place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    pub path: String,
    pub line: usize,
    pub what: String,
}

impl Finding {
    pub fn new(source: &Source, line: usize, what: impl Into<String>) -> Self {
        Self {
            path: source.path.clone(),
            line,
            what: what.into(),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.what)
    }
}

/// A file that may break a rule, and why.
pub struct Exception {
    pub path: &'static str,
    pub reason: &'static str,
}

/// The findings outside the exceptions, and a finding for each exception that excused nothing.
pub fn except(findings: Vec<Finding>, exceptions: &[Exception]) -> Vec<Finding> {
    let excuses = |exception: &Exception, finding: &Finding| exception.path == finding.path;
    let stale = exceptions.iter().filter(|exception| {
        assert!(
            !exception.reason.is_empty(),
            "{}: no reason",
            exception.path
        );
        !findings.iter().any(|finding| excuses(exception, finding))
    });
    let stale: Vec<_> = stale
        .map(|exception| Finding {
            path: exception.path.to_owned(),
            line: 1,
            what: "breaks the rule no longer: take its exception out of tidy".to_owned(),
        })
        .collect();
    let broken = |finding: &Finding| !exceptions.iter().any(|e| excuses(e, finding));
    findings.into_iter().filter(broken).chain(stale).collect()
}

/// Fails with the whole list.
#[track_caller]
pub fn assert_none(findings: &[Finding]) {
    let lines: Vec<_> = findings.iter().map(ToString::to_string).collect();
    assert!(
        lines.is_empty(),
        "{} findings:\n{}",
        lines.len(),
        lines.join("\n")
    );
}

#[test]
fn an_exception_excuses_its_file_and_goes_stale() {
    let found = |path: &str| Finding {
        path: path.to_owned(),
        line: 3,
        what: "bad".to_owned(),
    };
    let exceptions = [Exception {
        path: "a.rs",
        reason: "a test",
    }];
    assert_eq!(except(vec![found("a.rs")], &exceptions), []);
    let findings = except(vec![found("b.rs")], &exceptions);
    assert_eq!(findings[0], found("b.rs"));
    assert!(findings[1].what.contains("no longer"));
}
