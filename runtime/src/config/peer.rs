//! `[[peer]]`: the engines that an engine talks to. Nobody else is admitted.

use std::fmt;
use std::path::PathBuf;

use super::engine::{NAME_RULE, is_name};
use super::reader::{Key, Kind};
use crate::session::Secret;

/// One peer of one engine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeerConfig {
    /// `name`: the name of the peer's engine, as its hello says it. Unique among the peers of `engine`.
    pub name: String,
    /// `engine`: index in [`Config::engines`](super::Config::engines) of the engine that has this peer; may be left out where the file has one engine.
    pub engine: usize,
    /// `address`: where it is.
    pub address: PeerAddress,
    /// `lcores`: how many lcores it has, for the byte budget. Known for a `local:` one; 1 if left out.
    pub lcores: u32,
    /// `secret_file`: the shared secret of the admission, 32 bytes to 4 KiB from a random source, each of which counts. Must not be readable by others. Optional
    /// for `local:` (then for both engines) and `shm:`, required for `rdma:`. Relative to the configuration file.
    pub secret_file: Option<PathBuf>,
    /// What is in it, read once by [`Config::load`](super::Config::load).
    pub secret: Option<Secret>,
}

/// Where a peer is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PeerAddress {
    /// `"local:NAME"`: the engine of that name in this process.
    Local(String),
    /// `"shm:NAME"`: a process of this host.
    Shm(String),
    /// `"rdma:HOST:PORT"`: a host on the fabric.
    Rdma {
        /// A host name or an address; an IPv6 address in brackets, kept.
        host: String,
        /// 1 to 65535.
        port: u16,
    },
}

impl fmt::Display for PeerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local(name) => write!(f, "local:{name}"),
            Self::Shm(name) => write!(f, "shm:{name}"),
            Self::Rdma { host, port } => write!(f, "rdma:{host}:{port}"),
        }
    }
}

impl Default for PeerConfig {
    fn default() -> Self {
        Self {
            name: String::new(),
            engine: 0,
            address: PeerAddress::default(),
            lcores: 1,
            secret_file: None,
            secret: None,
        }
    }
}

impl Default for PeerAddress {
    fn default() -> Self {
        Self::Local(String::new())
    }
}

/// The engine is named in the file.
#[derive(Default)]
pub(super) struct PeerDraft {
    pub(super) config: PeerConfig,
    pub(super) engine: Option<String>,
}

pub(super) const KEYS: &[Key<PeerDraft>] = &[
    Key::required(
        "name",
        Kind::Text(is_name, NAME_RULE, |p, text| p.config.name = text.into()),
    ),
    Key::optional(
        "engine",
        Kind::Text(is_name, NAME_RULE, |p, text| p.engine = Some(text.into())),
    ),
    Key::required("address", Kind::Text(is_address, ADDRESS_RULE, set_address)),
    Key::optional("lcores", Kind::Count(1, 64, |p| &mut p.config.lcores)),
    Key::optional(
        "secret_file",
        Kind::Text(
            |text| !text.is_empty() && !text.chars().any(char::is_control),
            "the path of a file, without control characters",
            |p, text| p.config.secret_file = Some(text.into()),
        ),
    ),
];

const ADDRESS_RULE: &str =
    "\"local:NAME\" for an engine of this file, \"shm:NAME\" or \"rdma:HOST:PORT\"";

fn is_address(text: &str) -> bool {
    parse_address(text).is_some()
}

fn set_address(peer: &mut PeerDraft, text: &str) {
    peer.config.address = parse_address(text).expect("only legal texts are set");
}

/// The address that a text says.
pub(super) fn parse_address(text: &str) -> Option<PeerAddress> {
    let (scheme, rest) = text.split_once(':')?;
    match scheme {
        "local" => is_name(rest).then(|| PeerAddress::Local(rest.into())),
        "shm" => is_name(rest).then(|| PeerAddress::Shm(rest.into())),
        "rdma" => {
            let (host, port) = rest.rsplit_once(':')?;
            let is_bracketed = host.starts_with('[') && host.ends_with(']');
            let is_host = !host.is_empty() && (is_bracketed || !host.contains(':'));
            let port = port
                .bytes()
                .all(|byte| byte.is_ascii_digit())
                .then_some(port)?
                .parse()
                .ok()?;
            (is_host && port > 0).then(|| PeerAddress::Rdma {
                host: host.into(),
                port,
            })
        }
        _ => None,
    }
}
