//! What a copy comes to: the figures, and every check that fails.

use keyfence::Stats;

use super::board::{Board, count};
use super::plan::Plan;
use super::transfer::{End, Transferred};
use crate::exit::Exit;
use crate::host::Ended;
use crate::report::{
    Body, ChecksReport, CopyFigures, CopyReport, Finished, Problem, Quantiles, ReclaimReport,
    Report,
};

/// With `--kill-every`, fewer kills than this prove nothing.
const MIN_KILLS: u64 = 10;

/// And fewer than this leave too much of the time quiet.
const MIN_KILLS_AN_INTERVAL: f64 = 0.8;

/// All that is known when a copy has ended.
pub struct Evidence<'a> {
    /// The device's name.
    pub device: &'a str,
    /// What was to be copied.
    pub plan: &'a Plan,
    /// What the parts noted.
    pub board: &'a Board,
    /// How it went.
    pub transferred: &'a Transferred,
    /// `--kill-every`.
    pub kill_every_ns: Option<u64>,
    /// Of the copy, read back.
    pub digest: Option<blake3::Hash>,
    /// Why the finished copy is not there after all.
    pub unfinished: Option<String>,
}

/// The report, the text for people, and the exit code.
pub fn judge(evidence: &Evidence<'_>) -> Finished {
    let report = figures(evidence);
    let problems = failed_checks(evidence, &report);
    let exit = if problems.is_empty() {
        Exit::Good
    } else {
        Exit::CheckFailed
    };
    let text = text(&report);
    Finished {
        exit,
        report: Report {
            device: Some(evidence.device.into()),
            body: Some(Body::Copy(Box::new(report))),
            ..Report::new(Some("copy"), problems)
        },
        text,
    }
}

fn figures(evidence: &Evidence<'_>) -> CopyReport {
    let Evidence {
        plan,
        board,
        transferred,
        ..
    } = evidence;
    let sum = |of: fn(&Stats) -> u64| -> u64 { stats(&transferred.engines).map(of).sum() };
    let digest = evidence
        .digest
        .map(|hash| format!("blake3:{}", hash.to_hex()));
    let quarantined = transferred.tally.quarantined + sum(|stats| stats.grants_quarantined);
    CopyReport {
        copy: CopyFigures {
            bytes: plan.bytes,
            device_bytes: sum(|stats| stats.bytes_written),
            resent_bytes: count(&board.resent_bytes),
            kills: count(&board.kills),
            digest: digest.unwrap_or_default(),
            contexts: plan.streams as u64,
            window_bytes: plan.window_bytes,
            duration_s: transferred.elapsed_ns as f64 / 1e9,
        },
        reclaim: ReclaimReport {
            contexts_reclaimed: transferred.tally.reclaim_ns.len() as u64,
            grants_zapped: sum(|stats| stats.grants_zapped),
            quarantined,
            reclaim_ns: quantiles(&transferred.tally.reclaim_ns),
        },
        checks: ChecksReport {
            late_bytes: count(&board.late_bytes),
            // Nothing is read through a grant here.
            late_reads: 0,
            stale_keys: count(&board.stale_keys),
            open_wrs: count(&board.open_wrs),
            bystander_errors: transferred.bystander_errors,
            unfinished_ops: sum(Stats::ops_open),
            leaked_grants: sum(|stats| {
                let ended = stats.grants_zapped + stats.grants_quarantined;
                stats.grants_made.saturating_sub(ended)
            }),
            contract_violations: violations(transferred),
            unscanned_reuses: 0,
            late_reclaims: 0,
            books_balance: transferred
                .engines
                .iter()
                .all(|ended| balances(plan, ended)),
        },
        interrupted: transferred.end == End::Interrupted,
    }
}

/// R7: at rest nothing is in use but the receives that are posted.
fn balances(plan: &Plan, ended: &Ended) -> bool {
    ended.closed
        && ended.buffers_in_use == 0
        && ended.live_keys == 0
        && ended.receives_in_use <= ended.most_receives(plan.posted_receives())
        && ended.stats.iter().all(Option::is_some)
}

fn failed_checks(evidence: &Evidence<'_>, report: &CopyReport) -> Vec<Problem> {
    let Evidence {
        board, transferred, ..
    } = evidence;
    let mut failed = Vec::new();
    let mut check = |holds: bool, message: &str| {
        if !holds {
            failed.push(Problem::text(message));
        }
    };
    match transferred.end {
        End::Complete | End::Failed => {}
        End::Interrupted => check(false, "interrupted: the copy was not made"),
        End::Lost => check(
            false,
            "an lcore or the session between the engines was lost",
        ),
        End::Stalled => check(false, "no byte arrived for a minute"),
    }
    if let Some(why) = board.failure().as_ref().or(evidence.unfinished.as_ref()) {
        check(false, why);
    }
    let checks = &report.checks;
    let counts = [
        ("late_bytes", checks.late_bytes),
        ("stale_keys", checks.stale_keys),
        ("open_wrs", checks.open_wrs),
        ("bystander_errors", checks.bystander_errors),
        ("unfinished_ops", checks.unfinished_ops),
        ("leaked_grants", checks.leaked_grants),
        ("quarantined", report.reclaim.quarantined),
        ("services that panicked", transferred.tally.panics),
        ("breaches of the device's contract", violations(transferred)),
    ];
    for (name, value) in counts {
        check(value == 0, &format!("{name} is {value}, not 0"));
    }
    for ended in &transferred.engines {
        let name = &ended.name;
        let holds = balances(evidence.plan, ended);
        check(
            holds,
            &format!("the books of engine {name} don't balance: {ended:?}"),
        );
    }
    check_amounts(evidence, &report.copy, &mut check);
    failed
}

fn check_amounts(evidence: &Evidence<'_>, copy: &CopyFigures, check: &mut impl FnMut(bool, &str)) {
    let CopyFigures {
        bytes,
        device_bytes,
        resent_bytes,
        kills,
        window_bytes,
        ..
    } = *copy;
    let most = kills.saturating_mul(window_bytes);
    check(
        resent_bytes <= most,
        &format!("resent_bytes is {resent_bytes}, more than {kills} kills x {window_bytes}"),
    );
    if evidence.transferred.end != End::Complete {
        return;
    }
    let expected = bytes..=bytes + resent_bytes;
    check(
        expected.contains(&device_bytes),
        &format!("device_bytes is {device_bytes}, not within {expected:?}"),
    );
    if let Some(every_ns) = evidence.kill_every_ns {
        let intervals = evidence.transferred.elapsed_ns as f64 / every_ns as f64;
        check(
            kills >= MIN_KILLS,
            &format!(
                "{kills} kills, at least {MIN_KILLS} wanted; copy a larger file or lower --kill-every"
            ),
        );
        check(
            kills as f64 >= intervals * MIN_KILLS_AN_INTERVAL,
            &format!(
                "{kills} kills in {intervals:.0} intervals, at least {MIN_KILLS_AN_INTERVAL} an interval wanted; this machine needs more --contexts or a longer --kill-every"
            ),
        );
    }
}

fn violations(transferred: &Transferred) -> u64 {
    transferred
        .engines
        .iter()
        .map(|ended| ended.violations)
        .sum()
}

fn stats(engines: &[Ended]) -> impl Iterator<Item = &Stats> {
    engines
        .iter()
        .flat_map(|ended| ended.stats.iter().flatten())
}

/// Of the exact values; there are few.
fn quantiles(values: &[u64]) -> Quantiles {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    let at = |percent: usize| {
        let rank = (sorted.len() * percent).div_ceil(100).max(1) - 1;
        sorted.get(rank).copied().unwrap_or(0)
    };
    Quantiles {
        p50: at(50),
        p99: at(99),
        max: at(100),
    }
}

fn text(report: &CopyReport) -> String {
    let CopyFigures {
        bytes,
        device_bytes,
        resent_bytes,
        kills,
        digest,
        duration_s,
        ..
    } = &report.copy;
    let rate = if *duration_s > 0.0 {
        *bytes as f64 / duration_s / f64::from(1 << 20)
    } else {
        0.0
    };
    let ReclaimReport {
        contexts_reclaimed,
        grants_zapped,
        quarantined,
        reclaim_ns,
    } = &report.reclaim;
    format!(
        "{bytes} bytes in {duration_s:.3} s ({rate:.0} MiB/s), {device_bytes} written by the device, {resent_bytes} sent again\n\
         {kills} contexts killed with a transfer in flight; {contexts_reclaimed} reclaimed, {grants_zapped} grants zapped, {quarantined} in quarantine\n\
         reclaim p50 {} us, p99 {} us, max {} us\n\
         {digest}\n",
        reclaim_ns.p50 / 1000,
        reclaim_ns.p99 / 1000,
        reclaim_ns.max / 1000,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_exact() {
        assert_eq!(quantiles(&[]), Quantiles::default());
        let values: Vec<u64> = (1..=200).rev().collect();
        let expected = Quantiles {
            p50: 100,
            p99: 198,
            max: 200,
        };
        assert_eq!(quantiles(&values), expected);
    }
}
