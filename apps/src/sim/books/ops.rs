//! Operations: one completion each, with a status that what was found bears out (R7, the rules of fates).

use keyfence::ids::{ContextId, ImportId, RemoteContext};
use keyfence::{OpDone, OpKind, Status};

use super::eras::Submission;
use super::{Books, Who};

/// What an operation was about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum About {
    /// A write whose bytes say its number.
    Stamped(ImportId),
    Add(ImportId),
    /// Anything else on an import.
    Import(ImportId),
    /// A message to a context, with its number there.
    Message(Who, u64),
}

pub struct OpBook {
    pub about: About,
    pub bytes: u64,
    pub submission: Submission,
}

impl Books {
    /// An operation of `bytes` was taken. `to` is whose memory or mailbox it is for; one that is `plain` must not be executed twice.
    pub fn submitted(
        &mut self,
        host: usize,
        by: ContextId,
        token: u64,
        (about, bytes): (About, u64),
        (to, is_plain): (RemoteContext, bool),
    ) {
        let era = self.era_of(host, by);
        let op = OpBook {
            about,
            bytes,
            submission: Submission { to, is_plain, era },
        };
        if self.hosts[host].ops.insert((by, token), op).is_some() {
            self.fail(
                "r7_completions",
                format!("engine {host}: {by} uses token {token} twice"),
            );
        }
    }

    pub fn completed(&mut self, host: usize, by: ContextId, done: &OpDone) {
        self.absorb();
        self.told(&(host, by, done));
        self.tally.ops += 1;
        self.tally.ops_ok += u64::from(done.status == Status::Ok);
        let Some(op) = self.hosts[host].ops.remove(&(by, done.token)) else {
            return self.fail(
                "r7_completions",
                format!("engine {host}: {by} hears a second time of {done:?}"),
            );
        };
        self.judge_status(host, by, &op, done);
        self.judge_era(host, by, &op, done);
        match op.about {
            About::Stamped(import) => self.stamped(host, by.lcore, import, done.token, done.status),
            About::Add(import) => self.added(host, by.lcore, import, done.status),
            About::Import(_) => {}
            About::Message(to, number) => {
                let from = self.who(host, by);
                self.message_ended(from, to, number, done.status);
            }
        }
    }

    /// What a status may be at all.
    fn judge_status(&mut self, host: usize, by: ContextId, op: &OpBook, done: &OpDone) {
        let whole = done.status != Status::Ok
            || done.bytes == op.bytes
            || matches!(op.about, About::Add(_));
        let untouched = !done.status.surely_not_executed() || done.bytes == 0;
        let message = done.kind == OpKind::Send;
        let revoked_message = message && done.status == Status::Revoked;
        // Only where lanes are repaired is anything held back.
        let held_back = done.status == Status::NotSent && self.hosts[host].rebuilds == 0;
        if !whole || !untouched || held_back || revoked_message {
            self.fail(
                "fates",
                format!("engine {host}: {by}: {done:?} of {} bytes", op.bytes),
            );
        }
        if self.is_gentle && done.status == Status::PeerLost {
            self.fail("r5_gentle", format!("engine {host}: {by}: {done:?}"));
        }
    }
}
