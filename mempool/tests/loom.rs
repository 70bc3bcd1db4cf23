//! Every interleaving of small cases, by loom. See DESIGN.md for the command; without `--cfg loom` nothing is here.
#![cfg(loom)]

use keyfence_mempool::model::{IndexStack, Outcome, StateWord};
use keyfence_mempool::ring::doorbell::{Bell, Doorbells, Listener};
use keyfence_mempool::ring::spsc::{self, Consumer};
use keyfence_mempool::ring::words::{Counter, SlotReader, SlotWriter};
use keyfence_mempool::sync::{Arc, AtomicU64, Ordering};
use loom::thread;

fn words(slots: usize) -> Arc<Vec<AtomicU64>> {
    Arc::new((0..slots * 8).map(|_| AtomicU64::new(0)).collect())
}

/// Explores everything up to `preemptions` forced switches; more take minutes and find nothing that these miss.
fn explore(preemptions: usize, case: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(case);
}

#[test]
fn spsc_values_arrive_once_and_in_order() {
    explore(3, || {
        let (mut producer, mut consumer) = spsc::ring(2);
        let other = thread::spawn(move || {
            for value in 1..=3 {
                while producer.push(Box::new(value)).is_err() {
                    thread::yield_now();
                }
            }
        });
        for expected in 1..=3 {
            let value = loop {
                match consumer.pop() {
                    Some(value) => break value,
                    None => thread::yield_now(),
                }
            };
            assert_eq!(*value, expected);
        }
        other.join().expect("no panic");
    });
}

#[test]
fn spsc_bulk_values_arrive_once_and_in_order() {
    explore(3, || {
        let (mut producer, mut consumer) = spsc::ring(2);
        let other = thread::spawn(move || {
            let mut values = &[1, 2, 3][..];
            while !values.is_empty() {
                let pushed = producer.push_slice(values);
                values = &values[pushed..];
                thread::yield_now();
            }
        });
        let (mut popped, mut sink) = (0, [0; 2]);
        while popped < 3 {
            let count = consumer.pop_into(&mut sink);
            for value in &sink[..count] {
                popped += 1;
                assert_eq!(*value, popped);
            }
            thread::yield_now();
        }
        other.join().expect("no panic");
    });
}

#[test]
fn spsc_closed_means_that_everything_pushed_is_visible() {
    explore(3, || {
        let (mut producer, mut consumer) = spsc::ring(2);
        let other = thread::spawn(move || {
            producer.push(7).expect("there is room");
        });
        while !consumer.is_closed() {
            thread::yield_now();
        }
        assert_eq!((consumer.pop(), consumer.pop()), (Some(7), None));
        other.join().expect("no panic");
    });
}

#[test]
fn spsc_closed_means_that_everything_popped_is_counted() {
    explore(3, || {
        let (mut producer, mut consumer) = spsc::ring(2);
        producer.push(7).expect("there is room");
        let other = thread::spawn(move || consumer.pop());
        while !producer.is_closed() {
            thread::yield_now();
        }
        assert!(producer.is_empty(), "closed, and its last pop is not seen");
        assert_eq!(other.join().expect("no panic"), Some(7));
    });
}

#[test]
fn spsc_what_a_consumer_leaves_is_dropped_or_taken_back_once() {
    explore(3, || {
        let value = Arc::new(());
        let (mut producer, consumer) = spsc::ring(2);
        producer.push(Arc::clone(&value)).expect("there is room");
        let other = thread::spawn(move || drop(consumer));
        let pushed = producer.push(Arc::clone(&value)).is_ok();
        while !producer.is_closed() {
            thread::yield_now();
        }
        let back = core::iter::from_fn(|| producer.take_back()).count();
        assert!(pushed && back <= 1, "{back} of two came back");
        assert_eq!(Arc::strong_count(&value), 1);
        other.join().expect("no panic");
    });
}

#[test]
fn spsc_halves_dropped_at_once_drop_each_value_once() {
    explore(3, || {
        let value = Arc::new(());
        let (mut producer, consumer) = spsc::ring(2);
        producer.push(Arc::clone(&value)).expect("there is room");
        let other = thread::spawn(move || drop(consumer));
        drop(producer);
        other.join().expect("no panic");
        assert_eq!(Arc::strong_count(&value), 1);
    });
}

#[test]
fn slots_are_never_torn() {
    explore(3, || {
        let (ring, line) = (words(1), words(1));
        let mut writer = SlotWriter::new(Arc::clone(&ring)).expect("whole slots");
        let mut reader = SlotReader::new(ring).expect("whole slots");
        let credits = Counter::new(Arc::clone(&line)).expect("a line");
        let published = Counter::new(line).expect("a line");
        let other = thread::spawn(move || {
            for number in 1..=2 {
                while writer
                    .try_write(credits.read(), number, &[number; 7])
                    .is_err()
                {
                    thread::yield_now();
                }
            }
        });
        for expected in 1..=2 {
            let slot = loop {
                match reader.peek() {
                    Some(slot) => break slot,
                    None => thread::yield_now(),
                }
            };
            assert_eq!(slot, [expected; 8]);
            reader.advance();
            published.publish(reader.consumed());
        }
        other.join().expect("no panic");
    });
}

#[test]
fn counter_publishes_what_was_done_before() {
    explore(3, || {
        let (line, mark) = (words(1), marks(1));
        let published = Counter::new(Arc::clone(&line)).expect("a line");
        let seen = Counter::new(line).expect("a line");
        let other_mark = Arc::clone(&mark);
        let other = thread::spawn(move || {
            other_mark[0].store(1, Ordering::Relaxed);
            published.publish(1);
        });
        if seen.read() == 1 {
            assert_eq!(mark[0].load(Ordering::Relaxed), 1);
        }
        other.join().expect("no panic");
    });
}

/// A consumer that looks at a ring only while its bell has no number, or when it was rung.
struct Ear {
    consumer: Consumer<u64>,
    listener: Listener,
    waits: bool,
    heard: u64,
    closed: bool,
}

impl Ear {
    fn look(&mut self, rung: bool) {
        if self.waits && !rung {
            return;
        }
        let closed = self.consumer.is_closed();
        let attached = self.listener.is_attached();
        while let Some(value) = self.consumer.pop() {
            self.heard += 1;
            assert_eq!(value, self.heard);
        }
        self.closed |= closed;
        self.waits = attached;
    }
}

fn bell(bells: &Arc<Doorbells>) -> (spsc::Producer<u64>, Bell, Ear) {
    let (producer, consumer) = spsc::ring(2);
    let (bell, listener) = Bell::new(bells);
    let ear = Ear {
        consumer,
        listener,
        waits: false,
        heard: 0,
        closed: false,
    };
    (producer, bell, ear)
}

#[test]
fn doorbell_that_gets_its_number_late_loses_no_wake_up() {
    explore(3, || {
        let bells = Arc::new(Doorbells::new(1));
        let (mut producer, mut bell, mut ear) = bell(&bells);
        let other = thread::spawn(move || {
            producer.push(1).expect("there is room");
            bell.ring();
            bell.attach(0);
            producer.push(2).expect("there is room");
            bell.ring();
            drop(producer);
            drop(bell);
        });
        for _ in 0..2 {
            let rung = bells.take(0);
            ear.look(rung & 1 == 1);
        }
        other.join().expect("no panic");
        let rung = bells.take(0);
        ear.look(rung & 1 == 1);
        assert_eq!((ear.heard, ear.closed), (2, true));
    });
}

#[test]
fn doorbell_with_a_number_means_that_what_was_pushed_without_a_ring_is_visible() {
    explore(3, || {
        let bells = Arc::new(Doorbells::new(1));
        let (mut producer, mut bell, mut ear) = bell(&bells);
        let other = thread::spawn(move || {
            producer.push(1).expect("there is room");
            bell.ring();
            bell.attach(0);
            // Kept, so that no drop rings.
            (producer, bell)
        });
        ear.look(false);
        let ends = other.join().expect("no panic");
        ear.look(false);
        assert_eq!((ear.heard, bells.take(0)), (1, 0));
        drop(ends);
    });
}

#[test]
fn doorbells_of_one_word_lose_no_wake_up_of_each_other() {
    explore(3, || {
        let bells = Arc::new(Doorbells::new(2));
        let (mut ears, mut others) = (Vec::new(), Vec::new());
        for number in 0..2 {
            let (mut producer, mut bell, mut ear) = bell(&bells);
            bell.attach(number);
            ear.look(true);
            assert!(ear.waits);
            ears.push(ear);
            others.push(thread::spawn(move || {
                producer.push(1).expect("there is room");
                bell.ring();
                (producer, bell)
            }));
        }
        let mut look = |ears: &mut Vec<Ear>| {
            let rung = bells.take(0);
            for (number, ear) in ears.iter_mut().enumerate() {
                ear.look(rung >> number & 1 == 1);
            }
        };
        look(&mut ears);
        // Kept, so that no drop rings.
        let ends: Vec<_> = others
            .into_iter()
            .map(|other| other.join().expect("no panic"))
            .collect();
        look(&mut ears);
        assert!(ears.iter().all(|ear| ear.heard == 1));
        drop(ends);
    });
}

/// What its finder did with a buffer, for the next one to see.
fn marks(count: usize) -> Arc<Vec<AtomicU64>> {
    Arc::new((0..count).map(|_| AtomicU64::new(0)).collect())
}

#[test]
fn depot_gives_each_index_to_one_thread_at_a_time() {
    explore(3, || {
        let (stack, marks) = (Arc::new(IndexStack::new(3)), marks(3));
        stack.push_many([0, 1, 2]);
        let work = |stack: Arc<IndexStack>, marks: Arc<Vec<AtomicU64>>, most: usize| {
            let mut got = Vec::new();
            stack.pop_many(most, |index| got.push(index));
            for index in &got {
                // Relaxed on purpose: only the stack orders one finder's mark before the next one's.
                let mark = &marks[*index as usize];
                let before = mark.load(Ordering::Relaxed);
                mark.store(before + 1, Ordering::Relaxed);
            }
            let count = got.len() as u64;
            stack.push_many(got);
            count
        };
        let (other_stack, other_marks) = (Arc::clone(&stack), Arc::clone(&marks));
        let other = thread::spawn(move || {
            // Takes two and puts them back in the other order: what an ABA needs.
            work(Arc::clone(&other_stack), Arc::clone(&other_marks), 2)
                + work(other_stack, other_marks, 1)
        });
        let mine = work(Arc::clone(&stack), Arc::clone(&marks), 2);
        let theirs = other.join().expect("no panic");
        let sum: u64 = marks.iter().map(|mark| mark.load(Ordering::Relaxed)).sum();
        assert_eq!(sum, mine + theirs, "two threads had the same index at once");
        let mut left = Vec::new();
        stack.pop_many(4, |index| left.push(index));
        left.sort_unstable();
        assert_eq!(left, [0, 1, 2]);
    });
}

fn frees(outcome: Outcome) -> u64 {
    u64::from(outcome == Outcome::Free)
}

#[test]
fn state_of_two_keepers_the_last_one_frees_and_sees_what_the_other_did() {
    explore(3, || {
        let (state, marks) = (Arc::new(StateWord::new()), marks(2));
        state.give_out();
        state.hold(0).expect("in use");
        let (other_state, other_marks) = (Arc::clone(&state), Arc::clone(&marks));
        let other = thread::spawn(move || {
            other_marks[0].store(1, Ordering::Relaxed);
            let freed = frees(other_state.drop_handle(0));
            if freed == 1 {
                assert_eq!(
                    other_marks[1].load(Ordering::Relaxed),
                    1,
                    "freed before the other's last store"
                );
            }
            freed
        });
        marks[1].store(1, Ordering::Relaxed);
        let freed = frees(state.release(0).expect("held"));
        if freed == 1 {
            assert_eq!(
                marks[0].load(Ordering::Relaxed),
                1,
                "freed before the other's last store"
            );
        }
        assert_eq!(freed + other.join().expect("no panic"), 1);
        let state = state.read();
        assert!(state.is_free() && state.generation() == 1);
    });
}

#[test]
fn state_a_drop_beside_the_cordon_frees_or_is_retained() {
    explore(3, || {
        let (state, mark) = (Arc::new(StateWord::new()), marks(1));
        state.give_out();
        let (other_state, other_mark) = (Arc::clone(&state), Arc::clone(&mark));
        let other = thread::spawn(move || {
            other_mark[0].store(1, Ordering::Relaxed);
            frees(other_state.drop_handle(0))
        });
        let retained = state.retain(0).is_ok();
        let reclaimed = retained && matches!(state.reclaim(0), Ok(Outcome::Free));
        if reclaimed {
            assert_eq!(
                mark[0].load(Ordering::Relaxed),
                1,
                "reclaimed before the handle's last store"
            );
        }
        let dropped = other.join().expect("no panic");
        assert_eq!(
            dropped,
            u64::from(!retained),
            "free by the drop exactly if the cordon came late"
        );
        if retained && !reclaimed {
            assert_eq!(frees(state.reclaim(0).expect("the handle is gone")), 1);
        }
        assert!(state.reclaim(0).is_err() && state.release(0).is_err());
        assert!(state.read().is_free() && state.read().generation() == 1);
    });
}

#[test]
fn state_a_hold_beside_a_drop_keeps_or_is_stale() {
    explore(3, || {
        let state = Arc::new(StateWord::new());
        state.give_out();
        let other_state = Arc::clone(&state);
        let other = thread::spawn(move || frees(other_state.drop_handle(0)));
        let held = state.hold(0).is_ok();
        let released = held && frees(state.release(0).expect("held")) == 1;
        assert_eq!(other.join().expect("no panic") + u64::from(released), 1);
        assert!(state.hold(0).is_err());
    });
}
