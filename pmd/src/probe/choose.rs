//! How keys are made on an adapter, decided from findings alone.

use super::check::Check;
use super::{Finding, Verdict, verdict_of};

/// How a grant's key is made.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum KeyMode {
    /// `"window"`: a type-2B memory window a grant, bound and invalidated through the send queue.
    #[default]
    Window,
    /// `"region"`: a memory region a grant, in a protection domain a peer.
    Region,
}

/// A key mode, and what speaks for it or against it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Choice {
    /// The mode; `None` if the adapter can't do what reclaim needs in either.
    pub mode: Option<KeyMode>,
    /// Why, in a sentence.
    pub reason: String,
}

/// A key mode that the adapter can't keep the promises in at all. Display says why.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("key_mode \"{}\" can't be used on this adapter: {reason}", mode.name())]
pub struct Misfit {
    /// The mode.
    pub mode: KeyMode,
    /// What is missing.
    pub reason: String,
}

/// What reclaim needs, however keys are made.
const ALWAYS: &[Check] = &[
    Check::FlushOnError,
    Check::FiniteRetries,
    Check::DestroyInFlight,
    Check::OwnReadsDestroyed,
    Check::OwnReadsFlushed,
    Check::ArenaKey,
];

/// What it needs where keys are windows.
const WINDOW: &[Check] = &[
    Check::Windows,
    Check::DeadKey,
    Check::InvalidationInFlight,
    Check::DeallocSick,
];

/// What makes a window confine its holder and leave others' alone.
const WINDOW_CONFINES: &[Check] = &[Check::WindowBounds, Check::WindowRights, Check::WindowScope];

/// What it needs where keys are regions. There is no mode to fall back to from here, so confinement is among it.
const REGION: &[Check] = &[
    Check::RegionBounds,
    Check::RegionRights,
    Check::RegionScope,
    Check::DeregistrationInFlight,
];

/// Whether [`choose`] and [`fits`] look at a check.
#[must_use]
pub fn decides(check: Check) -> bool {
    [ALWAYS, WINDOW, WINDOW_CONFINES, REGION]
        .iter()
        .any(|of| of.contains(&check))
        || check == Check::SendWithInvScope
}

impl KeyMode {
    /// `window` or `region`, as in a configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Window => "window",
            Self::Region => "region",
        }
    }

    fn needs(self) -> impl Iterator<Item = Check> {
        let own = match self {
            Self::Window => WINDOW,
            Self::Region => REGION,
        };
        ALWAYS.iter().chain(own).copied()
    }
}

/// What `key_mode = "auto"` comes to: windows, if the adapter confines their keys by byte range, rights and queue pair; else regions.
/// What was not found out does not speak for a mode.
#[must_use]
pub fn choose(findings: &[Finding]) -> Choice {
    let window = missing(findings, KeyMode::Window);
    let leaks = leaks(findings);
    if window.is_empty() && leaks.is_empty() {
        return Choice {
            mode: Some(KeyMode::Window),
            reason: "windows confine a key to its byte range, its rights and its queue pair, and can be taken back".into(),
        };
    }
    let against = list(&[window, leaks].concat());
    let region = missing(findings, KeyMode::Region);
    if region.is_empty() {
        return Choice {
            mode: Some(KeyMode::Region),
            reason: format!(
                "windows won't do ({against}); a region a grant in a protection domain a peer will"
            ),
        };
    }
    Choice {
        mode: None,
        reason: format!(
            "neither will do: windows for {against}; regions for {}",
            list(&region)
        ),
    }
}

/// Whether a key mode that a configuration names can be used, and what to warn of if so: what confines a key there is the peer's own engine.
///
/// # Errors
/// What the adapter can't do at all in this mode.
pub fn fits(mode: KeyMode, findings: &[Finding]) -> Result<Option<String>, Misfit> {
    let missing = missing(findings, mode);
    if !missing.is_empty() {
        let reason = list(&missing);
        return Err(Misfit { mode, reason });
    }
    let leaks = leaks(findings);
    if mode == KeyMode::Region || leaks.is_empty() {
        return Ok(None);
    }
    Ok(Some(format!(
        "key_mode \"window\" on an adapter whose windows don't confine their keys ({}): only for peers that are trusted to keep to their grants",
        list(&leaks)
    )))
}

/// What a mode needs and the findings don't show, with how it went.
fn missing(findings: &[Finding], mode: KeyMode) -> Vec<(Check, &'static str)> {
    without_pass(findings, mode.needs())
}

/// What is lacking of a window's confinement. A SEND_WITH_INV that the adapter does not have does no harm.
fn leaks(findings: &[Finding]) -> Vec<(Check, &'static str)> {
    let mut leaks = without_pass(findings, WINDOW_CONFINES.iter().copied());
    let inv = Check::SendWithInvScope;
    match verdict_of(findings, inv) {
        Some(Verdict::Pass | Verdict::Skip) => {}
        Some(Verdict::Fail) => leaks.push((inv, "fail")),
        None => leaks.push((inv, "not done")),
    }
    leaks
}

fn without_pass(
    findings: &[Finding],
    checks: impl Iterator<Item = Check>,
) -> Vec<(Check, &'static str)> {
    let how = |check| match verdict_of(findings, check) {
        Some(Verdict::Pass) => None,
        Some(other) => Some((check, other.name())),
        None => Some((check, "not done")),
    };
    checks.filter_map(how).collect()
}

fn list(checks: &[(Check, &'static str)]) -> String {
    let each = checks
        .iter()
        .map(|(check, how)| format!("{} {how}", check.name()));
    each.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Everything passes but these.
    fn but(others: &[(Check, Verdict)]) -> Vec<Finding> {
        let verdict = |check| {
            let other = others.iter().find(|(of, _)| *of == check);
            other.map_or(Verdict::Pass, |(_, verdict)| *verdict)
        };
        let finding = |check: &Check| Finding {
            check: *check,
            verdict: verdict(*check),
            note: String::new(),
        };
        Check::ALL.iter().map(finding).collect()
    }

    fn mode(others: &[(Check, Verdict)]) -> Option<KeyMode> {
        choose(&but(others)).mode
    }

    #[test]
    fn windows_that_confine_their_keys_are_chosen() {
        let choice = choose(&but(&[]));
        assert_eq!(choice.mode, Some(KeyMode::Window));
        assert!(
            choice
                .reason
                .contains("byte range, its rights and its queue pair")
        );
        assert_eq!(fits(KeyMode::Window, &but(&[])), Ok(None));
        assert_eq!(fits(KeyMode::Region, &but(&[])), Ok(None));
    }

    #[test]
    fn windows_that_do_not_are_not_chosen_and_may_be_named_with_a_warning() {
        for check in WINDOW_CONFINES.iter().chain(&[Check::SendWithInvScope]) {
            let findings = but(&[(*check, Verdict::Fail)]);
            let choice = choose(&findings);
            assert_eq!(choice.mode, Some(KeyMode::Region), "{check:?}");
            let word = format!("{} fail", check.name());
            assert!(choice.reason.contains(&word), "{}", choice.reason);
            let warning = fits(KeyMode::Window, &findings);
            let warning = warning.expect("it works").expect("it does not confine");
            assert!(
                warning.contains(&word) && warning.contains("trusted"),
                "{warning}"
            );
            assert_eq!(fits(KeyMode::Region, &findings), Ok(None));
        }
    }

    #[test]
    fn windows_that_do_not_work_are_not_chosen_and_must_not_be_named() {
        for check in WINDOW {
            for verdict in [Verdict::Fail, Verdict::Skip] {
                let findings = but(&[(*check, verdict)]);
                assert_eq!(choose(&findings).mode, Some(KeyMode::Region), "{check:?}");
                let misfit = fits(KeyMode::Window, &findings).expect_err("it does not work");
                let word = format!("{} {}", check.name(), verdict.name());
                assert!(misfit.to_string().contains(&word), "{misfit}");
            }
        }
    }

    #[test]
    fn regions_are_no_way_out_where_they_do_not_confine_or_end() {
        let without_windows: Vec<_> = WINDOW.iter().map(|check| (*check, Verdict::Skip)).collect();
        assert_eq!(mode(&without_windows), Some(KeyMode::Region));
        for check in REGION {
            let mut others = without_windows.clone();
            others.push((*check, Verdict::Fail));
            assert_eq!(mode(&others), None, "{check:?}");
            // Windows that confine do without regions.
            assert_eq!(mode(&[(*check, Verdict::Fail)]), Some(KeyMode::Window));
            let misfit = fits(KeyMode::Region, &but(&others)).expect_err("it does not work");
            assert!(misfit.reason.contains(check.name()));
        }
    }

    #[test]
    fn what_both_need_leaves_nothing() {
        for check in ALWAYS {
            for verdict in [Verdict::Fail, Verdict::Skip] {
                let findings = but(&[(*check, verdict)]);
                let choice = choose(&findings);
                assert_eq!(choice.mode, None, "{check:?}");
                assert!(choice.reason.contains(check.name()), "{}", choice.reason);
                assert!(fits(KeyMode::Window, &findings).is_err());
                assert!(fits(KeyMode::Region, &findings).is_err());
            }
        }
    }

    #[test]
    fn what_was_not_found_out_speaks_for_nothing() {
        assert_eq!(choose(&[]).mode, None);
        assert!(choose(&[]).reason.contains("window_bounds not done"));
        assert_eq!(
            mode(&[(Check::WindowBounds, Verdict::Skip)]),
            Some(KeyMode::Region)
        );
    }

    #[test]
    fn what_no_mode_needs_changes_nothing() {
        for check in Check::ALL {
            if !decides(*check) {
                let choice = mode(&[(*check, Verdict::Fail)]);
                assert_eq!(choice, Some(KeyMode::Window), "{check:?}");
            }
        }
    }

    /// A peer can't do with SEND_WITH_INV what the adapter does not do.
    #[test]
    fn an_adapter_without_send_with_inv_is_no_worse() {
        let skip = [(Check::SendWithInvScope, Verdict::Skip)];
        assert_eq!(mode(&skip), Some(KeyMode::Window));
        assert_eq!(fits(KeyMode::Window, &but(&skip)), Ok(None));
    }
}
