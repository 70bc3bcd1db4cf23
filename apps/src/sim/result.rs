//! What a sweep found, as text and as JSON, with what replays it.

use core::fmt::Write;

use keyfence::plant::{self, Plant};

use super::coverage::ASKED_FROM_SEEDS;
use super::held_back::HELD_BACK;
use super::plan::Plan;
use super::seed;
use super::sweep::Swept;
use crate::exit::Exit;
use crate::report::{Body, FailedSeed, Finished, Problem, Report, SimBody, SimReport};

/// Failed seeds whose ends are shown.
const SHOWN: usize = 3;

pub fn finish(swept: &Swept) -> Finished {
    // What was ended by a signal is not asked for what it had no time for.
    let unreached = if swept.interrupted {
        Vec::new()
    } else {
        swept.reached.unreached()
    };
    let mut errors = failures(swept);
    let lacking = unreached.iter().map(|what| format!("not reached: {what}"));
    errors.extend(
        lacking
            .chain(swept.reached.untold())
            .map(|what| Problem::text(&what)),
    );
    let exit = if errors.is_empty() {
        Exit::Good
    } else {
        Exit::CheckFailed
    };
    let report = report(swept, unreached);
    Finished {
        exit,
        text: text(&report),
        report: Report {
            device: Some("sim".into()),
            body: Some(Body::Sim(Box::new(SimBody { sim: report }))),
            ..Report::new(Some("sim"), errors)
        },
    }
}

/// A line for each failure, and for the first seeds how it came.
fn failures(swept: &Swept) -> Vec<Problem> {
    let mut errors = Vec::new();
    for (at, outcome) in swept.failed.iter().enumerate() {
        let mut text = String::new();
        for failure in &outcome.failures {
            let (seed, check) = (outcome.seed, failure.check);
            let _ = writeln!(
                text,
                "seed {seed}: {check} at {} ns: {}",
                failure.at_ns, failure.what
            );
        }
        if at < SHOWN {
            let again = seed::run(outcome.seed, true, swept.breach);
            let _ = writeln!(text, "its plan: {:?}", Plan::of(outcome.seed));
            let _ = writeln!(text, "its trace ends with:");
            for line in again.lines.iter().rev().take(swept.trace_lines).rev() {
                let _ = writeln!(text, "  {line}");
            }
        }
        let _ = write!(
            text,
            "to see it again: keyfence sim --seed {}{}",
            outcome.seed,
            broken(swept)
        );
        errors.push(Problem::text(&text));
    }
    errors
}

fn report(swept: &Swept, unreached: Vec<String>) -> SimReport {
    let reached = &swept.reached;
    let failed = swept.failed.iter().map(|outcome| FailedSeed {
        seed: outcome.seed,
        check: outcome.failures[0].check,
    });
    SimReport {
        seeds: reached.seeds,
        failed: failed.collect(),
        ops: reached.ops,
        reclaims: reached.reclaims,
        sessions_lost: reached.sessions_lost,
        device_ops_p50: reached.device_ops_p50(),
        reclaims_p50: reached.reclaims_p50(),
        faults: reached.faults.clone(),
        pairs: reached.pairs(),
        unreached,
        interrupted: swept.interrupted,
        held_back: HELD_BACK.iter().map(|held| held.name).collect(),
        trace_hash: format!("{:016x}", reached.hash),
        seeds_per_s: reached.seeds as f64 / swept.took.as_secs_f64(),
    }
}

fn text(report: &SimReport) -> String {
    let mut text = String::new();
    let SimReport {
        seeds,
        ops,
        reclaims,
        sessions_lost,
        ..
    } = report;
    let failed = report.failed.len();
    let _ = writeln!(
        text,
        "{seeds} seeds, {failed} failed, {:.1} a second, trace hash {}",
        report.seeds_per_s, report.trace_hash
    );
    let _ = writeln!(
        text,
        "{ops} operations, {reclaims} reclaims, {sessions_lost} sessions lost; a median seed has {} device operations and {} reclaims",
        report.device_ops_p50, report.reclaims_p50
    );
    let _ = write!(text, "seeds in which it struck:");
    for (name, count) in &report.faults {
        let _ = write!(text, " {name} {count}");
    }
    let _ = writeln!(text, "\n{} pairs of event and state met", report.pairs);
    for held in HELD_BACK {
        let _ = writeln!(
            text,
            "held back: {}, waits for {}",
            held.name, held.waits_for
        );
    }
    if *seeds < ASKED_FROM_SEEDS {
        let _ = writeln!(
            text,
            "fewer than {ASKED_FROM_SEEDS} seeds: what they should have reached was not asked"
        );
    }
    text
}

/// What else the command line needs for the same run.
fn broken(swept: &Swept) -> String {
    let planted = Plant::ALL
        .into_iter()
        .find(|&planted| plant::active(planted));
    match (planted, swept.breach) {
        (Some(planted), _) => format!(" --plant {planted}"),
        (None, Some(breach)) => format!(" --breach {breach:?}"),
        (None, None) => String::new(),
    }
}
