//! Engines of one process on `soft`, each with the oracle around its device: started together, driven from the caller's thread, ended
//! together.

use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use keyfence::pmd::Device;
use keyfence::pmd::soft::{Fabric, SoftConfig, SoftDevice};
use keyfence::pmd::wrap::check::{Check, CheckPath, Ledger, Party};
use keyfence::{Engine, EngineBuilder, EngineEvent, Running, Stats};
use keyfence_mempool::sync::Arc;

/// The device that all engines of a host have: the oracle below the runtime sees every post, completion and control call.
pub type HostDevice = Check<SoftDevice>;

/// How long the control side rests when it finds nothing to do.
const CONTROL_REST: Duration = Duration::from_micros(50);

/// Nanoseconds since the clock was made, by the TSC. Cheap enough for a poll step.
#[derive(Clone)]
pub struct Clock {
    clock: quanta::Clock,
    start: u64,
}

/// Engines that run. Nothing of their control work is done but in [`Host::control`].
pub struct Host {
    clock: Clock,
    engines: Vec<Hosted>,
}

/// One engine of a host.
pub struct Hosted {
    /// Its control side.
    pub engine: Engine<HostDevice>,
    /// What the oracle knows of its device.
    pub ledger: Arc<Ledger>,
    running: Running<CheckPath<<SoftDevice as Device>::Path>>,
}

/// What is left of an engine after its end.
pub struct Ended {
    /// Its name.
    pub name: String,
    /// Of each lcore; `None` for one that died.
    pub stats: Vec<Option<Stats>>,
    /// Whether every context was reclaimed or in quarantine in time.
    pub closed: bool,
    /// Buffers that something still keeps.
    pub buffers_in_use: usize,
    /// Keys that the device still honours.
    pub live_keys: usize,
    /// Receive buffers that something still keeps: those posted on lanes that are still up.
    pub receives_in_use: usize,
    /// Breaches of the device's contract by the runtime, and by the device.
    pub violations: u64,
}

impl fmt::Debug for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ended")
            .field("lcores_alive", &self.stats.iter().flatten().count())
            .field("closed", &self.closed)
            .field("buffers_in_use", &self.buffers_in_use)
            .field("receives_in_use", &self.receives_in_use)
            .field("live_keys", &self.live_keys)
            .finish_non_exhaustive()
    }
}

impl Clock {
    /// Starts at 0.
    pub fn new() -> Self {
        let clock = quanta::Clock::new();
        let start = clock.raw();
        Self { clock, start }
    }

    /// Nanoseconds since then.
    pub fn now_ns(&self) -> u64 {
        self.clock.delta_as_nanos(self.start, self.clock.raw())
    }
}

impl Host {
    /// Builds the engines in this order on one fabric, gives each an incarnation of its own, and starts their lcores. On an error, which says
    /// what was short, none runs.
    pub fn start(builders: Vec<EngineBuilder>, clock: &Clock) -> anyhow::Result<Self> {
        let fabric = Fabric::new();
        let mut engines = Vec::new();
        for builder in builders {
            let device = Check::new(fabric.device(SoftConfig::default())?);
            let ledger = device.ledger();
            let mut engine = builder.seed(random_u128()).build(device)?;
            let lcore_clock = clock.clone();
            let started = engine.start(move || lcore_clock.now_ns());
            let running = started.with_context(|| format!("engine {}", engine.name()))?;
            engines.push(Hosted {
                engine,
                ledger,
                running,
            });
        }
        Ok(Self {
            clock: clock.clone(),
            engines,
        })
    }

    /// One engine, by its place in the list it was started from.
    pub fn engine(&mut self, at: usize) -> &mut Engine<HostDevice> {
        &mut self.engines[at].engine
    }

    /// The oracle's books of one engine's device.
    pub fn ledger(&self, at: usize) -> Arc<Ledger> {
        Arc::clone(&self.engines[at].ledger)
    }

    /// Whether every lcore's thread is still there.
    pub fn is_alive(&self) -> bool {
        self.engines.iter().all(|hosted| hosted.running.is_alive())
    }

    /// Does the control work that is due, of all engines, and collects what happened with the engine's place; returns whether there was any.
    pub fn control(&mut self, events: &mut Vec<(usize, EngineEvent)>) -> bool {
        let now_ns = self.clock.now_ns();
        let mut any = false;
        for (at, hosted) in self.engines.iter_mut().enumerate() {
            any |= hosted.engine.control(now_ns);
            while let Some(event) = hosted.engine.poll_event() {
                events.push((at, event));
                any = true;
            }
        }
        any
    }

    /// What the control side's thread does when there was nothing to do: leaves the CPU for a moment.
    pub fn rest(&self) {
        thread::park_timeout(CONTROL_REST);
    }

    /// Reclaims every context of every engine, waits for the books to come to rest, at most `bound_ns`, and joins the lcores.
    pub fn end(mut self, bound_ns: u64, events: &mut Vec<(usize, EngineEvent)>) -> Vec<Ended> {
        let deadline_ns = self.clock.now_ns().saturating_add(bound_ns);
        for hosted in &mut self.engines {
            hosted.engine.close_all();
        }
        while !self.at_rest() && self.is_alive() && self.clock.now_ns() < deadline_ns {
            if !self.control(events) {
                self.rest();
            }
        }
        self.control(events);
        self.engines.into_iter().map(Hosted::join).collect()
    }

    fn at_rest(&self) -> bool {
        self.engines
            .iter()
            .all(|hosted| hosted.engine.is_closed() && hosted.engine.buffers_in_use() == 0)
    }
}

impl Hosted {
    fn join(self) -> Ended {
        let lcores = self.running.join();
        let stats = lcores
            .into_iter()
            .map(|lcore| lcore.ok().map(|lcore| lcore.stats().clone()));
        Ended {
            name: self.engine.name().to_owned(),
            stats: stats.collect(),
            closed: self.engine.is_closed(),
            buffers_in_use: self.engine.buffers_in_use(),
            // The arena's own registration opens nothing to a peer, and the oracle doesn't count it.
            live_keys: self.ledger.all_live_keys(),
            receives_in_use: self.engine.receives_in_use(),
            violations: self.ledger.violations(Party::Caller)
                + self.ledger.violations(Party::Device),
        }
    }
}

/// The CPUs that this process may use, in ascending order.
pub fn allowed_cpus() -> Vec<u32> {
    let ids = core_affinity::get_core_ids().unwrap_or_default();
    let mut cpus: Vec<u32> = ids.iter().map(|core| core.id as u32).collect();
    cpus.sort_unstable();
    cpus
}

/// From the operating system's randomness, by the standard library's seeds.
fn random_u128() -> u128 {
    let word = || u128::from(RandomState::new().build_hasher().finish());
    // Two states of one thread differ by a counter alone; what matters here is that two starts differ.
    word() << 64 | word()
}
