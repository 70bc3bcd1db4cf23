//! What the rounds and the ping-pongs come to.

use keyfence::latency::LatencyHistogram;
use keyfence_benches::Quartiles;

use super::Job;
use super::meter::Measured;
use crate::report::{Latency, Middle, PerfReport};

/// Two ping-pongs around a round that differ by more than this say that the machine changed meanwhile.
const MOST_DRIFT: f64 = 1.2;

impl Measured {
    /// The latencies of all rounds.
    pub fn all(&self) -> LatencyHistogram {
        let mut all = LatencyHistogram::new();
        self.rounds
            .iter()
            .for_each(|round| all.merge(&round.latency));
        all
    }
}

/// The fields of the report.
pub fn report(job: &Job, measured: &Measured) -> PerfReport {
    let all = measured.all();
    let mut ratios = Vec::new();
    let mut rates = Vec::new();
    for (round, probes) in measured.rounds.iter().zip(measured.probes_ns.windows(2)) {
        rates.push(round.ops as f64 * 1e9 / round.elapsed_ns.max(1) as f64);
        let (low, high) = (probes[0].min(probes[1]), probes[0].max(probes[1]));
        if high <= low * MOST_DRIFT {
            let probe_ns = (low + high) / 2.0;
            ratios.push(round.latency.quantile_ns(0.5) as f64 / probe_ns);
        }
    }
    let ops: u64 = measured.rounds.iter().map(|round| round.ops).sum();
    PerfReport {
        op: job.op,
        size: job.size as u64,
        iters: ops,
        depth: job.depth,
        open_loop: job.interval_ns.is_some(),
        one_way: job.is_ping_pong,
        cpus: job.cpus,
        latency_ns: Latency::of(all.as_hdr(), all.max_ns()),
        rate_per_s: Middle::of(&rates).p50,
        probe_ns: Middle::of(&measured.probes_ns).p50,
        rounds: measured.rounds.len(),
        rounds_kept: ratios.len(),
        latency_to_probe: Middle::of(&ratios),
    }
}

/// For people.
pub fn text(report: &PerfReport) -> String {
    let PerfReport {
        latency_ns: latency,
        latency_to_probe: ratio,
        ..
    } = report;
    let how = match (report.one_way, report.open_loop) {
        (true, _) => "half of there and back",
        (_, true) => "open loop, from the intended start",
        _ => "from post to completion",
    };
    format!(
        "{:?} of {} bytes, {} in flight, CPUs {:?}; {how}\n\
         operations      {}\n\
         latency ns      min {}  p50 {}  p90 {}  p99 {}  p99.9 {}  max {}\n\
         rate            {:.0} a second\n\
         round trip      {:.1} ns for a cache line\n\
         p50 to it       {:.2} (quartiles {:.2} to {:.2}, {} of {} rounds)\n",
        report.op,
        report.size,
        report.depth,
        report.cpus,
        report.iters,
        latency.min,
        latency.p50,
        latency.p90,
        latency.p99,
        latency.p99_9,
        latency.max,
        report.rate_per_s,
        report.probe_ns,
        ratio.p50,
        ratio.p25,
        ratio.p75,
        report.rounds_kept,
        report.rounds,
    )
}

impl Middle {
    /// All 0 of none.
    fn of(values: &[f64]) -> Self {
        Quartiles::of(values).map_or(Self::default(), |of| Self {
            p25: of.q1,
            p50: of.median,
            p75: of.q3,
        })
    }
}
