//! The adapter: its libraries, its context, its limits, its asynchronous events.
//!
//! Unsafe because it calls libibverbs and reads what that returns.

use std::ffi::{CStr, c_char};
use std::io;
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull, addr_of};

use rdma_mummy_sys as ib;

/// An open adapter.
#[derive(Debug)]
pub(crate) struct Context {
    raw: NonNull<ib::ibv_context>,
}

// SAFETY: a context may be used by any thread, and by several at a time (libibverbs is thread-safe).
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// What an adapter and its port say of themselves.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    pub(crate) max_qps: u64,
    pub(crate) max_depth: u64,
    pub(crate) max_sge: u64,
    pub(crate) max_cqes: u64,
    pub(crate) max_regions: u64,
    pub(crate) max_windows: u64,
    /// Reads and atomics under way as requester and as responder, a queue pair.
    pub(crate) max_initiated: u8,
    pub(crate) max_responded: u8,
    pub(crate) windows: bool,
    pub(crate) atomics: bool,
    pub(crate) ports: u8,
    pub(crate) max_message_bytes: u64,
    /// `enum ibv_mtu`: what the port's link carries now.
    pub(crate) active_mtu: u32,
    pub(crate) gid_entries: u32,
}

/// Something that the adapter reports by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct AsyncEvent {
    /// `enum ibv_event_type`.
    pub(crate) code: u32,
    /// The number of the queue pair concerned.
    pub(crate) qp_number: Option<u32>,
}

/// The first library that cannot be loaded, with the package that has it.
pub(crate) fn missing_library() -> Option<(&'static str, &'static str)> {
    let libraries = [
        (c"libibverbs.so.1", "libibverbs.so.1", "libibverbs1"),
        (c"librdmacm.so.1", "librdmacm.so.1", "librdmacm1"),
    ];
    for (file, name, package) in libraries {
        // SAFETY: the name is a C string. What the library's initialisation runs is trusted as the library is.
        let handle = unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL) };
        // A handle is never closed: the functions are used until the process ends.
        if handle.is_null() {
            return Some((name, package));
        }
    }
    None
}

/// The limit of locked memory in bytes, or `None` if there is none.
pub(crate) fn locked_memory_limit() -> Option<u64> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is writable and of the type that the call wants.
    let returned = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) };
    let limited = returned == 0 && limit.rlim_cur != libc::RLIM_INFINITY;
    limited.then_some(limit.rlim_cur)
}

/// Whether a forked child could harm this process's registered memory unless `ibv_fork_init` was called.
fn wants_fork_init() -> bool {
    // SAFETY: takes nothing.
    let status = unsafe { ib::ibv_is_fork_initialized() };
    status != ib::IBV_FORK_UNNEEDED && status != ib::IBV_FORK_ENABLED
}

impl Context {
    /// Opens the adapter of this name; the only one there is if none is named. The error has the names that there are.
    pub(crate) fn open(name: Option<&str>) -> io::Result<Result<Self, Vec<String>>> {
        if wants_fork_init() {
            // SAFETY: takes nothing. Where the kernel copies pinned pages at fork it is skipped: it would split mappings for nothing.
            check_fork_init(unsafe { ib::ibv_fork_init() })?;
        }
        let mut count = 0;
        // SAFETY: `count` is writable.
        let list = unsafe { ib::ibv_get_device_list(&raw mut count) };
        if list.is_null() {
            return Err(io::Error::last_os_error());
        }
        let found = Self::open_of(list, count as usize, name);
        // SAFETY: the list came from `ibv_get_device_list`, and nothing of it is used any more.
        unsafe { ib::ibv_free_device_list(list) };
        found
    }

    fn open_of(
        list: *mut *mut ib::ibv_device,
        count: usize,
        name: Option<&str>,
    ) -> io::Result<Result<Self, Vec<String>>> {
        let mut names = Vec::new();
        let mut devices = Vec::new();
        // SAFETY: the list has `count` entries, and lives longer than this function.
        let list = unsafe { std::slice::from_raw_parts(list, count) };
        for device in list.iter().copied() {
            devices.push(device);
            names.push(device_name(device));
        }
        let wanted = match name {
            Some(name) => names.iter().position(|of| of == name),
            None => (count == 1).then_some(0),
        };
        let Some(wanted) = wanted else {
            return Ok(Err(names));
        };
        // SAFETY: the device is of a list that is not freed yet.
        let raw = unsafe { ib::ibv_open_device(devices[wanted]) };
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        let context = Self { raw };
        context.make_async_events_nonblocking()?;
        Ok(Ok(context))
    }

    pub(crate) fn raw(&self) -> *mut ib::ibv_context {
        self.raw.as_ptr()
    }

    /// The adapter's name.
    pub(crate) fn name(&self) -> String {
        // SAFETY: the context is open.
        device_name(unsafe { self.raw.as_ref() }.device)
    }

    fn make_async_events_nonblocking(&self) -> io::Result<()> {
        // SAFETY: the context is open.
        let file = unsafe { self.raw.as_ref() }.async_fd;
        make_nonblocking(file)
    }

    /// Asks for the adapter's limits, and for those of a port; of its first port if it has none of this number.
    pub(crate) fn limits(&self, port: u8) -> io::Result<Limits> {
        // SAFETY: plain C data, for which zeros are valid.
        let mut device: ib::ibv_device_attr_ex = unsafe { MaybeUninit::zeroed().assume_init() };
        // SAFETY: the context is open, no input is allowed, and `device` is writable.
        super::check(unsafe { ib::ibv_query_device_ex(self.raw(), ptr::null(), &raw mut device) })?;
        let device = device.orig_attr;
        let port = if port > device.phys_port_cnt { 1 } else { port };
        // SAFETY: plain C data, for which zeros are valid.
        let mut of_port: ib::ibv_port_attr = unsafe { MaybeUninit::zeroed().assume_init() };
        // SAFETY: the context is open and `of_port` writable.
        super::check(unsafe { ib::ibv_query_port(self.raw(), port, &raw mut of_port) })?;
        let count = |value: i32| u64::try_from(value).unwrap_or(0);
        let resources = |value: i32| u8::try_from(value.max(1)).unwrap_or(u8::MAX);
        let has = |flag: ib::ibv_device_cap_flags| device.device_cap_flags & flag.0 != 0;
        Ok(Limits {
            max_qps: count(device.max_qp),
            max_depth: count(device.max_qp_wr),
            max_sge: count(device.max_sge).min(count(device.max_sge_rd)),
            max_cqes: count(device.max_cqe),
            max_regions: count(device.max_mr),
            max_windows: count(device.max_mw),
            max_initiated: resources(device.max_qp_init_rd_atom),
            max_responded: resources(device.max_qp_rd_atom),
            windows: has(ib::ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW_TYPE_2B),
            atomics: device.atomic_cap != ib::ibv_atomic_cap::IBV_ATOMIC_NONE,
            ports: device.phys_port_cnt,
            max_message_bytes: u64::from(of_port.max_msg_sz),
            active_mtu: of_port.active_mtu,
            gid_entries: u32::try_from(of_port.gid_tbl_len).unwrap_or(0),
        })
    }

    /// Whether an entry of a port's GID table has a GID.
    pub(crate) fn has_gid(&self, port: u8, index: u8) -> bool {
        // SAFETY: plain C data, for which zeros are valid.
        let mut gid: ib::ibv_gid = unsafe { MaybeUninit::zeroed().assume_init() };
        // SAFETY: the context is open and `gid` writable.
        let returned = unsafe { ib::ibv_query_gid(self.raw(), port, index.into(), &raw mut gid) };
        // SAFETY: all of a GID is bytes.
        returned == 0 && unsafe { gid.raw } != [0; 16]
    }

    /// The next asynchronous event, or `None` at once.
    pub(crate) fn next_async(&self) -> Option<AsyncEvent> {
        let mut event = MaybeUninit::<ib::ibv_async_event>::zeroed();
        // SAFETY: the context is open and `event` writable. The descriptor does not block.
        let returned = unsafe { ib::ibv_get_async_event(self.raw(), event.as_mut_ptr()) };
        if returned != 0 {
            return None;
        }
        let event = event.as_mut_ptr();
        // SAFETY: only the place is computed. The type is read as a number: a library may know types that the enum has not.
        let place = unsafe { addr_of!((*event).event_type) }.cast::<u32>();
        // SAFETY: the call has written the event.
        let code = unsafe { place.read() };
        // SAFETY: only the place is computed.
        let place = unsafe { addr_of!((*event).element) }.cast::<*mut ib::ibv_qp>();
        // SAFETY: the call has written the event; a pointer is read, whatever it points to.
        let element = unsafe { place.read() };
        let of_qp = matches!(code, 1..=7 | 16);
        let qp_number = of_qp.then(|| {
            // SAFETY: these types are of a queue pair, which cannot be freed before its event is acknowledged.
            unsafe { (*element).qp_num }
        });
        // SAFETY: the event is the one just got, and is acknowledged once.
        unsafe { ib::ibv_ack_async_event(event) };
        Some(AsyncEvent { code, qp_number })
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: every object of the context holds it, so none is left.
        unsafe { ib::ibv_close_device(self.raw()) };
    }
}

fn check_fork_init(returned: i32) -> io::Result<()> {
    match returned {
        // Too late or not to be had: the kernel then does as for any other program.
        0 | libc::ENOSYS | libc::EINVAL => Ok(()),
        _ => super::check(returned),
    }
}

/// The name of a device of a list that is not freed, or of an open context.
pub(super) fn device_name(device: *mut ib::ibv_device) -> String {
    // SAFETY: the caller's device is alive.
    let name: *const c_char = unsafe { ib::ibv_get_device_name(device) };
    if name.is_null() {
        return String::new();
    }
    // SAFETY: a C string that lives as long as the device.
    let name = unsafe { CStr::from_ptr(name) };
    name.to_string_lossy().into_owned()
}

/// No read of this descriptor waits any more.
pub(super) fn make_nonblocking(file: i32) -> io::Result<()> {
    // SAFETY: no memory is concerned.
    let flags = unsafe { libc::fcntl(file, libc::F_GETFL) };
    if flags < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: no memory is concerned.
    let set = unsafe { libc::fcntl(file, libc::F_SETFL, flags | libc::O_NONBLOCK) };
    super::check_errno(set)
}
