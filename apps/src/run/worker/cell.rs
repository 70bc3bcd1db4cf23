//! One buffer of a worker: filled, kept quiet, scanned, used, and after a grant's end the same again.

use keyfence::Buf;
use keyfence::ids::GrantId;

use super::plan::Role;
use crate::run::pattern::{Fill, Words};

/// How long a filled buffer is left alone before it is scanned: an access that is late by less is what the oracle is for.
const QUIET_NS: u64 = 2_000_000;

/// Where a buffer is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// Filled so far.
    Fill(usize),
    /// Left alone until then.
    Quiet(u64),
    /// Scanned so far.
    Scan(usize),
    /// Good for its use.
    Ready,
    /// Open to the partner.
    Granted(GrantId),
    /// Taken back, its end not yet told.
    Revoked(GrantId),
}

/// One buffer.
#[derive(Debug)]
pub struct Cell {
    /// The memory.
    pub buf: Buf,
    /// What for.
    pub role: Role,
    /// Whether for the large operations.
    pub large: bool,
    /// Bytes that are used.
    pub len: usize,
    /// Where it is.
    pub state: State,
    /// Its last grant.
    pub grant: Option<GrantId>,
    /// Operations that use it.
    pub busy: u32,
    /// Whether somebody could have reached this memory before: another owner had it, or it was granted.
    pub reused: bool,
    /// What it was filled with.
    pub words: Words,
}

/// What a step of work on a buffer came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tended {
    /// Nothing to do now.
    Nothing,
    /// Some bytes; more to do.
    Bytes(usize),
    /// The scan has ended, with so many changed bytes.
    Scanned(u64),
}

impl Cell {
    /// A buffer just allocated.
    pub fn new(buf: Buf, role: Role, large: bool, len: usize, fill: Fill, reused: bool) -> Self {
        Self {
            buf,
            role,
            large,
            len,
            state: State::Fill(0),
            grant: None,
            busy: 0,
            reused,
            words: fill.words(),
        }
    }

    /// The grant has ended: the memory is the owner's alone, which is to be seen.
    pub fn zapped(&mut self, fill: Fill) {
        self.state = State::Fill(0);
        self.reused = true;
        self.words = fill.words();
    }

    /// Ends what [`Cell::tend`] has begun, at once: gives how many bytes have changed since they were filled.
    pub fn scan_rest(&mut self) -> u64 {
        let filled = match self.state {
            State::Fill(done) => done,
            _ => self.len,
        };
        self.state = State::Ready;
        self.words.changed(&self.buf.dma(), 0..filled)
    }

    /// Its addresses.
    pub fn addresses(&self) -> core::ops::Range<u64> {
        let start = self.buf.address();
        start..start + self.len as u64
    }

    /// Whether it is on the way from its allocation to its use.
    pub fn is_tended(&self) -> bool {
        matches!(
            self.state,
            State::Fill(_) | State::Quiet(_) | State::Scan(_)
        )
    }

    /// Does at most `budget` bytes of what is due.
    pub fn tend(&mut self, now_ns: u64, budget: usize, changed: &mut u64) -> Tended {
        let part = |done: usize| done..self.len.min(done + budget);
        match self.state {
            State::Fill(done) => {
                let range = part(done);
                let bytes = range.len();
                self.words.fill(&self.buf.dma(), range);
                self.state = if done + bytes == self.len {
                    State::Quiet(now_ns + QUIET_NS)
                } else {
                    State::Fill(done + bytes)
                };
                Tended::Bytes(bytes)
            }
            State::Quiet(until) if until <= now_ns => {
                self.state = State::Scan(0);
                self.tend(now_ns, budget, changed)
            }
            State::Scan(done) => {
                let range = part(done);
                let bytes = range.len();
                *changed += self.words.changed(&self.buf.dma(), range);
                if done + bytes < self.len {
                    self.state = State::Scan(done + bytes);
                    return Tended::Bytes(bytes);
                }
                self.state = State::Ready;
                Tended::Scanned(bytes as u64)
            }
            _ => Tended::Nothing,
        }
    }
}
