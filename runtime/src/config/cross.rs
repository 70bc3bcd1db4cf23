//! Checks across keys, each with the numbers: what fits by itself must fit together.

mod troubles;

use super::report::{Path, Report};
use super::units::{show_bytes, show_ns};
use super::{Config, LoadConfig, Policy};
use crate::limits::{budget, budget_bytes};
use crate::reclaim::LaneSet;

/// Refuses values that contradict each other.
pub(super) fn check(config: &Config, report: &mut Report<'_>) {
    check_reclaim_bound(config, report);
    check_lane_drain(config, report);
    check_keepalive(config, report);
    check_lanes(config, report);
    check_memory(config, report);
    if let Some(load) = &config.load {
        check_load(config, load, report);
        troubles::check(config, load, report);
    }
}

fn check_reclaim_bound(config: &Config, report: &mut Report<'_>) {
    let keys = [
        "shutdown",
        "fence",
        "invalidate",
        "drain",
        "control",
        "per_key",
    ]
    .map(|key| format!("timeouts.{key}"));
    let keys: Vec<&str> = keys
        .iter()
        .map(String::as_str)
        .chain(["limits.grants"])
        .collect();
    let (timeouts, most) = (&config.timeouts, config.limits.keys());
    report.check(&keys, || {
        let bound_ns = timeouts.reclaim_bound_ns(most);
        let terms = format!(
            "fence {} + invalidate {} + drain {} + 3 x control {} + {most} keys x per_key {}",
            show_ns(timeouts.fence_timeout_ns),
            show_ns(timeouts.invalidate_timeout_ns),
            show_ns(timeouts.drain_timeout_ns),
            show_ns(timeouts.control_timeout_ns),
            show_ns(timeouts.per_key_ns),
        );
        let (shutdown, bound) = (show_ns(timeouts.shutdown_timeout_ns), show_ns(bound_ns));
        let what = format!("is {shutdown}, below the reclaim bound {bound} = {terms}");
        (bound_ns > timeouts.shutdown_timeout_ns)
            .then(|| (what, format!("at least \"{bound}\", or shorter terms")))
    });
}

fn check_lane_drain(config: &Config, report: &mut Report<'_>) {
    let (limits, fence_ns) = (&config.limits, config.timeouts.fence_timeout_ns);
    report.check(&["limits.lane_bytes_in_flight", "limits.slowest_rate", "timeouts.fence"], || {
        let drain_ns = limits.lane_drain_ns();
        let rate = limits.slowest_rate_bytes_per_s;
        let most = u128::from(rate) * u128::from(fence_ns) / 1_000_000_000;
        let cap = show_bytes(limits.lane_bytes_in_flight);
        let what = || {
            let (rate, drain, fence) = (show_bytes(rate), show_ns(drain_ns), show_ns(fence_ns));
            format!("is {cap}, which takes {drain} at slowest_rate {rate}/s, but the fence timeout is {fence}")
        };
        (drain_ns > fence_ns).then(|| (what(), format!("at most \"{most}B\", or a longer timeouts.fence")))
    });
    report.check(&["limits.slice", "limits.lane_bytes_in_flight"], || {
        let (slice, cap) = (
            show_bytes(limits.slice_bytes),
            show_bytes(limits.lane_bytes_in_flight),
        );
        let what = format!("is {slice}, but lane_bytes_in_flight is {cap}");
        (limits.slice_bytes > limits.lane_bytes_in_flight)
            .then(|| (what, format!("at most \"{cap}\"")))
    });
}

fn check_keepalive(config: &Config, report: &mut Report<'_>) {
    let timeouts = &config.timeouts;
    let keepalive = show_ns(timeouts.keepalive_interval_ns);
    let least_ns = timeouts.keepalive_interval_ns.saturating_mul(2);
    let too_short = |ns: u64| {
        let what = format!(
            "is {}, but the keep-alive interval is {keepalive}",
            show_ns(ns)
        );
        (ns < least_ns).then(|| {
            (
                what,
                format!("at least \"{}\", two intervals", show_ns(least_ns)),
            )
        })
    };
    report.check(&["timeouts.reconnect", "timeouts.keepalive"], || {
        too_short(timeouts.reconnect_timeout_ns)
    });
    report.check(&["timeouts.lease", "timeouts.keepalive"], || {
        too_short(timeouts.lease_ns?)
    });
}

/// An lcore's table of lanes is no larger than a set of them.
fn check_lanes(config: &Config, report: &mut Report<'_>) {
    let sound = ["engine", "peer"].map(|table| report.is_sound_below(&Path::of(table)));
    if sound != [true; 2] {
        return;
    }
    report.check(&["limits.lanes"], || {
        let lanes = |engine| (config.lanes_of_lcore(engine), engine);
        let (lanes, engine) = (0..config.engines.len()).map(lanes).max()?;
        let name = &config.engines[engine].name;
        let peer_lcores = lanes / config.limits.lanes;
        let what = format!(
            "is {}, which gives each lcore of engine {name} {lanes} lanes to {peer_lcores} lcores of peers",
            config.limits.lanes
        );
        let most = LaneSet::MAX_LANES;
        (lanes as usize > most).then(|| {
            let allowed = format!("limits.lanes times the lcores of all peers at most {most}");
            (what, allowed)
        })
    });
}

fn check_memory(config: &Config, report: &mut Report<'_>) {
    let memory = &config.memory;
    report.check(&["memory.page_size", "memory.hugepages"], || {
        let is_wrong =
            memory.hugepages == Policy::Require && memory.page_size == super::PageSize::Base4KiB;
        let what = "is \"4KiB\" with hugepages = \"require\"".into();
        is_wrong.then(|| (what, "\"1GiB\" or \"2MiB\", or hugepages = \"off\"".into()))
    });
    report.check(&["limits.buffers", "memory.pools"], || {
        let (limit, buffers) = (config.limits.buffers, memory.buffers());
        let what = format!("is {limit}, but the pools have {buffers}");
        (u64::from(limit) > buffers)
            .then(|| (what, format!("at most {buffers}, or more in memory.pools")))
    });
    // The number of lanes comes from all of these.
    let sound = ["engine", "peer", "memory", "limits"]
        .iter()
        .all(|table| report.is_sound_below(&Path::of(table)));
    if !sound {
        return;
    }
    for engine in 0..config.engines.len() {
        let consumers = config.budget(engine);
        let sum = budget_bytes(&consumers);
        if sum > memory.arena_bytes {
            let allowed = format!("at least \"{}\", or smaller consumers", show_bytes(sum));
            report.refuse(
                &Path::of("memory.bytes"),
                short_arena(config, engine, &consumers),
                allowed,
            );
            return;
        }
    }
}

fn short_arena(config: &Config, engine: usize, consumers: &[(&'static str, u64)]) -> String {
    let terms: Vec<String> = consumers
        .iter()
        .map(|(name, bytes)| format!("{name} {}", show_bytes(*bytes)))
        .collect();
    let (arena, sum) = (
        show_bytes(config.memory.arena_bytes),
        show_bytes(budget_bytes(consumers)),
    );
    let engine = &config.engines[engine].name;
    format!(
        "is {arena}, but engine {engine} needs {sum} = {}",
        terms.join(" + ")
    )
}

fn check_load(config: &Config, load: &LoadConfig, report: &mut Report<'_>) {
    let (limits, memory) = (&config.limits, &config.memory);
    report.check(&["load.contexts", "limits.contexts"], || {
        let what = format!(
            "is {}, but limits.contexts is {}",
            load.contexts, limits.contexts
        );
        (load.contexts > limits.contexts).then(|| (what, format!("at most {}", limits.contexts)))
    });
    let largest = memory.largest_buffer_bytes();
    let in_a_buffer = |bytes: u64| {
        let what = format!(
            "is {}, but the largest buffer has {}",
            show_bytes(bytes),
            show_bytes(largest)
        );
        (bytes > largest).then(|| {
            (
                what,
                format!(
                    "at most \"{}\", or a larger memory.pools buffer",
                    show_bytes(largest)
                ),
            )
        })
    };
    let largest_size = load.sizes_bytes.iter().copied().max().unwrap_or(0);
    report.check(&["load.sizes", "memory.pools"], || {
        in_a_buffer(largest_size)
    });
    report.check(&["load.large", "memory.pools"], || {
        in_a_buffer(load.large_bytes)
    });
    report.check(&["load.large", "limits.slice"], || {
        let slice = limits.slice_bytes;
        let what = format!(
            "is {}, no more than one slice of {}",
            show_bytes(load.large_bytes),
            show_bytes(slice)
        );
        (load.large_bytes <= slice).then(|| (what, format!("more than \"{}\"", show_bytes(slice))))
    });
    report.check(&["load.large", "limits.context.bytes_in_flight"], || {
        let most = limits.context.bytes_in_flight;
        let what = format!(
            "is {}, but a context may have {} in flight",
            show_bytes(load.large_bytes),
            show_bytes(most)
        );
        (load.large_bytes > most).then(|| (what, format!("at most \"{}\"", show_bytes(most))))
    });
}

impl Config {
    /// The lanes of an engine: each of its lcores has `limits.lanes` to each lcore of each of its peers. 0 for an index beyond
    /// [`Config::engines`].
    #[must_use]
    pub fn lanes(&self, engine: usize) -> u32 {
        let lcores = self
            .engines
            .get(engine)
            .map_or(0, |engine| engine.lcores.len());
        self.lanes_of_lcore(engine).saturating_mul(lcores as u32)
    }

    /// The lanes of each lcore of an engine: to every lcore of every peer.
    pub(crate) fn lanes_of_lcore(&self, engine: usize) -> u32 {
        let peers = self.peers.iter().filter(|peer| peer.engine == engine);
        let peer_lcores = peers.fold(0, |sum: u32, peer| sum.saturating_add(peer.lcores));
        peer_lcores.saturating_mul(self.limits.lanes)
    }

    /// What an engine takes from its arena, by consumer ([`budget`]).
    #[must_use]
    pub fn budget(&self, engine: usize) -> Vec<(&'static str, u64)> {
        budget(&self.limits, &self.memory, self.lanes(engine))
    }
}
