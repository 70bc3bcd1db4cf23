//! What does a buffer cost, and a copy that a peer may race with?

use std::hint::black_box;
use std::io;

use keyfence_benches::{Suite, repeated};
use keyfence_mempool::sync::Arc;
use keyfence_mempool::{Arena, ArenaConfig, Buf, Pool, PoolCache, PoolConfig};

const BATCH: usize = 32;

fn main() -> io::Result<()> {
    let mut suite = Suite::new("pool", std::env::args().skip(1));
    get_and_put(&mut suite);
    for bytes in [64, 4096, 64 << 10] {
        copies(&mut suite, bytes);
    }
    suite.run(&mut io::stdout())
}

fn cache(canary: bool) -> PoolCache {
    let config = PoolConfig {
        buf_bytes: 2048,
        count: 1024,
        caches: 1,
        cache_size: 512,
        canary,
    };
    let bytes = config.arena_bytes().expect("legal");
    let arena = Arc::new(Arena::map(&ArenaConfig::new(bytes)).expect("memory"));
    let pool = Pool::new(arena, 0..bytes, config).expect("fits");
    pool.cache(0).expect("free")
}

/// Get and put against a LIFO of plain indices, which checks and promises nothing.
fn get_and_put(suite: &mut Suite) {
    let mut lifo: Vec<u32> = (0..1024).collect();
    let single = repeated(move || {
        let index = black_box(&mut lifo).pop().expect("one is there");
        lifo.push(black_box(index));
    });
    suite.case("vec_lifo/single", 1, single);
    for (name, canary) in [("get_put/single", false), ("get_put_canary/single", true)] {
        let mut cache = cache(canary);
        let single = repeated(move || {
            let buf = cache.get(1).expect("one is free");
            cache.put(black_box(buf)).expect("own");
        });
        suite.case(name, 1, single);
    }
    let mut lifo: Vec<u32> = (0..1024).collect();
    let mut taken = Vec::with_capacity(BATCH);
    let bulk = repeated(move || {
        taken.extend(black_box(&mut lifo).drain(1024 - BATCH..));
        lifo.append(black_box(&mut taken));
    });
    suite.case("vec_lifo/bulk_32", BATCH as u64, bulk);
    let mut cache = cache(false);
    let mut taken: Vec<Buf> = Vec::with_capacity(BATCH);
    let bulk = repeated(move || {
        cache.get_bulk(1, BATCH, &mut taken);
        cache.put_bulk(black_box(&mut taken)).expect("own");
    });
    suite.case("get_put/bulk_32", BATCH as u64, bulk);
}

/// Copies by atomics against `memcpy` of private bytes.
fn copies(suite: &mut Suite, bytes: usize) {
    let arena = Arc::new(Arena::map(&ArenaConfig::new(1 << 20)).expect("memory"));
    let (source, mut sink) = (vec![1u8; bytes], vec![0u8; bytes]);
    let memcpy = repeated(move || black_box(&mut sink).copy_from_slice(black_box(&source)));
    suite.case(&format!("memcpy/{bytes}"), 1, memcpy);
    let (here, source) = (Arc::clone(&arena), vec![1u8; bytes]);
    let write = repeated(move || {
        let sink = here.dma(0, bytes).expect("in bounds");
        let written = sink.write_from(black_box(&source));
        written.expect("both have this length");
    });
    suite.case(&format!("write_from/{bytes}"), 1, write);
    let (here, mut sink) = (Arc::clone(&arena), vec![0u8; bytes]);
    let read = repeated(move || {
        let source = here.dma(0, bytes).expect("in bounds");
        let read = source.read_into(black_box(&mut sink));
        read.expect("both have this length");
    });
    suite.case(&format!("read_into/{bytes}"), 1, read);
    for (name, offset) in [("copy_to", 512 << 10), ("copy_to_askew", (512 << 10) + 3)] {
        let arena = Arc::clone(&arena);
        let copy = repeated(move || {
            let sink = arena.dma(offset, bytes).expect("in bounds");
            let copied = arena
                .dma(0, bytes)
                .expect("in bounds")
                .copy_to(black_box(sink));
            copied.expect("both have this length");
        });
        suite.case(&format!("{name}/{bytes}"), 1, copy);
    }
}
