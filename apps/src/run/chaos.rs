//! Who is killed, and who is to revoke: at the rates of `[load]`, each victim busy when it happens.

use keyfence::ids::ContextId;

use super::board::{BUSY, Board, DOOMED, PANIC, READY, REVOKE};
use crate::random::Random;

/// How long a victim may take to become busy before it is killed as it is.
const PATIENCE_NS: u64 = 20_000_000;

/// How a context is made to end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum How {
    /// By the operator.
    Kill,
    /// Its service panics.
    Panic,
}

/// A worker that is to end.
#[derive(Clone, Copy, Debug)]
struct Victim {
    side: usize,
    index: usize,
    how: How,
    deadline_ns: u64,
}

/// The schedule, and where it stands.
#[derive(Debug)]
pub struct Chaos {
    random: Random,
    kills: Timer,
    panics: Timer,
    revokes: Timer,
    victims: Vec<Victim>,
}

/// Something that is due at a rate.
#[derive(Debug)]
pub struct Timer {
    interval_ns: u64,
    next_ns: u64,
}

/// What may be missed and still made up for.
const BACKLOG: u64 = 8;

impl Timer {
    /// Due first when its interval has passed; never at a rate of 0.
    pub fn new(rate_per_s: f64, now_ns: u64) -> Self {
        let interval_ns = if rate_per_s > 0.0 {
            (1e9 / rate_per_s) as u64
        } else {
            u64::MAX
        };
        Self {
            interval_ns,
            next_ns: now_ns.saturating_add(interval_ns),
        }
    }

    /// Whether it is due; if so, it is so again an interval later.
    pub fn is_due(&mut self, now_ns: u64) -> bool {
        if now_ns < self.next_ns {
            return false;
        }
        let oldest = now_ns.saturating_sub(self.interval_ns.saturating_mul(BACKLOG));
        self.next_ns = self.next_ns.max(oldest).saturating_add(self.interval_ns);
        true
    }
}

impl Chaos {
    /// Begins at `now_ns`.
    pub fn new(board: &Board, now_ns: u64) -> Self {
        let load = &board.load;
        Self {
            random: Random::new(load.seed, u64::MAX),
            kills: Timer::new(load.kills_per_s, now_ns),
            panics: Timer::new(load.troubles.panics_per_s, now_ns),
            revokes: Timer::new(load.revokes_per_s, now_ns),
            victims: Vec::new(),
        }
    }

    /// Revokes alone, at this rate.
    pub fn of_revokes(board: &Board, now_ns: u64, rate_per_s: f64) -> Self {
        Self {
            kills: Timer::new(0.0, now_ns),
            panics: Timer::new(0.0, now_ns),
            revokes: Timer::new(rate_per_s, now_ns),
            ..Self::new(board, now_ns)
        }
    }

    /// Dooms and asks who is due, and gives the contexts to end now. `live` says which context worker `index` of a side is.
    pub fn due(
        &mut self,
        board: &Board,
        now_ns: u64,
        live: impl Fn(usize, usize) -> Option<ContextId>,
    ) -> Vec<(usize, ContextId, How)> {
        if self.kills.is_due(now_ns) {
            self.doom(board, now_ns, How::Kill);
        }
        if self.panics.is_due(now_ns) {
            self.doom(board, now_ns, How::Panic);
        }
        if self.revokes.is_due(now_ns) {
            let (side, index) = self.choose(board);
            board.sides[side].members[index].set(REVOKE);
        }
        let mut ends = Vec::new();
        self.victims.retain(|victim| {
            let busy = board.sides[victim.side].members[victim.index].has(BUSY);
            if !busy && now_ns < victim.deadline_ns {
                return true;
            }
            let context = live(victim.side, victim.index);
            if context.is_some() && victim.how == How::Panic {
                board.sides[victim.side].members[victim.index].set(PANIC);
            }
            ends.extend(context.map(|context| (victim.side, context, victim.how)));
            false
        });
        ends
    }

    fn choose(&mut self, board: &Board) -> (usize, usize) {
        let side = self.random.below(2);
        let spared = board.load.bystanders as usize;
        let victims = board.sides[side].members.len() - spared;
        (side, spared + self.random.below(victims))
    }

    fn doom(&mut self, board: &Board, now_ns: u64, how: How) {
        const TRIES: usize = 16;
        for _ in 0..TRIES {
            let (side, index) = self.choose(board);
            let pair = [side, 1 - side].map(|side| &board.sides[side].members[index]);
            // A pair loses one at a time, so that there is traffic to lose.
            if pair
                .iter()
                .any(|member| member.has(DOOMED) || !member.has(READY))
            {
                continue;
            }
            // It may have been busy once before, at a revoke.
            pair[0].clear(BUSY);
            pair[0].set(DOOMED);
            self.victims.push(Victim {
                side,
                index,
                how,
                deadline_ns: now_ns + PATIENCE_NS,
            });
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timer_keeps_its_rate_and_makes_up_for_little() {
        let mut timer = Timer::new(1e6, 0);
        let due = (0..=10_000).filter(|now_ns| timer.is_due(*now_ns)).count();
        assert_eq!(due, 10);
        let late = (0..100).filter(|_| timer.is_due(1_000_000)).count();
        assert_eq!(late, BACKLOG as usize + 1);
        assert!(!Timer::new(0.0, 0).is_due(u64::MAX - 1));
    }
}
