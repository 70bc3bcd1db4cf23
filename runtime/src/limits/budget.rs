//! The bytes of an arena, summed by consumer before anything is mapped.

use super::{FRAME_BYTES, Limits};
use crate::config::{MemoryConfig, PoolConfig};

/// What each consumer's bytes are rounded up to, so that each starts at a page.
pub const BUDGET_ALIGN_BYTES: u64 = 4096;

/// The most lcores of an engine.
const MAX_LCORES: u64 = 64;

/// Slots of an lcore's table of lanes for each lane that it has: one that a quarantined key keeps must not keep its peer away. Where lanes are repaired one more is kept by each
/// queue pair that broke, until the other end has said that nothing of it can be executed there any more, or in key mode `region` that it has forgotten the values.
#[must_use]
pub const fn lane_slots_a_lane(limits: &Limits) -> u64 {
    if limits.rebuilds > 0 { 4 } else { 2 }
}

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
/// assert!(consumers.iter().any(|(name, _)| *name == "receives"));
/// assert!(budget_bytes(&consumers) <= MemoryConfig::default().arena_bytes);
/// ```
#[must_use]
pub fn budget(limits: &Limits, memory: &MemoryConfig, lanes: u32) -> Vec<(&'static str, u64)> {
    let receives = PoolConfig {
        buffer_bytes: memory.receive_buffer_bytes,
        count: receive_buffers(limits, lanes),
    };
    let frames = lane_slots_a_lane(limits) * u64::from(lanes) * u64::from(limits.send_depth);
    let operations = u64::from(limits.ops_in_flight) + MAX_LCORES - 1;
    let pools = memory.pools.iter().zip(POOL_NAMES);
    let pools = pools.map(|(pool, name)| (name, pool.arena_bytes()));
    pools
        .chain([
            ("receives", receives.arena_bytes()),
            ("frames", frames.saturating_mul(FRAME_BYTES)),
            // Each lcore's share is rounded up.
            ("operations", operations.saturating_mul(FRAME_BYTES)),
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

/// Receive buffers of an engine with `lanes` lanes: those posted on each lane, and those that contexts may hold. Each lane's
/// peer has the credits of each context, so that one that holds its messages takes nobody else's receives.
#[must_use]
pub fn receive_buffers(limits: &Limits, lanes: u32) -> u32 {
    let messages = limits.contexts.saturating_mul(limits.context.messages);
    let a_lane = limits.receive_depth.saturating_add(messages);
    a_lane.saturating_mul(lanes).max(1)
}

/// The sum of a budget.
#[must_use]
pub fn budget_bytes(consumers: &[(&'static str, u64)]) -> u64 {
    consumers
        .iter()
        .fold(0, |sum: u64, (_, bytes)| sum.saturating_add(*bytes))
}
