//! What must hold of each answer, by the model's own knowledge.

use keyfence::ids::{Epoch, LaneId};
use keyfence::reclaim::{
    Action, ContextIx, Event, KeyEnd, KeyIx, KeyState, LaneSet, Outcome, Quarantine, Scope,
    TicketIx, Timer, Transition,
};

use crate::world::{Judged, Key, Local, OwnOp, Qp, Reported, Stage, World, check};

impl World {
    pub fn judge_transition(&mut self, transition: Transition) -> Judged {
        let Transition { key, from, to, .. } = transition;
        let destroyed = {
            let lane = self.key(key).lane;
            match self.scope {
                Scope::Queue => self.lane(lane).qp == Qp::Destroyed,
                Scope::Domain => self.lane(lane).domain_gone,
            }
        };
        let record = self.key(key);
        check(record.state == from && from.may_become(to), "R4", || {
            format!(
                "{key:?} goes from {from:?} to {to:?}, but it was {:?}",
                record.state
            )
        })?;
        record.state = to;
        if to.is_proven() {
            check(!record.honoured, "R1", || {
                format!("{key:?} counts as ended, but the device honours it")
            })?;
            check(record.evidence, "R3", || {
                format!("{key:?} counts as ended without a proof from the device")
            })?;
        }
        if let Some(end) = transition.ended() {
            let expected = match end {
                KeyEnd::Zapped => Reported::Nothing,
                KeyEnd::LateProof => Reported::Quarantined,
            };
            check(record.reported == expected, "R7", || {
                format!("{key:?}: {end:?} after {:?}", record.reported)
            })?;
            if end == KeyEnd::Zapped {
                record.reported = Reported::Zapped;
            }
        }
        if transition.quarantined() {
            check(record.reported == Reported::Nothing, "R7", || {
                format!("{key:?} is quarantined after {:?}", record.reported)
            })?;
            record.reported = Reported::Quarantined;
        }
        if transition.freed() {
            check(!record.known || destroyed, "R8", || {
                format!("{key:?} may be bound again while its holder knows the value")
            })?;
        }
        Ok(())
    }

    pub fn judge_order(&mut self, order: Action) -> Judged {
        match order {
            Action::Arm(timer) => check(!self.timers.contains(&timer), "R6", || {
                format!("{timer:?} is armed twice")
            }),
            Action::Disarm(timer) => self.judge_disarm(timer),
            Action::BreakLane { lane } => self.judge_break(lane),
            Action::EpochEnded {
                epoch,
                context,
                outcome,
            } => {
                let left = match outcome {
                    Outcome::Flushed => Quarantine {
                        keys: 0,
                        own_ops: LaneSet::EMPTY,
                        unconfirmed: LaneSet::EMPTY,
                        handles_held: false,
                    },
                    Outcome::Quarantined(left) => left,
                };
                match context {
                    Some(context) => self.judge_context_end(epoch, context, left),
                    None => self.judge_epoch_end(epoch, left),
                }
            }
            Action::FlushEnded {
                ticket,
                quarantined,
            } => self.judge_flush(ticket, quarantined),
            Action::ContextFree { context } => self.judge_context_free(context),
            Action::LaneFree { lane } => self.judge_lane_free(lane),
            Action::Revoke { .. }
            | Action::Invalidate { .. }
            | Action::Close { .. }
            | Action::Dealloc { .. } => Ok(()),
        }
    }

    /// A fence that is called off has nothing left to wait for: no handle is out.
    fn judge_disarm(&mut self, timer: Timer) -> Judged {
        check(self.timers.contains(&timer), "R6", || {
            format!("{timer:?} is disarmed but not armed")
        })?;
        let Timer::Fence(epoch) = timer else {
            return Ok(());
        };
        let waits = (0..)
            .map(ContextIx)
            .zip(&self.contexts)
            .find(|(index, context)| {
                context.handles_out && self.machine.context_epoch(*index) == Some(epoch)
            });
        check(waits.is_none(), "R6", || {
            format!("the fence of {waits:?} is called off with handles out")
        })
    }

    /// R5: a lane is sacrificed for nothing but a failure on it, or a deadline with something unproven on it.
    fn judge_break(&mut self, lane: LaneId) -> Judged {
        let sick = match self.event {
            Some(Event::InvalidateFailed { .. } | Event::ClosingFailed { .. }) => true,
            // No queue pair has to do with a region's end.
            Some(Event::DeallocFailed { .. }) => self.scope == Scope::Queue,
            Some(Event::Expired(Timer::Invalidate(_))) => {
                let queue = self.scope == Scope::Queue;
                let unproven =
                    |key: &Key| queue && key.lane == lane && key.retired && !key.state.is_proven();
                self.keys.iter().any(unproven)
                    || self.contexts.iter().any(|context| {
                        matches!(context.stage, Stage::Cordoned(_))
                            && context.own[usize::from(lane.0)].local != Local::Ended
                    })
            }
            _ => false,
        };
        let once = !self.lane(lane).break_ordered && self.lane(lane).qp == Qp::Up;
        check(sick && once, "R5", || {
            format!("{lane:?} is broken after {:?}", self.event)
        })
    }

    fn unproven(&self, member: impl Fn(KeyIx, &Key) -> bool) -> Vec<(KeyIx, KeyState)> {
        let all = self.keys.iter().enumerate();
        all.map(|(index, key)| (KeyIx(index as u32), key))
            .filter(|&(index, key)| !key.state.is_proven() && member(index, key))
            .map(|(index, key)| (index, key.state))
            .collect()
    }

    fn judge_left(left: &[(KeyIx, KeyState)], keys: u32) -> Judged {
        check(
            left.iter().all(|&(_, state)| state == KeyState::Unproven),
            "R3",
            || format!("an epoch ends with {left:?}"),
        )?;
        check(left.len() == keys as usize, "R6", || {
            format!("an epoch ends with {left:?}, its notice says {keys}")
        })
    }

    fn judge_epoch_end(&mut self, epoch: Epoch, left: Quarantine) -> Judged {
        let keys = self.unproven(|key, _| self.machine.key_epoch(key) == Some(epoch));
        Self::judge_left(&keys, left.keys)
    }

    fn judge_context_end(&mut self, epoch: Epoch, context: ContextIx, left: Quarantine) -> Judged {
        let record = self.context(context).clone();
        check(matches!(record.stage, Stage::Cordoned(_)), "R6", || {
            format!("{epoch:?} of {context:?} ends twice")
        })?;
        let keys = self.unproven(|_, key| key.context == context);
        Self::judge_left(&keys, left.keys)?;
        check(record.handles_out == left.handles_held, "R1", || {
            format!(
                "handles out: {}, the notice says {}",
                record.handles_out, left.handles_held
            )
        })?;
        let last = self.event == Some(Event::Expired(Timer::Final(epoch)));
        let given_up = !left.own_ops.is_empty() || !left.unconfirmed.is_empty();
        check(!given_up || last, "R6", || {
            format!("{context:?} gives up its operations before the last deadline: {left:?}")
        })?;
        for (lane, own) in (0..).map(LaneId).zip(&record.own) {
            let listed = left.own_ops.contains(lane);
            check(own.local != Local::Running || listed, "R1", || {
                format!("{context:?} ends with an operation running on {lane:?}")
            })?;
            check(own.local != Local::Ended || !listed, "R6", || {
                format!("{context:?} ends with {lane:?} listed for nothing")
            })?;
            check(
                !own.target || listed || left.unconfirmed.contains(lane),
                "R2",
                || format!("{context:?} ends before the target on {lane:?} has answered"),
            )?;
        }
        Ok(())
    }

    fn judge_flush(&mut self, ticket: TicketIx, quarantined: u32) -> Judged {
        let captured = self.captured(ticket);
        let pending: Vec<_> = captured
            .iter()
            .filter(|&&(_, state)| state != KeyState::Unproven)
            .collect();
        check(pending.is_empty(), "R3", || {
            format!("a flush ends before {pending:?}")
        })?;
        let own_ops = self.captured_own_ops(ticket);
        let given_up = |(context, _): &(ContextIx, LaneId)| {
            self.contexts[usize::from(context.0)].stage == Stage::Ended
        };
        check(own_ops.iter().all(given_up), "R3", || {
            format!("a flush ends before own operations of {own_ops:?}")
        })?;
        let left = captured.len() + own_ops.len();
        check(left == quarantined as usize, "R3", || {
            format!("a flush says {quarantined} quarantined, of {captured:?} and {own_ops:?}")
        })
    }

    /// The captured own operations that are not proven ended.
    fn captured_own_ops(&self, ticket: TicketIx) -> &[(ContextIx, LaneId)] {
        self.tickets[usize::from(ticket.0)]
            .as_ref()
            .map_or(&[], |captured| &captured.own_ops)
    }

    /// The captured keys that are not proven.
    fn captured(&self, ticket: TicketIx) -> Vec<(KeyIx, KeyState)> {
        let captured = self.tickets[usize::from(ticket.0)]
            .as_ref()
            .map_or(&[][..], |captured| &captured.keys);
        captured
            .iter()
            .map(|&(key, generation)| (key, generation, self.keys[key.0 as usize]))
            .filter(|(_, generation, now)| now.generation == *generation && !now.state.is_proven())
            .map(|(key, _, now)| (key, now.state))
            .collect()
    }

    fn judge_context_free(&mut self, context: ContextIx) -> Judged {
        let record = self.context(context).clone();
        let keys = self.unproven(|_, key| key.context == context);
        let running = |own: &OwnOp| own.local == Local::Running;
        check(
            keys.is_empty() && !record.own.iter().any(running) && !record.handles_out,
            "R4",
            || format!("the slot of {context:?} is free with {keys:?} and {record:?}"),
        )
    }

    fn judge_lane_free(&mut self, lane: LaneId) -> Judged {
        let record = self.lane(lane).clone();
        let left: Vec<_> = (0..)
            .zip(&self.keys)
            .filter(|(_, key)| key.lane == lane && key.state != KeyState::Dead)
            .collect();
        check(
            record.qp == Qp::Destroyed && record.target_answered && left.is_empty(),
            "R8",
            || format!("{lane:?} is free as {record:?} with {left:?}"),
        )
    }

    /// R7: the census agrees with what the transitions told.
    pub fn judge_books(&mut self) -> Judged {
        let counts = self.machine.counts();
        let told = [
            (KeyState::Binding, counts.binding),
            (KeyState::Live, counts.live),
            (KeyState::Fencing, counts.fencing),
            (KeyState::Invalidating, counts.invalidating),
            (KeyState::Unproven, counts.unproven),
            (KeyState::Parked, counts.parked),
            (KeyState::Dead, counts.dead),
        ];
        for (state, count) in told {
            let here = self.keys.iter().filter(|key| key.state == state).count();
            check(here == count as usize, "R7", || {
                format!("{count} keys are {state:?} by the books, {here} by the trace")
            })?;
        }
        Ok(())
    }

    /// R6: nothing waits for nothing. An epoch or a flush is open only while a member of it is.
    pub fn judge_promptness(&mut self) -> Judged {
        for index in 0..self.contexts.len() {
            let context = ContextIx(index as u16);
            let record = &self.contexts[index];
            if !matches!(record.stage, Stage::Cordoned(_)) {
                continue;
            }
            let keys =
                self.unproven(|_, key| key.context == context && key.state != KeyState::Unproven);
            let own = record
                .own
                .iter()
                .any(|own| own.local != Local::Ended || own.target);
            check(!keys.is_empty() || own || record.handles_out, "R6", || {
                format!("the epoch of {context:?} waits for nothing: {record:?}")
            })?;
        }
        for ticket in 0..self.tickets.len() {
            if self.tickets[ticket].is_none() {
                continue;
            }
            let captured = self.captured(TicketIx(ticket as u16));
            let pending = captured
                .iter()
                .any(|&(_, state)| state != KeyState::Unproven);
            let own_ops = self.captured_own_ops(TicketIx(ticket as u16));
            let running = own_ops
                .iter()
                .any(|&(context, _)| self.contexts[usize::from(context.0)].stage != Stage::Ended);
            check(pending || running, "R6", || {
                format!("a flush waits for nothing: {captured:?}")
            })?;
        }
        Ok(())
    }
}
