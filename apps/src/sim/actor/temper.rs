//! What a context is inclined to.

use crate::random::Random;

/// How often a context does what, by weight.
#[derive(Clone, Debug)]
pub struct Temper {
    pub grant: usize,
    pub revoke: usize,
    pub write: usize,
    pub read: usize,
    pub add: usize,
    pub immediate: usize,
    pub send: usize,
    pub flush: usize,
    pub close: usize,
    pub idle: usize,
    /// It never gives messages and buffers back before it must.
    pub hoards: bool,
    /// What it has outlives it for a while, in others' hands.
    pub lends: bool,
    pub panic_per_million: u32,
    pub deafness_per_million: u32,
}
impl Temper {
    pub fn draw(dice: &mut Random) -> Self {
        let mut weight = |most: usize| {
            if dice.once_in(4) {
                0
            } else {
                1 + dice.below(most)
            }
        };
        Self {
            grant: weight(12),
            revoke: weight(8),
            write: weight(20),
            read: weight(10),
            add: weight(6),
            immediate: weight(6),
            send: weight(12),
            flush: weight(2),
            close: usize::from(dice.once_in(6)),
            idle: 2 + dice.below(30),
            hoards: dice.once_in(5),
            lends: dice.once_in(8),
            panic_per_million: 0,
            deafness_per_million: 0,
        }
    }

    /// What the next roll of the dice means.
    pub fn choose(&self, dice: &mut Random) -> Act {
        let weights = [
            (Act::Grant, self.grant),
            (Act::Revoke, self.revoke),
            (Act::Write, self.write),
            (Act::Read, self.read),
            (Act::Add, self.add),
            (Act::Immediate, self.immediate),
            (Act::Send, self.send),
            (Act::Flush, self.flush),
            (Act::Close, self.close),
            (Act::LookUp, 2),
            (Act::GiveBack, if self.hoards { 0 } else { 4 }),
            (Act::Nothing, self.idle),
        ];
        let sum = weights.iter().map(|(_, weight)| weight).sum();
        let mut roll = dice.below(sum);
        for (act, weight) in weights {
            if roll < weight {
                return act;
            }
            roll -= weight;
        }
        Act::Nothing
    }
}

#[derive(Clone, Copy, Debug)]
pub enum Act {
    Grant,
    Revoke,
    Write,
    Read,
    Add,
    Immediate,
    Send,
    Flush,
    Close,
    LookUp,
    GiveBack,
    Nothing,
}
