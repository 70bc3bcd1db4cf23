//! Names of keys that the holder has not acknowledged, sent again with the keep-alives (R8).
//!
//! Each frame has a number of its own in the place of an epoch, and keeps it when it is sent again. Its answer counts for the keys that it names and for no
//! other, and until then no other frame names them. So a frame names keys of many epochs, an answer costs what it names, and however many keys wait, few are
//! looked at for a frame.

use crate::grant::keys::KeyId;
use crate::ids::Epoch;
use crate::wire::MAX_REVOKE_GRANTS;

/// Frames that may be unanswered at a time. A holder that answers none of them is named no others.
const UNANSWERED: usize = 8;

/// Epochs never get there: by this bit a frame's number is told from one.
const MARK: u64 = 1 << 63;

/// One frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reminder {
    /// Its number.
    pub number: Epoch,
    keys: [KeyId; MAX_REVOKE_GRANTS],
    len: usize,
    /// Whether a keep-alive was said since it was sent.
    again: bool,
}

impl Reminder {
    /// The keys that it is about; it names their grants.
    pub fn keys(&self) -> &[KeyId] {
        &self.keys[..self.len]
    }
}

/// The reminders of one lane.
#[derive(Debug)]
pub struct Reminders {
    unanswered: Vec<Reminder>,
    sent: u64,
    /// Keys that are still to be looked at in this round.
    left: u32,
}

impl Reminders {
    /// None yet. All memory is allocated here.
    pub fn new() -> Self {
        Self {
            unanswered: Vec::with_capacity(UNANSWERED),
            sent: 0,
            left: 0,
        }
    }

    /// Forgets what is unanswered: the values that were named are gone with their queue pair.
    pub fn clear(&mut self) {
        self.unanswered.clear();
        self.left = 0;
    }

    /// Whether this number is a reminder's.
    pub fn are_meant(number: Epoch) -> bool {
        number.0 & MARK != 0
    }

    /// Begins a round with a keep-alive: what is unanswered is sent again, and of `keys` keys those that no frame names yet.
    pub fn begin(&mut self, keys: u32) {
        for reminder in &mut self.unanswered {
            reminder.again = true;
        }
        self.left = keys;
    }

    /// Whether a frame is to be sent now.
    pub fn are_due(&self) -> bool {
        let again = self.unanswered.iter().any(|reminder| reminder.again);
        again || (self.left > 0 && self.unanswered.len() < UNANSWERED)
    }

    /// A frame that is to be sent again.
    pub fn next_again(&mut self) -> Option<Reminder> {
        let mut unanswered = self.unanswered.iter_mut();
        let next = unanswered.find(|reminder| reminder.again)?;
        next.again = false;
        Some(*next)
    }

    /// Counts one more key as looked at; false if the round is over.
    pub fn look(&mut self) -> bool {
        let looks = self.left > 0;
        self.left = self.left.saturating_sub(1);
        looks
    }

    /// Notes a frame about `keys`, and numbers it.
    pub fn note(&mut self, keys: &[KeyId]) -> Epoch {
        assert!(
            self.unanswered.len() < UNANSWERED,
            "a frame is sent only if it is due"
        );
        self.sent += 1;
        let number = Epoch(MARK | self.sent);
        let mut reminder = Reminder {
            number,
            keys: [KeyId {
                slot: 0,
                generation: 0,
            }; MAX_REVOKE_GRANTS],
            len: keys.len(),
            again: false,
        };
        reminder.keys[..keys.len()].copy_from_slice(keys);
        self.unanswered.push(reminder);
        number
    }

    /// A frame is over, by its answer or since nothing that it names is left. `None` if it was before, or never sent.
    pub fn end(&mut self, number: Epoch) -> Option<Reminder> {
        let known = |reminder: &Reminder| reminder.number == number;
        let at = self.unanswered.iter().position(known)?;
        Some(self.unanswered.swap_remove(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: KeyId = KeyId {
        slot: 3,
        generation: 2,
    };

    #[test]
    fn r8_an_answer_counts_once_and_for_its_own_frame() {
        let mut reminders = Reminders::new();
        reminders.begin(5);
        let first = reminders.note(&[KEY]);
        let second = reminders.note(&[]);
        assert!(Reminders::are_meant(first) && !Reminders::are_meant(Epoch(1)));
        assert_eq!(reminders.end(second).unwrap().keys(), []);
        assert_eq!(reminders.end(first).unwrap().keys(), [KEY]);
        assert!(reminders.end(first).is_none());
    }

    #[test]
    fn what_is_unanswered_is_sent_again_under_its_number_and_bounds_the_rest() {
        let mut reminders = Reminders::new();
        assert!(!reminders.are_due() && !reminders.look());
        reminders.begin(2);
        let first = reminders.note(&[KEY]);
        for _ in 1..UNANSWERED {
            assert!(reminders.are_due() && reminders.next_again().is_none());
            reminders.note(&[KEY]);
        }
        assert!(!reminders.are_due());
        reminders.begin(2);
        assert!(reminders.are_due());
        let again: Vec<_> = core::iter::from_fn(|| reminders.next_again()).collect();
        assert_eq!(again.len(), UNANSWERED);
        assert_eq!((again[0].number, again[0].keys()), (first, &[KEY][..]));
        assert!(!reminders.are_due());
        assert!(reminders.end(first).is_some() && reminders.are_due());
        assert!(reminders.look() && reminders.look() && !reminders.look());
        assert!(!reminders.are_due());
    }
}
