//! The poll path of a device that does harm.

use keyfence::pmd::{
    Completion, DataPath, Device, QpId, ReceiveRequest, Remote, WcStatus, WorkId, WorkOp,
    WorkRequest,
};
use keyfence_mempool::sync::Arc;

use super::graves::{Grave, Mortals, Used};
use super::wish::{Strike, Wishes};

/// The poll path of [`Harm`](super::Harm).
pub struct HarmPath<D: Device> {
    inner: D::Path,
    device: Arc<D>,
    harm: Option<Box<Harmful>>,
}

/// What a path knows that is to do harm.
struct Harmful {
    wishes: Arc<Wishes>,
    side: usize,
    mortals: Mortals,
    used: Used,
    /// The access by a dead key that has not ended.
    hostile: Option<(QpId, WorkId)>,
}

impl<D: Device> HarmPath<D> {
    pub(super) fn new(
        inner: D::Path,
        device: Arc<D>,
        wishes: Option<(Arc<Wishes>, usize)>,
    ) -> Self {
        let harm = wishes.map(|(wishes, side)| {
            Box::new(Harmful {
                wishes,
                side,
                mortals: Mortals::default(),
                used: Used::default(),
                hostile: None,
            })
        });
        Self {
            inner,
            device,
            harm,
        }
    }

    /// Posts behind the look of somebody who means harm.
    fn post_harmfully(&mut self, qp: QpId, work: &[WorkRequest]) -> usize {
        let harm = self.harm.as_mut().expect("there are wishes");
        let taken = match harm.chance(qp, work) {
            None => self.inner.post_burst(qp, work),
            Some((at, None)) => self.post_and_break(qp, &work[..=at]),
            Some((at, Some(dead))) => self.post_hostile(qp, &work[..=at], dead),
        };
        let harm = self.harm.as_mut().expect("there are wishes");
        harm.note(qp, &work[..taken]);
        taken
    }

    /// Posts these, and moves the queue pair to error behind the last one.
    fn post_and_break(&mut self, qp: QpId, work: &[WorkRequest]) -> usize {
        let taken = self.inner.post_burst(qp, work);
        let harm = self.harm.as_ref().expect("there are wishes");
        if taken == work.len() && harm.wishes.strike(harm.side) {
            // Refused on a queue pair that is gone, which is no less in error.
            let _ = self.device.error_qp(qp);
        }
        taken
    }

    /// Posts these, the last one by a dead key.
    fn post_hostile(&mut self, qp: QpId, work: &[WorkRequest], dead: Grave) -> usize {
        let (last, before) = work.split_last().expect("there is an access");
        let taken = self.inner.post_burst(qp, before);
        let harm = self.harm.as_mut().expect("there are wishes");
        if taken < before.len() || !harm.wishes.strike(harm.side) {
            return taken;
        }
        let Grave { rkey, address, .. } = dead;
        let remote = Remote { address, rkey };
        let op = match last.op {
            WorkOp::Write { immediate, .. } => WorkOp::Write { remote, immediate },
            _ => WorkOp::Read { remote },
        };
        // Its success would be told too.
        let hostile = WorkRequest { op, ..*last }.signaled(true);
        if self.inner.post_burst(qp, &[hostile]) == 0 {
            // No room: then it is broken without.
            let _ = self.device.error_qp(qp);
            return taken;
        }
        harm.hostile = Some((qp, last.id));
        taken + 1
    }
}

impl Harmful {
    /// Whether these are where a wish can be fulfilled: behind which of them, and by which dead key.
    fn chance(&self, qp: QpId, work: &[WorkRequest]) -> Option<(usize, Option<Grave>)> {
        let wish = self.wishes.wish(self.side)?;
        let theirs = |request: &WorkRequest| {
            let remote = remote_of(&request.op);
            remote.is_some_and(|remote| self.wishes.is_of(1 - self.side, remote.address))
        };
        let at = work.iter().position(theirs)?;
        match wish {
            Strike::Error => Some((at, None)),
            Strike::DeadKey => {
                let graves = self.wishes.graves(1 - self.side);
                let bytes = work[at].sges.bytes();
                let fits: Vec<Grave> = graves
                    .iter()
                    .filter(|grave| grave.len >= bytes && bytes > 0)
                    .copied()
                    .collect();
                Some((at, Some(self.used.one_of(qp, &fits)?)))
            }
        }
    }

    fn note(&mut self, qp: QpId, posted: &[WorkRequest]) {
        for request in posted {
            if let Some(again) = self.mortals.posted(qp, request) {
                self.wishes.lives(self.side, again);
            }
            if let Some(remote) = remote_of(&request.op) {
                self.used.note(qp, remote.rkey);
            }
        }
    }

    fn ended(&mut self, done: &Completion) {
        if self.hostile == Some((done.qp, done.id)) {
            self.hostile = None;
            // One that was flushed was tried by nobody.
            match done.status {
                WcStatus::Success => self.wishes.ended(false),
                WcStatus::RemoteAccess => self.wishes.ended(true),
                _ => {}
            }
        }
        if done.is_success() {
            let dead = self.mortals.succeeded(done.qp, done.id);
            if !dead.is_empty() {
                self.wishes.bury(self.side, dead.into_iter());
            }
        }
    }
}

impl<D: Device> DataPath for HarmPath<D> {
    fn post_burst(&mut self, qp: QpId, work: &[WorkRequest]) -> usize {
        match &self.harm {
            None => self.inner.post_burst(qp, work),
            Some(_) => self.post_harmfully(qp, work),
        }
    }

    fn post_receives(&mut self, qp: QpId, receives: &[ReceiveRequest]) -> usize {
        self.inner.post_receives(qp, receives)
    }

    fn poll_burst(&mut self, done: &mut [Completion]) -> usize {
        let count = self.inner.poll_burst(done);
        if let Some(harm) = &mut self.harm {
            done[..count].iter().for_each(|done| harm.ended(done));
        }
        count
    }

    fn release_qp(&mut self, qp: QpId) {
        self.inner.release_qp(qp);
        if let Some(harm) = &mut self.harm {
            harm.mortals.released(qp);
            harm.used.released(qp);
            harm.hostile.take_if(|(of, _)| *of == qp);
        }
    }
}

fn remote_of(op: &WorkOp) -> Option<Remote> {
    match op {
        WorkOp::Write { remote, .. } | WorkOp::Read { remote } => Some(*remote),
        _ => None,
    }
}
