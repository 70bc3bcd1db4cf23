//! The configuration of a program's engines, and the TOML that says it.
//!
//! Every key is checked, unknown ones are refused, and all errors of a file are reported at once, each with its place.
//! Sizes are strings such as `"64MiB"` (powers of 1024) and `"64MB"` (of 1000), or integers of bytes; durations are strings such
//! as `"20ms"` (`ns`, `us`, `ms`, `s`). Rust names carry the unit.

mod engine;
mod load;
mod memory;
mod peer;
mod service;
mod timeouts;
mod verbs;

pub use engine::{EngineConfig, IdlePolicy};
pub use load::{LoadConfig, Minima, OperationMix};
pub use memory::{MemoryConfig, PageSize, Policy, PoolConfig};
pub use peer::{PeerAddress, PeerConfig};
pub use service::{OptionKind, OptionValue, ServiceConfig, ServiceKind};
pub use timeouts::Timeouts;
pub use verbs::{KeyMode, VerbsConfig};

use crate::limits::Limits;

/// A whole file. `memory`, `limits`, `timeouts` and `verbs` hold for each engine of it.
#[derive(Clone, PartialEq, Debug)]
pub struct Config {
    /// `[[engine]]`, at least one.
    pub engines: Vec<EngineConfig>,
    /// `[memory]`
    pub memory: MemoryConfig,
    /// `[limits]`
    pub limits: Limits,
    /// `[timeouts]`
    pub timeouts: Timeouts,
    /// `[verbs]`
    pub verbs: VerbsConfig,
    /// `[[peer]]`
    pub peers: Vec<PeerConfig>,
    /// `[[service]]`
    pub services: Vec<ServiceConfig>,
    /// `[load]`, for a run under load alone.
    pub load: Option<LoadConfig>,
}

/// What the reading program can start; the runtime itself knows no device and no service by name.
#[derive(Clone, Copy, Debug)]
pub struct Catalog<'a> {
    /// Devices, the default first.
    pub devices: &'a [&'a str],
    /// Kinds of service.
    pub services: &'a [ServiceKind],
}
