//! `copy`: streams a file through grants from one engine to another, with contexts that may be killed on the way.

mod board;
mod crew;
mod disk;
mod file;
mod plan;
mod receiver;
mod seat;
mod sender;
mod transfer;
mod verdict;

use std::path::PathBuf;

use clap::Args;
use keyfence::EngineBuilder;
use keyfence::config::{parse_bytes, parse_duration_ns, show_bytes};
use keyfence::pmd::Device;
use keyfence_mempool::sync::Arc;

use self::board::Board;
use self::file::{Destination, Source};
use self::plan::{MAX_CONTEXTS, MAX_WINDOW_BYTES, MIN_WINDOW_BYTES, Plan};
use self::transfer::{End, Transferred, transfer};
use self::verdict::{Evidence, judge};
use crate::device::{DeviceArgs, OnDevice};
use crate::exit::Exit;
use crate::host::{Clock, Host, allowed_cpus, fresh_seed};
use crate::progress::Progress;
use crate::report::{Finished, Problem, Report};
use crate::signals::Signals;

/// Arguments of `copy`.
#[derive(Args, Debug)]
#[command(
    after_help = "Example:\n  keyfence copy big.iso copy.iso --kill-every 20ms\n\n\
    The copy is written beside DST and gets its name when its BLAKE3 digest, read back, is the source's. \
    A signal ends the copy without a DST and with exit code 1."
)]
pub struct CopyArgs {
    /// The file to copy
    #[arg(value_name = "SRC")]
    source: PathBuf,
    /// The copy; a file that is there is replaced
    #[arg(value_name = "DST")]
    destination: PathBuf,
    /// Kill a context with a transfer in flight each T, such as 20ms; fewer than 10 kills, or than 0.8 an interval, fail the check
    #[arg(long, value_name = "T", value_parser = interval)]
    kill_every: Option<u64>,
    /// Contexts on each side
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=i64::from(MAX_CONTEXTS)))]
    contexts: u16,
    /// Bytes that a context has in transfer at most
    #[arg(long, value_name = "BYTES", default_value = "1MiB", value_parser = window)]
    window: u64,
    #[command(flatten)]
    device: DeviceArgs,
}

/// Copies; 2 if the files or the machine don't let it, 1 if a check fails.
pub fn copy(args: &CopyArgs, json: bool) -> Finished {
    attempt(args, json).unwrap_or_else(|why| Finished {
        exit: Exit::BadStart,
        report: Report {
            device: Some(args.device.choice().to_string()),
            ..Report::new(Some("copy"), vec![Problem::text(&why)])
        },
        text: String::new(),
    })
}

fn attempt(args: &CopyArgs, json: bool) -> Result<Finished, String> {
    let source = Source::open(&args.source)?;
    let plan = Arc::new(Plan::new(source.bytes, args.contexts, args.window)?);
    let signals = Signals::watch(json.then_some(last_words as fn(i32) -> String));
    let signals = signals.map_err(|error| format!("watching for signals: {error}"))?;
    let destination = Destination::create(&args.destination, &source)?;
    signals.set_unfinished(Some(destination.partial().to_owned()));
    let cpus = allowed_cpus();
    if cpus.is_empty() {
        return Err("the CPUs that this process may use are not to be learnt".into());
    }
    let clock = Clock::new();
    let board = Arc::new(Board::new(plan.blocks(), plan.streams));
    let builders = args.device.join(plan.engines(&cpus))?;
    let carrier = Carrier {
        clock: &clock,
        plan: &plan,
        board: &board,
        files: (&source, &destination),
        kill_every_ns: args.kill_every,
        signals: &signals,
    };
    let choice = args.device.choice();
    let carried = choice.open(builders, carrier).and_then(|carried| carried);
    let mut transferred = carried.map_err(|error| format!("{error:#}"))?;
    if let Some(why) = board.failure() {
        return Err(why);
    }
    let (digest, unfinished) = finish(destination, &plan, &mut transferred, &signals)?;
    signals.set_unfinished(None);
    Ok(judge(&Evidence {
        device: &choice.to_string(),
        plan: &plan,
        board: &board,
        transferred: &transferred,
        kill_every_ns: args.kill_every,
        digest,
        unfinished,
    }))
}

/// What a transfer needs beside its engines.
struct Carrier<'a> {
    clock: &'a Clock,
    plan: &'a Arc<Plan>,
    board: &'a Arc<Board>,
    files: (&'a Source, &'a Destination),
    kill_every_ns: Option<u64>,
    signals: &'a Signals,
}

impl OnDevice for Carrier<'_> {
    type Done = anyhow::Result<Transferred>;

    fn interrupted(&self) -> bool {
        self.signals.interrupted()
    }

    fn on<D: Device>(self, builders: Vec<EngineBuilder>, devices: Vec<D>) -> Self::Done {
        let host = Host::start(builders, devices, self.clock, fresh_seed()?)?;
        Ok(transfer(
            host,
            self.clock,
            self.plan,
            self.board,
            self.files,
            self.kill_every_ns,
            self.signals,
        ))
    }
}

/// Reads the copy back and gives it its name if it is the source's equal; else says why not.
fn finish(
    destination: Destination,
    plan: &Plan,
    transferred: &mut Transferred,
    signals: &Signals,
) -> Result<(Option<blake3::Hash>, Option<String>), String> {
    if transferred.end != End::Complete {
        return Ok((None, None));
    }
    let mut progress = Progress::new("reading back", plan.bytes);
    let read_back = destination.digest(|bytes| {
        progress.set(bytes);
        !signals.interrupted()
    });
    let digest = read_back.map_err(|error| format!("reading the copy back: {error}"))?;
    let Some(found) = digest else {
        transferred.end = End::Interrupted;
        return Ok((None, None));
    };
    let Some(wanted) = transferred.digest else {
        return Ok((digest, Some("the source was not read to its end".into())));
    };
    if found != wanted {
        let why = format!("the copy's digest is {found}, the source's {wanted}");
        return Ok((digest, Some(why)));
    }
    let named = destination.finish();
    named.map_err(|error| format!("giving the copy its name: {error}"))?;
    Ok((digest, None))
}

/// The one object of `--json` when a second signal ends the process.
fn last_words(signal: i32) -> String {
    let why = format!("ended at once by a second signal, number {signal}");
    let report = Report::new(Some("copy"), vec![Problem::text(&why)]);
    serde_json::to_string(&report).expect("a report has string keys and finite numbers")
}

fn interval(text: &str) -> Result<u64, String> {
    match parse_duration_ns(text) {
        Ok(0) => Err("is 0; allowed: a duration such as 20ms, at least 1us".into()),
        Ok(ns) if ns < 1_000 => Err("is below 1us; allowed: a duration such as 20ms".into()),
        Ok(ns) => Ok(ns),
        Err(error) => Err(format!("{error}; allowed: a duration such as 20ms")),
    }
}

fn window(text: &str) -> Result<u64, String> {
    let allowed = format!(
        "allowed: {} to {}, such as 1MiB or 1048576",
        show_bytes(MIN_WINDOW_BYTES),
        show_bytes(MAX_WINDOW_BYTES)
    );
    // Without a unit, a number of bytes, as an integer in a file is.
    let bytes = text.parse().or_else(|_| parse_bytes(text));
    match bytes {
        Ok(bytes) if (MIN_WINDOW_BYTES..=MAX_WINDOW_BYTES).contains(&bytes) => Ok(bytes),
        Ok(_) => Err(format!("is outside; {allowed}")),
        Err(error) => Err(format!("{error}; {allowed}")),
    }
}
