//! A typed ring between two threads of one process.
//!
//! Unsafe because a slot is uninitialised memory that the producer owns before it publishes `tail`, and the consumer
//! after it has seen it. Each half keeps a copy of the other's index and reads the shared one only when the copy says
//! full or empty, so that the line with the index moves between the cores once a batch.

use core::fmt;
use core::mem::MaybeUninit;

use crossbeam_utils::CachePadded;

use crate::sync::{Arc, AtomicBool, AtomicUsize, Ordering, UnsafeCell};

/// The half that pushes. One thread owns it; it can be sent to another.
pub struct Producer<T> {
    ring: Arc<Ring<T>>,
    tail: usize,
    seen_head: usize,
}

/// The half that pops. One thread owns it; it can be sent to another.
pub struct Consumer<T> {
    ring: Arc<Ring<T>>,
    head: usize,
    seen_tail: usize,
}

struct Ring<T> {
    /// Values popped so far. Written by the consumer.
    head: CachePadded<AtomicUsize>,
    /// Values pushed so far. Written by the producer.
    tail: CachePadded<AtomicUsize>,
    producer_gone: AtomicBool,
    consumer_gone: AtomicBool,
    mask: usize,
    slots: Box<[UnsafeCell<MaybeUninit<T>>]>,
}

// SAFETY: a value is moved in by one thread and out by another, hence `T: Send`. A slot is touched by the producer
// only between `head + capacity` and `tail`, by the consumer only between `head` and `tail`; the release store and
// acquire load of the indexes order the two.
unsafe impl<T: Send> Send for Ring<T> {}
// SAFETY: as above; there is exactly one producer and one consumer, since neither half can be cloned.
unsafe impl<T: Send> Sync for Ring<T> {}

/// A ring of at least `capacity` values, rounded up to a power of two (0 counts as 1). All memory is allocated here.
///
/// ```
/// let (mut producer, mut consumer) = keyfence_mempool::ring::spsc::ring(2);
/// producer.push("one").expect("there is room");
/// producer.push("two").expect("there is room");
/// assert_eq!(producer.push("three"), Err("three"));
/// assert_eq!(consumer.pop(), Some("one"));
/// drop(producer);
/// assert!(consumer.is_closed());
/// assert_eq!(consumer.pop(), Some("two"));
/// assert_eq!(consumer.pop(), None);
/// ```
///
/// # Panics
/// If the slots' bytes exceed the address space, as `Vec` does.
pub fn ring<T: Send>(capacity: usize) -> (Producer<T>, Consumer<T>) {
    let capacity = capacity
        .checked_next_power_of_two()
        .expect("capacity overflow");
    let ring = Arc::new(Ring {
        head: CachePadded::new(AtomicUsize::new(0)),
        tail: CachePadded::new(AtomicUsize::new(0)),
        producer_gone: AtomicBool::new(false),
        consumer_gone: AtomicBool::new(false),
        mask: capacity - 1,
        slots: (0..capacity)
            .map(|_| UnsafeCell::new(MaybeUninit::uninit()))
            .collect(),
    });
    let producer = Producer {
        ring: Arc::clone(&ring),
        tail: 0,
        seen_head: 0,
    };
    (
        producer,
        Consumer {
            ring,
            head: 0,
            seen_tail: 0,
        },
    )
}

impl<T> Producer<T> {
    /// Pushes one value, or gives it back if the ring is full.
    #[inline]
    pub fn push(&mut self, value: T) -> Result<(), T> {
        if self.room(1) == 0 {
            return Err(value);
        }
        self.put(self.tail, value);
        self.publish(1);
        Ok(())
    }

    /// Pushes as many of `values`, in order, as there is room for, and publishes them at once. Returns how many.
    #[inline]
    pub fn push_slice(&mut self, values: &[T]) -> usize
    where
        T: Copy,
    {
        let count = self.room(values.len()).min(values.len());
        for (at, value) in values[..count].iter().enumerate() {
            self.put(self.tail.wrapping_add(at), *value);
        }
        self.publish(count);
        count
    }

    /// Values in the ring; the consumer may have taken some since.
    pub fn len(&self) -> usize {
        self.tail
            .wrapping_sub(self.ring.head.load(Ordering::Acquire))
    }

    /// Whether the consumer has taken everything.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Values that the ring can hold.
    pub fn capacity(&self) -> usize {
        self.ring.mask + 1
    }

    /// Whether the consumer is gone. What is pushed then is dropped with the ring, unless it is taken back.
    #[inline]
    pub fn is_closed(&self) -> bool {
        self.ring.consumer_gone.load(Ordering::Acquire)
    }

    /// The oldest value that the consumer has left, once it is gone; `None` before, and when there is none.
    pub fn take_back(&mut self) -> Option<T> {
        if !self.is_closed() || self.is_empty() {
            return None;
        }
        let head = self.ring.head.load(Ordering::Acquire);
        let cell = &self.ring.slots[head & self.ring.mask];
        // SAFETY: the consumer's drop has said last that it is gone, so this half alone reads slots and moves `head`; this one lies between `head`
        // and `tail`, so it is full, and the store below keeps anybody from reading it again.
        let value = cell.with(|slot| unsafe { slot.cast::<T>().read() });
        self.ring
            .head
            .store(head.wrapping_add(1), Ordering::Release);
        Some(value)
    }

    /// Lets the consumer see this half as gone from now on, as its drop would: nothing is pushed behind it.
    pub fn close(&mut self) {
        self.ring.producer_gone.store(true, Ordering::Release);
    }

    /// Room for up to `wanted` values, looking at the consumer's index only if the copy is not enough.
    #[inline]
    fn room(&mut self, wanted: usize) -> usize {
        let mut room = self.capacity() - self.tail.wrapping_sub(self.seen_head);
        if room < wanted {
            self.seen_head = self.ring.head.load(Ordering::Acquire);
            room = self.capacity() - self.tail.wrapping_sub(self.seen_head);
        }
        room
    }

    #[inline]
    fn put(&self, position: usize, value: T) {
        let cell = &self.ring.slots[position & self.ring.mask];
        // SAFETY: `room` has shown that the consumer is done with this slot; nobody else writes it.
        cell.with_mut(|slot| unsafe { slot.write(MaybeUninit::new(value)) });
    }

    #[inline]
    fn publish(&mut self, count: usize) {
        self.tail = self.tail.wrapping_add(count);
        self.ring.tail.store(self.tail, Ordering::Release);
    }
}

impl<T> Consumer<T> {
    /// The oldest value, `None` if the ring is empty.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        if self.ready(1) == 0 {
            return None;
        }
        let value = self.take(self.head);
        self.release(1);
        Some(value)
    }

    /// Pops as many values as there are into the front of `sink`, in order, and frees their slots at once. Returns
    /// how many.
    #[inline]
    pub fn pop_into(&mut self, sink: &mut [T]) -> usize
    where
        T: Copy,
    {
        let count = self.ready(sink.len()).min(sink.len());
        for (at, value) in sink[..count].iter_mut().enumerate() {
            *value = self.take(self.head.wrapping_add(at));
        }
        self.release(count);
        count
    }

    /// Values in the ring; the producer may have pushed more since.
    pub fn len(&self) -> usize {
        self.ring
            .tail
            .load(Ordering::Acquire)
            .wrapping_sub(self.head)
    }

    /// Whether nothing is in the ring.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Values that the ring can hold.
    pub fn capacity(&self) -> usize {
        self.ring.mask + 1
    }

    /// Whether the producer is gone. Everything it pushed is visible once this is true: pop until empty.
    #[inline]
    pub fn is_closed(&self) -> bool {
        self.ring.producer_gone.load(Ordering::Acquire)
    }

    #[inline]
    fn ready(&mut self, wanted: usize) -> usize {
        let mut ready = self.seen_tail.wrapping_sub(self.head);
        if ready < wanted {
            self.seen_tail = self.ring.tail.load(Ordering::Acquire);
            ready = self.seen_tail.wrapping_sub(self.head);
        }
        ready
    }

    #[inline]
    fn take(&self, position: usize) -> T {
        let cell = &self.ring.slots[position & self.ring.mask];
        // SAFETY: `ready` has shown that the producer filled this slot, and it is left to the producer by `release`
        // before anybody could read it again.
        cell.with(|slot| unsafe { slot.cast::<T>().read() })
    }

    #[inline]
    fn release(&mut self, count: usize) {
        self.head = self.head.wrapping_add(count);
        self.ring.head.store(self.head, Ordering::Release);
    }
}

impl<T> Drop for Producer<T> {
    fn drop(&mut self) {
        self.close();
    }
}

impl<T> Drop for Consumer<T> {
    fn drop(&mut self) {
        // What is left is dropped here and now, not when the other half is.
        while self.pop().is_some() {}
        self.ring.consumer_gone.store(true, Ordering::Release);
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        let (mut head, tail) = (
            self.head.load(Ordering::Acquire),
            self.tail.load(Ordering::Acquire),
        );
        while head != tail {
            // SAFETY: both halves are gone, so this thread alone sees the slots; those between head and tail are full.
            self.slots[head & self.mask]
                .with_mut(|slot| unsafe { slot.cast::<T>().drop_in_place() });
            head = head.wrapping_add(1);
        }
    }
}

impl<T> fmt::Debug for Producer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Producer")
            .field("pushed", &self.tail)
            .finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Consumer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer")
            .field("popped", &self.head)
            .finish_non_exhaustive()
    }
}
