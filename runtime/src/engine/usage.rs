//! What one lcore has in use: what R7 says must balance.

use crate::engine::lcore::Lcore;
use crate::engine::zero::Zeroing;
use crate::reclaim::Counts;

/// Everything of one lcore that is counted, now. At rest all of it is of live contexts, parked or in quarantine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Usage {
    /// Context slots that are not free.
    pub contexts: u32,
    /// Grants that are not dead.
    pub grants: u32,
    /// Imports.
    pub imports: u32,
    /// Operations submitted and not ended.
    pub ops: u64,
    /// Their bytes.
    pub op_bytes: u64,
    /// Lane slots that are taken.
    pub lanes: u32,
    /// Windows of lanes in use that are not free.
    pub windows: u32,
    /// Keys by state.
    pub keys: Counts,
    /// Bytes of reclaimed contexts that are still to be zeroed; their buffers are in use until then, and nobody's.
    pub zeroing_bytes: u64,
}

impl<P> Lcore<P> {
    /// What is in use. Walks a table of lanes; called by the lcore's thread, between steps.
    #[must_use]
    pub fn usage(&self) -> Usage {
        let core = &self.core;
        let lanes = || core.lanes.iter().flatten();
        let taken = |lane: &crate::lane::Lane| lane.windows.len() - lane.free_windows.len();
        Usage {
            contexts: core.contexts.in_use() as u32,
            grants: core.grants.in_use(),
            imports: core.imports.in_use(),
            ops: core.ops_in_flight.used(),
            op_bytes: core.bytes_in_flight.used(),
            lanes: lanes().count() as u32,
            windows: lanes().map(|lane| taken(lane) as u32).sum(),
            keys: core.machine.counts(),
            zeroing_bytes: core.zeroing.as_ref().map_or(0, Zeroing::left_bytes),
        }
    }
}
