//! The thin layer over libibverbs and librdmacm. Everything behind it is safe code: an object here frees what it stands for when it is
//! dropped, and holds what that needs to live (a queue pair its protection domain and its completion queue, a region its arena).

#[allow(unsafe_code)]
mod cm;
#[allow(unsafe_code)]
mod device;
#[allow(unsafe_code)]
mod grace;
#[allow(unsafe_code)]
mod loopback;
#[allow(unsafe_code)]
mod objects;
#[allow(unsafe_code)]
mod post;
#[allow(unsafe_code)]
mod send_list;
#[allow(unsafe_code)]
mod table;
#[allow(unsafe_code)]
mod wc;

pub(crate) use cm::{CmEvent, CmEventKind, CmId, ConnectParameters, EventChannel};
pub(crate) use device::{AsyncEvent, Context, Limits, locked_memory_limit, missing_library};
pub(crate) use grace::{can_wait_for_accesses, wait_for_accesses};
pub(crate) use loopback::{ForkStatus, Route, fork_status};
pub(crate) use objects::{Cq, Mr, Mw, Pd, Qp, QpSizes, QpState, RemoteAccess};
pub(crate) use post::{Chain, Posting, SendOp};
pub(crate) use table::{ClockHandle, Clocks, Inside, Retired, Table};
pub(crate) use wc::Wc;

use std::io;

/// The result of a call that returns 0 or an error number.
fn check(returned: i32) -> io::Result<()> {
    match returned {
        0 => Ok(()),
        // What stands in for a function that an old library lacks returns -1 and sets the number.
        negative if negative < 0 => Err(io::Error::last_os_error()),
        number => Err(io::Error::from_raw_os_error(number)),
    }
}

/// The result of a call that returns 0, or -1 and sets the error number.
fn check_errno(returned: i32) -> io::Result<()> {
    match returned {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
