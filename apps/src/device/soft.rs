//! Software adapters.

use keyfence::pmd::soft::{Fabric, SoftConfig, SoftDevice};

/// One for each of `count` engines, on one fabric.
pub fn devices(count: usize) -> anyhow::Result<Vec<SoftDevice>> {
    let fabric = Fabric::new();
    let device = |_| Ok(fabric.device(SoftConfig::default())?);
    (0..count).map(device).collect()
}
