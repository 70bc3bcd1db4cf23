//! RDMA adapters.

use std::net::IpAddr;

use anyhow::{Context, bail};
use keyfence::EngineBuilder;
use keyfence::config::{KeyMode, VerbsConfig as Settings};
use keyfence::pmd::Control;
use keyfence::pmd::verbs::{KnownCaps, VerbsConfig, VerbsDevice, self_test};

/// The adapter, opened for each engine and sized for it; and the engines, told how their keys are made. Tests the adapter first if that is left to it.
pub fn devices(
    settings: &Settings,
    host: Option<IpAddr>,
    builders: Vec<EngineBuilder>,
) -> anyhow::Result<(Vec<EngineBuilder>, Vec<VerbsDevice>)> {
    let (key_mode, known) = match settings.key_mode {
        Some(named) => (named, KnownCaps::default()),
        None => tested(settings, host).context("device verbs")?,
    };
    let told = builders
        .into_iter()
        .map(|builder| builder.key_mode(key_mode));
    // What a device must have room for goes by the key mode.
    let builders: Vec<_> = told.collect();
    let open = |builder: &EngineBuilder| {
        let config = VerbsConfig {
            known,
            ..config(settings, builder)
        };
        let device = VerbsDevice::open(config);
        device.with_context(|| format!("engine {}: device verbs", builder.name()))
    };
    let devices: Vec<VerbsDevice> = builders.iter().map(open).collect::<anyhow::Result<_>>()?;
    let is_confined = devices.iter().all(|device| device.caps().window_bounds);
    if key_mode == KeyMode::Window && !is_confined {
        tracing::warn!(
            "key_mode \"window\", and the adapter is not known to keep a key to its byte range: for peers that are trusted to keep to their grants; \
             key_mode \"auto\" tests it, `keyfence probe` shows what it does"
        );
    }
    Ok((builders, devices))
}

/// What a self-test finds of the adapter, and the key mode that follows.
fn tested(settings: &Settings, host: Option<IpAddr>) -> anyhow::Result<(KeyMode, KnownCaps)> {
    tracing::info!("key_mode \"auto\": testing the adapter, some seconds");
    let learned = self_test(&path(settings), host)?;
    let choice = learned.choose();
    let Some(mode) = choice.mode else {
        bail!("no key mode: {}", choice.reason);
    };
    tracing::info!("key_mode \"{}\": {}", mode.name(), choice.reason);
    Ok((mode, learned.known))
}

/// The driver's configuration for one engine.
fn config(settings: &Settings, builder: &EngineBuilder) -> VerbsConfig {
    let needs = builder.device_needs();
    VerbsConfig {
        max_lcores: needs.lcores,
        max_qps: needs.qps,
        max_windows: needs.windows,
        max_regions: needs.regions,
        max_depth: needs.depth,
        completions: needs.completions,
        ..path(settings)
    }
}

/// The file's settings as the driver has them.
fn path(settings: &Settings) -> VerbsConfig {
    VerbsConfig {
        device: settings.device.clone(),
        port: settings.port as u8,
        gid_index: settings.gid_index.map(|index| index as u8),
        mtu_bytes: settings.mtu_bytes,
        traffic_class: settings.traffic_class as u8,
        retry_count: settings.retry_count as u8,
        rnr_retry_count: settings.rnr_retry_count as u8,
        ack_timeout_exponent: settings.ack_timeout_exponent as u8,
        ..VerbsConfig::default()
    }
}
