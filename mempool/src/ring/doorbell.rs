//! Doorbells: many producers tell one consumer which of its rings to look at, so that rings at rest cost it a load for 64 of them and not one each.
//!
//! A producer pushes, and then rings: it sets its bit by a read-modify-write with release. The consumer takes a word of bits by a swap with acquire,
//! and then looks at the rings. A bit that the swap finds was set behind its push, so the push is seen; one that comes later stays for the next
//! swap. The read-modify-write is needed: a producer that only looked whether its bit is still set could see it just before it is taken.
//!
//! Which bit is a producer's is known only when the consumer has a place for it. Until then the consumer polls its ring, and stops when
//! [`Listener::is_attached`] says that the producer knows its bit.

use crossbeam_utils::CachePadded;

use crate::sync::{Arc, AtomicBool, AtomicU64, Ordering};

/// Bells of a word.
pub const WORD_BELLS: usize = 64;

/// The bells of one consumer.
#[derive(Debug)]
pub struct Doorbells {
    words: Box<[CachePadded<AtomicU64>]>,
}

/// A producer's end: rings when something was pushed, and when it is dropped. Declare it behind the producer, so that it is dropped later.
#[derive(Debug)]
pub struct Bell {
    bells: Arc<Doorbells>,
    attached: Arc<AtomicBool>,
    number: Option<usize>,
}

/// The consumer's end of one bell.
#[derive(Debug)]
pub struct Listener {
    attached: Arc<AtomicBool>,
    seen: bool,
}

impl Doorbells {
    /// At least `bells` of them. All memory is allocated here.
    pub fn new(bells: usize) -> Self {
        let word = |_| CachePadded::new(AtomicU64::new(0));
        Self {
            words: (0..bells.div_ceil(WORD_BELLS)).map(word).collect(),
        }
    }

    /// How many words of bells there are.
    pub fn words(&self) -> usize {
        self.words.len()
    }

    /// Takes the bells of a word that were rung: bit `n` is bell `64 x word + n`. What was pushed before they were rung is visible then.
    ///
    /// # Panics
    /// If there is no such word.
    #[inline]
    pub fn take(&self, word: usize) -> u64 {
        let word = &self.words[word];
        // Relaxed: what it misses is there at the next look.
        if word.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        word.swap(0, Ordering::Acquire)
    }

    fn ring(&self, number: usize) {
        let bit = 1 << (number % WORD_BELLS);
        self.words[number / WORD_BELLS].fetch_or(bit, Ordering::Release);
    }
}

impl Bell {
    /// Both ends of a bell that has no number yet.
    pub fn new(bells: &Arc<Doorbells>) -> (Self, Listener) {
        let attached = Arc::new(AtomicBool::new(false));
        let listener = Listener {
            attached: Arc::clone(&attached),
            seen: false,
        };
        let bell = Self {
            bells: Arc::clone(bells),
            attached,
            number: None,
        };
        (bell, listener)
    }

    /// Gives the bell its number, and says so to the consumer.
    ///
    /// # Panics
    /// If there is no bell of that number.
    pub fn attach(&mut self, number: usize) {
        assert!(number / WORD_BELLS < self.bells.words());
        self.number = Some(number);
        // Release: who sees this sees what was pushed before without a ring.
        self.attached.store(true, Ordering::Release);
    }

    /// Rings, behind a push. Does nothing before the bell has a number.
    #[inline]
    pub fn ring(&self) {
        if let Some(number) = self.number {
            self.bells.ring(number);
        }
    }
}

impl Drop for Bell {
    fn drop(&mut self) {
        self.ring();
    }
}

impl Listener {
    /// Whether the bell has a number. If so, everything that was pushed before is visible, and everything that comes later is rung for: an empty
    /// ring, looked at after this, need not be looked at again before the bell is rung.
    #[inline]
    pub fn is_attached(&mut self) -> bool {
        self.seen = self.seen || self.attached.load(Ordering::Acquire);
        self.seen
    }
}
