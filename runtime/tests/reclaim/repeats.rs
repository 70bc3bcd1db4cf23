//! What the machine is told again, or too late: facts that it knows, of keys that are proven, of steps that are over. None may change anything.

use keyfence::ids::LaneId;
use keyfence::reclaim::{ContextIx, Event, KeyIx, KeyState, Note};

use crate::choice::Choice;
use crate::world::{Judged, Local, Qp, World, check};

impl World {
    pub fn repeats(&self, choices: &mut Vec<Choice>) {
        if self.budget.repeats == 0 {
            return;
        }
        let mut again = |event| choices.push(Choice::Repeat(event));
        for (key, record) in (0..).map(KeyIx).zip(&self.keys) {
            let dead = record.state == KeyState::Dead;
            if record.retired && !dead {
                // A revocation and a lease's end have crossed.
                again(Event::Retire { key });
            }
            if record.generation == 0 || !record.state.is_proven() {
                continue;
            }
            // The completions of what stood on its queue pair, or in two calls that end it.
            again(Event::BindDone { key });
            again(Event::BindFailed { key });
            again(Event::Deallocated { key });
            again(Event::DeallocFailed { key });
            if record.invalidation_posted {
                again(Event::Invalidated { key });
                again(Event::InvalidateFailed { key });
            }
            if dead {
                again(Event::ImportDropped { key });
            }
        }
        for (context, record) in (0..).map(ContextIx).zip(&self.contexts) {
            if !record.handles_out {
                again(Event::HandlesReturned { context });
            }
            for (lane, own) in (0..).map(LaneId).zip(&record.own) {
                if own.local == Local::Ended {
                    again(Event::OwnOpsEnded { context, lane });
                }
            }
        }
        for (lane, record) in (0..).map(LaneId).zip(&self.lanes) {
            if record.qp >= Qp::Error {
                again(Event::LaneBroken { lane });
            }
            if record.target_answered {
                again(Event::TargetConfirmed { lane });
                again(Event::TargetLost { lane });
            }
        }
        let late = self.disarmed.iter().copied();
        late.filter(|timer| !self.timers.contains(timer))
            .for_each(|timer| again(Event::Expired(timer)));
    }

    pub fn repeat(&mut self, event: Event) -> Judged {
        self.budget.repeats -= 1;
        self.changes_nothing(event, "R7")
    }

    pub fn changes_nothing(&mut self, event: Event, rule: &'static str) -> Judged {
        let before = self.machine.clone();
        let note = self.tell(event)?;
        check(
            note != Note::Applied && before == self.machine,
            rule,
            || format!("{event:?}, which is nothing new, is {note:?}"),
        )
    }
}
