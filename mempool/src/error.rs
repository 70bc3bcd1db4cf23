//! One error type an operation; each says what was wanted, which limit stood in the way and what to do.

use std::io;

use crate::arena::PageSize;

/// A byte range that does not lie inside the memory it was meant for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("range of {len} bytes at offset {offset} does not fit in {limit} bytes")]
pub struct RangeError {
    /// First byte asked for.
    pub offset: usize,
    /// Bytes asked for.
    pub len: usize,
    /// Bytes there are.
    pub limit: usize,
}

/// Why an eight-byte atomic access was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AtomicError {
    /// The eight bytes do not lie inside the slice.
    #[error(transparent)]
    Range(#[from] RangeError),
    /// The address is no multiple of eight.
    #[error(
        "atomic access at offset {offset} is misaligned: address {address:#x} is no multiple of 8"
    )]
    Misaligned {
        /// Offset inside the slice.
        offset: usize,
        /// Address it stands for.
        address: u64,
    },
}

/// Why an arena or a segment could not be mapped. Nothing stays mapped after an error.
#[derive(Debug, thiserror::Error)]
pub enum ArenaError {
    /// Zero bytes were asked for.
    #[error("an arena of 0 bytes: ask for at least 1 byte (it is rounded up to whole pages)")]
    ZeroBytes,
    /// The size rounded up to whole pages exceeds the address space.
    #[error("{bytes} bytes rounded up to pages of {page} exceed the address space: ask for less")]
    TooLarge {
        /// Bytes asked for.
        bytes: usize,
        /// Page size they would be rounded to.
        page: PageSize,
    },
    /// Hugepages are required and the page size is 4 KiB.
    #[error(
        "hugepages are required but the page size is 4KiB: set page_size to 2MiB or 1GiB, or hugepages to off"
    )]
    RequireNeedsHugepages,
    /// Fewer hugepages are free than wanted.
    #[error("{wanted} hugepages of {page} wanted{}, {free} free: {}", on_node(*.node), how_to_reserve(*.page, *.node, .wanted.saturating_sub(*.free)))]
    HugepagesShort {
        /// Size of the page wanted.
        page: PageSize,
        /// NUMA node that was asked for.
        node: Option<u32>,
        /// Pages wanted.
        wanted: u64,
        /// Pages free and not promised to somebody else.
        free: u64,
    },
    /// The kernel has no pool of this page size.
    #[error(
        "this machine has no hugepages of {page}: choose another page_size, or hugepages = \"prefer\""
    )]
    HugepagesUnsupported {
        /// Size of the page wanted.
        page: PageSize,
    },
    /// Less memory is available than wanted.
    #[error(
        "{wanted_bytes} bytes wanted, {available_bytes} available: lower bytes, or free memory"
    )]
    MemoryShort {
        /// Bytes wanted.
        wanted_bytes: u64,
        /// `MemAvailable` of `/proc/meminfo`.
        available_bytes: u64,
    },
    /// The kernel refused the mapping.
    #[error("mapping {bytes} bytes in pages of {page} failed: {source}")]
    Map {
        /// Bytes asked for.
        bytes: usize,
        /// Page size asked for.
        page: PageSize,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The kernel refused to populate the mapping.
    #[error(
        "populating {bytes} bytes failed: {source}; it takes free memory and Linux 5.14 or later"
    )]
    Populate {
        /// Bytes mapped.
        bytes: usize,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The kernel refused an advice that the arena relies on.
    #[error("madvise {advice} on {bytes} bytes failed: {source}")]
    Advise {
        /// The advice's name.
        advice: &'static str,
        /// Bytes mapped.
        bytes: usize,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The memory may not be locked.
    #[error("locking {wanted_bytes} bytes refused ({source}): RLIMIT_MEMLOCK is {}; raise it to at least {wanted_bytes} bytes more than is locked already (ulimit -l, LimitMEMLOCK=), grant CAP_IPC_LOCK, or set lock = \"prefer\"", limit_text(*.limit_bytes))]
    LockRefused {
        /// Bytes to be locked.
        wanted_bytes: u64,
        /// `RLIMIT_MEMLOCK`, `None` for unlimited.
        limit_bytes: Option<u64>,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The NUMA node does not exist.
    #[error(
        "NUMA node {node} does not exist: nodes online are {online}; set numa to one of them or leave it out"
    )]
    NoSuchNode {
        /// Node asked for.
        node: u32,
        /// The kernel's list of nodes online.
        online: String,
    },
    /// The kernel refused to bind the memory to a node.
    #[error(
        "binding {bytes} bytes to NUMA node {node} failed: {source}; the kernel has no such node, or this process may not use it"
    )]
    BindRefused {
        /// Node asked for.
        node: u32,
        /// Bytes mapped.
        bytes: usize,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// Why a consumer's region could not be carved out of an arena.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// Less is left than wanted.
    #[error("{consumer} wants {wanted} bytes (aligned to {align}), {left} of {total} are left: raise the arena's bytes by {}", .wanted.saturating_sub(*.left))]
    Short {
        /// Who wanted the bytes.
        consumer: &'static str,
        /// Bytes wanted.
        wanted: usize,
        /// Alignment wanted.
        align: usize,
        /// Bytes left behind the alignment.
        left: usize,
        /// Bytes of the arena.
        total: usize,
    },
    /// The alignment is no power of two.
    #[error("{consumer} wants an alignment of {align}, which is no power of two")]
    BadAlignment {
        /// Who wanted the bytes.
        consumer: &'static str,
        /// Alignment wanted.
        align: usize,
    },
    /// Zero bytes were asked for.
    #[error("{consumer} wants 0 bytes: ask for at least 1, or leave the consumer out")]
    ZeroBytes {
        /// Who wanted the bytes.
        consumer: &'static str,
    },
}

fn on_node(node: Option<u32>) -> String {
    node.map_or_else(String::new, |node| format!(" on NUMA node {node}"))
}

fn how_to_reserve(page: PageSize, node: Option<u32>, missing: u64) -> String {
    let pool = match node {
        Some(node) => format!("/sys/devices/system/node/node{node}/hugepages"),
        None => "/sys/kernel/mm/hugepages".to_owned(),
    };
    let kib = page.bytes() / 1024;
    format!(
        "reserve {missing} more in {pool}/hugepages-{kib}kB/nr_hugepages, or set hugepages = \"prefer\""
    )
}

fn limit_text(limit_bytes: Option<u64>) -> String {
    limit_bytes.map_or_else(|| "unlimited".to_owned(), |bytes| format!("{bytes} bytes"))
}
