//! The configuration of a program's engines, and the TOML that says it.
//!
//! Every key is checked, unknown ones are refused, and all errors of a file are reported at once, each with its place.
//! Sizes are strings such as `"64MiB"` (powers of 1024) and `"64MB"` (of 1000), or integers of bytes; durations are strings such
//! as `"20ms"` (`ns`, `us`, `ms`, `s`). Rust names carry the unit.

mod cross;
mod engine;
mod error;
mod keys;
mod limits;
mod load;
mod memory;
mod peer;
mod ranges;
mod reader;
mod report;
mod resolve;
mod secret;
mod service;
mod suggest;
mod timeouts;
mod units;
mod value;
mod verbs;

pub use engine::{EngineConfig, IdlePolicy};
pub use error::{ConfigError, ConfigErrors};
pub use keyfence_mempool::{PageSize, Policy};
pub use load::{LoadConfig, Minima, OperationMix, Troubles};
pub use memory::{MemoryConfig, PoolConfig};
pub use peer::{PeerAddress, PeerConfig};
pub use service::{OptionKind, OptionValue, ServiceConfig, ServiceKind};
pub use timeouts::Timeouts;
pub use units::{UnitError, parse_bytes, parse_duration_ns, show_bytes, show_ns};
pub use verbs::{KeyMode, VerbsConfig};

use std::path::Path;

use toml::de::DeTable;

use crate::limits::Limits;
use report::Report;

/// A whole file. `memory`, `limits`, `timeouts` and `verbs` hold for each engine of it.
#[derive(Clone, PartialEq, Debug)]
pub struct Config {
    /// `[[engine]]`, at least one.
    pub engines: Vec<EngineConfig>,
    /// `[memory]`
    pub memory: MemoryConfig,
    /// `[limits]`
    pub limits: Limits,
    /// `[timeouts]`
    pub timeouts: Timeouts,
    /// `[verbs]`
    pub verbs: VerbsConfig,
    /// `[[peer]]`
    pub peers: Vec<PeerConfig>,
    /// `[[service]]`
    pub services: Vec<ServiceConfig>,
    /// `[load]`, for a run under load alone.
    pub load: Option<LoadConfig>,
}

/// What the reading program can start; the runtime itself knows no device and no service by name.
#[derive(Clone, Copy, Debug)]
pub struct Catalog<'a> {
    /// Devices, the default first.
    pub devices: &'a [&'a str],
    /// Kinds of service.
    pub services: &'a [ServiceKind],
}

impl Config {
    /// Reads the file at `path`, and the secret files that it names, once: relative ones are taken from its folder, and one that
    /// others can read is refused. Called at start; reads files, and holds nothing open.
    pub fn load(path: &Path, catalog: Catalog<'_>) -> Result<Self, ConfigErrors> {
        let file = path.display().to_string();
        let source = std::fs::read_to_string(path).map_err(|error| unreadable(&file, &error))?;
        let folder = path.parent().unwrap_or(Path::new(""));
        Self::read(&file, &source, catalog, Some(folder))
    }

    /// Reads `source`, which `file` names in errors. Touches no file. No text panics.
    ///
    /// ```
    /// use keyfence::config::{Catalog, Config};
    /// let catalog = Catalog { devices: &["nic"], services: &[] };
    /// let errors = Config::parse("a.toml", "[[engine]]\nname = \"a\"\nlcore = [0]\n", catalog).unwrap_err();
    /// let lines: Vec<String> = errors.as_slice().iter().map(ToString::to_string).collect();
    /// assert!(lines[0].starts_with("a.toml:1:1: engine.lcores: is missing; allowed: "));
    /// assert!(lines[1].starts_with("a.toml:3:1: engine.lcore: unknown key, did you mean lcores?"));
    /// ```
    pub fn parse(file: &str, source: &str, catalog: Catalog<'_>) -> Result<Self, ConfigErrors> {
        Self::read(file, source, catalog, None)
    }

    /// All keys, as the table and the names of its keys; for tools and tests.
    #[must_use]
    pub fn keys() -> Vec<(&'static str, Vec<&'static str>)> {
        keys::tables().into()
    }

    fn read(
        file: &str,
        source: &str,
        catalog: Catalog<'_>,
        folder: Option<&Path>,
    ) -> Result<Self, ConfigErrors> {
        let mut report = Report::new(file, source, catalog);
        let (root, errors) = DeTable::parse_recoverable(source);
        for error in errors {
            let offset = error.span().map_or(0, |span| span.start);
            let (what, expected) = error
                .message()
                .split_once(", expected ")
                .unwrap_or((error.message(), "TOML 1.0"));
            report.refuse_syntax(offset, what, expected);
        }
        let mut draft = keys::Draft::default();
        reader::read_entries(
            &mut report,
            &report::Path::default(),
            root.get_ref(),
            keys::ROOT_KEYS,
            &mut draft,
        );
        let mut config = resolve::resolve(draft, &mut report);
        cross::check(&config, &mut report);
        if let Some(folder) = folder {
            secret::read(&mut config.peers, folder, &mut report);
        }
        report.finish().map(|()| config)
    }
}

fn unreadable(file: &str, error: &std::io::Error) -> ConfigErrors {
    ConfigErrors(vec![ConfigError {
        file: file.escape_debug().to_string(),
        line: 0,
        column: 0,
        key: "file".into(),
        what: format!("cannot be read: {error}"),
        allowed: "a TOML file in UTF-8".into(),
    }])
}
