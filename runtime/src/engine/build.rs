//! Building an engine: memory, device objects, tables, rings. Everything that can be refused is refused here, before anything runs.

use std::collections::VecDeque;

use keyfence_mempool::ring::spsc;
use keyfence_pmd::{Completion, ControlError, Device, OpenPathError};

use crate::config::{Config, EngineConfig, IdlePolicy, KeyMode, MemoryConfig, Timeouts};
use crate::context::ops::Ops;
use crate::context::quota::{Gauge, Quota};
use crate::context::state::Contexts;
use crate::engine::Engine;
use crate::engine::command::{Command, DeathNotice, Outbox, ToControl};
use crate::engine::control::{ControlSide, LcorePort};
use crate::engine::domains::Domains;
use crate::engine::join::Identity;
use crate::engine::lcore::Lcore;
use crate::engine::lookup::{LOOKUPS, Lookups};
use crate::engine::memory::{EngineMemory, MemoryError};
use crate::engine::peers::{Peer, Peers};
use crate::engine::state::{Core, LcoreCaps, LcoreMemory, PeerView};
use crate::engine::stats::{SharedStats, Stats};
use crate::engine::timers::Timers;
use crate::engine::zero::Zeroing;
use crate::grant::import::Imports;
use crate::grant::keys::Keys;
use crate::grant::table::Grants;
use crate::ids::{Incarnation, LcoreId};
use crate::limits::{Limit, Limits, lane_slots_a_lane};
use crate::reclaim::{Actions, Capacity, LaneSet, Machine, PairSet};
use crate::session::Secret;
use crate::trace::Trace;

/// Why an engine could not be built. Nothing is left behind.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// The memory could not be had.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The device refused something.
    #[error("device: {0}")]
    Device(#[from] ControlError),
    /// The device has no path for an lcore.
    #[error("device: {0}")]
    Path(#[from] OpenPathError),
    /// The device can't do what the engine needs.
    #[error("device {device} {lacks}; {remedy}")]
    Unfit {
        /// The device.
        device: &'static str,
        /// What it lacks.
        lacks: String,
        /// What to do.
        remedy: &'static str,
    },
    /// A peer is to be admitted by a secret that is not there.
    #[error(
        "peer {peer} needs the secret that it shares with this engine, which was not read; load the configuration from its file, or give it to the builder"
    )]
    NoSecret {
        /// Its name.
        peer: String,
    },
    /// A peer over a fabric connects to this engine, since its name sorts first, and has nowhere to.
    #[error(
        "peer {peer} connects to this engine, since its name sorts first, and the engine listens nowhere; give it an address to listen on, rdma:HOST:PORT"
    )]
    ListensNowhere {
        /// Its name.
        peer: String,
    },
    /// Two names of peers look the same in a connection request.
    #[error("peers {one} and {other} can't be told apart by the tags of their names; rename one")]
    NamesCollide {
        /// The first.
        one: String,
        /// The second.
        other: String,
    },
    /// A value is outside its range, or does not fit the others. What a file is refused for, an engine that is built in code is refused for too; of several
    /// such values this is the first.
    #[error("{key} {what}; allowed: {allowed}")]
    BadValue {
        /// The value's key in a configuration, such as `limits.context.grants`.
        key: String,
        /// What is wrong, with the value.
        what: String,
        /// What is allowed, with a legal value.
        allowed: String,
    },
}

/// Commands and reports that may be under way between the control side and an lcore.
const RING: usize = 1024;

/// Flushes under way on an lcore.
const FLUSHES: u16 = 32;

/// A peer, as the builder was told of it.
#[derive(Clone, Debug)]
pub(super) struct PeerPlan {
    pub name: String,
    pub address: String,
    pub lcores: u32,
    pub secret: Option<Secret>,
    /// Whether its configuration names a file with the secret.
    pub wants_secret: bool,
}

/// What an engine is built from.
///
/// Each start has a seed of its own, so it is an argument of [`EngineBuilder::build`] and can't be forgotten:
///
/// ```compile_fail,E0061
/// # use keyfence::EngineBuilder;
/// # fn start<D: keyfence::pmd::Device>(device: D, seed: u128) {
/// let _ = EngineBuilder::new("left", 1).build(device);
/// # }
/// ```
///
/// ```
/// # use keyfence::EngineBuilder;
/// # fn start<D: keyfence::pmd::Device>(device: D, seed: u128) {
/// let _ = EngineBuilder::new("left", 1).build(device, seed);
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct EngineBuilder {
    pub(super) engine: EngineConfig,
    /// Where it listens; by its own name if not told.
    pub(super) listen: Option<String>,
    pub(super) memory: MemoryConfig,
    pub(super) limits: Limits,
    pub(super) timeouts: Timeouts,
    pub(super) peers: Vec<PeerPlan>,
    pub(super) key_mode: KeyMode,
    /// Whether somebody has named it.
    pub(super) names_key_mode: bool,
}

impl EngineBuilder {
    /// An engine named `name` with `lcores` lcores, on CPUs 0 and up, with defaults for everything else.
    #[must_use]
    pub fn new(name: &str, lcores: u16) -> Self {
        let engine = EngineConfig {
            name: name.to_owned(),
            lcores: (0..u32::from(lcores)).collect(),
            ..EngineConfig::default()
        };
        Self {
            engine,
            listen: None,
            memory: MemoryConfig::default(),
            limits: Limits::default(),
            timeouts: Timeouts::default(),
            peers: Vec::new(),
            key_mode: KeyMode::default(),
            names_key_mode: false,
        }
    }

    /// The engine number `engine` of a configuration, which was checked when it was read.
    #[must_use]
    pub fn from_config(config: &Config, engine: usize) -> Self {
        let peers = config
            .peers
            .iter()
            .filter(|peer| peer.engine == engine)
            .map(|peer| PeerPlan {
                name: peer.name.clone(),
                address: peer.address.to_string(),
                lcores: peer.lcores,
                secret: peer.secret.clone(),
                wants_secret: peer.secret_file.is_some(),
            });
        Self {
            engine: config.engines[engine].clone(),
            listen: config.engines[engine]
                .listen
                .as_ref()
                .map(ToString::to_string),
            memory: config.memory.clone(),
            limits: config.limits.clone(),
            timeouts: config.timeouts.clone(),
            peers: peers.collect(),
            key_mode: KeyMode::default(),
            names_key_mode: false,
        }
    }

    /// How the keys of grants are made. If this is not called, by windows where the device says that it confines them ([`Caps::window_bounds`](crate::pmd::Caps::window_bounds)), and [`EngineBuilder::build`]
    /// refuses one that does not: a mode that does not confine keys to their bytes must be named (R12). `[verbs] key_mode` of a configuration is not taken over by
    /// [`EngineBuilder::from_config`], since it is about adapters alone, and `"auto"` is for a self-test of the adapter to decide first (`pmd::verbs::self_test`).
    #[must_use]
    pub fn key_mode(mut self, key_mode: KeyMode) -> Self {
        self.key_mode = key_mode;
        self.names_key_mode = true;
        self
    }

    /// The CPU of each lcore, and so how many there are.
    #[must_use]
    pub fn cpus(mut self, cpus: &[u32]) -> Self {
        self.engine.lcores = cpus.to_vec();
        self
    }

    /// What lcores that the engine starts do when they find no work.
    #[must_use]
    pub fn idle(mut self, idle: IdlePolicy) -> Self {
        self.engine.idle = idle;
        self
    }

    /// The device's address at which peers reach this engine, such as `rdma:HOST:PORT`. Without it the engine listens on `local:` and its own name, which a device
    /// of one process has.
    ///
    /// Of two peers the one whose name sorts first connects. So an engine needs an address of its own if one of its `rdma:` peers sorts before it, and
    /// [`EngineBuilder::build`] refuses one without.
    #[must_use]
    pub fn listen(mut self, address: &str) -> Self {
        self.listen = Some(address.to_owned());
        self
    }

    /// The engine's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.engine.name
    }

    /// Its memory.
    #[must_use]
    pub fn memory(mut self, memory: MemoryConfig) -> Self {
        self.memory = memory;
        self
    }

    /// Its limits. More `buffers` than the pools have are as many as these.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Its timeouts.
    #[must_use]
    pub fn timeouts(mut self, timeouts: Timeouts) -> Self {
        self.timeouts = timeouts;
        self
    }

    /// A peer of `lcores` lcores, and the device's address of it. It shares no secret with this engine, so that whoever can reach the other's address can pass for
    /// it: for `local:` addresses. An `rdma:` one needs [`EngineBuilder::peer_with_secret`], also for engines of one process.
    #[must_use]
    pub fn peer(self, name: &str, address: &str, lcores: u32) -> Self {
        self.add_peer(name, address, lcores, None)
    }

    /// A peer as [`EngineBuilder::peer`], with the secret that both share. Both must have it.
    #[must_use]
    pub fn peer_with_secret(self, name: &str, address: &str, lcores: u32, secret: Secret) -> Self {
        self.add_peer(name, address, lcores, Some(secret))
    }

    fn add_peer(mut self, name: &str, address: &str, lcores: u32, secret: Option<Secret>) -> Self {
        self.peers.push(PeerPlan {
            name: name.to_owned(),
            address: address.to_owned(),
            lcores,
            secret,
            // Over a fabric anybody can knock.
            wants_secret: is_fabric(address),
        });
        self
    }

    /// Builds the engine on a device: maps and registers memory, opens the lcores' paths, listens.
    ///
    /// `seed` is 128 bits that no other start of any engine has: the engine's [`Incarnation`], by which a peer knows it from its earlier starts,
    /// and the source of its random choices (R8: the first tags of its keys). Take it from the operating system's random source at each start; a
    /// test chooses it, and then has the same run each time. There is no default: two starts with one seed are the same engine to a peer.
    ///
    /// # Errors
    /// [`BuildError`] says what was short or wrong, and by how much.
    pub fn build<D: Device>(self, device: D, seed: u128) -> Result<Engine<D>, BuildError> {
        let incarnation = Incarnation(seed);
        self.check_values()?;
        let lcores = self.check(&device)?;
        let device = keyfence_mempool::sync::Arc::new(device);
        let lanes = self.lanes_of_lcore() * u32::from(lcores);
        let memory = EngineMemory::new(&self.memory, &self.limits, lcores.into(), lanes)?;
        let homes = memory.homes(&*device, self.key_mode, self.peers.len())?;
        let share = self.limits.share_of_lcore(lcores.into());
        let slots = self.slots_of_lcore();
        let mut ports = Vec::new();
        let mut cores = Vec::new();
        let mut bells = Vec::new();
        for lcore in 0..lcores {
            let path = device.open_path(LcoreId(lcore))?;
            let mine = memory.of_lcore(lcore.into(), slots.into(), &share)?;
            let (commands, command_end) = spsc::ring::<Command>(RING);
            let (reports, report_end) = spsc::ring::<ToControl>(RING);
            let shared = SharedStats::new();
            let (death, died) = DeathNotice::new();
            ports.push(LcorePort::new(commands, report_end, shared.clone(), died));
            let mut core = self.core(LcoreId(lcore), lcores, slots, mine, &share, reports);
            let most = device.caps().max_operation_bytes;
            core.longest_frame_bytes = most.min(core.limits.lane_bytes_in_flight);
            core.caps = LcoreCaps::of(device.caps(), self.key_mode);
            bells.push(core.clients.bells());
            cores.push(Some(Lcore {
                path,
                services: (0..share.contexts).map(|_| None).collect(),
                core,
                commands: command_end,
                shared,
                done: vec![Completion::EMPTY; super::lcore::BURST].into_boxed_slice(),
                shutdown: super::shutdown::Shutdown::None,
                step_max_ns: self.engine.step_max_ns,
                was_busy: false,
                _death: death,
            }));
        }
        if let Some(address) = self.listen_address() {
            device.listen(&address)?;
        }
        let identity = Identity {
            name: self.engine.name.clone(),
            incarnation,
            limits: share,
            arena: keyfence_mempool::sync::Arc::clone(&memory.arena),
            home: homes.0,
            tag_seed: seed as u64 ^ (seed >> 64) as u64,
            frame_bytes: self.memory.receive_buffer_bytes as u32,
            fence_timeout_ns: self.timeouts.fence_timeout_ns,
        };
        let peers = Peers::new(self.peer_table(), lcores, slots, self.limits.lanes as u16);
        let mut control = ControlSide::new(device, ports, peers, identity, &self.timeouts);
        control.domains = Domains::new(homes.1);
        Ok(Engine {
            name: self.engine.name,
            control,
            lcores: cores,
            cpus: self.engine.lcores,
            idle: self.engine.idle,
            memory,
            bells,
            client_lease_ns: self.timeouts.client_lease_ns,
        })
    }

    /// Where it listens, if it has peers that may connect there.
    fn listen_address(&self) -> Option<String> {
        let is_local = |peer: &PeerPlan| !is_fabric(&peer.address);
        let by_name = || format!("local:{}", self.engine.name);
        self.listen
            .clone()
            .or_else(|| self.peers.iter().any(is_local).then(by_name))
    }

    /// Places for lanes in an lcore's table, more than it has lanes: some may be kept by keys in quarantine.
    pub(super) fn slots_of_lcore(&self) -> u16 {
        let slots = u64::from(self.lanes_of_lcore()) * lane_slots_a_lane(&self.limits);
        slots.min(LaneSet::MAX_LANES as u64) as u16
    }

    /// Lanes of one lcore: to every lcore of every peer.
    fn lanes_of_lcore(&self) -> u32 {
        let peer_lcores = self
            .peers
            .iter()
            .fold(0_u32, |sum, peer| sum.saturating_add(peer.lcores));
        peer_lcores.saturating_mul(self.limits.lanes)
    }

    fn peer_table(&self) -> Vec<Peer> {
        let peer = |peer: &PeerPlan| {
            let secret = peer.secret.clone().unwrap_or_else(Secret::none);
            Peer::new(&peer.name, &peer.address, peer.lcores as u16, secret)
        };
        self.peers.iter().map(peer).collect()
    }

    fn peer_views(&self, limits: &Limits) -> Vec<PeerView> {
        let peers = self.peers.iter();
        peers
            .map(|peer| PeerView::new(&peer.name, &limits.peer))
            .collect()
    }

    fn contexts(&self, lcore: LcoreId, lanes: u16, limits: &Limits) -> Contexts {
        // What the receive pool has for one context: the spare lane slots of an ended session have no share of their own.
        let messages = limits.context.messages as usize * self.lanes_of_lcore().max(1) as usize;
        Contexts::new(
            lcore,
            limits.contexts as u16,
            &Quota::new(&limits.context),
            limits.context.buffers as usize,
            messages,
            super::fence::events_limit(limits, lanes),
        )
    }

    fn core(
        &self,
        lcore: LcoreId,
        lcores: u16,
        lanes: u16,
        memory: LcoreMemory,
        limits: &Limits,
        reports: spsc::Producer<ToControl>,
    ) -> Core {
        let contexts = limits.contexts as u16;
        let capacity = capacity(limits, lanes);
        let (queue, zeroes) = (usize::from(contexts), self.memory.zero_on_release);
        // A key is asked for, ended (once more if that was late), and reported dead.
        let reports_waiting = (4 * capacity.keys + 3 * limits.contexts) as usize + 64;
        Core {
            lcore,
            lcores,
            now_ns: 0,
            limits: limits.clone(),
            timeouts: self.timeouts.clone(),
            final_timeout_ns: self.timeouts.final_timeout_ns(self.limits.keys()),
            frame_bytes: self.memory.receive_buffer_bytes as usize,
            longest_frame_bytes: self.limits.lane_bytes_in_flight,
            caps: LcoreCaps::default(),
            lane_drain_ns: limits.lane_drain_ns(),
            zeroing: zeroes.then(|| Zeroing::new(self.memory.buffers() as usize)),
            memory,
            contexts: self.contexts(lcore, lanes, limits),
            ops: Ops::new(limits.ops_in_flight),
            grants: Grants::new(limits.grants),
            keys: Keys::new(capacity.keys),
            imports: Imports::new(limits.imports, contexts),
            lanes: (0..lanes).map(|_| None).collect(),
            lanes_taken: 0,
            lists: crate::engine::relist::Lists::default(),
            lanes_draining: 0,
            first_lane: 0,
            peers: self.peer_views(limits),
            actions: Actions::new(capacity.bound()),
            machine: Machine::new(capacity),
            reclaim_pairs: PairSet::EMPTY,
            events: VecDeque::with_capacity(64),
            driving: false,
            entered: false,
            reclaim_budget_wrs: 0,
            timers: Timers::new(capacity.timers()),
            lookups: Lookups::new(LOOKUPS),
            flushes: vec![None; usize::from(FLUSHES)],
            flushes_waiting: VecDeque::with_capacity(64),
            flushes_to_begin: Vec::with_capacity(usize::from(FLUSHES)),
            outbox: Outbox::new(reports, reports_waiting),
            polled: Vec::with_capacity(queue),
            clients: super::bells::Clients::new(queue),
            ready: VecDeque::with_capacity(queue),
            closing: VecDeque::with_capacity(queue),
            awaiting_handles: VecDeque::with_capacity(queue),
            wants_room: VecDeque::with_capacity(queue),
            ops_in_flight: Gauge::new(Limit::OpsInFlight, limits.ops_in_flight.into()),
            bytes_in_flight: Gauge::new(Limit::BytesInFlight, limits.bytes_in_flight),
            buffers: Gauge::new(Limit::Buffers, limits.buffers.into()),
            buffers_sweep: super::close::Sweep::default(),
            lease_cursor: 0,
            housekeeping_ns: 0,
            seen: vec![crate::lane::repair::Seen::default(); queue],
            stats: Stats::new(),
            trace: Trace::new(limits.trace_records as usize),
        }
    }
}

/// Whether others than this process can reach an address.
pub(super) fn is_fabric(address: &str) -> bool {
    address.starts_with("rdma:")
}

fn capacity(limits: &Limits, lanes: u16) -> Capacity {
    Capacity {
        keys: limits.keys(),
        contexts: limits.contexts as u16,
        lanes: lanes.max(1),
        epochs: limits.epochs as u16,
        tickets: FLUSHES,
        flush_watermark: limits.flush_watermark,
    }
}
