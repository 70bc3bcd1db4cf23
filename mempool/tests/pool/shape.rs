//! Legal and illegal shapes, caches, and two threads.

use std::thread;

use keyfence_mempool::pool::{CanaryReport, PoolError};
use keyfence_mempool::{Pool, PoolConfig};

use crate::{BUF_BYTES, arena, assert_at_rest, config, pool, pool_and_cache};

#[test]
fn a_buffer_is_where_it_says() {
    let (pool, mut cache) = pool_and_cache(3);
    let bufs: Vec<_> = (0..3)
        .map(|owner| cache.get(owner).expect("free"))
        .collect();
    for (owner, buf) in bufs.iter().enumerate() {
        assert_eq!(
            (buf.owner(), buf.capacity(), buf.offset() % 64),
            (owner as u32, BUF_BYTES, 0)
        );
        assert_eq!(buf.address() % 64, 0);
        assert_eq!(pool.id_at(buf.offset()), Ok(buf.id()));
        buf.write_at(1, &[owner as u8; 99]).expect("fits");
    }
    assert!(cache.get(9).is_none());
    assert_eq!(pool.stats().empty_gets, 1);
    for (owner, buf) in bufs.iter().enumerate() {
        let mut found = [9; 99];
        buf.read_at(1, &mut found).expect("fits");
        assert_eq!(found, [owner as u8; 99]);
        assert!(buf.write_at(1, &[0; 100]).is_err());
        assert!(buf.read_at(101, &mut []).is_err());
        assert!(buf.write_at(usize::MAX, &[0]).is_err());
    }
    assert_eq!(
        pool.check_canaries(),
        CanaryReport {
            checked: 3,
            broken: 0,
            first: None
        }
    );
    drop(bufs);
    assert_at_rest(&pool, &mut cache);
}

#[test]
fn bulk_calls_stop_at_what_there_is() {
    let (pool, mut cache) = pool_and_cache(10);
    let mut bufs = Vec::with_capacity(32);
    assert_eq!(cache.get_bulk(3, 6, &mut bufs), 6);
    assert_eq!(cache.get_bulk(3, 6, &mut bufs), 4);
    assert_eq!(cache.get_bulk(3, 6, &mut bufs), 0);
    cache.put_bulk(&mut bufs).expect("own");
    assert!(bufs.is_empty());
    let mut narrow = Vec::with_capacity(2);
    let room = narrow.capacity();
    assert_eq!(cache.get_bulk(3, 6, &mut narrow), room.min(6));
    assert_eq!(narrow.capacity(), room, "nothing was allocated");
    cache.put_bulk(&mut narrow).expect("own");
    assert_at_rest(&pool, &mut cache);
}

#[test]
fn b45_every_illegal_shape_is_named_with_a_legal_value() {
    let good = config(4);
    for (bad, name) in [
        (
            PoolConfig {
                buf_bytes: 0,
                ..good
            },
            "buf_bytes",
        ),
        (
            PoolConfig {
                buf_bytes: usize::MAX,
                ..good
            },
            "buf_bytes",
        ),
        (PoolConfig { count: 0, ..good }, "count"),
        (
            PoolConfig {
                count: usize::MAX,
                ..good
            },
            "count",
        ),
        (PoolConfig { caches: 0, ..good }, "caches"),
        (
            PoolConfig {
                caches: usize::MAX,
                ..good
            },
            "caches",
        ),
        (
            PoolConfig {
                cache_size: 5,
                ..good
            },
            "cache_size",
        ),
    ] {
        let error = Pool::new(arena(4096), 0..4096, bad).expect_err(name);
        assert!(
            matches!(error, PoolError::OutOfLimits { name: found, .. } if found == name),
            "{error}"
        );
        assert!(
            error.to_string().contains(&format!("{name} must be ")),
            "{error}"
        );
    }
}

#[test]
fn b45_a_range_that_cannot_hold_the_pool_is_named_with_the_numbers() {
    let good = config(4);
    let huge = PoolConfig {
        buf_bytes: isize::MAX as usize - 63,
        count: 1 << 20,
        ..good
    };
    assert!(matches!(
        Pool::new(arena(4096), 0..4096, huge),
        Err(PoolError::TooLarge { .. })
    ));
    let short = Pool::new(arena(4096), 0..767, good).expect_err("one byte short");
    assert_eq!(
        short,
        PoolError::Short {
            count: 4,
            wanted: 768,
            have: 767
        }
    );
    assert!(matches!(
        Pool::new(arena(4096), 32..4096, good),
        Err(PoolError::Misaligned { start: 32 })
    ));
    assert!(matches!(
        Pool::new(arena(4096), 0..4097, good),
        Err(PoolError::OutsideArena(_))
    ));
    #[allow(clippy::reversed_empty_ranges)] // Bad input on purpose.
    let reversed = Pool::new(arena(4096), 4096..0, good);
    assert!(matches!(reversed, Err(PoolError::Short { have: 0, .. })));
    let odd = PoolConfig {
        buf_bytes: 43,
        canary: false,
        ..good
    };
    assert_eq!(odd.arena_bytes(), Ok(4 * 64));
}

#[test]
fn each_cache_has_one_owner_at_a_time() {
    let (pool, cache) = pool_and_cache(4);
    assert_eq!(
        pool.cache(0).err(),
        Some(PoolError::CacheTaken { index: 0 })
    );
    assert_eq!(
        pool.cache(2).err(),
        Some(PoolError::NoSuchCache {
            index: 2,
            caches: 2
        })
    );
    drop(cache);
    let mut cache = pool.cache(0).expect("free again");
    assert_at_rest(&pool, &mut cache);
}

#[test]
fn what_a_cache_kept_is_free_for_others_when_it_is_dropped() {
    let (pool, mut first) = pool_and_cache(4);
    let mut second = pool.cache(1).expect("free");
    let bufs: Vec<_> = (0..4).filter_map(|_| first.get(0)).collect();
    bufs.into_iter()
        .for_each(|buf| first.put(buf).expect("own"));
    assert!(first.cached() > 0 && pool.free() == 4);
    drop(first);
    assert_at_rest(&pool, &mut second);
    assert_eq!(pool.free(), 4);
}

#[test]
fn a_pool_without_caching_goes_through_the_depot() {
    let config = PoolConfig {
        cache_size: 0,
        canary: false,
        ..config(3)
    };
    let pool = Pool::new(arena(4096), 0..4096, config).expect("fits");
    let (mut first, mut second) = (pool.cache(0).expect("free"), pool.cache(1).expect("free"));
    let buf = first.get(0).expect("free");
    second.put(buf).expect("same pool");
    assert_eq!((first.cached(), second.cached()), (0, 0));
    assert_at_rest(&pool, &mut first);
    assert_at_rest(&pool, &mut second);
}

#[test]
fn r7_pool_books_balance_under_two_threads() {
    let pool = pool(64);
    thread::scope(|scope| {
        let (give, take) = std::sync::mpsc::channel();
        let mut cache = pool.cache(0).expect("free");
        scope.spawn(move || {
            let mut sent = 0;
            while sent < 20_000 {
                match cache.get(sent) {
                    Some(buf) => {
                        buf.write_at(0, &sent.to_ne_bytes()).expect("fits");
                        give.send((sent, buf)).expect("the other thread lives");
                        sent += 1;
                    }
                    None => thread::yield_now(),
                }
            }
        });
        let mut cache = pool.cache(1).expect("free");
        scope.spawn(move || {
            for (number, buf) in take {
                let mut found = [0; 4];
                buf.read_at(0, &mut found).expect("fits");
                assert_eq!((u32::from_ne_bytes(found), buf.owner()), (number, number));
                match number % 3 {
                    0 => drop(buf),
                    1 => cache.put(buf).expect("own"),
                    _ => {
                        let id = buf.id();
                        cache.hold(id).expect("in use");
                        drop(buf);
                        cache.release(id).expect("held");
                    }
                }
            }
        });
    });
    let mut cache = pool.cache(0).expect("free again");
    assert_eq!((pool.free(), pool.quarantined()), (64, 0));
    assert_at_rest(&pool, &mut cache);
}
