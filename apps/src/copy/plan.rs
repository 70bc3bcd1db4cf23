//! How a file is cut into blocks, and what engines that carries takes.

use keyfence::EngineBuilder;
use keyfence::config::{IdlePolicy, MemoryConfig, PoolConfig, Timeouts, show_bytes};
use keyfence::limits::{ContextLimits, Limits, budget, budget_bytes};

/// The name of the engine that reads the file.
pub const SOURCE: &str = "source";

/// The name of the engine that writes the copy.
pub const SINK: &str = "sink";

/// The most contexts on each side.
pub const MAX_CONTEXTS: u16 = 64;

/// The least bytes of a window.
pub const MIN_WINDOW_BYTES: u64 = 16 << 10;

/// The most bytes of a window, and the most of all windows together.
pub const MAX_WINDOW_BYTES: u64 = 64 << 20;

/// The most bytes of all windows together.
const MAX_WINDOWS_BYTES: u64 = 128 << 20;

/// A block is not larger than this, unless the window would then have more than [`MAX_SLOTS`].
const BLOCK_BYTES: u64 = 64 << 10;

/// Blocks of a window at least and at most.
const MIN_SLOTS: u64 = 4;
const MAX_SLOTS: u64 = 64;

/// Lanes begin and end at whole 2 MiB pages.
const PAGE_BYTES: u64 = 2 << 20;

/// What is copied, in which pieces, by how many.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Bytes of the file.
    pub bytes: u64,
    /// Bytes of each block but the last.
    pub block_bytes: usize,
    /// Blocks that a context has in transfer at most.
    pub slots: usize,
    /// Contexts on each side: a sender and a receiver are a stream.
    pub streams: usize,
    /// Bytes that a context has in transfer at most.
    pub window_bytes: u64,
}

impl Plan {
    /// The plan for a file of `bytes`, or why there is none.
    pub fn new(bytes: u64, contexts: u16, window_bytes: u64) -> Result<Self, String> {
        let windows_bytes = u64::from(contexts) * window_bytes;
        if windows_bytes > MAX_WINDOWS_BYTES {
            return Err(format!(
                "{contexts} contexts with windows of {} are {}; at most {} together, lower --contexts or --window",
                show_bytes(window_bytes),
                show_bytes(windows_bytes),
                show_bytes(MAX_WINDOWS_BYTES),
            ));
        }
        let block_bytes =
            (window_bytes / MIN_SLOTS).min(BLOCK_BYTES.max(window_bytes / MAX_SLOTS)) / 64 * 64;
        if bytes.div_ceil(block_bytes) > u64::from(u32::MAX) {
            return Err(format!(
                "a file of {} is more than 2^32 blocks of {}; raise --window",
                show_bytes(bytes),
                show_bytes(block_bytes),
            ));
        }
        Ok(Self {
            bytes,
            block_bytes: block_bytes as usize,
            slots: (window_bytes / block_bytes).min(MAX_SLOTS) as usize,
            streams: contexts.into(),
            window_bytes,
        })
    }

    /// How many blocks there are.
    pub fn blocks(&self) -> u32 {
        self.bytes.div_ceil(self.block_bytes as u64) as u32
    }

    /// Where a block begins in the file.
    pub fn offset(&self, block: u32) -> u64 {
        u64::from(block) * self.block_bytes as u64
    }

    /// Bytes of a block.
    pub fn len(&self, block: u32) -> usize {
        let left = self.bytes - self.offset(block);
        left.min(self.block_bytes as u64) as usize
    }

    /// The two engines, an lcore each, source first, not yet peers. `cpus` has at least one.
    pub fn engines(&self, cpus: &[u32]) -> [EngineBuilder; 2] {
        let first = cpus[0];
        let second = cpus.get(1).copied().unwrap_or(first);
        let limits = self.limits();
        let memory = self.memory(&limits);
        let engine = |name: &str, cpu: u32| {
            EngineBuilder::new(name, 1)
                .cpus(&[cpu])
                // The file's threads and the control side need these CPUs too.
                .idle(IdlePolicy::Backoff {
                    max_sleep_ns: 50_000,
                })
                .memory(memory.clone())
                .limits(limits.clone())
                .timeouts(timeouts())
        };
        [engine(SOURCE, first), engine(SINK, second)]
    }

    /// Receives that an engine has posted at rest.
    pub fn posted_receives(&self) -> usize {
        let limits = self.limits();
        (limits.receive_depth * limits.lanes) as usize
    }

    /// A killed context keeps its slot, buffers and keys until it is reclaimed, while its successor works: so room for three each.
    fn contexts(&self) -> u32 {
        self.streams as u32 * 3 + 2
    }

    fn limits(&self) -> Limits {
        let (contexts, slots) = (self.contexts(), self.slots as u32);
        let window = (self.slots * self.block_bytes) as u64;
        let context = ContextLimits {
            grants: slots * 2,
            imports: slots * 2,
            exposed_bytes: window * 2,
            buffers: slots,
            ops_in_flight: slots * 4,
            bytes_in_flight: window + u64::from(slots) * 64,
            messages: 32,
            offences: 0,
        };
        Limits {
            contexts,
            grants: contexts * context.grants,
            imports: contexts * context.imports,
            buffers: contexts * slots,
            ops_in_flight: contexts * context.ops_in_flight,
            bytes_in_flight: u64::from(contexts) * context.bytes_in_flight,
            windows: contexts * context.grants,
            // Less than the default, since a reclaim waits for it: enough for a few slices of each stream.
            lane_bytes_in_flight: 1 << 20,
            context,
            ..Limits::default()
        }
    }

    fn memory(&self, limits: &Limits) -> MemoryConfig {
        let memory = MemoryConfig {
            pools: vec![PoolConfig {
                buffer_bytes: self.block_bytes as u64,
                count: limits.buffers,
            }],
            receive_buffer_bytes: 1 << 10,
            ..MemoryConfig::default()
        };
        let needed = budget_bytes(&budget(limits, &memory, limits.lanes));
        MemoryConfig {
            arena_bytes: needed.next_multiple_of(PAGE_BYTES),
            ..memory
        }
    }
}

/// Patience for a machine whose CPUs others use too; a reclaim stays below the shutdown's bound.
fn timeouts() -> Timeouts {
    Timeouts {
        fence_timeout_ns: 900_000_000,
        invalidate_timeout_ns: 300_000_000,
        drain_timeout_ns: 100_000_000,
        control_timeout_ns: 200_000_000,
        ..Timeouts::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_cover_the_file_and_fit_the_window() {
        let files = [0, 1, 4095, 4096, 1 << 20, (1 << 20) + 1, 10_000_001];
        let windows = [
            MIN_WINDOW_BYTES,
            100_000,
            1 << 20,
            16 << 20,
            MAX_WINDOW_BYTES,
        ];
        for (bytes, window) in files.into_iter().flat_map(|b| windows.map(|w| (b, w))) {
            let plan = Plan::new(bytes, 2, window).expect("legal");
            let sum: u64 = (0..plan.blocks()).map(|block| plan.len(block) as u64).sum();
            assert_eq!(sum, bytes, "window {window}");
            assert!((plan.slots * plan.block_bytes) as u64 <= window);
            assert!((4..=64).contains(&plan.slots), "{plan:?}");
        }
    }

    #[test]
    fn r6_a_reclaim_ends_before_the_shutdown_does() {
        let plan = Plan::new(1, 2, MAX_WINDOW_BYTES).expect("legal");
        let bound_ns = timeouts().reclaim_bound_ns(plan.limits().keys());
        assert!(bound_ns < timeouts().shutdown_timeout_ns, "{bound_ns}");
    }

    #[test]
    fn too_much_is_refused_with_the_numbers() {
        let error = Plan::new(1, MAX_CONTEXTS, MAX_WINDOW_BYTES).unwrap_err();
        assert!(
            error.contains("64 contexts with windows of 64MiB are 4GiB; at most 128MiB"),
            "{error}"
        );
        let error = Plan::new(1 << 60, 1, MIN_WINDOW_BYTES).unwrap_err();
        assert!(error.contains("more than 2^32 blocks of 4KiB"), "{error}");
    }
}
