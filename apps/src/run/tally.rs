//! Figures of one side: workers count for themselves and add it up now and then.

use std::collections::HashMap;

use keyfence::latency::LatencyHistogram;
use keyfence::{OpKind, Status};

/// The phases that are counted.
pub const PHASES: [&str; 2] = ["paced", "flat"];

/// Writes, reads, sends: the kinds of the report.
pub const KINDS: usize = 3;

/// The row of a kind of operation.
pub const fn row(kind: OpKind) -> usize {
    match kind {
        OpKind::Read => 1,
        OpKind::Send => 2,
        _ => 0,
    }
}

/// Completed operations.
#[derive(Clone, Copy, Debug, Default)]
pub struct Count {
    /// How many.
    pub ops: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// What one worker did in one phase.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    /// The worker.
    pub member: usize,
    /// 0 paced, 1 flat.
    pub phase: usize,
    /// Operations.
    pub ops: u64,
    /// How much of the phase it lived.
    pub lived_ns: u64,
}

/// What can go wrong, counted where it is seen.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// Changed bytes in memory that was kept quiet.
    pub late_bytes: u64,
    /// Reads, and messages, with the bytes of somebody who had no part in them.
    pub late_reads: u64,
    /// Keys that the device still honours over such memory.
    pub stale_keys: u64,
    /// Requests not proven ended over such memory.
    pub open_wrs: u64,
    /// Failures of operations of contexts that nothing had happened to.
    pub bystander_errors: u64,
}

/// One side's figures.
#[derive(Debug, Default)]
pub struct Tally {
    /// By phase and kind.
    pub counts: [[Count; KINDS]; 2],
    /// Latencies by phase and kind.
    pub latency: [[LatencyHistogram; KINDS]; 2],
    /// Paced latencies of untouched contexts, while nobody was reclaimed and while somebody was.
    pub bystanders: [LatencyHistogram; 2],
    /// For the fairness check.
    pub shares: Vec<Share>,
    /// What went wrong.
    pub faults: Faults,
    /// The first few faults in words.
    pub notes: Vec<String>,
    /// Buffers that came to a new owner, or back to their owner from a grant.
    pub reuses_begun: u64,
    /// Those of them that were scanned before their use, or before their owner's end.
    pub reuses: u64,
    /// Bytes compared with their pattern.
    pub bytes_scanned: u64,
    /// Successful reads by a revoked key whose bytes were looked at.
    pub late_reads_checked: u64,
    /// Revokes of single grants that found a write of the holder in flight.
    pub revokes_with_write_in_flight: u64,
    /// Operations cut off by a broken lane: without a known end, and not sent.
    pub cut: [u64; 2],
    /// The owner that each buffer had last, by its address.
    pub owners: HashMap<u64, u64>,
}

/// Notes that are kept.
const NOTES: usize = 16;

impl Tally {
    /// Keeps a sentence about a fault, if it is among the first.
    pub fn note(&mut self, text: impl FnOnce() -> String) {
        if self.notes.len() < NOTES {
            self.notes.push(text());
        }
    }

    /// A broken lane has cut off an operation.
    pub fn cut(&mut self, status: Status) {
        self.cut[usize::from(status == Status::NotSent)] += 1;
    }

    /// All operations.
    pub fn ops(&self) -> u64 {
        let kinds = self.counts.iter().flatten();
        kinds.map(|count| count.ops).sum()
    }
}

/// A sample of one latency.
#[derive(Clone, Copy, Debug)]
struct Sample {
    row: u8,
    /// Nothing had happened to this worker; if so, whether it was while somebody was reclaimed.
    bystander: Option<bool>,
    ns: u64,
}

/// Samples kept before they are added up.
const SAMPLES: usize = 64;

/// What a worker has counted since it last added up.
#[derive(Debug)]
pub struct Local {
    phase: usize,
    counts: [Count; KINDS],
    samples: Vec<Sample>,
    /// Operations in this phase.
    pub phase_ops: u64,
}

impl Local {
    /// Nothing yet.
    pub fn new() -> Self {
        Self {
            phase: 0,
            counts: [Count::default(); KINDS],
            samples: Vec::with_capacity(SAMPLES),
            phase_ops: 0,
        }
    }

    /// Counts a completed operation.
    #[inline]
    pub fn count(&mut self, kind: OpKind, bytes: u64) {
        let count = &mut self.counts[row(kind)];
        count.ops += 1;
        count.bytes += bytes;
        self.phase_ops += 1;
    }

    /// Keeps a latency; whether it is time to add up.
    #[inline]
    pub fn sample(&mut self, kind: OpKind, ns: u64, bystander: Option<bool>) -> bool {
        self.samples.push(Sample {
            row: row(kind) as u8,
            bystander,
            ns,
        });
        self.samples.len() == SAMPLES
    }

    /// Adds up.
    pub fn flush(&mut self, tally: &mut Tally) {
        for (sum, count) in tally.counts[self.phase].iter_mut().zip(&mut self.counts) {
            sum.ops += count.ops;
            sum.bytes += count.bytes;
            *count = Count::default();
        }
        for Sample { row, bystander, ns } in self.samples.drain(..) {
            tally.latency[self.phase][usize::from(row)].record(ns);
            if let (0, Some(chaos)) = (self.phase, bystander) {
                tally.bystanders[usize::from(chaos)].record(ns);
            }
        }
    }

    /// Begins a phase; everything before it was added up.
    pub fn begin(&mut self, phase: usize) {
        self.phase = phase;
        self.phase_ops = 0;
    }
}
