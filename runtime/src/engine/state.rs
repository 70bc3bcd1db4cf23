//! What one lcore owns, all but the device's poll path and the services: no part of it is shared with another thread.

use std::collections::VecDeque;

use keyfence_mempool::buf::BufId;
use keyfence_mempool::{Arena, PoolCache, sync::Arc};
use keyfence_pmd::Caps;

use crate::config::{KeyMode, Timeouts};
use crate::context::ops::{LocalRange, Ops};
use crate::context::quota::PeerQuota;
use crate::context::state::{Contexts, Phase};
use crate::engine::bye::Leaving;
use crate::engine::command::Outbox;
use crate::engine::lookup::Lookups;
use crate::engine::relist::Lists;
use crate::engine::stats::Stats;
use crate::engine::timers::Timers;
use crate::engine::zero::Zeroing;
use crate::event::Event;
use crate::grant::import::Imports;
use crate::grant::keys::Keys;
use crate::grant::table::Grants;
use crate::ids::{ContextId, LaneId, LcoreId, PeerId, RemoteContext, SessionId};
use crate::lane::Lane;
use crate::lane::link::LinkName;
use crate::lane::repair::Seen;
use crate::limits::{Limits, PeerLimits};
use crate::plant::{self, Plant};
use crate::reclaim;
use crate::trace::Trace;

/// Bytes of engine memory that each operation slot has: the frame of a small message, or the former value of an atomic.
pub const OP_SLOT_BYTES: usize = 256;

/// The owner tag of buffers in the receive pool. No context has it: there are at most 64 lcores.
pub const RECEIVE_OWNER: u32 = u32::MAX;

/// A pool of the lcore, and where it lies.
#[derive(Debug)]
pub struct LcorePool {
    /// The lcore's cache of it.
    pub cache: PoolCache,
    /// Addresses of its buffers.
    pub addresses: core::ops::Range<u64>,
    /// Bytes of a buffer.
    pub buffer_bytes: usize,
}

/// The engine memory of one lcore, in the arena.
#[derive(Debug)]
pub struct LcoreMemory {
    /// The arena.
    pub arena: Arc<Arena>,
    /// Offset of the operations' slots.
    pub op_slots: usize,
    /// Offset of the lanes' frame slots; `lanes` times `send_depth` slots.
    pub frames: usize,
    /// Pools for applications, by ascending buffer size.
    pub pools: Vec<LcorePool>,
    /// The pool of receive buffers.
    pub receives: LcorePool,
}

impl LcoreMemory {
    /// Offset in the arena of an operation's slot.
    #[inline]
    pub fn op_slot(&self, op: u32) -> usize {
        self.op_slots + op as usize * OP_SLOT_BYTES
    }
}

/// What an lcore asks of its device's [`Caps`].
#[derive(Clone, Copy, Debug, Default)]
pub struct LcoreCaps {
    /// Atomics that are posted here.
    pub atomics: bool,
    /// Atomics of a peer, by the key of a grant made here.
    pub granted_atomics: bool,
    /// Whether a window that is deallocated on a healthy queue pair proves its key ended.
    pub dealloc_fences: bool,
    /// Whether the key of a grant is a region, made off the lcore, and not a window.
    pub regions: bool,
}

impl LcoreCaps {
    /// What a device says of itself.
    pub fn of(caps: &Caps, key_mode: KeyMode) -> Self {
        let regions = key_mode == KeyMode::Region;
        Self {
            atomics: caps.atomics,
            granted_atomics: caps.atomics && (regions || caps.window_atomics),
            dealloc_fences: caps.dealloc_fences,
            regions,
        }
    }
}

/// A peer, as one lcore sees it.
#[derive(Clone, Debug)]
pub struct PeerView {
    /// Its configured name.
    pub name: String,
    /// The session, while one stands.
    pub session: Option<SessionId>,
    /// Lanes, by the peer's lcore and then by number.
    pub lanes: Vec<Vec<Option<LaneId>>>,
    /// Whether the session was announced to contexts.
    pub was_up: bool,
    /// Whether the end of the last session was announced.
    pub down_told: bool,
    /// Set while the session is left in order.
    pub leaving: Option<Leaving>,
    /// What its contexts cost this lcore, all sessions together.
    pub quota: PeerQuota,
}

impl PeerView {
    /// A peer that was never met.
    pub fn new(name: &str, limits: &PeerLimits) -> Self {
        Self {
            name: name.to_owned(),
            session: None,
            lanes: Vec::new(),
            was_up: false,
            down_told: false,
            leaving: None,
            quota: PeerQuota::new(limits),
        }
    }
}

impl PeerView {
    /// Whether a session stands on all its lanes, and something new may begin in it. Before that it is being made, and nobody was told of it.
    pub fn stands(&self) -> bool {
        self.session.is_some() && self.was_up && self.leaving.is_none()
    }
}

/// What one lcore owns.
#[derive(Debug)]
pub struct Core {
    pub(super) lcore: LcoreId,
    /// Lcores of the engine.
    pub(super) lcores: u16,
    pub(super) now_ns: u64,
    pub(super) limits: Limits,
    pub(super) timeouts: Timeouts,
    /// Of the last step of a reclaim: the engine's, since all lcores share its control side.
    pub(super) final_timeout_ns: u64,
    pub(super) frame_bytes: usize,
    /// The longest message with its header that is sent: what the device moves at once, and what a lane may have in flight.
    pub(super) longest_frame_bytes: u64,
    pub(super) caps: LcoreCaps,
    /// Within which time a full lane drains if it is healthy.
    pub(super) lane_drain_ns: u64,
    /// Buffers of reclaimed contexts that are being zeroed; `None` if that is not wanted.
    pub(super) zeroing: Option<Zeroing>,
    pub(super) memory: LcoreMemory,
    pub(super) contexts: Contexts,
    pub(super) ops: Ops,
    pub(super) grants: Grants,
    pub(super) keys: Keys,
    pub(super) imports: Imports,
    pub(super) lanes: Vec<Option<Box<Lane>>>,
    /// Which of these exist, a bit each.
    pub(super) lanes_taken: u128,
    /// The lists of their repairs.
    pub(super) lists: Lists,
    /// How many of them are being drained.
    pub(super) lanes_draining: u16,
    /// The slot from which on lanes post in this step.
    pub(super) first_lane: u16,
    pub(super) peers: Vec<PeerView>,
    pub(super) machine: reclaim::Machine,
    pub(super) actions: reclaim::Actions,
    /// What the machine was told so far, and in which state that met it.
    pub(super) reclaim_pairs: reclaim::PairSet,
    /// What the machine is still to be told.
    pub(super) events: VecDeque<reclaim::Event>,
    /// Whether the machine is being driven further up the stack.
    pub(super) driving: bool,
    /// Whether a service's call into the runtime is under way.
    pub(super) entered: bool,
    /// Work requests that reclaims may still post in this step.
    pub(super) reclaim_budget_wrs: u32,
    pub(super) timers: Timers,
    pub(super) lookups: Lookups,
    pub(super) flushes: Vec<Option<super::flush::PendingFlush>>,
    /// Flushes of other lcores that wait for a ticket.
    pub(super) flushes_waiting: VecDeque<(LcoreId, u16)>,
    /// Flushes that the machine is told of behind the cordons of this step.
    pub(super) flushes_to_begin: Vec<reclaim::TicketIx>,
    pub(super) outbox: Outbox,
    /// Contexts whose service is polled each step.
    pub(super) polled: Vec<u16>,
    /// Contexts that are clients.
    pub(super) clients: super::bells::Clients,
    /// Contexts with events to be told, each once.
    pub(super) ready: VecDeque<u16>,
    /// Contexts that asked to be closed, or whose service panicked.
    pub(super) closing: VecDeque<u16>,
    /// Contexts whose reclaim waits for handles.
    pub(super) awaiting_handles: VecDeque<u16>,
    /// Contexts that were refused for want of room which all share, each once.
    pub(super) wants_room: VecDeque<u16>,
    /// Operations and their bytes, of the whole lcore.
    pub(super) ops_in_flight: crate::context::quota::Gauge,
    pub(super) bytes_in_flight: crate::context::quota::Gauge,
    /// Entries of all contexts' lists of buffers.
    pub(super) buffers: crate::context::quota::Gauge,
    /// Where those lists are swept next.
    pub(super) buffers_sweep: super::close::Sweep,
    /// The next grant whose lease is looked at.
    pub(super) lease_cursor: u32,
    /// When what need not be done in each step is done again.
    pub(super) housekeeping_ns: u64,
    /// What is known of each context while a lane's cut is judged.
    pub(super) seen: Vec<Seen>,
    pub(super) stats: Stats,
    pub(super) trace: Trace,
}

impl Core {
    /// The lane in a slot that is known to be taken.
    #[inline(always)]
    pub(super) fn lane(&self, lane: LaneId) -> &Lane {
        self.lanes[lane.0 as usize]
            .as_deref()
            .expect("a lane in use is in the table")
    }

    /// The lane in a slot that is known to be taken, to change.
    #[inline(always)]
    pub(super) fn lane_mut(&mut self, lane: LaneId) -> &mut Lane {
        self.lanes[lane.0 as usize]
            .as_deref_mut()
            .expect("a lane in use is in the table")
    }

    /// The lane that joins context `slot` here to `remote`: both ends compute the same one. A context's operations go by its own slot.
    #[inline]
    pub(super) fn lane_to(&self, remote: &RemoteContext, slot: u16) -> Option<LaneId> {
        let peer = self.peers.get(remote.peer.0 as usize)?;
        if peer.session != Some(remote.session) || peer.leaving.is_some() {
            return None;
        }
        let lanes = peer.lanes.get(remote.id.lcore.0 as usize)?;
        let lane = (*lanes.get(slot as usize % lanes.len().max(1))?)?;
        self.lane(lane).takes_work().then_some(lane)
    }

    /// The lane that carries a link of a session, sound or not.
    pub(super) fn carrier(&self, link: LinkName, session: SessionId) -> Option<LaneId> {
        let peer = self.peers.get(link.peer.0 as usize)?;
        let lanes = peer.lanes.get(link.lcore.0 as usize)?;
        let lane = (*lanes.get(link.number as usize)?)?;
        (self.lane(lane).session == session).then_some(lane)
    }

    /// The remote context named on a lane.
    pub(super) fn remote_on(&self, lane: LaneId, slot: u16, generation: u32) -> RemoteContext {
        let lane = self.lane(lane);
        RemoteContext {
            peer: lane.peer,
            session: lane.session,
            id: ContextId {
                lcore: lane.peer_lcore,
                slot,
                generation,
            },
        }
    }

    /// Lanes that exist.
    pub(super) fn lane_ids(&self) -> impl Iterator<Item = LaneId> + use<> {
        self.lane_ids_from(0)
    }

    /// Lanes that exist, each once, from slot `first` on and then round.
    #[inline(always)]
    pub(super) fn lane_ids_from(&self, first: u16) -> impl Iterator<Item = LaneId> + use<> {
        let mut left = self.lanes_taken;
        if first > 0 {
            left = left.rotate_right(first.into());
        }
        core::iter::from_fn(move || {
            if left == 0 {
                return None;
            }
            let slot = left.trailing_zeros() as u16;
            left &= left - 1;
            Some(LaneId((slot + first) % 128))
        })
    }

    /// Takes a context off the list of those that are polled each step.
    pub(super) fn strike_polled(&mut self, slot: u16) {
        if let Some(at) = self.contexts.get_mut(slot).polled_at.take() {
            self.polled.swap_remove(at as usize);
            if let Some(&moved) = self.polled.get(at as usize) {
                self.contexts.get_mut(moved).polled_at = Some(at);
            }
        }
    }

    /// Puts a context, which does not stand there, on the list of those that are polled each step.
    pub(super) fn poll_again(&mut self, slot: u16) {
        let at = self.polled.len() as u16;
        let before = self.contexts.get_mut(slot).polled_at.replace(at);
        assert_eq!(before, None, "a service is polled once a step");
        self.polled.push(slot);
    }

    /// Tells a context something, unless it is past hearing.
    #[inline(always)]
    pub(super) fn tell(&mut self, slot: u16, event: Event) {
        let context = self.contexts.get_mut(slot);
        let hears = matches!(context.phase(), Phase::Live | Phase::Closing);
        if !hears || context.events.len() == context.events_limit {
            return self.not_told(slot, hears);
        }
        context.events.push_back(event);
        if !core::mem::replace(&mut context.ready, true) {
            self.ready.push_back(slot);
        }
    }

    /// An event has no place: its context is past hearing, or did not listen.
    #[cold]
    fn not_told(&mut self, slot: u16, hears: bool) {
        if hears {
            // R9: it was told to listen by back-pressure, and did not; nobody else pays for it.
            self.stats.contexts_deaf += 1;
            self.close(slot);
        } else {
            self.stats.events_unheard += 1;
        }
    }

    /// Tells every live context something that can be said often.
    pub(super) fn tell_all(&mut self, event: impl Fn() -> Event) {
        for slot in 0..self.contexts.capacity() {
            if self.contexts.get(slot).is_live() {
                self.tell(slot, event());
            }
        }
    }

    /// The owner tag of a context's buffers: the pools are all lcores', so the lcore is part of it.
    pub(super) fn owner_tag(&self, slot: u16) -> u32 {
        u32::from(self.lcore.0) << 16 | u32::from(slot)
    }

    /// The pool that the buffer at `address` is of.
    #[inline]
    pub(super) fn pool_of(&self, address: u64) -> Option<u8> {
        self.memory
            .pools
            .iter()
            .position(|pool| pool.addresses.contains(&address))
            .map(|pool| pool as u8)
    }

    /// Keeps a buffer from being reused.
    #[inline(always)]
    pub(super) fn hold(&mut self, pool: u8, id: BufId) {
        if plant::active(Plant::ReuseBeforeFlush) {
            return;
        }
        self.memory.pools[pool as usize]
            .cache
            .hold(id)
            .expect("a buffer with a handle can be held");
    }

    /// Ends one hold.
    #[inline(always)]
    pub(super) fn unhold(&mut self, pool: u8, id: BufId) {
        if plant::active(Plant::ReuseBeforeFlush) {
            return;
        }
        self.memory.pools[pool as usize]
            .cache
            .release(id)
            .expect("R7: each hold is ended once");
    }

    /// Keeps the buffers of an operation from being reused.
    #[inline]
    pub(super) fn hold_ranges(&mut self, ranges: &[Option<LocalRange>]) {
        if plant::active(Plant::OwnOpsForgotten) {
            return;
        }
        for range in ranges.iter().flatten() {
            self.hold(range.pool, range.buf);
        }
    }

    /// Ends the holds of an operation.
    #[inline]
    pub(super) fn unhold_ranges(&mut self, ranges: &[Option<LocalRange>]) {
        if plant::active(Plant::OwnOpsForgotten) {
            return;
        }
        for range in ranges.iter().flatten() {
            self.unhold(range.pool, range.buf);
        }
    }

    /// The peers that there are.
    pub(super) fn peer_ids(&self) -> impl Iterator<Item = PeerId> + use<> {
        (0..self.peers.len() as u16).map(PeerId)
    }

    /// Offset in the arena of an operation's slot.
    pub(super) fn op_slot(&self, op: u32) -> usize {
        self.memory.op_slot(op)
    }

    /// Offset in the arena of the frame slot of a request on a lane.
    pub(super) fn frame_slot(&self, lane: LaneId, sequence: u64) -> usize {
        let depth = self.limits.send_depth as u64;
        let slot = u64::from(lane.0) * depth + sequence % depth;
        self.memory.frames + slot as usize * crate::wire::MAX_CONTROL_BYTES
    }
}
