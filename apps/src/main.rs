//! The keyfence launcher.
//!
//! A command returns what it found; only this file writes to stdout, so that `--json` gives exactly one object whatever happens.
//! Log, progress and errors go to stderr.

mod catalog;
mod check;
mod cli;
mod copy;
mod device;
mod exit;
mod host;
mod perf;
mod probe;
mod progress;
mod random;
mod report;
mod run;
mod signals;
mod sim;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;
use tracing_subscriber::EnvFilter;

use cli::{Cli, Command};
use exit::Exit;
use report::{Finished, Problem, Report};

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return refuse_usage(&error),
    };
    log_to_stderr();
    let finished = match &cli.command {
        Command::Check(args) => check::check(args),
        Command::Copy(args) => copy::copy(args, cli.json),
        Command::Perf(args) => perf::perf(args, cli.json),
        Command::Probe(args) => probe::probe(args, cli.json),
        Command::Run(args) => run::run(args, cli.json),
        Command::Sim(args) => sim::sim(args, cli.json),
    };
    match print(&finished, cli.json) {
        // Who reads the exit code alone must not take a report that is nowhere for a good one.
        Err(_) if finished.exit == Exit::Good => Exit::CheckFailed.into(),
        _ => finished.exit.into(),
    }
}

/// `RUST_LOG` chooses what is logged; warnings and progress by default.
fn log_to_stderr() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        // Else it says on stderr, and panics if it can't, that stderr takes nothing.
        .log_internal_errors(false)
        .init();
}

/// Help and version are no failure. Everything else that the command line says wrong is, in JSON too if that was asked for.
fn refuse_usage(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        let _ = error.print();
        return Exit::Good.into();
    }
    let arguments: Vec<String> = std::env::args_os()
        .map(|arg| arg.to_string_lossy().into_owned())
        .collect();
    if arguments.iter().any(|argument| argument == "--json") {
        let command = arguments.iter().find(|argument| cli::is_command(argument));
        let message = error.render().to_string();
        let report = Report::new(
            command.map(String::as_str),
            vec![Problem::text(message.trim())],
        );
        let finished = Finished {
            exit: Exit::BadStart,
            report,
            text: String::new(),
        };
        let _ = print(&finished, true);
    } else {
        let _ = error.print();
    }
    Exit::BadStart.into()
}

/// The result to stdout, the errors to stderr. A reader that has gone away changes nothing about the result; a full disk does.
fn print(finished: &Finished, json: bool) -> io::Result<()> {
    let mut stderr = io::stderr().lock();
    for problem in &finished.report.errors {
        let _ = writeln!(stderr, "{}", problem.message);
    }
    let text = if json {
        let object = serde_json::to_string(&finished.report)
            .expect("a report has string keys and finite numbers");
        object + "\n"
    } else {
        finished.text.clone()
    };
    let mut stdout = io::stdout().lock();
    let written = stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush());
    match written {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            let _ = writeln!(stderr, "the report could not be written to stdout: {error}");
            Err(error)
        }
        _ => Ok(()),
    }
}
