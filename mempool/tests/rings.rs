//! Rings: order, bounds, what a closed or lying other half does.
#![cfg(not(loom))]

use std::thread;

use keyfence_mempool::ring::doorbell::{Bell, Doorbells};
use keyfence_mempool::ring::mapped::{MapWordsError, MappedWords};
use keyfence_mempool::ring::spsc;
use keyfence_mempool::ring::words::{Counter, NotSlots, SlotReader, SlotWriter, Words, WriteError};
use keyfence_mempool::sync::{Arc, AtomicU64, Ordering};
use keyfence_mempool::{RangeError, Segment};

type VecWords = Arc<Vec<AtomicU64>>;

fn words(count: usize) -> VecWords {
    Arc::new((0..count).map(|_| AtomicU64::new(0)).collect())
}

fn slots(count: usize) -> (SlotWriter<VecWords>, SlotReader<VecWords>) {
    let words = words(count * 8);
    (
        SlotWriter::new(Arc::clone(&words)).expect("whole slots"),
        SlotReader::new(words).expect("whole slots"),
    )
}

#[test]
fn spsc_capacity_is_rounded_up() {
    for (wanted, got) in [(0, 1), (1, 1), (3, 4), (4, 4)] {
        let (producer, consumer) = spsc::ring::<u8>(wanted);
        assert_eq!((producer.capacity(), consumer.capacity()), (got, got));
    }
}

#[test]
fn spsc_bulk_calls_move_what_fits_in_order() {
    let (mut producer, mut consumer) = spsc::ring(4);
    let mut sink = [0; 8];
    let (mut next_in, mut next_out) = (0, 0);
    for (offer, take) in [(3, 1), (8, 2), (1, 8), (8, 8), (8, 3), (0, 0), (8, 8)] {
        let offered: Vec<u32> = (next_in..next_in + offer).collect();
        let room = producer.capacity() - producer.len();
        let pushed = producer.push_slice(&offered);
        assert_eq!(pushed, room.min(offered.len()));
        next_in += pushed as u32;
        let ready = consumer.len();
        let popped = consumer.pop_into(&mut sink[..take]);
        assert_eq!(popped, ready.min(take));
        for value in &sink[..popped] {
            assert_eq!(*value, next_out);
            next_out += 1;
        }
    }
    assert!(producer.is_empty() && consumer.is_empty());
}

#[test]
fn spsc_drops_what_was_not_popped_once() {
    let value = Arc::new(());
    let (mut producer, mut consumer) = spsc::ring(4);
    for _ in 0..3 {
        producer.push(Arc::clone(&value)).expect("there is room");
    }
    drop(consumer.pop());
    assert_eq!(Arc::strong_count(&value), 3);
    assert!(!producer.is_closed() && producer.take_back().is_none());
    drop(consumer);
    assert!(producer.is_closed());
    assert_eq!(Arc::strong_count(&value), 1);
    for _ in 0..2 {
        producer.push(Arc::clone(&value)).expect("there is room");
    }
    assert_eq!(Arc::strong_count(&value), 3);
    drop(producer.take_back());
    assert_eq!(Arc::strong_count(&value), 2);
    drop(producer);
    assert_eq!(Arc::strong_count(&value), 1);
}

#[test]
fn spsc_a_producer_that_says_it_is_gone_leaves_what_it_pushed() {
    let (mut producer, mut consumer) = spsc::ring(2);
    producer.push(1).expect("there is room");
    assert!(!consumer.is_closed());
    producer.close();
    assert!(consumer.is_closed());
    assert_eq!((consumer.pop(), consumer.pop()), (Some(1), None));
}

#[test]
fn spsc_carries_everything_between_two_threads() {
    const COUNT: u64 = 100_000;
    let (mut producer, mut consumer) = spsc::ring(8);
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut next = 0;
            while next < COUNT {
                let burst: Vec<u64> = (next..COUNT.min(next + 5)).collect();
                next += producer.push_slice(&burst) as u64;
                if next < COUNT && producer.push(next).is_ok() {
                    next += 1;
                } else {
                    thread::yield_now();
                }
            }
        });
        let mut expected = 0;
        loop {
            let closed = consumer.is_closed();
            let mut sink = [0; 3];
            let popped = consumer.pop_into(&mut sink);
            for value in &sink[..popped] {
                assert_eq!(*value, expected);
                expected += 1;
            }
            match popped {
                0 if closed => break,
                0 => thread::yield_now(),
                _ => {}
            }
        }
        assert_eq!(expected, COUNT);
    });
}

#[test]
fn slots_arrive_whole_and_in_order_over_many_laps() {
    let (mut writer, mut reader) = slots(3);
    assert_eq!((writer.slots(), reader.slots()), (3, 3));
    assert_eq!(reader.peek(), None);
    // More than 65,535 laps, so that the lap number comes round.
    for number in 0..3 * 66_000_u64 {
        writer
            .try_write(reader.consumed(), number, &[number; 7])
            .expect("there is room");
        assert_eq!(reader.peek(), Some([number; 8]));
        assert_eq!(reader.peek(), Some([number; 8]), "peeking consumes nothing");
        reader.advance();
        assert_eq!(reader.peek(), None);
    }
    assert_eq!((writer.written(), reader.consumed()), (198_000, 198_000));
}

#[test]
fn a_full_ring_takes_no_slot_and_a_lying_reader_gets_none() {
    let (mut writer, mut reader) = slots(2);
    for number in 0..2 {
        writer.try_write(0, number, &[0; 7]).expect("there is room");
    }
    assert_eq!(writer.room(0), 0);
    assert_eq!(
        writer.try_write(0, 2, &[9; 7]),
        Err(WriteError::Full { slots: 2 })
    );
    for consumed in [3, u64::MAX] {
        assert_eq!(writer.room(consumed), 0);
        let lie = WriteError::BadConsumed {
            consumed,
            written: 2,
            slots: 2,
        };
        assert_eq!(writer.try_write(consumed, 2, &[9; 7]), Err(lie));
    }
    let wide = 1 << 48;
    assert_eq!(
        writer.try_write(2, wide, &[9; 7]),
        Err(WriteError::HeaderTooWide { header: wide })
    );
    for number in 0..2 {
        assert_eq!(reader.peek().map(|slot| slot[0]), Some(number));
        reader.advance();
    }
    assert_eq!((writer.room(1), writer.room(reader.consumed())), (1, 2));
    writer
        .try_write(1, wide - 1, &[3; 7])
        .expect("there is room");
    assert_eq!(reader.peek(), Some([wide - 1, 3, 3, 3, 3, 3, 3, 3]));
}

#[test]
fn garbage_of_another_lap_is_not_a_slot() {
    let words = words(16);
    let mut reader = SlotReader::new(Arc::clone(&words)).expect("whole slots");
    for lap in [0, 2, 3, u64::from(u16::MAX)] {
        words.word(0).store(lap << 48 | 5, Ordering::Relaxed);
        assert_eq!(reader.peek(), None, "lap {lap}");
    }
    words.word(0).store(1 << 48 | 5, Ordering::Relaxed);
    assert_eq!(reader.peek(), Some([5, 0, 0, 0, 0, 0, 0, 0]));
}

#[test]
#[should_panic(expected = "advance without a slot")]
fn advancing_past_nothing_is_our_own_bug() {
    slots(1).1.advance();
}

#[test]
fn b45_words_that_are_no_slots_are_refused() {
    for count in [0, 1, 7, 9] {
        assert_eq!(
            SlotWriter::new(words(count)).err(),
            Some(NotSlots { words: count })
        );
        assert_eq!(
            SlotReader::new(words(count)).err(),
            Some(NotSlots { words: count })
        );
        assert_eq!(
            Counter::new(words(count)).err(),
            Some(NotSlots { words: count })
        );
    }
}

fn carry_between_threads(forward: MappedWords, back: MappedWords) {
    const COUNT: u64 = 50_000;
    let mut writer = SlotWriter::new(forward.clone()).expect("whole slots");
    let mut reader = SlotReader::new(forward).expect("whole slots");
    let (credits, published) = (
        Counter::new(back.clone()).expect("a line"),
        Counter::new(back).expect("a line"),
    );
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut next = 0;
            while next < COUNT {
                match writer.try_write(credits.read(), next, &[next; 7]) {
                    Ok(()) => next += 1,
                    Err(WriteError::Full { .. }) => thread::yield_now(),
                    Err(other) => panic!("{other}"),
                }
            }
        });
        for expected in 0..COUNT {
            let slot = loop {
                reader.prefetch(4);
                match reader.peek() {
                    Some(slot) => break slot,
                    None => thread::yield_now(),
                }
            };
            assert_eq!(slot, [expected; 8]);
            reader.advance();
            published.publish(reader.consumed());
        }
    });
}

#[test]
fn slots_and_credits_pass_through_a_segment() {
    let segment = Arc::new(Segment::map(4096).expect("maps"));
    let view = |bytes| MappedWords::in_segment(&segment, bytes).expect("whole lines");
    let (forward, back) = (view(0..16 * 64), view(16 * 64..17 * 64));
    let seen = MappedWords::in_segment(&segment, 0..64).expect("whole lines");
    drop(segment);
    carry_between_threads(forward, back);
    // The words keep the segment, and are its bytes.
    assert_ne!(seen.word(0).load(Ordering::Relaxed), 0);
}

#[test]
fn words_outside_or_across_cache_lines_are_refused() {
    let segment = Arc::new(Segment::map(4096).expect("maps"));
    for bytes in [0..4160, 4096..4160, usize::MAX - 63..usize::MAX] {
        let answer = MappedWords::in_segment(&segment, bytes.clone());
        assert!(
            matches!(
                answer,
                Err(MapWordsError::Range(RangeError { limit: 4096, .. }))
            ),
            "{bytes:?}"
        );
    }
    for bytes in [8..72, 0..63, 1..64] {
        let answer = MappedWords::in_segment(&segment, bytes.clone());
        assert_eq!(
            answer.err(),
            Some(MapWordsError::Misaligned {
                start: bytes.start,
                end: bytes.end
            })
        );
    }
    assert_eq!(
        MappedWords::in_segment(&segment, 4096..4096)
            .expect("empty at the end")
            .len(),
        0
    );
}

#[test]
fn doorbells_are_taken_once_and_by_their_numbers() {
    let bells = Arc::new(Doorbells::new(65));
    assert_eq!(bells.words(), 2);
    let (mut bell, mut listener) = Bell::new(&bells);
    bell.ring();
    assert_eq!((bells.take(0), bells.take(1)), (0, 0));
    assert!(!listener.is_attached());
    bell.attach(64);
    assert!(listener.is_attached());
    bell.ring();
    bell.ring();
    assert_eq!((bells.take(0), bells.take(1), bells.take(1)), (0, 1, 0));
    drop(bell);
    assert_eq!(bells.take(1), 1, "its end is told too");
}
