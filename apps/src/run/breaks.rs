//! Lanes that are broken on purpose, one at a time, and their repairs.

use keyfence::latency::LatencyHistogram;
use keyfence_mempool::sync::Arc;

use super::board::Board;
use super::chaos::Timer;
use super::harm::{Strike, Wishes};
use crate::random::Random;

/// How long a wish may wait for a post that fits.
const PATIENCE_NS: u64 = 500_000_000;

/// What became of the breaks.
#[derive(Debug, Default)]
pub struct Repairs {
    /// Lanes that were broken on purpose and repaired at both ends.
    pub count: u64,
    /// From each break to the repair's end at the later end.
    pub took_ns: LatencyHistogram,
    /// Repairs of lanes that nobody had broken, or twice of one.
    pub unasked: u64,
}

/// Where the present break is.
#[derive(Debug)]
enum Phase {
    /// There is none.
    Idle,
    /// It is wished of a side.
    Asked { side: usize, until_ns: u64 },
    /// The lane is broken. Which sides have repaired it.
    Broken { told: [bool; 2] },
}

/// The schedule, and where it stands.
#[derive(Debug)]
pub struct Breaks {
    wishes: Arc<Wishes>,
    random: Random,
    errors: Timer,
    dead_keys: Timer,
    phase: Phase,
    repairs: Repairs,
}

impl Breaks {
    /// Those of the load, from `from_ns` on.
    pub fn of(board: &Board, from_ns: u64) -> Self {
        let troubles = &board.load.troubles;
        let rates_per_s = [troubles.lane_breaks_per_s, troubles.dead_keys_per_s];
        Self::new(
            Arc::clone(&board.wishes),
            board.load.seed,
            from_ns,
            rates_per_s,
        )
    }

    /// From `from_ns` on, with breaks and dead keys a second.
    pub fn new(wishes: Arc<Wishes>, seed: u64, from_ns: u64, rates_per_s: [f64; 2]) -> Self {
        let [errors, dead_keys] = rates_per_s.map(|rate| Timer::new(rate, from_ns));
        Self {
            wishes,
            random: Random::new(seed, u64::MAX - 1),
            errors,
            dead_keys,
            phase: Phase::Idle,
            repairs: Repairs::default(),
        }
    }

    /// Does what is due.
    pub fn turn(&mut self, now_ns: u64) {
        self.look();
        match self.phase {
            Phase::Idle => {
                // One is asked alone: what is due beside it stays so.
                let strike = if self.dead_keys.is_due(now_ns) {
                    Strike::DeadKey
                } else if self.errors.is_due(now_ns) {
                    Strike::Error
                } else {
                    return;
                };
                let side = self.random.below(2);
                self.wishes.ask(side, strike);
                let until_ns = now_ns + PATIENCE_NS;
                self.phase = Phase::Asked { side, until_ns };
            }
            Phase::Asked { side, until_ns } if until_ns <= now_ns => {
                if self.wishes.withdraw(side) {
                    self.phase = Phase::Idle;
                }
            }
            Phase::Asked { .. } | Phase::Broken { .. } => {}
        }
    }

    /// No more are to come. Whether none is open.
    pub fn wind_down(&mut self) -> bool {
        self.look();
        if let Phase::Asked { side, .. } = self.phase
            && self.wishes.withdraw(side)
        {
            self.phase = Phase::Idle;
        }
        matches!(self.phase, Phase::Idle)
    }

    /// A side says that a lane is repaired.
    pub fn repaired(&mut self, side: usize, now_ns: u64) {
        self.look();
        let Phase::Broken { told } = &mut self.phase else {
            self.repairs.unasked += 1;
            return;
        };
        if core::mem::replace(&mut told[side], true) {
            self.repairs.unasked += 1;
        }
        if *told == [true; 2] {
            self.repairs.count += 1;
            let took_ns = now_ns.saturating_sub(self.wishes.struck_ns());
            self.repairs.took_ns.record(took_ns);
            self.over();
        }
    }

    /// The session of the lane is lost: nothing of it is repaired.
    pub fn lost(&mut self) {
        self.look();
        if matches!(self.phase, Phase::Broken { .. }) {
            self.over();
        }
    }

    /// What became of them.
    pub fn repairs(&self) -> &Repairs {
        &self.repairs
    }

    /// What has become of them.
    pub fn end(self) -> Repairs {
        self.repairs
    }

    /// Whether the device has struck meanwhile.
    fn look(&mut self) {
        if matches!(self.phase, Phase::Asked { .. }) && self.wishes.is_broken() {
            let told = [false; 2];
            self.phase = Phase::Broken { told };
        }
    }

    fn over(&mut self) {
        self.wishes.repaired();
        self.phase = Phase::Idle;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::Clock;

    fn breaks(rates_per_s: [f64; 2]) -> (Breaks, Arc<Wishes>) {
        let wishes = Arc::new(Wishes::new(Clock::new()));
        let breaks = Breaks::new(Arc::clone(&wishes), 1, 0, rates_per_s);
        (breaks, wishes)
    }

    #[test]
    fn r5_a_repair_is_counted_when_both_ends_have_told_it() {
        let (mut breaks, wishes) = breaks([1e9, 0.0]);
        breaks.turn(10);
        let struck = [0, 1].map(|side| wishes.strike(side));
        assert!(struck[0] != struck[1], "one side was asked");
        assert!(wishes.is_broken());
        breaks.repaired(0, 100);
        assert!(wishes.is_broken() && breaks.repairs().count == 0);
        breaks.repaired(1, 200);
        assert!(!wishes.is_broken() && breaks.repairs().count == 1);
        assert_eq!(breaks.repairs().took_ns.count(), 1);
    }

    #[test]
    fn r5_a_repair_that_nobody_asked_for_is_seen() {
        let (mut breaks, wishes) = breaks([1e9, 0.0]);
        breaks.repaired(0, 1);
        assert_eq!(breaks.repairs().unasked, 1);
        breaks.turn(10);
        let _ = [0, 1].map(|side| wishes.strike(side));
        breaks.repaired(1, 20);
        breaks.repaired(1, 30);
        assert_eq!(breaks.repairs().unasked, 2);
        breaks.repaired(0, 40);
        assert_eq!((breaks.repairs().count, breaks.repairs().unasked), (1, 2));
    }

    #[test]
    fn a_wish_that_finds_no_chance_is_taken_back() {
        let (mut breaks, wishes) = breaks([0.0, 1e9]);
        breaks.turn(10);
        assert!(!breaks.wind_down() || !wishes.is_broken());
        assert!(breaks.wind_down());
        let struck = [0, 1].map(|side| wishes.strike(side));
        assert_eq!(struck, [false; 2]);
        breaks.turn(20);
        breaks.turn(20 + PATIENCE_NS);
        assert!(matches!(breaks.phase, Phase::Idle));
    }
}
