//! What a command found, as the one JSON object of `--json`.

mod check;
mod copy;
mod latency;
mod perf;
#[cfg(feature = "plant")]
mod plants;
mod probe;
mod run;
mod sim;
#[cfg(test)]
mod tests;

use keyfence::config::ConfigErrors;
use serde::Serialize;

pub use check::{BudgetItem, CheckReport, CheckedFiles, EngineCheck, FileCheck, ReclaimBound};
pub use copy::*;
pub use latency::*;
pub use perf::*;
#[cfg(feature = "plant")]
pub use plants::*;
pub use probe::*;
pub use run::*;
pub use sim::*;

use crate::exit::Exit;

/// The version of these objects. A reader may rely on the fields of its version; new fields may come.
const VERSION: u32 = 1;

/// A command that has ended.
pub struct Finished {
    /// With what.
    pub exit: Exit,
    /// For machines.
    pub report: Report,
    /// For people, on stdout. Errors are not repeated in it.
    pub text: String,
}

/// The object of `--json`.
#[derive(Serialize, Debug)]
pub struct Report {
    /// The version of these fields.
    pub version: u32,
    /// The command; none where the command line named none.
    pub command: Option<String>,
    /// Whether the exit code is 0.
    pub ok: bool,
    /// The device of the first engine; none where the configuration did not get so far.
    pub device: Option<String>,
    /// All that went wrong.
    pub errors: Vec<Problem>,
    /// The command's own fields; none if it ended before it had any.
    #[serde(flatten)]
    pub body: Option<Body>,
}

/// The fields that one command adds.
#[derive(Serialize, Debug)]
#[serde(untagged)]
pub enum Body {
    /// Of `check`.
    Check(CheckReport),
    /// Of `run`.
    Run(Box<RunReport>),
    /// Of `--plant list`.
    #[cfg(feature = "plant")]
    Plants(PlantsReport),
    /// Of `copy`.
    Copy(Box<CopyReport>),
    /// Of `perf`.
    Perf(Box<PerfBody>),
    /// Of `probe`.
    Probe(ProbeBody),
    /// Of `sim`.
    Sim(Box<SimBody>),
}

/// One thing that went wrong.
#[derive(Serialize, Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    /// In a line, what stderr shows too.
    pub message: String,
    /// Where, if it is in a configuration file.
    #[serde(flatten)]
    pub place: Option<Place>,
}

/// A place in a configuration file.
#[derive(Serialize, Clone, PartialEq, Eq, Debug)]
pub struct Place {
    /// The file.
    pub file: String,
    /// Counted from 1.
    pub line: usize,
    /// In characters, counted from 1.
    pub column: usize,
    /// The key with its tables.
    pub key: String,
    /// What is wrong.
    pub what: String,
    /// What is allowed.
    pub allowed: String,
}

impl Report {
    /// The report of a command with these errors and nothing else. `ok` if there is none.
    pub fn new(command: Option<&str>, errors: Vec<Problem>) -> Self {
        Self {
            version: VERSION,
            command: command.map(str::to_owned),
            ok: errors.is_empty(),
            device: None,
            errors,
            body: None,
        }
    }
}

impl Problem {
    /// A problem that has no place in a file.
    pub fn text(message: &str) -> Self {
        Self {
            message: message.into(),
            place: None,
        }
    }

    /// All that is wrong with a file.
    pub fn of_config(errors: &ConfigErrors) -> Vec<Self> {
        let problem = |error: &keyfence::config::ConfigError| Self {
            message: error.to_string(),
            place: Some(Place {
                file: error.file.clone(),
                line: error.line,
                column: error.column,
                key: error.key.clone(),
                what: error.what.clone(),
                allowed: error.allowed.clone(),
            }),
        };
        errors.as_slice().iter().map(problem).collect()
    }
}
