//! The two engines of a run, and the workers on them.

use std::path::Path;

use anyhow::bail;
use keyfence::config::Config;
use keyfence::ids::{ContextId, LcoreId, PeerId};
use keyfence::pmd::Device;
use keyfence::{Client, ClientConfig, EngineBuilder, EngineEvent};
use keyfence_mempool::PageKind;
use keyfence_mempool::sync::Arc;

use super::board::{Board, Side};
use super::harm::{Harm, Wishes};
use super::worker::{Worker, name_of};
use crate::host::{Clock, Ended, Host};

/// Two engines whose lcores run.
pub struct Scene<D: Device> {
    /// What is shared with the workers.
    pub board: Arc<Board>,
    /// The arenas.
    pub arenas: Vec<ArenaFacts>,
    /// The names of both engines.
    names: [String; 2],
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
    let [left, right] = &config.engines[..] else {
        let count = config.engines.len();
        bail!("{file}: has {count} engines; give it two [[engine]] that are each other's [[peer]]");
    };
    let joined = |from: usize, to: &str| {
        let mut peers = config.peers.iter().filter(|peer| peer.engine == from);
        peers.any(|peer| peer.name == to)
    };
    if !joined(0, &right.name) || !joined(1, &left.name) {
        bail!("{file}: its engines are not each other's peers; add a [[peer]] for each");
    }
    let (wanted, limit) = (load.contexts, config.limits.contexts);
    if wanted > limit {
        bail!("{file}: load.contexts is {wanted}, limits.contexts {limit}; raise limits.contexts");
    }
    Ok(())
}

impl<D: Device> Scene<D> {
    /// Builds both engines, starts their lcores and opens all workers.
    ///
    /// # Errors
    /// What was short. Nothing is left behind then.
    pub fn start(
        config: &Config,
        builders: Vec<EngineBuilder>,
        devices: Vec<D>,
        clock: &Clock,
        seed: u128,
    ) -> anyhow::Result<Self> {
        let load = config.load.clone().expect("checked before");
        let wishes = Arc::new(Wishes::new(clock.clone()));
        let harmful = |(side, device)| {
            let breaks = load.troubles.lane_breaks_per_s + load.troubles.dead_keys_per_s > 0.0;
            Harm::new(device, breaks.then(|| (Arc::clone(&wishes), side)))
        };
        let devices = devices.into_iter().enumerate().map(harmful).collect();
        let mut host = Host::start(builders, devices, clock, seed)?;
        for side in 0..2 {
            let arena = host.engine(side).arena();
            let start = arena.address();
            wishes.set_arena(side, start..start + arena.bytes() as u64);
        }
        let contexts = load.contexts as usize;
        let sides = [0, 1].map(|side| Side::new(host.ledger(side), contexts));
        let flush_interval_ns = config.timeouts.flush_interval_ns;
        let board = Board::new(clock.clone(), load, flush_interval_ns, sides, wishes);
        let board = Arc::new(board);
        let arenas = (0..2).map(|side| ArenaFacts::of(&mut host, side)).collect();
        let mut scene = Self {
            board,
            arenas,
            names: [0, 1].map(|side| config.engines[side].name.clone()),
            host,
        };
        for side in 0..2 {
            (0..contexts).for_each(|index| scene.open(side, index, 0));
        }
        Ok(scene)
    }

    /// Opens worker `index` of `side` for its `life`th life.
    pub fn open(&mut self, side: usize, index: usize, life: u64) {
        let worker = Worker::new(Arc::clone(&self.board), side, index, life);
        let engine = self.host.engine(side);
        let lcore = LcoreId((index % engine.lcores()) as u16);
        let opened = engine.open(lcore, &name_of(index), 1, Box::new(worker));
        opened.expect("the lcore exists, and the name is short");
    }

    /// Opens a client where worker `index` of `side` lives.
    pub fn open_client(&mut self, side: usize, index: usize, name: &str) -> Client {
        let engine = self.host.engine(side);
        let lcore = LcoreId((index % engine.lcores()) as u16);
        let opened = engine.open_client(lcore, name, 1, ClientConfig::default());
        opened.expect("the lcore exists, and the name is short")
    }

    /// Whether a peer of `side` is the other side.
    pub fn is_other(&mut self, side: usize, peer: PeerId) -> bool {
        let name = self.host.engine(side).peer_name(peer);
        name == Some(&*self.names[1 - side])
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
