//! `[[service]]`: code that the launcher starts on an lcore. Which kinds there are, the reading program says.

use toml::de::DeValue;

use super::engine::{NAME_RULE, is_name};
use super::reader::{Item, Key, Kind, read_known, refuse, refuse_unknown};
use super::report::{Path, Report};
use super::value::{self, Refusal};

/// One service of the file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServiceConfig {
    /// `kind`: one of [`Catalog::services`](super::Catalog::services).
    pub kind: String,
    /// `name`: the name of its context, unique among the services of its engine.
    pub name: String,
    /// `engine`: index in [`Config::engines`](super::Config::engines); may be left out where the file has one engine.
    pub engine: usize,
    /// `lcore`: the number of its lcore in that engine, 0 if left out.
    pub lcore: u32,
    /// `weight`: its share of a busy lane against the others' weights, 1 to 256; 1 if left out.
    pub weight: u32,
    /// The other keys, which the kind declares ([`ServiceKind::options`]).
    pub options: Vec<(&'static str, OptionValue)>,
}

/// A kind of service, and the keys that it has beyond those of each service.
#[derive(Clone, Copy, Debug)]
pub struct ServiceKind {
    /// The name that `kind` says.
    pub name: &'static str,
    /// Its own keys. All may be left out; the kind has a default for each.
    pub options: &'static [(&'static str, OptionKind)],
}

/// What a kind's own key may hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OptionKind {
    /// An integer of this range.
    Count(u64, u64),
    /// A size of this range, in bytes.
    Bytes(u64, u64),
    /// A duration of this range, in ns.
    DurationNs(u64, u64),
    /// `true` or `false`.
    Flag,
    /// Any text.
    Text,
}

/// The value of a kind's own key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OptionValue {
    /// An integer.
    Count(u64),
    /// A size in bytes.
    Bytes(u64),
    /// A duration in ns.
    DurationNs(u64),
    /// A flag.
    Flag(bool),
    /// A text.
    Text(String),
}

impl Default for ServiceConfig {
    fn default() -> Self {
        Self {
            kind: String::new(),
            name: String::new(),
            engine: 0,
            lcore: 0,
            weight: 1,
            options: Vec::new(),
        }
    }
}

/// The engine is named in the file.
#[derive(Default)]
pub(super) struct ServiceDraft {
    pub(super) config: ServiceConfig,
    pub(super) engine: Option<String>,
}

pub(super) const KEYS: &[Key<ServiceDraft>] = &[
    Key::required("kind", Kind::Nested(read_kind)),
    Key::required(
        "name",
        Kind::Text(is_name, NAME_RULE, |s, text| s.config.name = text.into()),
    ),
    Key::optional(
        "engine",
        Kind::Text(is_name, NAME_RULE, |s, text| s.engine = Some(text.into())),
    ),
    Key::optional("lcore", Kind::Count(0, 63, |s| &mut s.config.lcore)),
    Key::optional("weight", Kind::Count(1, 256, |s| &mut s.config.weight)),
];

/// Reads one `[[service]]`: the keys of every service, then those of its kind.
pub(super) fn read_service(report: &mut Report<'_>, path: &Path, item: &Item<'_>) -> ServiceDraft {
    let mut draft = ServiceDraft::default();
    let DeValue::Table(table) = item.get_ref() else {
        refuse(report, path, item, "a table, [[service]]".into());
        return draft;
    };
    let unknown = read_known(report, path, table, KEYS, &mut draft);
    let catalog = report.catalog;
    let kind = catalog
        .services
        .iter()
        .find(|kind| kind.name == draft.config.kind);
    // Of a kind that isn't known, nobody can say which keys it has.
    let Some(kind) = kind else {
        return draft;
    };
    for (name, item) in unknown {
        let path = path.key(name.get_ref());
        let Some((key, option)) = kind.options.iter().find(|(key, _)| key == name.get_ref()) else {
            let known = KEYS
                .iter()
                .map(|key| key.name)
                .chain(kind.options.iter().map(|(key, _)| *key));
            refuse_unknown(report, &path, name, known);
            continue;
        };
        match read_option(item.get_ref(), *option) {
            Ok(value) => draft.config.options.push((*key, value)),
            Err(Refusal { what, allowed }) => {
                report.refuse_at(&path, item.span().start, what, allowed)
            }
        }
    }
    draft
}

fn read_kind(service: &mut ServiceDraft, item: &Item<'_>, path: &Path, report: &mut Report<'_>) {
    let kinds: Vec<&str> = report
        .catalog
        .services
        .iter()
        .map(|kind| kind.name)
        .collect();
    match value::word(item.get_ref(), &kinds) {
        Ok(index) => service.config.kind = kinds[index].into(),
        Err(refusal) => report.refuse_at(path, item.span().start, refusal.what, refusal.allowed),
    }
}

fn read_option(value: &DeValue<'_>, kind: OptionKind) -> Result<OptionValue, Refusal> {
    Ok(match kind {
        OptionKind::Count(min, max) => OptionValue::Count(value::count(value, min, max)?),
        OptionKind::Bytes(min, max) => OptionValue::Bytes(value::bytes(value, min, max, 1)?),
        OptionKind::DurationNs(min, max) => {
            OptionValue::DurationNs(value::duration_ns(value, min, max)?)
        }
        OptionKind::Flag => OptionValue::Flag(value::flag(value)?),
        OptionKind::Text => OptionValue::Text(value::text(value, |_| true, "a text")?.into()),
    })
}
