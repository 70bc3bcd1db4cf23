//! `run`: two engines in one process under a load that kills contexts while their operations fly, and everything that is checked
//! meanwhile.
//!
//! The patterns in the memory see an access that is late, the oracle on the devices sees one that could be, and the runtime's own
//! counters are trusted for neither.

mod board;
mod chaos;
mod drive;
mod oracle;
mod pattern;
#[cfg(feature = "plant")]
mod plants;
mod progress;
mod random;
mod scene;
mod summary;
mod tally;
mod text;
mod verdict;
mod worker;

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use keyfence::config::Config;
use keyfence::pmd::soft::SoftDevice;
use keyfence_benches::probe;
use keyfence_mempool::sync::Arc;

use crate::catalog::CATALOG;
use crate::exit::Exit;
use crate::host::{Clock, allowed_cpus, fresh_seed, soft_devices};
use crate::report::{Body, Finished, Problem, Report};
use crate::signals::Signals;
use drive::Driver;
use progress::Progress;
use scene::Scene;

/// Arguments of `run`.
#[derive(Args, Debug)]
#[command(after_help = "Example:\n  keyfence run configs/loopback.toml\n\n\
    Exits 1 if a check failed or a minimum of [load] was missed, and names them. A first SIGINT, SIGTERM or SIGHUP closes all contexts \
    and reports, a second ends at once.")]
pub struct RunArgs {
    /// Configuration with two engines and [load]
    #[cfg_attr(feature = "plant", arg(default_value = "configs/loopback.toml"))]
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Break one rule of the runtime, to see the checks catch it; `list` names the faults
    #[cfg(feature = "plant")]
    #[arg(long, value_name = "NAME")]
    plant: Option<String>,
}

/// Runs the load of a file. `json` is whether last words are an object.
pub fn run(args: &RunArgs, json: bool) -> Finished {
    #[cfg(feature = "plant")]
    if let Some(finished) = args.plant.as_deref().and_then(plants::switch) {
        return finished;
    }
    let config = match Config::load(&args.file, CATALOG) {
        Ok(config) => config,
        Err(errors) => return bad_start(Problem::of_config(&errors)),
    };
    let started = scene::check(&config, &args.file).and_then(|()| begin(&config, json));
    let (mut scene, run) = match started {
        Ok(started) => started,
        Err(error) => {
            return Finished {
                report: Report {
                    device: Some(config.engines[0].device.clone()),
                    ..bad_start(vec![Problem::text(&format!("{error:#}"))]).report
                },
                ..bad_start(Vec::new())
            };
        }
    };
    for arena in &scene.arenas {
        for note in &arena.notes {
            tracing::warn!("engine {}: {note}", arena.engine);
        }
    }
    let mut seen = Driver::new(&mut scene, &run.signals, Progress::new()).run(&config);
    let (board, arenas) = (Arc::clone(&scene.board), core::mem::take(&mut scene.arenas));
    let mut events = Vec::new();
    let ended = scene.end(config.timeouts.shutdown_timeout_ns, &mut events);
    events
        .iter()
        .for_each(|(side, event)| seen.note(*side, event));
    let verdict = verdict::judge(&config, &seen, &board, &ended);
    let probe_ns = run.probe_ns.min(probe_ns());
    let report = summary::report(&verdict, &seen, &board, &arenas, probe_ns);
    let exit = if verdict.caught_by.is_empty() {
        Exit::Good
    } else {
        Exit::CheckFailed
    };
    let text = text::of(&report, &run.facts(&config), &arenas);
    let errors = verdict
        .errors
        .iter()
        .map(|line| Problem::text(line))
        .collect();
    Finished {
        exit,
        report: Report {
            device: Some(config.engines[0].device.clone()),
            body: Some(Body::Run(Box::new(report))),
            ok: exit == Exit::Good,
            ..Report::new(Some("run"), errors)
        },
        text,
    }
}

/// What belongs to a run beside its engines.
struct Run {
    signals: Signals,
    seed: u128,
    clock: &'static str,
    probe_ns: u64,
}

impl Run {
    /// What one must know to do it again.
    fn facts(&self, config: &Config) -> String {
        let load = config.load.as_ref().expect("checked before").seed;
        format!(
            "seed of the engines {:#034x}, of the load {load}; clock: {}",
            self.seed, self.clock
        )
    }
}

fn begin(config: &Config, json: bool) -> anyhow::Result<(Scene<SoftDevice>, Run)> {
    let signals = Signals::watch(json.then_some(last_words as fn(i32) -> String));
    let signals = signals.context("watching for signals")?;
    let seed = fresh_seed()?;
    let clock = Clock::new();
    let run = Run {
        signals,
        seed,
        clock: clock.source(),
        probe_ns: probe_ns(),
    };
    tracing::info!("{}", run.facts(config));
    let devices = soft_devices(config.engines.len())?;
    Ok((Scene::start(config, devices, &clock, seed)?, run))
}

/// The middle one of a few probes: the host moves the processors about. 0 with one CPU, where there is no way to go.
fn probe_ns() -> u64 {
    if allowed_cpus().len() < 2 {
        return 0;
    }
    let mut probes = [0.0; 3];
    for probe in &mut probes {
        *probe = probe::cache_line_round_trip_ns();
    }
    probes.sort_by(f64::total_cmp);
    probes[1] as u64
}

fn bad_start(errors: Vec<Problem>) -> Finished {
    Finished {
        exit: Exit::BadStart,
        report: Report::new(Some("run"), errors),
        text: String::new(),
    }
}

/// The one object of `--json` when a second signal ends the process.
fn last_words(signal: i32) -> String {
    let why = format!("ended at once by a second signal, number {signal}; nothing was closed");
    let report = Report::new(Some("run"), vec![Problem::text(&why)]);
    serde_json::to_string(&report).expect("a report has string keys and finite numbers")
}
