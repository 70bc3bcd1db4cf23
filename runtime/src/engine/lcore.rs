//! One iteration of the poll loop, step by step.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use keyfence_mempool::ring::spsc::Consumer;
use keyfence_pmd::{Completion, DataPath};

use crate::engine::Context;
use crate::engine::command::{Command, DeathNotice, OpenContext, OpenRefusal, ToControl};
use crate::engine::shutdown::Shutdown;
use crate::engine::state::Core;
use crate::engine::stats::{SharedStats, Stats};
use crate::event::EngineEvent;
use crate::ids::{LaneId, LcoreId};
use crate::lane::LanePhase;
use crate::limits::{Limit, LimitError};
use crate::reclaim::PairSet;
use crate::service::{AnyService, Code, Work};
use crate::trace::Trace;

/// Completions taken from the device in one go.
pub(super) const BURST: usize = 64;

/// Bursts taken in one step at most, so that services get their turn.
const BURSTS_A_STEP: usize = 4;

/// Steps between two publications of the counters.
const STEPS_A_PUBLICATION: u64 = 4096;

/// A polling thread's whole state. Its owner calls [`Lcore::step`] in a loop from one thread: the engine's own
/// ([`Engine::start`](crate::Engine::start)), or a reactor of DPDK or SPDK.
pub struct Lcore<P> {
    pub(super) path: P,
    pub(super) core: Core,
    pub(super) services: Vec<Option<Code>>,
    pub(super) commands: Consumer<Command>,
    pub(super) shared: SharedStats,
    pub(super) done: Box<[Completion]>,
    pub(super) shutdown: Shutdown,
    /// A longer time between two steps is counted.
    pub(super) step_max_ns: u64,
    /// Whether the last step found something to do.
    pub(super) was_busy: bool,
    /// Dropped with the lcore, and then looks whether that is by a panic.
    pub(super) _death: DeathNotice,
}

impl<P: DataPath> Lcore<P> {
    /// Which one it is.
    #[must_use]
    pub fn id(&self) -> LcoreId {
        self.core.lcore
    }

    /// Its counters, for the thread that owns it.
    #[must_use]
    pub fn stats(&self) -> &Stats {
        &self.core.stats
    }

    /// What its keys went through last, for the thread that owns it: what a failed check prints.
    #[must_use]
    pub fn trace(&self) -> &Trace {
        &self.core.trace
    }

    /// Which events its reclaim machine has met, and in which states, since the start: whether a run was one at all. For the thread that owns it. What is missed is
    /// [`PairSet::expected`](crate::reclaim::PairSet::expected) of the engine's keys, [`minus`](crate::reclaim::PairSet::minus) this.
    #[must_use]
    pub fn reclaim_pairs(&self) -> &PairSet {
        &self.core.reclaim_pairs
    }

    /// Runs one iteration: takes what the device and the control side have, runs the services, posts what is due. Never blocks, makes no system
    /// call. `now_ns` is a monotonic time of the caller's choice; one that goes back is taken as no time having passed.
    ///
    /// Two things are not of the data path and allocate: opening a context, and the coming of a lane. And a context's end drops its service here: the
    /// runtime frees nothing then, but what the application's destructor does, freeing its memory included, is done in this step.
    pub fn step(&mut self, now_ns: u64) -> Work {
        let since_last_ns = now_ns.saturating_sub(self.core.now_ns);
        if since_last_ns > self.core.stats.longest_pause_ns || since_last_ns > self.step_max_ns {
            self.note_pause(since_last_ns);
        }
        self.core.now_ns = self.core.now_ns.max(now_ns);
        self.core.stats.steps += 1;
        self.core.reclaim_budget_wrs = self.core.limits.reclaim_budget_wrs;
        let commands = self.take_commands() | self.close_some();
        // A kill is cordoned with what is in flight at its arrival.
        self.reclaim_closing();
        let completions = self.poll_device();
        let timers = self.core.timers.due_ns() <= self.core.now_ns && self.core.expire_timers();
        let services = self.run_services();
        self.reclaim_closing();
        if !self.core.awaiting_handles.is_empty() {
            self.core.check_handles();
        }
        if self.core.now_ns >= self.core.housekeeping_ns {
            self.core.keep_house();
        }
        let zeroed = self.core.is_zeroing() && self.core.zero_some();
        let posted = self.post();
        let ended = self.core.lanes_draining > 0 && self.end_lanes();
        self.core.outbox.flush();
        self.tell_all_closed();
        let busy = commands || completions || timers || services || zeroed || posted || ended;
        self.account(busy)
    }

    /// The longest time between two steps so far, or one longer than is allowed. Before the first step there is none.
    #[cold]
    fn note_pause(&mut self, since_last_ns: u64) {
        let stats = &mut self.core.stats;
        if stats.steps > 0 {
            stats.steps_overran += u64::from(since_last_ns > self.step_max_ns);
            stats.longest_pause_ns = stats.longest_pause_ns.max(since_last_ns);
        }
    }

    #[inline(always)]
    fn account(&mut self, busy: bool) -> Work {
        if !busy {
            self.core.stats.idle_steps += 1;
        }
        let pauses = core::mem::replace(&mut self.was_busy, busy) && !busy;
        if pauses || self.core.stats.steps.is_multiple_of(STEPS_A_PUBLICATION) {
            self.publish();
        }
        if busy { Work::Busy } else { Work::Idle }
    }

    /// Shows the counters to other threads: from time to time, and whenever nothing is left to do.
    pub(super) fn publish(&self) {
        self.shared.publish(&self.core.stats);
    }

    #[inline]
    fn take_commands(&mut self) -> bool {
        let mut any = false;
        while let Some(command) = self.commands.pop() {
            any = true;
            self.obey(command);
        }
        any
    }

    fn obey(&mut self, command: Command) {
        let core = &mut self.core;
        match command {
            Command::Open(request) => self.open(request),
            Command::Kill(context) => {
                if context.lcore == core.lcore
                    && let Some(slot) = core.contexts.live(context.slot, context.generation)
                {
                    core.close(slot);
                }
            }
            Command::AttachLane {
                lane,
                siblings,
                entry,
            } => {
                core.attach_lane(lane, siblings, entry);
                self.post_receives(lane);
                self.core.outbox.push(ToControl::LaneAttached(lane));
            }
            Command::LaneConnected { lane, hello } => core.lane_connected(lane, hello),
            Command::LaneAdmitted {
                lane,
                credits,
                peer,
                peer_contexts,
                peer_grants,
                listed,
            } => {
                let entry = core.lane_mut(lane);
                entry.link.peer_contexts = peer_contexts;
                entry.link.peer_grants = peer_grants;
                entry.listed = listed;
                core.lane_admitted(lane, credits, peer);
            }
            Command::SessionUp(peer) => core.session_up(peer),
            Command::SessionOver { peer, session } => core.session_over(peer, session),
            Command::Leave { peer, session } => core.leave(peer, session),
            Command::QpInError(lane) => core.qp_in_error(lane),
            Command::KeyMade { key, made } => core.key_made(key, made),
            Command::Deallocated { key, done } => core.deallocated(key, done),
            Command::WindowReplaced {
                lane,
                qp,
                place,
                window,
            } => core.window_replaced(lane, qp, place, window),
            Command::QpDestroyed(lane) => core.qp_destroyed(lane),
            Command::DomainOver { lane, qp } => core.domain_over(lane, qp),
            Command::FlushFor { origin, ticket } => core.flush_for(origin, ticket),
            Command::FlushPart {
                ticket,
                quarantined,
            } => core.flush_part(ticket, quarantined),
            Command::Census(mut grants) => {
                grants.extend(core.census());
                let lcore = core.lcore;
                let census = EngineEvent::Census { lcore, grants };
                core.outbox.push(ToControl::Event(census));
            }
            Command::CloseAll => {
                if self.shutdown == Shutdown::None {
                    self.shutdown = Shutdown::Closing { next: 0 };
                }
            }
        }
    }

    fn open(&mut self, request: Box<OpenContext>) {
        let slot = match self.slot_for(&request) {
            Ok(slot) => slot,
            Err(why) => {
                self.core.outbox.push(ToControl::NotOpened { request, why });
                return;
            }
        };
        let OpenContext { name, code, .. } = *request;
        self.services[slot as usize] = Some(code);
        self.core.poll_again(slot);
        self.core.stats.contexts_opened += 1;
        let context = self.core.contexts.id(slot);
        let opened = EngineEvent::Opened { context, name };
        self.core.outbox.push(ToControl::Event(opened));
    }

    fn slot_for(&mut self, request: &OpenContext) -> Result<u16, OpenRefusal> {
        if self.shutdown != Shutdown::None {
            return Err(OpenRefusal::Closing);
        }
        let contexts = &mut self.core.contexts;
        let slot = contexts.open(request.name.clone(), request.weight);
        slot.ok_or_else(|| {
            let full = LimitError {
                limit: Limit::Contexts,
                value: contexts.capacity().into(),
                in_use: contexts.in_use() as u64,
                wanted: 1,
            };
            full.into()
        })
    }

    fn poll_device(&mut self) -> bool {
        let mut any = false;
        for _ in 0..BURSTS_A_STEP {
            let count = self.path.poll_burst(&mut self.done);
            any |= count > 0;
            for at in 0..count {
                let done = self.done[at];
                self.core.complete(&done);
            }
            if count < self.done.len() {
                break;
            }
        }
        any
    }

    fn run_services(&mut self) -> bool {
        let mut any = false;
        if self.core.clients.are_there() {
            self.core.wake_clients();
        }
        for _ in 0..self.core.ready.len() {
            if let Some(slot) = self.core.ready.pop_front() {
                any |= self.tell(slot);
            }
        }
        let mut at = 0;
        while at < self.core.polled.len() {
            let slot = self.core.polled[at];
            any |= self.poll_service(slot);
            // The list shrinks under the loop when a context waits or closes.
            if self.core.polled.get(at) == Some(&slot) {
                at += 1;
            }
        }
        any
    }

    /// Tells a context all its events of now; new ones are told in the next step. Returns whether it was told any.
    fn tell(&mut self, slot: u16) -> bool {
        let mut any = false;
        // Off the list: what its service causes while it is told puts it there again, once.
        let context = self.core.contexts.get_mut(slot);
        context.ready = false;
        let count = context.events.len();
        self.call(slot, |service, cx| {
            for _ in 0..count {
                if !cx.is_live() || !service.takes_events() {
                    break;
                }
                let Some(event) = cx.within(|cx| cx.core.next_event(slot)) else {
                    break;
                };
                any = true;
                service.on_event(cx, event);
            }
        });
        if !self.core.contexts.get(slot).is_live() {
            return any;
        }
        if !self.core.contexts.get(slot).messages.is_empty() {
            self.core.sweep_messages(slot);
        }
        let context = self.core.contexts.get_mut(slot);
        // What it did not take stays, and it stays on the list.
        if !context.events.is_empty() && !core::mem::replace(&mut context.ready, true) {
            self.core.ready.push_back(slot);
        }
        if context.waits {
            context.waits = false;
            self.core.poll_again(slot);
        }
        any
    }

    fn poll_service(&mut self, slot: u16) -> bool {
        let mut work = Work::Wait;
        self.core.stats.services_polled += 1;
        self.call(slot, |service, cx| work = service.poll(cx));
        if !self.core.contexts.get(slot).is_live() {
            self.core.strike_polled(slot);
            return true;
        }
        if !self.core.contexts.get(slot).messages.is_empty() {
            self.core.sweep_messages(slot);
        }
        if work == Work::Wait {
            if self.core.contexts.get(slot).events.is_empty() {
                self.core.contexts.get_mut(slot).waits = true;
                self.core.strike_polled(slot);
            }
            return false;
        }
        work == Work::Busy
    }

    /// Calls a service under a catch: a panic ends its context and nothing else.
    #[inline]
    fn call(&mut self, slot: u16, run: impl FnOnce(&mut AnyService, &mut Context<'_>)) {
        // A service that has panicked, or closed its context, is not called again.
        if !self.core.contexts.get(slot).is_live() {
            return;
        }
        let Some(service) = self.services[slot as usize].as_mut().map(Code::as_mut) else {
            return;
        };
        let mut cx = Context {
            core: &mut self.core,
            slot,
        };
        // The service is dropped after a panic, and the core's own invariants hold at each call's end.
        let outcome = catch_unwind(AssertUnwindSafe(|| run(service, &mut cx)));
        if outcome.is_err() {
            self.service_panicked(slot, outcome);
        }
    }

    #[cold]
    fn service_panicked(&mut self, slot: u16, outcome: std::thread::Result<()>) {
        let Err(panic) = outcome else {
            return;
        };
        // Inside a call of the runtime it is our panic and not the service's: the tables may be half changed.
        if self.core.entered {
            resume_unwind(panic);
        }
        drop_caught(panic);
        self.core.stats.services_panicked += 1;
        let context = self.core.contexts.id(slot);
        let event = EngineEvent::ServicePanicked { context };
        self.core.outbox.push(ToControl::Event(event));
        self.core.close(slot);
    }

    /// Step 1 of each reclaim that was asked for: cordon, then the service's destructor, then the epoch. Flushes come behind them all.
    #[inline]
    fn reclaim_closing(&mut self) {
        if !(self.core.closing.is_empty() && self.core.flushes_to_begin.is_empty()) {
            self.reclaim_those_closing();
        }
    }

    #[cold]
    #[inline(never)]
    fn reclaim_those_closing(&mut self) {
        while let Some(slot) = self.core.closing.pop_front() {
            self.core.strike_polled(slot);
            self.core.cordon(slot);
            match self.services[slot as usize].take() {
                Some(Code::Client(mut side)) => {
                    side.shut();
                    self.core.outbox.push(ToControl::ClientGone(side));
                }
                // Whatever the destructor did not drop stays out, and ends the reclaim in quarantine.
                service => self.core.stats.services_leaked += u64::from(!drop_caught(service)),
            }
            self.core.take_epoch(slot);
        }
        self.core.begin_flushes();
    }

    fn post(&mut self) -> bool {
        let mut any = false;
        let lanes = self.core.lane_ids_from(self.core.first_lane);
        self.core.rotate_lanes();
        for lane in lanes {
            if !self.core.lane(lane).is_at_rest() {
                any |= self.post_on(lane);
            }
        }
        any
    }

    fn post_on(&mut self, lane: LaneId) -> bool {
        // First, so that what is posted now tells the peer of them.
        self.post_receives(lane);
        let mut any = self.core.pump(lane);
        let entry = self.core.lane_mut(lane);
        if !entry.staged.is_empty() {
            let taken = self.path.post_burst(entry.qp, &entry.staged);
            if taken == entry.staged.len() {
                entry.staged.clear();
            } else {
                entry.staged.drain(..taken);
            }
            // Also if the device takes nothing now: it is asked again at once.
            any = true;
        }
        if entry.phase == LanePhase::Greeting {
            self.core.tell_hello(lane);
        }
        any
    }

    fn post_receives(&mut self, lane: LaneId) {
        // The pool may have run dry when the slots became empty, and have buffers of other lanes now.
        let entry = self.core.lane(lane);
        if entry.is_sound() && !entry.empty_receives.is_empty() {
            self.core.refill_receives(lane);
        }
        let entry = self.core.lane_mut(lane);
        if !entry.staged_receives.is_empty() {
            let taken = self.path.post_receives(entry.qp, &entry.staged_receives);
            if taken == entry.staged_receives.len() {
                entry.staged_receives.clear();
            } else {
                entry.staged_receives.drain(..taken);
            }
            entry.receives_posted = entry.receives_posted.wrapping_add(taken as u32);
        }
    }

    fn end_lanes(&mut self) -> bool {
        let mut any = false;
        while let Some((lane, qp)) = self.core.drained_lane() {
            self.path.release_qp(qp);
            self.core.lane_released(lane);
            any = true;
        }
        any
    }
}

/// Drops what is an application's, under a catch; whether that went well. What a panic carries is the application's too, and a destructor of it
/// that panics as well is not tried again: its panic is leaked.
pub(super) fn drop_caught<T>(value: T) -> bool {
    let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(value))) else {
        return true;
    };
    if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
        core::mem::forget(again);
    }
    false
}

impl<P> core::fmt::Debug for Lcore<P> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Lcore")
            .field("core", &self.core)
            .finish_non_exhaustive()
    }
}
