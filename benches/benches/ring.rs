//! What does a message cost, within one thread and between two cores?

use std::hint::black_box;
use std::io;
use std::time::Duration;

use keyfence_benches::{Suite, beside, repeated, until};
use keyfence_mempool::Segment;
use keyfence_mempool::ring::mapped::MappedWords;
use keyfence_mempool::ring::spsc;
use keyfence_mempool::ring::words::{Counter, SlotReader, SlotWriter};
use keyfence_mempool::sync::Arc;

const BATCH: usize = 32;
const SLOTS: usize = 64;

fn main() -> io::Result<()> {
    let mut suite = Suite::new("ring", std::env::args().skip(1));
    one_core(&mut suite);
    suite.case("two_cores/spsc/round_trip", 1, spsc_round_trips);
    suite.case("two_cores/slots/round_trip", 1, slot_round_trips);
    suite.case("two_cores/slots/stream", 1, slot_stream);
    suite.run(&mut io::stdout())
}

/// Both halves on one core: instructions, without the cache line's way.
fn one_core(suite: &mut Suite) {
    let (mut producer, mut consumer) = spsc::ring::<[u64; 8]>(SLOTS);
    let single = repeated(move || {
        producer.push(black_box([1; 8])).expect("there is room");
        black_box(consumer.pop());
    });
    suite.case("one_core/spsc/single", 1, single);
    let (mut writer, mut reader) = slots();
    let single = repeated(move || {
        writer
            .try_write(reader.consumed(), 1, black_box(&[1; 7]))
            .expect("there is room");
        black_box(reader.peek()).expect("just written");
        reader.advance();
    });
    suite.case("one_core/slots/single", 1, single);
    let (mut producer, mut consumer) = spsc::ring::<[u64; 8]>(SLOTS);
    let (values, mut sink) = ([[1; 8]; BATCH], [[0; 8]; BATCH]);
    let bulk = repeated(move || {
        producer.push_slice(black_box(&values));
        consumer.pop_into(black_box(&mut sink));
    });
    suite.case("one_core/spsc/bulk_32", BATCH as u64, bulk);
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
