//! Random calls on a pool against a model that is too simple to be wrong.
#![cfg(not(loom))]

use keyfence_mempool::sync::Arc;
use keyfence_mempool::{
    Arena, ArenaConfig, Buf, BufId, PageSize, Policy, Pool, PoolCache, PoolConfig,
};
use proptest::prelude::*;

const COUNT: usize = 5;

#[derive(Debug, Clone, Copy)]
enum Step {
    Get { cache: usize },
    Put { cache: usize, which: usize },
    Drop { which: usize },
    Hold { which: usize },
    Release { cache: usize, which: usize },
    Retain { which: usize },
    Reclaim { cache: usize, which: usize },
}

/// What the model knows of every id that was ever given out.
#[derive(Debug)]
struct Entry {
    id: BufId,
    handle: Option<Buf>,
    holds: u32,
    retained: bool,
    home: bool,
}

impl Entry {
    /// Applies the rule: without a keeper a buffer goes home, once.
    fn settle(&mut self) {
        if self.handle.is_none() && self.holds == 0 && !self.retained {
            self.home = true;
        }
    }
}

fn step() -> impl Strategy<Value = Step> {
    let (cache, which) = (0..2usize, any::<usize>());
    prop_oneof![
        4 => cache.clone().prop_map(|cache| Step::Get { cache }),
        2 => (cache.clone(), which).prop_map(|(cache, which)| Step::Put { cache, which }),
        2 => which.prop_map(|which| Step::Drop { which }),
        2 => which.prop_map(|which| Step::Hold { which }),
        3 => (cache.clone(), which).prop_map(|(cache, which)| Step::Release { cache, which }),
        1 => which.prop_map(|which| Step::Retain { which }),
        2 => (cache, which).prop_map(|(cache, which)| Step::Reclaim { cache, which }),
    ]
}

fn new_pool(cache_size: usize) -> Pool {
    let config = ArenaConfig {
        page_size: PageSize::Base4KiB,
        transparent: false,
        hugepages: Policy::Off,
        lock: Policy::Off,
        ..ArenaConfig::new(4096)
    };
    let arena = Arc::new(Arena::map(&config).expect("maps"));
    let config = PoolConfig {
        buf_bytes: 8,
        count: COUNT,
        caches: 2,
        cache_size,
        canary: true,
    };
    Pool::new(arena, 0..4096, config).expect("fits")
}

/// One call, on both; the answers must agree.
fn apply(step: Step, caches: &mut [PoolCache; 2], entries: &mut Vec<Entry>) {
    if let Step::Get { cache } = step {
        let cached_elsewhere = caches[1 - cache].cached();
        let out = entries.iter().filter(|entry| !entry.home).count();
        match caches[cache].get(3) {
            Some(buf) => entries.push(Entry {
                id: buf.id(),
                handle: Some(buf),
                holds: 0,
                retained: false,
                home: false,
            }),
            None => assert_eq!(out + cached_elsewhere, COUNT, "there was a free buffer"),
        }
        return;
    }
    if entries.is_empty() {
        return;
    }
    let len = entries.len();
    let at = |which: usize| which % len;
    let entry = match step {
        Step::Get { .. } => unreachable!("handled above"),
        Step::Put { which, .. }
        | Step::Drop { which }
        | Step::Hold { which }
        | Step::Release { which, .. }
        | Step::Retain { which }
        | Step::Reclaim { which, .. } => &mut entries[at(which)],
    };
    let (id, live) = (entry.id, !entry.home);
    match step {
        Step::Get { .. } => {}
        Step::Put { cache, .. } => {
            if let Some(buf) = entry.handle.take() {
                caches[cache].put(buf).expect("own and intact");
            }
        }
        Step::Drop { .. } => drop(entry.handle.take()),
        Step::Hold { .. } => {
            assert_eq!(caches[0].hold(id).is_ok(), live);
            entry.holds += u32::from(live);
        }
        Step::Release { cache, .. } => {
            let held = live && entry.holds > 0;
            assert_eq!(caches[cache].release(id).is_ok(), held);
            entry.holds -= u32::from(held);
        }
        Step::Retain { .. } => {
            assert_eq!(caches[0].retain(id).is_ok(), live);
            entry.retained |= live;
        }
        Step::Reclaim { cache, .. } => {
            let alone = live && entry.retained && entry.holds == 0 && entry.handle.is_none();
            assert_eq!(caches[cache].reclaim(id).is_ok(), alone);
            entry.retained &= !alone;
        }
    }
    entry.settle();
}

fn compare(pool: &Pool, entries: &[Entry]) {
    let live = || entries.iter().filter(|entry| !entry.home);
    let books = pool.books();
    assert_eq!(books.in_use, live().count());
    assert_eq!(
        books.handles,
        live().filter(|entry| entry.handle.is_some()).count()
    );
    assert_eq!(books.held, live().filter(|entry| entry.holds > 0).count());
    assert_eq!(
        books.retained,
        live().filter(|entry| entry.retained).count()
    );
    assert_eq!((books.free, books.quarantined), (COUNT - books.in_use, 0));
}

proptest! {
    #[test]
    fn r7_pool_books_balance(steps in prop::collection::vec(step(), 1..120), cache_size in 0..=COUNT) {
        let pool = new_pool(cache_size);
        let mut caches = [pool.cache(0).expect("free"), pool.cache(1).expect("free")];
        let mut entries = Vec::new();
        for step in steps {
            apply(step, &mut caches, &mut entries);
            compare(&pool, &entries);
        }
        for entry in entries.iter_mut().filter(|entry| !entry.home) {
            drop(entry.handle.take());
            for _ in 0..entry.holds {
                caches[1].release(entry.id).expect("held");
            }
            if entry.retained {
                caches[1].reclaim(entry.id).expect("nothing else keeps it");
            }
        }
        prop_assert_eq!((pool.free(), pool.in_use()), (COUNT, 0));
        drop(caches);
        let mut cache = pool.cache(0).expect("free again");
        let all: Vec<_> = std::iter::from_fn(|| cache.get(0)).collect();
        prop_assert_eq!(all.len(), COUNT, "a buffer that the books call free cannot be had");
    }
}
