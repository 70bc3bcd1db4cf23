//! Misuse is caught at the call and changes no count.

use std::thread;

use keyfence_mempool::buf::{BufIdError, LookupError};
use keyfence_mempool::cache::{HoldError, PutError, ReclaimError, ReleaseError};
use keyfence_mempool::pool::CanaryReport;
use keyfence_mempool::{Buf, BufId, Pool};

use crate::{BUF_BYTES, assert_at_rest, pool_and_cache};

#[test]
fn b32_free_twice_is_caught_and_counts_stay() {
    let (pool, mut cache) = pool_and_cache(4);
    let buf = cache.get(1).expect("free");
    let id = buf.id();
    cache.hold(id).expect("in use");
    cache.release(id).expect("held");
    let books = pool.books();
    assert_eq!(
        cache.release(id),
        Err(ReleaseError::NotHeld { index: id.index })
    );
    assert_eq!(
        cache.reclaim(id),
        Err(ReclaimError::HandleOut { index: id.index })
    );
    assert_eq!(pool.books(), books);
    cache.put(buf).expect("own");
    let books = pool.books();
    let stale = BufIdError::Stale {
        id,
        generation: id.generation + 1,
    };
    assert_eq!(cache.release(id), Err(ReleaseError::Id(stale)));
    assert_eq!(cache.hold(id), Err(HoldError::Id(stale)));
    assert_eq!(cache.retain(id), Err(stale));
    assert_eq!(cache.reclaim(id), Err(ReclaimError::Id(stale)));
    assert_eq!(cache.handle_is_out(id), Err(stale));
    assert_eq!((pool.books(), pool.stats().stale_ids), (books, 5));
    // The same buffer given out anew is not reached by the old id.
    let again = cache.get(2).expect("free");
    assert_eq!(
        again.id(),
        BufId {
            generation: id.generation + 1,
            ..id
        }
    );
    assert_eq!(cache.hold(id), Err(HoldError::Id(stale)));
    drop(again);
    assert_at_rest(&pool, &mut cache);
}

#[test]
fn b32_a_guessed_id_of_a_free_buffer_is_refused() {
    let (pool, mut cache) = pool_and_cache(2);
    let guess = BufId {
        index: 1,
        generation: 0,
    };
    assert!(matches!(
        cache.hold(guess),
        Err(HoldError::Id(BufIdError::Stale { .. }))
    ));
    let outside = BufId {
        index: 2,
        generation: 0,
    };
    assert_eq!(
        cache.retain(outside),
        Err(BufIdError::NoSuchIndex { index: 2, count: 2 })
    );
    assert_eq!(pool.stats().stale_ids, 2);
    assert_at_rest(&pool, &mut cache);
}

#[test]
fn b32_a_foreign_buffer_is_given_back() {
    let (pool, mut cache) = pool_and_cache(2);
    let (other, mut other_cache) = pool_and_cache(2);
    let foreign = other_cache.get(0).expect("free");
    let (books, other_books) = (pool.books(), other.books());
    match cache.put(foreign).expect_err("of another pool") {
        PutError::Foreign(buf) => {
            assert_eq!((pool.books(), other.books()), (books, other_books));
            other_cache.put(buf).expect("its own pool");
        }
        other => panic!("{other}"),
    }
    assert_eq!(
        (pool.stats().foreign_puts, other.stats().foreign_puts),
        (1, 0)
    );
    assert_at_rest(&pool, &mut cache);
    assert_at_rest(&other, &mut other_cache);
}

#[test]
fn b32_an_address_one_off_names_no_buffer() {
    let (pool, mut cache) = pool_and_cache(3);
    let _first = cache.get(0).expect("free");
    let buf = cache.get(0).expect("free");
    let (id, start) = (buf.id(), buf.offset());
    for offset in [start + 1, start + BUF_BYTES] {
        assert_eq!(
            pool.id_at(offset),
            Err(LookupError::NotAStart {
                offset,
                nearest: start
            })
        );
    }
    assert!(matches!(
        pool.id_at(start - 1),
        Err(LookupError::NotAStart { .. })
    ));
    for offset in [0, 63, 64 + 3 * 192, usize::MAX] {
        assert_eq!(pool.id_at(offset), Err(LookupError::OutsidePool { offset }));
    }
    drop(buf);
    assert_eq!(
        pool.id_at(start),
        Err(LookupError::NotInUse { index: id.index })
    );
}

#[test]
fn b32_an_overrun_buffer_is_caught_and_never_reused() {
    let (pool, mut cache) = pool_and_cache(4);
    let buf = cache.get(0).expect("free");
    let index = buf.id().index;
    overrun(&pool, &buf);
    assert_eq!(
        pool.check_canaries(),
        CanaryReport {
            checked: 4,
            broken: 1,
            first: Some(index)
        }
    );
    assert!(matches!(cache.put(buf), Err(PutError::Overrun { index: found }) if found == index));
    assert_eq!(
        (
            pool.quarantined(),
            pool.in_use(),
            pool.free(),
            pool.stats().overruns
        ),
        (1, 0, 3, 1)
    );
    // By drop on another thread, by the last release, by reclaim.
    let (dropped, released, reclaimed) = (
        cache.get(0).expect("free"),
        cache.get(0).expect("free"),
        cache.get(0).expect("free"),
    );
    overrun(&pool, &dropped);
    thread::scope(|scope| scope.spawn(move || drop(dropped)).join().expect("no panic"));
    let id = released.id();
    overrun(&pool, &released);
    cache.hold(id).expect("in use");
    drop(released);
    cache.release(id).expect("held");
    let id = reclaimed.id();
    overrun(&pool, &reclaimed);
    cache.retain(id).expect("in use");
    drop(reclaimed);
    assert_eq!(
        cache.reclaim(id),
        Err(ReclaimError::Overrun { index: id.index })
    );
    assert_eq!(
        (pool.quarantined(), pool.free(), pool.stats().overruns),
        (4, 0, 4)
    );
    assert!(cache.get(0).is_none());
}

#[test]
fn r1_a_write_past_a_free_buffer_is_seen_before_it_is_given_out() {
    let (pool, mut cache) = pool_and_cache(2);
    let (first, second) = (cache.get(0).expect("free"), cache.get(0).expect("free"));
    overrun(&pool, &second);
    let intact = first.id().index;
    // The line is repaired for the put and broken again after it, as a late access would.
    let line = canary_line(&second);
    pool.arena().dma(line, 1).expect("in bounds").fill(0);
    let planted = pool_and_cache(2).0;
    let mut good = [0; 64];
    planted
        .arena()
        .dma(line, 64)
        .expect("in bounds")
        .read_into(&mut good)
        .expect("64 bytes");
    pool.arena()
        .dma(line, 64)
        .expect("in bounds")
        .write_from(&good)
        .expect("64 bytes");
    cache.put(first).expect("intact");
    cache.put(second).expect("repaired");
    pool.arena().dma(line, 1).expect("in bounds").fill(0x33);
    let got = cache.get(0).expect("one is fit");
    assert_eq!(got.id().index, intact);
    assert!(cache.get(0).is_none());
    assert_eq!((pool.quarantined(), pool.in_use()), (1, 1));
}

fn canary_line(buf: &Buf) -> usize {
    buf.offset() + BUF_BYTES.next_multiple_of(64)
}

/// What a device would do that ignores the bounds it was given.
fn overrun(pool: &Pool, buf: &Buf) {
    pool.arena()
        .dma(canary_line(buf), 1)
        .expect("in bounds")
        .fill(0x33);
}
