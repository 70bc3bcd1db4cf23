//! What a software adapter is made of.

use super::stream::{LINE_BYTES, SLICE_BYTES};
use crate::device::Caps;
use crate::error::{ControlError, within};
use crate::work::MAX_SGE;

/// Bytes of private data that a connection request carries: what the real rdma_cm can (FACTS: 56).
pub const MAX_PRIVATE_BYTES: usize = 56;

/// Sizes and deadlines of one software adapter. Everything is allocated when the adapter is made or a queue pair is created.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SoftConfig {
    /// Lcores, 1 to 256.
    pub max_lcores: u16,
    /// Queue pairs at a time, 1 to 65,536.
    pub max_qps: u32,
    /// Windows at a time, 1 to 2^22. 64 bytes each.
    pub max_windows: u32,
    /// Regions at a time, 1 to 2^22. 64 bytes each.
    pub max_regions: u32,
    /// Work requests of a queue pair, 1 to 65,536.
    pub max_send_depth: u32,
    /// Receives of a queue pair, 1 to 65,536.
    pub max_receive_depth: u32,
    /// Bytes of an inline request, 0 to 4,096.
    pub max_inline_bytes: usize,
    /// Bytes of one operation, 1 to 2^31.
    pub max_operation_bytes: u64,
    /// Slots of 64 bytes in each of the four streams of a queue pair: a power of two, 8 to 32,768.
    pub slots: u32,
    /// Bytes for payload in each of the four streams of a queue pair: a power of two, 64 KiB to 64 MiB.
    pub chunk_bytes: usize,
    /// How long `deregister`, `dealloc_window` and `destroy_qp` wait for a lcore to leave its poll step, in nanoseconds.
    pub quiesce_timeout_ns: u64,
}

impl Default for SoftConfig {
    fn default() -> Self {
        Self {
            max_lcores: 16,
            max_qps: 1024,
            max_windows: 65_536,
            max_regions: 4096,
            max_send_depth: 8192,
            max_receive_depth: 8192,
            max_inline_bytes: 256,
            max_operation_bytes: 1 << 30,
            slots: 256,
            chunk_bytes: 128 * 1024,
            quiesce_timeout_ns: 100_000_000,
        }
    }
}

impl SoftConfig {
    /// The smallest legal adapter: every ring wraps and fills within a few operations.
    pub const TEST_MIN: Self = Self {
        max_lcores: 2,
        max_qps: 8,
        max_windows: 16,
        max_regions: 8,
        max_send_depth: 64,
        max_receive_depth: 64,
        max_inline_bytes: 64,
        max_operation_bytes: 1 << 24,
        slots: 8,
        chunk_bytes: SLICE_BYTES,
        quiesce_timeout_ns: 100_000_000,
    };

    /// Checks every value against its range; the error names the first that is outside.
    pub(crate) fn check(&self) -> Result<(), ControlError> {
        within("max_lcores", self.max_lcores, 1, 256)?;
        within("max_qps", self.max_qps, 1, 1 << 16)?;
        within("max_windows", self.max_windows, 1, 1 << 22)?;
        within("max_regions", self.max_regions, 1, 1 << 22)?;
        within("max_send_depth", self.max_send_depth, 1, 1 << 16)?;
        within("max_receive_depth", self.max_receive_depth, 1, 1 << 16)?;
        within("max_inline_bytes", self.max_inline_bytes as u64, 0, 4096)?;
        within("max_operation_bytes", self.max_operation_bytes, 1, 1 << 31)?;
        within("slots", self.slots, 8, 1 << 15)?;
        power_of_two("slots", u64::from(self.slots))?;
        let chunk_bytes = self.chunk_bytes as u64;
        within("chunk_bytes", chunk_bytes, SLICE_BYTES as u64, 64 << 20)?;
        power_of_two("chunk_bytes", chunk_bytes)
    }

    pub(crate) fn caps(&self) -> Caps {
        Caps {
            name: "soft",
            max_lcores: self.max_lcores,
            max_qps: self.max_qps,
            max_windows: self.max_windows,
            max_regions: self.max_regions,
            max_send_depth: self.max_send_depth,
            max_receive_depth: self.max_receive_depth,
            max_sge: MAX_SGE,
            max_inline_bytes: self.max_inline_bytes,
            // A begun request is copied into the segment either way.
            inline_pays_bytes: 0,
            max_operation_bytes: self.max_operation_bytes,
            max_private_bytes: MAX_PRIVATE_BYTES,
            windows: true,
            window_bounds: true,
            window_scope: true,
            atomics: true,
            window_atomics: true,
            tag_bits: 8,
            chain_stops: true,
            dealloc_fences: true,
            invalidate_checks: true,
        }
    }
}

fn power_of_two(what: &'static str, value: u64) -> Result<(), ControlError> {
    if value.is_power_of_two() {
        return Ok(());
    }
    // The nearest legal values are what the caller needs to see.
    Err(ControlError::OutOfRange {
        what,
        value,
        min: value.next_power_of_two() / 2,
        max: value.next_power_of_two(),
    })
}

const _: () = assert!(SLICE_BYTES.is_multiple_of(LINE_BYTES));
