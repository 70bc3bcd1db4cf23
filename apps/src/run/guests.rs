//! The third engine, if the file has one: stopped and resumed, gone and started anew, while contexts of the other two deal with its own. Whatever becomes of those, what the oracles
//! say of memory holds for them too.

use std::collections::{BTreeMap, BTreeSet};

use keyfence::EngineEvent;
use keyfence::config::Config;
use keyfence::ids::{ContextId, PeerId};
use keyfence::pmd::Device;

use super::scene::{Scene, THIRD};

/// Contexts that deal with it, on each side of each of the two others.
pub const GUESTS: u32 = 4;

/// What is done to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Trouble {
    Stop,
    Restart,
}

/// Where it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// Its sessions stand.
    Up,
    /// It does nothing until then.
    Stopped { until_ns: u64 },
    /// Its sessions are lost, or will be, and come again. How many losses are to be told yet.
    Returning { losses: usize },
}

/// The schedule, and what came of it.
#[derive(Debug)]
pub struct Guests {
    /// Due at these times, the next one last.
    due: Vec<(u64, Trouble)>,
    stop_ns: u64,
    phase: Phase,
    /// Sessions that stand: the engine that says so, and its peer.
    standing: BTreeSet<(usize, PeerId)>,
    /// Contexts, by their engines.
    open: BTreeMap<(usize, u64), String>,
    /// What became of them.
    pub fate: Fate,
}

/// What became of the third engine and of those that deal with it.
#[derive(Clone, Debug, Default)]
pub struct Fate {
    /// Times that it was stopped and resumed.
    pub stops: u64,
    /// Times that it was gone and came back.
    pub restarts: u64,
    /// Sessions that were lost, at each engine that was there to see it.
    pub down: u64,
    /// What went wrong.
    pub errors: Vec<String>,
}

/// Sessions, seen from both ends: the third engine has one with each of the two others.
const SESSIONS: usize = 4;

impl Guests {
    /// Nothing is done to it yet.
    pub fn new(config: &Config) -> Self {
        Self {
            due: Vec::new(),
            // Silent for as long, it is lost.
            stop_ns: config.timeouts.reconnect_timeout_ns * 3 / 2,
            phase: Phase::Up,
            standing: BTreeSet::new(),
            open: BTreeMap::new(),
            fate: Fate::default(),
        }
    }

    /// Spreads stops and restarts, in turn, over a time.
    pub fn plan(&mut self, mut stops: u32, mut restarts: u32, from_ns: u64, len_ns: u64) {
        let count = u64::from(stops + restarts);
        for at in 0..count {
            let trouble = match at % 2 == 0 && stops > 0 || restarts == 0 {
                true => Trouble::Stop,
                false => Trouble::Restart,
            };
            match trouble {
                Trouble::Stop => stops -= 1,
                Trouble::Restart => restarts -= 1,
            }
            self.due.push((from_ns + len_ns * at / count, trouble));
        }
        self.due.reverse();
    }

    /// Does what is due, one trouble at a time.
    pub fn turn<D: Device>(&mut self, scene: &mut Scene<D>, now_ns: u64) {
        match self.phase {
            Phase::Up => {
                let due = self.due.pop_if(|(at_ns, _)| *at_ns <= now_ns);
                match due {
                    Some((_, Trouble::Stop)) => self.stop(scene, now_ns),
                    Some((_, Trouble::Restart)) => self.restart(scene),
                    None => {}
                }
            }
            Phase::Stopped { until_ns } if until_ns <= now_ns => {
                scene.third().resume();
                let losses = self.standing.len();
                self.fate.stops += 1;
                self.phase = Phase::Returning { losses };
            }
            Phase::Stopped { .. } | Phase::Returning { .. } => {}
        }
    }

    /// Goes on with what was begun. Whether all is well again.
    pub fn wind_down<D: Device>(&mut self, scene: &mut Scene<D>, now_ns: u64) -> bool {
        self.due.clear();
        self.turn(scene, now_ns);
        self.phase == Phase::Up
    }

    /// The run ends: it is to answer.
    pub fn interrupt<D: Device>(&mut self, scene: &mut Scene<D>) {
        self.due.clear();
        scene.third().resume();
    }

    /// Whether all that was planned is done.
    pub fn is_done(&self) -> bool {
        self.due.is_empty() && self.phase == Phase::Up
    }

    fn stop<D: Device>(&mut self, scene: &mut Scene<D>, now_ns: u64) {
        scene.third().stop();
        let until_ns = now_ns + self.stop_ns;
        self.phase = Phase::Stopped { until_ns };
    }

    fn restart<D: Device>(&mut self, scene: &mut Scene<D>) {
        // What it knew is gone with it; the others have to notice.
        self.standing.retain(|(engine, _)| *engine != THIRD);
        self.open.retain(|(engine, _), _| *engine != THIRD);
        if let Err(error) = scene.restart_third() {
            let text = format!("the third engine did not start anew: {error:#}");
            self.fate.errors.push(text);
        }
        self.fate.restarts += 1;
        let losses = self.standing.len();
        self.phase = Phase::Returning { losses };
    }

    /// Something happened to a session with the third engine, or to a context that deals with it.
    pub fn event(&mut self, engine: usize, event: &EngineEvent) {
        match event {
            EngineEvent::PeerUp(peer) => {
                self.standing.insert((engine, *peer));
                self.look();
            }
            EngineEvent::PeerDown(peer) => {
                self.standing.remove(&(engine, *peer));
                self.fate.down += 1;
                match &mut self.phase {
                    Phase::Up => {
                        let text = format!(
                            "engine {engine} lost the third engine, to which nothing was done"
                        );
                        self.fate.errors.push(text);
                    }
                    // Counted when it is resumed.
                    Phase::Stopped { .. } => {}
                    Phase::Returning { losses } => *losses = losses.saturating_sub(1),
                }
                self.look();
            }
            EngineEvent::Opened { context, name } => {
                self.open.insert((engine, context.to_bits()), name.clone());
            }
            EngineEvent::Reclaimed { context, .. } | EngineEvent::Quarantined { context, .. } => {
                if let Some(name) = self.open.remove(&(engine, context.to_bits())) {
                    let text = format!(
                        "context {name} of engine {engine} ended, and nobody had asked for it"
                    );
                    self.fate.errors.push(text);
                }
            }
            _ => {}
        }
    }

    /// Whether a context deals with the third engine.
    pub fn has(&self, engine: usize, context: ContextId) -> bool {
        self.open.contains_key(&(engine, context.to_bits()))
    }

    fn look(&mut self) {
        if self.phase == (Phase::Returning { losses: 0 }) && self.standing.len() == SESSIONS {
            self.phase = Phase::Up;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guests() -> Guests {
        Guests {
            due: Vec::new(),
            stop_ns: 10,
            phase: Phase::Up,
            standing: BTreeSet::new(),
            open: BTreeMap::new(),
            fate: Fate::default(),
        }
    }

    #[test]
    fn stops_and_restarts_come_in_turn_over_the_time() {
        let mut guests = guests();
        guests.plan(1, 3, 100, 400);
        guests.due.reverse();
        let (stop, restart) = (Trouble::Stop, Trouble::Restart);
        assert_eq!(
            guests.due,
            [(100, stop), (200, restart), (300, restart), (400, restart)]
        );
    }

    #[test]
    fn a_loss_is_right_only_behind_a_trouble_and_each_end_has_to_tell_it() {
        let mut guests = guests();
        let sessions = [(0, 1), (1, 1), (2, 0), (2, 1)];
        let up = |guests: &mut Guests, (engine, peer)| {
            guests.event(engine, &EngineEvent::PeerUp(PeerId(peer)));
        };
        let down = |guests: &mut Guests, (engine, peer)| {
            guests.event(engine, &EngineEvent::PeerDown(PeerId(peer)));
        };
        for session in sessions {
            up(&mut guests, session);
        }
        guests.phase = Phase::Returning { losses: 4 };
        for session in &sessions[1..] {
            down(&mut guests, *session);
            up(&mut guests, *session);
        }
        assert_eq!(guests.phase, Phase::Returning { losses: 1 });
        down(&mut guests, sessions[0]);
        assert_eq!(guests.phase, Phase::Returning { losses: 0 });
        up(&mut guests, sessions[0]);
        assert_eq!((guests.phase, guests.fate.down), (Phase::Up, 4));
        assert!(guests.fate.errors.is_empty());
        down(&mut guests, sessions[0]);
        assert_eq!(guests.fate.errors.len(), 1, "nothing was done to it");
    }
}
