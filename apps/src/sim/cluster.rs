//! Engines on one simulated network, stepped by one thread in virtual time, and meddled with.

use keyfence::config::KeyMode;
use keyfence::ids::LcoreId;
use keyfence::pmd::sim::{SimFaults, World};
use keyfence::pmd::wrap::check::{Check, Party};
use keyfence::reclaim::PairSet;
use keyfence::{EngineBuilder, Usage, Work};
use keyfence_mempool::sync::Arc;

use super::actor::{Actor, NAMES, Shelf, Temper};
use super::books::Shared;
use super::harm::{Harm, Harms};
use super::host::Host;
use super::liar::Liar;
use super::plan::{MS, Plan, US};
use super::tap::{Tap, Tape};
use crate::random::Random;

/// The longest that nothing is looked at.
const NAP_NS: u64 = 40 * US;

/// Steps within which everything must have ended when the faults have.
const END_STEPS: u64 = 400_000;

/// Within which everything that the living are owed has come: the longest reclaim, and a lost session before it.
const SETTLED_NS: u64 = 60 * MS;

/// The longest that an engine may take to close and to take leave, before another takes its place all the same.
const CLOSED_NS: u64 = 30 * MS;

/// All engines of a run.
pub struct Cluster<'a> {
    plan: &'a Plan,
    world: World,
    books: Shared,
    tape: Tape,
    /// Handles that outlive their contexts.
    shelf: Shelf,
    hosts: Vec<Host>,
    /// The host behind them, if that is no engine.
    liar: Option<Liar>,
    dice: Random,
    now_ns: u64,
    /// No control call is done before.
    hung_until_ns: u64,
    met: Met,
}

/// What a run has met.
#[derive(Clone, Copy, Debug, Default)]
pub struct Met {
    pub harms: Harms,
    /// Of the reclaim machines of all engines.
    pub pairs: PairSet,
}

const HOST_NAMES: [&str; 3] = ["a", "b", "c"];

impl<'a> Cluster<'a> {
    pub fn new(plan: &'a Plan, world: World, books: Shared, tape: Tape) -> Result<Self, String> {
        let mut cluster = Self {
            plan,
            world,
            books,
            tape,
            shelf: Shelf::default(),
            hosts: Vec::new(),
            liar: None,
            dice: Random::new(plan.seed, 2),
            now_ns: 1,
            hung_until_ns: 0,
            met: Met::default(),
        };
        let engines = plan.hosts.len() - usize::from(plan.liar.is_some());
        for at in 0..engines {
            let host = cluster.start(at, 0)?;
            cluster.hosts.push(host);
        }
        if let Some(temper) = plan.liar {
            let names = &HOST_NAMES[..plan.hosts.len()];
            let network = (
                cluster.world.clone(),
                cluster.books.clone(),
                cluster.tape.clone(),
            );
            cluster.liar = Some(Liar::new(network, names, temper, plan.seed)?);
        }
        Ok(cluster)
    }

    fn start(&mut self, at: usize, life: u32) -> Result<Host, String> {
        let plan = &self.plan.hosts[at];
        let mut builder = EngineBuilder::new(HOST_NAMES[at], plan.lcores)
            .key_mode(self.plan.key_mode)
            .memory(plan.memory.clone())
            .limits(plan.limits.clone())
            .timeouts(self.plan.timeouts.clone());
        for (peer, other) in self.plan.hosts.iter().enumerate() {
            if peer != at {
                let name = HOST_NAMES[peer];
                builder = builder.peer(name, &format!("local:{name}"), other.lcores.into());
            }
        }
        let device = self.world.device(HOST_NAMES[at]);
        let adapter = device.number();
        let device = Check::new(device);
        let ledger = device.ledger();
        self.books.open().started(at, Arc::clone(&ledger));
        let device = Tap::new(
            device,
            (at, plan.limits.reclaim_budget_wrs),
            self.books.clone(),
            self.tape.clone(),
        );
        let seed = u128::from(self.dice.bits()) << 64 | u128::from(self.dice.bits());
        let engine = builder.build(device, seed);
        let mut engine = engine.map_err(|error| format!("engine {}: {error}", HOST_NAMES[at]))?;
        let lcores = (0..plan.lcores).map(|lcore| engine.take_lcore(LcoreId(lcore)));
        let lcores = lcores.map(|lcore| lcore.expect("taken once")).collect();
        Ok(Host {
            engine,
            lcores,
            ledger,
            adapter,
            stopped_until_ns: 0,
            ahead_ns: 0,
            life,
            closing_until_ns: None,
        })
    }

    /// What was met, in the lives that have ended, too.
    pub fn met(mut self) -> Met {
        for at in 0..self.hosts.len() {
            self.collect_pairs(at);
        }
        if let Some(liar) = &self.liar {
            self.met.harms.add_all(liar.harms);
        }
        self.met
    }

    fn collect_pairs(&mut self, at: usize) {
        for lcore in &self.hosts[at].lcores {
            self.met.pairs = self.met.pairs.union(*lcore.reclaim_pairs());
        }
    }

    /// The faulty part, then the part in which all must end. `Err` if an engine could not be made.
    pub fn run(&mut self) -> Result<(), String> {
        for at in 0..self.hosts.len() {
            for name in NAMES {
                if self.dice.once_in(2) {
                    self.open(at, name);
                }
            }
        }
        self.set_faults();
        while self.now_ns < self.plan.troubled_ns {
            self.meddle()?;
            self.step();
            if !self.books.open().failures().is_empty() {
                return Ok(());
            }
        }
        self.wind_down();
        Ok(())
    }

    /// One step of everything. Where nobody had work, the next one is as far away as the next happening, or a nap.
    fn step(&mut self) -> bool {
        self.world.advance_to(self.now_ns);
        self.tape.reel().now_ns = self.now_ns;
        let mut busy = false;
        for at in 0..self.hosts.len() {
            if self.hosts[at].stopped_until_ns <= self.now_ns {
                busy |= self.step_host(at);
            }
        }
        busy |= self
            .liar
            .as_mut()
            .is_some_and(|liar| liar.step(self.now_ns));
        let least_ns = 1 + self.dice.below(self.plan.step_ns as usize) as u64;
        let wait_ns = match self.world.next_ns() {
            _ if busy => least_ns,
            Some(next_ns) => next_ns.saturating_sub(self.now_ns).clamp(least_ns, NAP_NS),
            None => NAP_NS,
        };
        self.now_ns += wait_ns;
        busy
    }

    fn step_host(&mut self, at: usize) -> bool {
        let host = &mut self.hosts[at];
        let now_ns = self.now_ns + host.ahead_ns;
        self.books.open().stepping(at, now_ns);
        let mut busy = false;
        for lcore in &mut host.lcores {
            busy |= lcore.step(now_ns) == Work::Busy;
        }
        busy |= host.engine.control(now_ns);
        while let Some(event) = host.engine.poll_event() {
            self.tape
                .reel()
                .note(|line| line.push_str(&format!("engine {at}: {event:?}")));
            self.books.open().engine_event(at, &event);
        }
        busy
    }

    fn open(&mut self, at: usize, name: &str) {
        let mut temper = Temper::draw(&mut self.dice);
        temper.panic_per_million = self.plan.meddling.panic;
        temper.deafness_per_million = self.plan.meddling.deafness;
        let peers = self.plan.hosts.len() - 1;
        let seed = self.dice.bits();
        let actor = Actor::new(
            at,
            peers,
            temper,
            seed,
            self.books.clone(),
            self.shelf.clone(),
        );
        let lcore = LcoreId(self.dice.below(self.hosts[at].lcores.len()) as u16);
        let weight = 1 + self.dice.below(4) as u32;
        // One of that name may be ending.
        let _ = self.hosts[at]
            .engine
            .open(lcore, name, weight, Box::new(actor));
    }

    /// Does to the engines what the plan has in store.
    fn meddle(&mut self) -> Result<(), String> {
        let rates = self.plan.meddling;
        let at = self.dice.below(self.hosts.len());
        if self.chance(rates.open_or_kill) {
            self.open_or_kill(at);
        }
        if self.chance(rates.stop) {
            let ns = [100 * US, 2 * MS, 8 * MS][self.dice.below(3)];
            self.hosts[at].stopped_until_ns = self.now_ns + self.dice.below(ns as usize) as u64;
            self.disturb(at, self.hosts[at].stopped_until_ns);
            self.met.harms.add(Harm::Stop);
        }
        if self.chance(rates.jump) {
            let most_ns = [50 * US, 3 * MS][self.dice.below(2)];
            let ns = self.dice.below(most_ns as usize) as u64;
            self.hosts[at].ahead_ns += ns;
            self.disturb(at, self.now_ns);
            self.met.harms.add(Harm::ClockJump);
        }
        if self.dice.once_in(200) {
            self.shelf.clear();
        }
        if self.chance(rates.hang) {
            self.hung_until_ns = self.now_ns + self.dice.below(12 * MS as usize) as u64;
            self.set_faults();
            self.met.harms.add(Harm::HungCalls);
        } else if self.hung_until_ns > 0 && self.hung_until_ns <= self.now_ns {
            self.hung_until_ns = 0;
            self.set_faults();
        }
        if self.chance(rates.restart) {
            if self.dice.once_in(2) {
                self.close(at);
                self.hosts[at].closing_until_ns = Some(self.now_ns + CLOSED_NS);
            } else {
                self.restart(at)?;
                self.met.harms.add(Harm::Restart);
            }
        }
        self.restart_closed()?;
        self.start_liar()
    }

    /// The liar comes, or comes back.
    fn start_liar(&mut self) -> Result<(), String> {
        let now_ns = self.now_ns;
        let Some(liar) = self.liar.as_mut().filter(|liar| liar.is_due(now_ns)) else {
            return Ok(());
        };
        let off = SimFaults::default();
        self.world.set_faults(&off).expect("nothing is in range");
        liar.start()?;
        self.set_faults();
        Ok(())
    }

    /// Those of the plan; while calls hang none is done.
    fn set_faults(&self) {
        let mut faults = self.plan.faults.clone();
        if self.hung_until_ns > self.now_ns {
            faults.late_call_undone_per_million = 1_000_000;
        }
        self.world
            .set_faults(&faults)
            .expect("a plan keeps to the ranges");
    }

    fn chance(&mut self, per_million: u32) -> bool {
        per_million > 0 && self.dice.below(1_000_000) < per_million as usize
    }

    fn disturb(&mut self, at: usize, until_ns: u64) {
        let now_ns = until_ns + self.hosts[at].ahead_ns;
        self.books.open().disturbed(at, now_ns);
    }

    fn open_or_kill(&mut self, at: usize) {
        let name = NAMES[self.dice.below(NAMES.len())];
        let living = self.books.open().living(at, name);
        match living {
            Some(id) => {
                self.books.open().ending(at, id);
                self.hosts[at].engine.kill(id);
                self.met.harms.add(Harm::Kill);
            }
            None => self.open(at, name),
        }
    }

    /// The process ends without a word; its adapter's queue pairs go to error. A new one starts under its name.
    fn restart(&mut self, at: usize) -> Result<(), String> {
        self.judge_ledger(at);
        self.collect_pairs(at);
        self.books.open().died(at);
        let life = self.hosts[at].life + 1;
        // The old one is dropped before the new one listens under its address.
        let old = self.hosts.remove(at);
        drop(old);
        // What goes wrong at a start ends the process, and that is that.
        let off = SimFaults::default();
        self.world.set_faults(&off).expect("nothing is in range");
        let host = self.start(at, life)?;
        self.hosts.insert(at, host);
        self.set_faults();
        self.disturb(at, self.now_ns);
        Ok(())
    }

    /// An engine closes all its contexts, and its sessions behind them.
    fn close(&mut self, at: usize) {
        self.books.open().closing(at);
        self.hosts[at].engine.close_all();
    }

    /// Engines that have taken leave are followed by others.
    fn restart_closed(&mut self) -> Result<(), String> {
        for at in 0..self.hosts.len() {
            let host = &self.hosts[at];
            let Some(until_ns) = host.closing_until_ns else {
                continue;
            };
            let has_left = host.engine.has_left();
            if has_left || self.now_ns >= until_ns {
                self.restart(at)?;
                let harm = if has_left {
                    Harm::Retire
                } else {
                    Harm::Restart
                };
                self.met.harms.add(harm);
            }
        }
        Ok(())
    }

    /// No fault begins any more: everything must end, and nothing be left.
    fn wind_down(&mut self) {
        self.world.faults_off();
        if let Some(liar) = &mut self.liar {
            liar.silence();
        }
        self.books.open().winding_down = true;
        for at in 0..self.hosts.len() {
            self.hosts[at].stopped_until_ns = 0;
        }
        self.settle();
        for at in 0..self.hosts.len() {
            self.close(at);
        }
        self.shelf.clear();
        for _ in 0..END_STEPS {
            self.step();
            if !self.books.open().failures().is_empty() {
                return;
            }
            let rests = |host: &Host| host.is_at_rest() || self.keeps_nameless_alone(host);
            if self.hosts.iter().all(rests) {
                // What is on its way says nothing new to anybody.
                for _ in 0..200 {
                    self.step();
                }
                return self.judge_rest();
            }
        }
        for (at, host) in self.hosts.iter().enumerate() {
            if !host.is_at_rest() {
                let what = format!(
                    "engine {at} does not come to rest: closed {}, has left {}, its adapter has {} regions and queue pairs, {:?}, {:?}",
                    host.engine.is_closed(),
                    host.engine.has_left(),
                    self.world.objects(host.adapter),
                    host.engine.domains(),
                    host.usage()
                );
                self.books.open().fail("r6_ends", what);
            }
        }
    }

    /// Whether nothing is left but the memory of regions whose registration came back without a name. Only the end of their domain would prove that there is none, and an adapter that has one, or a queue pair
    /// without a name, ends that never: so each domain that does not end has one.
    fn keeps_nameless_alone(&self, host: &Host) -> bool {
        let domains = host.engine.domains();
        let nameless = self.world.objects(host.adapter) - domains.vacant;
        let (in_quarantine, else_at_rest) = (
            |usage: &Usage| usage.keys.unproven > 0 && usage.grants <= usage.keys.unproven,
            |usage: &Usage| usage.imports == 0 && usage.ops == 0 && usage.keys.parked == 0,
        );
        self.plan.key_mode == KeyMode::Region
            && host.engine.has_left()
            && (1..=nameless).contains(&domains.ending)
            && host.usage().iter().any(in_quarantine)
            && host.usage().iter().all(else_at_rest)
    }

    /// Nobody begins anything, and everybody lives: what they are owed must come.
    fn settle(&mut self) {
        let until_ns = self.now_ns + SETTLED_NS;
        while self.now_ns < until_ns && self.books.open().owes() {
            self.step();
        }
        self.books.open().settled();
    }

    fn judge_rest(&mut self) {
        for at in 0..self.hosts.len() {
            let buffers = self.hosts[at].engine.buffers_in_use();
            if buffers > 0 && self.hosts[at].is_at_rest() {
                self.books.open().fail(
                    "r7_rest",
                    format!("engine {at}: {buffers} buffers are in use at the end"),
                );
            }
            self.judge_ledger(at);
        }
        for at in 0..self.hosts.len() {
            if self.hosts[at].is_at_rest() {
                self.books.open().close(at);
            }
        }
        if self.world.misuses() > 0 {
            let what = format!(
                "{} invalidations of keys that were not live",
                self.world.misuses()
            );
            self.books.open().fail("contract", what);
        }
    }

    /// Whether the engine kept to the contract of its device.
    fn judge_ledger(&mut self, at: usize) {
        let ledger = &self.hosts[at].ledger;
        if ledger.violations(Party::Caller) > 0 {
            self.books
                .open()
                .fail("contract", format!("engine {at}: {:?}", ledger.reports()));
        }
    }
}
