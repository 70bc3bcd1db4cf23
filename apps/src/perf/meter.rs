//! What the two threads of a measurement share: whose turn it is, and what was measured.

use std::sync::{Mutex, MutexGuard, PoisonError};

use keyfence::latency::LatencyHistogram;
use keyfence_mempool::sync::{AtomicU32, Ordering};

use super::Job;
use crate::host::Clock;

/// A turn: 0 is setup and warm-up; odd ones are ping-pongs of a cache line; even ones rounds.
pub type Turn = u32;

/// No more turns.
pub const STOP: Turn = u32::MAX;

/// Whether a turn is a ping-pong.
pub const fn is_probe(turn: Turn) -> bool {
    turn % 2 == 1 && turn != STOP
}

/// One round.
#[derive(Clone, Debug)]
pub struct Round {
    /// Latencies in ns.
    pub latency: LatencyHistogram,
    /// Operations.
    pub ops: u64,
    /// From the first start to the last end.
    pub elapsed_ns: u64,
    /// When it began.
    pub began_ns: u64,
}

/// All that was measured.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// The rounds.
    pub rounds: Vec<Round>,
    /// Ping-pongs: one before the first round and one after each.
    pub probes_ns: Vec<f64>,
    /// What went wrong.
    pub fault: Option<String>,
}

/// Shared by both threads.
#[derive(Debug)]
pub struct Meter {
    /// One for all.
    pub clock: Clock,
    turn: AtomicU32,
    last: Turn,
    measured: Mutex<Measured>,
}

impl Meter {
    /// Nothing measured.
    pub fn new(job: &Job, clock: Clock) -> Self {
        Self {
            clock,
            turn: AtomicU32::new(0),
            last: 2 * job.rounds + 1,
            measured: Mutex::new(Measured::default()),
        }
    }

    /// Whose turn it is.
    #[inline]
    pub fn turn(&self) -> Turn {
        // Acquire: what was done in the turn before is seen.
        self.turn.load(Ordering::Acquire)
    }

    /// Ends a turn. Does nothing if everything was stopped meanwhile.
    pub fn end(&self, turn: Turn) {
        let next = if turn == self.last { STOP } else { turn + 1 };
        // Release: pairs with `turn`.
        let _ = self
            .turn
            .compare_exchange(turn, next, Ordering::Release, Ordering::Relaxed);
    }

    /// Ends everything.
    pub fn stop(&self) {
        self.turn.store(STOP, Ordering::Release);
    }

    /// Ends everything since something went wrong; the first reason is kept.
    pub fn fail(&self, why: String) {
        self.measured().fault.get_or_insert(why);
        self.stop();
    }

    /// A round has ended.
    pub fn add_round(&self, round: Round) {
        self.measured().rounds.push(round);
    }

    /// A ping-pong has ended.
    pub fn add_probe(&self, ns: f64) {
        self.measured().probes_ns.push(ns);
    }

    /// All of it; leaves nothing.
    pub fn take(&self) -> Measured {
        core::mem::take(&mut self.measured())
    }

    /// What went wrong.
    pub fn fault(&self) -> Option<String> {
        self.measured().fault.clone()
    }

    fn measured(&self) -> MutexGuard<'_, Measured> {
        self.measured.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
