//! Many seeds, on as many threads as there are CPUs to use. What each does is its own; what they find is gathered.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use keyfence::pmd::sim::Breach;
use keyfence_mempool::sync::{AtomicBool, AtomicU64, Ordering};

use super::coverage::Reached;
use super::progress::Progress;
use super::seed::{self, Outcome};
use crate::signals::Signals;

/// Failures after which a sweep ends: more of them tell nothing new.
const ENOUGH_FAILURES: usize = 20;

/// What is run.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    pub first: u64,
    pub seeds: u64,
    /// When no further seed is begun.
    pub limit: Option<Duration>,
    /// What all adapters do wrong.
    pub breach: Option<Breach>,
    /// Whether the first failure is enough.
    pub stops_at_failure: bool,
    pub threads: usize,
    /// Lines of its trace that are shown of a seed that fails.
    pub trace_lines: usize,
}

/// What came of it.
#[derive(Debug, Default)]
pub struct Swept {
    pub reached: Reached,
    /// Of the seeds that failed, by seed.
    pub failed: Vec<Outcome>,
    pub took: Duration,
    /// What all adapters did wrong.
    pub breach: Option<Breach>,
    /// Whether a signal ended it.
    pub interrupted: bool,
    /// Lines of its trace that are shown of a seed that fails.
    pub trace_lines: usize,
}

impl Job {
    fn failures(&self) -> usize {
        if self.stops_at_failure {
            1
        } else {
            ENOUGH_FAILURES
        }
    }
}

/// Runs the job's seeds.
pub fn sweep(job: &Job, signals: &Signals) -> Swept {
    let began = Instant::now();
    let (next, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    let (found, outcomes) = mpsc::channel();
    let work = |found: mpsc::Sender<Outcome>| {
        // Relaxed, both: a seed is taken once, in whatever order, and one more does no harm.
        while !is_over.load(Ordering::Relaxed) {
            let at = next.fetch_add(1, Ordering::Relaxed);
            if at >= job.seeds
                || found
                    .send(seed::run(job.first + at, false, job.breach))
                    .is_err()
            {
                return;
            }
        }
    };
    let mut swept = Swept::default();
    let mut progress = Progress::new(job.seeds);
    thread::scope(|scope| {
        for _ in 0..job.threads {
            let found = found.clone();
            scope.spawn(|| work(found));
        }
        drop(found);
        for outcome in outcomes {
            swept.add(outcome);
            progress.set(swept.reached.seeds, swept.failed.len());
            let late = job.limit.is_some_and(|limit| began.elapsed() >= limit);
            if signals.interrupted() || late || swept.failed.len() >= job.failures() {
                is_over.store(true, Ordering::Relaxed);
            }
        }
    });
    swept.failed.sort_by_key(|outcome| outcome.seed);
    swept.took = began.elapsed();
    swept.breach = job.breach;
    swept.interrupted = signals.interrupted();
    swept.trace_lines = job.trace_lines;
    swept
}

impl Swept {
    fn add(&mut self, outcome: Outcome) {
        self.reached.add(&outcome);
        if !outcome.failures.is_empty() {
            self.failed.push(outcome);
        }
    }
}
