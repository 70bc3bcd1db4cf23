//! So many operations between two engines, on one thread and in virtual time: for counting instructions, where the clock does not matter.
//!
//! `count KIND N`, from `cargo run --release -p keyfence-benches --example count`, does N operations of a kind, one at a time or (`burst`) 32 at a time, or N steps of two idle engines. Under
//! `valgrind --tool=callgrind` the difference of two runs with different N is the price of the operations alone: `.ci/full counts`.

use keyfence::config::{IdlePolicy, MemoryConfig, PoolConfig, Timeouts};
use keyfence::ids::{LcoreId, RemoteContext};
use keyfence::limits::{ContextLimits, Limits, budget, budget_bytes};
use keyfence::pmd::Device;
use keyfence::pmd::soft::{Fabric, SoftConfig, SoftDevice};
use keyfence::{
    Buf, Context, Engine, EngineBuilder, Event, Import, Lcore, Lease, Local, Rights, Service, Work,
};
use keyfence_mempool::sync::{Arc, AtomicU64, Ordering};

/// What is counted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Idle,
    Write,
    Read,
    Send,
}

/// How many are left to submit, how many to end, and how many at a time.
struct Tally {
    kind: Kind,
    burst: u64,
    wanted: AtomicU64,
    ended: AtomicU64,
    ready: AtomicU64,
}

const SIZE: usize = 64;

struct Driver {
    tally: Arc<Tally>,
    buf: Option<Buf>,
    import: Option<Import>,
    target: Option<RemoteContext>,
    submitted: u64,
}

impl Service for Driver {
    fn poll(&mut self, cx: &mut Context<'_>) -> Work {
        let Some(buf) = &self.buf else {
            self.buf = cx.alloc(SIZE).ok();
            return Work::Busy;
        };
        let wanted = self.tally.wanted.load(Ordering::Relaxed);
        let ended = self.tally.ended.load(Ordering::Relaxed);
        let mut any = false;
        while self.submitted < wanted && self.submitted - ended < self.tally.burst {
            let local = [Local::prefix(buf, SIZE)];
            let done = match (self.tally.kind, &self.import, self.target) {
                (Kind::Write, Some(import), _) => cx.write(import, 0, &local, 0),
                (Kind::Read, Some(import), _) => cx.read(import, 0, &local, 0),
                (Kind::Send, _, Some(to)) => cx.send(to, &[7; SIZE], 0),
                _ => break,
            };
            if done.is_err() {
                break;
            }
            self.submitted += 1;
            any = true;
        }
        if any { Work::Busy } else { Work::Idle }
    }

    fn on_event(&mut self, _cx: &mut Context<'_>, event: Event) {
        match event {
            Event::Completed(_) => {
                self.tally.ended.fetch_add(1, Ordering::Relaxed);
            }
            Event::Granted(import) => {
                self.target = Some(import.owner);
                self.import = Some(import);
                self.tally.ready.store(1, Ordering::Relaxed);
            }
            _ => {}
        }
    }
}

#[derive(Default)]
struct Target {
    buf: Option<Buf>,
    asked: bool,
}

impl Service for Target {
    fn poll(&mut self, cx: &mut Context<'_>) -> Work {
        if self.buf.is_some() {
            return Work::Wait;
        }
        let peer = cx.peers().next();
        if let (Some(peer), false) = (peer, self.asked) {
            self.asked = cx.lookup(peer, "driver", 0).is_ok();
        }
        Work::Idle
    }

    fn on_event(&mut self, cx: &mut Context<'_>, event: Event) {
        let Event::Resolved { context, .. } = event else {
            return;
        };
        self.asked = false;
        let (Some(holder), Ok(buf)) = (context, cx.alloc(SIZE)) else {
            return;
        };
        let rights = Rights::READ_WRITE;
        let granted = cx.grant(&buf, 0..SIZE, rights, holder, Lease::None);
        granted.expect("one grant is within the limits");
        self.buf = Some(buf);
    }
}

struct World {
    engines: Vec<Engine<SoftDevice>>,
    lcores: Vec<Lcore<<SoftDevice as Device>::Path>>,
    now_ns: u64,
}

impl World {
    fn new(tally: &Arc<Tally>) -> Self {
        let fabric = Fabric::new();
        let mut world = Self {
            engines: Vec::new(),
            lcores: Vec::new(),
            now_ns: 0,
        };
        for (seed, (name, peer)) in [("a", "b"), ("b", "a")].into_iter().enumerate() {
            let device = fabric
                .device(SoftConfig::default())
                .expect("a fresh fabric");
            let built = builder(name, peer).build(device, seed as u128 + 1);
            let mut engine = built.expect("the machine has a few MiB");
            world.lcores.extend(engine.take_lcore(LcoreId(0)));
            world.engines.push(engine);
        }
        let driver = Driver {
            tally: Arc::clone(tally),
            buf: None,
            import: None,
            target: None,
            submitted: 0,
        };
        let target = Box::new(Target::default());
        let opened = [
            world.engines[0].open(LcoreId(0), "driver", 1, Box::new(driver)),
            world.engines[1].open(LcoreId(0), "target", 1, target),
        ];
        opened
            .into_iter()
            .for_each(|opened| opened.expect("good names"));
        world
    }

    fn step(&mut self) {
        self.now_ns += 1_000;
        for lcore in &mut self.lcores {
            lcore.step(self.now_ns);
        }
    }

    fn control(&mut self) {
        for engine in &mut self.engines {
            engine.control(self.now_ns);
            while engine.poll_event().is_some() {}
        }
    }
}

fn builder(name: &str, peer: &str) -> EngineBuilder {
    let context = ContextLimits::default();
    let limits = Limits {
        contexts: 2,
        context,
        ..Limits::default()
    };
    let memory = MemoryConfig {
        pools: vec![PoolConfig {
            buffer_bytes: 4096,
            count: limits.buffers,
        }],
        ..MemoryConfig::default()
    };
    let bytes = budget_bytes(&budget(&limits, &memory, limits.lanes)).next_multiple_of(2 << 20);
    EngineBuilder::new(name, 1)
        .cpus(&[0])
        .idle(IdlePolicy::Spin)
        .memory(MemoryConfig {
            arena_bytes: bytes,
            ..memory
        })
        .limits(limits)
        .timeouts(Timeouts::default())
        .peer(peer, &format!("local:{peer}"), 1)
}

fn main() {
    let usage = "usage: count idle|write|read|send|write-burst|read-burst|send-burst N";
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [kind, count] = &arguments[..] else {
        panic!("{usage}");
    };
    let (name, burst) = match kind.strip_suffix("-burst") {
        Some(name) => (name, 32),
        None => (kind.as_str(), 1),
    };
    let kind = match name {
        "idle" => Kind::Idle,
        "write" => Kind::Write,
        "read" => Kind::Read,
        "send" => Kind::Send,
        _ => panic!("{usage}"),
    };
    let count: u64 = count.parse().expect(usage);
    let tally = Arc::new(Tally {
        kind,
        burst,
        wanted: AtomicU64::new(0),
        ended: AtomicU64::new(0),
        ready: AtomicU64::new(0),
    });
    let mut world = World::new(&tally);
    while tally.ready.load(Ordering::Relaxed) == 0 {
        world.step();
        world.control();
    }
    if kind == Kind::Idle {
        (0..count).for_each(|_| world.step());
        return;
    }
    tally.wanted.store(count, Ordering::Relaxed);
    while tally.ended.load(Ordering::Relaxed) < count {
        world.step();
    }
}
