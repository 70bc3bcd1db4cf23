//! RDMA adapters.

use anyhow::Context;
use keyfence::EngineBuilder;
use keyfence::config::VerbsConfig as Settings;
use keyfence::pmd::verbs::{VerbsConfig, VerbsDevice};

/// The adapter, opened for each engine and sized for it; and the engines, told how their keys are made.
pub fn devices(
    settings: &Settings,
    builders: Vec<EngineBuilder>,
) -> anyhow::Result<(Vec<EngineBuilder>, Vec<VerbsDevice>)> {
    let open = |builder: &EngineBuilder| {
        let device = VerbsDevice::open(config(settings, builder));
        device.with_context(|| format!("engine {}: device verbs", builder.name()))
    };
    let devices = builders.iter().map(open).collect::<anyhow::Result<_>>()?;
    let key_mode = settings.key_mode.unwrap_or_default();
    let told = builders
        .into_iter()
        .map(|builder| builder.key_mode(key_mode));
    Ok((told.collect(), devices))
}

/// The driver's view of the file's settings.
fn config(settings: &Settings, builder: &EngineBuilder) -> VerbsConfig {
    let needs = builder.device_needs();
    VerbsConfig {
        device: settings.device.clone(),
        port: settings.port as u8,
        gid_index: settings.gid_index.map(|index| index as u8),
        mtu_bytes: settings.mtu_bytes,
        traffic_class: settings.traffic_class as u8,
        retry_count: settings.retry_count as u8,
        rnr_retry_count: settings.rnr_retry_count as u8,
        ack_timeout_exponent: settings.ack_timeout_exponent as u8,
        max_lcores: needs.lcores,
        max_qps: needs.qps,
        max_windows: needs.windows,
        max_regions: needs.regions,
        max_depth: needs.depth,
        completions: needs.completions,
        ..VerbsConfig::default()
    }
}
