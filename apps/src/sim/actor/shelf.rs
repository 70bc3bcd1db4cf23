//! Handles that outlive the contexts they were given to.

use std::sync::{Arc, Mutex, PoisonError};

use keyfence::{Buf, Message};

/// What contexts have handed to somebody else: it keeps their memory from being reused until it is dropped (R1).
#[derive(Clone, Default)]
pub struct Shelf(Arc<Mutex<Vec<Kept>>>);

pub enum Kept {
    Buf(#[expect(dead_code, reason = "kept, and not looked at")] Buf),
    Message(#[expect(dead_code, reason = "kept, and not looked at")] Message),
}

impl Shelf {
    pub fn keep(&self, kept: impl IntoIterator<Item = Kept>) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .extend(kept);
    }

    pub fn clear(&self) {
        // Dropped without the lock.
        let kept = core::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        drop(kept);
    }
}
