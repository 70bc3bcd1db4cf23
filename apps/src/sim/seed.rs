//! One seed: its run and what came of it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use keyfence::config::KeyMode;
use keyfence::pmd::sim::{Breach, Fired, World};
use keyfence::reclaim::PairSet;

use super::books::{Failure, Shared, Tally};
use super::cluster::{Cluster, Met};
use super::harm::Harms;
use super::plan::{Plan, US};
use super::tap::Tape;
use tracing::subscriber::NoSubscriber;

/// What came of a seed.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub seed: u64,
    pub key_mode: KeyMode,
    pub failures: Vec<Failure>,
    pub tally: Tally,
    /// Work requests that the adapters took.
    pub posted: u64,
    pub fired: Fired,
    pub harms: Harms,
    /// What the reclaim machines of all engines have met.
    pub pairs: PairSet,
    /// Of all that happened in the simulated network.
    pub hash: u64,
    /// What happened last, if it was kept.
    pub lines: Vec<String>,
}

/// Runs a seed: nothing but the seed decides what happens, and on adapters that break a rule, that. With `keeps` the end of the trace is kept.
pub fn run(seed: u64, keeps: bool, breach: Option<Breach>) -> Outcome {
    let mut plan = Plan::of(seed);
    if breach.is_some() {
        plan.device.breach = breach;
        // Late enough that it matters what is waited for.
        plan.device.landing_ns.max = 60 * US;
    }
    run_plan(&plan, keeps)
}

/// Runs a plan, which is a seed's, or a test's.
pub fn run_plan(plan: &Plan, keeps: bool) -> Outcome {
    let seed = plan.seed;
    // What engines log of their troubles is no news here.
    let _quiet = (!keeps).then(|| tracing::subscriber::set_default(NoSubscriber::default()));
    let world = World::new(seed, plan.device.clone()).expect("a plan keeps to the ranges");
    let books = Shared::new(plan, world.clone());
    let tape = Tape::new(keeps);
    let met = catch_unwind(AssertUnwindSafe(|| play(plan, &world, &books, &tape)));
    let met = met.unwrap_or_else(|payload| {
        books.open().fail("panics", words_of(payload.as_ref()));
        Met::default()
    });
    let reel = tape.reel();
    let books = books.open();
    Outcome {
        seed,
        key_mode: plan.key_mode,
        failures: books.failures().to_vec(),
        tally: books.tally,
        posted: reel.posted,
        fired: world.fired(),
        harms: met.harms,
        pairs: met.pairs,
        hash: world.hash() ^ books.hash(),
        lines: reel.lines(),
    }
}

fn play(plan: &Plan, world: &World, books: &Shared, tape: &Tape) -> Met {
    let cluster = Cluster::new(plan, world.clone(), books.clone(), tape.clone());
    let mut cluster = match cluster {
        Ok(cluster) => cluster,
        Err(why) => {
            books.open().fail("start", why);
            return Met::default();
        }
    };
    if let Err(why) = cluster.run() {
        books.open().fail("start", why);
    }
    cluster.met()
}

fn words_of(payload: &(dyn std::any::Any + Send)) -> String {
    let text = payload
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without words".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::harm::Harm;
    use crate::sim::liar::Break;
    use keyfence::pmd::sim::{Nanos, SimFault, SimFaults};

    #[test]
    fn a_seed_decides_everything() {
        let twice = [(); 2].map(|()| run(7, false, None));
        assert_eq!(twice[0].hash, twice[1].hash);
        assert_eq!(twice[0].tally, twice[1].tally);
        assert_ne!(twice[0].hash, run(8, false, None).hash);
    }

    #[test]
    fn a_replay_shows_the_end_of_the_trace_and_is_the_same_run() {
        let (bare, kept) = (run(3, false, None), run(3, true, None));
        assert_eq!(bare.hash, kept.hash);
        assert!(bare.lines.is_empty() && kept.lines.len() > 100);
    }

    /// A plan in which much is on its way when a key ends: packets land late, holders are away for longer than a fence, lanes break.
    fn stormy(seed: u64, breach: Breach) -> Plan {
        let mut plan = Plan::of(seed);
        plan.is_gentle = false;
        plan.device.breach = Some(breach);
        plan.device.landing_ns = Nanos::new(0, 100_000);
        plan.meddling.stop = 3_000;
        plan.faults.error_here_per_million = 300;
        plan.faults.error_there_per_million = 300;
        plan
    }

    /// The oracles are no decoration: an adapter that breaks a rule of the contract is found out.
    #[test]
    fn r1_adapters_that_break_a_rule_are_found() {
        let passes = |breach: Breach| {
            let mut seeds = 0..SEEDS;
            seeds.all(|seed| run_plan(&stormy(seed, breach), false).failures.is_empty())
        };
        // The others take thousands of seeds: `sim --breach`, with the feature `plant`.
        let breaches = [
            Breach::InvalidationDoesNotFence,
            Breach::InvalidationEndsNothing,
            Breach::DestroyDoesNotFence,
            Breach::AcknowledgesBeforeLanding,
            Breach::CompletesReadsEarly,
        ];
        let passed: Vec<_> = breaches
            .into_iter()
            .filter(|breach| passes(*breach))
            .collect();
        assert_eq!(passed, [], "they pass {SEEDS} seeds");
    }

    const SEEDS: u64 = 400;

    /// Plans in which nothing but a liar does harm.
    fn with_a_liar_alone() -> impl Iterator<Item = Plan> {
        let plans = (0..SEEDS).map(Plan::of);
        plans.filter(|plan| plan.liar.is_some_and(|liar| liar.is_alone))
    }

    #[test]
    fn r5_r12_engines_beside_a_liar_keep_their_promises_and_their_sessions() {
        let mut sums = (0, 0, 0);
        for plan in with_a_liar_alone().take(12) {
            assert_eq!(plan.hosts.len(), 3);
            let outcome = run_plan(&plan, false);
            assert_eq!(outcome.failures, [], "seed {}", plan.seed);
            sums.0 += outcome.harms.count(Harm::LyingPeer);
            sums.1 += outcome.harms.count(Harm::ReplayedFrames);
            sums.2 += outcome.tally.sessions_lost;
        }
        // It is let in, lies, and loses its own sessions by it.
        assert!(sums.0 > 500 && sums.1 > 20 && sums.2 > 20, "{sums:?}");
    }

    #[test]
    fn r5_a_session_lost_beside_a_liar_is_found() {
        let found = with_a_liar_alone().take(12).any(|mut plan| {
            plan.faults.error_here_per_million = 2_000;
            let failures = run_plan(&plan, false).failures;
            failures
                .iter()
                .any(|failure| failure.check == "r5_bystanders")
        });
        assert!(found);
    }

    /// What it does is judged as an engine's accesses are: where a key outlives its end, a liar is there to use it.
    #[test]
    fn r1_a_key_that_outlives_its_end_is_used_by_a_liar() {
        let windows = with_a_liar_alone().filter(|plan| plan.key_mode == KeyMode::Window);
        let found = windows.take(24).filter_map(|mut plan| {
            let liar = plan.liar.as_mut().expect("it has one");
            liar.favourite = Some(Break::DeadKey);
            liar.breaks_once_in = 40;
            // Else the session between the engines, which such an adapter ends too, ends the run first.
            liar.is_alone = false;
            plan.device.breach = Some(Breach::InvalidationEndsNothing);
            let failures = run_plan(&plan, false).failures;
            failures
                .iter()
                .any(|failure| failure.check == "r1_no_late_access")
                .then_some(plan.seed)
        });
        let found: Vec<_> = found.collect();
        assert!(found.len() >= 3, "of 24 seeds: {found:?}");
    }

    /// Whatever breaks, at either end or both, in a repair too, and whoever has no credit to find out with.
    #[test]
    fn r5_lanes_that_break_are_repaired_and_no_session_is_lost() {
        let plans = (0..SEEDS).map(Plan::of).filter(|plan| plan.only_breaks);
        let mut broke = 0;
        for plan in plans.take(24) {
            let outcome = run_plan(&plan, false);
            assert_eq!(outcome.failures, [], "seed {}", plan.seed);
            let errors = [
                SimFault::ErrorHere,
                SimFault::ErrorThere,
                SimFault::ErrorBoth,
            ];
            let fired = outcome.fired.iter();
            let fired = fired.filter(|(kind, _)| errors.contains(kind));
            broke += fired.map(|(_, count)| count).sum::<u64>();
        }
        assert!(broke > 200, "{broke}");
    }

    /// A peer's process is stopped, or ends without a word, idle or busy, with and without repairs: each wait of the survivors ends in its bound (R6), and at the end nothing is left.
    #[test]
    fn b22_peers_that_stop_or_are_gone_hold_up_nobody() {
        let mut met = (0, 0, 0);
        for plan in (0..SEEDS)
            .map(Plan::of)
            .filter(|plan| plan.only_breaks)
            .take(16)
        {
            let mut plan = plan;
            plan.only_breaks = false;
            plan.faults = SimFaults::default();
            // Long enough for losses to be told.
            plan.troubled_ns *= 3;
            plan.meddling.stop = 1_500;
            plan.meddling.restart = 500;
            let outcome = run_plan(&plan, false);
            assert_eq!(outcome.failures, [], "seed {}", plan.seed);
            met.0 += outcome.harms.count(Harm::Stop);
            met.1 += outcome.harms.count(Harm::Restart);
            met.2 += outcome.tally.sessions_lost;
        }
        assert!(met.0 > 50 && met.1 > 20 && met.2 > 4, "{met:?}");
    }

    /// Calls hang, so that regions do not end, on lanes that are sound: their owner's and their holders' engines are told how much is left.
    #[test]
    fn r2_what_an_end_leaves_in_quarantine_is_said() {
        let mut heard = (0, 0);
        let plans = (0..SEEDS).map(Plan::of);
        for mut plan in plans
            .filter(|plan| plan.key_mode == KeyMode::Region && plan.liar.is_none())
            .take(12)
        {
            plan.is_gentle = false;
            plan.only_breaks = false;
            plan.faults = SimFaults::default();
            plan.meddling.hang = 1_500;
            plan.meddling.stop = 0;
            plan.meddling.restart = 0;
            for host in &mut plan.hosts {
                host.limits.rebuilds = 0;
            }
            let outcome = run_plan(&plan, false);
            assert_eq!(outcome.failures, [], "seed {}", plan.seed);
            heard.0 += outcome.tally.quarantines;
            heard.1 += outcome.tally.quarantines_heard;
        }
        assert!(heard.0 > 40 && heard.1 > 5, "{heard:?}");
    }

    #[test]
    fn without_faults_nothing_is_lost() {
        for seed in 0..20 {
            let mut plan = Plan::of(seed);
            plan.is_gentle = true;
            plan.faults = SimFaults::default();
            plan.liar = None;
            plan.meddling = super::super::plan::Meddling {
                open_or_kill: 20_000,
                ..Default::default()
            };
            let outcome = run_plan(&plan, false);
            assert_eq!(outcome.failures, [], "seed {seed}");
            assert_eq!(outcome.tally.sessions_lost, 0);
        }
    }
}
