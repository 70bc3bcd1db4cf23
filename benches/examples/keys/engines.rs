//! Two engines on one thread: a context that grants and revokes, and one that holds.

use std::time::Instant;

use keyfence::config::{KeyMode, MemoryConfig, PoolConfig, Timeouts};
use keyfence::ids::{GrantId, LcoreId, RemoteContext};
use keyfence::limits::{ContextLimits, Limits, PeerLimits, budget, budget_bytes};
use keyfence::pmd::Device;
use keyfence::{
    Buf, Context, Engine, EngineBuilder, Event, GrantError, Lcore, Lease, Rights, Service, Work,
};
use keyfence_mempool::sync::{Arc, AtomicU64, Ordering};

use super::{KEYS, MOST_BYTES, Places};

/// What the main loop asks for, and what came of it, all rounds together.
#[derive(Default)]
struct Board {
    to_grant: AtomicU64,
    /// Bytes of each.
    bytes: AtomicU64,
    to_revoke: AtomicU64,
    /// Keys that the holder has.
    held: AtomicU64,
    /// Keys that were proven ended.
    zapped: AtomicU64,
    ready: AtomicU64,
}

struct Owner {
    board: Arc<Board>,
    holder: Option<RemoteContext>,
    buf: Option<Buf>,
    asked: bool,
    granted: u64,
    revoked: u64,
    live: Vec<GrantId>,
}

struct Holder {
    board: Arc<Board>,
}

pub struct Engines<D: Device> {
    engines: Vec<Engine<D>>,
    lcores: Vec<Lcore<D::Path>>,
    board: Arc<Board>,
    began: Instant,
}

impl Owner {
    fn grant_due(&mut self, cx: &mut Context<'_>, holder: RemoteContext) {
        let wanted = self.board.to_grant.load(Ordering::Relaxed);
        let Some(buf) = &self.buf else { return };
        while self.granted < wanted {
            let bytes = self.board.bytes.load(Ordering::Relaxed) as usize;
            match cx.grant(buf, 0..bytes, Rights::READ_WRITE, holder, Lease::None) {
                Ok(id) => self.live.push(id),
                // Windows come back when their last key's value is forgotten.
                Err(GrantError::Limit(_)) => return,
                Err(error) => panic!("{error}"),
            }
            self.granted += 1;
        }
    }

    fn revoke_due(&mut self, cx: &mut Context<'_>) {
        let wanted = self.board.to_revoke.load(Ordering::Relaxed);
        if self.revoked == wanted {
            return;
        }
        for id in self.live.drain(..) {
            cx.revoke(id).expect("it is live");
            self.revoked += 1;
        }
        cx.flush(0).expect("one at a time");
    }
}

impl Service for Owner {
    fn poll(&mut self, cx: &mut Context<'_>) -> Work {
        match self.holder {
            Some(holder) => {
                self.grant_due(cx, holder);
                self.revoke_due(cx);
            }
            None => {
                let peer = cx.peers().next();
                if let (Some(peer), false) = (peer, self.asked) {
                    self.asked = cx.lookup(peer, "holder", 0).is_ok();
                }
            }
        }
        Work::Idle
    }

    fn on_event(&mut self, cx: &mut Context<'_>, event: Event) {
        match event {
            Event::Resolved { context, .. } => {
                self.asked = false;
                self.holder = context;
                self.buf = cx.alloc(MOST_BYTES).ok();
                let is_ready = self.holder.is_some() && self.buf.is_some();
                self.board.ready.store(is_ready.into(), Ordering::Relaxed);
            }
            Event::Zapped(_) => {
                self.board.zapped.fetch_add(1, Ordering::Relaxed);
            }
            Event::GrantQuarantined { .. } | Event::PeerDown(_) => panic!("{event:?}"),
            _ => {}
        }
    }
}

impl Service for Holder {
    fn poll(&mut self, _cx: &mut Context<'_>) -> Work {
        Work::Wait
    }

    fn on_event(&mut self, _cx: &mut Context<'_>, event: Event) {
        if let Event::Granted(_) = event {
            self.board.held.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl<D: Device> Engines<D> {
    pub fn new(places: &Places, open: impl Fn() -> D) -> Self {
        let board = Arc::new(Board::default());
        let mut engines = Self {
            engines: Vec::new(),
            lcores: Vec::new(),
            board: Arc::clone(&board),
            began: Instant::now(),
        };
        for (at, (name, peer)) in [("a", "b"), ("b", "a")].into_iter().enumerate() {
            let builder = builder(name).listen(&places.engines[at]);
            let there = &places.engines[1 - at];
            let builder = match &places.secret {
                Some(secret) => builder.peer_with_secret(peer, there, 1, secret.clone()),
                None => builder.peer(peer, there, 1),
            };
            let built = builder.build(open(), at as u128 + 1);
            let mut engine = built.expect("the machine has a few MiB");
            engines.lcores.extend(engine.take_lcore(LcoreId(0)));
            engines.engines.push(engine);
        }
        let owner = Owner {
            board: Arc::clone(&board),
            holder: None,
            buf: None,
            asked: false,
            granted: 0,
            revoked: 0,
            live: Vec::with_capacity(KEYS),
        };
        let holder = Holder {
            board: Arc::clone(&board),
        };
        let services: [(&str, Box<dyn Service>); 2] =
            [("owner", Box::new(owner)), ("holder", Box::new(holder))];
        for (engine, (name, service)) in engines.engines.iter_mut().zip(services) {
            engine.open(LcoreId(0), name, 1, service).expect("a name");
        }
        engines.until(|board| board.ready.load(Ordering::Relaxed) == 1);
        engines
    }

    /// Grants, until the holder has every key.
    pub fn grant_all(&mut self, bytes: usize) {
        self.board.bytes.store(bytes as u64, Ordering::Relaxed);
        let wanted = self
            .board
            .to_grant
            .fetch_add(KEYS as u64, Ordering::Relaxed)
            + KEYS as u64;
        self.until(|board| board.held.load(Ordering::Relaxed) == wanted);
    }

    /// Revokes, until every key is proven ended.
    pub fn revoke_all(&mut self) {
        let wanted = self
            .board
            .to_revoke
            .fetch_add(KEYS as u64, Ordering::Relaxed)
            + KEYS as u64;
        self.until(|board| board.zapped.load(Ordering::Relaxed) == wanted);
    }

    fn until(&mut self, done: impl Fn(&Board) -> bool) {
        while !done(&self.board) {
            let now_ns = self.began.elapsed().as_nanos() as u64 + 1;
            for lcore in &mut self.lcores {
                lcore.step(now_ns);
            }
            for engine in &mut self.engines {
                engine.control(now_ns);
                while engine.poll_event().is_some() {}
            }
        }
    }
}

fn builder(name: &str) -> EngineBuilder {
    let keys = KEYS as u32;
    let limits = Limits {
        contexts: 2,
        // Those of the round before may still be known to their holder.
        windows: 2 * keys,
        grants: 2 * keys,
        imports: 2 * keys,
        flush_watermark: keys,
        reclaim_budget_wrs: 256,
        send_depth: 1024,
        receive_depth: 1024,
        epochs: 64,
        context: ContextLimits {
            grants: 2 * keys,
            imports: 2 * keys,
            buffers: 1,
            exposed_bytes: 2 * u64::from(keys) * MOST_BYTES as u64,
            ..ContextLimits::default()
        },
        peer: PeerLimits {
            parked_keys: 4 * keys,
            exposed_bytes: 2 * u64::from(keys) * MOST_BYTES as u64,
            ..PeerLimits::default()
        },
        ..Limits::default()
    };
    let memory = MemoryConfig {
        pools: vec![PoolConfig {
            buffer_bytes: MOST_BYTES as u64,
            count: 1,
        }],
        receive_buffer_bytes: 1024,
        ..MemoryConfig::default()
    };
    let bytes = budget_bytes(&budget(&limits, &memory, limits.lanes)).next_multiple_of(2 << 20);
    EngineBuilder::new(name, 1)
        .key_mode(KeyMode::Window)
        .memory(MemoryConfig {
            arena_bytes: bytes,
            ..memory
        })
        .limits(limits)
        .timeouts(Timeouts::default())
}
