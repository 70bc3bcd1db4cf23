//! `[verbs]`: settings of RDMA adapters. An engine on another device ignores them.

/// How an adapter is opened, and how its queue pairs are set up.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VerbsConfig {
    /// `device`: the adapter's name (`mlx5_0`). Left out: the only one there is.
    pub device: Option<String>,
    /// `port`: its port, counted from 1.
    pub port: u8,
    /// `gid_index`: index in the port's GID table.
    pub gid_index: u8,
    /// `mtu`: path MTU in bytes: 256, 512, 1024, 2048 or 4096.
    pub mtu_bytes: u32,
    /// `traffic_class`
    pub traffic_class: u8,
    /// `retry_cnt`: transport retries, 0 to 6. 7 is refused: some adapters then retry for ever, and a reclaim must end (R6).
    pub retry_count: u8,
    /// `rnr_retry`: retries for want of a receive, 0 to 6. 7 means for ever.
    pub rnr_retry_count: u8,
    /// `timeout`: local ACK timeout of 4.096 us x 2^n, 1 to 31. 0 means for ever.
    pub ack_timeout_exponent: u8,
    /// `key_mode`: how a grant's key is made.
    pub key_mode: KeyMode,
}

/// How a grant's key is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum KeyMode {
    /// `"auto"`: the cheapest that enforces byte range, rights and lane, found by a self-test at start.
    #[default]
    Auto,
    /// `"window"`: a type-2B memory window, bound and invalidated through the send queue.
    Window,
    /// `"region"`: a memory region a grant, in a protection domain a peer.
    Region,
}

impl Default for VerbsConfig {
    fn default() -> Self {
        Self {
            device: None,
            port: 1,
            gid_index: 0,
            mtu_bytes: 1024,
            traffic_class: 0,
            retry_count: 6,
            rnr_retry_count: 6,
            ack_timeout_exponent: 14,
            key_mode: KeyMode::Auto,
        }
    }
}
