//! RDMA adapters.

use std::net::IpAddr;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};
use keyfence::EngineBuilder;
use keyfence::config::{KeyMode, VerbsConfig as Settings};
use keyfence::pmd::Control;
use keyfence::pmd::probe::{self, Verdict};
use keyfence::pmd::verbs::{KnownCaps, Learned, VerbsConfig, VerbsDevice, self_test};

/// The adapter, opened for each engine and sized for it; and the engines, told how their keys are made. Tests the adapter first if that is left to it.
pub fn devices(
    settings: &Settings,
    host: Option<IpAddr>,
    builders: Vec<EngineBuilder>,
    interrupted: &dyn Fn() -> bool,
) -> anyhow::Result<(Vec<EngineBuilder>, Vec<VerbsDevice>)> {
    let (key_mode, known) = match settings.key_mode {
        Some(named) => (named, KnownCaps::default()),
        None => tested(settings, host, interrupted).context("device verbs")?,
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
fn tested(
    settings: &Settings,
    host: Option<IpAddr>,
    interrupted: &dyn Fn() -> bool,
) -> anyhow::Result<(KeyMode, KnownCaps)> {
    tracing::info!("key_mode \"auto\": testing the adapter, some seconds");
    let path = path(settings);
    let learned = unless(interrupted, move || self_test(&path, host))
        .context("the test of the adapter that key_mode \"auto\" needs")??;
    let choice = learned.choose();
    let Some(mode) = choice.mode else {
        bail!("no key mode: {}{}", choice.reason, first_failure(&learned));
    };
    tracing::info!("key_mode \"{}\": {}", mode.name(), choice.reason);
    Ok((mode, learned.known))
}

/// What the first test that failed saw: what hinders one often hinders all.
fn first_failure(learned: &Learned) -> String {
    let failed = |finding: &&probe::Finding| finding.verdict == Verdict::Fail;
    let first = learned.findings.iter().find(failed);
    first.map_or_else(String::new, |first| {
        format!("; {}: {}", first.check.name(), first.note)
    })
}

/// Does `work` on a thread of its own, and gives it up at an interruption: a test may wait some seconds for retries to run out. What that thread holds
/// ends with the process.
fn unless<T: Send + 'static>(
    interrupted: &dyn Fn() -> bool,
    work: impl FnOnce() -> T + Send + 'static,
) -> anyhow::Result<T> {
    const LOOK: Duration = Duration::from_millis(20);
    let (done, result) = mpsc::channel();
    let thread = thread::Builder::new().name("self-test".into());
    thread.spawn(move || {
        // Nobody waits any more if it was given up.
        let _ = done.send(work());
    })?;
    loop {
        match result.recv_timeout(LOOK) {
            Ok(result) => return Ok(result),
            Err(RecvTimeoutError::Timeout) if interrupted() => bail!("interrupted by a signal"),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => bail!("it panicked"),
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b15_what_takes_long_is_given_up_at_a_signal() {
        let (never, wait) = mpsc::channel::<()>();
        let given_up = unless(&|| true, move || wait.recv());
        assert!(given_up.unwrap_err().to_string().contains("interrupted"));
        drop(never);
        assert_eq!(unless(&|| false, || 7).unwrap(), 7);
    }

    #[test]
    fn without_a_key_mode_the_first_failure_is_told() {
        let finding = |check, verdict, note: &str| probe::Finding {
            check,
            verdict,
            note: note.into(),
        };
        let learned = Learned {
            known: KnownCaps::default(),
            findings: vec![
                finding(probe::Check::ALL[0], Verdict::Skip, "skipped"),
                finding(probe::Check::ALL[1], Verdict::Fail, "no such address"),
                finding(probe::Check::ALL[2], Verdict::Fail, "nor this"),
            ],
        };
        let said = first_failure(&learned);
        assert!(
            said.contains("no such address") && !said.contains("nor"),
            "{said}"
        );
    }
}
