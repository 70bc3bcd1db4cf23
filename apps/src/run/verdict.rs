//! What the figures of a run come to: the checks, the minima, and which of them failed.

use keyfence::config::{Config, Minima};

use keyfence_mempool::sync::Arc;

use super::board::{Board, Side};
use super::scene::THIRD;
use super::seen::Seen;
use super::tally::{PHASES, Share};
use crate::host::Ended;
use crate::report::{ChecksReport, CoverageReport, LcoreReport, ReclaimReport};

/// All of them.
#[derive(Debug, Default)]
pub struct Verdict {
    /// The checks' figures.
    pub checks: ChecksReport,
    /// What was covered.
    pub coverage: CoverageReport,
    /// What was reclaimed.
    pub reclaim: ReclaimReport,
    /// Operations completed with `Ok`, both phases and sides.
    pub operations: u64,
    /// The checks that failed, by their names.
    pub caught_by: Vec<String>,
    /// A line for each, and for each minimum that was missed.
    pub errors: Vec<String>,
    /// The lcores.
    pub lcores: Vec<LcoreReport>,
}

fn operations_on(board: &Board) -> u64 {
    board.sides.iter().map(|side| side.tally().ops()).sum()
}

/// Looks at everything that is left when the lcores have ended.
pub fn judge(config: &Config, seen: &Seen, boards: &[Arc<Board>], ended: &[Ended]) -> Verdict {
    let board = &boards[0];
    let mut verdict = Verdict {
        checks: ChecksReport {
            books_balance: true,
            ..ChecksReport::default()
        },
        errors: [&seen.errors[..], &seen.third.errors].concat(),
        ..Verdict::default()
    };
    // Where some are broken on purpose, their repairs are what is counted.
    let breaks = seen.connected && board.wishes.era() == 0 && seen.third.down == 0;
    for side in boards.iter().flat_map(|board| &board.sides) {
        verdict.add_side(side);
    }
    verdict.operations = operations_on(board);
    let guests = boards[1..].iter().map(|board| operations_on(board));
    verdict.coverage.operations_with_third = guests.sum();
    for (at, ended) in ended.iter().enumerate() {
        // The third engine has no threads that could be kept from running.
        let cpus = match at < THIRD {
            true => Some(&config.engines[at].lcores[..]),
            false => None,
        };
        verdict.add_lcores(ended, cpus, breaks);
        let posted = config.lanes(at) as usize * config.limits.receive_depth as usize;
        verdict.add_books(posted, ended);
        let ledger = match at < THIRD {
            true => board.sides[at].ledger(),
            false => boards[1].sides[1].ledger(),
        };
        let reports = ledger.reports();
        let reports = reports
            .iter()
            .map(|report| format!("engine {}: {report}", ended.name));
        verdict.errors.extend(reports);
    }
    verdict.add_driver(seen);
    verdict.checks.stale_keys += board.wishes.honoured();
    verdict.coverage.dead_keys_refused = board.wishes.refused();
    verdict.fail_on_late_reclaims(config, seen);
    verdict.fail_on_checks();
    if !seen.interrupted {
        let minima = &config.load.as_ref().expect("checked before").minima;
        verdict.apply_minima(minima, seen);
        let short_life_ns = config.timeouts.fence_timeout_ns;
        verdict.apply_shares(minima.share_percent, short_life_ns, board);
    }
    if verdict.caught_by.is_empty() && !verdict.errors.is_empty() {
        verdict.caught_by.push("run".into());
    }
    if !verdict.errors.is_empty() {
        verdict.name_stalls(config);
    }
    verdict.caught_by.dedup();
    verdict
}

impl Verdict {
    fn add_side(&mut self, side: &Side) {
        let tally = side.tally();
        let (checks, faults) = (&mut self.checks, &tally.faults);
        checks.late_bytes += faults.late_bytes;
        checks.late_reads += faults.late_reads;
        checks.stale_keys += faults.stale_keys;
        checks.open_wrs += faults.open_wrs;
        checks.bystander_errors += faults.bystander_errors;
        let coverage = &mut self.coverage;
        coverage.reuses += tally.reuses;
        checks.unscanned_reuses += tally.reuses_begun.saturating_sub(tally.reuses);
        coverage.bytes_scanned += tally.bytes_scanned;
        coverage.operations_cut_off += tally.cut[0];
        coverage.operations_not_sent += tally.cut[1];
        coverage.late_reads_checked += tally.late_reads_checked;
        coverage.revokes_with_write_in_flight += tally.revokes_with_write_in_flight;
        self.errors.extend(tally.notes.iter().cloned());
    }

    /// R7: what the runtime's own counters say at rest.
    fn add_lcores(&mut self, engine: &Ended, cpus: Option<&[u32]>, breaks: bool) {
        for (lcore, stats) in (0..).zip(&engine.stats) {
            let Some(stats) = stats else {
                self.errors
                    .push(format!("lcore {lcore} of engine {} died", engine.name));
                continue;
            };
            self.checks.unfinished_ops += stats.ops_open();
            let ended = stats.grants_zapped + stats.grants_quarantined;
            self.checks.leaked_grants += stats.grants_made.saturating_sub(ended);
            // One that is closed while it still connects gives up its half-made lanes.
            if breaks {
                self.checks.bystander_errors += stats.lanes_broken;
            }
            self.reclaim.grants_zapped += stats.grants_zapped;
            self.reclaim.quarantined += stats.grants_quarantined.saturating_sub(stats.late_proofs);
            self.reclaim.quarantined += stats.buffers_overrun;
            self.coverage.leases_ended += stats.leases_ended;
            let Some(cpu) = cpus.and_then(|cpus| cpus.get(usize::from(lcore))) else {
                continue;
            };
            self.lcores.push(LcoreReport {
                engine: engine.name.clone(),
                lcore,
                cpu: *cpu,
                steps: stats.steps,
                ops: stats.ops_ok,
                stalls: stats.steps_overran,
                longest_pause_ns: stats.longest_pause_ns,
            });
        }
    }

    /// R7: pools, keys and requests at rest. `posted` receives are in the lanes' hands while they are up.
    fn add_books(&mut self, posted: usize, ended: &Ended) {
        let Ended {
            name,
            buffers_in_use,
            receives_in_use,
            live_keys,
            ..
        } = ended;
        if *buffers_in_use != 0 {
            self.checks.books_balance = false;
            self.errors.push(format!(
                "engine {name} at rest: {buffers_in_use} buffers in use instead of 0"
            ));
        }
        let most = ended.most_receives(posted);
        if *receives_in_use > most {
            self.checks.books_balance = false;
            self.errors.push(format!(
                "engine {name} at rest: {receives_in_use} receive buffers in use instead of {most}"
            ));
        }
        if *live_keys > 0 {
            self.checks.stale_keys += *live_keys as u64;
            self.errors.push(format!(
                "engine {name} at rest: the device honours {live_keys} keys"
            ));
        }
        if !ended.closed {
            self.errors.push(format!(
                "engine {name}: contexts were not closed within timeouts.shutdown"
            ));
        }
        self.checks.contract_violations += ended.violations;
    }

    fn add_driver(&mut self, seen: &Seen) {
        self.checks.unfinished_ops += seen.undrained;
        self.checks.bystander_errors += seen.third.errors.len() as u64;
        self.checks.bystander_errors += seen.peers_down + seen.unasked + seen.repairs.unasked;
        self.coverage.panics = seen.panicked;
        self.coverage.hangs = seen.hung;
        self.reclaim.contexts_reclaimed = seen.reclaimed;
        self.reclaim.quarantined += seen.quarantined;
        self.reclaim.reclaim_ns =
            crate::report::Latency::of(seen.reclaim_ns.as_hdr(), seen.reclaim_ns.max_ns()).into();
        self.coverage.reclaims_with_ops_in_flight = seen.with_ops_in_flight;
    }

    /// R6: the bound holds as long as no lcore stalls.
    fn fail_on_late_reclaims(&mut self, config: &Config, seen: &Seen) {
        if self.lcores.iter().all(|lcore| lcore.stalls == 0) {
            let keys = config.limits.keys();
            let bound_ns = config.timeouts.reclaim_bound_ns(keys);
            self.checks.late_reclaims = seen.reclaim_ns.count_above(bound_ns);
        }
    }

    /// What may be behind all the rest: a machine on which the lcores did not run says so before it blames anything else.
    fn name_stalls(&mut self, config: &Config) {
        let worst = self
            .lcores
            .iter()
            .max_by_key(|lcore| lcore.longest_pause_ns);
        let Some(worst) = worst.filter(|worst| worst.stalls > 0) else {
            return;
        };
        let stalls: u64 = self.lcores.iter().map(|lcore| lcore.stalls).sum();
        let text = format!(
            "the lcores were kept from running: {stalls} times for longer than step_max, the longest {} ms ({}.{} on CPU {}, fence timeout {} ms). What \
             follows may come of that: give them CPUs that nothing else uses",
            worst.longest_pause_ns / 1_000_000,
            worst.engine,
            worst.lcore,
            worst.cpu,
            config.timeouts.fence_timeout_ns / 1_000_000
        );
        self.errors.insert(0, text);
    }

    fn fail_on_checks(&mut self) {
        let checks = &self.checks;
        let counts = [
            ("late_bytes", checks.late_bytes),
            ("late_reads", checks.late_reads),
            ("stale_keys", checks.stale_keys),
            ("open_wrs", checks.open_wrs),
            ("bystander_errors", checks.bystander_errors),
            ("unfinished_ops", checks.unfinished_ops),
            ("leaked_grants", checks.leaked_grants),
            ("contract_violations", checks.contract_violations),
            ("unscanned_reuses", checks.unscanned_reuses),
            ("late_reclaims", checks.late_reclaims),
        ];
        let failed = counts.iter().filter(|(_, count)| *count > 0);
        self.errors.extend(
            failed
                .clone()
                .map(|(name, count)| format!("check {name}: {count}, should be 0")),
        );
        self.caught_by
            .extend(failed.map(|(name, _)| (*name).to_owned()));
        if !checks.books_balance {
            self.caught_by.push("books_balance".into());
        }
    }

    fn apply_minima(&mut self, minima: &Minima, seen: &Seen) {
        let percent = 100.0 * seen.with_ops_in_flight as f64 / seen.reclaimed.max(1) as f64;
        let reached = [
            (
                "min_operations",
                self.operations as f64,
                minima.operations as f64,
            ),
            (
                "min_reclaims",
                seen.reclaimed as f64,
                minima.reclaims as f64,
            ),
            (
                "min_kills_with_ops_in_flight",
                percent,
                minima.kills_with_ops_in_flight_percent,
            ),
            (
                "min_revokes_with_write_in_flight",
                self.coverage.revokes_with_write_in_flight as f64,
                minima.revokes_with_write_in_flight as f64,
            ),
            (
                "min_lane_repairs",
                seen.repairs.count as f64,
                minima.lane_repairs as f64,
            ),
            (
                "min_dead_keys",
                self.coverage.dead_keys_refused as f64,
                minima.dead_keys as f64,
            ),
            (
                "min_panics",
                self.coverage.panics as f64,
                minima.panics as f64,
            ),
            ("min_hangs", seen.hung as f64, minima.hangs as f64),
            (
                "min_peers_down",
                (seen.peers_down + seen.third.down) as f64,
                minima.peers_down as f64,
            ),
            (
                "min_leases_ended",
                self.coverage.leases_ended as f64,
                minima.leases_ended as f64,
            ),
        ];
        for (name, value, least) in reached {
            if value < least {
                self.miss(name, format!("{value:.0}, at least {least:.0}"));
            }
        }
        if self.reclaim.quarantined > minima.max_quarantined {
            self.miss(
                "max_quarantined",
                format!(
                    "{}, at most {}",
                    self.reclaim.quarantined, minima.max_quarantined
                ),
            );
        }
    }

    fn miss(&mut self, name: &str, text: String) {
        self.caught_by.push(name.to_owned());
        self.errors.push(format!("load.{name}: {text}"));
    }

    /// Each worker's operations against an equal share of its phase, for as much of it as it lived. One that lived no longer than a fence may have waited for that
    /// alone: its partner's name is free when the one before is reclaimed.
    fn apply_shares(&mut self, least_percent: f64, short_life_ns: u64, board: &Board) {
        for side in &board.sides {
            let tally = side.tally();
            for (phase, name) in PHASES.iter().enumerate() {
                let shares: Vec<&Share> = tally
                    .shares
                    .iter()
                    .filter(|share| share.phase == phase)
                    .collect();
                if let Some((share, percent)) = unfair(&shares, least_percent, short_life_ns) {
                    let text = format!(
                        "worker {} has {percent:.2} % of an equal share of the {name} phase ({} operations in {} ms)",
                        share.member,
                        share.ops,
                        share.lived_ns / 1_000_000
                    );
                    self.caught_by.push("min_share_percent".into());
                    self.errors.push(format!(
                        "load.min_share_percent: {text}, at least {least_percent} %"
                    ));
                }
            }
        }
    }
}

/// The worker with the least share, if it is below `least_percent`. A share that would be less than one operation is not asked for, and a life shorter than
/// `short_life_ns` says nothing.
fn unfair<'a>(
    shares: &[&'a Share],
    least_percent: f64,
    short_life_ns: u64,
) -> Option<(&'a Share, f64)> {
    let ops: u64 = shares.iter().map(|share| share.ops).sum();
    let lived: u64 = shares.iter().map(|share| share.lived_ns).sum();
    let percent = |share: &Share| {
        let equal = ops as f64 * share.lived_ns as f64 / lived as f64;
        (equal, 100.0 * share.ops as f64 / equal)
    };
    let judged = shares.iter().filter(|share| {
        share.lived_ns >= short_life_ns && percent(share).0 * least_percent >= 100.0
    });
    let least = judged.min_by(|a, b| percent(a).1.total_cmp(&percent(b).1))?;
    let (_, percent) = percent(least);
    (percent < least_percent).then_some((least, percent))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(ops: u64, lived_ms: u64) -> Share {
        Share {
            member: 0,
            phase: 0,
            ops,
            lived_ns: lived_ms * 1_000_000,
        }
    }

    #[test]
    fn r7_an_engine_that_has_left_holds_no_receives_and_never_too_many() {
        let balances = |left, receives_in_use| {
            let ended = Ended {
                name: "left".into(),
                stats: Vec::new(),
                closed: true,
                left,
                buffers_in_use: 0,
                live_keys: 0,
                receives_in_use,
                violations: 0,
            };
            let mut verdict = Verdict::default();
            verdict.checks.books_balance = true;
            verdict.add_books(256, &ended);
            verdict.checks.books_balance
        };
        assert!(balances(true, 0) && balances(false, 256) && balances(false, 0));
        assert!(!balances(true, 1) && !balances(false, 257));
    }

    #[test]
    fn a_share_is_judged_by_how_long_its_worker_lived() {
        let (fair, late, starved) = (share(100_000, 1000), share(25_000, 500), share(500, 1000));
        assert!(unfair(&[&fair, &fair, &late], 1.0, 500_000_000).is_none());
        let (worst, percent) =
            unfair(&[&fair, &fair, &starved], 1.0, 500_000_000).expect("below 1 %");
        assert_eq!(worst.ops, 500);
        assert!(percent < 1.0, "{percent}");
        let newborn = share(0, 499);
        assert!(unfair(&[&fair, &newborn], 1.0, 500_000_000).is_none());
    }
}
