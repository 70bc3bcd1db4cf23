//! The whole file: its tables, and the names of all keys.

use super::reader::{Key, Kind, read_items, read_table, read_tables};
use super::{LoadConfig, MemoryConfig, Timeouts, VerbsConfig};
use super::{engine, limits, load, memory, peer, service, timeouts, verbs};
use crate::limits::Limits;

/// A file as it was read: each value legal by itself, or the default where it was not.
#[derive(Default)]
pub(super) struct Draft {
    pub(super) engines: Vec<engine::EngineDraft>,
    pub(super) memory: MemoryConfig,
    pub(super) limits: Limits,
    pub(super) timeouts: Timeouts,
    pub(super) verbs: VerbsConfig,
    pub(super) peers: Vec<peer::PeerDraft>,
    pub(super) services: Vec<service::ServiceDraft>,
    pub(super) load: Option<LoadConfig>,
}

pub(super) const ROOT_KEYS: &[Key<Draft>] = &[
    Key::required(
        "engine",
        Kind::Nested(|d, item, path, report| {
            d.engines = read_tables(report, path, item, engine::KEYS)
        }),
    ),
    Key::optional(
        "memory",
        Kind::Nested(|d, item, path, report| {
            read_table(report, path, item, memory::KEYS, &mut d.memory)
        }),
    ),
    Key::optional(
        "limits",
        Kind::Nested(|d, item, path, report| {
            read_table(report, path, item, limits::KEYS, &mut d.limits)
        }),
    ),
    Key::optional(
        "timeouts",
        Kind::Nested(|d, item, path, report| {
            read_table(report, path, item, timeouts::KEYS, &mut d.timeouts)
        }),
    ),
    Key::optional(
        "verbs",
        Kind::Nested(|d, item, path, report| {
            read_table(report, path, item, verbs::KEYS, &mut d.verbs)
        }),
    ),
    Key::optional(
        "peer",
        Kind::Nested(|d, item, path, report| d.peers = read_tables(report, path, item, peer::KEYS)),
    ),
    Key::optional(
        "service",
        Kind::Nested(|d, item, path, report| {
            d.services = read_items(report, path, item, service::read_service)
        }),
    ),
    Key::optional(
        "load",
        Kind::Nested(|d, item, path, report| {
            read_table(
                report,
                path,
                item,
                load::KEYS,
                d.load.insert(LoadConfig::default()),
            );
        }),
    ),
];

/// Each table with its keys, tables within tables after their parents. `[[x]]` is a table that may come more than once.
pub(super) fn tables() -> [(&'static str, Vec<&'static str>); 13] {
    [
        ("the file's top", names(ROOT_KEYS)),
        ("[[engine]]", names(engine::KEYS)),
        ("[memory]", names(memory::KEYS)),
        ("memory.pools", names(memory::POOL_KEYS)),
        ("[limits]", names(limits::KEYS)),
        ("[limits.context]", names(limits::CONTEXT_KEYS)),
        ("[limits.peer]", names(limits::PEER_KEYS)),
        ("[timeouts]", names(timeouts::KEYS)),
        ("[verbs]", names(verbs::KEYS)),
        ("[[peer]]", names(peer::KEYS)),
        ("[[service]]", names(service::KEYS)),
        ("[load]", names(load::KEYS)),
        ("load.mix", names(load::MIX_KEYS)),
    ]
}

/// The tables that have a key of this name, in words.
pub(super) fn tables_of(name: &str) -> Option<String> {
    let tables = tables();
    let homes = tables
        .iter()
        .filter(|(_, keys)| keys.contains(&name))
        .map(|(table, _)| *table);
    let homes: Vec<&str> = homes.collect();
    (!homes.is_empty()).then(|| homes.join(", "))
}

fn names<T>(keys: &[Key<T>]) -> Vec<&'static str> {
    keys.iter().map(|key| key.name).collect()
}
