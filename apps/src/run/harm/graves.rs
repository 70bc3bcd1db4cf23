//! Which keys are dead, from what crosses the device contract: an owner's path sees them bound, and the success that proves their end (regions: its device sees them registered and deregistered); a holder's sees which it uses.

use std::collections::{HashMap, VecDeque};

use keyfence::pmd::{QpId, Rkey, WorkId, WorkOp, WorkRequest};

/// A dead key, and what it once opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grave {
    pub rkey: Rkey,
    pub address: u64,
    pub len: u64,
}

/// The keys of one path's own memory.
#[derive(Default)]
pub struct Mortals {
    bound: HashMap<u32, Grave>,
    ending: VecDeque<(QpId, WorkId, Rkey)>,
}

impl Mortals {
    /// A request was posted. Gives the value of a key that lives again.
    pub fn posted(&mut self, qp: QpId, request: &WorkRequest) -> Option<Rkey> {
        match request.op {
            WorkOp::Bind {
                address, len, rkey, ..
            } => {
                let grave = Grave { rkey, address, len };
                self.bound.insert(rkey.0, grave);
                Some(rkey)
            }
            WorkOp::Invalidate { rkey } => {
                self.ending.push_back((qp, request.id, rkey));
                None
            }
            _ => None,
        }
    }

    /// A request has succeeded: gives the keys that are dead now.
    pub fn succeeded(&mut self, qp: QpId, id: WorkId) -> Vec<Grave> {
        let is_it = |ending: &(QpId, WorkId, Rkey)| (ending.0, ending.1) == (qp, id);
        let Some(last) = self.ending.iter().position(is_it) else {
            return Vec::new();
        };
        let mut dead = Vec::new();
        let mut at = 0;
        // A chain's last success ends those before it on the same queue pair.
        self.ending.retain(|ending| {
            let ends = at <= last && ending.0 == qp;
            at += 1;
            if ends {
                dead.extend(self.bound.remove(&ending.2.0));
            }
            !ends
        });
        dead
    }

    /// The queue pair is given up: what it did not prove is not proven.
    pub fn released(&mut self, qp: QpId) {
        self.ending.retain(|ending| ending.0 != qp);
    }
}

/// The keys that a path has used last, by queue pair.
#[derive(Default)]
pub struct Used(VecDeque<(QpId, Rkey)>);

/// Keys that are remembered.
const USED: usize = 64;

impl Used {
    /// A key is used.
    pub fn note(&mut self, qp: QpId, rkey: Rkey) {
        if self.0.contains(&(qp, rkey)) {
            return;
        }
        if self.0.len() == USED {
            self.0.pop_front();
        }
        self.0.push_back((qp, rkey));
    }

    /// One of these that was used on the queue pair: it was revoked there.
    pub fn one_of(&self, qp: QpId, graves: &[Grave]) -> Option<Grave> {
        let was_used = |grave: &&Grave| self.0.contains(&(qp, grave.rkey));
        graves.iter().rev().find(was_used).copied()
    }

    /// The queue pair is given up.
    pub fn released(&mut self, qp: QpId) {
        self.0.retain(|used| used.0 != qp);
    }
}

#[cfg(test)]
mod tests {
    use keyfence::pmd::{RegionId, Rights, SgeList, WindowId};

    use super::*;

    fn post(mortals: &mut Mortals, qp: u32, id: u64, op: WorkOp) {
        let request = WorkRequest::new(WorkId(id), op, SgeList::EMPTY);
        mortals.posted(QpId(qp), &request);
    }

    fn bind(index: u32) -> WorkOp {
        WorkOp::Bind {
            window: WindowId(index),
            region: RegionId(0),
            address: u64::from(index) << 12,
            len: 64,
            rights: Rights::READ_WRITE,
            rkey: Rkey::new(index, 0),
        }
    }

    fn end(index: u32) -> WorkOp {
        let rkey = Rkey::new(index, 0);
        WorkOp::Invalidate { rkey }
    }

    #[test]
    fn a_key_is_dead_by_a_success_behind_it_and_by_nothing_else() {
        let mut mortals = Mortals::default();
        for index in 1..=4 {
            post(&mut mortals, 1, u64::from(index), bind(index));
        }
        for (qp, id, index) in [(1, 11, 1), (1, 12, 2), (2, 13, 3), (1, 14, 4)] {
            post(&mut mortals, qp, id, end(index));
        }
        let dead = |mortals: &mut Mortals, qp, id| -> Vec<u32> {
            let dead = mortals.succeeded(QpId(qp), WorkId(id));
            dead.iter().map(|grave| grave.rkey.index()).collect()
        };
        assert_eq!(dead(&mut mortals, 1, 99), [] as [u32; 0]);
        assert_eq!(dead(&mut mortals, 1, 12), [1, 2]);
        mortals.released(QpId(2));
        assert_eq!(dead(&mut mortals, 2, 13), [] as [u32; 0]);
        assert_eq!(dead(&mut mortals, 1, 14), [4]);
    }

    #[test]
    fn a_dead_key_is_used_again_where_it_was_used_alone() {
        let mut used = Used::default();
        let grave = |index| Grave {
            rkey: Rkey::new(index, 0),
            address: 0,
            len: 64,
        };
        used.note(QpId(1), Rkey::new(5, 0));
        assert_eq!(used.one_of(QpId(1), &[grave(5), grave(6)]), Some(grave(5)));
        assert_eq!(used.one_of(QpId(2), &[grave(5)]), None);
        used.released(QpId(1));
        assert_eq!(used.one_of(QpId(1), &[grave(5)]), None);
    }
}
