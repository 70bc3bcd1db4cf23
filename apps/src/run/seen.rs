//! What the driver has seen of a run.

use keyfence::EngineEvent;
use keyfence::latency::LatencyHistogram;

use super::breaks::Repairs;
use super::guests::Fate;

/// What the driver has seen.
#[derive(Debug, Default)]
pub struct Seen {
    /// Whether a signal ended the run.
    pub interrupted: bool,
    /// Time of traffic.
    pub traffic_ns: u64,
    /// Contexts that ended as `Reclaimed` while the load ran.
    pub reclaimed: u64,
    /// Those that were killed with operations in flight.
    pub with_ops_in_flight: u64,
    /// From each cordon to its `Reclaimed`.
    pub reclaim_ns: LatencyHistogram,
    /// Contexts that ended in quarantine.
    pub quarantined: u64,
    /// Sessions between the two engines under load that ended while it ran.
    pub peers_down: u64,
    /// What went wrong, for stderr and the report.
    pub errors: Vec<String>,
    /// Contexts that ended though nobody killed them.
    pub unasked: u64,
    /// Contexts that panicked since they were told to.
    pub panicked: u64,
    /// Clients that hung, and were reclaimed.
    pub hung: u64,
    /// What became of the third engine.
    pub third: Fate,
    /// Lanes that were broken, and their repairs.
    pub repairs: Repairs,
    /// Whether the sessions of both sides stood.
    pub connected: bool,
    /// Workers whose operations had not all completed at the drain's end.
    pub undrained: u64,
}

impl Seen {
    /// Notes what is wrong whenever it happens, also while everything is being closed.
    pub fn note(&mut self, side: usize, event: &EngineEvent) {
        let text = match event {
            EngineEvent::Quarantined {
                context,
                keys,
                bytes,
                why,
                ..
            } => {
                self.quarantined += 1;
                format!("context {context} in quarantine: {keys} keys, {bytes} bytes, {why:?}")
            }
            EngineEvent::ServicePanicked { context } => {
                format!("the worker of context {context} panicked")
            }
            EngineEvent::LcoreDied(lcore) => format!("lcore {lcore} died"),
            _ => return,
        };
        self.errors.push(format!("side {side}: {text}"));
    }
}
