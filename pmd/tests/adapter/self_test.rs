//! The self-test that an engine does at its start.

use std::net::IpAddr;

use super::{Outcome, ensure, text};
use keyfence_pmd::probe::KeyMode;
use keyfence_pmd::verbs::{KnownCaps, VerbsConfig, self_test};

/// From knowing nothing it learns what the configuration says of the adapter, as far as that can be learned; with an address given and without.
pub fn learns(config: &VerbsConfig, host: &str) -> Outcome {
    let measured = config.known;
    let ignorant = VerbsConfig {
        known: KnownCaps {
            software: measured.software,
            ..KnownCaps::default()
        },
        ..config.clone()
    };
    let address: IpAddr = host.parse().map_err(text)?;
    for host in [Some(address), None] {
        let learned = self_test(&ignorant, host).map_err(text)?;
        let findings = &learned.findings;
        ensure(
            learned.known == measured,
            format!("learned {:?}: {findings:?}", learned.known),
        )?;
        let choice = learned.choose();
        ensure(
            choice.mode == Some(KeyMode::Region),
            format!("chose {choice:?}"),
        )?;
        match learned.fits(KeyMode::Window) {
            Ok(warning) => {
                let warned = warning.is_some_and(|text| text.contains("window_bounds fail"));
                ensure(warned, "no warning of window_bounds")?;
            }
            // On a quiet machine all may have landed before each invalidation: that proves nothing, so windows are not proven to fit. Anything else is a fault.
            Err(misfit) => ensure(
                misfit.reason == "invalidation_in_flight skip",
                misfit.to_string(),
            )?,
        }
    }
    Ok(())
}
