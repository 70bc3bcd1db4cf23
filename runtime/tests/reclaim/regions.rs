//! The model's regions: made and ended by the control side alone, valid until they are deregistered whatever becomes of their lane's QP.

use keyfence::ids::LaneId;
use keyfence::reclaim::{Event, KeyIx};

use crate::choice::Choice;
use crate::world::{Dealloc, Judged, Key, Qp, World};

/// What a key is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Made {
    /// A window, by a work request.
    Window,
    /// A region that is being registered.
    Asked,
    /// A registration that was refused: there is nothing.
    Refused,
    /// A region.
    Region,
    /// A registration that did not come back. It may be there, and only its domain's end proves that it is not.
    Unnamed,
}

impl World {
    /// What the control side of a healthy engine gets done in the end.
    pub fn regions_progress(&self, choices: &mut Vec<Choice>) {
        for (index, key) in (0..).map(KeyIx).zip(&self.keys) {
            match key.made {
                Made::Asked => choices.push(Choice::Register(index)),
                Made::Unnamed if key.dealloc == Dealloc::Running => {
                    choices.push(Choice::FailDealloc(index));
                }
                // The session goes in the end.
                Made::Unnamed if !key.state.is_proven() && self.is_up(key.lane) => {
                    choices.push(Choice::Break(key.lane));
                }
                _ => {}
            }
        }
        for (lane, record) in (0..).map(LaneId).zip(&self.lanes) {
            let in_use = |key: &Key| match key.made {
                Made::Asked => true,
                Made::Region => key.honoured,
                Made::Window | Made::Refused | Made::Unnamed => false,
            };
            let mut keys = self.keys.iter().filter(|key| key.lane == lane);
            if record.qp == Qp::Destroyed && !record.domain_gone && !keys.any(in_use) {
                choices.push(Choice::EndDomain(lane));
            }
        }
    }

    /// Whether the call that ends a key can return.
    pub fn dealloc_returns(&self, key: &Key) -> bool {
        match key.made {
            Made::Window | Made::Refused | Made::Region => true,
            // It stands behind the registration.
            Made::Asked => false,
            Made::Unnamed => self.lanes[usize::from(key.lane.0)].domain_gone,
        }
    }

    pub fn regions_faults(&self, choices: &mut Vec<Choice>) {
        for (index, key) in (0..).map(KeyIx).zip(&self.keys) {
            if key.made == Made::Asked && self.budget.failed_binds > 0 {
                choices.push(Choice::RefuseKey(index));
            }
            if key.made == Made::Asked && self.budget.unnamed > 0 {
                choices.push(Choice::LoseKey(index));
            }
        }
    }

    pub fn register(&mut self, key: KeyIx) -> Judged {
        let record = self.key(key);
        record.made = Made::Region;
        record.honoured = true;
        self.tell(Event::BindDone { key }).map(drop)
    }

    /// Nothing is made, or perhaps something.
    pub fn fail_register(&mut self, key: KeyIx, made: Made) -> Judged {
        let record = self.key(key);
        record.made = made;
        record.honoured = made == Made::Unnamed;
        record.retired = true;
        self.tell(Event::BindFailed { key }).map(drop)
    }

    pub fn end_domain(&mut self, lane: LaneId) -> Judged {
        self.lane(lane).domain_gone = true;
        for key in &mut self.keys {
            key.honoured &= key.lane != lane;
        }
        self.tell(Event::DomainDestroyed { lane }).map(drop)
    }
}
