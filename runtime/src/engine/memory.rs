//! The arena of an engine, carved by the budget that `check` prints.

use core::ops::Range;

use keyfence_mempool::pool::PoolError;
use keyfence_mempool::{Arena, ArenaError, Layout, LayoutError, Pool, PoolConfig, sync::Arc};
use keyfence_pmd::{Access, Control, ControlError};

use crate::config::{KeyMode, MemoryConfig};
use crate::engine::domain::{CLOSED, Home};
use crate::engine::state::{LcoreMemory, LcorePool, OP_SLOT_BYTES};
use crate::limits::{Limits, budget, receive_buffers};
use crate::wire::MAX_CONTROL_BYTES;

/// Why the memory of an engine could not be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// The arena could not be mapped.
    #[error(transparent)]
    Arena(#[from] ArenaError),
    /// The consumers take more than the arena has.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// A pool could not be made.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The device refused the arena.
    #[error("registering the arena: {0}")]
    Register(#[from] ControlError),
}

/// Buffers that an lcore's cache keeps for itself at most.
const CACHED_BUFFERS: usize = 64;

/// The memory of one engine.
pub(super) struct EngineMemory {
    pub arena: Arc<Arena>,
    pools: Vec<(Pool, Range<u64>)>,
    receives: (Pool, Range<u64>),
    frames: Range<usize>,
    op_slots: Range<usize>,
}

impl EngineMemory {
    /// Maps the arena and makes the pools. `lanes` are the engine's.
    pub fn new(
        memory: &MemoryConfig,
        limits: &Limits,
        lcores: usize,
        lanes: u32,
    ) -> Result<Self, MemoryError> {
        let arena = Arc::new(Arena::map(&memory.arena_config())?);
        let mut layout = Layout::new(arena.bytes());
        let mut consumers = budget(limits, memory, lanes).into_iter().peekable();
        let mut take = |bytes: u64, name: &'static str| {
            let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
            layout.take(name, bytes, 64)
        };
        let mut pools = Vec::new();
        for pool in &memory.pools {
            let (name, bytes) = consumers.next().expect("the budget starts with the pools");
            let range = take(bytes, name)?;
            pools.push(make_pool(
                &arena,
                range,
                pool.buffer_bytes as usize,
                pool.count as usize,
                (lcores, CACHED_BUFFERS),
            )?);
        }
        let mut named = |wanted: &'static str| -> Result<Range<usize>, LayoutError> {
            match consumers.next_if(|(name, _)| *name == wanted) {
                Some((name, bytes)) => take(bytes, name),
                // A consumer without bytes is left out.
                None => Ok(0..0),
            }
        };
        let range = named("receives")?;
        let receive_bytes = memory.receive_buffer_bytes as usize;
        let receives = receive_buffers(limits, lanes) as usize;
        // The budget has what all lanes and contexts may hold, and nothing for what an lcore keeps at hand meanwhile: another one's lane would wait for that for ever.
        let cached = if lcores > 1 { 0 } else { CACHED_BUFFERS };
        let receives = make_pool(&arena, range, receive_bytes, receives, (lcores, cached))?;
        let frames = named("frames")?;
        let op_slots = named("operations")?;
        Ok(Self {
            arena,
            pools,
            receives,
            frames,
            op_slots,
        })
    }

    /// The protection domain of all queue pairs; in key mode `region` those of the first session of each peer. What a start needs of the adapter is had at the start.
    pub fn homes(
        &self,
        device: &impl Control,
        key_mode: KeyMode,
        peers: usize,
    ) -> Result<(Option<Home>, Vec<Home>), ControlError> {
        if key_mode == KeyMode::Window {
            return Ok((Some(self.register(device, true)?), Vec::new()));
        }
        let homes = (0..peers).map(|_| self.register(device, false));
        Ok((None, homes.collect::<Result<_, _>>()?))
    }

    /// Registers the arena in a protection domain of its own, for windows or not. Its own key opens nothing.
    fn register(&self, device: &impl Control, bind: bool) -> Result<Home, ControlError> {
        let access = Access { bind, ..CLOSED };
        let pd = device.alloc_pd()?;
        let arena = device.register(pd, &self.arena, 0..self.arena.bytes(), access)?;
        Ok(Home { pd, arena })
    }

    /// The part of one lcore. `lanes` are one lcore's, `limits` its share.
    pub fn of_lcore(
        &self,
        lcore: usize,
        lanes: usize,
        limits: &Limits,
    ) -> Result<LcoreMemory, MemoryError> {
        let pool = |(pool, addresses): &(Pool, Range<u64>)| -> Result<LcorePool, PoolError> {
            Ok(LcorePool {
                cache: pool.cache(lcore)?,
                addresses: addresses.clone(),
                buffer_bytes: pool.config().buf_bytes,
            })
        };
        let frames = lanes * limits.send_depth as usize * MAX_CONTROL_BYTES;
        let op_slots = limits.ops_in_flight as usize * OP_SLOT_BYTES;
        let mine = LcoreMemory {
            arena: Arc::clone(&self.arena),
            op_slots: self.op_slots.start + lcore * op_slots,
            frames: self.frames.start + lcore * frames,
            pools: self.pools.iter().map(pool).collect::<Result<_, _>>()?,
            receives: pool(&self.receives)?,
        };
        assert!(
            mine.op_slots + op_slots <= self.op_slots.end
                && mine.frames + frames <= self.frames.end,
            "the budget covers each lcore's share"
        );
        Ok(mine)
    }

    /// The application pools, for books and checks.
    pub fn pools(&self) -> impl Iterator<Item = &Pool> {
        self.pools.iter().map(|(pool, _)| pool)
    }

    /// The pool of receives.
    pub fn receives(&self) -> &Pool {
        &self.receives.0
    }
}

fn make_pool(
    arena: &Arc<Arena>,
    range: Range<usize>,
    buf_bytes: usize,
    count: usize,
    (lcores, cached): (usize, usize),
) -> Result<(Pool, Range<u64>), MemoryError> {
    let addresses = arena.address() + range.start as u64..arena.address() + range.end as u64;
    let config = PoolConfig {
        buf_bytes,
        count,
        caches: lcores,
        cache_size: cached.min(count),
        canary: true,
    };
    Ok((Pool::new(Arc::clone(arena), range, config)?, addresses))
}

#[cfg(test)]
mod tests {
    use keyfence_mempool::Policy;

    use super::*;
    use crate::engine::state::RECEIVE_OWNER;

    /// R5: what one lcore has given back is there for the other, to the last buffer.
    #[test]
    fn r5_no_lcore_keeps_receives_from_another() {
        let limits = Limits {
            contexts: 2,
            send_depth: 4,
            receive_depth: 4,
            ops_in_flight: 4,
            ..Limits::default()
        };
        let memory = MemoryConfig {
            arena_bytes: 64 << 20,
            hugepages: Policy::Off,
            transparent: false,
            lock: Policy::Off,
            ..MemoryConfig::default()
        };
        let engine = EngineMemory::new(&memory, &limits, 2, 2).expect("it fits");
        let share = limits.share_of_lcore(2);
        let [mut one, mut other] =
            [0, 1].map(|at| engine.of_lcore(at, 1, &share).expect("it fits"));
        let all = receive_buffers(&limits, 2) as usize;
        let take_all = |memory: &mut LcoreMemory| {
            let bufs = core::iter::from_fn(|| memory.receives.cache.get(RECEIVE_OWNER));
            bufs.collect::<Vec<_>>()
        };
        for buf in take_all(&mut one) {
            one.receives.cache.put(buf).expect("it is of this pool");
        }
        assert_eq!(take_all(&mut other).len(), all);
    }
}
