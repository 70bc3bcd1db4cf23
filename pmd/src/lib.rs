//! The device contract of keyfence and its poll-mode drivers.
//!
//! [`Device`] is a type parameter of the engine, never a `dyn`: the poll step compiles to one loop. A driver has two halves that never
//! share a lock with each other: [`Control`] for setup and repair, and one [`DataPath`] a lcore.

mod completion;
pub mod conformance;
mod device;
mod error;
mod ids;
pub mod probe;
#[cfg_attr(loom, allow(dead_code))]
mod quiesce;
#[cfg(not(loom))]
pub mod sim;
pub mod soft;
#[cfg(all(feature = "verbs", not(loom)))]
pub mod verbs;
mod work;
pub mod wrap;

pub use completion::{Completion, CompletionKind, WcStatus};
pub use device::{Access, Caps, Control, ControlEvent, DataPath, Device, QpConfig, Region, Window};
pub use error::{ControlError, OpenPathError};
pub use ids::{LcoreId, Lkey, PdId, QpId, RegionId, RequestId, Rkey, WindowId, WorkId};
pub use work::{MAX_SGE, ReceiveRequest, Remote, Rights, Sge, SgeList, WorkOp, WorkRequest};
