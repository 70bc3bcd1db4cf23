//! The driver: does the engines' control work on the calling thread, moves the run through its stages, kills and reopens, and closes.

use std::collections::BTreeMap;

use keyfence::EngineEvent;
use keyfence::config::Config;
use keyfence::ids::ContextId;
use keyfence::pmd::Device;
use keyfence_mempool::sync::Arc;

use super::board::GUEST;
use super::board::{DRAINED, READY, Stage};
use super::breaks::Breaks;
use super::chaos::{Chaos, How};
use super::guests::Guests;
use super::hangs::{self, Hangs};
use super::progress::Progress;
use super::scene::{Scene, THIRD};
use super::seen::Seen;
use crate::signals::Signals;

/// How long the drain may take. Nothing is killed meanwhile, so only what is in flight is waited for.
const DRAIN_NS: u64 = 2_000_000_000;

/// How long grants are revoked before the load begins, and how many.
const WARM_UP_NS: u64 = 400_000_000;
const WARM_UP_REVOKES_PER_S: f64 = 250.0;

/// A context that was opened.
#[derive(Clone, Copy, Debug)]
struct Live {
    index: usize,
    life: u64,
    /// How it is made to end, if it is.
    ends: Option<How>,
}

/// The driver of one run.
pub struct Driver<'a, D: Device> {
    scene: &'a mut Scene<D>,
    signals: &'a Signals,
    progress: Progress,
    /// Contexts of each side.
    live: [BTreeMap<u64, Live>; 2],
    /// The context of each worker.
    current: [Vec<Option<ContextId>>; 2],
    /// How often each worker was opened.
    lives: [Vec<u64>; 2],
    up: usize,
    /// Why the last attempt at a session came to nothing.
    refused: Option<String>,
    events: Vec<(usize, EngineEvent)>,
    breaks: Breaks,
    hangs: Hangs,
    /// What is done to the third engine, if there is one.
    guests: Option<Guests>,
    client_lease_ns: u64,
    /// How long a client that hangs, and then is reclaimed, may take; 0 where none does.
    slow_ends_ns: u64,
    seen: Seen,
}

impl<'a, D: Device> Driver<'a, D> {
    /// A driver of engines that have just been started.
    pub fn new(scene: &'a mut Scene<D>, signals: &'a Signals, progress: Progress) -> Self {
        let load = &scene.board.load;
        let workers = load.contexts as usize;
        let wishes = Arc::clone(&scene.board.wishes);
        Self {
            hangs: Hangs::new(&scene.board, u64::MAX),
            guests: None,
            client_lease_ns: 0,
            slow_ends_ns: 0,
            breaks: Breaks::new(wishes, load.seed, 0, [0.0; 2]),
            scene,
            signals,
            progress,
            live: [BTreeMap::new(), BTreeMap::new()],
            current: [vec![None; workers], vec![None; workers]],
            lives: [vec![0; workers], vec![0; workers]],
            up: 0,
            refused: None,
            events: Vec::new(),
            seen: Seen::default(),
        }
    }

    /// Runs all stages, up to the drain.
    pub fn run(mut self, config: &Config) -> Seen {
        let load = self.scene.board.load.clone();
        self.client_lease_ns = config.timeouts.client_lease_ns;
        self.guests = (config.engines.len() > THIRD).then(|| Guests::new(config));
        if load.troubles.hangs_per_s > 0.0 {
            let bound_ns = config.timeouts.reclaim_bound_ns(config.limits.keys());
            self.slow_ends_ns = self.client_lease_ns + bound_ns;
        }
        if self.guests.is_some() {
            // Stopped, lost at each end, and back.
            self.slow_ends_ns += 6 * config.timeouts.reconnect_timeout_ns;
        }
        let reconnect_ns = config.timeouts.reconnect_timeout_ns.max(5_000_000_000);
        if self.set_up(reconnect_ns) {
            self.warm_up();
            let began_ns = self.scene.board.clock.now_ns();
            let quiet_until_ns = began_ns + (load.duration_ns as f64 * load.quiet_share) as u64;
            self.scene.board.quiet_until(quiet_until_ns);
            let mut chaos = Chaos::new(&self.scene.board, quiet_until_ns);
            self.breaks = Breaks::of(&self.scene.board, quiet_until_ns);
            self.hangs = Hangs::new(&self.scene.board, quiet_until_ns);
            if let Some(guests) = &mut self.guests {
                let (stops, restarts) = (load.troubles.peer_stops, load.troubles.peer_restarts);
                let len_ns = (began_ns + load.duration_ns).saturating_sub(quiet_until_ns);
                guests.plan(stops, restarts, quiet_until_ns, len_ns);
            }
            let paced_ns = (load.duration_ns as f64 * load.paced_share) as u64;
            self.load_until(Stage::Paced, began_ns + paced_ns, &mut chaos);
            self.load_until(Stage::Flat, began_ns + load.duration_ns, &mut chaos);
            self.make_up(began_ns, &mut chaos);
            self.seen.traffic_ns = self.scene.board.clock.now_ns() - began_ns;
        }
        self.seen.connected = self.up >= 2;
        self.drain();
        self.seen.repairs = self.breaks.end();
        self.seen.hung = self.hangs.reclaimed;
        self.seen.third = self.guests.map(|guests| guests.fate).unwrap_or_default();
        self.seen
    }

    /// Waits for the sessions and for all workers. False if the load can't begin.
    fn set_up(&mut self, patience_ns: u64) -> bool {
        self.progress.stage("connecting and granting", 0);
        let deadline_ns = self.scene.board.clock.now_ns() + patience_ns;
        while !self.scene.all_have(READY) {
            if !self.turn() {
                return false;
            }
            if self.scene.board.clock.now_ns() > deadline_ns {
                let error = self.not_set_up(patience_ns / 1_000_000);
                self.seen.errors.push(error);
                return false;
            }
        }
        true
    }

    fn not_set_up(&self, patience_ms: u64) -> String {
        match &self.refused {
            _ if self.up >= 2 => format!(
                "contexts were not ready for traffic within {patience_ms} ms; raise timeouts.reconnect"
            ),
            Some(why) => {
                format!("a peer was not reached within {patience_ms} ms; at last: {why}")
            }
            None => {
                format!("a peer was not reached within {patience_ms} ms; raise timeouts.reconnect")
            }
        }
    }

    fn warm_up(&mut self) {
        let now_ns = self.scene.board.clock.now_ns();
        let mut chaos = Chaos::of_revokes(&self.scene.board, now_ns, WARM_UP_REVOKES_PER_S);
        self.load_until(Stage::WarmUp, now_ns + WARM_UP_NS, &mut chaos);
    }

    /// A machine that others use too does less in the same time: the load goes on until its minima are reached, at most for as long again.
    fn make_up(&mut self, began_ns: u64, chaos: &mut Chaos) {
        let duration_ns = self.scene.board.load.duration_ns;
        let last_ns = began_ns + 2 * duration_ns;
        let is_short = |driver: &Self| {
            let runs = !driver.seen.interrupted && driver.scene.is_alive();
            runs && driver.scene.board.clock.now_ns() < last_ns && !driver.has_minima()
        };
        if is_short(self) {
            self.progress
                .stage("short of the minima, flat out", duration_ns);
        }
        while is_short(self) {
            let now_ns = self.scene.board.clock.now_ns();
            self.chaos_until(last_ns.min(now_ns + duration_ns / 16), chaos);
        }
    }

    /// Whether the load has reached what more time can bring.
    fn has_minima(&self) -> bool {
        let board = &self.scene.board;
        let (mut operations, mut revokes) = (0, 0);
        for side in &board.sides {
            let tally = side.tally();
            operations += tally.ops();
            revokes += tally.revokes_with_write_in_flight;
        }
        let minima = &board.load.minima;
        let troubles = self.breaks.repairs().count >= minima.lane_repairs
            && board.wishes.refused() >= minima.dead_keys
            && self.seen.panicked >= minima.panics
            && self.hangs.reclaimed >= minima.hangs;
        let third = self.guests.as_ref().is_none_or(Guests::is_done);
        troubles
            && third
            && operations >= minima.operations
            && self.seen.reclaimed >= minima.reclaims
            && revokes >= minima.revokes_with_write_in_flight
    }

    fn load_until(&mut self, stage: Stage, end_ns: u64, chaos: &mut Chaos) {
        let now_ns = self.scene.board.clock.now_ns();
        self.scene.enter(stage);
        let name = match stage {
            Stage::Paced => "paced",
            Stage::Flat => "flat out",
            _ => "warming up",
        };
        self.progress.stage(name, end_ns.saturating_sub(now_ns));
        self.chaos_until(end_ns, chaos);
    }

    fn chaos_until(&mut self, end_ns: u64, chaos: &mut Chaos) {
        loop {
            let now_ns = self.scene.board.clock.now_ns();
            if now_ns >= end_ns {
                return;
            }
            self.progress.at(now_ns, end_ns);
            let current = &self.current;
            let due = chaos.due(&self.scene.board, now_ns, |side, index| {
                current[side][index]
            });
            for (side, context, how) in due {
                self.make_end(side, context, how);
            }
            self.breaks.turn(now_ns);
            self.hangs.turn(self.scene, now_ns);
            if let Some(guests) = &mut self.guests {
                guests.turn(self.scene, now_ns);
            }
            if !self.turn() {
                return;
            }
        }
    }

    /// Kills a context, or lets it panic, as it was asked to.
    fn make_end(&mut self, side: usize, context: ContextId, how: How) {
        let live = self.live[side].get_mut(&context.to_bits());
        if let Some(live) = live.filter(|live| live.ends.is_none()) {
            live.ends = Some(how);
            self.scene.board.reclaim_began();
            if how == How::Kill {
                self.scene.kill(side, context);
            }
        }
    }

    /// One turn of control work, and a rest if there was none. False if the run is to end: a signal, or a dead lcore.
    fn turn(&mut self) -> bool {
        let mut events = core::mem::take(&mut self.events);
        self.scene.control(&mut events);
        for (engine, event) in events.drain(..) {
            if self.is_guests(engine, &event)
                && let Some(guests) = &mut self.guests
            {
                guests.event(engine, &event);
                self.seen.note(engine, &event);
            } else {
                self.event(engine, event);
            }
        }
        self.events = events;
        if !self.seen.interrupted && self.signals.interrupted() {
            self.seen.interrupted = true;
            self.progress.stage("interrupted: closing all contexts", 0);
        }
        !self.seen.interrupted && self.scene.is_alive()
    }

    fn event(&mut self, side: usize, event: EngineEvent) {
        match event {
            EngineEvent::Opened { context, name } if name.starts_with(hangs::NAME) => {
                self.hangs.opened(&name, context);
            }
            EngineEvent::OpenFailed { name, .. } if name.starts_with(hangs::NAME) => {
                self.hangs.not_opened(&name);
            }
            EngineEvent::Opened { context, name } => self.opened(side, context, &name),
            EngineEvent::OpenFailed { name, why } => {
                self.seen
                    .errors
                    .push(format!("context {name} could not be opened: {why}"));
            }
            EngineEvent::Reclaimed {
                context,
                took_ns,
                ops_in_flight,
                ..
            } => {
                self.seen.reclaimed += 1;
                self.seen.with_ops_in_flight += u64::from(ops_in_flight > 0);
                self.seen.reclaim_ns.record(took_ns);
                self.ended(side, context);
            }
            EngineEvent::Quarantined { context, .. } => {
                self.seen.note(side, &event);
                self.ended(side, context);
            }
            EngineEvent::PeerUp(_) => self.up += 1,
            EngineEvent::JoinRefused { why, .. } => {
                self.refused = Some(format!("side {side}: {why}"));
            }
            EngineEvent::PeerDown(_) => {
                self.seen.peers_down += 1;
                self.breaks.lost();
            }
            EngineEvent::LaneRepaired { .. } => {
                let now_ns = self.scene.board.clock.now_ns();
                self.breaks.repaired(side, now_ns);
            }
            EngineEvent::ServicePanicked { context } if self.told_to_panic(side, context) => {
                self.seen.panicked += 1;
            }
            event => self.seen.note(side, &event),
        }
    }

    /// Whether an event is about the third engine, or about a context that deals with it.
    fn is_guests(&mut self, engine: usize, event: &EngineEvent) -> bool {
        match event {
            _ if engine == THIRD => true,
            EngineEvent::Opened { name, .. } => name.starts_with(GUEST),
            EngineEvent::Reclaimed { context, .. } | EngineEvent::Quarantined { context, .. } => {
                let guests = self.guests.as_ref();
                guests.is_some_and(|guests| guests.has(engine, *context))
            }
            EngineEvent::PeerUp(peer)
            | EngineEvent::PeerDown(peer)
            | EngineEvent::LaneRepaired { peer, .. } => !self.scene.is_other(engine, *peer),
            _ => false,
        }
    }

    fn told_to_panic(&self, side: usize, context: ContextId) -> bool {
        let live = self.live[side].get(&context.to_bits());
        live.is_some_and(|live| live.ends == Some(How::Panic))
    }

    fn opened(&mut self, side: usize, context: ContextId, name: &str) {
        let number = name
            .rsplit('-')
            .next()
            .and_then(|number| number.parse().ok());
        let index: usize = number.expect("workers are named so");
        let life = self.lives[side][index];
        self.current[side][index] = Some(context);
        let live = Live {
            index,
            life,
            ends: None,
        };
        self.live[side].insert(context.to_bits(), live);
    }

    /// A context has ended; a new one takes its place.
    fn ended(&mut self, side: usize, context: ContextId) {
        if self.hangs.has(side, context) {
            let now_ns = self.scene.board.clock.now_ns();
            let lease_ns = self.client_lease_ns;
            let ended = self.hangs.ended(side, context, lease_ns, now_ns);
            self.seen.errors.extend(ended.err());
            return;
        }
        let Some(live) = self.live[side].remove(&context.to_bits()) else {
            self.seen.errors.push(format!(
                "context {context} of side {side} ended twice, or was never opened"
            ));
            return;
        };
        if live.ends.is_some() {
            self.scene.board.reclaim_ended();
        } else {
            self.seen.unasked += 1;
            self.seen.errors.push(format!(
                "context {context} of side {side} ended, and nobody had asked for it"
            ));
        }
        let life = live.life + 1;
        self.lives[side][live.index] = life;
        self.current[side][live.index] = None;
        self.scene.open(side, live.index, life);
    }

    fn third_is_back(&mut self) -> bool {
        let now_ns = self.scene.board.clock.now_ns();
        let guests = self.guests.as_mut();
        guests.is_none_or(|guests| guests.wind_down(self.scene, now_ns))
    }

    fn no_client_hangs(&mut self) -> bool {
        let now_ns = self.scene.board.clock.now_ns();
        self.hangs.go_on(self.scene, now_ns)
    }

    /// Waits for the operations in flight; after a signal the contexts are closed as they are.
    fn drain(&mut self) {
        self.scene.enter(Stage::Drain);
        if self.seen.interrupted {
            if let Some(guests) = &mut self.guests {
                guests.interrupt(self.scene);
            }
            return;
        }
        let deadline_ns = self.scene.board.clock.now_ns() + DRAIN_NS + self.slow_ends_ns;
        let killed = |driver: &Self| {
            driver
                .live
                .iter()
                .flat_map(BTreeMap::values)
                .any(|live| live.ends.is_some())
        };
        while !self.breaks.wind_down()
            || !self.third_is_back()
            || !self.scene.all_have(DRAINED)
            || killed(self)
            || !self.no_client_hangs()
        {
            if !self.turn() || self.scene.board.clock.now_ns() > deadline_ns {
                break;
            }
        }
        if self.seen.interrupted {
            return;
        }
        if !self.third_is_back() {
            let text = "the third engine was not back in time";
            self.seen.errors.push(text.into());
        }
        let left = self.scene.boards().flat_map(|board| board.members());
        let left = left.filter(|member| !member.has(DRAINED));
        self.seen.undrained = left.count() as u64;
        if !self.no_client_hangs() {
            let text = "a client that hung was not reclaimed in time";
            self.seen.errors.push(text.into());
        }
    }
}
