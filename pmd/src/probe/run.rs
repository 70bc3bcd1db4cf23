//! Doing checks.

use std::ops::ControlFlow;
use std::time::Duration;

use keyfence_mempool::arena::{Arena, ArenaConfig, PageSize, Policy};
use keyfence_mempool::sync::Arc;

use super::check::{By, Check, Need};
use super::deadline::{NoResult, within};
use super::{Finding, Observed, Verdict};
use crate::conformance::in_flight::{self, COUNT, Ending, LEN, Seen};
use crate::conformance::{self, ARENA_BYTES, Setup};
use crate::device::{Caps, Control, Device};

/// Two fresh devices that can reach each other.
pub struct Pair<D> {
    /// The side that asks.
    pub a: D,
    /// The side that listens at `address`.
    pub b: D,
    /// Where.
    pub address: String,
    /// As in [`Setup::poll_limit`].
    pub poll_limit: u32,
    /// As in [`Setup::settle_polls`].
    pub settle_polls: u32,
    /// As in [`Setup::pause`].
    pub pause: fn(),
}

/// What is probed. Used by one thread at a time; each check has a clone.
pub trait Subject: Clone + Send + 'static {
    /// Its driver.
    type Device: Device;

    /// Two fresh devices. Their [`Caps`] claim what the checks are to find out: what is denied is not tested.
    ///
    /// # Errors
    /// Why they could not be made.
    fn pair(&self) -> Result<Pair<Self::Device>, String>;

    /// Does a check in a way of its own, below the contract; `None` leaves it to the contract's tests.
    fn beside_the_contract(&self, check: Check) -> Option<Observed>;
}

/// A subject with nothing below the contract, made of a function that gives two fresh devices.
#[derive(Clone, Copy, Debug)]
pub struct SuiteOnly<F>(pub F);

impl<D, F> Subject for SuiteOnly<F>
where
    D: Device,
    F: Fn() -> Result<Pair<D>, String> + Clone + Send + 'static,
{
    type Device = D;

    fn pair(&self) -> Result<Pair<D>, String> {
        (self.0)()
    }

    fn beside_the_contract(&self, _check: Check) -> Option<Observed> {
        None
    }
}

/// What to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plan<'a> {
    /// The checks, in this order.
    pub checks: &'a [Check],
    /// Also those that can stop the host.
    pub dangerous: bool,
    /// How long a check may take. The first that takes longer ends the probe: the rest is skipped.
    pub deadline: Duration,
    /// How often a check must have seen accesses under way, at least 1. A round that saw none, since the adapter was too fast or an access that was stopped broke the
    /// queue pair first, is repeated, ten times as often at most.
    pub rounds: u32,
}

/// Does the checks, and tells `each` of a finding as soon as it is there. If that says to break, the rest is skipped.
pub fn run<S: Subject>(
    plan: &Plan<'_>,
    subject: &S,
    each: &mut dyn FnMut(&Finding) -> ControlFlow<()>,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut over: Option<String> = None;
    for check in plan.checks.iter().copied() {
        let observed = match &over {
            Some(why) => Observed::skip(format!("not done: {why}")),
            None => {
                let (job, subject) = (Job::of(plan), subject.clone());
                match within(plan.deadline, move || job.look(check, &subject)) {
                    Ok(observed) => observed,
                    Err(why) => {
                        // Nobody knows what state the adapter is in, so nothing more is asked of it.
                        over = Some(format!("{} gave no answer", check.name()));
                        Observed::fail(explain(why, plan.deadline))
                    }
                }
            }
        };
        let finding = Finding {
            check,
            verdict: observed.verdict,
            note: observed.note,
        };
        if each(&finding).is_break() {
            over.get_or_insert_with(|| "it was interrupted".into());
        }
        findings.push(finding);
    }
    findings
}

fn explain(why: NoResult, deadline: Duration) -> String {
    match why {
        NoResult::Late => format!(
            "did not end within {} s: the adapter or its driver hangs",
            deadline.as_secs()
        ),
        NoResult::Panicked => "the check itself panicked; see stderr".into(),
        NoResult::NoThread => "no thread could be started for it".into(),
    }
}

/// What one check is told.
#[derive(Clone, Copy)]
struct Job {
    dangerous: bool,
    rounds: u32,
}

impl Job {
    fn of(plan: &Plan<'_>) -> Self {
        Self {
            dangerous: plan.dangerous,
            rounds: plan.rounds,
        }
    }

    fn look<S: Subject>(self, check: Check, subject: &S) -> Observed {
        let fresh = match subject.pair() {
            Ok(pair) => pair,
            Err(why) => return Observed::fail(format!("two devices could not be made: {why}")),
        };
        let caps = fresh.a.caps().clone();
        drop(fresh);
        if let Some(why) = self.hindrance(check, &caps) {
            return Observed::skip(why);
        }
        if let Some(observed) = subject.beside_the_contract(check) {
            return with_consequence(check, observed);
        }
        let observed = match check.by() {
            By::Suite(tests) => suite(tests, subject, Pages::Plain),
            By::SuiteInHugepages(tests) => suite(tests, subject, Pages::Huge),
            By::SuiteAndLimits(tests) => {
                let mut observed = suite(tests, subject, Pages::Plain);
                if observed.verdict == Verdict::Pass {
                    observed.note = limits(&caps);
                }
                observed
            }
            By::InFlight(ending) => self.in_flight(ending, subject),
            By::Subject => Observed::skip("this driver has nothing of the kind"),
        };
        with_consequence(check, observed)
    }

    /// Why the check cannot be done.
    fn hindrance(self, check: Check, caps: &Caps) -> Option<&'static str> {
        let no_windows = (!caps.windows).then_some("the adapter has no windows of type 2B");
        match check.need() {
            Need::Nothing => None,
            Need::Windows => no_windows,
            Need::Atomics if !caps.atomics => Some("the adapter has no atomics"),
            Need::Atomics => no_windows,
            Need::Consent if !self.dangerous => {
                Some("can stop the host (Soft-RoCE does): --dangerous does it")
            }
            Need::Consent => no_windows,
        }
    }

    fn in_flight<S: Subject>(self, ending: Ending, subject: &S) -> Observed {
        let (mut shown, mut least, mut why_not) = (0, COUNT, "");
        let (rounds, mut tried) = (self.rounds.max(1), 0);
        while shown < rounds && tried < tries_a_round(shown) * rounds {
            tried += 1;
            let setup = match set_up(subject, Pages::Plain) {
                Ok(setup) => setup,
                Err(observed) => return observed,
            };
            match in_flight::run(ending, setup) {
                Seen::Stopped { completed } => {
                    shown += 1;
                    least = least.min(completed);
                }
                Seen::Nothing(why) => why_not = why,
                Seen::Broken(text) => return Observed::fail(text),
            }
        }
        if shown == 0 {
            return Observed::skip(format!("nothing was shown: {why_not}"));
        }
        let mib = LEN >> 20;
        Observed::pass(format!(
            "with {COUNT} accesses of {mib} MiB under way, in {shown} of {tried} rounds; {least} had completed at least"
        ))
    }
}

/// Tries for each round that is to show something. On Soft-RoCE an access that finds its window ended mostly breaks the queue pair before the
/// invalidation is reported: one try in ten to twenty shows something. So it is tried longer while nothing was shown at all.
fn tries_a_round(shown: u32) -> u32 {
    match shown {
        0 => 100,
        _ => 10,
    }
}

/// A failure's note begins with what it means.
fn with_consequence(check: Check, mut observed: Observed) -> Observed {
    if observed.verdict == Verdict::Fail {
        observed.note = format!("{} ({})", check.otherwise(), observed.note);
    }
    observed
}

/// Runs tests of the suite, each on devices of its own, up to the first that does not pass.
fn suite<S: Subject>(names: &[&str], subject: &S, pages: Pages) -> Observed {
    let tests = conformance::all::<S::Device>();
    for name in names {
        let Some(test) = tests.iter().find(|test| test.name == *name) else {
            return Observed::fail(format!("the suite has no test {name}"));
        };
        let setup = match set_up(subject, pages) {
            Ok(setup) => setup,
            Err(observed) => return observed,
        };
        match test.run(setup).verdict {
            conformance::Verdict::Pass => {}
            conformance::Verdict::Fail(text) => return Observed::fail(text),
            conformance::Verdict::Skip(need) => {
                return Observed::skip(format!("the adapter has no {need}"));
            }
        }
    }
    Observed::pass("")
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Pages {
    Plain,
    Huge,
}

fn set_up<S: Subject>(subject: &S, pages: Pages) -> Result<Setup<S::Device>, Observed> {
    let arena = || arena(pages).map(Arc::new).map_err(Observed::skip);
    let (arena_a, arena_b) = (arena()?, arena()?);
    let pair = subject.pair().map_err(Observed::fail)?;
    Ok(Setup {
        a: pair.a,
        b: pair.b,
        arena_a,
        arena_b,
        address: pair.address,
        poll_limit: pair.poll_limit,
        settle_polls: pair.settle_polls,
        pause: pair.pause,
    })
}

fn arena(pages: Pages) -> Result<Arena, String> {
    let config = ArenaConfig {
        page_size: match pages {
            Pages::Plain => PageSize::Base4KiB,
            Pages::Huge => PageSize::Huge2MiB,
        },
        transparent: false,
        hugepages: match pages {
            Pages::Plain => Policy::Off,
            Pages::Huge => Policy::Require,
        },
        lock: Policy::Off,
        ..ArenaConfig::new(ARENA_BYTES)
    };
    Arena::map(&config).map_err(|error| error.to_string())
}

fn limits(caps: &Caps) -> String {
    format!(
        "queue pairs {}, windows {}, regions {}, requests {} and receives {} a queue pair, entries {}, inline bytes {}, operation bytes {}",
        caps.max_qps,
        caps.max_windows,
        caps.max_regions,
        caps.max_send_depth,
        caps.max_receive_depth,
        caps.max_sge,
        caps.max_inline_bytes,
        caps.max_operation_bytes
    )
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::soft::{Fabric, SoftConfig};

    const UNASKED: Job = Job {
        dangerous: false,
        rounds: 1,
    };
    const ASKED: Job = Job {
        dangerous: true,
        ..UNASKED
    };

    fn caps() -> Caps {
        let device = Fabric::new().device(SoftConfig::default());
        device.expect("a legal configuration").caps().clone()
    }

    /// The checks that are skipped, and why.
    fn skipped(job: Job, caps: &Caps) -> Vec<(Check, &'static str)> {
        let hindered = |check: &Check| Some((*check, job.hindrance(*check, caps)?));
        Check::ALL.iter().filter_map(hindered).collect()
    }

    #[test]
    fn an_adapter_that_can_do_all_is_tested_for_all_that_was_asked() {
        assert_eq!(skipped(ASKED, &caps()), []);
        let unasked = skipped(UNASKED, &caps());
        assert_eq!(unasked.len(), 1, "{unasked:?}");
        assert!(unasked[0].1.contains("--dangerous"), "{unasked:?}");
    }

    #[test]
    fn without_windows_what_is_about_them_is_skipped_and_nothing_else() {
        let caps = Caps {
            windows: false,
            ..caps()
        };
        let skipped = skipped(ASKED, &caps);
        for check in Check::ALL {
            let about_windows = check.need() != Need::Nothing;
            let why = skipped.iter().find(|(of, _)| of == check);
            assert_eq!(why.is_some(), about_windows, "{check:?}");
            assert!(
                why.is_none_or(|(_, why)| why.contains("no windows")),
                "{why:?}"
            );
        }
        assert!(
            !skipped
                .iter()
                .any(|(check, _)| *check == Check::DestroyInFlight)
        );
    }

    #[test]
    fn without_atomics_they_are_skipped() {
        let caps = Caps {
            atomics: false,
            ..caps()
        };
        let wanted = [(Check::WindowAtomics, "the adapter has no atomics")];
        assert_eq!(skipped(ASKED, &caps), wanted);
    }
}
