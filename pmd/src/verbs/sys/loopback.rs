//! What only `probe` needs of the libraries: connecting two queue pairs of one adapter without a connection manager, a peer's
//! SEND_WITH_INV, which the driver never posts, and what is said of fork.
//!
//! Unsafe because it calls libibverbs, and reads and writes unions of C.

use std::io;
use std::mem::MaybeUninit;
use std::ptr;

use rdma_mummy_sys as ib;

use super::check;
use super::device::Context;
use super::objects::{Qp, RemoteAccess};

/// Where packets of a port that are meant for itself go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route {
    pub(crate) port: u8,
    lid: u16,
    /// `enum ibv_mtu`.
    mtu: u32,
    /// A packet names its target by this entry of the GID table, and not only by the LID.
    gid: Option<(u8, [u8; 16])>,
}

/// What happens to registered memory when the process forks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ForkStatus {
    /// The kernel copies pinned pages for the child at once.
    Unneeded,
    /// `ibv_fork_init` was called.
    Enabled,
    /// The child can take a page away from the adapter.
    Disabled,
    /// A word that is not known here.
    Unknown(u32),
}

pub(crate) fn fork_status() -> ForkStatus {
    // SAFETY: takes nothing.
    match unsafe { ib::ibv_is_fork_initialized() } {
        ib::IBV_FORK_UNNEEDED => ForkStatus::Unneeded,
        ib::IBV_FORK_ENABLED => ForkStatus::Enabled,
        ib::IBV_FORK_DISABLED => ForkStatus::Disabled,
        other => ForkStatus::Unknown(other),
    }
}

impl Context {
    /// The way from a port to itself. An Ethernet port needs an entry of the GID table: the one wanted, else the first of an IPv4 address,
    /// else the first that is set.
    pub(crate) fn route_to_itself(&self, port: u8, wanted_gid: Option<u8>) -> io::Result<Route> {
        // SAFETY: plain C data, for which zeros are valid.
        let mut of_port: ib::ibv_port_attr = unsafe { MaybeUninit::zeroed().assume_init() };
        // SAFETY: the context is open and `of_port` writable.
        check(unsafe { ib::ibv_query_port(self.raw(), port, &raw mut of_port) })?;
        let ethernet = of_port.link_layer == ib::IBV_LINK_LAYER_ETHERNET;
        let entries = u8::try_from(of_port.gid_tbl_len).unwrap_or(u8::MAX);
        let gid = match wanted_gid {
            Some(index) => Some((index, self.gid(port, index)?)),
            None if ethernet => self.first_gid(port, entries),
            None => None,
        };
        if ethernet && gid.is_none() {
            return Err(io::Error::other("its GID table is empty"));
        }
        Ok(Route {
            port,
            lid: of_port.lid,
            mtu: of_port.active_mtu,
            gid,
        })
    }

    fn first_gid(&self, port: u8, entries: u8) -> Option<(u8, [u8; 16])> {
        let entry = |index| Some((index, self.gid(port, index).ok()?));
        let is_set = |(_, gid): &(u8, [u8; 16])| gid.iter().any(|byte| *byte != 0);
        let set = || (0..entries).filter_map(entry).filter(is_set);
        const OF_IPV4: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
        let of_ipv4 = set().find(|(_, gid)| gid.starts_with(&OF_IPV4));
        of_ipv4.or_else(|| set().next())
    }

    fn gid(&self, port: u8, index: u8) -> io::Result<[u8; 16]> {
        let mut gid = ib::ibv_gid { raw: [0; 16] };
        // SAFETY: the context is open and `gid` writable.
        check(unsafe { ib::ibv_query_gid(self.raw(), port, index.into(), &raw mut gid) })?;
        // SAFETY: every pattern of bits is an array of bytes.
        Ok(unsafe { gid.raw })
    }
}

impl Qp {
    /// From reset to ready: its peer is the queue pair of this number on the same port.
    pub(crate) fn connect_to(
        &self,
        peer: u32,
        route: &Route,
        resources: (u8, u8),
    ) -> io::Result<()> {
        use ib::ibv_qp_attr_mask as mask;
        self.initialise(route.port, RemoteAccess { atomics: true })?;
        // SAFETY: plain C data, for which zeros are valid.
        let mut attr: ib::ibv_qp_attr = unsafe { MaybeUninit::zeroed().assume_init() };
        attr.qp_state = ib::ibv_qp_state::IBV_QPS_RTR;
        attr.path_mtu = route.mtu;
        attr.dest_qp_num = peer;
        attr.max_dest_rd_atomic = resources.0;
        attr.min_rnr_timer = 12;
        attr.ah_attr.dlid = route.lid;
        attr.ah_attr.port_num = route.port;
        if let Some((index, gid)) = route.gid {
            attr.ah_attr.is_global = 1;
            attr.ah_attr.grh.dgid = ib::ibv_gid { raw: gid };
            attr.ah_attr.grh.sgid_index = index;
            attr.ah_attr.grh.hop_limit = 64;
        }
        let set = mask::IBV_QP_STATE
            | mask::IBV_QP_AV
            | mask::IBV_QP_PATH_MTU
            | mask::IBV_QP_DEST_QPN
            | mask::IBV_QP_RQ_PSN
            | mask::IBV_QP_MAX_DEST_RD_ATOMIC
            | mask::IBV_QP_MIN_RNR_TIMER;
        self.modify(&mut attr, set.0)?;
        // SAFETY: plain C data, for which zeros are valid.
        let mut attr: ib::ibv_qp_attr = unsafe { MaybeUninit::zeroed().assume_init() };
        attr.qp_state = ib::ibv_qp_state::IBV_QPS_RTS;
        attr.timeout = 14;
        attr.retry_cnt = 6;
        attr.rnr_retry = 6;
        attr.max_rd_atomic = resources.1;
        let set = mask::IBV_QP_STATE
            | mask::IBV_QP_TIMEOUT
            | mask::IBV_QP_RETRY_CNT
            | mask::IBV_QP_RNR_RETRY
            | mask::IBV_QP_SQ_PSN
            | mask::IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify(&mut attr, set.0)
    }

    /// Sends a message without bytes that asks the peer's adapter to end one of the peer's keys. Signaled.
    pub(crate) fn send_with_invalidation(&self, wr_id: u64, rkey: u32) -> io::Result<()> {
        // SAFETY: plain C data, for which zeros are valid.
        let mut send: ib::ibv_send_wr = unsafe { MaybeUninit::zeroed().assume_init() };
        send.wr_id = wr_id;
        send.opcode = ib::ibv_wr_opcode::IBV_WR_SEND_WITH_INV;
        send.send_flags = ib::ibv_send_flags::IBV_SEND_SIGNALED.0;
        send.imm_data_invalidated_rkey_union = ib::imm_data_invalidated_rkey_union_t {
            invalidated_rkey: rkey,
        };
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair is alive, and the list is this one request without entries.
        check(unsafe { ib::ibv_post_send(self.raw(), &raw mut send, &raw mut bad) })
    }
}
