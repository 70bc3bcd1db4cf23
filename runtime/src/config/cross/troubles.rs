//! What a load does beside kills and revokes, against what it is done to.

use crate::config::report::Report;
use crate::config::units::show_ns;
use crate::config::{Config, LoadConfig};

/// Refuses troubles that their engines can't bear, or that nobody would miss.
pub(super) fn check(config: &Config, load: &LoadConfig, report: &mut Report<'_>) {
    check_bystanders(load, report);
    check_breaks(config, load, report);
    check_minima(load, report);
    check_peers(config, load, report);
}

fn check_peers(config: &Config, load: &LoadConfig, report: &mut Report<'_>) {
    let engines = config.engines.len();
    let (stops, restarts) = (load.troubles.peer_stops, load.troubles.peer_restarts);
    for (key, times) in [("peer_stops", stops), ("peer_restarts", restarts)] {
        report.check(&[&format!("load.{key}"), "engine"], || {
            let what = format!("is {times}, but the file has {engines} engines");
            let allowed = "0, or a third [[engine]] that is a [[peer]] of both others";
            (times > 0 && engines < 3).then(|| (what, allowed.into()))
        });
    }
    let keys = [
        "timeouts.lease",
        "timeouts.reconnect",
        "load.min_leases_ended",
    ];
    report.check(&keys, || {
        let lease_ns = config.timeouts.lease_ns.unwrap_or(u64::MAX);
        let reconnect = show_ns(config.timeouts.reconnect_timeout_ns);
        let what = format!(
            "is not below timeouts.reconnect {reconnect}, and load.min_leases_ended is {}",
            load.minima.leases_ended
        );
        let is_late = lease_ns >= config.timeouts.reconnect_timeout_ns;
        (load.minima.leases_ended > 0 && is_late).then(|| {
            (
                what,
                format!("less than \"{reconnect}\": a session that is lost has no leases left"),
            )
        })
    });
}

fn check_bystanders(load: &LoadConfig, report: &mut Report<'_>) {
    report.check(&["load.quiet_share", "load.paced_share"], || {
        let (quiet, paced) = (load.quiet_share, load.paced_share);
        let what = format!("is {quiet}, but paced_share is {paced}");
        (quiet > paced).then(|| (what, format!("at most {paced}: what is quiet is paced")))
    });
    report.check(&["load.bystanders", "load.contexts"], || {
        let (bystanders, contexts) = (load.bystanders, load.contexts);
        let what = format!("is {bystanders}, but contexts is {contexts}, and some must be victims");
        (bystanders >= contexts).then(|| (what, format!("at most {}", contexts - 1)))
    });
}

fn check_breaks(config: &Config, load: &LoadConfig, report: &mut Report<'_>) {
    let reconnect_ns = config.timeouts.reconnect_timeout_ns;
    let rebuilds = config.limits.rebuilds;
    let troubles = &load.troubles;
    let keys = [
        "limits.rebuilds",
        "load.lane_breaks_per_s",
        "load.dead_keys_per_s",
        "timeouts.reconnect",
    ];
    report.check(&keys, || {
        let per_s = troubles.lane_breaks_per_s + troubles.dead_keys_per_s;
        let most = (per_s * reconnect_ns as f64 / 1e9).ceil();
        let what = format!(
            "is {rebuilds}, but the load breaks {per_s} lanes a second, {most} in a reconnect time of {}, and all may be the same one",
            show_ns(reconnect_ns)
        );
        (most > f64::from(rebuilds)).then(|| (what, format!("at least {most}, or fewer breaks")))
    });
}

/// Each trouble that is asked for has a minimum: a run in which it did not strike must not look good.
fn check_minima(load: &LoadConfig, report: &mut Report<'_>) {
    let (troubles, minima) = (&load.troubles, &load.minima);
    let breaks_per_s = troubles.lane_breaks_per_s;
    for (minimum, least, trouble, rate) in [
        (
            "min_lane_repairs",
            minima.lane_repairs,
            "lane_breaks_per_s",
            breaks_per_s,
        ),
        (
            "min_dead_keys",
            minima.dead_keys,
            "dead_keys_per_s",
            troubles.dead_keys_per_s,
        ),
        (
            "min_panics",
            minima.panics,
            "panics_per_s",
            troubles.panics_per_s,
        ),
        (
            "min_hangs",
            minima.hangs,
            "hangs_per_s",
            troubles.hangs_per_s,
        ),
        (
            "min_peers_down",
            minima.peers_down,
            "peer_stops",
            troubles.peer_stops.into(),
        ),
        (
            "min_peers_down",
            minima.peers_down,
            "peer_restarts",
            troubles.peer_restarts.into(),
        ),
        (
            "min_leases_ended",
            minima.leases_ended,
            "peer_stops",
            troubles.peer_stops.into(),
        ),
    ] {
        let keys = [minimum, trouble].map(|key| format!("load.{key}"));
        report.check(&[&keys[0], &keys[1]], || {
            let what = format!("is {least}, but {trouble} is {rate}");
            (least == 0 && rate > 0.0).then(|| {
                (
                    what,
                    "at least 1, so that a run without it does not look good".into(),
                )
            })
        });
    }
}
