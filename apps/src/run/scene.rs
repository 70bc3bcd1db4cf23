//! The two engines of a run, and the workers on them.

use std::path::Path;

use anyhow::{Context, bail};
use keyfence::config::Config;
use keyfence::ids::{ContextId, LcoreId, PeerId};
use keyfence::pmd::Device;
use keyfence::{Client, ClientConfig, EngineBuilder, EngineEvent};
use keyfence_mempool::PageKind;
use keyfence_mempool::sync::Arc;

use super::board::{Board, Link, Side, Stage};
use super::guests::GUESTS;
use super::harm::{Harm, Wishes};
use super::worker::Worker;
use crate::host::{Clock, Ended, Host, Stepped};

/// The place of the engine that comes and goes, behind the two under load.
pub const THIRD: usize = 2;

/// Two engines whose lcores run, and perhaps a third one.
pub struct Scene<D: Device> {
    /// What is shared with the workers of the two.
    pub board: Arc<Board>,
    /// Likewise between each of them and the third.
    pub guests: Vec<Arc<Board>>,
    /// The arenas.
    pub arenas: Vec<ArenaFacts>,
    host: Host<Harm<D>>,
}

/// What an engine's arena got.
#[derive(Debug)]
pub struct ArenaFacts {
    /// The engine.
    pub engine: String,
    /// Its pages.
    pub kind: PageKind,
    /// Its size.
    pub bytes: usize,
    /// Bytes locked; hugepages need no lock.
    pub locked_bytes: usize,
    /// What it did not get.
    pub notes: Vec<String>,
}

/// Whether `run` can drive a configuration.
///
/// # Errors
/// What is wrong with it, and what to do.
pub fn check(config: &Config, file: &Path) -> anyhow::Result<()> {
    let file = file.display();
    let Some(load) = &config.load else {
        bail!("{file}: has no [load]; see configs/loopback.toml for one");
    };
    let ([left, right] | [left, right, _]) = &config.engines[..] else {
        let count = config.engines.len();
        bail!(
            "{file}: has {count} engines; give it two [[engine]] that are each other's [[peer]], and for peers that come and go a third"
        );
    };
    let joined = |from: usize, to: &str| {
        let mut peers = config.peers.iter().filter(|peer| peer.engine == from);
        peers.any(|peer| peer.name == to)
    };
    if !joined(0, &right.name) || !joined(1, &left.name) {
        bail!("{file}: its engines are not each other's peers; add a [[peer]] for each");
    }
    if let Some(third) = config.engines.get(THIRD)
        && [left, right]
            .iter()
            .zip(0..)
            .any(|(other, at)| !joined(THIRD, &other.name) || !joined(at, &third.name))
    {
        let name = &third.name;
        bail!(
            "{file}: engine {name} is not a peer of both others; add a [[peer]] for each, both ways"
        );
    }
    let guests = if config.engines.len() > THIRD {
        GUESTS
    } else {
        0
    };
    let (wanted, limit) = (load.contexts + guests, config.limits.contexts);
    if wanted > limit {
        bail!(
            "{file}: load.contexts and {guests} that deal with a third engine are {wanted}, limits.contexts is {limit}; raise limits.contexts"
        );
    }
    Ok(())
}

/// Builders for all engines of the file: the two under load, and behind them one for each life of the third.
pub fn builders(config: &Config) -> Vec<EngineBuilder> {
    let restarts = config
        .load
        .as_ref()
        .map_or(0, |load| load.troubles.peer_restarts);
    let lives = match config.engines.len() > THIRD {
        true => 1 + restarts as usize,
        false => 0,
    };
    let engines = (0..THIRD).chain(core::iter::repeat_n(THIRD, lives));
    engines
        .map(|at| EngineBuilder::from_config(config, at))
        .collect()
}

impl<D: Device> Scene<D> {
    /// Builds both engines, starts their lcores and opens all workers.
    ///
    /// # Errors
    /// What was short. Nothing is left behind then.
    pub fn start(
        config: &Config,
        mut builders: Vec<EngineBuilder>,
        devices: Vec<D>,
        clock: &Clock,
        seed: u128,
    ) -> anyhow::Result<Self> {
        let load = config.load.clone().expect("checked before");
        let wishes = Arc::new(Wishes::new(clock.clone()));
        let breaks = load.troubles.lane_breaks_per_s + load.troubles.dead_keys_per_s > 0.0;
        let harmful = |(at, device)| {
            let harms = breaks && at < THIRD;
            Harm::new(device, harms.then(|| (Arc::clone(&wishes), at)))
        };
        let mut devices: Vec<_> = devices.into_iter().enumerate().map(harmful).collect();
        let lives = builders.split_off(THIRD).into_iter();
        let lives: Vec<_> = lives.zip(devices.split_off(THIRD)).collect();
        let mut host = Host::start(builders, devices, clock, seed)?;
        for side in 0..2 {
            let arena = host.engine(side).arena();
            let start = arena.address();
            wishes.set_arena(side, start..start + arena.bytes() as u64);
        }
        let has_third = !lives.is_empty();
        if has_third {
            let name = format!("engine {}", config.engines[THIRD].name);
            host.add_stepped(lives, seed).context(name)?;
        }
        let board = board_of(config, &mut host, clock, 0, [0, 1], wishes);
        let guests = (0..THIRD).filter(|_| has_third).map(|at| {
            // No lane of these is broken on purpose.
            let wishes = Arc::new(Wishes::new(clock.clone()));
            board_of(config, &mut host, clock, 1 + at, [at, THIRD], wishes)
        });
        let guests = guests.collect();
        let engines = config.engines.len();
        let mut scene = Self {
            board,
            guests,
            arenas: (0..engines)
                .map(|at| ArenaFacts::of(&mut host, at))
                .collect(),
            host,
        };
        let contexts = scene.board.load.contexts as usize;
        for side in 0..2 {
            (0..contexts).for_each(|index| scene.open(side, index, 0));
        }
        for side in 0..2 {
            scene.open_guests(side);
        }
        Ok(scene)
    }

    /// Opens worker `index` of `side` for its `life`th life.
    pub fn open(&mut self, side: usize, index: usize, life: u64) {
        let board = Arc::clone(&self.board);
        self.open_on(&board, side, index, life);
    }

    fn open_on(&mut self, board: &Arc<Board>, side: usize, index: usize, life: u64) {
        let worker = Worker::new(Arc::clone(board), side, index, life);
        let engine = self.host.engine(board.link.engines[side]);
        let lcore = LcoreId((index % engine.lcores()) as u16);
        let opened = engine.open(lcore, &board.name_of(index), 1, Box::new(worker));
        opened.expect("the lcore exists, and the name is short");
    }

    /// Opens the contexts that deal with the third engine: those of the two others, or its own.
    fn open_guests(&mut self, side: usize) {
        for board in self.guests.clone() {
            (0..board.sides[side].members.len())
                .for_each(|index| self.open_on(&board, side, index, 0));
        }
    }

    /// The third engine.
    pub fn third(&mut self) -> &mut Stepped<Harm<D>> {
        self.host.stepped().expect("the file has one")
    }

    /// The third engine is gone without a word, and starts anew.
    pub fn restart_third(&mut self) -> anyhow::Result<()> {
        self.third().restart()?;
        let ledger = self.host.ledger(THIRD);
        for board in &self.guests {
            board.sides[1].set_ledger(Arc::clone(&ledger));
        }
        self.open_guests(1);
        Ok(())
    }

    /// All boards, that of the two engines under load first.
    pub fn boards(&self) -> impl Iterator<Item = &Arc<Board>> {
        core::iter::once(&self.board).chain(&self.guests)
    }

    /// Moves the run on.
    pub fn enter(&self, stage: Stage) {
        self.boards().for_each(|board| board.enter(stage));
    }

    /// Whether each worker has this flag.
    pub fn all_have(&self, flag: u32) -> bool {
        self.boards()
            .all(|board| board.members().all(|member| member.has(flag)))
    }

    /// Opens a client where worker `index` of `side` lives.
    pub fn open_client(&mut self, side: usize, index: usize, name: &str) -> Client {
        let engine = self.host.engine(side);
        let lcore = LcoreId((index % engine.lcores()) as u16);
        let opened = engine.open_client(lcore, name, 1, ClientConfig::default());
        opened.expect("the lcore exists, and the name is short")
    }

    /// Whether a peer of `side`, one of the two engines under load, is the other one.
    pub fn is_other(&mut self, side: usize, peer: PeerId) -> bool {
        let name = self.host.engine(side).peer_name(peer);
        name == Some(&*self.board.link.names[1 - side])
    }

    /// Has a context reclaimed.
    pub fn kill(&mut self, side: usize, context: ContextId) {
        self.host.engine(side).kill(context);
    }

    /// Does the control work that is due, or rests for a moment. Adds what happened.
    pub fn control(&mut self, events: &mut Vec<(usize, EngineEvent)>) {
        if !self.host.control(events) {
            self.host.rest();
        }
    }

    /// Whether each lcore still runs.
    pub fn is_alive(&self) -> bool {
        self.host.is_alive()
    }

    /// Reclaims everything within `bound_ns`, and stops. Adds what happened.
    pub fn end(self, bound_ns: u64, events: &mut Vec<(usize, EngineEvent)>) -> Vec<Ended> {
        self.host.end(bound_ns, events)
    }
}

/// The board of the traffic between two engines.
fn board_of<D: Device>(
    config: &Config,
    host: &mut Host<D>,
    clock: &Clock,
    number: usize,
    engines: [usize; 2],
    wishes: Arc<Wishes>,
) -> Arc<Board> {
    let mut load = config.load.clone().expect("checked before");
    if number > 0 {
        // Each as often as one of those under load.
        load.paced_rate_per_s *= f64::from(GUESTS) / f64::from(load.contexts);
        load.contexts = GUESTS;
    }
    let members = load.contexts as usize;
    let link = Link {
        number,
        engines,
        names: engines.map(|at| config.engines[at].name.clone()),
    };
    let sides = engines.map(|at| Side::new(host.ledger(at), members));
    let flush_interval_ns = config.timeouts.flush_interval_ns;
    let clock = clock.clone();
    Arc::new(Board::new(
        link,
        clock,
        load,
        flush_interval_ns,
        sides,
        wishes,
    ))
}

impl ArenaFacts {
    fn of<D: Device>(host: &mut Host<D>, side: usize) -> Self {
        let engine = host.engine(side);
        let arena = engine.arena();
        Self {
            engine: engine.name().to_owned(),
            kind: arena.page_kind(),
            bytes: arena.bytes(),
            locked_bytes: arena.locked_bytes(),
            notes: arena.notes().iter().map(ToString::to_string).collect(),
        }
    }
}
