//! Values that were set in code: each is held against the range of its key, by the lists that files are read by.

use super::engine::{self, EngineDraft};
use super::error::ConfigErrors;
use super::peer::{self, PeerDraft};
use super::reader::{Key, Kind};
use super::report::{Path, Report};
use super::units::{show_bytes, show_ns};
use super::{
    Catalog, Config, EngineConfig, IdlePolicy, MemoryConfig, PeerConfig, Timeouts, VerbsConfig,
};
use super::{cross, limits, memory, resolve, timeouts, value};
use crate::limits::Limits;

impl Config {
    /// The configuration of one engine that was described in code.
    pub(crate) fn of_engine(
        engine: EngineConfig,
        memory: MemoryConfig,
        limits: Limits,
        timeouts: Timeouts,
        peers: Vec<PeerConfig>,
    ) -> Self {
        Self {
            engines: vec![engine],
            memory,
            limits,
            timeouts,
            verbs: VerbsConfig::default(),
            peers,
            services: Vec::new(),
            load: None,
        }
    }

    /// Refuses what a file with these engines, peers, memory, limits and timeouts would be refused for. The rest is not looked at: no engine is built
    /// from it. The errors name no place in a file.
    pub(crate) fn check(&self) -> Result<(), ConfigErrors> {
        let catalog = Catalog {
            devices: &[],
            services: &[],
        };
        let mut report = Report::new("", "", catalog);
        for (index, engine) in self.engines.iter().enumerate() {
            check_engine(&mut report, &table("engine", index), engine);
        }
        let mut memory = self.memory.clone();
        check_table(&mut report, &Path::of("memory"), memory::KEYS, &mut memory);
        let pools = Path::of("memory.pools");
        for (index, pool) in memory.pools.iter_mut().enumerate() {
            check_table(&mut report, &pools.item(index), memory::POOL_KEYS, pool);
        }
        memory::check_pools(&self.memory.pools, &pools, &mut report);
        self.check_limits(&mut report);
        let mut times = self.timeouts.clone();
        check_table(
            &mut report,
            &Path::of("timeouts"),
            timeouts::KEYS,
            &mut times,
        );
        for (index, peer) in self.peers.iter().enumerate() {
            check_peer(&mut report, &table("peer", index), peer);
        }
        resolve::check_peer_names(&self.peers, &mut report);
        cross::check(self, &mut report);
        report.finish()
    }

    fn check_limits(&self, report: &mut Report<'_>) {
        let mut ours = self.limits.clone();
        let path = Path::of("limits");
        check_table(report, &path, limits::KEYS, &mut ours);
        let (context, peer) = (path.key("context"), path.key("peer"));
        check_table(report, &context, limits::CONTEXT_KEYS, &mut ours.context);
        check_table(report, &peer, limits::PEER_KEYS, &mut ours.peer);
    }
}

fn table(name: &str, index: usize) -> Path {
    Path::of(&format!("{name}[{index}]"))
}

fn check_engine(report: &mut Report<'_>, path: &Path, config: &EngineConfig) {
    check_name(report, path, &config.name);
    engine::check_lcores(&config.lcores, &path.key("lcores"), report);
    let mut draft = EngineDraft {
        config: config.clone(),
        ..EngineDraft::default()
    };
    if let IdlePolicy::Backoff { max_sleep_ns } = config.idle {
        draft.max_sleep_ns = max_sleep_ns;
    }
    check_table(report, path, engine::KEYS, &mut draft);
}

fn check_peer(report: &mut Report<'_>, path: &Path, config: &PeerConfig) {
    check_name(report, path, &config.name);
    let mut draft = PeerDraft {
        config: config.clone(),
        engine: None,
    };
    check_table(report, path, peer::KEYS, &mut draft);
}

fn check_name(report: &mut Report<'_>, path: &Path, name: &str) {
    if !engine::is_name(name) {
        let what = format!("is {}", value::describe_text(name));
        report.refuse(&path.key("name"), what, engine::NAME_RULE.into());
    }
}

/// Holds each number of a table against its range. Texts and nested tables are their callers'.
fn check_table<T>(report: &mut Report<'_>, path: &Path, keys: &[Key<T>], values: &mut T) {
    for key in keys {
        if let Some((value, allowed)) = outside(&key.kind, values) {
            report.refuse(&path.key(key.name), format!("is {value}"), allowed);
        }
    }
}

/// A value outside its range, and the range.
fn outside<T>(kind: &Kind<T>, values: &mut T) -> Option<(String, String)> {
    let wrong = |right: bool, value: String, allowed: &dyn Fn() -> String| {
        (!right).then(|| (value, allowed()))
    };
    match *kind {
        Kind::Count(min, max, field) => {
            let value = *field(values);
            let allowed = || value::allowed_count(min.into(), max.into());
            wrong((min..=max).contains(&value), value.to_string(), &allowed)
        }
        Kind::Count64(min, max, field) => {
            let value = *field(values);
            let allowed = || value::allowed_count(min, max);
            wrong((min..=max).contains(&value), value.to_string(), &allowed)
        }
        Kind::Bytes(min, max, step, field) => {
            let value = *field(values);
            let right = (min..=max).contains(&value) && value.is_multiple_of(step);
            let allowed = || value::allowed_bytes(min, max, step);
            wrong(right, show_bytes(value), &allowed)
        }
        Kind::DurationNs(min, max, field) => {
            let value = *field(values);
            let allowed = || value::allowed_duration(min, max);
            wrong((min..=max).contains(&value), show_ns(value), &allowed)
        }
        Kind::DurationOrNone(min, max, field) => {
            let value = (*field(values))?;
            let allowed = || format!("none, or {}", value::allowed_duration(min, max));
            wrong((min..=max).contains(&value), show_ns(value), &allowed)
        }
        Kind::Number(min, max, field) => {
            let value = *field(values);
            let allowed = || value::allowed_number(min, max);
            wrong((min..=max).contains(&value), value.to_string(), &allowed)
        }
        Kind::Flag(_) | Kind::Word(..) | Kind::Text(..) | Kind::Nested(_) => None,
    }
}
