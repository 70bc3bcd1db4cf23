//! What one seed is about: engines, limits, the kind of adapter, what goes wrong and how often. Options are swarm options: each seed has some of them, so that
//! no fault hides another in every run.

use keyfence::config::{KeyMode, MemoryConfig, Policy, PoolConfig, Timeouts};
use keyfence::limits::{ContextLimits, Limits, PeerLimits, budget, budget_bytes};
use keyfence::pmd::sim::{Nanos, SimConfig, SimFaults, Sometimes};

use super::liar::Temper;
use crate::random::Random;

/// A microsecond and a millisecond of virtual time.
pub const US: u64 = 1_000;
pub const MS: u64 = 1_000 * US;

/// One seed's run.
#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    /// In the order of their names; with a liar, the last is it, and what is said of it is what the engines are told.
    pub hosts: Vec<HostPlan>,
    pub device: SimConfig,
    pub key_mode: KeyMode,
    pub faults: SimFaults,
    pub meddling: Meddling,
    pub timeouts: Timeouts,
    /// Nothing that the plan does may break a queue pair, lose a session or outlast a timeout: then nobody may notice anything of a reclaim (R5).
    pub is_gentle: bool,
    /// Queue pairs break, often, and nothing else goes wrong: then every lane must be repaired, and no session be lost.
    pub only_breaks: bool,
    /// The last host is no engine.
    pub liar: Option<Temper>,
    /// The longest step of everything, while something happens.
    pub step_ns: u64,
    /// How long faults go on.
    pub troubled_ns: u64,
}

/// One engine.
#[derive(Clone, Debug)]
pub struct HostPlan {
    pub lcores: u16,
    pub limits: Limits,
    pub memory: MemoryConfig,
}

/// What the run itself does to the engines; each a chance in a million a step.
#[derive(Clone, Copy, Debug, Default)]
pub struct Meddling {
    /// A context is opened, or killed if its name lives.
    pub open_or_kill: u32,
    /// An engine is not stepped for a while.
    pub stop: u32,
    /// An engine's process ends without a word, and a new one starts under its name.
    pub restart: u32,
    /// An engine's clock jumps forward.
    pub jump: u32,
    /// No control call of any adapter is done for a while.
    pub hang: u32,
    /// Services panic.
    pub panic: u32,
    /// Services take no events for a while.
    pub deafness: u32,
}

impl Plan {
    /// The plan of a seed: nothing but the seed decides.
    pub fn of(seed: u64) -> Self {
        let mut dice = Random::new(seed, 1);
        let is_gentle = dice.once_in(4);
        let liar = Temper::draw(seed).filter(|_| !is_gentle);
        // Drawn apart, as the liar is.
        let only_breaks = !is_gentle && liar.is_none() && Random::new(seed, 6).once_in(5);
        let is_calm = is_gentle || only_breaks || liar.is_some_and(|liar| liar.is_alone);
        let hosts = match dice.once_in(4) {
            false if liar.is_none() => 2,
            _ => 3,
        };
        let device = device(&mut dice);
        let regions = !device.windows || dice.once_in(5);
        let timeouts = timeouts(&mut dice);
        let lanes = [1, 1, 2][dice.below(3)];
        let draw_limits = |dice: &mut Random| {
            let drawn = limits(dice, lanes, &timeouts, is_calm);
            let rebuilds = if only_breaks { 1024 } else { drawn.rebuilds };
            Limits { rebuilds, ..drawn }
        };
        let hosts = (0..hosts)
            .map(|_| HostPlan::draw(&mut dice, hosts as u32, draw_limits))
            .collect();
        let faults = match (only_breaks, is_calm) {
            (true, _) => breaks(&mut dice),
            (_, true) => gentle_faults(&mut dice),
            _ => faults(&mut dice),
        };
        Self {
            seed,
            hosts,
            key_mode: if regions {
                KeyMode::Region
            } else {
                KeyMode::Window
            },
            device,
            faults: SimFaults {
                no_receive: match liar {
                    // Engines send into posted receives alone.
                    Some(_) => Sometimes {
                        per_million: 900_000,
                        ns: Nanos::new(0, MS / 2),
                    },
                    None => faults.no_receive,
                },
                ..faults
            },
            meddling: Meddling::draw(&mut dice, is_calm),
            timeouts,
            is_gentle,
            only_breaks,
            liar,
            step_ns: [500, 1_000, 2_000, 5_000][dice.below(4)],
            // A liar's sessions are short, and joins take their time.
            troubled_ns: (9 + dice.below(11) as u64) * MS * if liar.is_some() { 3 } else { 1 },
        }
    }
}

/// One of the kinds of adapters that there are, with times of its own.
fn device(dice: &mut Random) -> SimConfig {
    let kinds = SimConfig::kinds();
    let (_, kind) = kinds[dice.below(kinds.len())].clone();
    let up_to = |dice: &mut Random, most: usize| Nanos::new(0, 1 + dice.below(most) as u64);
    SimConfig {
        packet_bytes: [256, 1024, 4096][dice.below(3)],
        travel_ns: up_to(dice, 5_000),
        landing_ns: up_to(dice, 8_000),
        completion_ns: up_to(dice, 4_000),
        flush_ns: up_to(dice, 30_000),
        accesses_max: 1 << 16,
        hash_bytes: false,
        ..kind
    }
}

fn timeouts(dice: &mut Random) -> Timeouts {
    let fence_timeout_ns = [MS, 2 * MS][dice.below(2)];
    Timeouts {
        fence_timeout_ns,
        invalidate_timeout_ns: MS,
        drain_timeout_ns: MS,
        control_timeout_ns: MS,
        per_key_ns: 20 * US,
        keepalive_interval_ns: MS,
        reconnect_timeout_ns: 10 * MS,
        lease_ns: [None, Some(4 * MS)][dice.below(2)],
        flush_interval_ns: [20, 100, 400][dice.below(3)] * US,
        ..Timeouts::default()
    }
}

impl HostPlan {
    fn draw(dice: &mut Random, hosts: u32, limits: impl Fn(&mut Random) -> Limits) -> Self {
        let lcores = 1 + u16::from(dice.once_in(4));
        let limits = limits(dice);
        let memory = MemoryConfig {
            hugepages: Policy::Off,
            transparent: false,
            lock: Policy::Off,
            zero_on_release: dice.once_in(3),
            pools: vec![
                PoolConfig {
                    buffer_bytes: 4096,
                    count: limits.buffers.max(2),
                },
                PoolConfig {
                    buffer_bytes: 64 << 10,
                    count: 4,
                },
            ],
            receive_buffer_bytes: [512, 1024, 4096][dice.below(3)],
            ..MemoryConfig::default()
        };
        let lanes = limits.lanes * u32::from(lcores) * 2 * (hosts - 1);
        let bytes = budget_bytes(&budget(&limits, &memory, lanes));
        Self {
            lcores,
            limits,
            memory: MemoryConfig {
                arena_bytes: bytes.next_multiple_of(1 << 16),
                ..memory
            },
        }
    }
}

/// From the least that is legal upwards: constants so small that races are common.
fn limits(dice: &mut Random, lanes: u32, timeouts: &Timeouts, is_gentle: bool) -> Limits {
    let mut any = |from: &[u32]| from[dice.below(from.len())];
    let lane_bytes = u64::from(any(&[4096, 16 << 10, 256 << 10]));
    let contexts = any(&[1, 3, 8]);
    let context = ContextLimits {
        grants: any(&[1, 4, 16]),
        imports: any(&[1, 8, 32]),
        exposed_bytes: u64::from(any(&[4096, 64 << 10, 1 << 20])),
        buffers: any(&[2, 8, 24]),
        ops_in_flight: any(&[1, 4, 16]),
        bytes_in_flight: u64::from(any(&[4096, 64 << 10, 256 << 10])),
        messages: any(&[1, 3, 8]),
        offences: any(&[0, 1, 4]),
    };
    Limits {
        contexts,
        grants: any(&[1, 8, 64]).max(context.grants),
        imports: any(&[1, 8, 64]).max(context.imports),
        buffers: contexts * context.buffers,
        ops_in_flight: any(&[1, 16, 64]).max(context.ops_in_flight),
        bytes_in_flight: (256 << 10) * u64::from(contexts),
        lanes,
        send_depth: any(&[4, 8, 16, 64]),
        receive_depth: any(&[4, 8, 16, 64]),
        windows: any(&[1, 4, 32]).max(context.grants),
        lane_bytes_in_flight: lane_bytes,
        slowest_rate_bytes_per_s: (lane_bytes * 1_000_000_000)
            .div_ceil(timeouts.fence_timeout_ns / 2),
        slice_bytes: u64::from(any(&[4096, 16 << 10])).min(lane_bytes),
        flush_watermark: any(&[1, 3, 16]),
        reclaim_budget_wrs: any(&[1, 2, 8, 64]),
        zero_budget_bytes: 4096,
        epochs: any(&[4, 8, 32]),
        rebuilds: any(&[0, 8, 64]),
        trace_records: 4096,
        peer: PeerLimits {
            parked_keys: if is_gentle { 1024 } else { any(&[1, 8, 64]) },
            ..PeerLimits::default()
        },
        context,
    }
}

impl Meddling {
    fn draw(dice: &mut Random, is_gentle: bool) -> Self {
        let mut rate = |most: usize| match dice.below(3) {
            0 => 0,
            _ => dice.below(most) as u32,
        };
        let tame = Self {
            open_or_kill: 5_000 + rate(30_000),
            panic: rate(300),
            ..Self::default()
        };
        if is_gentle {
            return tame;
        }
        Self {
            stop: rate(400),
            restart: rate(150),
            jump: rate(300),
            hang: rate(100),
            deafness: rate(2_000),
            ..tame
        }
    }
}

/// Only what a sound adapter may do.
fn gentle_faults(dice: &mut Random) -> SimFaults {
    SimFaults {
        slow_invalidation: sometimes(dice, 100_000, 50 * US),
        late_landing: sometimes(dice, 100_000, 40 * US),
        late_completion: sometimes(dice, 30_000, 40 * US),
        bunched_completion: sometimes(dice, 100_000, 20 * US),
        slow_connection: sometimes(dice, 100_000, 100 * US),
        ..SimFaults::default()
    }
}

/// Queue pairs that break at either end, or at both.
fn breaks(dice: &mut Random) -> SimFaults {
    let gentle = gentle_faults(dice);
    let mut rate = || [0, 20, 100, 400][dice.below(4)];
    SimFaults {
        error_here_per_million: 10 + rate(),
        error_there_per_million: rate(),
        error_both_per_million: rate(),
        ..gentle
    }
}

fn faults(dice: &mut Random) -> SimFaults {
    let gentle = gentle_faults(dice);
    let mut rate = |most: usize| match dice.below(3) {
        0 | 1 => 0,
        _ => 1 + dice.below(most) as u32,
    };
    let rates = SimFaults {
        failed_invalidation_per_million: rate(20_000),
        error_here_per_million: rate(200),
        error_there_per_million: rate(200),
        error_both_per_million: rate(200),
        garbage_per_million: rate(1_000_000),
        swallowed_completion_per_million: rate(10_000),
        failed_call_per_million: rate(20_000),
        late_call_undone_per_million: rate(50_000),
        late_call_done_per_million: rate(50_000),
        refused_connection_per_million: rate(200_000),
        ..gentle
    };
    SimFaults {
        slow_invalidation: sometimes(dice, 100_000, 4 * MS),
        stall: sometimes(dice, 1_000, 6 * MS),
        late_landing: sometimes(dice, 50_000, 2 * MS),
        late_completion: sometimes(dice, 10_000, 2 * MS),
        no_receive: sometimes(dice, 500_000, MS),
        ..rates
    }
}

/// In two seeds of three, so often at most, and so long at most.
fn sometimes(dice: &mut Random, most_per_million: usize, most_ns: u64) -> Sometimes {
    if dice.once_in(3) {
        return Sometimes::default();
    }
    Sometimes {
        per_million: 1 + dice.below(most_per_million) as u32,
        ns: Nanos::new(0, most_ns),
    }
}
