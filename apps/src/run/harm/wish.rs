//! What the driver wishes of the devices, and what came of it.

use core::ops::Range;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use keyfence::pmd::Rkey;
use keyfence_mempool::sync::{AtomicU32, AtomicU64, Ordering};

use super::graves::Grave;
use crate::host::Clock;

/// How a lane is broken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Strike {
    /// Its queue pair is moved to error behind an access.
    Error,
    /// An access goes by a key that was revoked on it.
    DeadKey,
}

/// Shared by the driver, the devices of both sides and their workers. One wish is open at a time, and one broken lane.
#[derive(Debug)]
pub struct Wishes {
    clock: Clock,
    asked: [AtomicU32; 2],
    /// The memory of each side.
    arenas: [OnceLock<Range<u64>>; 2],
    /// Keys of each side's memory that are proven dead, youngest last.
    graves: [Mutex<Vec<Grave>>; 2],
    /// Odd from a strike to the repair of its lane.
    era: AtomicU64,
    struck_ns: AtomicU64,
    refused: AtomicU64,
    honoured: AtomicU64,
}

const NOTHING: u32 = 0;
const ERROR: u32 = 1;
const DEAD_KEY: u32 = 2;

/// Dead keys that are remembered a side.
const GRAVES: usize = 256;

impl Wishes {
    /// Nothing is wished yet.
    pub fn new(clock: Clock) -> Self {
        Self {
            clock,
            asked: Default::default(),
            arenas: Default::default(),
            graves: Default::default(),
            era: AtomicU64::new(0),
            struck_ns: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            honoured: AtomicU64::new(0),
        }
    }

    /// Says where the memory of `side` is. Nothing strikes before both are known.
    pub fn set_arena(&self, side: usize, arena: Range<u64>) {
        self.arenas[side]
            .set(arena)
            .expect("each side has one arena");
    }

    /// Wishes that the device of `side` breaks a lane with its next fitting post.
    pub fn ask(&self, side: usize, strike: Strike) {
        let word = match strike {
            Strike::Error => ERROR,
            Strike::DeadKey => DEAD_KEY,
        };
        self.asked[side].store(word, Ordering::Release);
    }

    /// Takes a wish back; false if the device was quicker.
    pub fn withdraw(&self, side: usize) -> bool {
        self.asked[side].swap(NOTHING, Ordering::AcqRel) != NOTHING
    }

    /// A number that is odd while a lane is broken, and another one after each break.
    #[inline]
    pub fn era(&self) -> u64 {
        self.era.load(Ordering::Acquire)
    }

    /// Whether a lane is broken.
    pub fn is_broken(&self) -> bool {
        self.era() % 2 == 1
    }

    /// When the last lane was broken.
    pub fn struck_ns(&self) -> u64 {
        self.struck_ns.load(Ordering::Acquire)
    }

    /// The lane that was broken is whole at both ends, or given up.
    pub fn repaired(&self) {
        assert!(self.is_broken(), "a lane is repaired behind its break");
        self.era.fetch_add(1, Ordering::AcqRel);
    }

    /// Accesses by dead keys that were refused.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Acquire)
    }

    /// Accesses by dead keys that were not.
    pub fn honoured(&self) -> u64 {
        self.honoured.load(Ordering::Acquire)
    }

    /// What is wished of `side` now.
    #[inline]
    pub(super) fn wish(&self, side: usize) -> Option<Strike> {
        match self.asked[side].load(Ordering::Relaxed) {
            NOTHING => None,
            ERROR => Some(Strike::Error),
            _ => Some(Strike::DeadKey),
        }
    }

    /// Whether `address` is in the memory of `side`.
    pub(super) fn is_of(&self, side: usize, address: u64) -> bool {
        let arena = self.arenas[side].get();
        arena.is_some_and(|arena| arena.contains(&address))
    }

    /// Takes the wish to fulfil it now; false if it was taken back. From here on a lane is broken.
    pub fn strike(&self, side: usize) -> bool {
        if !self.withdraw(side) {
            return false;
        }
        self.struck_ns.store(self.clock.now_ns(), Ordering::Release);
        // What follows from the break is told behind this.
        self.era.fetch_add(1, Ordering::AcqRel);
        true
    }

    pub(super) fn graves(&self, side: usize) -> MutexGuard<'_, Vec<Grave>> {
        self.graves[side]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// A value is that of a key which lives.
    pub(super) fn lives(&self, side: usize, rkey: Rkey) {
        self.graves(side).retain(|grave| grave.rkey != rkey);
    }

    /// Keys of `side`'s memory are dead.
    pub(super) fn bury(&self, side: usize, dead: impl Iterator<Item = Grave>) {
        let mut graves = self.graves(side);
        graves.extend(dead);
        let over = graves.len().saturating_sub(GRAVES);
        graves.drain(..over);
    }

    /// How an access by a dead key ended.
    pub(super) fn ended(&self, refused: bool) {
        let count = if refused {
            &self.refused
        } else {
            &self.honoured
        };
        count.fetch_add(1, Ordering::AcqRel);
    }
}
