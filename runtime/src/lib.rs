//! keyfence: an embedded, poll-mode runtime for RDMA that takes remote keys back with an explicit epoch: invalidate, flush, and only
//! then reuse.
//!
//! An [`Engine`] owns hugepage memory that is registered once, and lcores: polling threads, each pinned to a CPU. Application code is a
//! [`Service`] that runs on an lcore as one [`Context`], or runs on a thread of its own that has a [`Client`]. Contexts open memory to contexts of a peer by *grants*; a reclaim, however it
//! starts, ends each key before its memory is used again.
//!
//! # A whole program
//!
//! Two engines in one process, driven by the program's own loop. In production [`Engine::start`] gives each lcore a pinned thread, and only
//! [`Engine::control`] stays with the caller.
//!
//! ```
//! use keyfence::config::MemoryConfig;
//! use keyfence::ids::LcoreId;
//! use keyfence::pmd::soft::{Fabric, SoftConfig};
//! use keyfence::{Context, EngineBuilder, Event, Lease, Local, Rights, Service, Status, Work};
//!
//! /// Opens a buffer to whoever looks for it.
//! struct Owner;
//! impl Service for Owner {
//!     fn poll(&mut self, _cx: &mut Context<'_>) -> Work {
//!         Work::Wait
//!     }
//!     fn on_event(&mut self, cx: &mut Context<'_>, event: Event) {
//!         // A message asks for memory: open some to its sender.
//!         if let Event::Message(message) = event {
//!             let buf = cx.alloc(4096).expect("the pool is large enough");
//!             cx.grant(&buf, 0..4096, Rights::WRITE, message.from(), Lease::None).expect("within the limits");
//!         }
//!     }
//! }
//!
//! /// Asks for memory, and writes to it.
//! struct Writer(std::sync::mpsc::Sender<Status>);
//! impl Service for Writer {
//!     fn poll(&mut self, _cx: &mut Context<'_>) -> Work {
//!         Work::Wait
//!     }
//!     fn on_event(&mut self, cx: &mut Context<'_>, event: Event) {
//!         match event {
//!             Event::PeerUp(peer) => cx.lookup(peer, "owner", 0).expect("a session stands"),
//!             Event::Resolved { context: Some(owner), .. } => cx.send(owner, b"memory, please", 1).expect("there is room"),
//!             Event::Granted(import) => {
//!                 let source = cx.alloc(64).expect("the pool is large enough");
//!                 source.write_at(0, b"hello").expect("it fits");
//!                 // Dropping the buffer after this is fine: the operation holds it.
//!                 cx.write(&import, 0, &[Local::prefix(&source, 5)], 2).expect("it fits the import");
//!             }
//!             Event::Completed(done) if done.token == 2 => self.0.send(done.status).expect("the program listens"),
//!             _ => {}
//!         }
//!     }
//! }
//!
//! let fabric = Fabric::new();
//! let engine = |name: &str, peer: &str| {
//!     EngineBuilder::new(name, 1)
//!         .memory(MemoryConfig { arena_bytes: 96 << 20, ..MemoryConfig::default() })
//!         .peer(peer, &format!("local:{peer}"), 1)
//!         // In production 128 random bits of the operating system's.
//!         .build(fabric.device(SoftConfig::default())?, name.len() as u128)
//!         .map_err(Box::<dyn std::error::Error>::from)
//! };
//! let (mut left, mut right) = (engine("left", "right")?, engine("right", "left")?);
//! let (done, status) = std::sync::mpsc::channel();
//! left.open(LcoreId(0), "writer", 1, Box::new(Writer(done)))?;
//! right.open(LcoreId(0), "owner", 1, Box::new(Owner))?;
//!
//! let mut lcores = [left.take_lcore(LcoreId(0)).unwrap(), right.take_lcore(LcoreId(0)).unwrap()];
//! let status = (0..100_000_u64).find_map(|now_ns| {
//!     left.control(now_ns);
//!     right.control(now_ns);
//!     for lcore in &mut lcores {
//!         lcore.step(now_ns);
//!     }
//!     status.try_recv().ok()
//! });
//! assert_eq!(status, Some(Status::Ok));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Lcores on threads of their own, and the end
//!
//! ```
//! use std::time::{Duration, Instant};
//!
//! use keyfence::EngineBuilder;
//! use keyfence::config::{IdlePolicy, MemoryConfig};
//! use keyfence::pmd::soft::{Fabric, SoftConfig};
//!
//! let start = Instant::now();
//! let clock = move || start.elapsed().as_nanos() as u64;
//! let mut engine = EngineBuilder::new("alone", 1)
//!     .cpus(&[0]) // Each engine of a process takes CPUs of its own: without this all begin at CPU 0.
//!     .idle(IdlePolicy::Backoff { max_sleep_ns: 50_000 })
//!     .memory(MemoryConfig { arena_bytes: 96 << 20, ..MemoryConfig::default() })
//!     .build(Fabric::new().device(SoftConfig::default())?, 1)?;
//! let running = engine.start(clock)?;
//! // ... engine.open(...), and the control loop below for as long as the program works.
//!
//! engine.close_all();
//! while !engine.is_closed() {
//!     // By the lcores' clock. The loop may rest when there was nothing to do; connections and ends wait for it meanwhile.
//!     if !engine.control(clock()) {
//!         std::thread::park_timeout(Duration::from_micros(50));
//!     }
//!     while engine.poll_event().is_some() {}
//! }
//! // When the peers are closed too: to one that still polls, an engine that goes is a peer that is lost.
//! for lcore in running.join() {
//!     match lcore {
//!         Ok(lcore) => println!("{} contexts reclaimed", lcore.stats().contexts_reclaimed),
//!         Err(id) => println!("lcore {id} died by a panic"),
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Dropping what [`Engine::start`] gave stops the lcores after their step, without a reclaim; dropping the engine then ends its queue pairs and gives its
//! memory back.
//!
//! # Threads
//!
//! | what | who calls it |
//! | --- | --- |
//! | [`Engine`] | one thread, the control thread: builds, opens and kills contexts, calls [`Engine::control`] in a loop |
//! | [`Lcore`] | the thread that polls: [`Lcore::step`] |
//! | [`Context`] | its service, on its lcore, inside a step |
//! | [`Client`] | any thread, one at a time; it may be sent between two calls, and must call within `timeouts.client_lease` |
//! | [`Buf`], [`Message`], [`SharedStats`] | any thread |

mod client;
pub mod config;
mod context;
mod engine;
mod error;
mod event;
mod grant;
pub mod ids;
mod lane;
pub mod latency;
pub mod limits;
mod op;
pub mod plant;
mod random;
pub mod reclaim;
mod service;
mod session;
pub mod trace;
pub mod wire;

pub use client::{
    Client, ClientConfig, ClientEvent, ClientLookupError, ClientSendError, CommandError, Locals,
};
pub use engine::{
    BuildError, Context, DeviceNeeds, DomainUsage, Engine, EngineBuilder, GrantRecord, LaneUsage,
    Lcore, Lease, Local, LookupError, MAX_COPIED_MESSAGE_BYTES, MemoryError, OpenError, RunError,
    Running, SharedStats, Stats, Usage,
};
pub use error::{AllocError, FlushError, GrantError, KeyRefusal, RevokeError, SubmitError};
pub use event::{EngineEvent, Event, Import, Message, QuarantineReason};
pub use keyfence_mempool::{Buf, DmaSlice};
/// The device contract and its drivers.
pub use keyfence_pmd as pmd;
pub use keyfence_pmd::Rights;
pub use op::{OpDone, OpKind, Status};
pub use service::{BoxedService, Service, Work};
pub use session::{AdmissionStats, JoinRefusal, PaceMisfit, Secret, SecretError};

/// The README's programs compile.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
