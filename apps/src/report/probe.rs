//! The fields of `probe`.

use keyfence::pmd::probe::Finding;
use serde::Serialize;

/// What `probe` found.
#[derive(Serialize, Debug)]
pub struct ProbeBody {
    /// The probe.
    pub probe: ProbeReport,
}

/// The findings, and what follows.
#[derive(Serialize, Debug)]
pub struct ProbeReport {
    /// The adapter, as the command line named it.
    pub device: String,
    /// In the order in which they were done; always all.
    pub tests: Vec<TestReport>,
    /// What `key_mode = "auto"` comes to here: `window` or `region`; `none` if keyfence can't run on the adapter.
    pub key_mode: &'static str,
    /// Why, in a sentence.
    pub reason: String,
    /// Whether a signal ended it early: what was not done is a skip.
    pub interrupted: bool,
}

/// One test.
#[derive(Serialize, Debug)]
pub struct TestReport {
    /// Its name, which docs/probe.md explains.
    pub name: &'static str,
    /// `pass`, `fail` or `skip`.
    pub result: &'static str,
    /// What a failure means and what was seen, why it was skipped, or what was measured. One line; may be empty after a pass.
    pub note: String,
}

impl TestReport {
    /// Of a finding.
    pub fn of(finding: &Finding) -> Self {
        Self {
            name: finding.check.name(),
            result: finding.verdict.name(),
            note: finding.note.clone(),
        }
    }
}
