//! What keeps a buffer: handle, holds, retention, and the order in which they end.

use std::thread;

use keyfence_mempool::Pool;
use keyfence_mempool::buf::BufIdError;
use keyfence_mempool::cache::ReclaimError;
use keyfence_mempool::sync::Arc;

use crate::{BUF_BYTES, arena, assert_at_rest, config, pool_and_cache};

#[test]
fn b21_a_buffer_with_open_holds_outlives_its_handle() {
    let (pool, mut cache) = pool_and_cache(1);
    let buf = cache.get(0).expect("free");
    let id = buf.id();
    cache.hold(id).expect("in use");
    cache.hold(id).expect("in use");
    cache.put(buf).expect("own");
    assert_eq!(cache.handle_is_out(id), Ok(false));
    cache.release(id).expect("held");
    assert!(cache.get(0).is_none(), "one hold is open");
    assert_eq!(pool.books().held, 1);
    cache.release(id).expect("held");
    assert_eq!(pool.in_use(), 0);
    assert_at_rest(&pool, &mut cache);
}

#[test]
fn r1_a_retained_buffer_goes_home_by_reclaim_only() {
    let (pool, mut cache) = pool_and_cache(1);
    let buf = cache.get(0).expect("free");
    let id = buf.id();
    cache.hold(id).expect("in use");
    assert_eq!(
        cache.reclaim(id),
        Err(ReclaimError::HandleOut { index: id.index })
    );
    cache.retain(id).expect("in use");
    cache.retain(id).expect("again is harmless");
    thread::scope(|scope| scope.spawn(move || drop(buf)).join().expect("no panic"));
    assert_eq!(
        cache.reclaim(id),
        Err(ReclaimError::Held {
            index: id.index,
            holds: 1
        })
    );
    cache.release(id).expect("held");
    assert!(
        cache.get(1).is_none(),
        "retained: neither drop nor release brings it home"
    );
    assert_eq!(pool.books().retained, 1);
    assert_eq!(cache.reclaim(id), Ok(()));
    assert!(matches!(
        cache.reclaim(id),
        Err(ReclaimError::Id(BufIdError::Stale { .. }))
    ));
    assert_at_rest(&pool, &mut cache);
}

#[test]
fn reclaim_of_what_is_not_retained_is_refused() {
    let (pool, mut cache) = pool_and_cache(1);
    let buf = cache.get(0).expect("free");
    let id = buf.id();
    cache.hold(id).expect("in use");
    drop(buf);
    assert_eq!(
        cache.reclaim(id),
        Err(ReclaimError::Held {
            index: id.index,
            holds: 1
        })
    );
    cache.release(id).expect("held");
    assert_at_rest(&pool, &mut cache);
}

#[test]
fn b49_pool_arena_caches_and_buffers_drop_in_every_order() {
    // Each permutation of arena, pool, cache, buffer; after every step what is left still works.
    for order in permutations(4) {
        let arena = arena(64 << 10);
        let mapped = Arc::downgrade(&arena);
        let (mut pool, mut cache, mut buf) = (None, None, None);
        pool.replace(Pool::new(Arc::clone(&arena), 0..16 << 10, config(8)).expect("fits"));
        cache.replace(pool.as_ref().expect("there").cache(0).expect("free"));
        buf.replace(cache.as_mut().expect("there").get(5).expect("free"));
        let mut kept = Some(arena);
        for step in &order {
            match step {
                0 => drop(kept.take()),
                1 => drop(pool.take()),
                2 => drop(cache.take()),
                _ => drop(buf.take()),
            }
            if let Some(buf) = &buf {
                buf.write_at(0, &[1; BUF_BYTES]).expect("fits");
                assert_eq!((buf.owner(), buf.dma().first_not(1)), (5, None));
            }
            if let Some(cache) = &mut cache {
                let other = cache.get(6).expect("free");
                cache.put(other).expect("own");
            }
            if let Some(pool) = &pool {
                assert_eq!(pool.in_use(), usize::from(buf.is_some()));
            }
        }
        assert!(
            mapped.upgrade().is_none(),
            "{order:?}: something still keeps the arena"
        );
    }
}

fn permutations(count: usize) -> Vec<Vec<usize>> {
    if count == 0 {
        return vec![Vec::new()];
    }
    let shorter = permutations(count - 1);
    shorter
        .iter()
        .flat_map(|order| {
            (0..count).map(move |at| {
                let mut longer = order.clone();
                longer.insert(at, count - 1);
                longer
            })
        })
        .collect()
}
