//! `perf`: how long one operation takes, and how many go in a second, beside the round trip of a cache line on the same two threads.

mod driver;
mod engines;
mod landing;
mod logs;
mod meter;
mod reactor;
mod result;
mod target;

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use keyfence::EngineBuilder;
use keyfence::config::parse_bytes;
use keyfence::pmd::Device;
use keyfence_mempool::sync::Arc;
use serde::Serialize;

use crate::device::{DeviceArgs, OnDevice};
use crate::exit::Exit;
use crate::host::{Clock, allowed_cpus};
use crate::report::{Body, Finished, PerfBody, Problem, Report};
use crate::signals::Signals;
use engines::Pair;
use meter::Meter;

/// What is measured.
#[derive(ValueEnum, Serialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "lowercase")]
pub enum Op {
    /// Bytes into a grant of the peer
    Write,
    /// Bytes out of a grant of the peer
    Read,
    /// A message; with --depth 1 and no --rate it goes there and back, and half of that is its latency
    Send,
}

/// Arguments of `perf`.
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Example:\n  keyfence perf --op write --size 8\n  keyfence perf --op send --size 64 --depth 64\n\n\
    The rounds alternate with a ping-pong of one cache line between the same two threads: compare ratios, not nanoseconds, since on a \
    shared machine both change from second to second. A round whose two ping-pongs differ by over a fifth is left out."
)]
pub struct PerfArgs {
    /// The operation
    #[arg(long, value_enum, default_value = "write")]
    op: Op,
    /// Bytes of each
    #[arg(long, value_name = "BYTES", default_value = "8", value_parser = size)]
    size: u64,
    /// Operations that are measured, all rounds together
    #[arg(long, value_name = "N", default_value_t = 200_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    iters: u64,
    /// Operations before that
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(0..=1_000_000_000))]
    warmup: u64,
    /// Rounds, each between two ping-pongs
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rounds: u32,
    /// Operations in flight: closed loop, the next begins when one ends
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    depth: u32,
    /// With --op write: there and back, each side polling its memory, and half of that is the latency
    #[arg(long, conflicts_with_all = ["depth", "rate"])]
    ping_pong: bool,
    /// Open loop: so many operations a second, whatever becomes of those before; latency counts from the intended start
    #[arg(long, value_name = "PER_S", conflicts_with = "depth", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    rate: Option<u64>,
    /// The CPUs of the two lcores
    #[arg(long, value_name = "A,B", value_delimiter = ',', num_args = 1)]
    cpus: Option<Vec<u32>>,
    /// Write the percentiles in the .hgrm format of HdrHistogram
    #[arg(long, value_name = "FILE")]
    hgrm: Option<PathBuf>,
    /// Write each round's histogram in the V2 log format of HdrHistogram
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    #[command(flatten)]
    device: DeviceArgs,
}

/// The largest operation that can be asked for.
const MAX_SIZE: u64 = 16 << 20;

/// What is measured, in full.
#[derive(Clone, Debug)]
pub struct Job {
    /// The operation.
    pub op: Op,
    /// Bytes.
    pub size: usize,
    /// Operations of each round.
    pub round_ops: u64,
    /// Operations before the first.
    pub warmup: u64,
    /// Rounds.
    pub rounds: u32,
    /// In flight at most.
    pub depth: u32,
    /// In an open loop, from one intended start to the next.
    pub interval_ns: Option<f64>,
    /// Whether an operation goes there and back.
    pub is_ping_pong: bool,
    /// Where the lcores run.
    pub cpus: [u32; 2],
}

/// Measures; 2 if the machine doesn't let it, 1 if something went wrong meanwhile.
pub fn perf(args: &PerfArgs, json: bool) -> Finished {
    attempt(args, json).unwrap_or_else(|why| Finished {
        exit: Exit::BadStart,
        report: Report {
            device: Some(args.device.choice().to_string()),
            ..Report::new(Some("perf"), vec![Problem::text(&why)])
        },
        text: String::new(),
    })
}

fn attempt(args: &PerfArgs, json: bool) -> Result<Finished, String> {
    let job = job(args)?;
    let signals = Signals::watch(json.then_some(last_words as fn(i32) -> String));
    let signals = signals.map_err(|error| format!("watching for signals: {error}"))?;
    let clock = Clock::new();
    let meter = Arc::new(Meter::new(&job, clock));
    let builders = args.device.join(engines::builders(&job))?;
    let bench = Bench {
        job: &job,
        meter: &meter,
        signals: &signals,
    };
    let choice = args.device.choice();
    let measured = choice.open(builders, bench).and_then(|ended| ended);
    let ended = measured.map_err(|error| format!("{error:#}"))?;
    let measured = meter.take();
    let errors = match ended {
        Ok(()) => Vec::new(),
        Err(why) => vec![Problem::text(&why)],
    };
    if let Some(path) = &args.hgrm {
        logs::write_hgrm(path, &measured)?;
    }
    if let Some(path) = &args.log {
        logs::write_log(path, &measured)?;
    }
    let report = result::report(&job, &measured);
    let text = result::text(&report);
    let exit = if errors.is_empty() {
        Exit::Good
    } else {
        Exit::CheckFailed
    };
    Ok(Finished {
        exit,
        report: Report {
            device: Some(choice.to_string()),
            body: Some(Body::Perf(Box::new(PerfBody { perf: report }))),
            ok: exit == Exit::Good,
            ..Report::new(Some("perf"), errors)
        },
        text,
    })
}

/// What a measurement needs beside its engines.
struct Bench<'a> {
    job: &'a Job,
    meter: &'a Arc<Meter>,
    signals: &'a Signals,
}

impl OnDevice for Bench<'_> {
    type Done = anyhow::Result<Result<(), String>>;

    fn interrupted(&self) -> bool {
        self.signals.interrupted()
    }

    fn on<D: Device>(self, builders: Vec<EngineBuilder>, devices: Vec<D>) -> Self::Done {
        let mut pair = Pair::start(self.job, self.meter, builders, devices)?;
        Ok(pair.run(self.meter, self.signals))
    }
}

fn job(args: &PerfArgs) -> Result<Job, String> {
    let allowed = allowed_cpus();
    let cpus = match args.cpus.as_deref() {
        None => match allowed[..] {
            [] => return Err("the CPUs that this process may use are not to be learnt".into()),
            [one] => [one, one],
            [first, second, ..] => [first, second],
        },
        Some(&[first, second]) => [first, second],
        Some(other) => return Err(format!("--cpus: {} given; two are wanted", other.len())),
    };
    if args.ping_pong && (args.op == Op::Read || args.size == 0) {
        return Err(
            "--ping-pong is for writes of at least a byte; a send of --depth 1 is one anyway"
                .into(),
        );
    }
    let is_one_message = args.op == Op::Send && args.depth == 1 && args.rate.is_none();
    Ok(Job {
        is_ping_pong: args.ping_pong || is_one_message,
        op: args.op,
        size: args.size as usize,
        round_ops: args.iters.div_ceil(args.rounds.into()),
        warmup: args.warmup,
        rounds: args.rounds,
        depth: if args.rate.is_some() { 64 } else { args.depth },
        interval_ns: args.rate.map(|rate| 1e9 / rate as f64),
        cpus,
    })
}

fn size(text: &str) -> Result<u64, String> {
    let allowed = format!("allowed: 0 to {MAX_SIZE}, such as 8, 4KiB or 1MiB");
    match text.parse().or_else(|_| parse_bytes(text)) {
        Ok(bytes) if bytes <= MAX_SIZE => Ok(bytes),
        Ok(_) => Err(format!("is too large; {allowed}")),
        Err(error) => Err(format!("{error}; {allowed}")),
    }
}

/// The one object of `--json` when a second signal ends the process.
fn last_words(signal: i32) -> String {
    let why = format!("ended at once by a second signal, number {signal}");
    let report = Report::new(Some("perf"), vec![Problem::text(&why)]);
    serde_json::to_string(&report).expect("a report has string keys and finite numbers")
}
