//! Which pairs of event and state can happen: the table, one row an event, one place a state.

use Chance::{Happens, Mostly, Never, Rare, Untold};

use super::key::Scope;
use super::pairs::{Pair, PairSet};

/// Whether a pair can happen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Chance {
    /// An engine among honest peers meets it sooner or later, with keys of any scope or of this one alone. A run that is to show anything must have met it.
    Happens(
        /// Of which keys; `None`: of any.
        Option<Scope>,
    ),
    /// It happens with keys of this scope, and with others it is rare.
    Mostly(
        /// Of which keys a run must have met it.
        Scope,
        /// What it takes with others.
        &'static str,
    ),
    /// An engine may meet it, but no run owes it: it takes a race that few runs have, or a peer that makes it up.
    Rare(
        /// What it takes.
        &'static str,
    ),
    /// The machine takes it as no harm, but this engine does not tell it.
    Untold(
        /// Why not.
        &'static str,
    ),
    /// It can't happen while the machine's user keeps its part. On most of these the machine panics.
    Never(
        /// Why not.
        &'static str,
    ),
}

impl Pair {
    /// Whether it can happen.
    #[must_use]
    pub fn chance(self) -> Chance {
        let (row, state) = self.place();
        row.chances[state]
    }

    /// Whether a user of the machine that keeps its part can tell it.
    #[must_use]
    pub fn is_possible(self) -> bool {
        !matches!(self.chance(), Chance::Never(_))
    }

    /// Whether an engine whose keys are of `scope` meets it, sooner or later.
    #[must_use]
    pub fn is_expected(self, scope: Scope) -> bool {
        match self.chance() {
            Happens(of) => of.is_none_or(|of| of == scope),
            Mostly(of, _) => of == scope,
            _ => false,
        }
    }

    /// Whether such an engine may meet it at all.
    #[must_use]
    pub fn is_told(self, scope: Scope) -> bool {
        self.is_expected(scope) || matches!(self.chance(), Rare(_) | Mostly(..))
    }
}

impl PairSet {
    /// Each pair that a user of the machine that keeps its part can tell.
    #[must_use]
    pub fn possible() -> Self {
        Pair::all().filter(|pair| pair.is_possible()).collect()
    }

    /// Each pair that an engine whose keys are of `scope` meets, sooner or later.
    #[must_use]
    pub fn expected(scope: Scope) -> Self {
        let pairs = Pair::all().filter(|pair| pair.is_expected(scope));
        pairs.collect()
    }

    /// Each pair that such an engine may meet at all.
    #[must_use]
    pub fn told(scope: Scope) -> Self {
        Pair::all().filter(|pair| pair.is_told(scope)).collect()
    }
}

/// A row of the table.
pub(super) struct Row {
    pub event: &'static str,
    pub states: &'static [&'static str],
    chances: &'static [Chance],
}

macro_rules! table {
    ($($kind:ident $event:literal $states:ident [$($chance:expr),* $(,)?],)*) => {
        /// The rows, in their order.
        #[derive(Clone, Copy)]
        pub(super) enum Kind {
            $($kind,)*
        }

        pub(super) const ROWS: &[Row] = &[
            $(Row { event: $event, states: $states, chances: &[$($chance),*] },)*
        ];
    };
}

/// Where each row's pairs begin.
pub(super) const BASES: [u8; ROWS.len()] = {
    let mut bases = [0; ROWS.len()];
    let mut row = 1;
    while row < ROWS.len() {
        let before = ROWS[row - 1].states.len();
        assert!(before == ROWS[row - 1].chances.len());
        bases[row] = bases[row - 1] + before as u8;
        row += 1;
    }
    bases
};

const KEY: &[&str] = &[
    "binding",
    "live",
    "fencing",
    "invalidating",
    "unproven",
    "parked",
    "dead",
];
const STRAND: &[&str] = &[
    "idle",
    "fencing",
    "closing",
    "deallocating",
    "await_destroy",
    "ended",
    "gone",
];
/// A context's strand is always known.
const OWN: &[&str] = &[
    "idle",
    "fencing",
    "closing",
    "deallocating",
    "await_destroy",
    "ended",
];
const LANE: &[&str] = &["up", "breaking", "broken", "destroyed"];
const CONTEXT: &[&str] = &["open", "cordoned", "quarantined"];
const TIMER: &[&str] = &["collecting", "fence", "invalidate", "final", "stale"];
const FLUSH: &[&str] = &["nothing", "retired", "quarantine"];

const ANY: Chance = Happens(None);
const WINDOWS: Chance = Happens(Some(Scope::Queue));
const REGIONS: Chance = Happens(Some(Scope::Domain));

/// About keys.
const IN_USE: Chance = Never("only a dead key is bound");
const ONE_END: Chance = Never("a bind or a registration ends once");
const TOO_LATE: Chance = Rare("a break or a control call that takes longer than the epoch has");
const BEHIND_THE_PROOF: Chance =
    Untold("a queue pair is given up before its keys are deallocated, and what came is told first");
const REGISTRATION: Chance = Untold("a registration is answered before its deregistration");
const ONCE: Chance = Untold("the engine retires a grant once");
const NAME_GONE: Chance =
    Untold("with the key's death its grant's name ends, and is looked up first");
const NOT_POSTED: Chance = Never("no invalidation was posted");
const BREAKS_INSTEAD: Chance =
    Untold("a request that fails is the lane's break to the engine, and told as that");
const NOT_ORDERED: Chance = Never("no deallocation was ordered");
const TWO_CALLS: Chance = Rare("the call that was late and the one made at the break both return");

/// About strands.
const NOT_CHAINED: Chance = Never("a chain that was ordered is in hand, or nothing of it");
const CHAIN_DROPPED: Chance = Never("a lane's chains are dropped before it breaks");
const REFUSED_ONCE: Chance = Never("a chain is refused once");
const NOT_CLOSED: Chance = Never("no closing request was posted");
const IN_ORDER: Chance = Untold("own operations before a closing request are told before it");
const BESIDE_REGIONS: Chance =
    Rare("regions whose deregistration takes longer than the closing request beside them");
const SHORT: Chance = Rare("the strand is there for the time of one control call");

/// About lanes and contexts.
const UP: Chance = Never("the queue pair is not in error");
const GONE_ALREADY: Chance = Never("a queue pair is destroyed once");
const DOMAIN: Chance =
    Never("a domain is destroyed behind its queue pairs, and its lanes' index kept for it");
const NOT_ASKED: Chance = Never("nothing was flushed that a target could answer for");
const REPAIRED: Chance = Rare("lanes are repaired (`limits.rebuilds`)");
const NO_ANSWER: Chance =
    Untold("without lane repair a target is lost when the queue pair is gone, never asked");
const CORDONED_ONCE: Chance = Never("a context is cordoned once");

/// About timers: its epoch has one armed, of the step that it is in.
const OTHER_STEP: Chance = Never("the timer of another step");
const DISARMED: Chance = Untold("the engine's timers are off when they are disarmed");

table! {
    // KEY: binding, live, fencing, invalidating, unproven, parked, dead.
    Bind "bind" KEY [
        IN_USE, IN_USE, IN_USE, IN_USE, IN_USE, IN_USE, ANY,
    ],
    BindDone "bind_done" KEY [
        ANY, ONE_END, ONE_END, ONE_END, TOO_LATE, BEHIND_THE_PROOF, BEHIND_THE_PROOF,
    ],
    // Of windows it is the break of their lane.
    BindFailed "bind_failed" KEY [
        REGIONS, ONE_END, ONE_END, ONE_END, TOO_LATE, REGISTRATION, REGISTRATION,
    ],
    Retire "retire" KEY [
        ANY, ANY, ONCE, ONCE, ONCE, ONCE, Never("a dead key has no grant"),
    ],
    // A region's grant is told to its holder when it is registered, first. A region is never invalidated.
    ImportDropped "import_dropped" KEY [
        Mostly(Scope::Queue, "a holder that dies while the lane is repaired: the grant has a new region"), ANY, ANY, WINDOWS, Rare("a key given up on a lane that is up, whose holder is late too"), ANY, NAME_GONE,
    ],
    Invalidated "invalidated" KEY [
        NOT_POSTED, NOT_POSTED, NOT_POSTED, WINDOWS, TOO_LATE, BEHIND_THE_PROOF, BEHIND_THE_PROOF,
    ],
    InvalidateFailed "invalidate_failed" KEY [
        NOT_POSTED, NOT_POSTED, NOT_POSTED, BREAKS_INSTEAD, BREAKS_INSTEAD, BREAKS_INSTEAD, BREAKS_INSTEAD,
    ],
    // A region is registered or refused by then.
    Deallocated "deallocated" KEY [
        WINDOWS, NOT_ORDERED, ANY, WINDOWS, ANY, TWO_CALLS, NAME_GONE,
    ],
    // A window's lane breaks for it, and what fails on a broken lane is given up at once.
    DeallocFailed "dealloc_failed" KEY [
        WINDOWS, NOT_ORDERED, ANY, WINDOWS, TOO_LATE, TWO_CALLS, NAME_GONE,
    ],
    // STRAND: idle, fencing, closing, deallocating, await_destroy, ended, gone.
    Acked "acked" STRAND [
        Rare("a peer makes it up"),
        ANY,
        ANY,
        SHORT,
        Untold("nothing is read from a lane that breaks"),
        Rare("it comes between its lane's last proof and its epoch's end"),
        ANY,
    ],
    ChainRefused "chain_refused" STRAND [
        NOT_CHAINED,
        NOT_CHAINED,
        WINDOWS,
        REFUSED_ONCE,
        CHAIN_DROPPED,
        Rare("a chain posted to its end with the step's budget, and refused in the next step"),
        Rare("a chain posted to its end with the step's budget, and refused in the next step"),
    ],
    ClosingDone "closing_done" STRAND [
        NOT_CLOSED, NOT_CLOSED, BESIDE_REGIONS, NOT_CLOSED, BESIDE_REGIONS, ANY, ANY,
    ],
    ClosingFailed "closing_failed" STRAND [
        NOT_CLOSED, NOT_CLOSED, BREAKS_INSTEAD, NOT_CLOSED, BREAKS_INSTEAD, BREAKS_INSTEAD, BREAKS_INSTEAD,
    ],
    // OWN: idle, fencing, closing, deallocating, await_destroy, ended.
    OwnOpsEnded "own_ops_ended" OWN [
        Untold("the engine counts them, and tells the last one"),
        ANY,
        ANY,
        SHORT,
        ANY,
        IN_ORDER,
    ],
    // CONTEXT: open, cordoned, quarantined.
    Cordon "cordon" CONTEXT [ANY, CORDONED_ONCE, CORDONED_ONCE],
    HandlesReturned "handles_returned" CONTEXT [
        Untold("nobody waits for an open context's handles"), ANY, ANY,
    ],
    // LANE: up, breaking, broken, destroyed.
    LaneBroken "lane_broken" LANE [
        ANY,
        ANY,
        Untold("the control side errors a queue pair once"),
        Untold("the control side errors a queue pair once"),
    ],
    QpDestroyed "qp_destroyed" LANE [UP, UP, ANY, GONE_ALREADY],
    DomainDestroyed "domain_destroyed" LANE [DOMAIN, DOMAIN, DOMAIN, REGIONS],
    TargetConfirmed "target_confirmed" LANE [NOT_ASKED, NOT_ASKED, REPAIRED, REPAIRED],
    TargetLost "target_lost" LANE [NOT_ASKED, NOT_ASKED, NO_ANSWER, ANY],
    // FLUSH: nothing, retired, quarantine.
    Flush "flush" FLUSH [ANY, ANY, ANY],
    // TIMER: collecting, fence, invalidate, final, stale.
    Interval "interval_expired" TIMER [ANY, OTHER_STEP, OTHER_STEP, OTHER_STEP, DISARMED],
    Fence "fence_expired" TIMER [OTHER_STEP, ANY, OTHER_STEP, OTHER_STEP, DISARMED],
    Invalidate "invalidate_expired" TIMER [OTHER_STEP, OTHER_STEP, ANY, OTHER_STEP, DISARMED],
    Final "final_expired" TIMER [OTHER_STEP, OTHER_STEP, OTHER_STEP, ANY, DISARMED],
}
