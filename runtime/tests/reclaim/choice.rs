//! What can happen next, and what it does to the model and to the machine.

use keyfence::ids::{Epoch, LaneId};
use keyfence::reclaim::{ContextIx, Event, KeyIx, KeyState, Note, StrandState, TicketIx, Timer};

use crate::regions::Made;
use crate::world::{Captured, Dealloc, Judged, Local, Qp, Stage, World, Wr, check};

/// One thing that can happen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Choice {
    Bind(KeyIx, ContextIx, LaneId),
    Retire(KeyIx),
    DropImport(KeyIx),
    OwnOp(ContextIx, LaneId),
    Cordon(ContextIx, HandlesOut),
    ReturnHandles(ContextIx),
    Flush(TicketIx),
    Ack(Epoch, LaneId),
    /// A peer makes up an acknowledgement.
    Stray(Epoch, LaneId),
    /// What the machine knows.
    Repeat(Event),
    PostChain(Epoch, LaneId),
    RefuseChain(Epoch, LaneId),
    /// The head of the send queue executes, or is flushed if the QP is in error.
    Complete(LaneId),
    /// The same, but its completion never arrives.
    Swallow(LaneId),
    /// The same, on a QP that is in error since: it was executed before.
    CompleteLate(LaneId),
    /// The bind at the head of the send queue fails, and the QP stays up.
    FailBind(LaneId),
    Break(LaneId),
    Destroy(LaneId),
    TargetAnswers(LaneId),
    LoseTarget(LaneId),
    Dealloc(KeyIx),
    FailDealloc(KeyIx),
    /// A region is registered; its registration is refused, or never comes back.
    Register(KeyIx),
    RefuseKey(KeyIx),
    LoseKey(KeyIx),
    /// The protection domain of a destroyed QP.
    EndDomain(LaneId),
    Expire(Timer),
}

/// Whether a handle on the context's bytes is out at its cordon.
pub type HandlesOut = bool;

impl World {
    /// Everything that can happen next, faults as far as the budget goes.
    pub fn choices(&self) -> Vec<Choice> {
        let mut choices = Vec::new();
        self.work(&mut choices);
        self.progress(&mut choices);
        self.faults(&mut choices);
        choices.extend(self.timers.iter().copied().map(Choice::Expire));
        choices
    }

    fn lane_ids(&self) -> impl Iterator<Item = LaneId> + use<> {
        (0..self.lanes.len() as u16).map(LaneId)
    }

    pub fn is_up(&self, lane: LaneId) -> bool {
        let lane = &self.lanes[usize::from(lane.0)];
        lane.qp == Qp::Up && !lane.break_ordered
    }

    /// What applications and operators may do.
    fn work(&self, choices: &mut Vec<Choice>) {
        let open = (0..self.contexts.len() as u16)
            .map(ContextIx)
            .filter(|context| self.contexts[usize::from(context.0)].stage == Stage::Open);
        for context in open {
            for lane in self.lane_ids().filter(|&lane| self.is_up(lane)) {
                let free = self.keys.iter().position(|key| key.state == KeyState::Dead);
                if let Some(key) = free.filter(|_| self.budget.binds > 0) {
                    choices.push(Choice::Bind(KeyIx(key as u32), context, lane));
                }
                let own = self.contexts[usize::from(context.0)].own[usize::from(lane.0)];
                if self.budget.own_ops > 0 && own.local == Local::Ended && !own.target {
                    choices.push(Choice::OwnOp(context, lane));
                }
            }
            if self.budget.cordons > 0 {
                choices.push(Choice::Cordon(context, false));
                if self.budget.handles > 0 {
                    choices.push(Choice::Cordon(context, true));
                }
            }
        }
        for (index, key) in self.keys.iter().enumerate() {
            if matches!(key.state, KeyState::Binding | KeyState::Live) && !key.retired {
                choices.push(Choice::Retire(KeyIx(index as u32)));
            }
            if self.budget.dropped_imports > 0 && key.known && key.state != KeyState::Dead {
                choices.push(Choice::DropImport(KeyIx(index as u32)));
            }
        }
        let free = self.tickets.iter().position(Option::is_none);
        if let Some(ticket) = free.filter(|_| self.budget.flushes > 0) {
            choices.push(Choice::Flush(TicketIx(ticket as u16)));
        }
    }

    /// What a healthy engine, device, holder and target get done in the end.
    pub fn progress(&self, choices: &mut Vec<Choice>) {
        for &(epoch, lane) in &self.acks {
            choices.push(Choice::Ack(epoch, lane));
        }
        for &(epoch, lane) in &self.chains {
            choices.push(Choice::PostChain(epoch, lane));
        }
        for (lane, record) in self.lane_ids().zip(&self.lanes) {
            if !record.queue.is_empty() {
                choices.push(Choice::Complete(lane));
            }
            if record.break_ordered && record.qp == Qp::Up {
                choices.push(Choice::Break(lane));
            }
            if record.qp == Qp::Error && record.queue.is_empty() {
                choices.push(Choice::Destroy(lane));
            }
            if record.qp != Qp::Up && !record.target_answered {
                choices.push(Choice::TargetAnswers(lane));
                choices.push(Choice::LoseTarget(lane));
            }
        }
        for (index, key) in self.keys.iter().enumerate() {
            if key.dealloc != Dealloc::None && self.dealloc_returns(key) {
                choices.push(Choice::Dealloc(KeyIx(index as u32)));
            }
        }
        for (index, context) in self.contexts.iter().enumerate() {
            if context.handles_out {
                choices.push(Choice::ReturnHandles(ContextIx(index as u16)));
            }
        }
        self.regions_progress(choices);
    }

    fn faults(&self, choices: &mut Vec<Choice>) {
        self.regions_faults(choices);
        self.repeats(choices);
        for (lane, record) in self.lane_ids().zip(&self.lanes) {
            if self.budget.swallowed > 0 && !record.queue.is_empty() {
                choices.push(Choice::Swallow(lane));
            }
            if self.budget.failed_binds > 0
                && record.qp == Qp::Up
                && matches!(record.queue.front(), Some(Wr::Bind(_)))
            {
                choices.push(Choice::FailBind(lane));
            }
            if self.budget.breaks > 0 && self.is_up(lane) {
                choices.push(Choice::Break(lane));
            }
            if self.budget.polled_late > 0
                && record.qp == Qp::Error
                && !record.flushing
                && !record.queue.is_empty()
            {
                choices.push(Choice::CompleteLate(lane));
            }
            if self.budget.strays > 0 {
                let nobodys = Epoch(3);
                let asked = |epoch: &Epoch| self.acks.contains(&(*epoch, lane));
                let open = self.open_epochs().into_iter();
                choices.extend(
                    open.filter(|epoch| !asked(epoch))
                        .chain([nobodys])
                        .map(|epoch| Choice::Stray(epoch, lane)),
                );
            }
        }
        if self.budget.refused > 0 {
            for &(epoch, lane) in &self.chains {
                choices.push(Choice::RefuseChain(epoch, lane));
            }
        }
        for (index, key) in self.keys.iter().enumerate() {
            if self.budget.failed_deallocs > 0 && key.dealloc == Dealloc::Running {
                choices.push(Choice::FailDealloc(KeyIx(index as u32)));
            }
        }
    }

    pub fn apply(&mut self, choice: Choice) -> Judged {
        match choice {
            Choice::Bind(key, context, lane) => {
                self.budget.binds -= 1;
                self.bind(key, context, lane)
            }
            Choice::Retire(key) => {
                self.key(key).retired = true;
                self.expect_applied(Event::Retire { key })
            }
            Choice::DropImport(key) => {
                self.budget.dropped_imports -= 1;
                self.key(key).known = false;
                self.key(key).retired = true;
                self.tell(Event::ImportDropped { key }).map(drop)
            }
            Choice::OwnOp(context, lane) => {
                self.budget.own_ops -= 1;
                self.own(context, lane).local = Local::Running;
                self.own(context, lane).target = true;
                self.post(lane, Wr::Own(context))
            }
            Choice::Cordon(context, handles_out) => {
                self.budget.cordons -= 1;
                self.budget.handles -= u32::from(handles_out);
                self.cordon(context, handles_out)
            }
            Choice::ReturnHandles(context) => {
                self.context(context).handles_out = false;
                self.expect_applied(Event::HandlesReturned { context })
            }
            Choice::Flush(ticket) => self.flush(ticket),
            Choice::Expire(timer) => {
                self.timers.retain(|&armed| armed != timer);
                self.expect_applied(Event::Expired(timer))
            }
            _ => self.apply_below(choice),
        }
    }

    fn apply_below(&mut self, choice: Choice) -> Judged {
        match choice {
            Choice::Ack(epoch, lane) => self.ack(epoch, lane),
            Choice::Stray(epoch, lane) => self.stray(epoch, lane),
            Choice::Repeat(event) => self.repeat(event),
            Choice::PostChain(epoch, lane) => {
                self.chains.retain(|&chain| chain != (epoch, lane));
                self.post_chain(epoch, lane)
            }
            Choice::RefuseChain(epoch, lane) => {
                self.budget.refused -= 1;
                self.chains.retain(|&chain| chain != (epoch, lane));
                self.tell(Event::ChainRefused { epoch, lane }).map(drop)
            }
            Choice::Complete(lane) => self.complete(lane),
            Choice::Swallow(lane) => {
                self.budget.swallowed -= 1;
                self.swallow(lane)
            }
            Choice::CompleteLate(lane) => {
                self.budget.polled_late -= 1;
                self.complete_late(lane)
            }
            Choice::FailBind(lane) => {
                self.budget.failed_binds -= 1;
                self.fail_bind(lane)
            }
            Choice::Break(lane) => {
                if !self.lane(lane).break_ordered {
                    self.budget.breaks = self.budget.breaks.saturating_sub(1);
                }
                self.break_lane(lane)
            }
            Choice::Destroy(lane) => self.destroy(lane),
            Choice::TargetAnswers(lane) => {
                self.target_answers(lane, Event::TargetConfirmed { lane })
            }
            Choice::LoseTarget(lane) => self.target_answers(lane, Event::TargetLost { lane }),
            Choice::Dealloc(key) => {
                self.key(key).dealloc = Dealloc::None;
                self.key(key).honoured = false;
                self.key(key).evidence = true;
                self.tell(Event::Deallocated { key }).map(drop)
            }
            Choice::FailDealloc(key) => {
                self.budget.failed_deallocs = self.budget.failed_deallocs.saturating_sub(1);
                self.key(key).dealloc = Dealloc::Overdue;
                self.expect_applied(Event::DeallocFailed { key })
            }
            Choice::Register(key) => self.register(key),
            Choice::RefuseKey(key) => {
                self.budget.failed_binds -= 1;
                self.fail_register(key, Made::Refused)
            }
            Choice::LoseKey(key) => {
                self.budget.unnamed -= 1;
                self.fail_register(key, Made::Unnamed)
            }
            Choice::EndDomain(lane) => self.end_domain(lane),
            _ => unreachable!("the caller does {choice:?}"),
        }
    }

    fn expect_applied(&mut self, event: Event) -> Judged {
        let note = self.tell(event)?;
        check(note == Note::Applied, "R6", || {
            format!("{event:?} is {note:?}")
        })
    }

    fn flush(&mut self, ticket: TicketIx) -> Judged {
        self.budget.flushes -= 1;
        let keys = (0..)
            .map(KeyIx)
            .zip(&self.keys)
            .filter(|(_, key)| key.retired && !key.state.is_proven())
            .map(|(index, key)| (index, key.generation))
            .collect();
        let own_ops = self.retired_own_ops();
        self.tickets[usize::from(ticket.0)] = Some(Captured { keys, own_ops });
        self.expect_applied(Event::Flush { ticket })
    }

    /// Cordoned contexts and the lanes on which their operations may still touch their memory.
    fn retired_own_ops(&self) -> Vec<(ContextIx, LaneId)> {
        let retired = (0..)
            .map(ContextIx)
            .zip(&self.contexts)
            .filter(|(_, context)| context.stage != Stage::Open);
        retired
            .flat_map(|(index, context)| {
                let lanes = (0..).map(LaneId).zip(&context.own);
                lanes
                    .filter(|(_, own)| own.local != Local::Ended)
                    .map(move |(lane, _)| (index, lane))
            })
            .collect()
    }

    fn stray(&mut self, epoch: Epoch, lane: LaneId) -> Judged {
        self.budget.strays -= 1;
        if self.machine.strand_state(epoch, lane) == StrandState::Idle {
            return self.changes_nothing(Event::Acked { epoch, lane }, "R8");
        }
        // What it says of keys that were not named to it yet is its holders' own loss.
        for (index, key) in (0..).map(KeyIx).zip(&mut self.keys) {
            key.known &= key.lane != lane || self.machine.key_epoch(index) != Some(epoch);
        }
        self.ack(epoch, lane)
    }

    fn ack(&mut self, epoch: Epoch, lane: LaneId) -> Judged {
        self.acks.retain(|&ack| ack != (epoch, lane));
        for key in &mut self.keys {
            if key.lane == lane && key.named == Some(epoch) {
                key.known = false;
            }
        }
        self.tell(Event::Acked { epoch, lane }).map(drop)
    }
}
