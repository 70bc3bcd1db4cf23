//! From the file's words to a [`Config`]: names become indexes, and what was left out is filled in from the rest.

use super::engine::EngineDraft;
use super::keys::Draft;
use super::peer::{PeerAddress, PeerConfig};
use super::report::{Path, Report};
use super::service::ServiceConfig;
use super::{Config, EngineConfig, IdlePolicy};

/// The configuration that the draft means; refuses what it can't mean.
pub(super) fn resolve(draft: Draft, report: &mut Report<'_>) -> Config {
    let engines = resolve_engines(draft.engines, report);
    let mut limits = draft.limits;
    if !report.has(&Path::of("limits.buffers")) {
        limits.buffers = u32::try_from(draft.memory.buffers()).unwrap_or(u32::MAX);
    }
    let mut peers: Vec<PeerConfig> = Vec::new();
    for (index, peer) in draft.peers.into_iter().enumerate() {
        let engine = engine_of("peer", index, peer.engine.as_deref(), &engines, report);
        peers.push(PeerConfig {
            engine,
            ..peer.config
        });
    }
    resolve_peers(&mut peers, &engines, report);
    let mut services: Vec<ServiceConfig> = Vec::new();
    for (index, service) in draft.services.into_iter().enumerate() {
        let engine = engine_of(
            "service",
            index,
            service.engine.as_deref(),
            &engines,
            report,
        );
        services.push(ServiceConfig {
            engine,
            ..service.config
        });
    }
    check_services(&services, &engines, report);
    Config {
        engines,
        memory: draft.memory,
        limits,
        timeouts: draft.timeouts,
        verbs: draft.verbs,
        peers,
        services,
        load: draft.load,
    }
}

fn resolve_engines(drafts: Vec<EngineDraft>, report: &mut Report<'_>) -> Vec<EngineConfig> {
    if drafts.is_empty() && report.has(&Path::of("engine")) {
        report.check(&["engine"], || {
            Some(("has no engine".into(), "at least one [[engine]]".into()))
        });
    }
    let mut engines: Vec<EngineConfig> = Vec::new();
    for (
        index,
        EngineDraft {
            mut config,
            is_backoff,
            max_sleep_ns,
        },
    ) in drafts.into_iter().enumerate()
    {
        let backoff_max = format!("engine[{index}].backoff_max");
        if is_backoff {
            config.idle = IdlePolicy::Backoff { max_sleep_ns };
        } else if report.has(&Path::of(&backoff_max)) {
            report.check(&[&backoff_max, &format!("engine[{index}].idle")], || {
                Some((
                    "has no effect with idle = \"spin\"".into(),
                    "idle = \"backoff\", or no backoff_max".into(),
                ))
            });
        }
        if config.device.is_empty() {
            config.device = report
                .catalog
                .devices
                .first()
                .copied()
                .unwrap_or_default()
                .into();
        }
        let is_taken = engines.iter().any(|other| other.name == config.name);
        report.check(&[&format!("engine[{index}].name")], || {
            is_taken.then(|| taken(&config.name))
        });
        let heard = config.listen.as_ref();
        let same = engines.iter().any(|other| other.listen.as_ref() == heard);
        report.check(&[&format!("engine[{index}].listen")], || {
            let address = heard.filter(|_| same)?;
            let what = format!("is \"{address}\" for the second time");
            Some((what, "a port of its own for each engine".into()))
        });
        engines.push(config);
    }
    engines
}

/// The index of the engine that a peer or a service names, 0 where it can't be told.
fn engine_of(
    table: &str,
    index: usize,
    name: Option<&str>,
    engines: &[EngineConfig],
    report: &mut Report<'_>,
) -> usize {
    let allowed = || {
        let names: Vec<&str> = engines.iter().map(|engine| engine.name.as_str()).collect();
        super::value::list_of_words(&names)
    };
    let found = match name {
        None if engines.len() <= 1 => Some(0),
        None => None,
        Some(name) => engines.iter().position(|engine| engine.name == name),
    };
    let key = format!("{table}[{index}].engine");
    report.check(&[&key, "engine"], || {
        let what = match (found, name) {
            (Some(_), _) => return None,
            (None, Some(name)) => format!("names {name:?}, which is no engine of this file"),
            (None, None) => "is missing, and the file has several engines".into(),
        };
        Some((what, allowed()))
    });
    found.unwrap_or(0)
}

fn resolve_peers(peers: &mut [PeerConfig], engines: &[EngineConfig], report: &mut Report<'_>) {
    check_peer_names(peers, report);
    for index in 0..peers.len() {
        let key = |name: &str| format!("peer[{index}].{name}");
        let peer = &peers[index];
        report.check(&[&key("secret_file"), &key("address")], || {
            wrong_secret(peer, peers, engines)
        });
        report.check(
            &[&key("address"), &key("name"), &key("engine"), "engine"],
            || unheard(peer, engines),
        );
        let PeerAddress::Local(target) = peer.address.clone() else {
            continue;
        };
        report.check(
            &[&key("address"), &key("name"), &key("engine"), "engine"],
            || wrong_local(peer, &target, peers, engines),
        );
        if let Some(engine) = engines.iter().find(|engine| engine.name == target) {
            let lcores = engine.lcores.len() as u32;
            let stated = report.has(&Path::of(&key("lcores"))).then_some(peer.lcores);
            report.check(&[&key("lcores"), &key("address"), "engine"], || {
                let wrong = stated.filter(|stated| *stated != lcores)?;
                Some((
                    format!("is {wrong}, but engine {target} has {lcores}"),
                    format!("{lcores}, or no lcores"),
                ))
            });
            peers[index].lcores = lcores;
        }
    }
}

/// An engine knows its peers by their names.
pub(super) fn check_peer_names(peers: &[PeerConfig], report: &mut Report<'_>) {
    for (index, peer) in peers.iter().enumerate() {
        let key = |name: &str| format!("peer[{index}].{name}");
        let is_taken = peers[..index]
            .iter()
            .any(|other| (other.engine, &other.name) == (peer.engine, &peer.name));
        report.check(&[&key("name"), &key("engine")], || {
            is_taken.then(|| taken(&peer.name))
        });
    }
}

/// Admission is by configuration, both ways: a peer in this process must know us too.
fn wrong_local(
    peer: &PeerConfig,
    target: &str,
    peers: &[PeerConfig],
    engines: &[EngineConfig],
) -> Option<(String, String)> {
    let own = engines.get(peer.engine)?;
    let others: Vec<&str> = engines
        .iter()
        .map(|engine| engine.name.as_str())
        .filter(|name| *name != own.name)
        .collect();
    let Some(other) = engines
        .iter()
        .position(|engine| engine.name == target && engine.name != own.name)
    else {
        let allowed = format!(
            "local: with another engine of this file: {}",
            super::value::list_of_words(&others)
        );
        return Some((
            format!("names {target:?}, which is no other engine of this file"),
            allowed,
        ));
    };
    if peer.name != target {
        let what = format!(
            "names engine {target:?}, but the peer's name is {:?}",
            peer.name
        );
        return Some((
            what,
            format!("name = {target:?}: a peer has its engine's name"),
        ));
    }
    let is_ours =
        |address: &PeerAddress| matches!(address, PeerAddress::Local(name) if *name == own.name);
    let is_mutual = peers
        .iter()
        .any(|back| back.engine == other && is_ours(&back.address));
    (!is_mutual).then(|| {
        let allowed = format!(
            "a [[peer]] with engine = {target:?} and address = \"local:{}\"",
            own.name
        );
        (
            format!(
                "names engine {target:?}, which does not have {:?} as a peer",
                own.name
            ),
            allowed,
        )
    })
}

/// The engine whose name sorts first connects; the other must listen.
fn unheard(peer: &PeerConfig, engines: &[EngineConfig]) -> Option<(String, String)> {
    let own = engines.get(peer.engine)?;
    let asks = matches!(peer.address, PeerAddress::Rdma { .. }) && peer.name < own.name;
    (asks && own.listen.is_none()).then(|| {
        let what = format!(
            "is of a peer that connects to engine {}, which listens nowhere",
            own.name
        );
        let allowed = format!(
            "listen = \"rdma:HOST:PORT\" in engine {}, or a name of the peer that sorts behind it",
            own.name
        );
        (what, allowed)
    })
}

fn wrong_secret(
    peer: &PeerConfig,
    peers: &[PeerConfig],
    engines: &[EngineConfig],
) -> Option<(String, String)> {
    match (&peer.address, &peer.secret_file) {
        (PeerAddress::Local(target), Some(_)) => {
            let own = &engines.get(peer.engine)?.name;
            let back = peers.iter().find(|back| {
                let theirs = engines.get(back.engine).map(|engine| &engine.name);
                theirs == Some(target) && back.name == *own
            });
            let alone = back.is_some_and(|back| back.secret_file.is_none());
            alone.then(|| {
                (
                    format!("names a secret, but engine {target:?} has none for {own:?}"),
                    "a secret_file with the same secret in both, or in none".into(),
                )
            })
        }
        (PeerAddress::Rdma { .. }, None) => Some((
            "is missing".into(),
            "the path of a file with the shared secret, which rdma: needs".into(),
        )),
        _ => None,
    }
}

fn check_services(services: &[ServiceConfig], engines: &[EngineConfig], report: &mut Report<'_>) {
    for (index, service) in services.iter().enumerate() {
        let key = |name: &str| format!("service[{index}].{name}");
        let is_taken = services[..index]
            .iter()
            .any(|other| (other.engine, &other.name) == (service.engine, &service.name));
        report.check(&[&key("name"), &key("engine")], || {
            is_taken.then(|| taken(&service.name))
        });
        let Some(engine) = engines.get(service.engine) else {
            continue;
        };
        let lcores_key = format!("engine[{}].lcores", service.engine);
        report.check(&[&key("lcore"), &key("engine"), &lcores_key], || {
            let lcores = engine.lcores.len();
            let is_there = (service.lcore as usize) < lcores;
            let what = || {
                format!(
                    "is {}, but engine {} has {lcores} lcores",
                    service.lcore, engine.name
                )
            };
            (!is_there).then(|| {
                (
                    what(),
                    format!("an integer from 0 to {}", lcores.saturating_sub(1)),
                )
            })
        });
    }
}

fn taken(name: &str) -> (String, String) {
    (
        format!("is {name:?} for the second time"),
        "a name of its own for each".into(),
    )
}
