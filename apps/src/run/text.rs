//! The report of a run for people.

use core::fmt::{self, Write};

use keyfence::config::show_bytes;

use super::scene::ArenaFacts;
use crate::report::{Latency, LcoreReport, OpReport, RunReport};

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
            "lcore {}.{} on CPU {}: {} steps, {} operations{}",
            lcore.engine,
            lcore.lcore,
            lcore.cpu,
            lcore.steps,
            lcore.ops,
            stalls(lcore)
        )?;
    }
    writeln!(
        text,
        "traffic for {:.1} s; a cache line's round trip takes {} ns",
        report.duration_s, report.probe_ns
    )?;
    operations(text, report)?;
    reclaims(text, report)?;
    troubles(text, report)?;
    checks(text, report)
}

/// What a machine that others use did to an lcore: latencies are to be read with it.
fn stalls(lcore: &LcoreReport) -> String {
    if lcore.stalls == 0 {
        return String::new();
    }
    format!(
        "; kept from running {} times for longer than step_max, the longest {} ms",
        lcore.stalls,
        lcore.longest_pause_ns / 1_000_000
    )
}

fn operations(text: &mut String, report: &RunReport) -> fmt::Result {
    writeln!(
        text,
        "\n{:8}{:7}{:>11}{:>14}{:>10}{:>10}{:>10}{:>10}{:>10}  p50 to the round trip",
        "phase", "op", "count", "bytes", "p50", "p90", "p99", "p99.9", "max"
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
                "{:8}{name:7}{count:>11}{bytes:>14}{:>10}{:>10}{:>10}{:>10}{:>10}  {ratio:.0}",
                phase.name,
                short_ns(ns.p50),
                short_ns(ns.p90),
                short_ns(ns.p99),
                short_ns(ns.p99_9),
                short_ns(ns.max)
            )?;
        }
    }
    let line = |name: &str, ns: &Latency| {
        let [p50, p99, p99_9] = [ns.p50, ns.p99, ns.p99_9].map(short_ns);
        format!("{name} p50 {p50} p99 {p99} p99.9 {p99_9}")
    };
    writeln!(
        text,
        "paced, untouched contexts: {}; {}",
        line("quiet", &report.bystanders.quiet),
        line("in chaos", &report.bystanders.chaos)
    )
}

/// What a run did beside kills and revokes, if it did.
fn troubles(text: &mut String, report: &RunReport) -> fmt::Result {
    let (coverage, lanes) = (&report.coverage, &report.lanes);
    if coverage.panics + coverage.hangs > 0 {
        let (panics, hangs) = (coverage.panics, coverage.hangs);
        writeln!(
            text,
            "{panics} contexts panicked; {hangs} clients hung until their lease ran out"
        )?;
    }
    let peers = &report.peers;
    if peers.stops + peers.restarts > 0 {
        writeln!(
            text,
            "the third engine: {} times stopped and resumed, {} times started anew; {} sessions lost, {} leases run out, {} operations with it",
            peers.stops,
            peers.restarts,
            peers.down,
            coverage.leases_ended,
            coverage.operations_with_third
        )?;
    }
    if lanes.repairs > 0 {
        writeln!(
            text,
            "{} lanes broken and repaired, {} of them by refused dead keys: p50 {}, p99 {}, longest {}; {} operations without a known end, {} not sent",
            lanes.repairs,
            coverage.dead_keys_refused,
            short_ns(lanes.repair_ns.p50),
            short_ns(lanes.repair_ns.p99),
            short_ns(lanes.repair_ns.max),
            coverage.operations_cut_off,
            coverage.operations_not_sent
        )?;
    }
    Ok(())
}

fn reclaims(text: &mut String, report: &RunReport) -> fmt::Result {
    let (reclaim, coverage) = (&report.reclaim, &report.coverage);
    writeln!(
        text,
        "\nreclaimed {} contexts, {} with operations in flight: p50 {}, p99 {}, longest {}",
        reclaim.contexts_reclaimed,
        coverage.reclaims_with_ops_in_flight,
        short_ns(reclaim.reclaim_ns.p50),
        short_ns(reclaim.reclaim_ns.p99),
        short_ns(reclaim.reclaim_ns.max)
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
         contract_violations {}, unscanned_reuses {}, late_reclaims {}, books_balance {}",
        checks.late_bytes,
        checks.late_reads,
        checks.stale_keys,
        checks.open_wrs,
        checks.bystander_errors,
        checks.unfinished_ops,
        checks.leaked_grants,
        checks.contract_violations,
        checks.unscanned_reuses,
        checks.late_reclaims,
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

/// A time to three digits, in the unit that fits.
fn short_ns(ns: u64) -> String {
    let (value, unit) = match ns {
        0..1_000 => return format!("{ns}ns"),
        1_000..1_000_000 => (ns as f64 / 1e3, "us"),
        1_000_000..1_000_000_000 => (ns as f64 / 1e6, "ms"),
        _ => (ns as f64 / 1e9, "s"),
    };
    let digits = match value {
        100.0.. => 0,
        10.0.. => 1,
        _ => 2,
    };
    format!("{value:.digits$}{unit}")
}

#[cfg(test)]
mod tests {
    use super::short_ns;

    #[test]
    fn times_have_three_digits_and_a_unit() {
        let shown = [0, 999, 1_000, 12_345, 345_678, 2_000_000, 3_600_000_000_000].map(short_ns);
        assert_eq!(
            shown,
            [
                "0ns", "999ns", "1.00us", "12.3us", "346us", "2.00ms", "3600s"
            ]
        );
    }
}
