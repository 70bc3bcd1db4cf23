//! `[[peer]]`: the engines that an engine talks to. Nobody else is admitted.

use std::path::PathBuf;

/// One peer of one engine.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PeerConfig {
    /// `name`: the name of the peer's engine, as its hello says it. Unique among the peers of `engine`.
    pub name: String,
    /// `engine`: index in [`Config::engines`](super::Config::engines) of the engine that has this peer; may be left out where the file has one engine.
    pub engine: usize,
    /// `address`: where it is.
    pub address: PeerAddress,
    /// `lcores`: how many lcores it has, for the byte budget. Known for a `local:` one; 1 if left out.
    pub lcores: u32,
    /// `secret_file`: the shared secret of the admission. Must not be readable by others. None for `local:`, optional for `shm:`, required for
    /// `rdma:`. Relative to the configuration file.
    pub secret_file: Option<PathBuf>,
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

impl Default for PeerAddress {
    fn default() -> Self {
        Self::Local(String::new())
    }
}
