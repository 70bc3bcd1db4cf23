//! The probe on `soft`, which passes, and on devices that break one rule of the contract, each of which fails the check that asks for it.

#[path = "conform/soft.rs"]
mod devices;

use std::ops::ControlFlow;
use std::sync::mpsc;
use std::time::Duration;

use devices::soft;
use keyfence_pmd::Device;
use keyfence_pmd::probe::{
    Check, Finding, KeyMode, Need, Observed, Pair, Plan, Subject, SuiteOnly, Verdict, choose, run,
};
use keyfence_pmd::soft::SoftDevice;
use keyfence_pmd::wrap::wrong::{Rule, World, Wrong};

const PLAN: Plan<'_> = Plan {
    checks: Check::ALL,
    dangerous: true,
    deadline: Duration::from_secs(300),
    rounds: 2,
};

fn pair<D: Device>(mut decorate: impl FnMut(SoftDevice) -> D) -> Result<Pair<D>, String> {
    let setup = soft().map(&mut decorate);
    Ok(Pair {
        a: setup.a,
        b: setup.b,
        address: setup.address,
        // What never comes need not be waited for as long as elsewhere.
        poll_limit: 1000,
        settle_polls: setup.settle_polls,
        pause: setup.pause,
    })
}

fn good() -> Result<Pair<SoftDevice>, String> {
    pair(|device| device)
}

fn go_on(_: &Finding) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn found(findings: &[Finding], check: Check) -> &Finding {
    let mut of = findings.iter().filter(|finding| finding.check == check);
    of.next().expect("the check was done")
}

#[test]
fn soft_passes_everything_and_gets_windows() {
    let mut told = Vec::new();
    let findings = run(&PLAN, &SuiteOnly(good), &mut |finding| {
        told.push(finding.clone());
        ControlFlow::Continue(())
    });
    assert_eq!(told, findings);
    let checks: Vec<_> = findings.iter().map(|finding| finding.check).collect();
    assert_eq!(checks, Check::ALL);
    for finding in &findings {
        let wanted = match finding.check {
            // Not of the contract.
            Check::SendWithInvScope | Check::Fork => Verdict::Skip,
            // The machine may have no free hugepages.
            Check::Hugepages if finding.verdict == Verdict::Skip => {
                assert!(finding.note.contains("huge"), "{finding:?}");
                continue;
            }
            _ => Verdict::Pass,
        };
        assert_eq!(finding.verdict, wanted, "{finding:?}");
    }
    assert_eq!(choose(&findings).mode, Some(KeyMode::Window));
}

/// For each check that the contract can express, a rule whose breach it must see.
const FAILED_BY: &[(Check, Rule)] = &[
    (Check::Limits, Rule::CutsEntries),
    (Check::Windows, Rule::AcceptsDeadKey),
    (Check::WindowBounds, Rule::IgnoresBounds),
    (Check::WindowRights, Rule::IgnoresRights),
    (Check::WindowScope, Rule::IgnoresScope),
    (Check::WindowAtomics, Rule::IgnoresRights),
    (Check::DeadKey, Rule::AcceptsDeadKey),
    (Check::DeadKey, Rule::IgnoresTag),
    (Check::TagWrap, Rule::IgnoresTag),
    (Check::InvalidationInFlight, Rule::CompletesInvalidateEarly),
    (Check::DeallocHealthy, Rule::DeallocDoesNotFence),
    (Check::DeallocSick, Rule::FlushReportsSuccess),
    (Check::DeregistrationInFlight, Rule::DeregisterDoesNotFence),
    (Check::DestroyInFlight, Rule::DestroyDoesNotFence),
    (Check::OwnReadsDestroyed, Rule::DestroyDoesNotFence),
    (Check::OwnReadsFlushed, Rule::FlushesEarly),
    (Check::FlushOnError, Rule::FlushReportsSuccess),
    (Check::FiniteRetries, Rule::RetriesForEver),
    (Check::ChainStops, Rule::ChainRunsOn),
    (Check::InvalidateChecks, Rule::InvalidateIgnoresQueuePair),
    (Check::DoubleInvalidation, Rule::InvalidateIgnoresTag),
    (Check::ArenaKey, Rule::ArenaKeyOpens),
    (Check::RegionBounds, Rule::IgnoresBounds),
    (Check::RegionRights, Rule::IgnoresRights),
    (Check::RegionScope, Rule::IgnoresRegionDomain),
];

#[test]
fn each_check_fails_on_a_device_that_breaks_what_it_asks_for() {
    let mut accepted = Vec::new();
    for (check, rule) in FAILED_BY {
        let wrong = move || {
            let world = World::new(*rule);
            pair(|device| Wrong::new(device, &world))
        };
        let plan = Plan {
            checks: &[*check],
            ..PLAN
        };
        let finding = run(&plan, &SuiteOnly(wrong), &mut go_on).remove(0);
        println!("{rule:?}: {}: {}", check.name(), finding.note);
        if finding.verdict != Verdict::Fail || !finding.note.starts_with(check.otherwise()) {
            accepted.push(format!("{rule:?}: {finding:?}"));
        }
    }
    assert_eq!(accepted, Vec::<String>::new());
}

#[test]
fn each_check_of_the_contract_is_in_the_table() {
    // The first two are no matter of the contract. Hugepages are memory, and the test over them is one that other memory has, too.
    let others = [Check::SendWithInvScope, Check::Fork, Check::Hugepages];
    for check in Check::ALL {
        let listed = FAILED_BY.iter().any(|(of, _)| of == check);
        assert_ne!(listed, others.contains(check), "{check:?}");
    }
}

#[test]
fn nothing_that_can_stop_the_host_is_done_unasked() {
    let plan = Plan {
        dangerous: false,
        checks: &[Check::DoubleInvalidation],
        ..PLAN
    };
    let findings = run(&plan, &SuiteOnly(good), &mut go_on);
    assert_eq!(Check::DoubleInvalidation.need(), Need::Consent);
    assert_eq!(findings[0].verdict, Verdict::Skip);
    assert!(findings[0].note.contains("--dangerous"), "{findings:?}");
}

/// An adapter that never answers in one check.
#[derive(Clone)]
struct Hangs(Check, std::sync::Arc<std::sync::Mutex<mpsc::Receiver<()>>>);

impl Subject for Hangs {
    type Device = SoftDevice;

    fn pair(&self) -> Result<Pair<SoftDevice>, String> {
        good()
    }

    fn beside_the_contract(&self, check: Check) -> Option<Observed> {
        if check == self.0 {
            let wait = self.1.lock().expect("nobody panics with it");
            let _ = wait.recv();
        }
        Some(Observed::pass(""))
    }
}

#[test]
fn a_hang_is_a_failure_and_the_rest_is_not_done() {
    let (release, wait) = mpsc::channel();
    let wait = std::sync::Arc::new(std::sync::Mutex::new(wait));
    let plan = Plan {
        checks: &[Check::ArenaKey, Check::Fork],
        deadline: Duration::from_millis(10),
        ..PLAN
    };
    let findings = run(&plan, &Hangs(Check::ArenaKey, wait), &mut go_on);
    drop(release);
    let hung = found(&findings, Check::ArenaKey);
    assert_eq!(hung.verdict, Verdict::Fail, "{hung:?}");
    assert!(hung.note.contains("did not end within"), "{hung:?}");
    let rest = found(&findings, Check::Fork);
    assert_eq!(rest.verdict, Verdict::Skip, "{rest:?}");
    assert!(rest.note.contains("arena_key gave no answer"), "{rest:?}");
    assert_eq!(choose(&findings).mode, None);
}

#[test]
fn devices_that_cannot_be_made_are_a_failure_with_the_reason() {
    let none = || Err::<Pair<SoftDevice>, _>("no such thing".to_owned());
    let plan = Plan {
        checks: &[Check::ArenaKey],
        ..PLAN
    };
    let findings = run(&plan, &SuiteOnly(none), &mut go_on);
    assert_eq!(findings[0].verdict, Verdict::Fail);
    assert!(findings[0].note.contains("no such thing"), "{findings:?}");
}

#[test]
fn an_interruption_skips_the_rest() {
    let plan = Plan {
        checks: &[Check::ArenaKey, Check::FiniteRetries],
        ..PLAN
    };
    let findings = run(&plan, &SuiteOnly(good), &mut |_| ControlFlow::Break(()));
    let verdicts: Vec<_> = findings.iter().map(|finding| finding.verdict).collect();
    assert_eq!(verdicts, [Verdict::Pass, Verdict::Skip]);
    assert!(findings[1].note.contains("interrupted"), "{findings:?}");
}
