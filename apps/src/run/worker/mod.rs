//! One context under load, and its partner on the other side.

mod cell;
mod cut;
mod ends;
mod memory;
mod ops;
mod partner;
mod plan;
mod traffic;

use keyfence::ids::{GrantId, PeerId, RemoteContext};
use keyfence::{Context, Event, Service, Work};
use keyfence_mempool::sync::Arc;

use super::board::{Board, DRAINED, PANIC, Stage};
use super::pattern::{Words, identity};
use super::tally::{Local, Share};
use crate::random::Random;
use cell::Cell;
use memory::Revoking;
use ops::Ops;
use partner::{Lookup, Use};
pub use plan::small_bytes;
use plan::{Plan, Role, Wanted};
use traffic::Pace;

/// The service of one context.
pub struct Worker {
    board: Arc<Board>,
    side: usize,
    index: usize,
    name: String,
    /// Its identity in patterns; 0 before its first poll.
    me: u64,
    random: Random,
    /// Buffers still to be allocated.
    wanted: Vec<Wanted>,
    expected_imports: usize,
    /// Buffers of the plan. Operations name them by index, so none is removed.
    cells: Vec<Cell>,
    /// Buffers that are only watched.
    hunted: Vec<Cell>,
    /// What the sources hold, which writes may leave in the partner's memory.
    sources: Vec<Words>,
    fills: u64,
    /// Buffers that are being filled, kept quiet or scanned.
    tending: usize,
    /// Buffers for grants that are not granted.
    ungranted: usize,
    retry_ns: u64,
    revoking: Revoking,
    partner: Option<RemoteContext>,
    /// The one before, and why it is none any more.
    lost: Option<(RemoteContext, &'static str)>,
    lookup: Lookup,
    uses: Vec<Use>,
    ops: Ops,
    pace: Pace,
    /// Sources are to be scanned in the first step after this one.
    recheck_ns: Option<u64>,
    /// Imports taken back.
    revoked: u64,
    sent: u64,
    /// Partners that it has had.
    partners: u32,
    /// The last era of breaks in which an operation of its had no known end.
    cut_era: u64,
    /// How many since that era began.
    cut: usize,
    /// Numbered messages of the sender heard last.
    received: u64,
    hears: Option<RemoteContext>,
    stage: Stage,
    /// When its part of the phase began.
    since_ns: u64,
    local: Local,
}

impl Worker {
    /// Worker `index` of `side`, in its `life`th life.
    pub fn new(board: Arc<Board>, side: usize, index: usize, life: u64) -> Self {
        let plan = Plan::of(side, index);
        let stream = (life << 32) | (index as u64) << 1 | side as u64;
        board.sides[side].members[index].reset();
        let grants = plan
            .wanted
            .iter()
            .filter(|wanted| wanted.role == Role::Grant);
        Self {
            name: format!("{} of side {side}", board.name_of(index)),
            me: 0,
            random: Random::new(board.load.seed, stream),
            ungranted: grants.count(),
            cells: Vec::with_capacity(plan.wanted.len()),
            hunted: Vec::new(),
            wanted: plan.wanted,
            expected_imports: plan.imports,
            sources: Vec::new(),
            fills: 0,
            tending: 0,
            retry_ns: 0,
            revoking: Revoking::default(),
            partner: None,
            lost: None,
            lookup: Lookup::default(),
            uses: Vec::new(),
            ops: Ops::new(),
            pace: Pace::default(),
            recheck_ns: None,
            revoked: 0,
            sent: 0,
            partners: 0,
            cut_era: 0,
            cut: 0,
            received: 0,
            hears: None,
            stage: Stage::Setup,
            since_ns: 0,
            local: Local::new(),
            board,
            side,
            index,
        }
    }

    /// Follows the run into its next stage.
    fn enter(&mut self, stage: Stage, now_ns: u64) {
        self.end_phase(now_ns);
        self.stage = stage;
        self.since_ns = now_ns;
        match stage {
            Stage::Setup | Stage::WarmUp | Stage::Drain => {}
            Stage::Paced => self.local.begin(0),
            Stage::Flat => self.local.begin(1),
        }
        let members = self.board.sides[self.side].members.len();
        let first = self.random.below(members);
        self.pace.begin(now_ns, &self.board.load, members, first);
    }

    fn end_phase(&mut self, now_ns: u64) {
        let mut tally = self.board.sides[self.side].tally();
        self.local.flush(&mut tally);
        let phase = match self.stage {
            Stage::Setup | Stage::WarmUp | Stage::Drain => return,
            Stage::Paced => 0,
            Stage::Flat => 1,
        };
        tally.shares.push(Share {
            member: self.index,
            phase,
            ops: self.local.phase_ops,
            lived_ns: now_ns.saturating_sub(self.since_ns),
        });
    }

    /// Something failed that nobody had a hand in.
    fn bystander_error(&self, text: impl FnOnce() -> String) {
        let mut tally = self.board.sides[self.side].tally();
        tally.faults.bystander_errors += 1;
        let name = &self.name;
        tally.note(|| format!("{name}: {}", text()));
    }
}

impl Service for Worker {
    fn poll(&mut self, cx: &mut Context<'_>) -> Work {
        if self.me == 0 {
            self.me = identity(self.board.link.engines[self.side], cx.id());
        }
        let member = &self.board.sides[self.side].members[self.index];
        if member.has(PANIC) {
            // Past the hook that tells of panics: this one is no news.
            std::panic::resume_unwind(Box::new("told to panic"));
        }
        let stage = self.board.stage();
        if stage != self.stage {
            self.enter(stage, cx.now_ns());
        }
        let mut any = self.allocate(cx) | self.hunt(cx) | self.tend(cx) | self.find_partner(cx);
        any |= self.grant(cx) | self.learn(cx);
        self.settle_doubts();
        any |= self.recheck(cx.now_ns());
        if stage == Stage::Drain {
            if self.ops.open() == 0 {
                self.board.sides[self.side].members[self.index].set(DRAINED);
            }
        } else {
            self.revoke(cx);
            any |= self.submit_due(cx);
        }
        if any { Work::Busy } else { Work::Idle }
    }

    fn on_event(&mut self, cx: &mut Context<'_>, event: Event) {
        match event {
            Event::Completed(done) => self.completed(cx, &done),
            Event::Message(message) => self.message_came(&message),
            Event::Landed { grant, .. } => self.landed(grant),
            Event::Granted(import) => self.granted(import),
            Event::Revoked(import) => self.import_revoked(cx.now_ns(), import),
            Event::Zapped(grant) => self.zapped(grant),
            Event::Flushed { quarantined, .. } => self.flushed(quarantined),
            Event::Resolved { context, .. } => self.resolved(cx.now_ns(), context),
            Event::ContextGone { context, .. } => self.partner_gone(context),
            Event::PeerDown(peer) if self.is_ours(cx, peer) => {
                self.lose_partner("its session was lost");
                if !self.board.is_lossy() {
                    self.bystander_error(|| "the session with the peer ended".into());
                }
            }
            // Quarantines are the engine's to report. Room and sessions are looked for anyway.
            _ => {}
        }
    }
}

impl Worker {
    /// Whether the partner lives there.
    fn is_ours(&self, cx: &Context<'_>, peer: PeerId) -> bool {
        cx.peer_by_name(&self.board.link.names[1 - self.side]) == Some(peer)
    }

    fn landed(&self, grant: GrantId) {
        if !self.cells.iter().any(|cell| cell.grant == Some(grant)) {
            self.bystander_error(|| format!("Landed in {grant:?}, which was never ours"));
        }
    }
}

impl Drop for Worker {
    /// The context is being reclaimed: this is its cordon.
    fn drop(&mut self) {
        self.scan_what_is_left();
        let now_ns = self.board.clock.now_ns();
        self.end_phase(now_ns);
        if self.stage != Stage::Drain {
            self.board.sides[self.side].hunt.begin();
        }
    }
}
