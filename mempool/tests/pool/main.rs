//! Pools: whatever goes wrong is caught at the call, and the books balance.
#![cfg(not(loom))]

mod keepers;
mod misuse;
mod shape;

use keyfence_mempool::sync::Arc;
use keyfence_mempool::{Arena, ArenaConfig, PageSize, Policy, Pool, PoolCache, PoolConfig};

const BUF_BYTES: usize = 100;

fn arena(bytes: usize) -> Arc<Arena> {
    let config = ArenaConfig {
        page_size: PageSize::Base4KiB,
        transparent: false,
        hugepages: Policy::Off,
        lock: Policy::Off,
        ..ArenaConfig::new(bytes)
    };
    Arc::new(Arena::map(&config).expect("maps"))
}

fn config(count: usize) -> PoolConfig {
    PoolConfig {
        buf_bytes: BUF_BYTES,
        count,
        caches: 2,
        cache_size: count.min(4),
        canary: true,
    }
}

fn pool(count: usize) -> Pool {
    let config = config(count);
    let bytes = config.arena_bytes().expect("legal");
    Pool::new(arena(64 + bytes), 64..64 + bytes, config).expect("fits")
}

fn pool_and_cache(count: usize) -> (Pool, PoolCache) {
    let pool = pool(count);
    let cache = pool.cache(0).expect("free");
    (pool, cache)
}

/// Everything is free, and can really be had.
fn assert_at_rest(pool: &Pool, cache: &mut PoolCache) {
    let books = pool.books();
    assert_eq!(
        (books.in_use, books.handles, books.held, books.retained),
        (0, 0, 0, 0)
    );
    let bufs: Vec<_> = std::iter::from_fn(|| cache.get(0)).collect();
    assert_eq!(bufs.len(), books.free);
    let mut indices: Vec<_> = bufs.iter().map(|buf| buf.id().index).collect();
    indices.sort_unstable();
    indices.dedup();
    assert_eq!(indices.len(), books.free, "a buffer was given out twice");
    bufs.into_iter()
        .for_each(|buf| cache.put(buf).expect("own and intact"));
    assert_eq!(pool.books(), books);
}
