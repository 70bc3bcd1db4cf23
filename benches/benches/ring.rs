//! What does a message cost, within one thread and between two cores?
//!
//! Between cores the number means something only in relation to the probe, which runs beside it.

use std::hint::{self, black_box};
use std::thread;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use keyfence_benches::probe;
use keyfence_mempool::Segment;
use keyfence_mempool::ring::mapped::MappedWords;
use keyfence_mempool::ring::spsc;
use keyfence_mempool::ring::words::{Counter, SlotReader, SlotWriter};
use keyfence_mempool::sync::Arc;

const BATCH: usize = 32;
const SLOTS: usize = 64;

/// Both halves on one core: instructions, without the cache line's way.
fn one_core(c: &mut Criterion) {
    let mut group = c.benchmark_group("ring_one_core");
    group.throughput(Throughput::Elements(1));
    group.bench_function("spsc/single", |b| {
        let (mut producer, mut consumer) = spsc::ring::<[u64; 8]>(SLOTS);
        b.iter(|| {
            producer.push(black_box([1; 8])).expect("there is room");
            consumer.pop()
        });
    });
    group.bench_function("slots/single", |b| {
        let (mut writer, mut reader) = slots();
        b.iter(|| {
            writer
                .try_write(reader.consumed(), 1, black_box(&[1; 7]))
                .expect("there is room");
            let slot = reader.peek().expect("just written");
            reader.advance();
            slot
        });
    });
    group.throughput(Throughput::Elements(BATCH as u64));
    group.bench_function("spsc/bulk_32", |b| {
        let (mut producer, mut consumer) = spsc::ring::<[u64; 8]>(SLOTS);
        let (values, mut sink) = ([[1; 8]; BATCH], [[0; 8]; BATCH]);
        b.iter(|| {
            producer.push_slice(black_box(&values));
            consumer.pop_into(black_box(&mut sink))
        });
    });
    group.finish();
}

/// A message there and a message back between two threads; the probe beside it.
fn two_cores(c: &mut Criterion) {
    let mut group = c.benchmark_group("ring_two_cores");
    group.bench_function("probe", |b| {
        b.iter_custom(|rounds| {
            Duration::from_secs_f64(probe::cache_line_round_trip_ns() * 1e-9 * rounds as f64)
        });
    });
    group.bench_function("spsc/round_trip", |b| b.iter_custom(spsc_round_trips));
    group.bench_function("slots/round_trip", |b| b.iter_custom(slot_round_trips));
    group.bench_function("slots/stream", |b| b.iter_custom(slot_stream));
    group.finish();
}

fn spsc_round_trips(rounds: u64) -> Duration {
    let (mut there, mut arrival) = spsc::ring::<u64>(SLOTS);
    let (mut back, mut answer) = spsc::ring::<u64>(SLOTS);
    beside(
        move || {
            for _ in 0..rounds {
                let value = until(|| arrival.pop());
                back.push(value).expect("one message at a time");
            }
        },
        move || {
            for number in 0..rounds {
                there.push(number).expect("one message at a time");
                assert_eq!(until(|| answer.pop()), number);
            }
        },
    )
}

fn slot_round_trips(rounds: u64) -> Duration {
    let ((mut there, mut arrival), (mut back, mut answer)) = (slots(), slots());
    beside(
        move || {
            for _ in 0..rounds {
                let slot = take(&mut arrival);
                // Whoever answers has consumed what it answers.
                back.try_write(back.written(), slot[0], &[0; 7])
                    .expect("one message at a time");
            }
        },
        move || {
            for number in 0..rounds {
                there
                    .try_write(number, number, &[0; 7])
                    .expect("one message at a time");
                assert_eq!(take(&mut answer)[0], number);
            }
        },
    )
}

fn slot_stream(count: u64) -> Duration {
    let segment = Arc::new(Segment::map((SLOTS + 1) * 64).expect("memory"));
    let words = |bytes| MappedWords::in_segment(&segment, bytes).expect("whole lines");
    let line = SLOTS * 64..(SLOTS + 1) * 64;
    let mut writer = SlotWriter::new(words(0..SLOTS * 64)).expect("whole slots");
    let mut reader = SlotReader::new(words(0..SLOTS * 64)).expect("whole slots");
    let credits = Counter::new(words(line.clone())).expect("a line");
    let published = Counter::new(words(line)).expect("a line");
    beside(
        move || {
            let mut consumed = 0;
            for number in 0..count {
                while writer.room(consumed) == 0 {
                    consumed = until(|| Some(credits.read()).filter(|now| *now != consumed));
                }
                writer
                    .try_write(consumed, number, &[number; 7])
                    .expect("there is room");
            }
        },
        move || {
            for number in 0..count {
                reader.prefetch(6);
                black_box(take(&mut reader));
                if number % 16 == 15 || number + 1 == count {
                    published.publish(reader.consumed());
                }
            }
        },
    )
}

fn slots() -> (SlotWriter<MappedWords>, SlotReader<MappedWords>) {
    let segment = Arc::new(Segment::map(SLOTS * 64).expect("memory"));
    let words = || MappedWords::in_segment(&segment, 0..SLOTS * 64).expect("whole lines");
    (
        SlotWriter::new(words()).expect("whole slots"),
        SlotReader::new(words()).expect("whole slots"),
    )
}

fn take(reader: &mut SlotReader<MappedWords>) -> [u64; 8] {
    let slot = until(|| reader.peek());
    reader.advance();
    slot
}

/// Spins, and yields now and then so that one core is enough for both threads.
fn until<T>(mut poll: impl FnMut() -> Option<T>) -> T {
    loop {
        for _ in 0..4096 {
            if let Some(value) = poll() {
                return value;
            }
            hint::spin_loop();
        }
        thread::yield_now();
    }
}

/// Time of `timed` while `other` runs on another core.
fn beside(other: impl FnOnce() + Send, timed: impl FnOnce() + Send) -> Duration {
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    let pin = |core: Option<&core_affinity::CoreId>| {
        core.map(|core| core_affinity::set_for_current(*core))
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            pin(cores.get(1));
            other();
        });
        let timer = scope.spawn(|| {
            pin(cores.first());
            let start = Instant::now();
            timed();
            start.elapsed()
        });
        timer.join().expect("the timed side does not panic")
    })
}

fn quick() -> Criterion {
    Criterion::default()
        .warm_up_time(Duration::from_millis(100))
        .measurement_time(Duration::from_millis(400))
}

criterion_group! { name = ring; config = quick(); targets = one_core, two_cores }
criterion_main!(ring);
