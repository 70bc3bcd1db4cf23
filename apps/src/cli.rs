//! The command line.

use clap::{CommandFactory, Parser, Subcommand};

use crate::check::CheckArgs;
use crate::copy::CopyArgs;
use crate::perf::PerfArgs;
use crate::probe::ProbeArgs;
use crate::run::RunArgs;
use crate::sim::SimArgs;

/// An embedded poll-mode runtime for RDMA that takes remote keys back with an explicit epoch.
#[derive(Parser, Debug)]
#[command(name = "keyfence", version, arg_required_else_help = true)]
#[command(after_help = "Example:\n  keyfence run configs/loopback.toml\n\n\
    Exit code: 0 good; 1 a check failed or a peer or lcore was lost; 2 wrong before traffic; 130, 143 second signal.")]
pub struct Cli {
    /// Write exactly one JSON object to stdout, also on failure
    #[arg(long, global = true)]
    pub json: bool,

    /// What to do
    #[command(subcommand)]
    pub command: Command,
}

/// One variant a subcommand; the arguments are in the subcommand's file.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Read configuration files; print the byte budget and the reclaim bound, or all that is wrong
    Check(CheckArgs),
    /// Copy a file through grants from one engine to another, killing contexts on the way if asked to
    Copy(CopyArgs),
    /// Measure the latency and rate of one operation, beside a cache line's round trip
    Perf(PerfArgs),
    /// Test what an RDMA adapter does of what taking keys back needs, and say how keys would be made on it
    Probe(ProbeArgs),
    /// Run two engines under a load that kills contexts while their operations fly, and check everything
    Run(RunArgs),
    /// Run whole engines on a simulated, hostile network in virtual time, one run a seed, and check every promise
    Sim(SimArgs),
}

/// Whether an argument names a subcommand.
pub fn is_command(argument: &str) -> bool {
    Cli::command().find_subcommand(argument).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_sound_and_each_command_shows_an_example() {
        let command = Cli::command();
        command.clone().debug_assert();
        for subcommand in command.get_subcommands() {
            let help = subcommand
                .get_after_help()
                .map(ToString::to_string)
                .unwrap_or_default();
            let example = format!("Example:\n  keyfence {} ", subcommand.get_name());
            assert!(help.contains(&example), "{}: {help}", subcommand.get_name());
        }
    }
}
