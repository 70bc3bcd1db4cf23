//! The caller's array of completions while one poll fills it.

use crate::completion::Completion;

/// A prefix that is filled, and room behind it.
#[derive(Debug)]
pub(crate) struct Completions<'a> {
    room: &'a mut [Completion],
    filled: usize,
}

impl<'a> Completions<'a> {
    pub(crate) fn new(room: &'a mut [Completion]) -> Self {
        Self { room, filled: 0 }
    }

    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.filled == self.room.len()
    }

    /// Adds one; there must be room.
    #[inline]
    pub(crate) fn push(&mut self, completion: Completion) {
        self.room[self.filled] = completion;
        self.filled += 1;
    }

    pub(crate) fn len(&self) -> usize {
        self.filled
    }
}
