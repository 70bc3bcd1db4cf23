//! What reclaims may post in one step of an lcore (R5), as its device sees it: on all of its queue pairs together.

use keyfence::pmd::{QpId, Rkey, WorkOp, WorkRequest};

/// The budget of an lcore and what it has posted of it in its present step.
#[derive(Debug)]
pub struct StepBudget {
    most: u32,
    step_ns: u64,
    invalidations: u32,
    /// Queue pairs that got a write of no bytes, and how many more of them there were.
    closed: Vec<QpId>,
    closings: u32,
}

impl StepBudget {
    pub fn new(most: u32) -> Self {
        Self {
            most,
            step_ns: 0,
            invalidations: 0,
            closed: Vec::new(),
            closings: 0,
        }
    }

    /// Enters what was posted in the step at `now_ns`; says what was spent if that is above the budget. A lane finds out with a write of no bytes, too, whether it
    /// is broken, so the first one of a queue pair in a step is not counted.
    pub fn spend(&mut self, now_ns: u64, qp: QpId, posted: &[WorkRequest]) -> Option<u32> {
        if now_ns != self.step_ns {
            self.begin(now_ns);
        }
        for request in posted {
            match request.op {
                WorkOp::Invalidate { .. } => self.invalidations += 1,
                WorkOp::Write { remote, .. } if remote.rkey == Rkey(0) => self.close(qp),
                _ => {}
            }
        }
        let spent = self.invalidations + self.closings;
        (spent > self.most).then_some(spent)
    }

    fn begin(&mut self, now_ns: u64) {
        self.step_ns = now_ns;
        self.invalidations = 0;
        self.closings = 0;
        self.closed.clear();
    }

    fn close(&mut self, qp: QpId) {
        if self.closed.contains(&qp) {
            self.closings += 1;
        } else {
            self.closed.push(qp);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use keyfence::pmd::{Remote, SgeList, WorkId};

    fn request(op: WorkOp) -> WorkRequest {
        WorkRequest::new(WorkId(0), op, SgeList::EMPTY)
    }

    #[test]
    fn r5_a_step_that_posts_more_than_its_budget_is_found() {
        let invalidate = request(WorkOp::Invalidate { rkey: Rkey(7) });
        let (address, rkey) = (0, Rkey(0));
        let closing = request(WorkOp::Write {
            remote: Remote { address, rkey },
            immediate: None,
        });
        let mut budget = StepBudget::new(3);
        assert_eq!(budget.spend(1, QpId(1), &[invalidate, closing]), None);
        assert_eq!(budget.spend(1, QpId(2), &[closing, invalidate]), None);
        // All queue pairs together; of each the first closing request may be one that looks for a break.
        assert_eq!(budget.spend(1, QpId(2), &[invalidate]), None);
        assert_eq!(budget.spend(1, QpId(2), &[closing]), Some(4));
        assert_eq!(budget.spend(2, QpId(2), &[invalidate; 3]), None);
        assert_eq!(budget.spend(2, QpId(1), &[invalidate]), Some(4));
    }
}
