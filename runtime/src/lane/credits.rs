//! Credits: room at the receiver, as absolute counters, so that a lost or repeated notice does no harm.
//!
//! A lane's credits count its peer's posted receives. They are given out in three classes, so that requests cannot use up what
//! answers need, and messages cannot use up what either needs: a reclaim never starves behind traffic.

/// Who asks for a receive at the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// An application's message.
    Message,
    /// A frame that asks for something: grant, revoke, look-up.
    Request,
    /// A frame that answers or gives back.
    Answer,
    /// The notice of receives posted again. It takes the last credit, which nothing else may: two sides that have spent all their credits on each
    /// other at the same time could tell each other of none.
    Notice,
}

/// The most that is kept back for each class above another one: receives, or send-queue slots.
const MAX_RESERVE: u32 = 8;

impl Class {
    /// How many of `depth` send slots this class leaves to the ones above it: a quarter for each, on a short queue.
    pub const fn leaves(self, depth: u32) -> u32 {
        let reserve = if depth / 4 < MAX_RESERVE {
            depth / 4
        } else {
            MAX_RESERVE
        };
        match self {
            Self::Message => 2 * reserve,
            Self::Request => reserve,
            Self::Answer | Self::Notice => 0,
        }
    }

    /// How many of `depth` receives at the peer this class leaves to the ones above it. On the shortest queue, requests and messages leave the same:
    /// requests are posted first.
    pub const fn leaves_receives(self, depth: u32) -> u32 {
        let leaves = self.leaves(depth);
        match self {
            Self::Message | Self::Request if leaves < 2 => 2,
            Self::Message | Self::Request => leaves,
            Self::Answer => 1,
            Self::Notice => 0,
        }
    }
}

/// The sending side: receives that the peer has posted, ever, against frames sent, ever. Both modulo 2^32.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SendCredits {
    sent: u32,
    limit: u32,
}

impl SendCredits {
    /// Before the peer's first word: the receives that the handshake promises.
    pub fn new(initial: u32) -> Self {
        Self {
            sent: 0,
            limit: initial,
        }
    }

    /// Behind both hellos, of which ours took the first of the peer's receives: `posted` is what the peer's says that it has posted, and
    /// `None` comes of nonsense.
    pub fn behind_hello(posted: u32, depth: u32) -> Option<Self> {
        let room = posted.checked_sub(1)?;
        (room <= depth).then_some(Self {
            sent: 1,
            limit: posted,
        })
    }

    /// Receives that are posted at the peer and not spoken for.
    pub fn room(&self) -> u32 {
        self.limit.wrapping_sub(self.sent)
    }

    /// Frames of `class` that may be sent to a peer that keeps `depth` receives posted.
    pub fn room_for(&self, class: Class, depth: u32) -> u32 {
        self.room().saturating_sub(class.leaves_receives(depth))
    }

    /// Whether one more of them may be sent.
    pub fn allows(&self, class: Class, depth: u32) -> bool {
        self.room_for(class, depth) > 0
    }

    /// Takes one receive at the peer.
    pub fn spend(&mut self) {
        assert!(
            self.room() > 0,
            "a frame is sent only into a posted receive"
        );
        self.sent = self.sent.wrapping_add(1);
    }

    /// Takes back a receive that was spent on a frame that never came.
    pub fn unspend(&mut self) {
        self.sent = self.sent.wrapping_sub(1);
    }

    /// Takes the peer's absolute count. One that goes back, or leaps by more than `most` receives, is refused.
    pub fn raise(&mut self, limit: u32, most: u32) -> bool {
        let grown = limit.wrapping_sub(self.limit);
        if grown > most {
            return limit.wrapping_sub(self.sent) <= most;
        }
        if limit.wrapping_sub(self.sent) > most {
            return false;
        }
        self.limit = limit;
        true
    }
}

/// The credits of one remote context on one lane: its messages that we may have unconsumed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MessageCredits {
    credits: SendCredits,
    /// Messages submitted for it and not posted: each has its credit, so none ever waits for this context at the head of a queue.
    reserved: u32,
}

impl MessageCredits {
    /// Fresh ones, as the handshake promised.
    pub fn new(initial: u32) -> Self {
        Self {
            credits: SendCredits::new(initial),
            reserved: 0,
        }
    }

    /// Messages that may still be submitted for it.
    pub fn room(&self) -> u32 {
        self.credits.room().saturating_sub(self.reserved)
    }

    /// Keeps the credit of a message that is submitted now. The caller has seen that there is room.
    pub fn reserve(&mut self) {
        assert!(self.room() > 0, "a message is taken only with its credit");
        self.reserved += 1;
    }

    /// Whether the credit that was kept for a message is there. It is, unless the peer has made generations come round.
    pub fn can_spend(&self) -> bool {
        self.credits.room() > 0
    }

    /// Counts a message that is posted, with the credit that was kept for it.
    pub fn spend(&mut self) {
        self.give_back();
        self.credits.spend();
    }

    /// Takes back the credit of a message that was posted and never came. To be kept for it again if `keep`.
    pub fn unspend(&mut self, keep: bool) {
        self.credits.unspend();
        self.reserved += u32::from(keep);
    }

    /// Gives back the credit of a message that is never posted.
    pub fn give_back(&mut self) {
        // Not an assertion: a peer that makes generations come round must not end us (R12).
        self.reserved = self.reserved.saturating_sub(1);
    }

    /// Takes the peer's absolute limit; false if it is nonsense.
    pub fn raise(&mut self, limit: u32, most: u32) -> bool {
        self.credits.raise(limit, most)
    }
}

/// The receiving side of one context on one lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReceiveWindow {
    /// Messages delivered, ever, modulo 2^32.
    pub received: u32,
    /// Messages given back, ever, modulo 2^32.
    pub consumed: u32,
    /// The limit that the peer was told last.
    pub announced: u32,
}

impl ReceiveWindow {
    /// A window of `messages`, as the handshake promised.
    pub fn new(messages: u32) -> Self {
        Self {
            received: 0,
            consumed: 0,
            announced: messages,
        }
    }

    /// Whether the sender kept to its limit with one more message.
    pub fn admits(&self) -> bool {
        self.announced.wrapping_sub(self.received) > 0
    }

    /// The limit to announce now, if it has grown by at least half of the window.
    pub fn due(&self, messages: u32) -> Option<u32> {
        let limit = self.consumed.wrapping_add(messages);
        (limit.wrapping_sub(self.announced) * 2 >= messages && limit != self.announced)
            .then_some(limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_keep_a_reserve_for_those_above() {
        for (depth, reserve) in [(8, 2), (32, 8), (256, 8)] {
            let mut credits = SendCredits::new(2 * reserve + 1);
            assert!(credits.allows(Class::Message, depth));
            credits.spend();
            assert!(!credits.allows(Class::Message, depth));
            assert!(credits.allows(Class::Request, depth));
            for _ in 0..reserve {
                credits.spend();
            }
            assert!(!credits.allows(Class::Request, depth));
            assert!(credits.allows(Class::Answer, depth));
        }
    }

    #[test]
    fn the_last_credit_is_for_the_notice_of_receives() {
        for depth in [4, 64] {
            let credits = SendCredits::new(1);
            assert!(!credits.allows(Class::Answer, depth));
            assert!(credits.allows(Class::Notice, depth));
        }
        let shortest = SendCredits::new(3);
        assert!(shortest.allows(Class::Message, 4) && shortest.allows(Class::Request, 4));
    }

    #[test]
    fn r12_a_hello_that_claims_no_receives_or_too_many_is_nonsense() {
        assert!(SendCredits::behind_hello(0, 8).is_none());
        assert_eq!(SendCredits::behind_hello(1, 8).map(|it| it.room()), Some(0));
        assert_eq!(SendCredits::behind_hello(9, 8).map(|it| it.room()), Some(8));
        assert!(SendCredits::behind_hello(10, 8).is_none());
    }

    #[test]
    fn a_limit_is_absolute_and_checked() {
        let mut credits = SendCredits::new(4);
        credits.spend();
        assert!(credits.raise(5, 4));
        assert!(credits.raise(5, 4), "a repeated notice is harmless");
        assert_eq!(credits.room(), 4);
        assert!(!credits.raise(100, 4), "a leap is nonsense");
        assert!(credits.raise(4, 4), "an old notice is ignored");
        assert_eq!(credits.room(), 4);
    }

    #[test]
    fn counters_survive_the_wrap() {
        let mut credits = SendCredits {
            sent: u32::MAX,
            limit: 0,
        };
        assert_eq!(credits.room(), 1);
        credits.spend();
        assert_eq!(credits.room(), 0);
        assert!(credits.raise(2, 8));
        assert_eq!(credits.room(), 2);
    }

    #[test]
    fn r7_a_kept_credit_is_spent_or_given_back() {
        let mut credits = MessageCredits::new(2);
        credits.reserve();
        credits.reserve();
        assert_eq!(credits.room(), 0);
        credits.give_back();
        assert_eq!(credits.room(), 1);
        credits.spend();
        assert_eq!(credits.room(), 1, "posted with the credit that it had");
        assert!(credits.raise(3, 2));
        assert_eq!(credits.room(), 2);
    }

    #[test]
    fn a_window_is_announced_by_halves() {
        let mut window = ReceiveWindow::new(4);
        for _ in 0..4 {
            assert!(window.admits());
            window.received += 1;
        }
        assert!(!window.admits());
        window.consumed = 1;
        assert_eq!(window.due(4), None);
        window.consumed = 2;
        assert_eq!(window.due(4), Some(6));
    }
}
