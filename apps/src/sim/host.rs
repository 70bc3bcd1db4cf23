//! An engine on the simulated network.

use keyfence::pmd::sim::SimDevice;
use keyfence::pmd::wrap::check::{Check, Ledger};
use keyfence::{Engine, Lcore, Usage};
use keyfence_mempool::sync::Arc;

use super::tap::Tap;

type Wired = Tap<Check<SimDevice>>;

/// One engine in its present life.
pub struct Host {
    pub engine: Engine<Wired>,
    pub lcores: Vec<Lcore<<Wired as keyfence::pmd::Device>::Path>>,
    pub ledger: Arc<Ledger>,
    /// Its adapter's number.
    pub adapter: u32,
    /// It is not stepped before.
    pub stopped_until_ns: u64,
    /// How far its clock is ahead.
    pub ahead_ns: u64,
    pub life: u32,
    /// While it takes leave of its peers: when another one starts, whether it has done so or not.
    pub closing_until_ns: Option<u64>,
}

impl Host {
    pub fn usage(&self) -> Vec<Usage> {
        self.lcores.iter().map(Lcore::usage).collect()
    }

    pub fn is_at_rest(&self) -> bool {
        let empty = |usage: &Usage| {
            usage.contexts == 0
                && usage.grants == 0
                && usage.imports == 0
                && usage.ops == 0
                && usage.zeroing_bytes == 0
                && usage.lanes == 0
        };
        self.engine.has_left() && self.usage().iter().all(empty)
    }
}
