//! What a liar remembers, of all its lives: enough to say it again where it is not true any more.

use std::collections::VecDeque;

use keyfence::ids::Epoch;
use keyfence::wire::{Grant, WireContext};

use crate::random::Random;

/// Entries of each kind; the oldest goes.
const KEPT: usize = 96;

/// The last of a kind.
#[derive(Debug)]
pub struct Last<T>(VecDeque<T>);

impl<T> Default for Last<T> {
    fn default() -> Self {
        Self(VecDeque::with_capacity(KEPT))
    }
}

impl<T> Last<T> {
    pub fn keep(&mut self, entry: T) {
        if self.0.len() == KEPT {
            self.0.pop_front();
        }
        self.0.push_back(entry);
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.0.iter_mut()
    }
}

impl<T: Clone> Last<T> {
    pub fn any(&self, dice: &mut Random) -> Option<T> {
        self.any_of(dice, |_| true)
    }

    pub fn any_of(&self, dice: &mut Random, fits: impl Fn(&T) -> bool) -> Option<T> {
        let fitting: Vec<&T> = self.0.iter().filter(|entry| fits(entry)).collect();
        (!fitting.is_empty()).then(|| fitting[dice.below(fitting.len())].clone())
    }
}

/// A key of an engine's.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    pub lane: usize,
    pub grant: Grant,
    /// Its owner has asked for it back, or its lane has ended.
    pub is_dead: bool,
}

#[derive(Debug, Default)]
pub struct Memory {
    /// Frames that came, and that went.
    pub frames: Last<Vec<u8>>,
    pub keys: Last<Key>,
    /// Contexts of engines, with the lane they were heard of on.
    pub met: Last<(usize, WireContext)>,
    pub epochs: Last<(usize, Epoch)>,
    /// What engines have asked for lanes with.
    pub requests: Last<Vec<u8>>,
}
