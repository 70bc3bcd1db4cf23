//! Finding the pages for an arena: which sizes to try, what a shortage says, what is locked.

use std::fs;
use std::path::Path;

use crate::arena::{ArenaConfig, ArenaNote, PageKind, PageSize, Policy};
use crate::error::ArenaError;
use crate::procfs;
use crate::sys::{self, Mapping};

/// Tries the page sizes that the policy allows, largest first.
pub(crate) fn map_pages(
    config: &ArenaConfig,
    notes: &mut Vec<ArenaNote>,
) -> Result<(Mapping, PageKind), ArenaError> {
    let sizes: &[PageSize] = match (config.hugepages, config.page_size) {
        (Policy::Require, PageSize::Base4KiB) => return Err(ArenaError::RequireNeedsHugepages),
        (Policy::Off, _) | (_, PageSize::Base4KiB) => &[],
        (Policy::Require, PageSize::Huge1GiB) => &[PageSize::Huge1GiB],
        (_, PageSize::Huge2MiB) => &[PageSize::Huge2MiB],
        (Policy::Prefer, PageSize::Huge1GiB) => &[PageSize::Huge1GiB, PageSize::Huge2MiB],
    };
    for &page in sizes {
        match map_huge(config, page) {
            Ok(mapping) if page == PageSize::Huge1GiB => return Ok((mapping, PageKind::Huge1GiB)),
            Ok(mapping) => return Ok((mapping, PageKind::Huge2MiB)),
            Err(why) if config.hugepages == Policy::Require => return Err(why),
            Err(why) => notes.push(ArenaNote::NoHugepages { wanted: page, why }),
        }
    }
    map_plain(config, notes)
}

fn map_huge(config: &ArenaConfig, page: PageSize) -> Result<Mapping, ArenaError> {
    let bytes = round_up(config.bytes, page, page.bytes())?;
    // hugepage-rs knows the default size only, and panics where the kernel names none.
    let is_default = procfs::default_hugepage_bytes() == Some(page.bytes() as u64);
    let mapped = if is_default {
        Mapping::default_hugepages(bytes)
    } else {
        Mapping::sized_hugepages(bytes, page.bytes())
    };
    let mapping = mapped.map_err(|source| match hugepage_shortage(config, page, bytes) {
        Some(shortage) => shortage,
        None => ArenaError::Map {
            bytes,
            page,
            source,
        },
    })?;
    bind(&mapping, config)?;
    keep_to_this_process(&mapping)?;
    // The mapping has its reservation, but a memory policy or a control group can still leave it short.
    mapping
        .populate()
        .map_err(|source| match hugepage_shortage(config, page, bytes) {
            Some(shortage) => shortage,
            None => ArenaError::Populate { bytes, source },
        })?;
    Ok(mapping)
}

fn map_plain(
    config: &ArenaConfig,
    notes: &mut Vec<ArenaNote>,
) -> Result<(Mapping, PageKind), ArenaError> {
    let page = PageSize::Base4KiB;
    let align = if config.transparent {
        PageSize::Huge2MiB.bytes()
    } else {
        page.bytes()
    };
    let bytes = round_up(config.bytes, page, align)?;
    check_available(bytes)?;
    let mapping = Mapping::private_pages(bytes, align).map_err(|source| ArenaError::Map {
        bytes,
        page,
        source,
    })?;
    bind(&mapping, config)?;
    keep_to_this_process(&mapping)?;
    // Refused by a kernel without transparent hugepages; what was got is read back below.
    let _ = mapping.use_transparent_hugepages(config.transparent);
    mapping
        .populate()
        .map_err(|source| ArenaError::Populate { bytes, source })?;
    if !config.transparent {
        return Ok((mapping, PageKind::Base4KiB));
    }
    let bytes = bytes as u64;
    let huge_bytes = procfs::transparent_bytes(mapping.start().as_ptr() as u64).min(bytes);
    if huge_bytes < bytes {
        notes.push(ArenaNote::NotAllTransparent { huge_bytes, bytes });
    }
    let kind = if huge_bytes > 0 {
        PageKind::Transparent
    } else {
        PageKind::Base4KiB
    };
    Ok((mapping, kind))
}

pub(crate) fn lock(
    mapping: &Mapping,
    kind: PageKind,
    policy: Policy,
    notes: &mut Vec<ArenaNote>,
) -> Result<usize, ArenaError> {
    let bytes = mapping.bytes();
    if matches!(kind, PageKind::Huge1GiB | PageKind::Huge2MiB) {
        return Ok(bytes);
    }
    if policy == Policy::Off {
        return Ok(0);
    }
    let Err(source) = mapping.lock() else {
        return Ok(bytes);
    };
    let limit_bytes = sys::memlock_limit_bytes();
    let why = ArenaError::LockRefused {
        wanted_bytes: bytes as u64,
        limit_bytes,
        source,
    };
    if policy == Policy::Require {
        return Err(why);
    }
    notes.push(ArenaNote::NotLocked { why });
    Ok(0)
}

fn bind(mapping: &Mapping, config: &ArenaConfig) -> Result<(), ArenaError> {
    let Some(node) = config.numa_node else {
        return Ok(());
    };
    mapping
        .bind_to_node(node)
        .map_err(|source| ArenaError::BindRefused {
            node,
            bytes: mapping.bytes(),
            source,
        })
}

/// A core dump would take the arena's size and show clients' data; a forked child must not share it (R11).
pub(crate) fn keep_to_this_process(mapping: &Mapping) -> Result<(), ArenaError> {
    let bytes = mapping.bytes();
    mapping
        .exclude_from_core_dumps()
        .map_err(|source| ArenaError::Advise {
            advice: "MADV_DONTDUMP",
            bytes,
            source,
        })?;
    mapping
        .exclude_from_forks()
        .map_err(|source| ArenaError::Advise {
            advice: "MADV_DONTFORK",
            bytes,
            source,
        })
}

/// The numbers behind a refused hugepage mapping; `None` if there were pages enough.
fn hugepage_shortage(config: &ArenaConfig, page: PageSize, bytes: usize) -> Option<ArenaError> {
    let folder = match config.numa_node {
        Some(node) => config
            .sysfs
            .join(format!("devices/system/node/node{node}/hugepages")),
        None => config.sysfs.join("kernel/mm/hugepages"),
    };
    let pool = folder.join(format!("hugepages-{}kB", page.bytes() / 1024));
    let Some(unused) = read_number(&pool.join("free_hugepages")) else {
        return Some(ArenaError::HugepagesUnsupported { page });
    };
    // Kept per machine only: a node's folder has no such file.
    let reserved = read_number(&pool.join("resv_hugepages")).unwrap_or(0);
    let (wanted, free) = (
        (bytes / page.bytes()) as u64,
        unused.saturating_sub(reserved),
    );
    (free < wanted).then_some(ArenaError::HugepagesShort {
        page,
        node: config.numa_node,
        wanted,
        free,
    })
}

/// Plain pages are overcommitted: without this a shortage would be the out-of-memory killer's affair.
pub(crate) fn check_available(bytes: usize) -> Result<(), ArenaError> {
    let wanted_bytes = bytes as u64;
    match procfs::available_bytes() {
        Some(available_bytes) if available_bytes < wanted_bytes => Err(ArenaError::MemoryShort {
            wanted_bytes,
            available_bytes,
        }),
        _ => Ok(()),
    }
}

pub(crate) fn round_up(bytes: usize, page: PageSize, align: usize) -> Result<usize, ArenaError> {
    // A mapping of half the address space or more is refused by every kernel, and `Layout` cannot express it.
    bytes
        .checked_next_multiple_of(align)
        .filter(|rounded| *rounded <= isize::MAX as usize)
        .ok_or(ArenaError::TooLarge { bytes, page })
}

fn read_number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}
