//! What a lane knows of one slot of the peer's contexts: who lives there, who here waits for it, and its credits.
//!
//! Who lives there is learnt from the peer's frames alone (R5): what an application here calls a name changes nothing for the others.

use crate::lane::credits::MessageCredits;

/// Who lives in a slot of the peer's contexts, as its frames have told. A later generation follows an earlier one, never the other way round.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Tenant {
    /// Nobody that a frame has named.
    #[default]
    Unknown,
    /// The context of this generation.
    Lives(u32),
    /// The context of this generation did, and is gone.
    Gone(u32),
}

/// What is known of one generation of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// It lives, as far as is known.
    Lives,
    /// It is gone: known to be, or followed by another.
    Gone,
    /// No frame has named it.
    Unknown,
}

/// One slot of the peer's contexts, on one lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RemoteSlot {
    tenant: Tenant,
    /// The generation that contexts here have met and whose end they were not told. Kept with the first of the lanes between two lcores.
    pub met: Option<u32>,
    /// Whether contexts here wait for room. Of the slot, whoever lives there.
    pub senders: Senders,
    /// The tenant's messages that we may have unconsumed.
    pub credits: MessageCredits,
}

/// Whether contexts here were refused for want of room at a remote one, and wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Senders {
    /// None.
    #[default]
    None,
    /// Some.
    Waiting,
    /// Some, and there may be room: it stands in the lane's list of those to look at, before this slot.
    Due(Option<u16>),
}

impl RemoteSlot {
    /// What is known of `generation`.
    pub fn standing(&self, generation: u32) -> Standing {
        let (known, lives) = match self.tenant {
            Tenant::Unknown => return Standing::Unknown,
            Tenant::Lives(known) => (known, true),
            Tenant::Gone(known) => (known, false),
        };
        match known.wrapping_sub(generation) as i32 {
            0 if lives => Standing::Lives,
            0.. => Standing::Gone,
            _ => Standing::Unknown,
        }
    }

    /// Whether the one that was named last is gone.
    pub fn is_vacant(&self) -> bool {
        matches!(self.tenant, Tenant::Gone(_))
    }

    /// A frame has named `generation`. Whether that is a new one; it has fresh credits then, `initial` of them.
    pub fn learn(&mut self, generation: u32, initial: u32) -> bool {
        let new = self.standing(generation) == Standing::Unknown;
        if new {
            self.tenant = Tenant::Lives(generation);
            self.credits = MessageCredits::new(initial);
        }
        new
    }

    /// Takes over who lives here from the same slot on a lane that was admitted before; the credits are this lane's own.
    pub fn take_over(&mut self, sister: &Self, initial: u32) {
        self.tenant = sister.tenant;
        self.credits = MessageCredits::new(initial);
    }

    /// A frame has told the end of `generation`. Whether that is news.
    pub fn end(&mut self, generation: u32, initial: u32) -> bool {
        self.learn(generation, initial);
        let news = self.standing(generation) == Standing::Lives;
        if news {
            self.tenant = Tenant::Gone(generation);
        }
        news
    }

    /// Takes the meeting with a context that is gone if `generation` is: that one, or one before it.
    pub fn part(&mut self, generation: u32) -> Option<u32> {
        let gone = |met: &mut u32| generation.wrapping_sub(*met) as i32 >= 0;
        self.met.take_if(gone)
    }

    /// The credits of `generation`, if they are that one's: a later one has its own.
    pub fn credits_of(&mut self, generation: u32) -> Option<&mut MessageCredits> {
        let (Tenant::Lives(known) | Tenant::Gone(known)) = self.tenant else {
            return None;
        };
        (known == generation).then_some(&mut self.credits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_generation_starts_afresh() {
        let mut slot = RemoteSlot::default();
        assert!(slot.learn(3, 1));
        slot.credits.reserve();
        assert!(!slot.learn(3, 1), "named again");
        assert_eq!(slot.credits.room(), 0);
        assert!(slot.learn(4, 1));
        assert_eq!(slot.credits.room(), 1);
        assert_eq!(
            slot.credits_of(3),
            None,
            "what the last one had is gone with it"
        );
    }

    #[test]
    fn r5_what_no_frame_has_named_is_unknown_and_not_gone() {
        let mut slot = RemoteSlot::default();
        assert_eq!(slot.standing(0), Standing::Unknown);
        assert_eq!(slot.standing(1), Standing::Unknown);
        slot.learn(3, 1);
        let standings = [2, 3, 4].map(|generation| slot.standing(generation));
        assert_eq!(
            standings,
            [Standing::Gone, Standing::Lives, Standing::Unknown]
        );
    }

    #[test]
    fn an_end_is_told_once_and_an_earlier_name_comes_never_back() {
        let mut slot = RemoteSlot::default();
        assert!(slot.end(3, 1), "of one that was never met");
        assert!(!slot.end(3, 1) && !slot.end(2, 1));
        assert!(!slot.learn(3, 1) && !slot.learn(2, 1));
        assert!(slot.is_vacant());
        assert_eq!(slot.standing(3), Standing::Gone);
        assert!(slot.learn(4, 1) && !slot.is_vacant());
        assert!(!slot.end(3, 1), "late, on another lane");
        assert_eq!(slot.standing(4), Standing::Lives);
    }
}
