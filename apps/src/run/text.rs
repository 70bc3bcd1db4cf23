//! The report of a run for people.

use core::fmt::{self, Write};

use keyfence::config::{show_bytes, show_ns};

use super::scene::ArenaFacts;
use crate::report::{Latency, OpReport, RunReport};

/// The text; what fell back is named in it too.
pub fn of(report: &RunReport, facts: &str, arenas: &[ArenaFacts]) -> String {
    let mut text = String::new();
    write(&mut text, report, facts, arenas).expect("a string takes everything");
    text
}

fn write(text: &mut String, report: &RunReport, facts: &str, arenas: &[ArenaFacts]) -> fmt::Result {
    writeln!(text, "{facts}")?;
    let locked = if report.memory.locked {
        "locked"
    } else {
        "not locked"
    };
    writeln!(
        text,
        "memory: {} in pages of kind {}, {locked}",
        show_bytes(report.memory.bytes),
        report.memory.page_kind
    )?;
    for arena in arenas {
        for note in &arena.notes {
            writeln!(text, "  {}: {note}", arena.engine)?;
        }
    }
    for lcore in &report.lcores {
        writeln!(
            text,
            "lcore {}.{} on CPU {}: {} steps, {} operations",
            lcore.engine, lcore.lcore, lcore.cpu, lcore.steps, lcore.ops
        )?;
    }
    writeln!(
        text,
        "traffic for {:.1} s; a cache line's round trip takes {} ns",
        report.duration_s, report.probe_ns
    )?;
    operations(text, report)?;
    reclaims(text, report)?;
    checks(text, report)
}

fn operations(text: &mut String, report: &RunReport) -> fmt::Result {
    writeln!(
        text,
        "\n{:8}{:7}{:>11}{:>13}{:>9}{:>9}{:>9}{:>9}{:>10}  p50 to the round trip",
        "phase", "op", "count", "bytes", "p50 ns", "p90", "p99", "p99.9", "max"
    )?;
    for phase in &report.phases {
        let ops = &phase.ops;
        for (name, op) in [
            ("write", &ops.write),
            ("read", &ops.read),
            ("send", &ops.send),
        ] {
            let OpReport {
                count,
                bytes,
                latency_ns: ns,
                ..
            } = op;
            let ratio = ns.p50 as f64 / report.probe_ns.max(1) as f64;
            writeln!(
                text,
                "{:8}{name:7}{count:>11}{bytes:>13}{:>9}{:>9}{:>9}{:>9}{:>10}  {ratio:.0}",
                phase.name, ns.p50, ns.p90, ns.p99, ns.p99_9, ns.max
            )?;
        }
    }
    let line = |name: &str, ns: &Latency| {
        format!("{name} p50 {} p99 {} p99.9 {}", ns.p50, ns.p99, ns.p99_9)
    };
    writeln!(
        text,
        "paced, untouched contexts, ns: {}; {}",
        line("nobody dying", &report.bystanders.quiet),
        line("somebody dying", &report.bystanders.chaos)
    )
}

fn reclaims(text: &mut String, report: &RunReport) -> fmt::Result {
    let (reclaim, coverage) = (&report.reclaim, &report.coverage);
    writeln!(
        text,
        "\nreclaimed {} contexts, {} with operations in flight: p50 {}, p99 {}, longest {}",
        reclaim.contexts_reclaimed,
        coverage.reclaims_with_ops_in_flight,
        show_ns(reclaim.reclaim_ns.p50),
        show_ns(reclaim.reclaim_ns.p99),
        show_ns(reclaim.reclaim_ns.max)
    )?;
    writeln!(
        text,
        "{} grants ended, {} of them revoked with a write in flight; {} in quarantine",
        reclaim.grants_zapped, coverage.revokes_with_write_in_flight, reclaim.quarantined
    )?;
    writeln!(
        text,
        "{} buffers scanned before their reuse, {} in all; {} late reads looked at",
        coverage.reuses,
        show_bytes(coverage.bytes_scanned),
        coverage.late_reads_checked
    )
}

fn checks(text: &mut String, report: &RunReport) -> fmt::Result {
    let checks = &report.checks;
    writeln!(
        text,
        "\nlate_bytes {}, late_reads {}, stale_keys {}, open_wrs {}, bystander_errors {}, unfinished_ops {}, leaked_grants {}, \
         contract_violations {}, unscanned_reuses {}, books_balance {}",
        checks.late_bytes,
        checks.late_reads,
        checks.stale_keys,
        checks.open_wrs,
        checks.bystander_errors,
        checks.unfinished_ops,
        checks.leaked_grants,
        checks.contract_violations,
        checks.unscanned_reuses,
        checks.books_balance
    )?;
    if report.interrupted {
        writeln!(text, "interrupted: all contexts closed, minima not applied")?;
    }
    if report.caught_by.is_empty() {
        writeln!(text, "all checks passed")
    } else {
        writeln!(text, "FAILED: {}", report.caught_by.join(", "))
    }
}
