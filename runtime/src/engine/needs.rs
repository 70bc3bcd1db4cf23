//! What an engine asks of its device, for programs that open a device of the right size.

use crate::engine::build::EngineBuilder;

/// What an engine uses of its device at most.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceNeeds {
    /// Paths.
    pub lcores: u16,
    /// Queue pairs, those of ended sessions that quarantined keys keep included.
    pub qps: u32,
    /// Windows of all queue pairs together.
    pub windows: u32,
    /// Regions: of grants where each has its own, twice as many since a value that is still known is held, and of the arena in each protection domain.
    pub regions: u32,
    /// Work requests of a queue pair, and receives.
    pub depth: u32,
    /// Completions of all queue pairs of one lcore.
    pub completions: u32,
}

impl EngineBuilder {
    /// What the engine will use of its device at most.
    ///
    /// ```
    /// let needs = keyfence::EngineBuilder::new("left", 2).peer("right", "local:right", 1).device_needs();
    /// assert_eq!((needs.lcores, needs.qps), (2, 4));
    /// ```
    #[must_use]
    pub fn device_needs(&self) -> DeviceNeeds {
        let limits = &self.limits;
        let slots = u32::from(self.slots_of_lcore());
        let lcores = self.engine.lcores.len();
        let qps = slots.saturating_mul(lcores as u32);
        DeviceNeeds {
            lcores: lcores as u16,
            qps,
            windows: qps.saturating_mul(limits.windows),
            regions: limits.grants.saturating_mul(2).saturating_add(1 + qps),
            depth: limits.send_depth.max(limits.receive_depth),
            completions: slots
                .saturating_mul(limits.send_depth.saturating_add(limits.receive_depth)),
        }
    }
}
