//! Fresh pairs of `soft` devices for the suite, and the wrong ones that it must reject.

mod rejects;
mod soft;

use keyfence_pmd::Device;
use keyfence_pmd::conformance::{self, Verdict};
use keyfence_pmd::soft::{SoftConfig, SoftDevice};

pub use soft::{arenas, soft, soft_on};

/// Runs the whole suite on decorated devices and gives what did not pass.
pub fn failures<D: Device>(
    config: &SoftConfig,
    mut decorate: impl FnMut(SoftDevice) -> D,
) -> Vec<String> {
    let arenas = arenas();
    let mut setup = || Ok(soft_on(&arenas, config).map(&mut decorate));
    let reports = conformance::run(&mut setup).expect("a setup that never fails");
    reports
        .iter()
        .filter(|report| report.verdict != Verdict::Pass)
        .map(ToString::to_string)
        .collect()
}
