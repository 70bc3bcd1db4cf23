//! What a simulated network and its adapters are made of.

use super::breach::Breach;
use crate::device::Caps;
use crate::error::{ControlError, within};
use crate::work::MAX_SGE;

/// Bytes of private data that a connection request carries: what the real rdma_cm can.
pub const MAX_PRIVATE_BYTES: usize = 56;

/// A range of times in nanoseconds, both ends included, from which each use draws evenly.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Nanos {
    /// The least.
    pub min: u64,
    /// The most; at least `min`, at most [`Nanos::MOST`].
    pub max: u64,
}

/// Sizes, capabilities and times of all adapters of one [`World`](super::World).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SimConfig {
    /// Lcores of an adapter, 1 to 256.
    pub max_lcores: u16,
    /// Queue pairs of an adapter at a time, 1 to 65,536.
    pub max_qps: u32,
    /// Windows of an adapter at a time, 1 to 2^22.
    pub max_windows: u32,
    /// Regions of an adapter at a time, 1 to 2^22.
    pub max_regions: u32,
    /// Work requests of a queue pair, 1 to 65,536.
    pub max_send_depth: u32,
    /// Receives of a queue pair, 1 to 65,536.
    pub max_receive_depth: u32,
    /// Entries of a request, 1 to [`MAX_SGE`].
    pub max_sge: usize,
    /// Bytes of an inline request, 0 to 4,096.
    pub max_inline_bytes: usize,
    /// Whether inline requests are said to be quicker: [`Caps::inline_pays_bytes`] is `max_inline_bytes` then, else 0.
    pub inline_pays: bool,
    /// Bytes of one operation, 1 to 2^31.
    pub max_operation_bytes: u64,
    /// Bytes of a packet, 8 to 65,536: the key is checked for each anew, and each lands on its own.
    pub packet_bytes: u32,
    /// [`Caps::windows`].
    pub windows: bool,
    /// [`Caps::window_bounds`]. Without it only the bounds of the window's region stand.
    pub window_bounds: bool,
    /// [`Caps::window_scope`]. Without it a window's key works through each queue pair of its protection domain.
    pub window_scope: bool,
    /// [`Caps::atomics`]. Without it each atomic is refused as malformed.
    pub atomics: bool,
    /// [`Caps::window_atomics`]. Without it a window's key refuses atomics.
    pub window_atomics: bool,
    /// [`Caps::chain_stops`]. Without it an unsignaled bind or invalidation that fails may pass in silence, and the queue goes on.
    pub chain_stops: bool,
    /// [`Caps::dealloc_fences`]. Without it what was accepted by a window's key may land after its deallocation on a healthy queue pair.
    pub dealloc_fences: bool,
    /// [`Caps::invalidate_checks`]. Without it an invalidation ends whatever window has the key's index, and one of a free window counts
    /// as [`World::misuses`](super::World::misuses).
    pub invalidate_checks: bool,
    /// From one packet, bind or invalidation of a send queue to the next.
    pub issue_ns: Nanos,
    /// Of a packet, or an answer, to the other side. Order is kept.
    pub travel_ns: Nanos,
    /// From the acceptance of a packet to its landing in memory, and from the arrival of a read's data to its landing in the sink.
    pub landing_ns: Nanos,
    /// From the end of a request to its completion being there to be polled.
    pub completion_ns: Nanos,
    /// Of a step of connecting.
    pub connect_ns: Nanos,
    /// Until a request that nobody acknowledges ends as `RetryExceeded`.
    pub retry_ns: Nanos,
    /// From a queue pair's error to its flush.
    pub flush_ns: Nanos,
    /// Accesses that are kept for [`World::take_accesses`](super::World::take_accesses); 0 records none.
    pub accesses_max: usize,
    /// Whether the bytes that move are part of [`World::hash`](super::World::hash). Not where they depend on the run: frames that carry
    /// addresses of this process.
    pub hash_bytes: bool,
    /// A rule of the contract that is broken on purpose, so that whoever checks can be checked. Off by default.
    pub breach: Option<Breach>,
}

impl Nanos {
    /// The longest time: some 18 minutes.
    pub const MOST: u64 = 1 << 40;

    /// From `min` to `max`.
    #[must_use]
    pub const fn new(min: u64, max: u64) -> Self {
        Self { min, max }
    }
}

impl Default for SimConfig {
    /// An adapter that can everything, with times of a fast network.
    fn default() -> Self {
        Self {
            max_lcores: 16,
            max_qps: 1024,
            max_windows: 65_536,
            max_regions: 4096,
            max_send_depth: 8192,
            max_receive_depth: 8192,
            max_sge: MAX_SGE,
            max_inline_bytes: 256,
            inline_pays: true,
            max_operation_bytes: 1 << 30,
            packet_bytes: 1024,
            windows: true,
            window_bounds: true,
            window_scope: true,
            atomics: true,
            window_atomics: true,
            chain_stops: true,
            dealloc_fences: true,
            invalidate_checks: true,
            issue_ns: Nanos::new(20, 400),
            travel_ns: Nanos::new(300, 3_000),
            landing_ns: Nanos::new(0, 5_000),
            completion_ns: Nanos::new(50, 2_000),
            connect_ns: Nanos::new(1_000, 50_000),
            retry_ns: Nanos::new(100_000, 500_000),
            flush_ns: Nanos::new(0, 20_000),
            accesses_max: 0,
            hash_bytes: true,
            breach: None,
        }
    }
}

impl SimConfig {
    /// The kinds of adapters that there are (FACTS of the field: Soft-RoCE, adapters that check, adapters without windows), by name, so that a
    /// program can be run on each.
    #[must_use]
    pub fn kinds() -> [(&'static str, Self); 4] {
        let all = Self::default;
        [
            ("complete", all()),
            (
                "soft-roce",
                Self {
                    window_bounds: false,
                    chain_stops: false,
                    invalidate_checks: false,
                    ..all()
                },
            ),
            (
                "checking",
                Self {
                    window_atomics: false,
                    chain_stops: false,
                    dealloc_fences: false,
                    ..all()
                },
            ),
            (
                "windowless",
                Self {
                    windows: false,
                    inline_pays: false,
                    ..all()
                },
            ),
        ]
    }

    /// Checks every value against its range; the error names the first that is outside.
    pub(super) fn check(&self) -> Result<(), ControlError> {
        within("max_lcores", self.max_lcores, 1, 256)?;
        within("max_qps", self.max_qps, 1, 1 << 16)?;
        within("max_windows", self.max_windows, 1, 1 << 22)?;
        within("max_regions", self.max_regions, 1, 1 << 22)?;
        within("max_send_depth", self.max_send_depth, 1, 1 << 16)?;
        within("max_receive_depth", self.max_receive_depth, 1, 1 << 16)?;
        within("max_sge", self.max_sge as u64, 1, MAX_SGE as u64)?;
        within("max_inline_bytes", self.max_inline_bytes as u64, 0, 4096)?;
        within("max_operation_bytes", self.max_operation_bytes, 1, 1 << 31)?;
        within("packet_bytes", self.packet_bytes, 8, 1 << 16)?;
        for (what, range) in [
            ("issue_ns", self.issue_ns),
            ("travel_ns", self.travel_ns),
            ("landing_ns", self.landing_ns),
            ("completion_ns", self.completion_ns),
            ("connect_ns", self.connect_ns),
            ("retry_ns", self.retry_ns),
            ("flush_ns", self.flush_ns),
        ] {
            range.check(what)?;
        }
        Ok(())
    }

    pub(super) fn caps(&self) -> Caps {
        Caps {
            name: "sim",
            max_lcores: self.max_lcores,
            max_qps: self.max_qps,
            max_windows: self.max_windows,
            max_regions: self.max_regions,
            max_send_depth: self.max_send_depth,
            max_receive_depth: self.max_receive_depth,
            max_sge: self.max_sge,
            max_inline_bytes: self.max_inline_bytes,
            inline_pays_bytes: match self.inline_pays {
                true => self.max_inline_bytes,
                false => 0,
            },
            max_operation_bytes: self.max_operation_bytes,
            max_private_bytes: MAX_PRIVATE_BYTES,
            windows: self.windows,
            window_bounds: self.window_bounds,
            window_scope: self.window_scope,
            atomics: self.atomics,
            window_atomics: self.window_atomics,
            tag_bits: 8,
            chain_stops: self.chain_stops,
            dealloc_fences: self.dealloc_fences,
            invalidate_checks: self.invalidate_checks,
        }
    }
}

impl Nanos {
    pub(super) fn check(self, what: &'static str) -> Result<(), ControlError> {
        within(what, self.max, 0, Self::MOST)?;
        within(what, self.min, 0, self.max)
    }
}
