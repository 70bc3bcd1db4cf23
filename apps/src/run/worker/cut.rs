//! What a broken lane does to a worker's operations (REQUIREMENTS section 5): some have no known end, and what is behind them is not sent until the worker goes on.

use keyfence::{Context, OpDone, OpKind, Status};

use super::Worker;
use super::ops::{MAX_OPS, Op};
use super::partner::Known;

/// Operations that one break may take from a worker: those it had, and those that it submits before it has heard of all of these.
const MOST_CUT: usize = 4 * MAX_OPS;

impl Worker {
    /// Whether a broken lane may be why an operation has ended so. An unknown end takes a lane that was broken while the operation was under way; one that is surely not sent
    /// may have been submitted later, before the worker could know. A message has no unknown end.
    pub(super) fn may_be_cut(&self, op: &Op, done: &OpDone) -> bool {
        let era = self.board.wishes.era();
        let was_broken = op.era % 2 == 1 || op.era != era;
        match done.status {
            Status::NotSent => was_broken || self.cut_era >= op.era && self.cut_era > 0,
            _ => was_broken && done.kind != OpKind::Send,
        }
    }

    /// Takes an end by a broken lane for what it is, and goes on: of no message that is numbered anew has the partner heard.
    pub(super) fn cut_off(&mut self, cx: &mut Context<'_>, op: &Op, done: &OpDone) {
        let era = self.board.wishes.era();
        self.cut = match self.cut_era == era {
            true => self.cut + 1,
            false => 1,
        };
        self.cut_era = era;
        if self.cut > MOST_CUT {
            let cut = self.cut;
            self.bystander_error(|| {
                format!("{cut} operations cut off by one break: it does not resume")
            });
        }
        self.board.sides[self.side].tally().cut(done.status);
        self.lost(cx, op);
    }

    /// Goes on behind an operation that came to nothing.
    pub(super) fn lost(&mut self, cx: &mut Context<'_>, op: &Op) {
        if let Some((number, partner)) = op.number
            && partner == self.partners
        {
            self.sent = self.sent.min(number);
        }
        if op.learns
            && let Some(entry) = self
                .uses
                .iter_mut()
                .find(|entry| Some(entry.import.id) == op.import)
        {
            entry.known = Known::New;
        }
        cx.resume();
    }
}
