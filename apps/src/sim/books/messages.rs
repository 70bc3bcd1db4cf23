//! Messages: each once, in order, and in one session none left out that is said to have arrived. What a session's end cuts off may have arrived at an adapter and at nobody.

use std::collections::{BTreeMap, BTreeSet};

use keyfence::Status;
use keyfence::ids::SessionId;

use super::{About, Books, Who};

/// All messages, by sender and receiver.
#[derive(Default)]
pub struct Messages {
    pairs: BTreeMap<(Who, Who), Pair>,
}

#[derive(Default)]
struct Pair {
    sent: u64,
    /// The first number of each session that any was sent in.
    sessions: BTreeMap<SessionId, u64>,
    /// The number that came last.
    last: u64,
    /// Numbers below it that did not come, and were sent in the same session.
    skipped: BTreeSet<u64>,
    /// Numbers above it that are said to have arrived.
    arrived: BTreeSet<u64>,
}

impl Pair {
    /// The first number of the session that a number was sent in.
    fn session_of(&self, number: u64) -> u64 {
        let firsts = self.sessions.values().filter(|first| **first <= number);
        firsts.max().copied().unwrap_or(0)
    }
}

impl Books {
    /// The number of the next message from one to the other, in the sender's session. One that is refused gives it back.
    pub fn next_number(&mut self, from: Who, to: Who, session: SessionId) -> u64 {
        let pair = self.messages.pairs.entry((from, to)).or_default();
        pair.sent += 1;
        pair.sessions.entry(session).or_insert(pair.sent);
        pair.sent
    }

    pub fn unsend(&mut self, from: Who, to: Who) {
        let pair = self.messages.pairs.entry((from, to)).or_default();
        pair.sent -= 1;
    }

    pub fn received(&mut self, from: Who, to: Who, number: u64) {
        self.tally.messages += 1;
        let pair = self.messages.pairs.entry((from, to)).or_default();
        let (last, sent) = (pair.last, pair.sent);
        if number <= last || number > sent {
            return self.fail(
                "messages",
                format!("{from:?} to {to:?}: {number} comes behind {last} of {sent}"),
            );
        }
        self.message_executed(from, to, number);
        let pair = self.messages.pairs.entry((from, to)).or_default();
        let missing = (last + 1).max(pair.session_of(number))..number;
        let lost = missing.clone().find(|number| pair.arrived.contains(number));
        pair.skipped.extend(missing);
        pair.last = number;
        pair.arrived = pair.arrived.split_off(&(number + 1));
        if let Some(lost) = lost {
            self.fail(
                "messages",
                format!("{from:?} to {to:?}: {lost} arrived, and is skipped by {number}"),
            );
        }
    }

    /// One that its sender was not told to have arrived yet.
    fn message_executed(&mut self, from: Who, to: Who, number: u64) {
        if self.hosts[from.host].life != from.life {
            return;
        }
        let mut ops = self.hosts[from.host]
            .ops
            .range((from.id, 0)..=(from.id, u64::MAX));
        let its = ops.find(|(_, op)| op.about == About::Message(to, number));
        if let Some((token, submission)) = its.map(|((_, token), op)| (*token, op.submission)) {
            self.executed_in_era(from, submission, token);
        }
    }

    pub(super) fn message_ended(&mut self, from: Who, to: Who, number: u64, status: Status) {
        let pair = self.messages.pairs.entry((from, to)).or_default();
        let (passed, skipped) = (number <= pair.last, pair.skipped.remove(&number));
        let wrong = match status {
            Status::Ok if skipped => "was skipped",
            Status::Ok => {
                if !passed {
                    pair.arrived.insert(number);
                }
                return;
            }
            _ if status.surely_not_executed()
                && passed
                && !skipped
                && pair.session_of(number) == pair.session_of(pair.last) =>
            {
                "came"
            }
            _ => return,
        };
        self.fail(
            "messages",
            format!("{from:?} to {to:?}: {number} ended as {status:?}, and {wrong}"),
        );
    }
}
