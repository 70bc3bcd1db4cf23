//! What does a buffer cost, and a copy that a peer may race with?

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use keyfence_mempool::sync::Arc;
use keyfence_mempool::{Arena, ArenaConfig, Buf, Pool, PoolCache, PoolConfig};

const BATCH: usize = 32;

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
fn get_and_put(c: &mut Criterion) {
    let mut group = c.benchmark_group("pool");
    group.throughput(Throughput::Elements(1));
    group.bench_function("vec_lifo/single", |b| {
        let mut lifo: Vec<u32> = (0..1024).collect();
        b.iter(|| {
            let index = black_box(&mut lifo).pop().expect("one is there");
            lifo.push(black_box(index));
        });
    });
    for (name, canary) in [("get_put/single", false), ("get_put_canary/single", true)] {
        group.bench_function(name, |b| {
            let mut cache = cache(canary);
            b.iter(|| {
                let buf = cache.get(1).expect("one is free");
                cache.put(black_box(buf)).expect("own");
            });
        });
    }
    group.throughput(Throughput::Elements(BATCH as u64));
    group.bench_function("vec_lifo/bulk_32", |b| {
        let mut lifo: Vec<u32> = (0..1024).collect();
        let mut taken = Vec::with_capacity(BATCH);
        b.iter(|| {
            taken.extend(black_box(&mut lifo).drain(1024 - BATCH..));
            lifo.append(black_box(&mut taken));
        });
    });
    group.bench_function("get_put/bulk_32", |b| {
        let mut cache = cache(false);
        let mut taken: Vec<Buf> = Vec::with_capacity(BATCH);
        b.iter(|| {
            cache.get_bulk(1, BATCH, &mut taken);
            cache.put_bulk(black_box(&mut taken)).expect("own");
        });
    });
    group.finish();
}

/// Copies by atomics against `memcpy` of private bytes.
fn copies(c: &mut Criterion) {
    let mut group = c.benchmark_group("dma");
    let arena = Arena::map(&ArenaConfig::new(1 << 20)).expect("memory");
    for bytes in [64, 4096, 64 << 10] {
        let (source, sink) = (vec![1u8; bytes], &mut vec![0u8; bytes]);
        let here = arena.dma(0, bytes).expect("in bounds");
        let there = arena.dma(512 << 10, bytes).expect("in bounds");
        let askew = arena.dma((512 << 10) + 3, bytes).expect("in bounds");
        group.throughput(Throughput::Bytes(bytes as u64));
        group.bench_function(format!("memcpy/{bytes}"), |b| {
            b.iter(|| black_box(&mut *sink).copy_from_slice(black_box(&source)));
        });
        group.bench_function(format!("write_from/{bytes}"), |b| {
            b.iter(|| black_box(here).write_from(black_box(&source)));
        });
        group.bench_function(format!("read_into/{bytes}"), |b| {
            b.iter(|| black_box(here).read_into(black_box(sink)));
        });
        group.bench_function(format!("copy_to/{bytes}"), |b| {
            b.iter(|| black_box(here).copy_to(black_box(there)));
        });
        group.bench_function(format!("copy_to_askew/{bytes}"), |b| {
            b.iter(|| black_box(here).copy_to(black_box(askew)));
        });
    }
    group.finish();
}

fn quick() -> Criterion {
    Criterion::default()
        .warm_up_time(Duration::from_millis(100))
        .measurement_time(Duration::from_millis(400))
}

criterion_group! { name = pool; config = quick(); targets = get_and_put, copies }
criterion_main!(pool);
