//! `probe`: what an RDMA adapter with its driver does of what reclaim needs, and how keys would be made on it.

mod progress;
mod text;
#[cfg(not(feature = "verbs"))]
mod unbuilt;
#[cfg(feature = "verbs")]
mod verbs;

use std::net::IpAddr;
use std::ops::ControlFlow;
use std::time::Duration;

use clap::Args;
use keyfence::pmd::probe::{self, Check, Finding, Pair, Plan, Subject, SuiteOnly};
use keyfence::pmd::soft::{Fabric, SoftConfig, SoftDevice};

use crate::exit::Exit;
use crate::report::{Body, Finished, ProbeBody, ProbeReport, Problem, Report, TestReport};
use crate::signals::Signals;
use progress::Progress;
#[cfg(not(feature = "verbs"))]
use unbuilt as verbs;

/// Arguments of `probe`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Example:\n  keyfence probe --device mlx5_0\n\n\
    Each test is a line: its name, PASS, FAIL or SKIP, and what was seen. docs/probe.md says what each asks and what a failure means, with keyfence \
    and without. All is done on connections of the probe's own, from the adapter to itself, which are given up again; nothing is concluded from \
    the adapter's name. It takes some seconds.\n\n\
    Exit code: 0 if keyfence can run on this adapter in one key mode at least, which is then named; a FAIL that the mode does not need is a finding and \
    no failure. 1 if it can't, 2 if nothing could be probed.")]
pub struct ProbeArgs {
    /// The adapter's name, as `ibv_devices` lists it; `soft` is the software adapter that needs none
    #[arg(long, value_name = "NAME")]
    device: String,
    /// The adapter's port
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..))]
    port: u8,
    /// Index in the port's GID table; left out: the connection manager's choice
    #[arg(long, value_name = "N")]
    gid_index: Option<u8>,
    /// An address of the adapter's own interface; left out: one of the port's GID table (InfiniBand has none there)
    #[arg(long, value_name = "IP")]
    address: Option<IpAddr>,
    /// Also test what can stop the host: a second invalidation of a key, which a kernel with Soft-RoCE does not survive
    #[arg(long)]
    dangerous: bool,
}

/// Of one test. Some wait for retries to run out, a few seconds on some adapters.
const DEADLINE: Duration = Duration::from_secs(60);
/// Of the tests with accesses under way.
const ROUNDS: u32 = 8;
/// The name of the software adapter.
const SOFT: &str = "soft";

/// Probes; 1 if keys can't be made on this adapter, 2 if nothing could be probed.
pub fn probe(args: &ProbeArgs, json: bool) -> Finished {
    let found = match args.device.as_str() {
        SOFT => look(args, json, &SuiteOnly(soft)),
        _ => verbs::probe(args, json),
    };
    found.unwrap_or_else(|why| Finished {
        exit: Exit::BadStart,
        report: Report {
            device: Some(driver(args).into()),
            ..Report::new(Some("probe"), vec![Problem::text(&why)])
        },
        text: String::new(),
    })
}

/// The driver, which is what reports name as the device.
fn driver(args: &ProbeArgs) -> &'static str {
    match args.device.as_str() {
        SOFT => "soft",
        _ => "verbs",
    }
}

fn soft() -> Result<Pair<SoftDevice>, String> {
    let fabric = Fabric::new();
    let device = || {
        fabric
            .device(SoftConfig::default())
            .map_err(|error| error.to_string())
    };
    Ok(Pair {
        a: device()?,
        b: device()?,
        address: "local:probe".into(),
        poll_limit: 4000,
        settle_polls: 100,
        pause: || {},
    })
}

/// Does all checks.
fn look<S: Subject>(args: &ProbeArgs, json: bool, subject: &S) -> Result<Finished, String> {
    let signals = Signals::watch(json.then_some(last_words as fn(i32) -> String));
    let signals = signals.map_err(|error| format!("watching for signals: {error}"))?;
    let plan = Plan {
        checks: Check::ALL,
        dangerous: args.dangerous,
        deadline: DEADLINE,
        rounds: ROUNDS,
    };
    let mut progress = Progress::new(plan.checks.len());
    let findings = probe::run(&plan, subject, &mut |finding| {
        progress.did(finding);
        match signals.interrupted() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    });
    drop(progress);
    Ok(conclude(args, &findings, signals.interrupted()))
}

fn conclude(args: &ProbeArgs, findings: &[Finding], interrupted: bool) -> Finished {
    let choice = probe::choose(findings);
    let report = ProbeReport {
        device: args.device.clone(),
        tests: findings.iter().map(TestReport::of).collect(),
        key_mode: choice.mode.map_or("none", |mode| mode.name()),
        reason: choice.reason,
        interrupted,
    };
    let exit = match choice.mode {
        Some(_) => Exit::Good,
        None => Exit::CheckFailed,
    };
    let errors = match exit {
        Exit::Good => Vec::new(),
        _ => vec![Problem::text(&format!(
            "keyfence can't run on {}: {}",
            report.device, report.reason
        ))],
    };
    Finished {
        exit,
        text: text::of(&report),
        report: Report {
            device: Some(driver(args).into()),
            body: Some(Body::Probe(ProbeBody { probe: report })),
            ..Report::new(Some("probe"), errors)
        },
    }
}

/// The one object of `--json` when a second signal ends the process.
fn last_words(signal: i32) -> String {
    let why = format!("ended at once by a second signal, number {signal}");
    let report = Report::new(Some("probe"), vec![Problem::text(&why)]);
    serde_json::to_string(&report).expect("a report has string keys and finite numbers")
}
