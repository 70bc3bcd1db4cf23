//! `[[service]]`: code that the launcher starts on an lcore. Which kinds there are, the reading program says.

/// One service of the file.
#[derive(Clone, PartialEq, Debug, Default)]
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
