//! `[memory]`: the arena of each engine and how it is divided.

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
    /// `zero_on_release`: whether a buffer is zeroed before its next owner gets it.
    pub zero_on_release: bool,
    /// `pools`: 1 to 4 pools, of ascending buffer sizes.
    pub pools: Vec<PoolConfig>,
    /// `receive_buffer`: bytes of one receive, so the longest message with its header. A multiple of 64.
    pub receive_buffer_bytes: u64,
}

/// One pool of buffers of a fixed size.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PoolConfig {
    /// `buffer`: bytes of a buffer.
    pub buffer_bytes: u64,
    /// `count`: how many.
    pub count: u32,
}

/// The page size wanted for an arena.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PageSize {
    /// `"1GiB"`
    Huge1GiB,
    /// `"2MiB"`
    Huge2MiB,
    /// `"4KiB"`
    Base4KiB,
}

/// How much a property of the memory matters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Policy {
    /// `"require"`: a start without it is an error.
    Require,
    /// `"prefer"`: falls back, and says so.
    Prefer,
    /// `"off"`: not tried.
    Off,
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
                    count: 512,
                },
            ],
            receive_buffer_bytes: 4 << 10,
        }
    }
}
