//! What a context submits behind an operation that a break has left with an unknown end (REQUIREMENTS section 5, "What happens to operations at a break"): nothing of it
//! is executed on that lane before the context resumes. So "write the data, then send ready" never becomes "ready" without data.

use core::ops::RangeInclusive;
use std::collections::BTreeMap;

use keyfence::ids::{ContextId, ImportId, LcoreId, RemoteContext, SessionId};
use keyfence::{OpDone, Status};

use super::ends::Ending;
use super::ops::OpBook;
use super::{About, Books, Who};

/// A context's lane to an lcore of a peer: it has one.
type Lane = (Who, SessionId, LcoreId);

#[derive(Default)]
pub struct Eras {
    /// Of each lane, by how often its context had resumed.
    all: BTreeMap<(Lane, u32), Era>,
    /// Writes of unknown end: their context may yet be told, in the same step, that they were cut short by a revoke and not by a break.
    doubts: Vec<Doubt>,
}

struct Doubt {
    lane: Lane,
    eras: RangeInclusive<u32>,
    token: u64,
    import: ImportId,
}

/// Operations between two resumes, by their tokens, which grow.
#[derive(Default)]
struct Era {
    /// The first that was held back, or whose end is unknown.
    stalled: Option<u64>,
    /// The last that was executed.
    executed: Option<u64>,
}

/// What of an operation's submission is remembered.
#[derive(Clone, Copy, Debug)]
pub struct Submission {
    pub to: RemoteContext,
    /// Whether it must not be executed twice.
    pub is_plain: bool,
    /// How often its context had resumed.
    pub era: u32,
}

impl Books {
    /// The context goes on behind what it was told of.
    pub fn resumed(&mut self, host: usize, id: ContextId) {
        if let Some(context) = self.hosts[host].contexts.get_mut(&id) {
            context.resumes += 1;
        }
    }

    pub(super) fn era_of(&self, host: usize, id: ContextId) -> u32 {
        let context = self.hosts[host].contexts.get(&id);
        context.map_or(0, |context| context.resumes)
    }

    /// An operation has ended: it was executed, or not, or its end is unknown.
    pub(super) fn judge_era(&mut self, host: usize, by: ContextId, op: &OpBook, done: &OpDone) {
        let (who, Submission { to, is_plain, era }) = (self.who(host, by), op.submission);
        let (lane, token) = ((who, to.session, to.id.lcore), done.token);
        // From its submission until it is told: a resume in between was called too early, and counts for nothing.
        let eras = era..=self.era_of(host, by).max(era);
        match (done.status, op.about) {
            (Status::Ok, _) => self.executed_in_era(who, op.submission, token),
            (Status::NotSent, _) => self.stalled_in(lane, eras, token),
            (Status::Indeterminate, About::Stamped(import)) if is_plain => {
                self.eras.doubts.push(Doubt {
                    lane,
                    eras,
                    token,
                    import,
                });
            }
            _ => {}
        }
    }

    pub(super) fn executed_in_era(&mut self, who: Who, submission: Submission, token: u64) {
        let lane = (who, submission.to.session, submission.to.id.lcore);
        let era = self.eras.all.entry((lane, submission.era)).or_default();
        era.executed = era.executed.max(Some(token));
        self.judge(lane, submission.era);
    }

    fn stalled_in(&mut self, lane: Lane, eras: RangeInclusive<u32>, token: u64) {
        for era in eras {
            let found = self.eras.all.entry((lane, era)).or_default();
            found.stalled = Some(found.stalled.map_or(token, |first| first.min(token)));
            self.judge(lane, era);
        }
    }

    /// A step is over: a write whose import its living context still holds was cut off by a break.
    pub(super) fn settle_doubts(&mut self) {
        for doubt in core::mem::take(&mut self.eras.doubts) {
            let who = doubt.lane.0;
            let book = &self.hosts[who.host];
            let context = book.contexts.get(&who.id);
            let lives = context.is_some_and(|context| context.ending == Ending::Lives);
            if lives && book.life == who.life && self.is_held(who.host, who.id.lcore, doubt.import)
            {
                self.stalled_in(doubt.lane, doubt.eras, doubt.token);
            }
        }
    }

    fn judge(&mut self, lane: Lane, era: u32) {
        let found = &self.eras.all[&(lane, era)];
        if let (Some(stalled), Some(executed)) = (found.stalled, found.executed)
            && stalled < executed
        {
            self.fail(
                "fates_order",
                format!("{lane:?}: {stalled} was held back or is of unknown end, and {executed} behind it was executed before its context resumed"),
            );
        }
    }
}
