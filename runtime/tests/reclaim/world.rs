//! A model engine, device, holder and target around the machine. It knows what is physically so (which windows open, which
//! operations can still touch memory, which values a holder remembers), and judges every answer of the machine by that
//! and never by the machine's own tables.

use std::collections::VecDeque;

use keyfence::ids::{Epoch, LaneId};
use keyfence::reclaim::{
    Action, Actions, Capacity, ContextIx, Event, KeyIx, KeyState, LaneSet, Machine, Note, Scope,
    Timer,
};

use crate::regions::Made;

/// A rule that was broken, by number, and how.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    pub rule: &'static str,
    pub what: String,
}

pub type Judged<T = ()> = Result<T, Violation>;

pub fn check(holds: bool, rule: &'static str, what: impl FnOnce() -> String) -> Judged {
    if holds {
        return Ok(());
    }
    Err(Violation { rule, what: what() })
}

/// A work request in a lane's send queue.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Wr {
    Bind(KeyIx),
    Invalidate(KeyIx),
    Own(ContextIx),
    Closing(Epoch),
}

/// What was reported of the grant to its owner.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Reported {
    Nothing,
    Zapped,
    Quarantined,
}

/// A deallocation, as the control thread sees it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Dealloc {
    None,
    Running,
    /// Reported as failed; may still return.
    Overdue,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Key {
    pub made: Made,
    /// As the transitions told it.
    pub state: KeyState,
    pub context: ContextIx,
    pub lane: LaneId,
    /// How often the slot was bound.
    pub generation: u32,
    /// The device lets accesses with it through.
    pub honoured: bool,
    /// The device has told the engine that it no longer does.
    pub evidence: bool,
    pub invalidation_posted: bool,
    pub retired: bool,
    /// The holder can still use its value.
    pub known: bool,
    /// The epoch under which it was named to the holder.
    pub named: Option<Epoch>,
    pub dealloc: Dealloc,
    pub reported: Reported,
}

const DEAD: Key = Key {
    made: Made::Window,
    state: KeyState::Dead,
    context: ContextIx(0),
    lane: LaneId(0),
    generation: 0,
    honoured: false,
    evidence: false,
    invalidation_posted: false,
    retired: false,
    known: false,
    named: None,
    dealloc: Dealloc::None,
    reported: Reported::Nothing,
};

/// An own operation's hold on the context's own memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Local {
    Ended,
    /// It can still touch it.
    Running,
    /// It can't, but its completion was swallowed: the engine doesn't know.
    Ghost,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct OwnOp {
    pub local: Local,
    /// It can still touch the target's memory.
    pub target: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Stage {
    Open,
    Cordoned(Epoch),
    Ended,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Context {
    pub stage: Stage,
    pub own: Vec<OwnOp>,
    pub handles_out: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Qp {
    Up,
    Error,
    Destroyed,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Lane {
    pub qp: Qp,
    pub queue: VecDeque<Wr>,
    pub break_ordered: bool,
    /// In error, and a work request was flushed: nothing behind it was executed.
    pub flushing: bool,
    pub target_answered: bool,
    /// The protection domain of its regions is destroyed.
    pub domain_gone: bool,
}

/// Everything that may still happen a limited number of times.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Budget {
    pub binds: u32,
    pub cordons: u32,
    pub own_ops: u32,
    pub handles: u32,
    pub flushes: u32,
    pub breaks: u32,
    pub swallowed: u32,
    pub refused: u32,
    pub failed_binds: u32,
    /// Registrations that do not come back.
    pub unnamed: u32,
    pub failed_deallocs: u32,
    pub dropped_imports: u32,
    /// Acknowledgements that a peer makes up.
    pub strays: u32,
    /// Facts that are told again, or too late.
    pub repeats: u32,
    /// Successes that are polled when their lane is known to be broken.
    pub polled_late: u32,
}

/// What was retired when a flush was asked for.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Captured {
    /// Slots and their generations.
    pub keys: Vec<(KeyIx, u32)>,
    /// Cordoned contexts and the lanes on which operations of theirs may still touch their memory.
    pub own_ops: Vec<(ContextIx, LaneId)>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct World {
    pub machine: Machine,
    /// What its keys are: windows or regions.
    pub scope: Scope,
    pub budget: Budget,
    pub keys: Vec<Key>,
    pub contexts: Vec<Context>,
    pub lanes: Vec<Lane>,
    /// Leaves out orders that commute: targets with nothing at stake answer at once, chains that can't be refused are
    /// posted at once.
    pub eager: bool,
    /// Acknowledgements that the holders owe.
    pub acks: Vec<(Epoch, LaneId)>,
    /// Chains that the engine was told to post.
    pub chains: Vec<(Epoch, LaneId)>,
    pub timers: Vec<Timer>,
    /// Those that were called off, while one may still run out.
    pub disarmed: Vec<Timer>,
    /// What each explicit flush captured.
    pub tickets: Vec<Option<Captured>>,
    /// The event being handled, for the judges.
    pub event: Option<Event>,
}

impl World {
    pub fn new(capacity: Capacity, budget: Budget, scope: Scope) -> Self {
        let lanes = usize::from(capacity.lanes);
        let idle = OwnOp {
            local: Local::Ended,
            target: false,
        };
        let context = Context {
            stage: Stage::Open,
            own: vec![idle; lanes],
            handles_out: false,
        };
        let lane = Lane {
            qp: Qp::Up,
            queue: VecDeque::new(),
            break_ordered: false,
            flushing: false,
            target_answered: false,
            domain_gone: false,
        };
        Self {
            machine: Machine::new(capacity),
            scope,
            budget,
            keys: vec![DEAD; capacity.keys as usize],
            contexts: vec![context; usize::from(capacity.contexts)],
            lanes: vec![lane; lanes],
            eager: false,
            acks: Vec::new(),
            chains: Vec::new(),
            timers: Vec::new(),
            disarmed: Vec::new(),
            tickets: vec![None; usize::from(capacity.tickets)],
            event: None,
        }
    }

    pub fn key(&mut self, key: KeyIx) -> &mut Key {
        &mut self.keys[key.0 as usize]
    }

    pub fn lane(&mut self, lane: LaneId) -> &mut Lane {
        &mut self.lanes[usize::from(lane.0)]
    }

    pub fn context(&mut self, context: ContextIx) -> &mut Context {
        &mut self.contexts[usize::from(context.0)]
    }

    pub fn own(&mut self, context: ContextIx, lane: LaneId) -> &mut OwnOp {
        &mut self.contexts[usize::from(context.0)].own[usize::from(lane.0)]
    }

    /// Hands one event to the machine, judges its answer, and obeys it.
    pub fn tell(&mut self, event: Event) -> Judged<Note> {
        let mut out = Actions::new(self.machine.capacity().bound());
        self.event = Some(event);
        self.forget_ended_own_ops();
        crate::seen::note(&self.machine, &event)?;
        let note = self.machine.handle(event, &mut out);
        for &transition in out.transitions() {
            self.judge_transition(transition)?;
        }
        for &order in out.orders() {
            self.judge_order(order)?;
            self.obey(order)?;
        }
        self.judge_books()?;
        self.judge_promptness()?;
        self.event = None;
        Ok(note)
    }

    /// A context's slot may be another's after this event.
    fn forget_ended_own_ops(&mut self) {
        let contexts = &self.contexts;
        for ticket in self.tickets.iter_mut().flatten() {
            ticket.own_ops.retain(|&(context, lane)| {
                let own = contexts[usize::from(context.0)].own[usize::from(lane.0)];
                own.local != Local::Ended
            });
        }
    }

    fn obey(&mut self, order: Action) -> Judged {
        match order {
            Action::Arm(timer) => {
                self.timers.push(timer);
                self.timers.sort_by_key(|&timer| timer_rank(timer));
            }
            Action::Disarm(timer) => {
                self.timers.retain(|&armed| armed != timer);
                if self.budget.repeats > 0 && !self.disarmed.contains(&timer) {
                    self.disarmed.push(timer);
                    self.disarmed.sort_by_key(|&timer| timer_rank(timer));
                }
            }
            Action::Revoke { epoch, lane } => {
                while let Some(key) = self.machine.next_to_revoke(epoch, lane) {
                    self.key(key).named = Some(epoch);
                }
                self.acks.push((epoch, lane));
                self.acks.sort_unstable();
            }
            Action::Invalidate { epoch, lane } => {
                if self.eager && self.budget.refused == 0 {
                    self.post_chain(epoch, lane)?;
                } else if !self.chains.contains(&(epoch, lane)) {
                    self.chains.push((epoch, lane));
                    self.chains.sort_unstable();
                }
            }
            Action::Close { epoch, lane } => self.post(lane, Wr::Closing(epoch))?,
            Action::Dealloc { lane } => self.start_deallocs(lane)?,
            Action::BreakLane { lane } => self.lane(lane).break_ordered = true,
            Action::EpochEnded { context, .. } => {
                if let Some(context) = context {
                    self.context(context).stage = Stage::Ended;
                }
            }
            Action::FlushEnded { ticket, .. } => self.tickets[usize::from(ticket.0)] = None,
            Action::ContextFree { context } => self.context(context).stage = Stage::Open,
            Action::LaneFree { lane } => {
                let lane = self.lane(lane);
                lane.qp = Qp::Up;
                lane.break_ordered = false;
                lane.flushing = false;
                lane.target_answered = false;
                lane.domain_gone = false;
            }
        }
        Ok(())
    }

    pub fn post(&mut self, lane: LaneId, wr: Wr) -> Judged {
        let record = self.lane(lane);
        check(record.qp == Qp::Up && !record.break_ordered, "R5", || {
            format!("{wr:?} is posted on {lane:?}, which is not up")
        })?;
        self.lane(lane).queue.push_back(wr);
        Ok(())
    }

    /// Posts what the chain's strand still has to invalidate.
    pub fn post_chain(&mut self, epoch: Epoch, lane: LaneId) -> Judged {
        while let Some(key) = self.machine.next_to_invalidate(epoch, lane) {
            let record = self.key(key);
            check(!record.invalidation_posted, "R3", || {
                format!("{key:?} is invalidated twice")
            })?;
            check(record.dealloc == Dealloc::None, "R3", || {
                format!("{key:?} is invalidated and deallocated")
            })?;
            record.invalidation_posted = true;
            record.state = KeyState::Invalidating;
            self.post(lane, Wr::Invalidate(key))?;
        }
        Ok(())
    }

    /// Starts what deallocations the lane allows now: on a QP in error only once it is drained.
    pub fn start_deallocs(&mut self, lane: LaneId) -> Judged {
        let broken = self.lane(lane).qp >= Qp::Error;
        if broken && !self.lane(lane).queue.is_empty() {
            return Ok(());
        }
        while let Some(key) = self.machine.next_to_dealloc(lane) {
            let bind_posted = self.lane(lane).queue.contains(&Wr::Bind(key));
            let record = self.key(key);
            check(
                broken || !(record.invalidation_posted || bind_posted),
                "R3",
                || format!("{key:?} is deallocated under a posted WR on a QP that is not in error"),
            )?;
            record.dealloc = Dealloc::Running;
        }
        Ok(())
    }

    /// Cordons a context as the engine would: with what the engine believes, which swallowed completions make wrong.
    pub fn cordon(&mut self, context: ContextIx, handles_out: bool) -> Judged {
        let lanes = (0..self.lanes.len() as u16).map(LaneId);
        let (mut own_ops, mut flushed_ops) = (LaneSet::EMPTY, LaneSet::EMPTY);
        for lane in lanes {
            let own = *self.own(context, lane);
            if own.local != Local::Ended {
                own_ops = own_ops.with(lane);
            }
            if own.target && self.lane(lane).qp != Qp::Up {
                flushed_ops = flushed_ops.with(lane);
            }
        }
        let record = self.context(context);
        record.handles_out = handles_out;
        // The epoch is known once the machine has answered; until then no judge may take the context for open.
        record.stage = Stage::Cordoned(Epoch(u64::MAX));
        for key in &mut self.keys {
            key.retired |= key.context == context && key.state != KeyState::Dead;
        }
        let _applied = self.tell(Event::Cordon {
            context,
            own_ops,
            flushed_ops,
            handles_out,
        })?;
        if let (Stage::Cordoned(_), Some(epoch)) = (
            self.context(context).stage,
            self.machine.context_epoch(context),
        ) {
            self.context(context).stage = Stage::Cordoned(epoch);
        }
        Ok(())
    }

    pub fn bind(&mut self, key: KeyIx, context: ContextIx, lane: LaneId) -> Judged {
        let scope = self.scope;
        let record = self.key(key);
        *record = Key {
            made: if scope == Scope::Queue {
                Made::Window
            } else {
                Made::Asked
            },
            context,
            lane,
            generation: record.generation + 1,
            known: true,
            ..DEAD
        };
        let _applied = self.tell(Event::Bind {
            key,
            context,
            lane,
            scope,
        })?;
        if scope == Scope::Domain {
            return Ok(());
        }
        self.post(lane, Wr::Bind(key))
    }
}

const fn timer_rank(timer: Timer) -> (u8, u64) {
    match timer {
        Timer::FlushInterval => (0, 0),
        Timer::Fence(epoch) => (1, epoch.0),
        Timer::Invalidate(epoch) => (2, epoch.0),
        Timer::Final(epoch) => (3, epoch.0),
    }
}
