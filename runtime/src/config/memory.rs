//! `[memory]`: the arena of each engine and how it is divided.

use keyfence_mempool::{ArenaConfig, PageSize, Policy};

use super::reader::{Item, Key, Kind, read_tables};
use super::report::{Path, Report};
use super::units::show_bytes;
use crate::limits::FRAME_BYTES;

/// The arena of each engine of the file, and its pools.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemoryConfig {
    /// `bytes`: of the arena of one engine.
    pub arena_bytes: u64,
    /// `page_size`: the pages wanted.
    pub page_size: PageSize,
    /// `transparent`: whether transparent hugepages serve where explicit ones are short or off.
    pub transparent: bool,
    /// `hugepages`: whether a start without hugepages is an error.
    pub hugepages: Policy,
    /// `lock`: whether a start without locked memory is an error.
    pub lock: Policy,
    /// `numa`: the node that the arena must lie on. Left out: wherever the kernel puts it.
    pub numa_node: Option<u32>,
    /// `zero_on_release`: whether the buffers of a reclaimed context are zeroed before anyone gets them again, `limits.zero_budget` bytes a step.
    /// A buffer that its own context gives back is not.
    pub zero_on_release: bool,
    /// `pools`: 1 to 4 pools, of ascending buffer sizes.
    pub pools: Vec<PoolConfig>,
    /// `receive_buffer`: bytes of one receive, so the longest message with its header. A multiple of 64.
    pub receive_buffer_bytes: u64,
}

/// One pool of buffers of a fixed size.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PoolConfig {
    /// `buffer`: bytes of a buffer, a multiple of 64.
    pub buffer_bytes: u64,
    /// `count`: how many.
    pub count: u32,
}

impl PoolConfig {
    /// What the pool takes from its arena, canaries included; more than any arena where it exceeds the address space.
    #[must_use]
    pub fn arena_bytes(&self) -> u64 {
        let shape = keyfence_mempool::PoolConfig {
            buf_bytes: usize::try_from(self.buffer_bytes).unwrap_or(usize::MAX),
            count: self.count as usize,
            caches: 1,
            cache_size: 0,
            canary: true,
        };
        shape.arena_bytes().map_or(u64::MAX, |bytes| bytes as u64)
    }
}

impl MemoryConfig {
    /// The most pools of an arena.
    pub const MAX_POOLS: usize = 4;

    /// The arena to map for one engine. Its errors name what is short; `Require` makes them errors of the start.
    #[must_use]
    pub fn arena_config(&self) -> ArenaConfig {
        // A size beyond the address space is beyond every memory, which mapping then says.
        let bytes = usize::try_from(self.arena_bytes).unwrap_or(usize::MAX);
        ArenaConfig {
            page_size: self.page_size,
            transparent: self.transparent,
            hugepages: self.hugepages,
            lock: self.lock,
            numa_node: self.numa_node,
            ..ArenaConfig::new(bytes)
        }
    }

    /// The bytes of the largest buffer, and so the longest that one allocation can be.
    #[must_use]
    pub fn largest_buffer_bytes(&self) -> u64 {
        self.pools
            .iter()
            .map(|pool| pool.buffer_bytes)
            .max()
            .unwrap_or(0)
    }

    /// Buffers of all pools.
    #[must_use]
    pub fn buffers(&self) -> u64 {
        self.pools.iter().map(|pool| u64::from(pool.count)).sum()
    }
}

impl Default for MemoryConfig {
    fn default() -> Self {
        Self {
            arena_bytes: 128 << 20,
            page_size: PageSize::Huge2MiB,
            transparent: true,
            hugepages: Policy::Prefer,
            lock: Policy::Prefer,
            numa_node: None,
            zero_on_release: false,
            pools: vec![
                PoolConfig {
                    buffer_bytes: 2 << 10,
                    count: 4096,
                },
                PoolConfig {
                    buffer_bytes: 64 << 10,
                    count: 256,
                },
                PoolConfig {
                    buffer_bytes: 1 << 20,
                    count: 32,
                },
            ],
            receive_buffer_bytes: 4 << 10,
        }
    }
}

pub(super) const KEYS: &[Key<MemoryConfig>] = &[
    Key::optional(
        "bytes",
        Kind::Bytes(4 << 10, 16 << 40, 1, |m| &mut m.arena_bytes),
    ),
    Key::optional(
        "page_size",
        Kind::Word(&["1GiB", "2MiB", "4KiB"], |m, index| {
            m.page_size = PAGE_SIZES[index]
        }),
    ),
    Key::optional("transparent", Kind::Flag(|m| &mut m.transparent)),
    Key::optional(
        "hugepages",
        Kind::Word(POLICY_WORDS, |m, index| m.hugepages = POLICIES[index]),
    ),
    Key::optional(
        "lock",
        Kind::Word(POLICY_WORDS, |m, index| m.lock = POLICIES[index]),
    ),
    Key::optional(
        "numa",
        Kind::Count(0, 1023, |m| m.numa_node.get_or_insert(0)),
    ),
    Key::optional("zero_on_release", Kind::Flag(|m| &mut m.zero_on_release)),
    Key::optional("pools", Kind::Nested(read_pools)),
    Key::optional(
        "receive_buffer",
        Kind::Bytes(FRAME_BYTES, 1 << 20, 64, |m| &mut m.receive_buffer_bytes),
    ),
];

pub(super) const POOL_KEYS: &[Key<PoolConfig>] = &[
    Key::required(
        "buffer",
        Kind::Bytes(64, 1 << 30, 64, |p| &mut p.buffer_bytes),
    ),
    Key::required("count", Kind::Count(1, 1 << 24, |p| &mut p.count)),
];

const PAGE_SIZES: [PageSize; 3] = [PageSize::Huge1GiB, PageSize::Huge2MiB, PageSize::Base4KiB];
const POLICY_WORDS: &[&str] = &["require", "prefer", "off"];
const POLICIES: [Policy; 3] = [Policy::Require, Policy::Prefer, Policy::Off];

fn read_pools(memory: &mut MemoryConfig, item: &Item<'_>, path: &Path, report: &mut Report<'_>) {
    memory.pools = read_tables(report, path, item, POOL_KEYS);
    if item.get_ref().is_array() {
        check_pools(&memory.pools, path, report);
    }
}

/// What pools must be together.
pub(super) fn check_pools(pools: &[PoolConfig], path: &Path, report: &mut Report<'_>) {
    let ascending = pools.is_sorted_by(|a, b| a.buffer_bytes < b.buffer_bytes);
    let allowed =
        "1 to 4 pools of ascending buffer sizes, such as [{ buffer = \"2KiB\", count = 4096 }]";
    if !(1..=MemoryConfig::MAX_POOLS).contains(&pools.len()) {
        report.refuse(
            path,
            format!("is a list of {} pools", pools.len()),
            allowed.into(),
        );
    } else if !ascending && report.is_sound(path) {
        let sizes: Vec<String> = pools
            .iter()
            .map(|pool| show_bytes(pool.buffer_bytes))
            .collect();
        report.refuse(
            path,
            format!("has buffers of {}", sizes.join(", ")),
            allowed.into(),
        );
    }
}
