//! The report of a run, from its figures.

use keyfence::latency::LatencyHistogram;
use keyfence_mempool::PageKind;

use super::board::Board;
use super::scene::ArenaFacts;
use super::seen::Seen;
use super::tally::{Count, PHASES};
use super::verdict::Verdict;
use crate::report::{
    BystandersReport, LanesReport, Latency, MemoryReport, OpReport, OpsReport, PeersReport,
    PhaseReport, RunReport,
};

/// Puts the figures of both sides into the fields of the report.
pub fn report(
    verdict: &Verdict,
    seen: &Seen,
    board: &Board,
    arenas: &[ArenaFacts],
    probe_ns: u64,
) -> RunReport {
    RunReport {
        memory: memory(arenas),
        lcores: verdict.lcores.clone(),
        duration_s: seen.traffic_ns as f64 / 1e9,
        probe_ns,
        phases: (0..PHASES.len()).map(|at| phase(board, at)).collect(),
        reclaim: verdict.reclaim.clone(),
        coverage: verdict.coverage.clone(),
        checks: verdict.checks.clone(),
        interrupted: seen.interrupted,
        caught_by: verdict.caught_by.clone(),
        lanes: LanesReport {
            repairs: seen.repairs.count,
            repair_ns: quantiles(&seen.repairs.took_ns).into(),
        },
        peers: PeersReport {
            down: seen.peers_down + seen.third.down,
            stops: seen.third.stops,
            restarts: seen.third.restarts,
        },
        bystanders: bystanders(board),
    }
}

fn memory(arenas: &[ArenaFacts]) -> MemoryReport {
    let smallness = |kind: PageKind| match kind {
        PageKind::Huge1GiB => 0,
        PageKind::Huge2MiB => 1,
        PageKind::Transparent => 2,
        PageKind::Base4KiB => 3,
    };
    let smallest = arenas.iter().max_by_key(|arena| smallness(arena.kind));
    let hugepages = |kind| matches!(kind, PageKind::Huge1GiB | PageKind::Huge2MiB);
    // Hugepages can't be swapped out.
    let locked = |arena: &ArenaFacts| hugepages(arena.kind) || arena.locked_bytes == arena.bytes;
    MemoryReport {
        page_kind: smallest
            .map(|arena| arena.kind.to_string())
            .unwrap_or_default(),
        bytes: arenas.iter().map(|arena| arena.bytes as u64).sum(),
        locked: arenas.iter().all(locked),
    }
}

fn phase(board: &Board, phase: usize) -> PhaseReport {
    let [write, read, send] = [0, 1, 2].map(|row| {
        let (mut count, mut latency) = (Count::default(), LatencyHistogram::new());
        for side in &board.sides {
            let tally = side.tally();
            count.ops += tally.counts[phase][row].ops;
            count.bytes += tally.counts[phase][row].bytes;
            latency.merge(&tally.latency[phase][row]);
        }
        OpReport {
            count: count.ops,
            bytes: count.bytes,
            samples: latency.count(),
            overflow: latency.overflowed(),
            latency_ns: quantiles(&latency),
        }
    });
    PhaseReport {
        name: PHASES[phase].to_owned(),
        ops: OpsReport { write, read, send },
    }
}

fn bystanders(board: &Board) -> BystandersReport {
    let [quiet, chaos] = [0, 1].map(|at| {
        let mut sum = LatencyHistogram::new();
        for side in &board.sides {
            sum.merge(&side.tally().bystanders[at]);
        }
        quantiles(&sum)
    });
    BystandersReport { quiet, chaos }
}

fn quantiles(latency: &LatencyHistogram) -> Latency {
    Latency::of(latency.as_hdr(), latency.max_ns())
}
