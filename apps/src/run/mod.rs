//! `run`: two engines in one process under a load that kills contexts while their operations fly, and everything that is checked
//! meanwhile.
//!
//! The patterns in the memory see an access that is late, the oracle on the devices sees one that could be, and the runtime's own
//! counters are trusted for neither.

mod board;
mod breaks;
mod chaos;
mod drive;
mod guests;
mod hangs;
mod harm;
mod oracle;
mod pattern;
#[cfg(feature = "plant")]
pub mod plants;
mod progress;
mod scene;
mod seen;
mod summary;
mod tally;
mod text;
mod verdict;
mod worker;

use std::path::PathBuf;

use anyhow::{Context, anyhow};
use clap::Args;
use keyfence::EngineBuilder;
use keyfence::config::Config;
use keyfence::pmd::Device;
use keyfence_benches::probe;

use crate::catalog::CATALOG;
use crate::device::{Choice, OnDevice};
use crate::exit::Exit;
use crate::host::{Clock, allowed_cpus, fresh_seed};
use crate::report::{Body, Finished, Problem, Report, RunReport};
use crate::signals::Signals;
use drive::Driver;
use progress::Progress;
use scene::Scene;
use verdict::Verdict;

/// Arguments of `run`.
#[derive(Args, Debug)]
#[command(after_help = "Example:\n  keyfence run configs/loopback.toml\n\n\
    Exits 1 if a check failed or a minimum of [load] was missed, and names them. A first SIGINT, SIGTERM or SIGHUP closes all contexts \
    and reports, a second ends at once.")]
pub struct RunArgs {
    /// Configuration with two engines, or three, and [load]
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
    if let Some(finished) = args
        .plant
        .as_deref()
        .and_then(|name| plants::switch(name, "run"))
    {
        return finished;
    }
    let config = match Config::load(&args.file, CATALOG) {
        Ok(config) => config,
        Err(errors) => return bad_start(Problem::of_config(&errors)),
    };
    let driven = scene::check(&config, &args.file).and_then(|()| {
        let choice = Choice::of_config(&config).map_err(|why| anyhow!("{why}"))?;
        let run = Run::begin(&config, json)?;
        choice.open(scene::builders(&config), run)?
    });
    let device = Some(config.engines[0].device.clone());
    let mut finished =
        driven.unwrap_or_else(|error| bad_start(vec![Problem::text(&format!("{error:#}"))]));
    finished.report.device = device;
    finished
}

/// What belongs to a run beside its engines.
struct Run<'a> {
    config: &'a Config,
    signals: Signals,
    seed: u128,
    clock: Clock,
    probe_ns: u64,
}

impl<'a> Run<'a> {
    fn begin(config: &'a Config, json: bool) -> anyhow::Result<Self> {
        let signals = Signals::watch(json.then_some(last_words as fn(i32) -> String));
        let run = Self {
            config,
            signals: signals.context("watching for signals")?,
            seed: fresh_seed()?,
            clock: Clock::new(),
            probe_ns: probe_ns(),
        };
        tracing::info!("{}", run.facts());
        Ok(run)
    }

    /// What one must know to do it again.
    fn facts(&self) -> String {
        let load = self.config.load.as_ref().expect("checked before").seed;
        format!(
            "seed of the engines {:#034x}, of the load {load}; clock: {}",
            self.seed,
            self.clock.source()
        )
    }
}

impl OnDevice for Run<'_> {
    type Done = anyhow::Result<Finished>;

    fn interrupted(&self) -> bool {
        self.signals.interrupted()
    }

    fn on<D: Device>(self, builders: Vec<EngineBuilder>, devices: Vec<D>) -> Self::Done {
        let config = self.config;
        let mut scene = Scene::start(config, builders, devices, &self.clock, self.seed)?;
        for arena in &scene.arenas {
            for note in &arena.notes {
                tracing::warn!("engine {}: {note}", arena.engine);
            }
        }
        let mut seen = Driver::new(&mut scene, &self.signals, Progress::new()).run(config);
        let boards: Vec<_> = scene.boards().cloned().collect();
        let arenas = core::mem::take(&mut scene.arenas);
        let mut events = Vec::new();
        let ended = scene.end(config.timeouts.shutdown_timeout_ns, &mut events);
        events
            .iter()
            .for_each(|(side, event)| seen.note(*side, event));
        let verdict = verdict::judge(config, &seen, &boards, &ended);
        let probe_ns = self.probe_ns.min(probe_ns());
        let report = summary::report(&verdict, &seen, &boards[0], &arenas, probe_ns);
        let text = text::of(&report, &self.facts(), &arenas);
        Ok(finished(&verdict, report, text))
    }
}

fn finished(verdict: &Verdict, report: RunReport, text: String) -> Finished {
    let exit = if verdict.caught_by.is_empty() {
        Exit::Good
    } else {
        Exit::CheckFailed
    };
    let lines = verdict.errors.iter();
    let errors = lines.map(|line| Problem::text(line)).collect();
    Finished {
        exit,
        report: Report {
            body: Some(Body::Run(Box::new(report))),
            ok: exit == Exit::Good,
            ..Report::new(Some("run"), errors)
        },
        text,
    }
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

#[cfg(test)]
mod tests {
    use keyfence::config::{Minima, Troubles};
    use keyfence::ids::LcoreId;
    use keyfence::pmd::soft::{Fabric, SoftConfig};
    use keyfence::pmd::wrap::fault::{Fault, Injection, Plan, Target};

    use super::*;

    fn config(name: &str) -> Config {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../configs/");
        let file = format!("{folder}{name}");
        Config::load(file.as_ref(), CATALOG).expect("it is in the repository")
    }

    /// The load, on one CPU and with these plans for the devices.
    fn finished(config: &Config, plans: [Plan; 2]) -> Finished {
        let builders = (0..2).map(|at| EngineBuilder::from_config(config, at).cpus(&[0]));
        let fabric = Fabric::new();
        let devices = plans.map(|plan| {
            let soft = fabric.device(SoftConfig::default());
            Fault::new(soft.expect("the default is legal"), plan)
        });
        let run = Run::begin(config, false).expect("signals can be watched");
        run.on(builders.collect(), devices.into())
            .expect("it starts")
    }

    #[test]
    fn b11_an_lcore_that_dies_is_exit_1_and_is_named() {
        // While the engines connect, and under load.
        for poll in [5, 200_000] {
            let dies = Injection::Panic {
                lcore: LcoreId(0),
                poll,
            };
            let plans = [Plan::default(), Plan::new([dies])];
            let finished = finished(&config("loopback.toml"), plans);
            assert_eq!(finished.exit.code(), 1);
            let report = serde_json::to_value(&finished.report).expect("it is an object");
            assert_eq!(report["ok"], false);
            let errors = report["errors"].to_string();
            assert!(errors.contains("side 1: lcore 0 died"), "{errors}");
        }
    }

    #[test]
    fn r5_a_lane_that_breaks_unasked_is_repaired_and_is_a_bystander_error_all_the_same() {
        let mut config = config("chaos.toml");
        // Without the engine that comes and goes.
        config.engines.truncate(2);
        config
            .peers
            .retain(|peer| peer.engine < 2 && peer.name != "third");
        let load = config.load.as_mut().expect("it has one");
        load.duration_ns = 3_000_000_000;
        load.troubles = Troubles::default();
        load.minima = Minima {
            max_quarantined: u64::MAX,
            ..Minima::default()
        };
        let breaks = Injection::ErrorQp {
            target: Target::Created(1),
            after: 300,
        };
        let finished = finished(&config, [Plan::new([breaks]), Plan::default()]);
        let report = serde_json::to_value(&finished.report).expect("it is an object");
        assert_eq!(finished.exit.code(), 1, "{report:#}");
        assert_eq!(report["peers"]["down"], 0, "{report:#}");
        let errors = report["checks"]["bystander_errors"].as_u64();
        assert!(errors >= Some(2), "both ends have repaired it: {report:#}");
        let caught_by = report["caught_by"].as_array().expect("a list");
        assert!(caught_by.contains(&"bystander_errors".into()), "{report:#}");
    }
}
