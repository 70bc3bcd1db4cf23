//! The two engines of a measurement, and their end.

use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};
use keyfence::config::{IdlePolicy, MemoryConfig, PoolConfig, Timeouts};
use keyfence::ids::LcoreId;
use keyfence::limits::{ContextLimits, Limits, budget, budget_bytes};
use keyfence::pmd::Device;
use keyfence::{Engine, EngineBuilder, EngineEvent, Lcore};
use keyfence_mempool::sync::Arc;

use super::Job;
use super::driver::{DRIVER, Driver};
use super::meter::{Meter, STOP};
use super::reactor::{Reactor, Seat, Table};
use super::target::Target;
use crate::host::fresh_seed;
use crate::signals::Signals;

/// How long the control side rests: it must not take a CPU from a lcore for longer than it needs.
const REST: Duration = Duration::from_millis(2);

/// How long everything may take to be ready, and to end.
const PATIENCE_NS: u64 = 5_000_000_000;

/// Lanes begin and end at whole 2 MiB pages.
const PAGE_BYTES: u64 = 2 << 20;

/// Two engines, an lcore each, on threads of their own.
pub struct Pair<D: Device> {
    engines: Vec<Engine<D>>,
    lcores: Vec<Lcore<D::Path>>,
    job: Job,
}

impl<D: Device> Pair<D> {
    /// Builds both, each on the device of its place.
    ///
    /// # Errors
    /// What was short. Nothing is left behind then.
    pub fn start(
        job: &Job,
        meter: &Arc<Meter>,
        builders: Vec<EngineBuilder>,
        devices: Vec<D>,
    ) -> anyhow::Result<Self> {
        let seed = fresh_seed()?;
        let mut pair = Self {
            engines: Vec::new(),
            lcores: Vec::new(),
            job: job.clone(),
        };
        for (at, (builder, device)) in (0..).zip(builders.into_iter().zip(devices)) {
            let name = format!("engine {}", builder.name());
            let mut engine = builder.build(device, seed ^ at).context(name)?;
            let lcore = engine.take_lcore(LcoreId(0));
            pair.lcores
                .push(lcore.expect("an engine has its first lcore"));
            pair.engines.push(engine);
        }
        let driver = Driver::new(job.clone(), Arc::clone(meter));
        let target = Target::new(job.clone(), Arc::clone(meter));
        pair.engines[0].open(LcoreId(0), DRIVER, 1, Box::new(driver))?;
        pair.engines[1].open(LcoreId(0), "target", 1, Box::new(target))?;
        Ok(pair)
    }

    /// Measures, and closes both engines.
    ///
    /// # Errors
    /// What went wrong meanwhile.
    pub fn run(&mut self, meter: &Arc<Meter>, signals: &Signals) -> Result<(), String> {
        let table = Arc::new(Table::default());
        let cpus = self.job.cpus;
        let mut threads = Vec::new();
        for (at, lcore) in self.lcores.drain(..).enumerate() {
            let reactor = Reactor {
                seat: [Seat::Serves, Seat::Returns][at],
                cpu: cpus[at],
                shares_cpu: cpus[0] == cpus[1],
                meter: Arc::clone(meter),
                table: Arc::clone(&table),
            };
            match reactor.start(lcore) {
                Ok(thread) => threads.push(thread),
                Err(error) => meter.fail(format!("starting a thread: {error}")),
            }
        }
        let began_ns = meter.clock.now_ns();
        while meter.turn() != STOP {
            self.control(meter);
            thread::park_timeout(REST);
            if signals.interrupted() {
                meter.fail("interrupted by a signal".into());
            }
            if meter.turn() == 0 && meter.clock.now_ns() - began_ns > 12 * PATIENCE_NS {
                meter.fail("the warm-up did not end within a minute; lower --warmup".into());
            }
        }
        for thread in threads {
            match thread.join() {
                Ok(lcore) => self.lcores.push(lcore),
                Err(_) => meter.fail("an lcore died".into()),
            }
        }
        self.close(meter).map_err(|error| error.to_string())?;
        meter.fault().map_or(Ok(()), Err)
    }

    fn control(&mut self, meter: &Meter) {
        for engine in &mut self.engines {
            engine.control(meter.clock.now_ns());
            while let Some(event) = engine.poll_event() {
                match event {
                    EngineEvent::OpenFailed { name, why } => {
                        meter.fail(format!("context {name} could not be opened: {why}"));
                    }
                    EngineEvent::Quarantined { context, why, .. } => {
                        meter.fail(format!("context {context} in quarantine: {why:?}"));
                    }
                    _ => {}
                }
            }
        }
    }

    /// Reclaims both contexts, with this thread stepping both lcores.
    fn close(&mut self, meter: &Meter) -> anyhow::Result<()> {
        let deadline_ns = meter.clock.now_ns() + PATIENCE_NS;
        self.engines.iter_mut().for_each(Engine::close_all);
        while !self.engines.iter().all(Engine::is_closed) {
            for lcore in &mut self.lcores {
                lcore.step(meter.clock.now_ns());
            }
            self.control(meter);
            if meter.clock.now_ns() > deadline_ns {
                bail!("the contexts were not reclaimed within 5 s");
            }
        }
        Ok(())
    }
}

/// The two engines, the driver's first, not yet peers.
pub fn builders(job: &Job) -> [EngineBuilder; 2] {
    let limits = limits(job);
    let memory = memory(job, &limits);
    let sides = [("driver", job.cpus[0]), ("target", job.cpus[1])];
    sides.map(|(name, cpu)| {
        EngineBuilder::new(name, 1)
            .cpus(&[cpu])
            .idle(IdlePolicy::Spin)
            .memory(memory.clone())
            .limits(limits.clone())
            .timeouts(Timeouts::default())
    })
}

fn limits(job: &Job) -> Limits {
    let bytes = (u64::from(job.depth) + 1) * (job.size as u64 + 64);
    let context = ContextLimits {
        // One is where writes of a ping-pong land.
        buffers: job.depth + 2,
        ops_in_flight: job.depth.max(64),
        bytes_in_flight: bytes.max(1 << 20),
        exposed_bytes: (job.size as u64).max(4096),
        messages: 256,
        ..ContextLimits::default()
    };
    Limits {
        contexts: 2,
        buffers: 2 * context.buffers,
        ops_in_flight: 2 * context.ops_in_flight,
        bytes_in_flight: 2 * context.bytes_in_flight,
        context,
        ..Limits::default()
    }
}

fn memory(job: &Job, limits: &Limits) -> MemoryConfig {
    let memory = MemoryConfig {
        pools: vec![PoolConfig {
            buffer_bytes: (job.size as u64).max(64).next_multiple_of(64),
            count: limits.buffers,
        }],
        receive_buffer_bytes: (job.size as u64 + 64)
            .next_multiple_of(64)
            .clamp(512, 64 << 10),
        ..MemoryConfig::default()
    };
    let needed = budget_bytes(&budget(limits, &memory, limits.lanes));
    MemoryConfig {
        arena_bytes: needed.next_multiple_of(PAGE_BYTES),
        ..memory
    }
}
