//! What the threads of a run share: where the run is, and what the driver and the workers tell each other.

use std::sync::{Mutex, MutexGuard, PoisonError};

use keyfence::config::LoadConfig;
use keyfence::pmd::wrap::check::Ledger;
use keyfence_mempool::sync::{Arc, AtomicU32, AtomicU64, Ordering};

use super::harm::Wishes;
use super::tally::Tally;
use crate::host::Clock;

/// Where a run is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Stage {
    /// Workers find their partners and grant; no traffic.
    Setup,
    /// Grants are revoked while nothing else is on the lanes: what is late is not hidden by what waits before it.
    WarmUp,
    /// Operations at a rate, latency from the intended start.
    Paced,
    /// As many as a window allows.
    Flat,
    /// No new operations.
    Drain,
}

/// Between which engines a board's traffic is.
#[derive(Clone, Debug)]
pub struct Link {
    /// Its number: 0 for the two engines under load, others for what goes on with the third one.
    pub number: usize,
    /// The engines of both sides, by their places in the file.
    pub engines: [usize; 2],
    /// Their names.
    pub names: [String; 2],
}

/// Everything that is shared.
#[derive(Debug)]
pub struct Board {
    /// Between whom.
    pub link: Link,
    /// One for all.
    pub clock: Clock,
    /// The load.
    pub load: LoadConfig,
    /// How long a single revoke waits for others: a flush after that finds its epoch under way.
    pub flush_interval_ns: u64,
    /// The two sides.
    pub sides: [Side; 2],
    /// What breaks lanes, and when it did.
    pub wishes: Arc<Wishes>,
    stage: AtomicU32,
    reclaims_open: AtomicU32,
    /// When the quiet part ends, or ended.
    quiet_until_ns: AtomicU64,
}

/// One engine's.
#[derive(Debug)]
pub struct Side {
    /// The oracle on its device; another one when the engine starts anew.
    ledger: Mutex<Arc<Ledger>>,
    /// A word a worker, by its number.
    pub members: Vec<Member>,
    /// What its live workers are to look for in the memory of one that has just died.
    pub hunt: Hunt,
    tally: Mutex<Tally>,
}

/// How names of those begin that deal with the third engine.
pub const GUEST: &str = "guest-";

/// A worker's flags. It sets its own, and others leave requests.
#[derive(Debug, Default)]
pub struct Member(AtomicU32);

/// It has a partner and what it needs for traffic.
pub const READY: u32 = 1;
/// It is to keep many operations in flight: the driver will kill it.
pub const DOOMED: u32 = 1 << 1;
/// Asked to be busy, it is.
pub const BUSY: u32 = 1 << 2;
/// Its partner is about to revoke a grant: it is to have operations by it in flight.
pub const HOT: u32 = 1 << 3;
/// In the drain: all its operations have ended.
pub const DRAINED: u32 = 1 << 4;
/// It is to revoke one of its grants.
pub const REVOKE: u32 = 1 << 5;
/// It is to panic.
pub const PANIC: u32 = 1 << 6;

impl Member {
    /// Whether all of these flags are set.
    pub fn has(&self, flags: u32) -> bool {
        // Relaxed, here and below: hints, and no memory follows from them.
        self.0.load(Ordering::Relaxed) & flags == flags
    }

    /// Whether any of these flags is set.
    pub fn has_any(&self, flags: u32) -> bool {
        self.0.load(Ordering::Relaxed) & flags != 0
    }

    /// Sets flags.
    pub fn set(&self, flags: u32) {
        self.0.fetch_or(flags, Ordering::Relaxed);
    }

    /// Clears flags; whether one was set.
    pub fn clear(&self, flags: u32) -> bool {
        self.0.fetch_and(!flags, Ordering::Relaxed) & flags != 0
    }

    /// A new worker in this place.
    pub fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

/// Asks live workers to take buffers right after a death: the freed ones are at the top of their pool, and whatever still reaches them
/// is seen.
#[derive(Debug, Default)]
pub struct Hunt {
    left: AtomicU32,
    step_ns: AtomicU64,
}

/// Buffers taken after one death, and at most in one step, since each is looked up in the oracle's books.
const HUNT_BUFFERS: u32 = 12;
const HUNT_BUFFERS_A_STEP: u32 = 2;

impl Hunt {
    /// A context of this side has died.
    pub fn begin(&self) {
        self.left.store(HUNT_BUFFERS, Ordering::Relaxed);
    }

    /// Whether a worker that is polled in the step of `now_ns` is to take a buffer. On an engine of several lcores a few more are taken.
    #[inline]
    pub fn take(&self, now_ns: u64) -> bool {
        let left = self.left.load(Ordering::Relaxed);
        if left == 0 {
            return false;
        }
        if left.is_multiple_of(HUNT_BUFFERS_A_STEP)
            && self.step_ns.swap(now_ns, Ordering::Relaxed) == now_ns
        {
            return false;
        }
        self.left.store(left - 1, Ordering::Relaxed);
        true
    }
}

impl Side {
    /// A side with `members` workers.
    pub fn new(ledger: Arc<Ledger>, members: usize) -> Self {
        Self {
            ledger: Mutex::new(ledger),
            members: (0..members).map(|_| Member::default()).collect(),
            hunt: Hunt::default(),
            tally: Mutex::new(Tally::default()),
        }
    }

    /// The oracle on its device.
    pub fn ledger(&self) -> Arc<Ledger> {
        let ledger = self.ledger.lock();
        Arc::clone(&ledger.unwrap_or_else(PoisonError::into_inner))
    }

    /// Its engine starts anew, on another device.
    pub fn set_ledger(&self, ledger: Arc<Ledger>) {
        *self.ledger.lock().unwrap_or_else(PoisonError::into_inner) = ledger;
    }

    /// The figures. The lock is the lcore's own nearly always: the driver looks at the end.
    pub fn tally(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Board {
    /// A run in its setup.
    pub fn new(
        link: Link,
        clock: Clock,
        load: LoadConfig,
        flush_interval_ns: u64,
        sides: [Side; 2],
        wishes: Arc<Wishes>,
    ) -> Self {
        Self {
            link,
            wishes,
            quiet_until_ns: AtomicU64::new(0),
            clock,
            load,
            flush_interval_ns,
            sides,
            stage: AtomicU32::new(Stage::Setup as u32),
            reclaims_open: AtomicU32::new(0),
        }
    }

    /// The name by which the partner of worker `index` finds it.
    pub fn name_of(&self, index: usize) -> String {
        match self.link.number {
            0 => format!("load-{index}"),
            number => format!("{GUEST}{number}-{index}"),
        }
    }

    /// Whether sessions of these sides may be lost.
    pub fn is_lossy(&self) -> bool {
        self.link.number > 0
    }

    /// Where the run is.
    #[inline]
    pub fn stage(&self) -> Stage {
        match self.stage.load(Ordering::Relaxed) {
            0 => Stage::Setup,
            1 => Stage::WarmUp,
            2 => Stage::Paced,
            3 => Stage::Flat,
            _ => Stage::Drain,
        }
    }

    /// Moves the run on.
    pub fn enter(&self, stage: Stage) {
        self.stage.store(stage as u32, Ordering::Relaxed);
    }

    /// A reclaim was asked for.
    pub fn reclaim_began(&self) {
        self.reclaims_open.fetch_add(1, Ordering::Relaxed);
    }

    /// One has ended.
    pub fn reclaim_ended(&self) {
        self.reclaims_open.fetch_sub(1, Ordering::Relaxed);
    }

    /// Nothing is done to anybody until then.
    pub fn quiet_until(&self, until_ns: u64) {
        self.quiet_until_ns.store(until_ns, Ordering::Relaxed);
    }

    /// Whether something is done to somebody: in a run with a quiet part, from its end on; else while somebody is being reclaimed, on either side.
    pub fn is_chaos(&self, now_ns: u64) -> bool {
        match self.load.quiet_share > 0.0 {
            true => now_ns >= self.quiet_until_ns.load(Ordering::Relaxed),
            false => self.reclaims_open.load(Ordering::Relaxed) > 0,
        }
    }

    /// Whether worker `index` of `side` has nothing done to it: one of those set apart for that, or, where there are none, one whose partner is not dying.
    pub fn is_bystander(&self, side: usize, index: usize) -> bool {
        match self.load.bystanders {
            0 => !self.sides[1 - side].members[index].has(DOOMED),
            bystanders => index < bystanders as usize,
        }
    }

    /// All workers of both sides.
    pub fn members(&self) -> impl Iterator<Item = &Member> {
        self.sides.iter().flat_map(|side| &side.members)
    }
}
