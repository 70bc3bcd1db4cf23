//! The fields of `check`.

use serde::Serialize;

/// What `check` found.
#[derive(Serialize, Debug)]
pub struct CheckReport {
    /// The check.
    pub check: CheckedFiles,
}

/// The files that were checked.
#[derive(Serialize, Debug)]
pub struct CheckedFiles {
    /// In the order of the command line.
    pub files: Vec<FileCheck>,
}

/// One file.
#[derive(Serialize, Debug)]
pub struct FileCheck {
    /// As the command line named it.
    pub file: String,
    /// Whether it is legal.
    pub ok: bool,
    /// Its engines; none if it isn't legal.
    pub engines: Vec<EngineCheck>,
}

/// One engine of a file.
#[derive(Serialize, Debug)]
pub struct EngineCheck {
    /// Its name.
    pub name: String,
    /// Its device.
    pub device: String,
    /// The CPU of each of its lcores.
    pub lcores: Vec<u32>,
    /// Its lanes to all peers.
    pub lanes: u32,
    /// Bytes of its arena.
    pub arena_bytes: u64,
    /// What takes them.
    pub budget: Vec<BudgetItem>,
    /// The sum of the budget.
    pub budget_bytes: u64,
    /// How long a reclaim may take.
    pub reclaim_bound: ReclaimBound,
    /// What it asks for that this machine does not have now: `run` would fail here.
    pub missing_here: Vec<String>,
}

/// One consumer of an arena.
#[derive(Serialize, Debug)]
pub struct BudgetItem {
    /// Who.
    pub consumer: &'static str,
    /// How much.
    pub bytes: u64,
}

/// The bound of a reclaim: fence + invalidate + drain + 3 x control + keys x per key.
#[derive(Serialize, Debug)]
pub struct ReclaimBound {
    /// Until the holders have answered.
    pub fence_ns: u64,
    /// Until the keys are invalidated.
    pub invalidate_ns: u64,
    /// Until a sacrificed lane is drained.
    pub drain_ns: u64,
    /// Of one control call.
    pub control_ns: u64,
    /// The most keys of the engine: its control thread serves them all.
    pub keys: u32,
    /// For each key.
    pub per_key_ns: u64,
    /// The sum.
    pub total_ns: u64,
    /// The bound of an orderly end, which the sum stays below.
    pub shutdown_ns: u64,
}
