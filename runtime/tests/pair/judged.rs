//! Pairs on devices that misbehave by a plan, under an oracle that sees what the engines see.

use keyfence::EngineBuilder;
use keyfence::config::Timeouts;
use keyfence::limits::Limits;
use keyfence::pmd::soft::{Fabric, SoftConfig, SoftDevice};
use keyfence::pmd::wrap::check::{Check, Ledger, Party};
use keyfence::pmd::wrap::fault::{Fault, Plan};
use keyfence_mempool::sync::Arc;

use super::switched::{Switched, Switches};
use super::{Pair, builder, small_limits};

/// The plan below the oracle: a swallowed completion is one that the oracle has not seen either, so it proves nothing to it.
pub type Judged = Check<Switched<Fault<SoftDevice>>>;

/// A microsecond and a millisecond of virtual time.
pub const US: u64 = 1_000;
pub const MS: u64 = 1_000 * US;

/// Timeouts short enough that each of them can pass within a test.
pub fn short_timeouts() -> Timeouts {
    Timeouts {
        fence_timeout_ns: MS,
        invalidate_timeout_ns: MS,
        drain_timeout_ns: MS,
        control_timeout_ns: MS,
        per_key_ns: 10 * US,
        keepalive_interval_ns: MS,
        reconnect_timeout_ns: 20 * MS,
        lease_ns: None,
        flush_interval_ns: 50 * US,
        ..Timeouts::default()
    }
}

/// Limits that go with them: a full lane drains within the fence.
pub fn fast_limits() -> Limits {
    Limits {
        slowest_rate_bytes_per_s: 64_000_000_000,
        ..small_limits()
    }
}

/// One engine's part of a court.
pub struct Part {
    pub lcores: u16,
    pub limits: Limits,
    pub timeouts: Timeouts,
    pub plan: Plan,
    pub soft: SoftConfig,
}

impl Part {
    pub fn new(plan: Plan) -> Self {
        Self {
            lcores: 1,
            limits: fast_limits(),
            timeouts: short_timeouts(),
            plan,
            soft: SoftConfig::default(),
        }
    }

    pub fn quiet() -> Self {
        Self::new(Plan::default())
    }

    /// Both sides have as many lcores: that is what `builder` takes the peer to have.
    pub fn builder(&self, name: &str, peer: &str) -> EngineBuilder {
        builder(name, peer, self.lcores)
            .limits(self.limits.clone())
            .timeouts(self.timeouts.clone())
    }
}

/// Two engines and the books of their devices.
pub struct Court {
    pub pair: Pair<Judged>,
    pub left: Arc<Ledger>,
    pub right: Arc<Ledger>,
    pub left_switches: Arc<Switches>,
    pub right_switches: Arc<Switches>,
    pub fabric: Fabric,
}

pub fn device(fabric: &Fabric, plan: Plan) -> (Judged, Arc<Ledger>, Arc<Switches>) {
    device_of(fabric, plan, SoftConfig::default())
}

pub fn device_of(
    fabric: &Fabric,
    plan: Plan,
    soft: SoftConfig,
) -> (Judged, Arc<Ledger>, Arc<Switches>) {
    let soft = fabric.device(soft).unwrap();
    let (device, switches) = Switched::new(Fault::new(soft, plan));
    let device = Check::new(device);
    let ledger = device.ledger();
    (device, ledger, switches)
}

impl Court {
    pub fn quiet() -> Self {
        Self::new(Part::quiet(), Part::quiet())
    }

    pub fn new(left: Part, right: Part) -> Self {
        let fabric = Fabric::new();
        let builders = (
            left.builder("left", "right"),
            right.builder("right", "left"),
        );
        let (left_device, left, left_switches) = device_of(&fabric, left.plan, left.soft);
        let (right_device, right, right_switches) = device_of(&fabric, right.plan, right.soft);
        Self {
            pair: Pair::on(builders.0, left_device, builders.1, right_device),
            left,
            right,
            left_switches,
            right_switches,
            fabric,
        }
    }

    /// The engines have kept to the contract of their devices.
    pub fn acquit(&self) {
        for ledger in [&self.left, &self.right] {
            assert_eq!(ledger.violations(Party::Caller), 0, "{ledger:?}");
        }
    }
}
