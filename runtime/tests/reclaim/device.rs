//! The model's device and targets: what a work request does, done, flushed or swallowed.

use keyfence::ids::{Epoch, LaneId};
use keyfence::reclaim::{ContextIx, Event, KeyIx, Note};

use crate::regions::Made;
use crate::world::{Judged, Local, OwnOp, Qp, Stage, World, Wr, check};

impl World {
    pub fn complete(&mut self, lane: LaneId) -> Judged {
        let head = self.take_head(lane);
        if self.lane(lane).qp == Qp::Up {
            self.execute(head, lane)?;
            self.report_done(head, lane)
        } else {
            self.lane(lane).flushing = self.budget.polled_late > 0;
            self.report_flushed(head, lane)?;
            self.start_deallocs(lane)
        }
    }

    /// The device had done it before the error; whether an own operation was, is the target's to say.
    pub fn complete_late(&mut self, lane: LaneId) -> Judged {
        let head = self.take_head(lane);
        if let Wr::Own(_) = head {
            self.report_flushed(head, lane)?;
        } else {
            self.execute(head, lane)?;
            self.report_done(head, lane)?;
        }
        self.start_deallocs(lane)
    }

    pub fn swallow(&mut self, lane: LaneId) -> Judged {
        let head = self.take_head(lane);
        if self.lane(lane).qp == Qp::Up {
            self.execute(head, lane)?;
            if let Wr::Own(context) = head {
                self.own(context, lane).local = Local::Ghost;
            }
            return Ok(());
        }
        self.lane(lane).flushing = self.budget.polled_late > 0;
        if let Wr::Bind(key) = head {
            self.key(key).honoured = true;
        }
        self.start_deallocs(lane)
    }

    pub fn fail_bind(&mut self, lane: LaneId) -> Judged {
        let Wr::Bind(key) = self.take_head(lane) else {
            unreachable!("no bind is at the head of {lane:?}");
        };
        self.key(key).retired = true;
        self.tell(Event::BindFailed { key }).map(drop)
    }

    fn take_head(&mut self, lane: LaneId) -> Wr {
        self.lane(lane)
            .queue
            .pop_front()
            .expect("something is posted")
    }

    fn execute(&mut self, wr: Wr, lane: LaneId) -> Judged {
        match wr {
            Wr::Bind(key) => self.key(key).honoured = true,
            Wr::Invalidate(key) => {
                // On a real host this is a kernel's NULL dereference.
                check(self.key(key).honoured, "R3", || {
                    format!("an invalidation of {key:?}, which is not bound")
                })?;
                self.key(key).honoured = false;
            }
            Wr::Own(context) => {
                self.own(context, lane).local = Local::Ended;
                self.own(context, lane).target = false;
            }
            Wr::Closing(_) => {}
        }
        Ok(())
    }

    fn report_done(&mut self, wr: Wr, lane: LaneId) -> Judged {
        match wr {
            Wr::Bind(key) => self.tell(Event::BindDone { key }).map(drop),
            Wr::Invalidate(key) => {
                self.key(key).evidence = true;
                self.lay_ghost_behind(key, lane);
                self.tell(Event::Invalidated { key }).map(drop)
            }
            Wr::Own(context) => self.report_own_ops(context, lane),
            Wr::Closing(epoch) => {
                for index in 0..self.contexts.len() {
                    let context = ContextIx(index as u16);
                    if self.machine.context_epoch(context) == Some(epoch) {
                        self.lay_ghost(context, lane);
                    }
                }
                self.tell(Event::ClosingDone { epoch, lane }).map(drop)
            }
        }
    }

    /// A swallowed completion is made up for by a later success of the same send queue.
    fn lay_ghost(&mut self, context: ContextIx, lane: LaneId) {
        let own = self.own(context, lane);
        if own.local == Local::Ghost {
            own.local = Local::Ended;
        }
    }

    /// The invalidations of a context's own epoch are posted behind its last operation; those of a batch may not be.
    fn lay_ghost_behind(&mut self, key: KeyIx, lane: LaneId) {
        let context = self.key(key).context;
        if self.machine.key_epoch(key) == self.machine.context_epoch(context) {
            self.lay_ghost(context, lane);
        }
    }

    fn report_flushed(&mut self, wr: Wr, lane: LaneId) -> Judged {
        match wr {
            // It may have been executed all the same.
            Wr::Bind(key) => {
                self.key(key).honoured = true;
                self.key(key).retired = true;
                self.tell(Event::BindFailed { key }).map(drop)
            }
            Wr::Invalidate(key) => self.tell(Event::InvalidateFailed { key }).map(drop),
            Wr::Own(context) => {
                self.own(context, lane).local = Local::Ended;
                self.report_own_ops(context, lane)
            }
            Wr::Closing(epoch) => self.tell(Event::ClosingFailed { epoch, lane }).map(drop),
        }
    }

    fn report_own_ops(&mut self, context: ContextIx, lane: LaneId) -> Judged {
        if self.context(context).stage == Stage::Open {
            return Ok(());
        }
        self.tell(Event::OwnOpsEnded { context, lane }).map(drop)
    }

    pub fn break_lane(&mut self, lane: LaneId) -> Judged {
        self.lane(lane).qp = Qp::Error;
        self.acks.retain(|&(_, on)| on != lane);
        self.chains.retain(|&(_, on)| on != lane);
        for key in &mut self.keys {
            key.retired |= key.lane == lane && !key.state.is_proven();
        }
        for context in &mut self.contexts {
            // Only the target knows what became of an operation whose completion was swallowed.
            let own = &mut context.own[usize::from(lane.0)];
            own.target |= own.local == Local::Ghost;
        }
        let note = self.tell(Event::LaneBroken { lane })?;
        check(note == Note::Applied, "R6", || {
            format!("a break is {note:?}")
        })?;
        let at_stake = |own: &OwnOp| own.target;
        let mut own = self
            .contexts
            .iter()
            .map(|context| &context.own[usize::from(lane.0)]);
        if self.eager && !own.any(at_stake) {
            self.target_answers(lane, Event::TargetConfirmed { lane })?;
        }
        self.start_deallocs(lane)
    }

    pub fn destroy(&mut self, lane: LaneId) -> Judged {
        self.lane(lane).qp = Qp::Destroyed;
        for key in &mut self.keys {
            key.honoured &= key.lane != lane || key.made != Made::Window;
        }
        for context in &mut self.contexts {
            context.own[usize::from(lane.0)].local = Local::Ended;
        }
        self.tell(Event::QpDestroyed { lane }).map(drop)
    }

    pub fn target_answers(&mut self, lane: LaneId, answer: Event) -> Judged {
        self.lane(lane).target_answered = true;
        for context in &mut self.contexts {
            context.own[usize::from(lane.0)].target = false;
        }
        self.tell(answer).map(drop)
    }

    /// The epochs whose end is still to come, by the timers that the machine holds armed.
    pub fn open_epochs(&self) -> Vec<Epoch> {
        use keyfence::reclaim::Timer;
        self.timers
            .iter()
            .filter_map(|&timer| match timer {
                Timer::FlushInterval => None,
                Timer::Fence(epoch) | Timer::Invalidate(epoch) | Timer::Final(epoch) => Some(epoch),
            })
            .collect()
    }
}
