//! What waits on a lane: contexts for their turn, control frames for a send slot and a credit.

use std::collections::VecDeque;

use crate::ids::{ContextId, Epoch, GrantId};

/// Contexts in the order of their turns. Holds each at most once, so its room is the number of contexts.
#[derive(Debug)]
pub struct TurnQueue(VecDeque<u16>);

impl TurnQueue {
    /// Room for `contexts`.
    pub fn new(contexts: usize) -> Self {
        Self(VecDeque::with_capacity(contexts))
    }

    /// Appends a context that is in no turn queue of the lane.
    pub fn push(&mut self, context: u16) {
        assert!(
            self.0.len() < self.0.capacity(),
            "a context stands in one turn queue once"
        );
        self.0.push_back(context);
    }

    /// Puts a context in front: its turn was cut short by a full lane.
    pub fn push_front(&mut self, context: u16) {
        self.0.push_front(context);
    }

    /// The next.
    pub fn pop(&mut self) -> Option<u16> {
        self.0.pop_front()
    }

    /// Takes a context out, wherever it stands; whether it was there.
    pub fn strike(&mut self, context: u16) -> bool {
        let at = self.0.iter().position(|waiting| *waiting == context);
        at.is_some_and(|at| self.0.remove(at).is_some())
    }

    /// Whether none waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Those that wait, the next first.
    pub fn iter(&self) -> impl Iterator<Item = u16> {
        self.0.iter().copied()
    }
}

/// A frame that asks for something. Encoded when it is posted, so that what it says is true then.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Request {
    /// The first frame.
    Hello,
    /// A look-up in the pending table.
    Lookup {
        /// Its slot there.
        pending: u32,
    },
    /// The bind of a grant's key, and the grant behind it.
    Grant(GrantId),
    /// Revoke the keys of an epoch on this lane.
    Revoke(Epoch),
    /// A sign of life.
    KeepAlive,
    /// Name keys again whose holder has not acknowledged their end.
    Remind,
    /// The repair of the lane begins.
    Begin,
    /// Name contexts that have ended, from a slot on.
    Ended {
        /// The slot.
        from: u16,
    },
    /// All that is live was named.
    End,
    /// Own operations have completed and the imports are dead.
    Bye,
}

/// A frame that answers or gives back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// To a look-up.
    LookupReply {
        /// The asker's number.
        request: u32,
        /// The context, if there is one.
        found: Option<ContextId>,
    },
    /// All imports of an epoch are fenced.
    Revoked(Epoch),
    /// A grant's holder does not live here.
    Refused(GrantId),
    /// The holder of an import died.
    ImportDropped(GrantId),
    /// A context takes more messages.
    Credit {
        /// Its slot.
        context: u16,
    },
    /// The peer's receives that were posted again, when no other frame tells it.
    LaneCredit,
    /// A context is gone.
    ContextGone {
        /// Its name.
        context: ContextId,
        /// Keys in quarantine.
        keys: u32,
        /// Bytes in quarantine.
        bytes: u64,
    },
}

/// What ends an epoch on a lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Closing {
    /// The invalidations of its keys.
    Chain(Epoch),
    /// One signaled request behind its own operations.
    Lone(Epoch),
}

/// The control frames that wait, by class.
#[derive(Debug)]
pub struct ControlQueue {
    requests: VecDeque<Request>,
    /// Look-ups, which no reclaim waits for, go behind all of these. Those whose asker is gone stay until they are taken.
    lookups: VecDeque<u32>,
    most_lookups: usize,
    /// Whether a sign of life is among them: a second one says nothing more.
    keeps_alive: bool,
    /// Whether a reminder is.
    reminds: bool,
    /// Epochs of the peer whose imports are fenced: it waits for the word, so that goes before other answers, and stands in no order with them.
    fenced: VecDeque<Epoch>,
    answers: VecDeque<Answer>,
    most_answers: usize,
    /// Answers to look-ups among them, which have room of their own: a peer that asks much must not lose what nobody says twice, such as the end of a context.
    replies: usize,
    most_replies: usize,
}

impl ControlQueue {
    /// Room for `requests` beside `lookups` look-ups, and for `answers`; the runtime's limits bound the requests.
    pub fn new(requests: usize, lookups: usize, answers: usize) -> Self {
        Self {
            // One more for the reminder.
            requests: VecDeque::with_capacity(requests + 1),
            lookups: VecDeque::with_capacity(lookups),
            most_lookups: lookups,
            keeps_alive: false,
            reminds: false,
            fenced: VecDeque::with_capacity(answers),
            answers: VecDeque::with_capacity(answers + lookups),
            most_answers: answers,
            replies: 0,
            most_replies: lookups,
        }
    }

    /// Whether a look-up may be asked: a peer that takes none must not make them pile up.
    pub fn takes_lookup(&self) -> bool {
        self.lookups.len() < self.most_lookups
    }

    /// Appends a request. Of a look-up the caller has seen that there is room.
    pub fn ask(&mut self, request: Request) {
        match request {
            Request::KeepAlive if core::mem::replace(&mut self.keeps_alive, true) => return,
            Request::Remind if core::mem::replace(&mut self.reminds, true) => return,
            Request::Lookup { pending } => return self.lookups.push_back(pending),
            _ => {}
        }
        assert!(
            !self.is_full(),
            "the table that a request is of bounds those that are wanted"
        );
        self.requests.push_back(request);
    }

    /// Whether a sign of life waits to be posted.
    pub fn waits_to_keep_alive(&self) -> bool {
        self.keeps_alive
    }

    /// Whether no more requests fit, unless some of them are struck.
    pub fn is_full(&self) -> bool {
        self.requests.len() == self.requests.capacity()
    }

    /// Strikes the requests that nobody wants any more. Look-ups stay: they have a bound of their own.
    pub fn keep_wanted(&mut self, wanted: impl Fn(Request) -> bool) {
        self.requests.retain(|request| wanted(*request));
    }

    /// Puts a request in front again: it was not its turn, or it takes more than a frame.
    pub fn ask_again(&mut self, request: Request) {
        match request {
            Request::KeepAlive => self.keeps_alive = true,
            Request::Remind => self.reminds = true,
            Request::Lookup { pending } => return self.lookups.push_front(pending),
            _ => {}
        }
        assert!(
            !self.is_full(),
            "what is put back was taken out just before"
        );
        self.requests.push_front(request);
    }

    /// Appends an answer; false if the peer asked faster than it took answers, and nothing is queued.
    #[must_use]
    pub fn answer(&mut self, answer: Answer) -> bool {
        match answer {
            Answer::Revoked(epoch) => return push(&mut self.fenced, epoch),
            Answer::LookupReply { .. } if self.replies == self.most_replies => return false,
            Answer::LookupReply { .. } => self.replies += 1,
            _ if self.answers.len() - self.replies == self.most_answers => return false,
            _ => {}
        }
        self.answers.push_back(answer);
        true
    }

    /// The next request.
    pub fn next_request(&mut self) -> Option<Request> {
        let lookup = |pending| Request::Lookup { pending };
        let request = match self.requests.pop_front() {
            None => return self.lookups.pop_front().map(lookup),
            Some(request) => request,
        };
        match request {
            Request::KeepAlive => self.keeps_alive = false,
            Request::Remind => self.reminds = false,
            _ => {}
        }
        Some(request)
    }

    /// The next request, left where it is.
    pub fn peek_request(&self) -> Option<Request> {
        let lookup = |&pending: &u32| Request::Lookup { pending };
        let request = self.requests.front().copied();
        request.or_else(|| self.lookups.front().map(lookup))
    }

    /// Whether an answer waits.
    pub fn has_answers(&self) -> bool {
        !self.answers.is_empty() || !self.fenced.is_empty()
    }

    /// The next answer.
    pub fn next_answer(&mut self) -> Option<Answer> {
        let fenced = self.fenced.pop_front().map(Answer::Revoked);
        fenced.or_else(|| {
            let answer = self.answers.pop_front()?;
            self.replies -= usize::from(matches!(answer, Answer::LookupReply { .. }));
            Some(answer)
        })
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.peek_request().is_none() && !self.has_answers()
    }

    /// Drops all: the lane ends.
    pub fn clear(&mut self) {
        self.requests.clear();
        self.lookups.clear();
        self.keeps_alive = false;
        self.reminds = false;
        self.fenced.clear();
        self.answers.clear();
        self.replies = 0;
    }
}

/// Appends if there is room.
fn push<T>(queue: &mut VecDeque<T>, item: T) -> bool {
    let fits = queue.len() < queue.capacity();
    if fits {
        queue.push_back(item);
    }
    fits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r9_what_a_silent_peer_makes_wait_is_bounded() {
        let mut queue = ControlQueue::new(1, 2, 1);
        for _ in 0..100 {
            queue.ask(Request::KeepAlive);
        }
        for pending in 0..2 {
            assert!(queue.takes_lookup());
            queue.ask(Request::Lookup { pending });
        }
        assert!(!queue.takes_lookup());
        assert_eq!(queue.next_request(), Some(Request::KeepAlive));
        assert_eq!(queue.next_request(), Some(Request::Lookup { pending: 0 }));
        assert!(queue.takes_lookup());
        queue.ask(Request::KeepAlive);
        queue.clear();
        assert_eq!(queue.next_request(), None);
        queue.ask(Request::KeepAlive);
        assert_eq!(queue.next_request(), Some(Request::KeepAlive));
    }

    #[test]
    fn r5_answers_to_look_ups_take_no_room_from_other_answers_and_keep_their_order() {
        let mut queue = ControlQueue::new(1, 2, 1);
        let reply = |request| Answer::LookupReply {
            request,
            found: None,
        };
        assert!(queue.answer(reply(0)) && queue.answer(reply(1)) && !queue.answer(reply(2)));
        assert!(queue.answer(Answer::LaneCredit) && !queue.answer(Answer::LaneCredit));
        assert_eq!(queue.next_answer(), Some(reply(0)));
        assert!(!queue.answer(Answer::LaneCredit) && queue.answer(reply(3)));
        let rest: Vec<_> = core::iter::from_fn(|| queue.next_answer()).collect();
        assert_eq!(rest, [reply(1), Answer::LaneCredit, reply(3)]);
        assert!(queue.answer(reply(4)) && queue.answer(reply(5)));
        queue.clear();
        assert!(queue.answer(reply(6)));
    }
}
