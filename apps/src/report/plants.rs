//! The fields of `--plant list`.

use serde::Serialize;

/// The planted faults that there are.
#[derive(Serialize, Clone, PartialEq, Eq, Debug)]
pub struct PlantsReport {
    /// Each of them.
    pub plants: Vec<PlantReport>,
}

/// One planted fault.
#[derive(Serialize, Clone, PartialEq, Eq, Debug)]
pub struct PlantReport {
    /// Its name on the command line.
    pub name: &'static str,
    /// The fault that it stands for.
    pub stands_for: &'static str,
    /// The check that sees it.
    pub caught_by: &'static str,
}
