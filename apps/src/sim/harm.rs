//! What a run does to engines, beside what their adapters do, and how often.

/// A kind of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Harm {
    /// A context is killed.
    Kill,
    /// An engine is not stepped for a while.
    Stop,
    /// A process ends without a word, and another starts.
    Restart,
    /// An engine closes, takes leave of its peers, and another starts.
    Retire,
    /// A clock jumps forward.
    ClockJump,
    /// No control call is done for a while.
    HungCalls,
    /// A peer that is no engine says or does what none would.
    LyingPeer,
    /// It says again what was said before.
    ReplayedFrames,
}

impl Harm {
    pub const ALL: [Self; 8] = [
        Self::Kill,
        Self::Stop,
        Self::Restart,
        Self::Retire,
        Self::ClockJump,
        Self::HungCalls,
        Self::LyingPeer,
        Self::ReplayedFrames,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Stop => "stopped_engine",
            Self::Restart => "restarted_engine",
            Self::Retire => "retired_engine",
            Self::ClockJump => "clock_jump",
            Self::HungCalls => "hung_calls",
            Self::LyingPeer => "lying_peer",
            Self::ReplayedFrames => "replayed_frames",
        }
    }
}

/// How often each was done.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Harms([u64; Harm::ALL.len()]);

impl Harms {
    pub fn add(&mut self, harm: Harm) {
        self.0[harm as usize] += 1;
    }

    pub fn add_all(&mut self, other: Self) {
        for (count, more) in self.0.iter_mut().zip(other.0) {
            *count += more;
        }
    }

    pub fn count(&self, harm: Harm) -> u64 {
        self.0[harm as usize]
    }
}
