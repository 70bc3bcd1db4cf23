//! What ends when, and what may be touched until then.

use keyfence_pmd::sim::{Access as Touch, AccessKey};
use keyfence_pmd::*;

use super::{Grant, Posted, SLOT_BYTES, Storm, TARGET};

impl Storm {
    pub(super) fn complete(&mut self, side: usize, done: &Completion) {
        self.outcome.completed += 1;
        self.outcome.succeeded += u64::from(done.is_success());
        let Some(posted) = self.open.get(&done.id) else {
            return self.violation(format!("{done:?} is of no open request"));
        };
        if (posted.side, posted.qp) != (side, done.qp) {
            return self.violation(format!("{done:?} on side {side} is of another queue pair"));
        }
        let is_receive = posted.is_receive;
        if done.is_success() {
            self.succeed(done.id);
        } else {
            self.broken.insert((side, done.qp));
            self.close(done.id);
        }
        // Those before it on its queue have succeeded, and their completions were swallowed.
        let same = |posted: &Posted| {
            posted.side == side && posted.qp == done.qp && posted.is_receive == is_receive
        };
        let before: Vec<_> = self
            .open
            .range(..done.id)
            .filter(|(_, posted)| same(posted))
            .map(|(id, _)| *id)
            .collect();
        if is_receive && !before.is_empty() {
            self.violation(format!("{done:?} passed {before:?}"));
        }
        self.swallowed += before.len() as u64;
        for id in before {
            self.succeed(id);
        }
    }

    fn succeed(&mut self, id: WorkId) {
        let posted = self.open.get(&id);
        let (binds, ends) = posted.map_or((None, None), |posted| (posted.binds, posted.ends));
        self.close(id);
        if let Some(rkey) = binds {
            self.grant(rkey).bound = true;
        }
        if let Some(rkey) = ends {
            self.end_key(rkey);
        }
    }

    pub(super) fn close(&mut self, id: WorkId) {
        if let Some(posted) = self.open.remove(&id) {
            self.free(posted.side, posted.slot);
        }
    }

    pub(super) fn free(&mut self, side: usize, slot: Option<usize>) {
        if let Some(slot) = slot {
            self.held[side][slot] = false;
        }
    }

    pub(super) fn end_key(&mut self, rkey: Rkey) {
        let grant = self.grant(rkey);
        let fresh = !std::mem::replace(&mut grant.ended, true);
        self.outcome.keys_ended += u64::from(fresh);
    }

    /// Keys of a storm are used once: windows are not bound again.
    pub(super) fn grant(&mut self, rkey: Rkey) -> &mut Grant {
        let mut grants = self.grants.iter_mut();
        grants
            .find(|grant| grant.rkey == rkey)
            .expect("a granted key")
    }

    /// Holds what has touched memory since the last look against what is known to have ended before.
    pub(super) fn judge(&mut self) {
        let mut touches = Vec::new();
        let lost = self.pair.world.take_accesses(&mut touches);
        assert_eq!(lost, 0);
        self.outcome.touches += touches.len() as u64;
        for touch in touches {
            self.judge_one(&touch);
        }
    }

    fn judge_one(&mut self, touch: &Touch) {
        let side = touch.adapter as usize;
        let offset = (touch.address - self.pair.sides[side].arena.address()) as usize;
        let end = offset + touch.len as usize;
        match touch.key {
            AccessKey::Remote(rkey) => {
                let grant = self.grant(rkey);
                let start = TARGET + grant.place * SLOT_BYTES;
                let (ended, owner) = (grant.ended, grant.owner);
                let inside = start <= offset && end <= start + SLOT_BYTES;
                if side != 1 || ended || !inside || owner != touch.qp {
                    self.violation(format!("{touch:?} by a key that does not open it"));
                }
            }
            AccessKey::Local(_) => {
                if end > TARGET || !self.held[side][offset / SLOT_BYTES] {
                    self.violation(format!("{touch:?} of an operation that has ended"));
                }
            }
        }
    }

    pub(super) fn violation(&mut self, text: String) {
        self.outcome.violations.push(text);
    }
}
