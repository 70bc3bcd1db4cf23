//! The engine: lcores that poll, and a control side that does everything else.
//!
//! An lcore's state is a `state::Core`, which no other thread sees; the files here are its methods, named after what happens in one
//! poll iteration. The `ControlSide` talks to lcores by two rings each.

mod admit;
mod backoff;
mod bells;
mod breaks;
mod build;
mod bye;
mod calls;
mod census;
mod close;
mod command;
mod complete;
mod context;
mod control;
mod credits;
mod cut;
mod domain;
mod domains;
mod fence;
mod fit;
mod flush;
mod frames;
mod hello;
mod holder;
mod housekeeping;
mod idle;
mod join;
mod keys;
mod lcore;
mod leave;
mod lookup;
mod memory;
mod needs;
mod offences;
mod offer;
mod peers;
mod pump;
mod rebuild;
mod receive;
mod receives;
mod regions;
mod relist;
mod remind;
mod repair;
mod retire;
mod run;
mod shutdown;
mod state;
mod stats;
mod submit;
#[cfg(test)]
mod tests;
mod timers;
mod turns;
mod usage;
mod zero;

use keyfence_mempool::ring::doorbell::Doorbells;
use keyfence_mempool::sync::Arc;
use keyfence_pmd::Device;

pub use build::{BuildError, EngineBuilder};
pub use census::GrantRecord;
pub use context::{Context, Lease};
pub use domains::DomainUsage;
pub use lcore::Lcore;
pub(crate) use lookup::InlineName;
pub use lookup::LookupError;
pub use memory::MemoryError;
pub use needs::DeviceNeeds;
pub use run::{RunError, Running};
pub use stats::{SharedStats, Stats};
pub use submit::{Local, MAX_COPIED_MESSAGE_BYTES};
pub use usage::{LaneUsage, Usage};

use crate::client::{Client, ClientConfig};
use crate::engine::command::{Command, OpenContext};
use crate::engine::control::ControlSide;
use crate::engine::memory::EngineMemory;
use crate::event::EngineEvent;
use crate::ids::{ContextId, LcoreId, PeerId};
use crate::service::{BoxedService, Code};
use crate::session::AdmissionStats;

/// A runtime: arena, device, lcores, peers. This handle is its control side; it is owned by one thread.
pub struct Engine<D: Device> {
    name: String,
    control: ControlSide<D>,
    lcores: Vec<Option<Lcore<D::Path>>>,
    cpus: Vec<u32>,
    idle: crate::config::IdlePolicy,
    memory: EngineMemory,
    /// The doorbells of each lcore's clients.
    bells: Vec<Arc<Doorbells>>,
    /// How long a client may be silent.
    client_lease_ns: u64,
}

/// The most that a context may weigh.
const MAX_WEIGHT: u32 = 256;

/// Why a context was not asked to be opened.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// There is no such lcore.
    #[error("lcore {lcore}: this engine has {count}, from 0")]
    NoSuchLcore {
        /// The lcore asked for.
        lcore: LcoreId,
        /// How many there are.
        count: usize,
    },
    /// The weight is none.
    #[error("weight {weight}; allowed: 1 to {}", MAX_WEIGHT)]
    Weight {
        /// The weight asked for.
        weight: u32,
    },
    /// The name can't be one.
    #[error(transparent)]
    Name(#[from] crate::wire::NameError),
}

impl<D: Device> Engine<D> {
    /// Its configured name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How many lcores it has.
    #[must_use]
    pub fn lcores(&self) -> usize {
        self.lcores.len()
    }

    /// Hands over an lcore, once, to the thread that will call [`Lcore::step`] in a loop: for a reactor of one's own, or a test.
    pub fn take_lcore(&mut self, lcore: LcoreId) -> Option<Lcore<D::Path>> {
        self.lcores.get_mut(lcore.0 as usize)?.take()
    }

    /// Does the control work that is due: connections, deallocations, the ends of queue pairs; takes what the lcores report. Call it in a loop from
    /// one thread, all the time that lcores run: nothing of it is done elsewhere. Returns whether there was any work; more may be left, since one call does a
    /// bounded part of it.
    pub fn control(&mut self, now_ns: u64) -> bool {
        self.control.run(now_ns)
    }

    /// What happened, in order; `None` when that is all.
    pub fn poll_event(&mut self) -> Option<EngineEvent> {
        self.control.events.pop_front()
    }

    /// Asks for a context on an lcore, whose share of a busy lane against the others' is its `weight`, 1 to 256. Answered by [`EngineEvent::Opened`] or
    /// [`EngineEvent::OpenFailed`] (a name that a context of this lcore has, for one), and in the service by its first poll.
    ///
    /// # Errors
    /// [`OpenError`] if the request itself can't be right.
    pub fn open(
        &mut self,
        lcore: LcoreId,
        name: &str,
        weight: u32,
        service: BoxedService,
    ) -> Result<(), OpenError> {
        self.open_code(lcore, name, weight, Code::Service(service))
    }

    fn open_code(
        &mut self,
        lcore: LcoreId,
        name: &str,
        weight: u32,
        code: Code,
    ) -> Result<(), OpenError> {
        if lcore.0 as usize >= self.control.ports.len() {
            return Err(OpenError::NoSuchLcore {
                lcore,
                count: self.control.ports.len(),
            });
        }
        if !(1..=MAX_WEIGHT).contains(&weight) {
            return Err(OpenError::Weight { weight });
        }
        crate::wire::Name::new(name)?;
        let request = OpenContext {
            name: name.to_owned(),
            weight,
            code,
        };
        self.control.send(lcore, Command::Open(Box::new(request)));
        Ok(())
    }

    /// Asks for a context whose code runs on another thread: the thread that owns the [`Client`]. Answered in addition by
    /// [`ClientEvent::Opened`](crate::ClientEvent::Opened); if it can't be opened the client is closed.
    ///
    /// # Errors
    /// [`OpenError`] if the request itself can't be right.
    pub fn open_client(
        &mut self,
        lcore: LcoreId,
        name: &str,
        weight: u32,
        config: ClientConfig,
    ) -> Result<Client, OpenError> {
        let ops = self.control.identity.limits.context.ops_in_flight;
        let peers = self.control.peers.peers.len();
        let count = self.bells.len();
        let bells = self.bells.get(lcore.0 as usize);
        let bells = bells.ok_or(OpenError::NoSuchLcore { lcore, count })?;
        let (client, side) = Client::pair(name, config, bells, ops, peers, self.client_lease_ns);
        self.open_code(lcore, name, weight, Code::Client(Box::new(side)))?;
        Ok(client)
    }

    /// Has a context reclaimed, as an operator would: whatever its service does. Ends as [`EngineEvent::Reclaimed`] or
    /// [`EngineEvent::Quarantined`]; of a context that is gone nothing comes.
    pub fn kill(&mut self, context: ContextId) {
        if (context.lcore.0 as usize) < self.control.ports.len() {
            self.control.send(context.lcore, Command::Kill(context));
        }
    }

    /// Has all contexts reclaimed, and opens no more; see [`Engine::is_closed`]. Behind the last one sessions end in order; see [`Engine::has_left`].
    pub fn close_all(&mut self) {
        self.control.parting = true;
        for port in &mut self.control.ports {
            port.send(Command::CloseAll);
        }
    }

    /// Whether every context of every lcore is reclaimed or in quarantine after [`Engine::close_all`].
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.control.is_closed()
    }

    /// Whether no session is left after [`Engine::close_all`]: behind its last context the engine takes leave of each peer, so that those need not find out by
    /// `timeouts.reconnect` that it is gone. Who does not answer is waited for until `timeouts.fence` is over. An engine may be dropped before: its sessions are then lost to the peers.
    #[must_use]
    pub fn has_left(&self) -> bool {
        self.control.has_left()
    }

    /// Asks an lcore for every grant that is not dead, whoever's it is; answered by [`EngineEvent::Census`]. An lcore that there is not does not
    /// answer. The list is allocated here and filled on the lcore, in one walk over its table of grants: for diagnosis, not for a loop.
    pub fn census(&mut self, lcore: LcoreId) {
        if (lcore.0 as usize) < self.control.ports.len() {
            let grants = self.control.identity.limits.grants as usize;
            self.control
                .send(lcore, Command::Census(Vec::with_capacity(grants)));
        }
    }

    /// The configured name of a peer.
    #[must_use]
    pub fn peer_name(&self, peer: PeerId) -> Option<&str> {
        self.control
            .peers
            .peers
            .get(peer.0 as usize)
            .map(|peer| peer.name.as_str())
    }

    /// What the engine has admitted and refused of what peers, or others in their name, asked for.
    #[must_use]
    pub fn admissions(&self) -> AdmissionStats {
        self.control.admissions
    }

    /// The protection domains of key mode `region`; none in `window`, where all sessions share one. Says what a device can't end, too.
    #[must_use]
    pub fn domains(&self) -> DomainUsage {
        self.control.domains.usage()
    }

    /// The counters of an lcore, readable from any thread.
    #[must_use]
    pub fn stats(&self, lcore: LcoreId) -> Option<SharedStats> {
        self.control
            .ports
            .get(lcore.0 as usize)
            .map(|port| port.shared.clone())
    }

    /// The engine's arena.
    #[must_use]
    pub fn arena(&self) -> &keyfence_mempool::Arena {
        &self.memory.arena
    }

    /// Buffers of the application pools that something keeps. Exact at rest.
    #[must_use]
    pub fn buffers_in_use(&self) -> usize {
        self.memory
            .pools()
            .map(keyfence_mempool::Pool::in_use)
            .sum()
    }

    /// Receive buffers that something keeps. Exact at rest.
    #[must_use]
    pub fn receives_in_use(&self) -> usize {
        self.memory.receives().in_use()
    }
}

impl<D: Device> ::core::fmt::Debug for Engine<D> {
    fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
        f.debug_struct("Engine")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}
