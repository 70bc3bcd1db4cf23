//! The life of one buffer in one atomic word.
//!
//! A buffer is free exactly when nothing keeps it: no handle, no hold, no retention, no quarantine. Whichever change
//! takes the last keeper away raises the generation in the same step, and its caller alone has then to bring the
//! buffer home. So a buffer goes home exactly once, whichever threads race.

use crate::sync::{AtomicU64, Ordering};

const HANDLE_OUT: u64 = 1;
const RETAINED: u64 = 1 << 1;
const QUARANTINED: u64 = 1 << 2;
const ONE_HOLD: u64 = 1 << 3;
const GENERATION_SHIFT: u32 = 32;
const KEEPERS: u64 = (1 << GENERATION_SHIFT) - 1;
const HOLDS: u64 = KEEPERS & !(HANDLE_OUT | RETAINED | QUARANTINED);

/// State of one buffer: generation in the upper half, what keeps it in the lower.
#[derive(Debug)]
pub struct StateWord(AtomicU64);

/// What a change left behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Outcome {
    /// Something still keeps the buffer.
    Kept,
    /// Nothing does, and the caller has to bring it home.
    Free,
}

/// Why a change was refused. Nothing has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The buffer is free, quarantined, or given out anew.
    Stale {
        /// Generation now.
        generation: u32,
    },
    /// A handle exists.
    HandleOut,
    /// This many holds are open.
    Held(u32),
    /// No hold is open.
    NotHeld,
    /// No more holds can be counted.
    TooManyHolds,
    /// The buffer is not retained.
    NotRetained,
}

/// A reading of a state word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct State(u64);

impl StateWord {
    /// A free buffer of generation 0.
    pub fn new() -> StateWord {
        StateWord(AtomicU64::new(0))
    }

    /// The state now.
    #[inline]
    pub fn read(&self) -> State {
        State(self.0.load(Ordering::Acquire))
    }

    /// Gives out a free buffer, and returns the generation that it is given out under. The caller has popped it, so
    /// nobody else can change its state: ids of a free buffer are refused.
    #[inline]
    pub fn give_out(&self) -> u32 {
        let state = State(self.0.load(Ordering::Relaxed));
        assert!(
            state.is_free(),
            "a buffer in the pool is not free: it was put twice"
        );
        self.0.store(state.0 | HANDLE_OUT, Ordering::Release);
        state.generation()
    }

    /// Sets a free buffer aside for good. The caller alone has it, as for [`StateWord::give_out`].
    pub fn quarantine(&self) {
        let state = State(self.0.load(Ordering::Relaxed));
        assert!(
            state.is_free(),
            "a buffer that is in use cannot be quarantined"
        );
        self.0.store(state.0 | QUARANTINED, Ordering::Release);
    }

    /// Takes the handle away.
    #[inline]
    pub fn drop_handle(&self, generation: u32) -> Outcome {
        // Nearly always the handle is all there is.
        let (alone, freed) = (
            State::free(generation).0 | HANDLE_OUT,
            State::free(generation).next(),
        );
        if self
            .0
            .compare_exchange(alone, freed.0, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
        {
            return Outcome::Free;
        }
        let changed = self.change(generation, |state| {
            assert!(state.handle_is_out(), "a handle was dropped twice");
            Ok(state.0 & !HANDLE_OUT)
        });
        changed.expect("the generation of a buffer changed under its handle")
    }

    /// Counts one more hold.
    #[inline]
    pub fn hold(&self, generation: u32) -> Result<(), Refusal> {
        self.keep(generation, |state| match state.0 & HOLDS {
            HOLDS => Err(Refusal::TooManyHolds),
            _ => Ok(state.0 + ONE_HOLD),
        })
    }

    /// Counts one hold less.
    #[inline]
    pub fn release(&self, generation: u32) -> Result<Outcome, Refusal> {
        self.change(generation, |state| match state.0 & HOLDS {
            0 => Err(Refusal::NotHeld),
            _ => Ok(state.0 - ONE_HOLD),
        })
    }

    /// Keeps the buffer from going home by itself.
    pub fn retain(&self, generation: u32) -> Result<(), Refusal> {
        self.keep(generation, |state| Ok(state.0 | RETAINED))
    }

    /// Ends the retention of a buffer that nothing else keeps.
    pub fn reclaim(&self, generation: u32) -> Result<Outcome, Refusal> {
        self.change(generation, |state| match state {
            _ if state.handle_is_out() => Err(Refusal::HandleOut),
            _ if state.holds() > 0 => Err(Refusal::Held(state.holds())),
            _ if !state.is_retained() => Err(Refusal::NotRetained),
            _ => Ok(state.0 & !RETAINED),
        })
    }

    #[inline]
    fn keep(
        &self,
        generation: u32,
        next: impl Fn(State) -> Result<u64, Refusal>,
    ) -> Result<(), Refusal> {
        match self.change(generation, next)? {
            Outcome::Kept => Ok(()),
            Outcome::Free => unreachable!("a change that adds a keeper freed the buffer"),
        }
    }

    /// Applies `next` to the state of a live buffer of this generation.
    #[inline]
    fn change(
        &self,
        generation: u32,
        next: impl Fn(State) -> Result<u64, Refusal>,
    ) -> Result<Outcome, Refusal> {
        let mut seen = self.0.load(Ordering::Relaxed);
        loop {
            let state = State(seen);
            if !state.is_live() || state.generation() != generation {
                return Err(Refusal::Stale {
                    generation: state.generation(),
                });
            }
            let mut wanted = State(next(state)?);
            if wanted.is_free() {
                wanted = wanted.next();
            }
            match self
                .0
                .compare_exchange_weak(seen, wanted.0, Ordering::AcqRel, Ordering::Relaxed)
            {
                Ok(_) if wanted.is_free() => {
                    return Ok(Outcome::Free);
                }
                Ok(_) => return Ok(Outcome::Kept),
                Err(found) => seen = found,
            }
        }
    }
}

impl State {
    #[inline]
    fn free(generation: u32) -> State {
        State(u64::from(generation) << GENERATION_SHIFT)
    }

    /// The free state that follows this generation.
    #[inline]
    fn next(self) -> State {
        State::free(self.generation().wrapping_add(1))
    }

    /// Generation of the buffer; it changes when the buffer becomes free.
    #[inline]
    pub fn generation(self) -> u32 {
        (self.0 >> GENERATION_SHIFT) as u32
    }

    /// Whether nothing keeps the buffer.
    #[inline]
    pub fn is_free(self) -> bool {
        self.0 & KEEPERS == 0
    }

    /// Whether the buffer is set aside for good.
    #[inline]
    pub fn is_quarantined(self) -> bool {
        self.0 & QUARANTINED != 0
    }

    /// Whether ids of this generation mean this buffer.
    #[inline]
    pub fn is_live(self) -> bool {
        !self.is_free() && !self.is_quarantined()
    }

    /// Whether a handle exists.
    #[inline]
    pub fn handle_is_out(self) -> bool {
        self.0 & HANDLE_OUT != 0
    }

    /// Whether only a reclaim brings the buffer home.
    #[inline]
    pub fn is_retained(self) -> bool {
        self.0 & RETAINED != 0
    }

    /// Holds open.
    #[inline]
    pub fn holds(self) -> u32 {
        ((self.0 & HOLDS) / ONE_HOLD) as u32
    }
}
