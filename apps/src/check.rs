//! `check`: reads configuration files and says what they come to.

mod machine;

use std::fmt::{self, Write};
use std::path::PathBuf;

use clap::Args;
use keyfence::config::{Config, IdlePolicy, show_ns};
use keyfence::limits::budget_bytes;

use crate::catalog::CATALOG;
use crate::exit::Exit;
use crate::report::{
    Body, BudgetItem, CheckReport, CheckedFiles, EngineCheck, FileCheck, Finished, Problem,
    ReclaimBound, Report,
};

/// Arguments of `check`.
#[derive(Args, Debug)]
#[command(
    after_help = "Example:\n  keyfence check configs/loopback.toml configs/test_min.toml\n\n\
    Each error is a line on stderr, `file:line:column: key: what is wrong; what is allowed`, and the exit code is 2. What a good file asks for \
    that this machine lacks is named, and is no error: the file may be for another."
)]
pub struct CheckArgs {
    /// Configuration files
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
}

/// Checks each file; 2 if one of them is wrong.
pub fn check(args: &CheckArgs) -> Finished {
    let (mut files, mut errors, mut text) = (Vec::new(), Vec::new(), String::new());
    for path in &args.files {
        let file = path.display().to_string();
        let mut engines = Vec::new();
        let ok = match Config::load(path, CATALOG) {
            Ok(config) => {
                engines = (0..config.engines.len())
                    .map(|engine| check_engine(&config, engine))
                    .collect();
                describe(&file, &config, &engines, &mut text).expect("a string takes everything");
                true
            }
            Err(wrong) => {
                errors.extend(Problem::of_config(&wrong));
                false
            }
        };
        files.push(FileCheck { file, ok, engines });
    }
    let exit = if errors.is_empty() {
        Exit::Good
    } else {
        Exit::BadStart
    };
    let device = files
        .iter()
        .flat_map(|file| &file.engines)
        .map(|engine| engine.device.clone())
        .next();
    let body = Some(Body::Check(CheckReport {
        check: CheckedFiles { files },
    }));
    Finished {
        exit,
        report: Report {
            device,
            body,
            ..Report::new(Some("check"), errors)
        },
        text,
    }
}

fn check_engine(config: &Config, index: usize) -> EngineCheck {
    let engine = &config.engines[index];
    let consumers = config.budget(index);
    EngineCheck {
        name: engine.name.clone(),
        device: engine.device.clone(),
        lcores: engine.lcores.clone(),
        lanes: config.lanes(index),
        arena_bytes: config.memory.arena_bytes,
        budget_bytes: budget_bytes(&consumers),
        budget: consumers
            .into_iter()
            .map(|(consumer, bytes)| BudgetItem { consumer, bytes })
            .collect(),
        reclaim_bound: reclaim_bound(config),
        missing_here: machine::missing_here(config, index),
    }
}

fn reclaim_bound(config: &Config) -> ReclaimBound {
    let (timeouts, keys) = (&config.timeouts, config.limits.keys());
    ReclaimBound {
        fence_ns: timeouts.fence_timeout_ns,
        invalidate_ns: timeouts.invalidate_timeout_ns,
        drain_ns: timeouts.drain_timeout_ns,
        control_ns: timeouts.control_timeout_ns,
        keys,
        per_key_ns: timeouts.per_key_ns,
        total_ns: timeouts.reclaim_bound_ns(keys),
        shutdown_ns: timeouts.shutdown_timeout_ns,
    }
}

fn describe(file: &str, config: &Config, checks: &[EngineCheck], text: &mut String) -> fmt::Result {
    writeln!(text, "{file}: good")?;
    for (engine, check) in config.engines.iter().zip(checks) {
        let idle = match engine.idle {
            IdlePolicy::Spin => "spin".into(),
            IdlePolicy::Backoff { max_sleep_ns } => {
                format!("backoff up to {}", show_ns(max_sleep_ns))
            }
        };
        let EngineCheck {
            name,
            device,
            lcores,
            lanes,
            arena_bytes,
            ..
        } = check;
        writeln!(
            text,
            "  engine {name}: device {device}, lcores on CPU {lcores:?}, idle {idle}, {lanes} lanes"
        )?;
        for BudgetItem { consumer, bytes } in &check.budget {
            describe_bytes(text, consumer, *bytes)?;
        }
        describe_bytes(text, "sum", check.budget_bytes)?;
        describe_bytes(text, "left", arena_bytes - check.budget_bytes)?;
        describe_bytes(text, "arena", *arena_bytes)?;
        describe_bound(text, &check.reclaim_bound)?;
        for missing in &check.missing_here {
            writeln!(text, "    not on this machine: {missing}")?;
        }
    }
    Ok(())
}

fn describe_bytes(text: &mut String, what: &str, bytes: u64) -> fmt::Result {
    let mib = bytes as f64 / f64::from(1 << 20);
    writeln!(text, "    {what:<18}{bytes:>16} bytes {mib:>10.1} MiB")
}

fn describe_bound(text: &mut String, bound: &ReclaimBound) -> fmt::Result {
    writeln!(
        text,
        "    reclaim bound {} = fence {} + invalidate {} + drain {} + 3 x control {} + {} keys x {}; shutdown {}",
        show_ns(bound.total_ns),
        show_ns(bound.fence_ns),
        show_ns(bound.invalidate_ns),
        show_ns(bound.drain_ns),
        show_ns(bound.control_ns),
        bound.keys,
        show_ns(bound.per_key_ns),
        show_ns(bound.shutdown_ns),
    )
}
