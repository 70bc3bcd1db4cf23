//! Clients at rest: their services wait, and the doorbells say which are to be polled again.

use keyfence_mempool::ring::doorbell::{Doorbells, WORD_BELLS};
use keyfence_mempool::sync::Arc;

use crate::engine::Context;
use crate::engine::state::Core;

/// The clients among the contexts of an lcore.
#[derive(Debug)]
pub(super) struct Clients {
    bells: Arc<Doorbells>,
    /// Contexts that are clients, a bit each.
    listening: Box<[u64]>,
    /// Words of those that have ever had one.
    words: usize,
}

impl Clients {
    /// For so many contexts.
    pub fn new(contexts: usize) -> Self {
        let bells = Arc::new(Doorbells::new(contexts));
        Self {
            listening: vec![0; bells.words()].into_boxed_slice(),
            bells,
            words: 0,
        }
    }

    /// What the clients ring. A context's bell is its slot.
    pub fn bells(&self) -> Arc<Doorbells> {
        Arc::clone(&self.bells)
    }

    fn add(&mut self, slot: u16) {
        let (word, bit) = place(slot);
        self.listening[word] |= bit;
        self.words = self.words.max(word + 1);
    }

    /// Whether there has ever been one.
    #[inline]
    pub fn are_there(&self) -> bool {
        self.words > 0
    }

    /// Forgets a context that ends.
    pub fn remove(&mut self, slot: u16) {
        let (word, bit) = place(slot);
        self.listening[word] &= !bit;
    }
}

fn place(slot: u16) -> (usize, u64) {
    let slot = usize::from(slot);
    (slot / WORD_BELLS, 1 << (slot % WORD_BELLS))
}

impl Context<'_> {
    /// Has the context polled whenever its bell is rung while it waits, and now and then besides.
    pub(crate) fn listen(&mut self) {
        self.core.clients.add(self.slot);
    }

    /// Whether it has messages that it did not give back.
    pub(crate) fn holds_messages(&self) -> bool {
        !self.core.contexts.get(self.slot).messages.is_empty()
    }
}

impl Core {
    /// Has those waiting clients polled again whose bells were rung; and of each 64 one that was not, in turn: a client that has fallen silent rings
    /// nothing, and its lease must end all the same (R10).
    pub(super) fn wake_clients(&mut self) {
        let turn = 1 << (self.stats.steps % WORD_BELLS as u64);
        for word in 0..self.clients.words {
            let rung = self.clients.bells.take(word) | turn;
            let mut due = rung & self.clients.listening[word];
            while due != 0 {
                let slot = (word * WORD_BELLS) as u16 + due.trailing_zeros() as u16;
                due &= due - 1;
                let context = self.contexts.get_mut(slot);
                if core::mem::take(&mut context.waits) {
                    self.poll_again(slot);
                }
            }
        }
    }
}
