//! What one lcore has in use: what R7 says must balance.

use crate::engine::lcore::Lcore;
use crate::engine::zero::Zeroing;
use crate::ids::LaneId;
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

/// The windows of one lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LaneUsage {
    /// Its place in the lcore's table.
    pub lane: LaneId,
    /// Windows that are not free.
    pub windows: u32,
    /// Those of them that were given to be deallocated. Each of the others has a key that is not dead.
    pub deallocated: u32,
}

impl<P> Lcore<P> {
    /// What is in use. Walks a table of lanes; called by the lcore's thread, between steps.
    #[must_use]
    pub fn usage(&self) -> Usage {
        let core = &self.core;
        Usage {
            contexts: core.contexts.in_use() as u32,
            grants: core.grants.in_use(),
            imports: core.imports.in_use(),
            ops: core.ops_in_flight.used(),
            op_bytes: core.bytes_in_flight.used(),
            lanes: self.lane_usage().count() as u32,
            windows: self.lane_usage().map(|lane| lane.windows).sum(),
            keys: core.machine.counts(),
            zeroing_bytes: core.zeroing.as_ref().map_or(0, Zeroing::left_bytes),
        }
    }

    /// What is in use of each lane, by its place in the table. Called as [`Lcore::usage`] is.
    pub fn lane_usage(&self) -> impl Iterator<Item = LaneUsage> + '_ {
        self.core.lane_ids().map(|id| {
            let lane = self.core.lane(id);
            LaneUsage {
                lane: id,
                windows: (lane.windows.len() - lane.free_windows.len()) as u32,
                deallocated: lane.windows.iter().filter(|it| it.deallocated).count() as u32,
            }
        })
    }
}
