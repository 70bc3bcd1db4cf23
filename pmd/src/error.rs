//! Errors of control calls. The poll path has none: a full queue is a short count, a dead queue pair a flushed completion.

use crate::ids::{LcoreId, PdId, QpId, RegionId, RequestId, WindowId};

/// Why a control call was refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// The device has no more of something.
    #[error("device is out of {what}: {limit} in use; raise its limit or free some")]
    Exhausted {
        /// The kind of object.
        what: &'static str,
        /// How many the device has.
        limit: u64,
    },
    /// A size or count in the call is outside what the device can do.
    #[error("{what} is {value}; this device allows {min} to {max}")]
    OutOfRange {
        /// The parameter.
        what: &'static str,
        /// What was asked for.
        value: u64,
        /// The least allowed.
        min: u64,
        /// The most allowed.
        max: u64,
    },
    /// No such protection domain.
    #[error("no protection domain {0}")]
    NoSuchPd(PdId),
    /// No such region.
    #[error("no region {0}")]
    NoSuchRegion(RegionId),
    /// No such queue pair.
    #[error("no queue pair {0}")]
    NoSuchQp(QpId),
    /// No such window.
    #[error("no window {0}")]
    NoSuchWindow(WindowId),
    /// No such connection request, or it was answered.
    #[error("no open connection request {0}")]
    NoSuchRequest(RequestId),
    /// No such lcore, or its path was never opened.
    #[error("no open path for lcore {0}; open it before its queue pairs are created")]
    NoSuchLcore(LcoreId),
    /// The object is still used by others.
    #[error("{what} is still in use by {users}; end those first")]
    InUse {
        /// The object.
        what: &'static str,
        /// By what.
        users: &'static str,
    },
    /// The queue pair still belongs to its lcore.
    #[error(
        "queue pair {0} still belongs to its lcore; the lcore must release it after its last post"
    )]
    NotReleased(QpId),
    /// The call makes no sense in the queue pair's state.
    #[error("queue pair {qp} is {state}; {wanted} is needed")]
    WrongState {
        /// The queue pair.
        qp: QpId,
        /// The state it is in.
        state: &'static str,
        /// The state the call needs.
        wanted: &'static str,
    },
    /// The address is taken by another listener.
    #[error("address {0} is already listened on")]
    AddressInUse(String),
    /// Nobody listens there. It may later: try again.
    #[error("nobody listens on {0}")]
    Unreachable(String),
    /// The address is not one that this device understands.
    #[error("address {address} is not one of this device's; {allowed}")]
    BadAddress {
        /// What was given.
        address: String,
        /// The form that is understood.
        allowed: &'static str,
    },
    /// The lcore did not come to a quiescent point in time. The call counts as not done; what it was to end may go on.
    #[error("the lcore reached no quiescent point within {waited_ns} ns; treat it as not done")]
    Late {
        /// How long was waited.
        waited_ns: u64,
    },
    /// The memory must be locked, and this process may not lock so much.
    #[error(
        "the region needs {needed_bytes} bytes of locked memory, the limit is {limit_bytes} (RLIMIT_MEMLOCK); raise it (`ulimit -l unlimited`, \
         LimitMEMLOCK=infinity in a unit, /etc/security/limits.conf) or give the process CAP_IPC_LOCK"
    )]
    LockedMemory {
        /// The limit of the process, over all its locked memory.
        limit_bytes: u64,
        /// What this region needs.
        needed_bytes: u64,
    },
    /// The device cannot do this at all.
    #[error("{device} has no {what}")]
    Unsupported {
        /// The device.
        device: &'static str,
        /// The feature.
        what: &'static str,
    },
    /// The operating system or a library refused.
    #[error("{call} failed: {source_text}")]
    System {
        /// The call.
        call: &'static str,
        /// Its error.
        source_text: String,
    },
}

/// Why a poll path could not be opened.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenPathError {
    /// A path for this lcore was opened before; there is one a lcore in a device's life.
    #[error("the path of lcore {0} is already open")]
    AlreadyOpen(LcoreId),
    /// The device has room for fewer lcores.
    #[error("lcore {lcore} is beyond this device's {limit} lcores")]
    TooMany {
        /// The lcore asked for.
        lcore: LcoreId,
        /// How many the device allows.
        limit: u16,
    },
    /// The operating system or a library refused.
    #[error("{call} failed: {source_text}")]
    System {
        /// The call.
        call: &'static str,
        /// Its error.
        source_text: String,
    },
}

/// Refuses a value outside `min..=max`.
pub(crate) fn within(
    what: &'static str,
    value: impl Into<u64>,
    min: u64,
    max: u64,
) -> Result<(), ControlError> {
    let value = value.into();
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(ControlError::OutOfRange {
        what,
        value,
        min,
        max,
    })
}
