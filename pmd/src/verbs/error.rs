//! Errors: why an adapter cannot be opened, and what the system's error numbers mean for control calls.

use std::io;

use super::sys::{locked_memory_limit, missing_library};
use crate::error::ControlError;

/// Why an adapter could not be opened.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerbsError {
    /// A library is not installed.
    #[error(
        "cannot load {library}: install the packages libibverbs1, librdmacm1 and ibverbs-providers (missing: {package})"
    )]
    Library {
        /// The file.
        library: &'static str,
        /// Debian's package that has it.
        package: &'static str,
    },
    /// The kernel or the libraries know no adapter.
    #[error(
        "this machine has no RDMA adapter that libibverbs knows ({source_text}); load the adapter's kernel module and ib_uverbs, and install ibverbs-providers"
    )]
    NoAdapter {
        /// The system's error, or that there is none.
        source_text: String,
    },
    /// No adapter of this name.
    #[error("no RDMA adapter {name}; there are: {}", present.join(", "))]
    NoSuchAdapter {
        /// The name asked for.
        name: String,
        /// Those there are.
        present: Vec<String>,
    },
    /// None was named, and there are several.
    #[error("several RDMA adapters; name one of: {}", present.join(", "))]
    Ambiguous {
        /// Those there are.
        present: Vec<String>,
    },
    /// The adapter's port has no IP address to connect to.
    #[error(
        "port {port} of {adapter} has no IP address in its GID table; give its interface one (`ip addr add`), or name an address of it"
    )]
    NoAddress {
        /// The adapter.
        adapter: String,
        /// Its port.
        port: u8,
    },
    /// The entry of the port's GID table that a configuration names has no GID.
    #[error(
        "entry {index} of the GID table of port {port} of {adapter} is empty; leave gid_index out, or name one with a GID \
         (/sys/class/infiniband/{adapter}/ports/{port}/gids)"
    )]
    NoGid {
        /// The adapter.
        adapter: String,
        /// Its port.
        port: u8,
        /// The entry.
        index: u8,
    },
    /// A setting is outside its range.
    #[error(transparent)]
    Setting(#[from] ControlError),
    /// The operating system or a library refused.
    #[error("{call} failed: {source_text}")]
    System {
        /// The call.
        call: &'static str,
        /// Its error, and what to do, if that is known.
        source_text: String,
    },
}

/// Fails if a library is missing.
pub(crate) fn check_libraries() -> Result<(), VerbsError> {
    match missing_library() {
        Some((library, package)) => Err(VerbsError::Library { library, package }),
        None => Ok(()),
    }
}

/// The error of a call that opens an adapter.
pub(crate) fn open_error(call: &'static str, error: &io::Error) -> VerbsError {
    let locked = lock_hint();
    let hint = match error.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => {
            "; the process needs read and write access to /dev/infiniband/uverbs* and /dev/infiniband/rdma_cm"
        }
        Some(libc::ENODEV | libc::ENOENT) if call == "rdma_create_event_channel" => {
            "; load the kernel module rdma_ucm"
        }
        Some(libc::ENOMEM) => &locked,
        _ => "",
    };
    VerbsError::System {
        call,
        source_text: format!("{error}{hint}"),
    }
}

/// The error of a control call.
pub(crate) fn system(call: &'static str, error: &io::Error) -> ControlError {
    ControlError::System {
        call,
        source_text: error.to_string(),
    }
}

/// The error of a call that makes an object, of which the adapter may have no more.
pub(crate) fn no_more(
    (call, what): (&'static str, &'static str),
    limit: u32,
    error: &io::Error,
) -> ControlError {
    match error.raw_os_error() {
        // Some adapters lock what their objects are made of.
        Some(libc::ENOMEM) if lock_limit().is_some() => ControlError::System {
            call,
            source_text: format!("{error}{}", lock_hint()),
        },
        Some(libc::ENOMEM | libc::ENOSPC | libc::EAGAIN) => ControlError::Exhausted {
            what,
            limit: limit.into(),
        },
        _ => system(call, error),
    }
}

/// The error of a registration of so many bytes.
pub(crate) fn not_registered(needed_bytes: u64, error: &io::Error) -> ControlError {
    let full = matches!(error.raw_os_error(), Some(libc::ENOMEM | libc::EAGAIN));
    match lock_limit().filter(|_| full) {
        Some(limit_bytes) => ControlError::LockedMemory {
            limit_bytes,
            needed_bytes,
        },
        None => system("ibv_reg_mr", error),
    }
}

/// The limit of locked memory in bytes, if it counts for this process.
fn lock_limit() -> Option<u64> {
    locked_memory_limit().filter(|_| !may_lock_at_will())
}

/// What to do if locked memory may have been short.
pub(crate) fn lock_hint() -> String {
    lock_limit().map_or(String::new(), |limit| {
        format!("; {limit} bytes may be locked (RLIMIT_MEMLOCK): raise it, or give the process CAP_IPC_LOCK")
    })
}

/// Whether the process has CAP_IPC_LOCK, for which the limit does not count.
fn may_lock_at_will() -> bool {
    const CAP_IPC_LOCK: u64 = 1 << 14;
    let Ok(status) = std::fs::read_to_string("/proc/self/status") else {
        return false;
    };
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    bits.is_some_and(|bits| bits & CAP_IPC_LOCK != 0)
}
