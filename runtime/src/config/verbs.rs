//! `[verbs]`: settings of RDMA adapters. An engine on another device ignores them.

use super::reader::{Item, Key, Kind, refuse};
use super::report::{Path, Report};
use super::value;
pub use keyfence_pmd::probe::KeyMode;

/// How an adapter is opened, and how its queue pairs are set up.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VerbsConfig {
    /// `device`: the adapter's name (`mlx5_0`). Left out: the only one there is.
    pub device: Option<String>,
    /// `port`: its port, 1 to 255.
    pub port: u32,
    /// `gid_index`: index in the port's GID table, 0 to 255. Left out: the one of the address that is listened on or connected from.
    pub gid_index: Option<u32>,
    /// `mtu`: path MTU in bytes: 256, 512, 1024, 2048 or 4096; both sides must have the same. Left out: what the port has.
    pub mtu_bytes: Option<u32>,
    /// `traffic_class`: of the packets' global route header, 0 to 255.
    pub traffic_class: u32,
    /// `retry_cnt`: transport retries, 0 to 6. 7 is refused: some adapters then retry for ever, and a reclaim must end (R6).
    pub retry_count: u32,
    /// `rnr_retry`: retries for want of a receive, 0 to 6. 7 means for ever.
    pub rnr_retry_count: u32,
    /// `timeout`: local ACK timeout of 4.096 us x 2^n, 1 to 31. 0 means for ever.
    pub ack_timeout_exponent: u32,
    /// `key_mode`: how a grant's key is made. `None` (`"auto"` in the file): the reading program decides by a self-test of the adapter, before it
    /// builds the engine ([`EngineBuilder::key_mode`](crate::EngineBuilder::key_mode)).
    pub key_mode: Option<KeyMode>,
}

impl Default for VerbsConfig {
    fn default() -> Self {
        Self {
            device: None,
            port: 1,
            gid_index: None,
            mtu_bytes: None,
            traffic_class: 0,
            retry_count: 6,
            rnr_retry_count: 6,
            ack_timeout_exponent: 14,
            key_mode: None,
        }
    }
}

pub(super) const KEYS: &[Key<VerbsConfig>] = &[
    Key::optional(
        "device",
        Kind::Text(
            |text| !text.is_empty(),
            "the name of an adapter",
            |v, text| v.device = Some(text.into()),
        ),
    ),
    Key::optional("port", Kind::Count(1, 255, |v| &mut v.port)),
    Key::optional("gid_index", Kind::Nested(read_gid_index)),
    Key::optional("mtu", Kind::Nested(read_mtu)),
    Key::optional(
        "traffic_class",
        Kind::Count(0, 255, |v| &mut v.traffic_class),
    ),
    Key::optional("retry_cnt", Kind::Count(0, 6, |v| &mut v.retry_count)),
    Key::optional("rnr_retry", Kind::Count(0, 6, |v| &mut v.rnr_retry_count)),
    Key::optional(
        "timeout",
        Kind::Count(1, 31, |v| &mut v.ack_timeout_exponent),
    ),
    Key::optional(
        "key_mode",
        Kind::Word(&["auto", "window", "region"], |v, index| {
            v.key_mode = KEY_MODES[index]
        }),
    ),
];

const KEY_MODES: [Option<KeyMode>; 3] = [None, Some(KeyMode::Window), Some(KeyMode::Region)];
const MTUS_BYTES: [u64; 5] = [256, 512, 1024, 2048, 4096];

fn read_gid_index(verbs: &mut VerbsConfig, item: &Item<'_>, path: &Path, report: &mut Report<'_>) {
    match value::count(item.get_ref(), 0, 255) {
        Ok(index) => verbs.gid_index = Some(index as u32),
        Err(refusal) => report.refuse_at(path, item.span().start, refusal.what, refusal.allowed),
    }
}

fn read_mtu(verbs: &mut VerbsConfig, item: &Item<'_>, path: &Path, report: &mut Report<'_>) {
    let mtu = value::count(item.get_ref(), 256, 4096)
        .ok()
        .filter(|bytes| MTUS_BYTES.contains(bytes));
    match mtu {
        Some(bytes) => verbs.mtu_bytes = Some(bytes as u32),
        None => refuse(report, path, item, format!("one of {MTUS_BYTES:?}")),
    }
}
