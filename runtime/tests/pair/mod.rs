//! Two engines in one process, stepped by the test's own thread in virtual time: the same run every time.

#![allow(dead_code, reason = "each test binary uses its part")]

pub mod judged;
pub mod oath;
pub mod offender;
pub mod raw;
pub mod scene;
pub mod switched;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use keyfence::config::{KeyMode, MemoryConfig, PoolConfig, Timeouts};
use keyfence::ids::{ContextId, LcoreId};
use keyfence::limits::Limits;
use keyfence::pmd::Device;
use keyfence::pmd::sim::{SimDevice, World};
use keyfence::pmd::soft::{Fabric, SoftConfig, SoftDevice};
use keyfence::{
    Context, Engine, EngineBuilder, EngineEvent, Event, Lcore, Secret, Service, Usage, Work,
};

/// The key mode of all engines here: the tests in binaries of that name are those of other files over again.
pub const KEY_MODE: KeyMode = if starts_with(env!("CARGO_CRATE_NAME"), "in_region_mode") {
    KeyMode::Region
} else {
    KeyMode::Window
};

const fn starts_with(name: &str, start: &str) -> bool {
    matches!(name.as_bytes().split_at_checked(start.len()), Some((head, _)) if same(head, start.as_bytes()))
}

/// No slices are compared in a constant.
const fn same(one: &[u8], other: &[u8]) -> bool {
    let mut at = 0;
    while at < one.len() && at < other.len() && one[at] == other[at] {
        at += 1;
    }
    at == one.len() && at == other.len()
}

/// Whether a key is a region of its own.
pub const REGIONS: bool = matches!(KEY_MODE, KeyMode::Region);

/// What a scripted context was told, and what it is to do next.
pub type Act = Box<dyn FnOnce(&mut Context<'_>) + Send>;

#[derive(Default)]
pub struct Shared {
    acts: VecDeque<Act>,
    events: VecDeque<Event>,
}

/// The test's handle of a context: acts are run in the context's next poll, events are collected.
#[derive(Clone, Default)]
pub struct Puppet(Arc<Mutex<Shared>>);

impl Puppet {
    pub fn act(&self, act: impl FnOnce(&mut Context<'_>) + Send + 'static) {
        self.0.lock().unwrap().acts.push_back(Box::new(act));
    }

    /// For a service that is not made of strings.
    pub fn hear(&self, event: Event) {
        self.0.lock().unwrap().events.push_back(event);
    }

    pub fn next_event(&self) -> Option<Event> {
        self.0.lock().unwrap().events.pop_front()
    }

    pub fn events(&self) -> Vec<Event> {
        self.0.lock().unwrap().events.drain(..).collect()
    }
}

struct Strings(Puppet);

impl Service for Strings {
    fn poll(&mut self, cx: &mut Context<'_>) -> Work {
        let act = self.0.0.lock().unwrap().acts.pop_front();
        match act {
            Some(act) => {
                act(cx);
                Work::Busy
            }
            None => Work::Idle,
        }
    }

    fn on_event(&mut self, _cx: &mut Context<'_>, event: Event) {
        self.0.0.lock().unwrap().events.push_back(event);
    }
}

pub struct Side<D: Device> {
    pub engine: Engine<D>,
    pub lcores: Vec<Lcore<D::Path>>,
    pub events: Vec<EngineEvent>,
}

pub struct Pair<D: Device> {
    pub left: Side<D>,
    pub right: Side<D>,
    pub now_ns: u64,
    /// The network that the devices are simulated in, if they are: its time goes with the pair's.
    pub world: Option<World>,
}

pub fn small_memory() -> MemoryConfig {
    MemoryConfig {
        arena_bytes: 32 << 20,
        hugepages: keyfence_mempool::Policy::Off,
        lock: keyfence_mempool::Policy::Off,
        pools: vec![
            PoolConfig {
                buffer_bytes: 4096,
                count: 512,
            },
            PoolConfig {
                buffer_bytes: 1 << 20,
                count: 12,
            },
        ],
        receive_buffer_bytes: 2048,
        ..MemoryConfig::default()
    }
}

pub fn small_limits() -> Limits {
    let mut limits = Limits {
        contexts: 16,
        grants: 256,
        imports: 256,
        ops_in_flight: 512,
        windows: 64,
        lanes: 2,
        send_depth: 64,
        receive_depth: 64,
        // A lane that breaks ends its session: repairs have tests of their own, which say so.
        rebuilds: 0,
        ..Limits::default()
    };
    limits.context.messages = 8;
    limits
}

pub fn builder(name: &str, peer: &str, lcores: u16) -> EngineBuilder {
    with_secret(name, peer, lcores, None)
}

pub fn with_secret(name: &str, peer: &str, lcores: u16, secret: Option<Secret>) -> EngineBuilder {
    let builder = EngineBuilder::new(name, lcores)
        .key_mode(KEY_MODE)
        .memory(small_memory())
        .limits(small_limits())
        .timeouts(Timeouts::default());
    let (address, peer_lcores) = (format!("local:{peer}"), u32::from(lcores));
    match secret {
        Some(secret) => builder.peer_with_secret(peer, &address, peer_lcores, secret),
        None => builder.peer(peer, &address, peer_lcores),
    }
}

impl Pair<SoftDevice> {
    pub fn new() -> Self {
        let fabric = Fabric::new();
        let device = || fabric.device(SoftConfig::default()).unwrap();
        Self::on(
            builder("left", "right", 1),
            device(),
            builder("right", "left", 1),
            device(),
        )
    }
}

impl Pair<SimDevice> {
    /// Two engines on adapters that take their time.
    pub fn simulated(world: &World, left: EngineBuilder, right: EngineBuilder) -> Self {
        let left = (left, world.device("left"));
        let right = (right, world.device("right"));
        Self::within(Some(world.clone()), left, right)
    }
}

/// The seed of an engine's first start.
pub fn seed_of(name: &str) -> u128 {
    u128::from(name.len() as u64) << 64 | 7
}

/// An engine with its lcores taken.
pub fn side<D: Device>(builder: EngineBuilder, device: D) -> Side<D> {
    let seed = seed_of(builder.name());
    started(builder, device, seed)
}

/// A start of an engine with a seed of its own.
pub fn started<D: Device>(builder: EngineBuilder, device: D, seed: u128) -> Side<D> {
    let mut engine = builder.build(device, seed).unwrap();
    let lcores = (0..engine.lcores() as u16)
        .map(|at| engine.take_lcore(LcoreId(at)).unwrap())
        .collect();
    Side {
        engine,
        lcores,
        events: Vec::new(),
    }
}

impl<D: Device> Pair<D> {
    pub fn on(left: EngineBuilder, left_device: D, right: EngineBuilder, right_device: D) -> Self {
        Self::within(None, (left, left_device), (right, right_device))
    }

    fn within(world: Option<World>, left: (EngineBuilder, D), right: (EngineBuilder, D)) -> Self {
        let mut pair = Self {
            left: side(left.0, left.1),
            right: side(right.0, right.1),
            now_ns: 1,
            world,
        };
        let up = |side: &Side<D>| {
            side.events
                .iter()
                .any(|event| matches!(event, EngineEvent::PeerUp(_)))
        };
        pair.until(|pair| up(&pair.left) && up(&pair.right));
        pair
    }

    /// One step of everything, a microsecond long.
    pub fn step(&mut self) {
        self.step_for(1_000);
    }

    pub fn step_for(&mut self, ns: u64) {
        self.now_ns += ns;
        if let Some(world) = &self.world {
            world.advance_to(self.now_ns);
        }
        for side in [&mut self.left, &mut self.right] {
            side.step(self.now_ns);
        }
    }

    pub fn steps(&mut self, count: usize) {
        for _ in 0..count {
            self.step();
        }
    }

    /// Steps until `done`, and fails after a number of steps that no right run needs.
    pub fn until(&mut self, mut done: impl FnMut(&mut Self) -> bool) {
        for _ in 0..200_000 {
            if done(self) {
                return;
            }
            self.step();
        }
        panic!("not done in 200000 steps");
    }
}

impl<D: Device> Side<D> {
    pub fn step(&mut self, now_ns: u64) {
        for lcore in &mut self.lcores {
            lcore.step(now_ns);
        }
        self.engine.control(now_ns);
        while let Some(event) = self.engine.poll_event() {
            self.events.push(event);
        }
    }

    pub fn puppet(&mut self, lcore: u16, name: &str) -> Puppet {
        let puppet = Puppet::default();
        self.engine
            .open(LcoreId(lcore), name, 1, Box::new(Strings(puppet.clone())))
            .unwrap();
        puppet
    }

    pub fn id_of(&self, name: &str) -> Option<ContextId> {
        self.events.iter().rev().find_map(|event| match event {
            EngineEvent::Opened {
                context,
                name: known,
            } if known == name => Some(*context),
            _ => None,
        })
    }

    pub fn reclaimed(&self, context: ContextId) -> bool {
        self.events
            .iter()
            .any(|event| matches!(event, EngineEvent::Reclaimed { context: known, .. } if *known == context))
    }

    /// What each lcore has in use, summed by `of`.
    pub fn used(&self, of: impl Fn(&Usage) -> u64) -> u64 {
        self.lcores.iter().map(|lcore| of(&lcore.usage())).sum()
    }

    pub fn parked(&self) -> u64 {
        self.used(|usage| usage.keys.parked.into())
    }

    pub fn stat(&self, name: &str) -> u64 {
        let of = |lcore: &Lcore<D::Path>| {
            let all = lcore.stats().xstats();
            all.iter()
                .find(|(known, _)| *known == name)
                .unwrap_or_else(|| panic!("no counter {name}"))
                .1
        };
        self.lcores.iter().map(of).sum()
    }
}

/// A cell that an act fills and the test reads.
pub struct Slot<T>(Arc<Mutex<Option<T>>>);

impl<T> Clone for Slot<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Slot<T> {
    pub fn new() -> Self {
        Self(Arc::new(Mutex::new(None)))
    }

    pub fn set(&self, value: T) {
        *self.0.lock().unwrap() = Some(value);
    }

    pub fn is_set(&self) -> bool {
        self.0.lock().unwrap().is_some()
    }

    pub fn take(&self) -> Option<T> {
        self.0.lock().unwrap().take()
    }
}
