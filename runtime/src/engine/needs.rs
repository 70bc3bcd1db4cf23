//! What an engine asks of its device, for programs that open a device of the right size.

use crate::config::KeyMode;
use crate::engine::build::EngineBuilder;

/// What an engine uses of its device at most.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceNeeds {
    /// Paths.
    pub lcores: u16,
    /// Queue pairs, those of ended sessions that quarantined keys keep included, and those that a lane had before its repairs.
    pub qps: u32,
    /// Windows of all queue pairs together; none in key mode `region`.
    pub windows: u32,
    /// Regions: the arena's; in key mode `region` one of it for each session, and two for each key, since a value that is still known is held.
    pub regions: u32,
    /// Work requests of a queue pair, and receives.
    pub depth: u32,
    /// Completions of all queue pairs of one lcore.
    pub completions: u32,
}

impl EngineBuilder {
    /// What the engine will use of its device at most, in the key mode that it was told.
    ///
    /// ```
    /// let needs = keyfence::EngineBuilder::new("left", 2).peer("right", "local:right", 1).device_needs();
    /// assert_eq!((needs.lcores, needs.qps), (2, 8));
    /// ```
    #[must_use]
    pub fn device_needs(&self) -> DeviceNeeds {
        let limits = &self.limits;
        let slots = u32::from(self.slots_of_lcore());
        let lcores = self.engine.lcores.len();
        let qps = slots.saturating_mul(lcores as u32);
        let (windows, regions) = match self.key_mode {
            KeyMode::Window => (qps.saturating_mul(limits.windows), 1),
            KeyMode::Region => (0, limits.keys().saturating_mul(2).saturating_add(1 + qps)),
        };
        DeviceNeeds {
            lcores: lcores as u16,
            qps,
            windows,
            regions,
            depth: limits.send_depth.max(limits.receive_depth),
            completions: slots
                .saturating_mul(limits.send_depth.saturating_add(limits.receive_depth)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Drivers have a most of each: an engine must not be refused for what it never uses.
    #[test]
    fn nothing_is_asked_for_that_the_key_mode_has_no_use_for() {
        let needs = |key_mode| {
            let builder = EngineBuilder::new("left", 1).peer("right", "local:right", 1);
            builder.key_mode(key_mode).device_needs()
        };
        let (windows, regions) = (needs(KeyMode::Window), needs(KeyMode::Region));
        let limits = crate::limits::Limits::default();
        assert_eq!(windows.windows, windows.qps * limits.windows);
        assert_eq!(windows.regions, 1, "the arena");
        assert_eq!(regions.windows, 0);
        assert!(regions.regions > 2 * limits.keys());
        assert_eq!(windows.qps, regions.qps);
    }
}
