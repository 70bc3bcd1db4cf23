//! What a liar is inclined to.

use crate::random::Random;

/// How it answers a Revoke.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answers {
    /// At once, and without meaning it.
    AtOnce,
    Never,
    Twice,
    /// As it comes.
    Anyhow,
}

/// The liar of a seed.
#[derive(Clone, Copy, Debug)]
pub struct Temper {
    /// Nothing else goes wrong in its run: then the engines that are none may not notice it among themselves (R5).
    pub is_alone: bool,
    pub answers: Answers,
    /// A lie in so many steps.
    pub lies_once_in: usize,
    /// One that ends a queue pair in so many.
    pub breaks_once_in: usize,
    /// Whether it ends with the faults as a process does, or only says nothing more.
    pub dies: bool,
    /// The rule that it breaks before others: one that ends its lanes by everything seldom gets to what takes a lane that has lasted.
    pub favourite: Option<Break>,
}

impl Temper {
    /// One seed in so many has a liar, of those that are not gentle.
    const ONCE_IN: usize = 6;

    /// Drawn apart from all else of a plan, so that seeds without one are what they were.
    pub fn draw(seed: u64) -> Option<Self> {
        let mut dice = Random::new(seed, 4);
        if !dice.once_in(Self::ONCE_IN) {
            return None;
        }
        Some(Self {
            is_alone: dice.once_in(2),
            answers: [
                Answers::AtOnce,
                Answers::Never,
                Answers::Twice,
                Answers::Anyhow,
            ][dice.below(4)],
            lies_once_in: [2, 4, 12][dice.below(3)],
            breaks_once_in: [100, 400, 2_000][dice.below(3)],
            dies: dice.once_in(2),
            favourite: dice
                .once_in(3)
                .then(|| Break::ALL[dice.below(Break::ALL.len())]),
        })
    }
}

/// A lie that a sound engine counts and drops.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lie {
    /// A frame that came or went before, in whatever session.
    Replay,
    Mutate,
    Cut,
    Noise,
    ContextCredit,
    LaneCredit,
    /// Messages, whatever their receiver takes.
    Flood,
    /// Memory of its own, opened by a key that works.
    Grant,
    /// What it granted, or never did.
    Revoke,
    /// An answer that nobody waits for.
    Revoked,
    /// Contexts that live, and that never were.
    Gone,
    /// Grants that it has, and that never were.
    Dropped,
    Landed,
    LookupReply,
    Lookup,
    /// A second hello, an orderly end.
    OutOfPlace,
    /// Another connection than it was asked for.
    Ask,
    /// A key that may live, within its bounds and rights.
    UseKey,
}

impl Lie {
    pub const ALL: [Self; 18] = [
        Self::Replay,
        Self::Mutate,
        Self::Cut,
        Self::Noise,
        Self::ContextCredit,
        Self::LaneCredit,
        Self::Flood,
        Self::Grant,
        Self::Revoke,
        Self::Revoked,
        Self::Gone,
        Self::Dropped,
        Self::Landed,
        Self::LookupReply,
        Self::Lookup,
        Self::OutOfPlace,
        Self::Ask,
        Self::UseKey,
    ];
}

/// A lie that ends a queue pair, so that it can't be told often.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Break {
    /// An access by a key that was revoked.
    DeadKey,
    /// One beyond a key's bytes.
    Beyond,
    /// One that a key does not allow.
    WrongRights,
    /// One by a key on a lane that it is not of.
    WrongLane,
    /// One by a key that never was.
    NoKey,
    /// A frame longer than a receive.
    Oversized,
    /// Frames, whatever receives are posted.
    BeyondCredit,
    /// A grant of an address and a key that are nothing.
    NonsenseGrant,
    /// Its end of a lane goes to error.
    Error,
    /// It posts no receives for a while.
    Starve,
    /// It is not there for a while.
    Stop,
    /// It ends, and comes back as another.
    Restart,
}

impl Break {
    pub const ALL: [Self; 12] = [
        Self::DeadKey,
        Self::Beyond,
        Self::WrongRights,
        Self::WrongLane,
        Self::NoKey,
        Self::Oversized,
        Self::BeyondCredit,
        Self::NonsenseGrant,
        Self::Error,
        Self::Starve,
        Self::Stop,
        Self::Restart,
    ];
}
