//! `[[engine]]`: what makes an engine, and what an lcore does when there is nothing to do.

use super::peer::{PeerAddress, parse_address};
use super::reader::{Item, Key, Kind, read_list};
use super::report::{Path, Report};
use super::value;

/// One engine of the file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EngineConfig {
    /// `name`: 1 to 63 bytes of letters, digits, `-`, `_` and `.`; unique in the file. Peers know the engine by it.
    pub name: String,
    /// `device`: the driver, one of those that the reading program was built with; the first of these if left out.
    pub device: String,
    /// `lcores`: the CPU of each lcore, in the order of [`LcoreId`](crate::ids::LcoreId). 1 to 64, no CPU twice.
    /// Two engines of a file may share one.
    pub lcores: Vec<u32>,
    /// `idle`: what an lcore does when a step found nothing.
    pub idle: IdlePolicy,
    /// `listen`: the address `"rdma:HOST:PORT"` at which its `rdma:` peers reach it. Needed where one of them has a name that sorts before this engine's: that one
    /// connects. An engine with `local:` peers is reached by its name.
    pub listen: Option<PeerAddress>,
    /// `step_max`: a longer time from one poll step to the next is counted (`steps_overran`).
    pub step_max_ns: u64,
}

/// What an lcore does after steps without work.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum IdlePolicy {
    /// `"spin"`: polls on. The lowest latency, a whole CPU.
    #[default]
    Spin,
    /// `"backoff"`: spins, then pauses, then yields, then sleeps.
    Backoff {
        /// `backoff_max`: the longest sleep, and so what the first work after a quiet time waits at most.
        max_sleep_ns: u64,
    },
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            name: String::new(),
            device: String::new(),
            lcores: vec![0],
            idle: IdlePolicy::Spin,
            listen: None,
            step_max_ns: 100_000_000,
        }
    }
}

/// The policy comes in two keys.
pub(super) struct EngineDraft {
    pub(super) config: EngineConfig,
    pub(super) is_backoff: bool,
    pub(super) max_sleep_ns: u64,
}

impl Default for EngineDraft {
    fn default() -> Self {
        Self {
            config: EngineConfig::default(),
            is_backoff: false,
            max_sleep_ns: 1_000_000,
        }
    }
}

pub(super) const KEYS: &[Key<EngineDraft>] = &[
    Key::required(
        "name",
        Kind::Text(is_name, NAME_RULE, |e, text| e.config.name = text.into()),
    ),
    Key::optional("device", Kind::Nested(read_device)),
    Key::required("lcores", Kind::Nested(read_lcores)),
    Key::optional(
        "idle",
        Kind::Word(&["spin", "backoff"], |e, index| e.is_backoff = index == 1),
    ),
    Key::optional(
        "backoff_max",
        Kind::DurationNs(1_000, 1_000_000_000, |e| &mut e.max_sleep_ns),
    ),
    Key::optional(
        "listen",
        Kind::Text(is_listen_address, "\"rdma:HOST:PORT\"", |e, text| {
            e.config.listen = parse_address(text);
        }),
    ),
    Key::optional(
        "step_max",
        Kind::DurationNs(10_000, 60_000_000_000, |e| &mut e.config.step_max_ns),
    ),
];

fn is_listen_address(text: &str) -> bool {
    matches!(parse_address(text), Some(PeerAddress::Rdma { .. }))
}

/// How many lcores an engine may have.
const LCORES: (usize, usize) = (1, 64);

/// The highest number of a CPU.
const MAX_CPU: u64 = 4095;

/// The rule of [`is_name`] in words.
pub(super) const NAME_RULE: &str = "1 to 63 letters, digits, '-', '_' or '.'";

/// Whether an engine, a peer or a context may be named so.
pub(super) fn is_name(text: &str) -> bool {
    let is_legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    (1..=63).contains(&text.len()) && text.chars().all(is_legal)
}

fn read_device(engine: &mut EngineDraft, item: &Item<'_>, path: &Path, report: &mut Report<'_>) {
    match value::word(item.get_ref(), report.catalog.devices) {
        Ok(index) => engine.config.device = report.catalog.devices[index].into(),
        Err(refusal) => report.refuse_at(path, item.span().start, refusal.what, refusal.allowed),
    }
}

fn read_lcores(engine: &mut EngineDraft, item: &Item<'_>, path: &Path, report: &mut Report<'_>) {
    let cpus = read_list(report, path, item, LCORES, |value| {
        value::count(value, 0, MAX_CPU)
    });
    engine.config.lcores = cpus.into_iter().map(|cpu| cpu as u32).collect();
    refuse_twins(&engine.config.lcores, path, report);
}

/// The lcores of an engine that was made in code: as [`read_lcores`].
pub(super) fn check_lcores(cpus: &[u32], path: &Path, report: &mut Report<'_>) {
    let (least, most) = LCORES;
    if !(least..=most).contains(&cpus.len()) {
        let allowed = format!("a list of {least} to {most} CPUs");
        report.refuse(path, format!("is a list of {} items", cpus.len()), allowed);
    }
    for cpu in cpus.iter().filter(|cpu| u64::from(**cpu) > MAX_CPU) {
        let allowed = value::allowed_count(0, MAX_CPU);
        report.refuse(path, format!("has the integer {cpu}"), allowed);
    }
    refuse_twins(cpus, path, report);
}

fn refuse_twins(cpus: &[u32], path: &Path, report: &mut Report<'_>) {
    let twin = (1..cpus.len()).find(|&index| cpus[..index].contains(&cpus[index]));
    if let Some(index) = twin {
        report.refuse(
            path,
            format!("names CPU {} twice", cpus[index]),
            "a CPU of its own for each lcore of an engine".into(),
        );
    }
}
