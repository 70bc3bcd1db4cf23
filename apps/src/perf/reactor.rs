//! The two threads: each steps its lcore, and between the rounds plays ping-pong with the other one.

use std::thread::{self, JoinHandle};
use std::time::Instant;

use keyfence::pmd::DataPath;
use keyfence::{Lcore, Work};
use keyfence_mempool::sync::{Arc, AtomicU64, Ordering, spin_loop};

use super::meter::{Meter, STOP, is_probe};

/// Ways there and back in one ping-pong.
const TRIPS: u64 = 5_000;

/// The same where both threads have one CPU: each is two changes of thread.
const TRIPS_ON_ONE_CPU: u64 = 100;

/// Spins before a waiting side yields.
const SPINS: u32 = 4_096;

/// Idle steps after which an lcore yields, if both threads have one CPU.
const IDLE_STEPS: u32 = 4;

/// Two lines that nothing else shares, nor their neighbours that the processor fetches with them.
#[derive(Debug, Default)]
pub struct Table {
    ping: Line,
    pong: Line,
}

#[derive(Debug, Default)]
#[repr(align(128))]
struct Line(AtomicU64);

/// Which side of the table a thread is on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seat {
    /// Serves, takes the time, and ends the turn.
    Serves,
    /// Returns.
    Returns,
}

/// One of the two threads.
pub struct Reactor {
    /// Which of the two.
    pub seat: Seat,
    /// Its CPU.
    pub cpu: u32,
    /// Whether the other has the same.
    pub shares_cpu: bool,
    /// Whose turn it is.
    pub meter: Arc<Meter>,
    /// For the ping-pong.
    pub table: Arc<Table>,
}

impl Reactor {
    /// Starts the thread. It gives the lcore back when everything was stopped.
    pub fn start<P: DataPath>(self, lcore: Lcore<P>) -> std::io::Result<JoinHandle<Lcore<P>>> {
        let thread = thread::Builder::new().name(format!("perf-{:?}", self.seat));
        thread.spawn(move || self.run(lcore))
    }

    fn run<P: DataPath>(self, mut lcore: Lcore<P>) -> Lcore<P> {
        let id = core_affinity::CoreId {
            id: self.cpu as usize,
        };
        if !core_affinity::set_for_current(id) {
            self.meter
                .fail(format!("CPU {}: can't be pinned to", self.cpu));
        }
        let mut idle_steps = 0;
        loop {
            let turn = self.meter.turn();
            if turn == STOP {
                return lcore;
            }
            if is_probe(turn) {
                self.play(turn);
            } else if lcore.step(self.meter.clock.now_ns()) == Work::Busy {
                idle_steps = 0;
            } else if self.shares_cpu {
                idle_steps += 1;
                if idle_steps > IDLE_STEPS {
                    thread::yield_now();
                }
            }
        }
    }

    fn play(&self, turn: u32) {
        let trips = if self.shares_cpu {
            TRIPS_ON_ONE_CPU
        } else {
            TRIPS
        };
        let first = u64::from(turn) * (trips + 1);
        let (ping, pong) = (&self.table.ping.0, &self.table.pong.0);
        match self.seat {
            Seat::Serves => {
                // The first one waits for the other thread to come to the table.
                self.trip(ping, pong, first);
                let began = Instant::now();
                (first + 1..=first + trips).for_each(|number| self.trip(ping, pong, number));
                let ns = began.elapsed().as_nanos() as f64 / trips as f64;
                self.meter.add_probe(ns);
                self.meter.end(turn);
            }
            Seat::Returns => {
                for number in first..=first + trips {
                    self.wait_for(ping, number);
                    pong.store(number, Ordering::Release);
                }
                let mut spins = 0;
                while self.meter.turn() == turn {
                    self.rest(&mut spins);
                }
            }
        }
    }

    fn trip(&self, ping: &AtomicU64, pong: &AtomicU64, number: u64) {
        ping.store(number, Ordering::Release);
        self.wait_for(pong, number);
    }

    fn wait_for(&self, line: &AtomicU64, number: u64) {
        let mut spins = 0;
        while line.load(Ordering::Acquire) != number {
            self.rest(&mut spins);
            if spins == 0 && self.meter.turn() == STOP {
                return;
            }
        }
    }

    fn rest(&self, spins: &mut u32) {
        *spins += 1;
        if *spins < SPINS && !self.shares_cpu {
            spin_loop();
        } else {
            *spins = 0;
            thread::yield_now();
        }
    }
}
