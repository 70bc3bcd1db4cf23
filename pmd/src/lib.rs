//! The device contract of keyfence and its poll-mode drivers.

mod completion;
mod error;
mod ids;
mod work;

pub use completion::{Completion, CompletionKind, WcStatus};
pub use error::{ControlError, OpenPathError};
pub use ids::{LcoreId, Lkey, PdId, QpId, RegionId, RequestId, Rkey, WindowId, WorkId};
pub use work::{MAX_SGE, ReceiveRequest, Remote, Rights, Sge, SgeList, WorkOp, WorkRequest};
