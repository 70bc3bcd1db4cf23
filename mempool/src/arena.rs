//! Memory that is mapped, populated and locked once, at start, and zeroed.

use core::fmt;
use std::path::PathBuf;

use crate::dma::DmaSlice;
use crate::error::{ArenaError, RangeError};
use crate::numa::Nodes;
use crate::pages;
use crate::sys::{BASE_PAGE_BYTES, Mapping};

/// Size of the pages that an arena is asked to consist of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PageSize {
    /// Hugepages of 1 GiB.
    Huge1GiB,
    /// Hugepages of 2 MiB.
    Huge2MiB,
    /// Plain pages.
    Base4KiB,
}

/// How much a wish matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Policy {
    /// An error if it cannot be had.
    Require,
    /// Taken if it can be had; otherwise an [`ArenaNote`].
    Prefer,
    /// Not wanted.
    Off,
}

/// The pages that an arena got.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PageKind {
    /// Hugepages of 1 GiB.
    Huge1GiB,
    /// Hugepages of 2 MiB.
    Huge2MiB,
    /// Plain memory in which the kernel has put transparent hugepages, at least in part.
    Transparent,
    /// Plain pages.
    Base4KiB,
}

/// What to map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArenaConfig {
    /// Bytes wanted; rounded up to whole pages of the kind that is mapped.
    pub bytes: usize,
    /// Page size wanted.
    pub page_size: PageSize,
    /// Whether plain pages, wanted or fallen back to, should be transparent hugepages.
    pub transparent: bool,
    /// What becomes of a `page_size` that cannot be had. `Off` means plain pages.
    pub hugepages: Policy,
    /// Whether plain pages are locked. Hugepages are never swapped and need no lock.
    pub lock: Policy,
    /// NUMA node that all pages come from.
    pub numa_node: Option<u32>,
    /// Root of sysfs; another than `/sys` in tests only.
    pub sysfs: PathBuf,
}

/// What an arena did not get although it was preferred, and why.
#[derive(Debug, thiserror::Error)]
pub enum ArenaNote {
    /// Pages of a smaller size were taken.
    #[error("hugepages of {wanted} not used: {why}")]
    NoHugepages {
        /// Size wanted.
        wanted: PageSize,
        /// What kept it from being used.
        why: ArenaError,
    },
    /// Transparent hugepages back only a part of the arena, or nothing.
    #[error(
        "transparent hugepages back {huge_bytes} of {bytes} bytes: see /sys/kernel/mm/transparent_hugepage/enabled"
    )]
    NotAllTransparent {
        /// Bytes in transparent hugepages.
        huge_bytes: u64,
        /// Bytes of the arena.
        bytes: u64,
    },
    /// The memory is not locked and can be swapped out.
    #[error("memory not locked: {why}")]
    NotLocked {
        /// What kept it from being locked.
        why: ArenaError,
    },
}

/// Private memory of one engine: populated, zeroed at start, absent from core dumps and from forked children.
///
/// Shared by reference between threads; the bytes are reached through [`DmaSlice`] only. Unmapped on drop.
///
/// ```
/// use keyfence_mempool::{Arena, ArenaConfig, PageSize, Policy};
/// let arena = Arena::map(&ArenaConfig {
///     page_size: PageSize::Base4KiB,
///     transparent: false,
///     hugepages: Policy::Off,
///     ..ArenaConfig::new(10_000)
/// })?;
/// assert_eq!(arena.bytes(), 12_288);
/// assert_eq!(arena.page_kind().to_string(), "4KiB");
/// # Ok::<(), keyfence_mempool::ArenaError>(())
/// ```
#[derive(Debug)]
pub struct Arena {
    mapping: Mapping,
    kind: PageKind,
    locked_bytes: usize,
    notes: Vec<ArenaNote>,
}

/// Memory that two parties share: two engines of one process for now. Populated and zeroed; absent from core dumps
/// and from forked children.
#[derive(Debug)]
pub struct Segment {
    mapping: Mapping,
}

impl PageSize {
    /// Bytes of one page.
    pub fn bytes(self) -> usize {
        match self {
            PageSize::Huge1GiB => 1 << 30,
            PageSize::Huge2MiB => 2 << 20,
            PageSize::Base4KiB => BASE_PAGE_BYTES,
        }
    }
}

impl ArenaConfig {
    /// An arena of `bytes` bytes: hugepages of 2 MiB, locked, both if they can be had; from any node.
    pub fn new(bytes: usize) -> ArenaConfig {
        ArenaConfig {
            bytes,
            page_size: PageSize::Huge2MiB,
            transparent: true,
            hugepages: Policy::Prefer,
            lock: Policy::Prefer,
            numa_node: None,
            sysfs: PathBuf::from("/sys"),
        }
    }
}

impl Arena {
    /// Maps, populates and locks. A shortage is an error with the numbers, never a signal at a later touch; after an
    /// error nothing stays mapped. Blocks while the kernel zeroes the pages; called at start.
    pub fn map(config: &ArenaConfig) -> Result<Arena, ArenaError> {
        if config.bytes == 0 {
            return Err(ArenaError::ZeroBytes);
        }
        if let Some(node) = config.numa_node {
            Nodes::new(&config.sysfs).check(node)?;
        }
        let mut notes = Vec::new();
        let (mapping, kind) = pages::map_pages(config, &mut notes)?;
        let locked_bytes = pages::lock(&mapping, kind, config.lock, &mut notes)?;
        Ok(Arena {
            mapping,
            kind,
            locked_bytes,
            notes,
        })
    }

    /// Bytes mapped: what was asked for, rounded up to whole pages.
    pub fn bytes(&self) -> usize {
        self.mapping.bytes()
    }

    /// The pages that the arena got.
    pub fn page_kind(&self) -> PageKind {
        self.kind
    }

    /// Bytes that cannot be swapped out.
    pub fn locked_bytes(&self) -> usize {
        self.locked_bytes
    }

    /// Address of the first byte, for registration and for a fork handler.
    pub fn address(&self) -> u64 {
        self.mapping.start().as_ptr() as u64
    }

    /// What was preferred and not got, in the order it was tried.
    pub fn notes(&self) -> &[ArenaNote] {
        &self.notes
    }

    /// The bytes `offset..offset + len`.
    #[inline]
    pub fn dma(&self, offset: usize, len: usize) -> Result<DmaSlice<'_>, RangeError> {
        DmaSlice::of(&self.mapping).slice(offset, len)
    }
}

impl Segment {
    /// Maps and populates `bytes` bytes, rounded up to whole plain pages. Called by the control thread.
    pub fn map(bytes: usize) -> Result<Segment, ArenaError> {
        if bytes == 0 {
            return Err(ArenaError::ZeroBytes);
        }
        let bytes = pages::round_up(bytes, PageSize::Base4KiB, BASE_PAGE_BYTES)?;
        pages::check_available(bytes)?;
        let mapping = Mapping::shared_pages(bytes).map_err(|source| ArenaError::Map {
            bytes,
            page: PageSize::Base4KiB,
            source,
        })?;
        pages::keep_to_this_process(&mapping)?;
        mapping
            .populate()
            .map_err(|source| ArenaError::Populate { bytes, source })?;
        Ok(Segment { mapping })
    }

    /// Bytes mapped.
    pub fn bytes(&self) -> usize {
        self.mapping.bytes()
    }

    /// Address of the first byte, for a fork handler.
    pub fn address(&self) -> u64 {
        self.mapping.start().as_ptr() as u64
    }

    /// The bytes `offset..offset + len`.
    #[inline]
    pub fn dma(&self, offset: usize, len: usize) -> Result<DmaSlice<'_>, RangeError> {
        DmaSlice::of(&self.mapping).slice(offset, len)
    }

    #[cfg_attr(loom, allow(dead_code))]
    pub(crate) fn mapping(&self) -> &Mapping {
        &self.mapping
    }
}

impl fmt::Display for PageSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PageSize::Huge1GiB => "1GiB",
            PageSize::Huge2MiB => "2MiB",
            PageSize::Base4KiB => "4KiB",
        })
    }
}

impl fmt::Display for PageKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PageKind::Huge1GiB => "1GiB",
            PageKind::Huge2MiB => "2MiB",
            PageKind::Transparent => "transparent",
            PageKind::Base4KiB => "4KiB",
        })
    }
}
