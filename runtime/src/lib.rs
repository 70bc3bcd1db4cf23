//! keyfence: an embedded, poll-mode runtime for RDMA that takes remote keys back with an explicit epoch: invalidate, flush, and only then reuse.
//!
//! An [`Engine`] owns hugepage memory that is registered once, and lcores: polling threads, each pinned to a CPU. Application code is a
//! [`Service`] that runs on an lcore as one [`Context`]. Contexts open memory to contexts of a peer by *grants*; a reclaim, however it
//! starts, ends each key before its memory is used again.

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
pub mod reclaim;
mod service;
pub mod trace;
pub mod wire;

pub use engine::{
    BuildError, Context, Engine, EngineBuilder, Lcore, Lease, Local, LookupError,
    MAX_COPIED_MESSAGE_BYTES, MemoryError, OpenError, RunError, Running, SharedStats, Stats,
};
pub use error::{AllocError, FlushError, GrantError, RevokeError, SubmitError};
pub use event::{EngineEvent, Event, Import, Message, QuarantineReason};
pub use keyfence_mempool::{Buf, DmaSlice};
/// The device contract and its drivers.
pub use keyfence_pmd as pmd;
pub use keyfence_pmd::Rights;
pub use op::{OpDone, OpKind, Status};
pub use service::{BoxedService, Service, Work};
