//! A fault plan: data, so that a seed, a test or a file can make one and a failed run can print it.

use crate::error::ControlError;
use crate::ids::{LcoreId, QpId};
use crate::wrap::trace::ControlCall;

/// What goes wrong, and when. Time is counted in polls and calls, so a plan repeats exactly.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Plan {
    /// All of it; where several apply, each does, in this order.
    pub injections: Vec<Injection>,
}

/// Which queue pairs an injection is about.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Target {
    /// Every one.
    Every,
    /// The one made n-th on this device, from 0.
    Created(u32),
    /// This one.
    Qp(QpId),
}

/// The n-th to the (n + count)-th of something, from 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Span {
    /// The first.
    pub first: u64,
    /// How many.
    pub count: u64,
}

/// One thing that goes wrong.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Injection {
    /// These completions of a queue pair come this many polls late. Its others wait behind them: order is kept.
    HoldBack {
        /// Of which queue pairs.
        target: Target,
        /// Which completions of each.
        span: Span,
        /// For how many polls of the path.
        polls: u64,
    },
    /// These completions of a queue pair never come.
    Swallow {
        /// Of which queue pairs.
        target: Target,
        /// Which completions of each.
        span: Span,
    },
    /// Every field of a failed completion that the contract leaves undefined holds garbage.
    Garbage {
        /// What garbage.
        seed: u64,
    },
    /// These posts take less than they could, as on a full queue.
    ShortPosts {
        /// To which queue pairs.
        target: Target,
        /// Which posts (calls) to each.
        span: Span,
        /// The most that each takes.
        take: usize,
    },
    /// The queue pair comes into error once this many requests of it were taken.
    ErrorQp {
        /// Which queue pairs.
        target: Target,
        /// After how many requests.
        after: u64,
    },
    /// These control calls go wrong.
    Control {
        /// Which kind of call.
        call: ControlCall,
        /// Which calls of that kind.
        span: Span,
        /// How.
        effect: ControlEffect,
    },
    /// A poll of the path panics: a bug in a driver, which takes the path's lcore with it.
    Panic {
        /// The lcore's path.
        lcore: LcoreId,
        /// Which of its polls, from 0.
        poll: u64,
    },
    /// Events of the control side come this many polls (of any path) late.
    HoldEvents {
        /// How many.
        polls: u64,
    },
}

/// How a control call goes wrong.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ControlEffect {
    /// Refused with this error; nothing was done.
    Refuse(ControlError),
    /// Hangs: it comes back as `Late`, and nothing was done.
    Late,
    /// Comes back as `Late` although it was done. The same call made again (one that returns nothing) finds it done.
    LateButDone,
}

impl Span {
    /// All.
    pub const EVERY: Self = Self {
        first: 0,
        count: u64::MAX,
    };

    /// The n-th alone, from 0.
    #[must_use]
    pub const fn one(first: u64) -> Self {
        Self { first, count: 1 }
    }

    /// Whether the n-th is among them.
    #[must_use]
    pub const fn contains(self, number: u64) -> bool {
        number >= self.first && number - self.first < self.count
    }
}

impl Plan {
    /// A plan of these injections.
    #[must_use]
    pub fn new(injections: impl Into<Vec<Injection>>) -> Self {
        Self {
            injections: injections.into(),
        }
    }
}
