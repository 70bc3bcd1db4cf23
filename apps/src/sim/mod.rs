//! `sim`: whole engines on a simulated network in virtual time, one run a seed, with adapters, peers and clocks that misbehave, judged by oracles that take nobody's
//! word. Faults come first; then they stop, and everything must end.

mod actor;
mod books;
mod budget;
mod cluster;
mod coverage;
mod harm;
mod held_back;
mod host;
mod liar;
mod plan;
mod progress;
mod result;
mod seed;
mod sweep;
mod tap;

use std::num::NonZero;
use std::thread;
use std::time::Duration;

use clap::Args;
#[cfg(feature = "plant")]
use keyfence::pmd::sim::Breach;

use crate::exit::Exit;
use crate::report::{Finished, Problem, Report};
#[cfg(feature = "plant")]
use crate::run::plants;
use crate::signals::Signals;
use sweep::Job;

/// Arguments of `sim`.
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Example:\n  keyfence sim --seeds 500\n  keyfence sim --seed 42\n\n\
    A seed decides everything of its run: a failing one is run again with --seed, which shows how it ended. From 500 seeds on it is asked, too, \
    that all kinds of faults and of work were among them."
)]
pub struct SimArgs {
    /// Seeds that are run
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    seeds: u64,
    /// The first of them
    #[arg(long, value_name = "S", default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=u64::MAX / 2))]
    first: u64,
    /// This seed alone, with the end of its trace if it fails
    #[arg(long, value_name = "S", conflicts_with_all = ["seeds", "first", "minutes"], value_parser = clap::value_parser!(u64).range(..=u64::MAX / 2))]
    seed: Option<u64>,
    /// Lines of its trace that are shown of a seed that fails
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    trace: u32,
    /// Begin no further seed after so many minutes
    #[arg(long, value_name = "M", value_parser = clap::value_parser!(u64).range(1..=10_000))]
    minutes: Option<u64>,
    /// Break one rule of the runtime, to see that it is found; "list" names them
    #[cfg(feature = "plant")]
    #[arg(long, value_name = "NAME")]
    plant: Option<String>,
    /// Have all adapters break one rule of the device contract, to see that it is found
    #[cfg(feature = "plant")]
    #[arg(long, value_name = "RULE", conflicts_with = "plant", value_parser = breach)]
    breach: Option<Breach>,
}

/// Runs seeds; 1 if one fails, or if they did not reach what they should.
pub fn sim(args: &SimArgs, json: bool) -> Finished {
    #[cfg(feature = "plant")]
    if let Some(finished) = args
        .plant
        .as_deref()
        .and_then(|name| plants::switch(name, "sim"))
    {
        return finished;
    }
    let signals = match Signals::watch(json.then_some(last_words as fn(i32) -> String)) {
        Ok(signals) => signals,
        Err(error) => {
            let problem = Problem::text(&format!("watching for signals: {error}"));
            return Finished {
                exit: Exit::BadStart,
                report: Report::new(Some("sim"), vec![problem]),
                text: String::new(),
            };
        }
    };
    let swept = sweep::sweep(&job(args), &signals);
    result::finish(&swept)
}

fn job(args: &SimArgs) -> Job {
    let (first, seeds) = match args.seed {
        Some(seed) => (seed, 1),
        None => (args.first, args.seeds),
    };
    #[cfg(feature = "plant")]
    let (breach, stops_at_failure) = (args.breach, args.plant.is_some() || args.breach.is_some());
    #[cfg(not(feature = "plant"))]
    let (breach, stops_at_failure) = (None, false);
    let threads = thread::available_parallelism().map_or(1, NonZero::get);
    Job {
        first,
        seeds,
        limit: args
            .minutes
            .map(|minutes| Duration::from_secs(60 * minutes)),
        breach,
        stops_at_failure,
        threads: threads.min(seeds as usize),
        trace_lines: args.trace as usize,
    }
}

#[cfg(feature = "plant")]
fn breach(name: &str) -> Result<Breach, String> {
    let mut all = Breach::ALL.into_iter();
    let found = all.find(|breach| format!("{breach:?}") == name);
    found.ok_or_else(|| format!("allowed: {:?}", Breach::ALL))
}

/// The one object of `--json` when a second signal ends the process.
fn last_words(signal: i32) -> String {
    let why = format!("ended at once by a second signal, number {signal}");
    let report = Report::new(Some("sim"), vec![Problem::text(&why)]);
    serde_json::to_string(&report).expect("a report has string keys and finite numbers")
}
