//! `probe`: does an adapter with its driver do what taking keys back needs, and how should keys be made on it?
//!
//! Each [`Check`] is done on fresh devices with connections of their own, which are given up afterwards, on a thread of its own with a
//! deadline: an adapter that hangs gives a [`Verdict::Fail`] and never a probe that hangs. What the contract can express is tested through
//! it, by tests of the conformance suite and with accesses under way; the rest by the [`Subject`]. Nothing is concluded from a device's name.
//!
//! [`choose`] and [`fits`] decide from findings alone how keys are made; `verbs::self_test` finds what they need at an engine's start.

mod check;
mod choose;
mod deadline;
mod run;

pub use check::{Check, Need};
pub use choose::{Choice, KeyMode, Misfit, choose, decides, fits};
pub use run::{Pair, Plan, Subject, SuiteOnly, run};

/// How a check went.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Verdict {
    /// The adapter does it.
    Pass,
    /// It does not, or did not answer in time.
    Fail,
    /// Nothing was found out; the note says why.
    Skip,
}

/// What a check saw.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Observed {
    /// How it went.
    pub verdict: Verdict,
    /// In one line: what failed and what that means, why nothing was found out, or what was measured; may be empty after a pass.
    pub note: String,
}

/// A check and what it saw.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// Which.
    pub check: Check,
    /// How it went.
    pub verdict: Verdict,
    /// As in [`Observed::note`].
    pub note: String,
}

impl Verdict {
    /// `pass`, `fail` or `skip`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Fail => "fail",
            Self::Skip => "skip",
        }
    }
}

impl Observed {
    /// A pass.
    #[must_use]
    pub fn pass(note: impl Into<String>) -> Self {
        Self::new(Verdict::Pass, note)
    }

    /// A failure.
    #[must_use]
    pub fn fail(note: impl Into<String>) -> Self {
        Self::new(Verdict::Fail, note)
    }

    /// Nothing found out.
    #[must_use]
    pub fn skip(note: impl Into<String>) -> Self {
        Self::new(Verdict::Skip, note)
    }

    fn new(verdict: Verdict, note: impl Into<String>) -> Self {
        let note = note.into();
        Self { verdict, note }
    }
}

/// How a check went; `None` if it is not among the findings.
#[must_use]
pub fn verdict_of(findings: &[Finding], check: Check) -> Option<Verdict> {
    let found = findings.iter().find(|finding| finding.check == check);
    found.map(|finding| finding.verdict)
}
