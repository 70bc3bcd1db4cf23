//! `verbs`: RDMA adapters (InfiniBand, RoCE, Soft-RoCE) through libibverbs and librdmacm.
//!
//! A [`VerbsDevice`] is an adapter's port, a [`VerbsPath`] the poll path of one of its lcores. Addresses are `HOST:PORT` or `rdma:HOST:PORT`. Both libraries are
//! loaded at run time: a binary with this driver also starts where they are not installed, and opening a device says what is missing.
//! `DESIGN.md` of this crate says how the contract is kept, and what a process needs (packages, permissions, locked memory).
//!
//! ```no_run
//! use keyfence_pmd::verbs::{VerbsConfig, VerbsDevice};
//! use keyfence_pmd::*;
//!
//! let device = VerbsDevice::open(VerbsConfig { device: Some("rxe0".into()), ..VerbsConfig::default() })?;
//! let path = device.open_path(LcoreId(0))?;
//! device.listen("10.9.9.1:7471")?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod books;
mod by_key;
mod config;
mod connect;
mod control;
mod datapath;
mod device;
mod endpoint;
mod error;
mod events;
mod grace;
mod hold;
mod memory;
mod numbers;
mod probe;
mod qp;
mod receive_queue;
mod ring;
mod send_queue;
mod status;
mod sys;
mod windows;

pub use config::{KnownCaps, MAX_PRIVATE_BYTES, VerbsConfig};
pub use datapath::VerbsPath;
pub use device::VerbsDevice;
pub use error::VerbsError;
pub use events::AsyncCounts;
pub use probe::{Adapter, Learned, self_test};
