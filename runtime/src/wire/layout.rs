//! The bytes as they lie on the wire: no padding, no alignment, any bit pattern is a value. Meaning is checked in `decode`.
//! All is public in a private module: the trait behind `List` names some of it.

use zerocopy::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

macro_rules! layouts {
    ($($(#[$doc:meta])* struct $name:ident { $($field:ident: $type:ty),* $(,)? })*) => {$(
        $(#[$doc])*
        #[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
        #[repr(C)]
        pub struct $name { $(pub $field: $type),* }
    )*};
}

layouts! {
    struct Header {
        kind: u8,
        flags: u8,
        src_slot: U16,
        dst_slot: U16,
        reserved: U16,
        src_generation: U32,
        dst_generation: U32,
        lane_credit: U32,
        sequence: U32,
    }

    // The version comes first: an engine that speaks another one must be able to say which.
    struct Hello {
        version: U16,
        role: u8,
        name_len: u8,
        session: U32,
        incarnation: U128,
        lane: U16,
        source_lcore: U16,
        target_lcore: U16,
        siblings: U16,
        lcores: U16,
        repair: U32,
        qp: U32,
        contexts: U32,
        grants: U32,
        frame_bytes: U32,
        receive_depth: U32,
        messages_per_context: U32,
        lane_bytes_cap: U64,
        slowest_rate: U64,
        fence_timeout_ns: U64,
        mac: [u8; 16],
    }

    struct Lookup {
        request: U32,
        name_len: u8,
    }

    struct LookupReply {
        request: U32,
        lcore: U16,
        slot: U16,
        generation: U32,
        credit: U32,
    }

    struct Grant {
        grant: U64,
        rkey: U32,
        rights: u8,
        reserved: [u8; 3],
        address: U64,
        len: U64,
        lease_ns: U64,
    }

    struct Revoke {
        epoch: U64,
        count: U16,
    }

    // Ahead of a list that has nothing else.
    struct Count {
        count: U16,
    }

    struct CreditLimit {
        slot: U16,
        generation: U32,
        limit: U32,
    }

    struct Context {
        slot: U16,
        generation: U32,
    }

    struct Begin {
        repair: U32,
        received: U32,
    }

    struct Landed {
        grant: U64,
        immediate: U32,
        bytes: U64,
    }

    struct ContextGone {
        slot: U16,
        reserved: U16,
        generation: U32,
        quarantined_keys: U32,
        quarantined_bytes: U64,
    }
}

/// Bits of `Grant::rights`.
pub(super) const RIGHT_READ: u8 = 1;
pub(super) const RIGHT_WRITE: u8 = 2;
pub(super) const RIGHT_ATOMIC: u8 = 4;
/// All of them.
pub(super) const RIGHTS: u8 = RIGHT_READ | RIGHT_WRITE | RIGHT_ATOMIC;
