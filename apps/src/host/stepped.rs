//! An engine without threads of its own: who drives the host's control side steps it too. So it can be stopped and resumed, and dropped without a word and started anew.

use keyfence::ids::LcoreId;
use keyfence::pmd::Device;
use keyfence::pmd::wrap::check::{Check, Ledger, Party};
use keyfence::{Engine, EngineBuilder, EngineEvent, Lcore};
use keyfence_mempool::sync::Arc;

use super::{Stopped, Watched, WatchedPath};

/// Steps of each lcore in one turn at most: a turn is to leave the CPU to those that spin.
const STEPS: usize = 32;

/// What one life of the engine is made of.
type Life<D> = (EngineBuilder, D);

/// The engine, in its lives.
pub struct Stepped<D: Device> {
    seed: u128,
    /// Lives to come, the next one last.
    unborn: Vec<Life<D>>,
    /// `None` only while one life follows the other.
    alive: Option<Alive<D>>,
    is_stopped: bool,
    /// Breaches of the device contract in the lives before.
    violations: u64,
}

struct Alive<D: Device> {
    engine: Engine<Watched<D>>,
    ledger: Arc<Ledger>,
    lcores: Vec<Lcore<WatchedPath<D>>>,
}

impl<D: Device> Stepped<D> {
    /// Builds the first of these lives; each has an incarnation of its own, made from `seed`.
    pub(super) fn new(lives: Vec<Life<D>>, seed: u128) -> anyhow::Result<Self> {
        let mut stepped = Self {
            seed,
            unborn: lives.into_iter().rev().collect(),
            alive: None,
            is_stopped: false,
            violations: 0,
        };
        stepped.be_born()?;
        Ok(stepped)
    }

    fn be_born(&mut self) -> anyhow::Result<()> {
        let Some((builder, device)) = self.unborn.pop() else {
            anyhow::bail!("an engine has no more lives");
        };
        let device = Check::new(device);
        let ledger = device.ledger();
        // Below the bits in which the engines of one host differ.
        let seed = self.seed ^ (self.unborn.len() as u128) << 64;
        let mut engine = builder.build(device, seed)?;
        let ids = (0..engine.lcores()).map(|at| LcoreId(at as u16));
        let ids: Vec<LcoreId> = ids.collect();
        let lcores = ids.into_iter().filter_map(|id| engine.take_lcore(id));
        let lcores = lcores.collect();
        self.alive = Some(Alive {
            engine,
            ledger,
            lcores,
        });
        Ok(())
    }

    pub(super) fn engine(&mut self) -> &mut Engine<Watched<D>> {
        &mut self.alive.as_mut().expect("it lives").engine
    }

    pub(super) fn ledger(&self) -> Arc<Ledger> {
        Arc::clone(&self.alive.as_ref().expect("it lives").ledger)
    }

    /// It does nothing more, as a process that is stopped by a signal, until it is resumed.
    pub fn stop(&mut self) {
        self.is_stopped = true;
    }

    /// It goes on.
    pub fn resume(&mut self) {
        self.is_stopped = false;
    }

    /// It is gone without a word to anybody, and starts anew.
    pub fn restart(&mut self) -> anyhow::Result<()> {
        if let Some(Alive {
            engine,
            ledger,
            lcores,
        }) = self.alive.take()
        {
            drop(lcores);
            drop(engine);
            self.violations += violations(&ledger);
        }
        self.be_born()
    }

    /// Steps each lcore a few times and does the control work that is due; adds what happened under the number `at`.
    pub(super) fn turn(
        &mut self,
        now_ns: impl Fn() -> u64,
        at: usize,
        events: &mut Vec<(usize, EngineEvent)>,
    ) {
        let Some(alive) = self.alive.as_mut().filter(|_| !self.is_stopped) else {
            return;
        };
        for _ in 0..STEPS {
            for lcore in &mut alive.lcores {
                lcore.step(now_ns());
            }
        }
        alive.engine.control(now_ns());
        while let Some(event) = alive.engine.poll_event() {
            events.push((at, event));
        }
    }

    /// What is left of it, its lcores stopped for good; and what was wrong in the lives before.
    pub(super) fn stopped(self) -> Option<(Stopped<D>, u64)> {
        let Alive {
            engine,
            ledger,
            lcores,
        } = self.alive?;
        let stopped = Stopped {
            engine,
            ledger,
            lcores: lcores.into_iter().map(Ok).collect(),
        };
        Some((stopped, self.violations))
    }
}

pub(super) fn violations(ledger: &Ledger) -> u64 {
    ledger.violations(Party::Caller) + ledger.violations(Party::Device)
}
