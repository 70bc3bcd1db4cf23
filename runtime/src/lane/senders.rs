//! Senders that wait: contexts here whose messages a remote one was too full to take.
//!
//! Which remote ones refused a context is kept as a set of their slots modulo 64: two that share a bit cost a needless wake-up now and then, never a
//! lost one, and the table stays small whatever the peer's number of contexts.

use std::collections::VecDeque;

use crate::lane::Lane;
use crate::lane::remote::Senders;

/// The contexts of one lcore that wait on one lane.
#[derive(Debug)]
pub struct Refused {
    /// In the order of their refusals, each once.
    waiting: VecDeque<u16>,
    /// Per context: what refused it. Empty exactly if it does not wait.
    by: Box<[u64]>,
    /// The first of the remote slots with waiting senders that may have room.
    due: Option<u16>,
}

impl Refused {
    /// Room for `contexts`.
    pub fn new(contexts: usize) -> Self {
        Self {
            waiting: VecDeque::with_capacity(contexts),
            by: vec![0; contexts].into_boxed_slice(),
            due: None,
        }
    }

    /// Whether none has room to be told of.
    pub fn nobody_is_due(&self) -> bool {
        self.due.is_none()
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// The one that has waited longest, if `remote` refused it, waits no more. Any other, and also that one unless `wake`, goes to the back. Called
    /// for each of them in turn, it leaves their order as it was.
    pub fn look_at_next(&mut self, remote: u16, wake: bool) -> Look {
        let Some(context) = self.waiting.pop_front() else {
            return Look::Other;
        };
        let by = &mut self.by[context as usize];
        let refused = *by & bit(remote) != 0;
        if refused && wake {
            *by = 0;
            return Look::Woken(context);
        }
        self.waiting.push_back(context);
        if refused { Look::Waits } else { Look::Other }
    }

    fn add(&mut self, context: u16, remote: u16) {
        let by = &mut self.by[context as usize];
        if *by == 0 {
            self.waiting.push_back(context);
        }
        *by |= bit(remote);
    }
}

/// What [`Refused::look_at_next`] found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Look {
    /// A context that is to be told.
    Woken(u16),
    /// One that would be, and waits on.
    Waits,
    /// One that waits for something else.
    Other,
}

impl Lane {
    /// Notes that a context was refused for want of room at the remote one in slot `remote`.
    pub fn refuse(&mut self, context: u16, remote: u16) {
        self.link.refused.add(context, remote);
        let senders = &mut self.link.peer_contexts[remote as usize].senders;
        if *senders == Senders::None {
            *senders = Senders::Waiting;
        }
    }

    /// The remote context in slot `remote` may have room again, or is another one, or gone: those who wait for it are to be looked at.
    pub fn room_again(&mut self, remote: u16) {
        let senders = &mut self.link.peer_contexts[remote as usize].senders;
        if *senders == Senders::Waiting {
            *senders = Senders::Due(self.link.refused.due.replace(remote));
        }
    }

    /// Takes the list of those remote slots; [`Lane::next_due`] walks it.
    pub fn take_due(&mut self) -> Option<u16> {
        self.link.refused.due.take()
    }

    /// Takes a slot off the list that was taken, and gives the next.
    pub fn next_due(&mut self, remote: u16) -> Option<u16> {
        let senders = &mut self.link.peer_contexts[remote as usize].senders;
        match core::mem::replace(senders, Senders::Waiting) {
            Senders::Due(next) => next,
            Senders::None | Senders::Waiting => unreachable!("only what is due is on the list"),
        }
    }
}

fn bit(remote: u16) -> u64 {
    1 << (remote % 64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn woken(refused: &mut Refused, remote: u16, mut room: usize) -> Vec<u16> {
        let mut woken = Vec::new();
        for _ in 0..refused.len() {
            if let Look::Woken(context) = refused.look_at_next(remote, room > 0) {
                room -= 1;
                woken.push(context);
            }
        }
        woken
    }

    #[test]
    fn who_waits_for_another_is_left_alone_and_the_order_stays() {
        let mut refused = Refused::new(8);
        for (context, remote) in [(5, 1), (3, 2), (0, 1), (3, 1), (7, 1), (5, 1)] {
            refused.add(context, remote);
        }
        assert_eq!(woken(&mut refused, 4, 9), []);
        assert_eq!(woken(&mut refused, 1, 2), [5, 3]);
        assert_eq!(woken(&mut refused, 2, 9), [], "one wake-up is for all");
        refused.add(5, 1);
        assert_eq!(woken(&mut refused, 1, 9), [0, 7, 5]);
        assert_eq!(refused.len(), 0);
    }

    #[test]
    fn slots_that_share_a_bit_lose_no_wake_up() {
        let mut refused = Refused::new(2);
        refused.add(0, 1);
        refused.add(1, 65);
        assert_eq!(woken(&mut refused, 65, 1), [0]);
        assert_eq!(woken(&mut refused, 65, 1), [1]);
    }
}
