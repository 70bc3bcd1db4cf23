//! The self-test: what an engine needs to know of an adapter that no query tells.

use std::net::IpAddr;
use std::ops::ControlFlow;
use std::time::Duration;

use super::Adapter;
use crate::probe::{
    Check, Choice, Finding, KeyMode, Misfit, Plan, Verdict, choose, decides, fits, run, verdict_of,
};
use crate::verbs::config::{KnownCaps, VerbsConfig};
use crate::verbs::error::VerbsError;

/// What a self-test has found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Learned {
    /// For [`VerbsConfig::known`]: what was known before, and what was found out beside it.
    pub known: KnownCaps,
    /// What was seen, for reports.
    pub findings: Vec<Finding>,
}

/// Checks that give a [`KnownCaps`] and that no key mode needs.
const LEARNED: &[Check] = &[
    Check::WindowAtomics,
    Check::ChainStops,
    Check::DeallocHealthy,
    Check::InvalidateChecks,
];

/// Of one check.
const DEADLINE: Duration = Duration::from_secs(30);
const ROUNDS: u32 = 2;

/// Tests an adapter on connections of its own, on threads of its own, and gives all up again. That takes some seconds, most of them until retries
/// run out (10 on Soft-RoCE in an emulated guest); who names the key mode can do without. Never posts what could stop a host. `host` is as in
/// [`Adapter::find`]: an address of the adapter's own interface, such as the one that the engine will listen on.
///
/// Call it before the engine's device is opened, hand [`Learned::known`] to that one's configuration, and let [`Learned::choose`] or
/// [`Learned::fits`] decide the key mode.
///
/// # Errors
/// The adapter can't be opened, or has no address. What it does wrong is no error but a finding.
pub fn self_test(config: &VerbsConfig, host: Option<IpAddr>) -> Result<Learned, VerbsError> {
    let adapter = Adapter::find(config, host)?;
    let checks: Vec<_> = Check::ALL.iter().copied().filter(is_fast).collect();
    let plan = Plan {
        checks: &checks,
        dangerous: false,
        deadline: DEADLINE,
        rounds: ROUNDS,
    };
    let findings = run(&plan, &adapter, &mut |_| ControlFlow::Continue(()));
    Ok(Learned {
        known: known(config.known, &findings),
        findings,
    })
}

impl Learned {
    /// What `key_mode = "auto"` comes to, and why.
    #[must_use]
    pub fn choose(&self) -> Choice {
        choose(&self.findings)
    }

    /// Whether a key mode that a file names can be used; what to warn of, if so.
    ///
    /// # Errors
    /// What the adapter can't do in this mode.
    pub fn fits(&self, mode: KeyMode) -> Result<Option<String>, Misfit> {
        fits(mode, &self.findings)
    }
}

fn is_fast(check: &Check) -> bool {
    LEARNED.contains(check) || decides(*check)
}

/// What is known with these findings. What was known before stays: somebody has said so.
fn known(before: KnownCaps, findings: &[Finding]) -> KnownCaps {
    let learned = |before: Option<bool>, check| {
        before.or(match verdict_of(findings, check) {
            Some(Verdict::Pass) => Some(true),
            Some(Verdict::Fail) => Some(false),
            Some(Verdict::Skip) | None => None,
        })
    };
    // That a second invalidation is refused can't be tried, so nothing is known for good; only that it is bad.
    let bad = |found: Option<bool>| found.filter(|good| !good);
    KnownCaps {
        window_bounds: learned(before.window_bounds, Check::WindowBounds),
        window_scope: learned(before.window_scope, Check::WindowScope),
        window_atomics: learned(before.window_atomics, Check::WindowAtomics),
        chain_stops: learned(before.chain_stops, Check::ChainStops),
        dealloc_fences: learned(before.dealloc_fences, Check::DeallocHealthy),
        invalidate_checks: before
            .invalidate_checks
            .or(bad(learned(None, Check::InvalidateChecks))),
        ..before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(verdict: Verdict) -> Vec<Finding> {
        let finding = |check: &Check| Finding {
            check: *check,
            verdict,
            note: String::new(),
        };
        Check::ALL.iter().map(finding).collect()
    }

    const NOTHING: KnownCaps = KnownCaps {
        window_bounds: None,
        window_scope: None,
        window_atomics: None,
        chain_stops: None,
        dealloc_fences: None,
        invalidate_checks: None,
        software: None,
    };

    #[test]
    fn a_pass_is_known_to_be_and_a_failure_not_to_be() {
        let all = |found| KnownCaps {
            window_bounds: found,
            window_scope: found,
            window_atomics: found,
            chain_stops: found,
            dealloc_fences: found,
            invalidate_checks: found,
            software: None,
        };
        let good = known(NOTHING, &findings(Verdict::Pass));
        // Nobody has tried a second one.
        let wanted = KnownCaps {
            invalidate_checks: None,
            ..all(Some(true))
        };
        assert_eq!(good, wanted);
        assert_eq!(known(NOTHING, &findings(Verdict::Fail)), all(Some(false)));
        assert_eq!(known(NOTHING, &findings(Verdict::Skip)), NOTHING);
        assert_eq!(known(NOTHING, &[]), NOTHING);
    }

    #[test]
    fn what_is_known_before_stays() {
        let before = KnownCaps {
            window_bounds: Some(false),
            invalidate_checks: Some(true),
            software: Some(true),
            ..NOTHING
        };
        let after = known(before, &findings(Verdict::Pass));
        assert_eq!(after.window_bounds, Some(false));
        assert_eq!(after.invalidate_checks, Some(true));
        assert_eq!(after.software, Some(true));
        assert_eq!(after.chain_stops, Some(true));
    }

    #[test]
    fn the_self_test_does_what_decides_and_nothing_that_can_stop_the_host() {
        let fast: Vec<_> = Check::ALL.iter().copied().filter(is_fast).collect();
        let deciding = Check::ALL.iter().copied().filter(|check| decides(*check));
        for wanted in deciding.chain(LEARNED.iter().copied()) {
            assert!(fast.contains(&wanted), "{wanted:?}");
        }
        assert!(!fast.contains(&Check::DoubleInvalidation));
    }
}
