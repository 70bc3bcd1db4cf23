//! Engines of one process, each with the oracle around its device: started together, driven from the caller's thread, ended together.

mod stepped;

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::thread;
use std::time::Duration;

use anyhow::Context;
use keyfence::ids::LcoreId;
use keyfence::pmd::Device;
use keyfence::pmd::wrap::check::{Check, CheckPath, Ledger};
use keyfence::{Engine, EngineBuilder, EngineEvent, Lcore, Running, Secret, Stats};
use keyfence_mempool::sync::Arc;

pub use stepped::Stepped;

/// A device with the oracle around it, which sees every post, completion and control call of the runtime's.
type Watched<D> = Check<D>;

type WatchedPath<D> = CheckPath<<D as Device>::Path>;

/// How long the control side rests when it finds nothing to do.
const CONTROL_REST: Duration = Duration::from_micros(50);

/// Nanoseconds since the clock was made, by the TSC. Cheap enough for a poll step.
#[derive(Clone, Debug)]
pub struct Clock {
    clock: quanta::Clock,
    start: u64,
}

/// Engines that run. Nothing of their control work is done but in [`Host::control`].
pub struct Host<D: Device> {
    clock: Clock,
    engines: Vec<Hosted<D>>,
    /// One more, behind them in the order.
    stepped: Option<Stepped<D>>,
}

/// One engine of a host.
pub struct Hosted<D: Device> {
    /// Its control side.
    pub engine: Engine<Watched<D>>,
    /// What the oracle knows of its device.
    pub ledger: Arc<Ledger>,
    running: Running<WatchedPath<D>>,
}

/// What is left of an engine after its end.
pub struct Ended {
    /// Its name.
    pub name: String,
    /// Of each lcore; `None` for one that died.
    pub stats: Vec<Option<Stats>>,
    /// Whether every context was reclaimed or in quarantine in time.
    pub closed: bool,
    /// Whether it had taken leave of all its peers in time.
    pub left: bool,
    /// Buffers that something still keeps.
    pub buffers_in_use: usize,
    /// Keys that the device still honours.
    pub live_keys: usize,
    /// Receive buffers that something still keeps: those posted on lanes that are still up.
    pub receives_in_use: usize,
    /// Breaches of the device's contract by the runtime, and by the device.
    pub violations: u64,
}

impl Ended {
    /// Receives that the lanes of the engine may hold, of `posted` that all hold together: none when no session is left.
    pub fn most_receives(&self, posted: usize) -> usize {
        if self.left { 0 } else { posted }
    }
}

impl fmt::Debug for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ended")
            .field("lcores_alive", &self.stats.iter().flatten().count())
            .field("closed", &self.closed)
            .field("left", &self.left)
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

    /// Nanoseconds since then. A counter that goes back gives an earlier time or 0, and no huge one.
    pub fn now_ns(&self) -> u64 {
        self.clock.delta_as_nanos(self.start, self.clock.raw())
    }

    /// What it reads.
    pub fn source(&self) -> &'static str {
        const TICKS: u64 = 1 << 30;
        // The operating system's clock counts nanoseconds and needs no scale.
        if self.clock.delta_as_nanos(0, TICKS) == TICKS {
            "clock_gettime"
        } else {
            "the processor's time stamp counter"
        }
    }
}

impl<D: Device> Host<D> {
    /// Builds the engines in this order, each on the device of the same place, gives each an incarnation of its own, made from `seed`, and starts
    /// their lcores. On an error, which says what was short, none runs.
    pub fn start(
        builders: Vec<EngineBuilder>,
        devices: Vec<D>,
        clock: &Clock,
        seed: u128,
    ) -> anyhow::Result<Self> {
        let mut engines = Vec::new();
        for (at, (builder, device)) in (0..).zip(builders.into_iter().zip(devices)) {
            let name = format!("engine {}", builder.name());
            let device = Check::new(device);
            let ledger = device.ledger();
            let mut engine = builder.build(device, seed ^ at).context(name)?;
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
            stepped: None,
        })
    }

    /// Builds one more engine, which has no threads and is stepped by [`Host::control`]: with its first builder and device now, with the next ones whenever
    /// it is started anew.
    pub fn add_stepped(
        &mut self,
        lives: Vec<(EngineBuilder, D)>,
        seed: u128,
    ) -> anyhow::Result<()> {
        self.stepped = Some(Stepped::new(lives, seed ^ self.engines.len() as u128)?);
        Ok(())
    }

    /// That one.
    pub fn stepped(&mut self) -> Option<&mut Stepped<D>> {
        self.stepped.as_mut()
    }

    /// One engine, by its place in the list it was started from.
    pub fn engine(&mut self, at: usize) -> &mut Engine<Watched<D>> {
        match self.engines.get_mut(at) {
            Some(hosted) => &mut hosted.engine,
            None => self.stepped.as_mut().expect("it was added").engine(),
        }
    }

    /// The oracle's books of one engine's device.
    pub fn ledger(&self, at: usize) -> Arc<Ledger> {
        match self.engines.get(at) {
            Some(hosted) => Arc::clone(&hosted.ledger),
            None => self.stepped.as_ref().expect("it was added").ledger(),
        }
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
        // What it does is no reason not to rest.
        if let Some(stepped) = &mut self.stepped {
            stepped.turn(|| self.clock.now_ns(), self.engines.len(), events);
        }
        any
    }

    /// What the control side's thread does when there was nothing to do: leaves the CPU for a moment.
    pub fn rest(&self) {
        thread::park_timeout(CONTROL_REST);
    }

    /// Reclaims every context of every engine, lets them take leave of each other, waits for the books to come to rest, at most `bound_ns`, and joins the lcores. That the sessions
    /// have ended is no event here.
    pub fn end(mut self, bound_ns: u64, events: &mut Vec<(usize, EngineEvent)>) -> Vec<Ended> {
        let deadline_ns = self.clock.now_ns().saturating_add(bound_ns);
        let count = self.engines.len() + usize::from(self.stepped.is_some());
        for at in 0..count {
            self.engine(at).close_all();
        }
        let mut last = Vec::new();
        while !self.at_rest() && self.is_alive() && self.clock.now_ns() < deadline_ns {
            if !self.control(&mut last) {
                self.rest();
            }
        }
        self.control(&mut last);
        last.retain(|(_, event)| !matches!(event, EngineEvent::PeerDown(_)));
        events.append(&mut last);
        // All before any is dropped: that ends its queue pairs, and to one that still polls its peer would be lost.
        let mut stopped: Vec<_> = self.engines.into_iter().map(Hosted::stop).collect();
        let stepped = self.stepped.and_then(Stepped::stopped);
        let before = stepped.map(|(last, violations)| {
            stopped.push(last);
            violations
        });
        let mut ended: Vec<Ended> = stopped.iter().map(Stopped::ended).collect();
        if let (Some(violations), Some(last)) = (before, ended.last_mut()) {
            last.violations += violations;
        }
        ended
    }

    fn at_rest(&mut self) -> bool {
        let count = self.engines.len() + usize::from(self.stepped.is_some());
        (0..count).all(|at| {
            let engine = self.engine(at);
            engine.has_left() && engine.buffers_in_use() == 0
        })
    }
}

/// An engine whose lcores have stopped.
struct Stopped<D: Device> {
    engine: Engine<Watched<D>>,
    ledger: Arc<Ledger>,
    lcores: Vec<Result<Lcore<WatchedPath<D>>, LcoreId>>,
}

impl<D: Device> Hosted<D> {
    fn stop(self) -> Stopped<D> {
        Stopped {
            lcores: self.running.join(),
            engine: self.engine,
            ledger: self.ledger,
        }
    }
}

impl<D: Device> Stopped<D> {
    fn ended(&self) -> Ended {
        let stats = self.lcores.iter().map(|lcore| {
            let lcore = lcore.as_ref().ok()?;
            Some(lcore.stats().clone())
        });
        Ended {
            name: self.engine.name().to_owned(),
            stats: stats.collect(),
            closed: self.engine.is_closed(),
            left: self.engine.has_left(),
            buffers_in_use: self.engine.buffers_in_use(),
            // The arena's own registration opens nothing to a peer, and the oracle doesn't count it.
            live_keys: self.ledger.all_live_keys(),
            receives_in_use: self.engine.receives_in_use(),
            violations: stepped::violations(&self.ledger),
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

/// 128 bits that no other start has, from the operating system.
pub fn fresh_seed() -> anyhow::Result<u128> {
    fresh_bytes().map(u128::from_ne_bytes)
}

/// A secret that two engines of this process alone share.
pub fn fresh_secret() -> anyhow::Result<Secret> {
    Ok(Secret::new(&fresh_bytes::<{ Secret::LEAST_BYTES }>()?)?)
}

fn fresh_bytes<const N: usize>() -> anyhow::Result<[u8; N]> {
    const SOURCE: &str = "/dev/urandom";
    let mut bytes = [0; N];
    let read = File::open(SOURCE).and_then(|mut file| file.read_exact(&mut bytes));
    read.context(SOURCE)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b26_the_clock_does_not_go_back_and_names_its_source() {
        let clock = Clock::new();
        let mut last = 0;
        for _ in 0..10_000 {
            let now = clock.now_ns();
            assert!(now >= last);
            last = now;
        }
        assert!(!clock.source().is_empty());
        let backwards = clock.clock.delta_as_nanos(1000, 0);
        assert_eq!(backwards, 0, "backwards is no time");
    }

    #[test]
    fn two_starts_have_two_seeds() {
        assert_ne!(fresh_seed().unwrap(), fresh_seed().unwrap());
    }
}
