//! The bytes of an arena, summed by consumer before anything is mapped.

use super::{FRAME_BYTES, Limits};
use crate::config::MemoryConfig;

/// What each consumer's bytes are rounded up to, so that each starts at a page.
pub const BUDGET_ALIGN_BYTES: u64 = 4096;

const POOL_NAMES: [&str; MemoryConfig::MAX_POOLS] = [
    "buffer pool 1",
    "buffer pool 2",
    "buffer pool 3",
    "buffer pool 4",
];

/// What an engine with `lanes` lanes takes from its arena: consumer and bytes, in the order of the arena; those that
/// take nothing are left out.
///
/// The engine carves its arena by this list, and `check` prints it, so the two can't differ. A sum beyond 2^64 saturates, which
/// no arena satisfies. Called at start.
///
/// ```
/// use keyfence::{config::MemoryConfig, limits::{budget, budget_bytes, Limits}};
/// let consumers = budget(&Limits::default(), &MemoryConfig::default(), 2);
/// assert!(consumers.iter().any(|(name, _)| *name == "posted receives"));
/// assert!(budget_bytes(&consumers) <= MemoryConfig::default().arena_bytes);
/// ```
#[must_use]
pub fn budget(limits: &Limits, memory: &MemoryConfig, lanes: u32) -> Vec<(&'static str, u64)> {
    let lanes = u64::from(lanes);
    let receive_bytes = memory.receive_buffer_bytes;
    let pools = memory.pools.iter().zip(POOL_NAMES);
    let pools = pools.map(|(pool, name)| (name, pool.arena_bytes()));
    let receives = lanes.saturating_mul(u64::from(limits.receive_depth));
    let messages = u64::from(limits.contexts) * u64::from(limits.context.messages);
    let frames = lanes.saturating_mul(u64::from(limits.send_depth));
    pools
        .chain([
            ("posted receives", receives.saturating_mul(receive_bytes)),
            ("received messages", messages.saturating_mul(receive_bytes)),
            ("frames", frames.saturating_mul(FRAME_BYTES)),
        ])
        .map(|(name, bytes)| {
            (
                name,
                bytes
                    .checked_next_multiple_of(BUDGET_ALIGN_BYTES)
                    .unwrap_or(u64::MAX),
            )
        })
        .filter(|(_, bytes)| *bytes > 0)
        .collect()
}

/// The sum of a budget.
#[must_use]
pub fn budget_bytes(consumers: &[(&'static str, u64)]) -> u64 {
    consumers
        .iter()
        .fold(0, |sum: u64, (_, bytes)| sum.saturating_add(*bytes))
}
