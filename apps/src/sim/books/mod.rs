//! The oracle's books: what contexts did and were told, and what the simulated network says touched memory. They see public events, the double entry of
//! [`Check`](keyfence::pmd::wrap::check) and the network's own record of accesses; of an engine's own counts they take the last word alone, that nothing is left. What is found wrong is kept under the promise's name.

mod ends;
mod eras;
mod grants;
mod keys;
mod memory;
mod messages;
mod ops;
mod quarantine;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use keyfence::config::{KeyMode, Timeouts};
use keyfence::ids::{ContextId, GrantId, ImportId, LcoreId, PeerId, RemoteContext};
use keyfence::pmd::QpId;
use keyfence::pmd::Rkey;
use keyfence::pmd::sim::{Access, World};
use keyfence::pmd::wrap::check::Ledger;

use super::plan::Plan;
use crate::random::mix;
pub use ops::About;
pub use quarantine::Told;

/// A check, by the name of the promise it is of.
pub type Check = &'static str;

/// Something that must not be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    pub check: Check,
    pub what: String,
    pub at_ns: u64,
}

/// A context of one life of one engine.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Who {
    pub host: usize,
    /// How often the engine was started before.
    pub life: u32,
    pub id: ContextId,
}

/// What a run has done, so that an empty one is seen.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Tally {
    pub ops: u64,
    pub ops_ok: u64,
    pub messages: u64,
    pub grants: u64,
    pub zapped: u64,
    pub grants_quarantined: u64,
    pub reclaims: u64,
    pub quarantines: u64,
    /// Notices of another engine's context with something in quarantine, held against what that engine's device honours.
    pub quarantines_heard: u64,
    pub sessions_lost: u64,
    pub flushes: u64,
    pub accesses: u64,
    pub keys_reused: u64,
}

/// All of a run.
pub struct Books {
    world: World,
    hosts: Vec<HostBook>,
    /// The engine and life that each adapter of the world is of.
    adapters: Vec<(usize, u32)>,
    messages: messages::Messages,
    eras: eras::Eras,
    failures: Vec<Failure>,
    batch: Vec<Access>,
    serial: u64,
    is_gentle: bool,
    /// Queue pairs break and nothing else.
    only_breaks: bool,
    /// The host that is no engine, and enters nothing.
    liar: Option<usize>,
    /// Nothing but the liar harms its run.
    liar_is_alone: bool,
    timeouts: Timeouts,
    /// Whether a key opens its bytes alone on these devices.
    is_exact: bool,
    /// Whether a key is a window, bound on a queue pair that the books know.
    windows: bool,
    /// Of all that contexts and owners were told.
    hash: u64,
    pub tally: Tally,
    /// No new work is begun any more.
    pub winding_down: bool,
}

/// One engine in its present life.
struct HostBook {
    life: u32,
    ledger: Option<Arc<Ledger>>,
    /// By its own clock, in its last step.
    now_ns: u64,
    /// The last time at which it was not stepped as it should be.
    disturbed_ns: u64,
    bound_ns: u64,
    /// How often it rebuilds a lane.
    rebuilds: u32,
    /// When sessions with each of the others began and ended last, as its owner was told.
    sessions: BTreeMap<usize, ends::Session>,
    contexts: BTreeMap<ContextId, ends::ContextBook>,
    memory: memory::Memory,
    grants: BTreeMap<(LcoreId, GrantId), grants::GrantBook>,
    /// Lengths of grants that have not ended: each has one of its own, so that a range and an import name their grant.
    lens: BTreeMap<u64, (LcoreId, GrantId)>,
    len_turn: u64,
    imports: BTreeMap<(LcoreId, ImportId), (usize, LcoreId, GrantId)>,
    ops: BTreeMap<(ContextId, u64), ops::OpBook>,
    flushes: BTreeMap<(ContextId, u64), Vec<(LcoreId, GrantId)>>,
    keys: BTreeMap<(QpId, Rkey), (LcoreId, GrantId)>,
    /// Grants that had not ended when their memory was given to another, with their owners.
    suspects: Vec<(ContextId, (LcoreId, GrantId))>,
}

/// No engine's: what is on the adapter is not judged.
const NO_LIFE: u32 = u32::MAX;

/// The books as all who write in them share them.
#[derive(Clone)]
pub struct Shared(Arc<Mutex<Books>>);

impl Shared {
    pub fn new(plan: &Plan, world: World) -> Self {
        let hosts = plan.hosts.iter().map(|host| HostBook {
            life: 0,
            ledger: None,
            now_ns: 0,
            disturbed_ns: 0,
            bound_ns: plan.timeouts.reclaim_bound_ns(host.limits.keys()),
            rebuilds: host.limits.rebuilds,
            sessions: BTreeMap::new(),
            contexts: BTreeMap::new(),
            memory: memory::Memory::default(),
            grants: BTreeMap::new(),
            lens: BTreeMap::new(),
            len_turn: 0,
            imports: BTreeMap::new(),
            ops: BTreeMap::new(),
            flushes: BTreeMap::new(),
            keys: BTreeMap::new(),
            suspects: Vec::new(),
        });
        Self(Arc::new(Mutex::new(Books {
            hosts: hosts.collect(),
            adapters: Vec::new(),
            messages: messages::Messages::default(),
            eras: eras::Eras::default(),
            failures: Vec::new(),
            batch: Vec::new(),
            serial: 0,
            is_gentle: plan.is_gentle,
            only_breaks: plan.only_breaks,
            liar: plan.liar.map(|_| plan.hosts.len() - 1),
            liar_is_alone: plan.liar.is_some_and(|liar| liar.is_alone),
            timeouts: plan.timeouts.clone(),
            is_exact: plan.device.window_bounds || plan.key_mode == KeyMode::Region,
            windows: plan.key_mode == KeyMode::Window,
            hash: plan.seed,
            tally: Tally::default(),
            winding_down: false,
            world,
        })))
    }

    /// One thread runs a seed, so this never waits. A service that panicked while it wrote is one that was told to.
    pub fn open(&self) -> MutexGuard<'_, Books> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Books {
    pub fn fail(&mut self, check: Check, what: String) {
        let at_ns = self.world.now_ns();
        self.failures.push(Failure { check, what, at_ns });
    }

    pub fn failures(&self) -> &[Failure] {
        &self.failures
    }

    /// A hash over everything that was entered.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// Enters that something was told. Nothing in its words may depend on the process.
    fn told(&mut self, words: &dyn core::fmt::Debug) {
        for byte in format!("{words:?}").bytes() {
            self.hash = mix(self.hash ^ u64::from(byte));
        }
    }

    /// A number that nothing else has.
    pub fn serial(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    pub fn who(&self, host: usize, id: ContextId) -> Who {
        Who {
            host,
            life: self.hosts[host].life,
            id,
        }
    }

    /// Whether a host is an engine, whose contexts enter what they do.
    pub fn is_engine(&self, host: usize) -> bool {
        self.liar != Some(host)
    }

    /// The host that a peer of `host` is: peers stand in the order of the hosts, without itself.
    pub(super) fn host_of(&self, host: usize, peer: PeerId) -> usize {
        let peer = usize::from(peer.0);
        if peer < host { peer } else { peer + 1 }
    }

    /// A peer's context, as `host` names it.
    pub fn remote(&self, host: usize, remote: &RemoteContext) -> Who {
        self.who(self.host_of(host, remote.peer), remote.id)
    }

    /// An engine has started, on the adapter that was made last.
    pub fn started(&mut self, host: usize, ledger: Arc<Ledger>) {
        let life = self.hosts[host].life;
        self.adapters.push((host, life));
        self.hosts[host].ledger = Some(ledger);
    }

    /// The liar has come, on the adapter that was made last: whoever touches its memory touches nobody's.
    pub fn started_without_books(&mut self, host: usize) {
        self.adapters.push((host, NO_LIFE));
    }

    /// An engine's process has ended. Whoever remembers it remembers another life.
    pub fn died(&mut self, host: usize) {
        self.absorb();
        let book = &mut self.hosts[host];
        book.life += 1;
        book.ledger = None;
        book.contexts.clear();
        book.memory = memory::Memory::default();
        book.grants.clear();
        book.lens.clear();
        book.imports.clear();
        book.ops.clear();
        book.flushes.clear();
        book.keys.clear();
        for other in &mut self.hosts {
            other.imports.retain(|_, (owner, ..)| *owner != host);
        }
    }

    /// An engine is about to be stepped at `now_ns` of its own clock.
    pub fn stepping(&mut self, host: usize, now_ns: u64) {
        self.absorb();
        self.settle_doubts();
        for (owner, id) in core::mem::take(&mut self.hosts[host].suspects) {
            self.fail("r1_reuse", format!("engine {host}: memory of {owner} was given to another, and its grant {id:?} has not ended"));
        }
        self.hosts[host].now_ns = now_ns;
    }

    /// An engine was stopped, or its clock jumped, until now.
    pub fn disturbed(&mut self, host: usize, now_ns: u64) {
        self.hosts[host].disturbed_ns = now_ns;
    }

    /// R1: judges what has touched memory since, by what is known until now. Called before anything is entered.
    pub fn absorb(&mut self) {
        let mut batch = core::mem::take(&mut self.batch);
        let lost = self.world.take_accesses(&mut batch);
        if lost > 0 {
            self.fail("evidence", format!("{lost} accesses were not recorded"));
        }
        for access in batch.drain(..) {
            self.tally.accesses += 1;
            self.judge_access(&access);
        }
        self.batch = batch;
    }

    fn ledger(&self, host: usize) -> &Ledger {
        self.hosts[host].ledger.as_deref().expect("it is started")
    }
}
