//! The keys of `[limits]`, `[limits.context]` and `[limits.peer]`. The least of each is that of [`Limits::TEST_MIN`].

use super::reader::{Key, Kind, read_table};
use crate::limits::{ContextLimits, Limits, PeerLimits};

const MIN: Limits = Limits::TEST_MIN;
const MANY: u32 = 1 << 20;
const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;

pub(super) const KEYS: &[Key<Limits>] = &[
    Key::optional(
        "contexts",
        Kind::Count(MIN.contexts, u16::MAX as u32, |l| &mut l.contexts),
    ),
    Key::optional("grants", Kind::Count(MIN.grants, MANY, |l| &mut l.grants)),
    Key::optional(
        "imports",
        Kind::Count(MIN.imports, MANY, |l| &mut l.imports),
    ),
    Key::optional(
        "buffers",
        Kind::Count(MIN.buffers, 1 << 24, |l| &mut l.buffers),
    ),
    Key::optional(
        "ops_in_flight",
        Kind::Count(MIN.ops_in_flight, MANY, |l| &mut l.ops_in_flight),
    ),
    Key::optional(
        "bytes_in_flight",
        Kind::Bytes(MIN.bytes_in_flight, TIB, 1, |l| &mut l.bytes_in_flight),
    ),
    Key::optional("lanes", Kind::Count(MIN.lanes, 16, |l| &mut l.lanes)),
    Key::optional(
        "send_depth",
        Kind::Count(MIN.send_depth, 32_768, |l| &mut l.send_depth),
    ),
    Key::optional(
        "receive_depth",
        Kind::Count(MIN.receive_depth, 32_768, |l| &mut l.receive_depth),
    ),
    Key::optional(
        "windows",
        Kind::Count(MIN.windows, MANY, |l| &mut l.windows),
    ),
    Key::optional(
        "lane_bytes_in_flight",
        Kind::Bytes(MIN.lane_bytes_in_flight, GIB, 1, |l| {
            &mut l.lane_bytes_in_flight
        }),
    ),
    Key::optional(
        "slowest_rate",
        Kind::Bytes(MIN.slowest_rate_bytes_per_s, TIB, 1, |l| {
            &mut l.slowest_rate_bytes_per_s
        }),
    ),
    Key::optional(
        "slice",
        Kind::Bytes(MIN.slice_bytes, GIB, 1, |l| &mut l.slice_bytes),
    ),
    Key::optional(
        "flush_watermark",
        Kind::Count(MIN.flush_watermark, MANY, |l| &mut l.flush_watermark),
    ),
    Key::optional(
        "reclaim_budget",
        Kind::Count(MIN.reclaim_budget_wrs, 4096, |l| &mut l.reclaim_budget_wrs),
    ),
    Key::optional(
        "zero_budget",
        Kind::Bytes(MIN.zero_budget_bytes, GIB, 1, |l| &mut l.zero_budget_bytes),
    ),
    Key::optional(
        "epochs",
        Kind::Count(MIN.epochs, u16::MAX as u32, |l| &mut l.epochs),
    ),
    Key::optional(
        "rebuilds",
        Kind::Count(MIN.rebuilds, 1024, |l| &mut l.rebuilds),
    ),
    Key::optional(
        "trace_records",
        Kind::Count(MIN.trace_records, 1 << 24, |l| &mut l.trace_records),
    ),
    Key::optional(
        "context",
        Kind::Nested(|l, item, path, report| {
            read_table(report, path, item, CONTEXT_KEYS, &mut l.context)
        }),
    ),
    Key::optional(
        "peer",
        Kind::Nested(|l, item, path, report| {
            read_table(report, path, item, PEER_KEYS, &mut l.peer)
        }),
    ),
];

pub(super) const CONTEXT_KEYS: &[Key<ContextLimits>] = &[
    Key::optional(
        "grants",
        Kind::Count(MIN.context.grants, MANY, |c| &mut c.grants),
    ),
    Key::optional(
        "imports",
        Kind::Count(MIN.context.imports, MANY, |c| &mut c.imports),
    ),
    Key::optional(
        "exposed_bytes",
        Kind::Bytes(MIN.context.exposed_bytes, TIB, 1, |c| &mut c.exposed_bytes),
    ),
    Key::optional(
        "buffers",
        Kind::Count(MIN.context.buffers, 1 << 24, |c| &mut c.buffers),
    ),
    Key::optional(
        "ops_in_flight",
        Kind::Count(MIN.context.ops_in_flight, MANY, |c| &mut c.ops_in_flight),
    ),
    Key::optional(
        "bytes_in_flight",
        Kind::Bytes(MIN.context.bytes_in_flight, TIB, 1, |c| {
            &mut c.bytes_in_flight
        }),
    ),
    Key::optional(
        "messages",
        Kind::Count(MIN.context.messages, 32_768, |c| &mut c.messages),
    ),
    Key::optional(
        "offences",
        Kind::Count(MIN.context.offences, 1024, |c| &mut c.offences),
    ),
];

pub(super) const PEER_KEYS: &[Key<PeerLimits>] = &[
    Key::optional(
        "grants",
        Kind::Count(MIN.peer.grants, MANY, |p| &mut p.grants),
    ),
    Key::optional(
        "imports",
        Kind::Count(MIN.peer.imports, MANY, |p| &mut p.imports),
    ),
    Key::optional(
        "exposed_bytes",
        Kind::Bytes(MIN.peer.exposed_bytes, TIB, 1, |p| &mut p.exposed_bytes),
    ),
    Key::optional(
        "parked_keys",
        Kind::Count(MIN.peer.parked_keys, MANY, |p| &mut p.parked_keys),
    ),
];
