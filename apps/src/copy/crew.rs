//! The contexts of a copy: opened, killed by schedule, and replaced.

use std::collections::BTreeSet;

use keyfence::ids::{ContextId, LcoreId};
use keyfence::pmd::Device;
use keyfence::{BoxedService, EngineEvent};
use keyfence_mempool::sync::Arc;

use super::board::{Board, Side, count};
use super::plan::Plan;
use super::receiver::Receiver;
use super::seat::{Chair, ReceiverSeat, SenderSeat};
use super::sender::Sender;
use crate::host::Host;

/// Everyone who works at a copy.
pub struct Crew {
    plan: Arc<Plan>,
    board: Arc<Board>,
    chairs: Vec<(Chair<SenderSeat>, Chair<ReceiverSeat>)>,
    members: Vec<[Member; 2]>,
    /// By stream: its arrivals at the last death, and how many have died at that count.
    deaths: Vec<(u32, u32)>,
    /// By stream: contexts chosen to die.
    doomed: Vec<u32>,
    kill_every_ns: Option<u64>,
    issued: u64,
    /// Where the search for the next victim begins.
    cursor: usize,
    /// By the side's engine.
    killed: BTreeSet<(Side, ContextId)>,
    /// What ended, from the engines' events.
    pub tally: Tally,
}

/// What the engines' events add up to.
#[derive(Default)]
pub struct Tally {
    /// From the cordon to `Reclaimed`, of each context.
    pub reclaim_ns: Vec<u64>,
    /// Contexts that ended in quarantine.
    pub quarantined: u64,
    /// Services that panicked.
    pub panics: u64,
    /// Whether a session was lost.
    pub peer_lost: bool,
    /// Engines whose peer was seen.
    pub peers_up: usize,
}

/// The living context of one side of a stream.
#[derive(Default)]
struct Member {
    number: u32,
    context: Option<ContextId>,
}

/// Deaths of a stream's contexts with no arrival in between.
const MAX_IDLE_DEATHS: u32 = 2;

const SIDES: [Side; 2] = [Side::Sender, Side::Receiver];

impl Crew {
    /// A crew for these streams, none of it at work yet.
    pub fn new(
        plan: &Arc<Plan>,
        board: &Arc<Board>,
        chairs: Vec<(Chair<SenderSeat>, Chair<ReceiverSeat>)>,
        kill_every_ns: Option<u64>,
    ) -> Self {
        let members = chairs.iter().map(|_| Default::default()).collect();
        let deaths = vec![(0, 0); chairs.len()];
        let doomed = vec![0; chairs.len()];
        Self {
            plan: Arc::clone(plan),
            board: Arc::clone(board),
            chairs,
            members,
            deaths,
            doomed,
            kill_every_ns,
            issued: 0,
            cursor: 0,
            killed: BTreeSet::new(),
            tally: Tally::default(),
        }
    }

    /// Opens the first context of each side of each stream.
    pub fn open_all(&mut self, host: &mut Host<impl Device>) {
        for stream in 0..self.members.len() {
            for side in SIDES {
                self.open(host, stream, side);
            }
        }
    }

    /// Takes what happened on an engine.
    pub fn note(&mut self, host: &mut Host<impl Device>, engine: usize, event: &EngineEvent) {
        self.tally.note(event);
        let side = SIDES[engine];
        match event {
            EngineEvent::Opened { context, name } => {
                if let Some(stream) = self.stream_of(side, name) {
                    self.members[stream][engine].context = Some(*context);
                }
            }
            // No slot is free until a dead one is reclaimed.
            EngineEvent::OpenFailed { name, .. } => {
                if let Some(stream) = self.stream_of(side, name) {
                    self.open(host, stream, side);
                }
            }
            _ => {}
        }
    }

    /// Kills who is due: by now, one for each interval since the start, not counting those that had nothing in transfer.
    pub fn reap(&mut self, host: &mut Host<impl Device>, elapsed_ns: u64) {
        let Some(every_ns) = self.kill_every_ns else {
            return;
        };
        let due = elapsed_ns / every_ns;
        while self.issued.saturating_sub(count(&self.board.misses)) < due {
            let Some((stream, side)) = self.victim() else {
                return;
            };
            self.kill(host, stream, side);
        }
    }

    /// Whether a context was killed by the schedule.
    pub fn was_killed(&self, side: Side, context: ContextId) -> bool {
        self.killed.contains(&(side, context))
    }

    /// The next in turn that lives and has a transfer in flight; sides alternate. A stream that nothing comes through for some deaths is
    /// left alone until something does, or a short interval would keep the copy from ever ending.
    fn victim(&mut self) -> Option<(usize, Side)> {
        let places = self.members.len() * SIDES.len();
        for step in 0..places {
            let place = (self.cursor + step) % places;
            let (stream, side) = (place / SIDES.len(), SIDES[place % SIDES.len()]);
            // One death at a time: until its destructor has spoken, the board tells of the dead.
            let lives = self.members[stream][side as usize].context.is_some()
                && self.doomed[stream] == self.board.deaths(stream);
            let (arrivals, deaths) = self.deaths[stream];
            let moved = arrivals != self.board.arrivals(stream) || deaths < MAX_IDLE_DEATHS;
            if lives && moved && self.board.is_in_transfer(stream) {
                // Not its partner next: a stream is left to work between two deaths.
                self.cursor = (place + SIDES.len() + 1) % places;
                return Some((stream, side));
            }
        }
        None
    }

    fn kill(&mut self, host: &mut Host<impl Device>, stream: usize, side: Side) {
        let member = &mut self.members[stream][side as usize];
        let Some(context) = member.context.take() else {
            return;
        };
        let arrivals = self.board.arrivals(stream);
        let before = match self.deaths[stream] {
            (then, deaths) if then == arrivals => deaths,
            _ => 0,
        };
        self.deaths[stream] = (arrivals, before + 1);
        self.doomed[stream] += 1;
        self.board.doom(stream, side, member.number);
        self.killed.insert((side, context));
        self.issued += 1;
        host.engine(side as usize).kill(context);
        self.open(host, stream, side);
    }

    /// Asks for the next context of a side. It starts when its predecessor has given its seat back.
    fn open(&mut self, host: &mut Host<impl Device>, stream: usize, side: Side) {
        let member = &mut self.members[stream][side as usize];
        member.number += 1;
        let ledger = host.ledger(side as usize);
        let (sender, receiver) = &self.chairs[stream];
        let (number, plan, board) = (member.number, &self.plan, &self.board);
        let service: BoxedService = match side {
            Side::Sender => Box::new(Sender::new(stream, number, plan, board, ledger, sender)),
            Side::Receiver => {
                let partner = name(Side::Sender, stream);
                let receiver =
                    Receiver::new(stream, number, partner, plan, board, ledger, receiver);
                Box::new(receiver)
            }
        };
        let engine = host.engine(side as usize);
        let asked = engine.open(LcoreId(0), &name(side, stream), 1, service);
        asked.expect("each engine has an lcore 0, and the names are names");
    }

    fn stream_of(&self, side: Side, name_of: &str) -> Option<usize> {
        (0..self.members.len()).find(|&stream| name(side, stream) == name_of)
    }
}

impl Tally {
    /// Takes one event.
    pub fn note(&mut self, event: &EngineEvent) {
        match event {
            EngineEvent::Reclaimed { took_ns, .. } => self.reclaim_ns.push(*took_ns),
            EngineEvent::Quarantined { .. } => self.quarantined += 1,
            EngineEvent::ServicePanicked { .. } => self.panics += 1,
            EngineEvent::PeerUp(_) => self.peers_up += 1,
            EngineEvent::PeerDown(_) => self.peer_lost = true,
            _ => {}
        }
    }
}

fn name(side: Side, stream: usize) -> String {
    match side {
        Side::Sender => format!("sender-{stream}"),
        Side::Receiver => format!("receiver-{stream}"),
    }
}
