//! Posting by lists (`ibv_post_send`).
//!
//! Unsafe because it hands a list to libibverbs, and reads and writes unions of C.

use std::ptr;

use rdma_mummy_sys as ib;

use super::objects::Mw;
use super::post::{Posting, SendOp, bind_info, posted, set_raw_rkey};
use crate::work::{Remote, Sge};

/// `ibv_post_send`.
impl<'a> Posting<'a> {
    pub(super) fn push_listed(
        &mut self,
        (wr_id, flags): (u64, u32),
        op: SendOp<'a>,
        sges: &[Sge],
        inline: Option<usize>,
    ) {
        let at = self.len;
        let mut num_sge = self.chain.set_sges(at, sges);
        if let Some(bytes) = inline {
            let start = at * self.chain.inline_bytes;
            let source = self.chain.inline[start..start + bytes].as_ptr();
            self.chain.sges[at][0] = ib::ibv_sge {
                addr: source as u64,
                length: bytes as u32,
                lkey: 0,
            };
            num_sge = i32::from(bytes > 0);
        }
        let sg_list = self.chain.sges[at].as_mut_ptr();
        let send = &mut self.chain.sends[at];
        send.wr_id = wr_id;
        send.sg_list = sg_list;
        send.num_sge = num_sge;
        send.send_flags = flags;
        set_op(send, op);
    }

    pub(super) fn submit_list(&mut self, len: usize) -> usize {
        for at in 1..len {
            self.chain.sends[at - 1].next = &raw mut self.chain.sends[at];
        }
        self.chain.sends[len - 1].next = ptr::null_mut();
        let first: *mut ib::ibv_send_wr = self.chain.sends.as_mut_ptr();
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair is alive, the list and its entries lie in the chain, and `'a` keeps the windows and regions that binds name.
        let returned = unsafe { ib::ibv_post_send(self.qp.raw(), first, &raw mut bad) };
        for send in &self.chain.sends[..len] {
            if send.opcode == ib::ibv_wr_opcode::IBV_WR_BIND_MW {
                // SAFETY: the opcode says that this is the member that was written.
                let bind = unsafe { send.bind_mw_tso_union.bind_mw };
                set_raw_rkey(bind.mw, bind.rkey);
            }
        }
        posted(returned, first, bad, len)
    }

    /// Whether a bind of this window waits for the doorbell.
    pub(super) fn binds_already(&self, window: &Mw) -> bool {
        self.chain.sends[..self.len].iter().any(|send| {
            send.opcode == ib::ibv_wr_opcode::IBV_WR_BIND_MW && {
                // SAFETY: the opcode says that this is the member that was written.
                let bind = unsafe { send.bind_mw_tso_union.bind_mw };
                ptr::eq(bind.mw, window.raw())
            }
        })
    }
}

fn set_op(send: &mut ib::ibv_send_wr, op: SendOp<'_>) {
    use ib::ibv_wr_opcode as opcode;
    let rdma = |remote: Remote| ib::wr_t {
        rdma: ib::rdma_t {
            remote_addr: remote.address,
            rkey: remote.rkey.0,
        },
    };
    let atomic = |remote: Remote, compare_add, swap| ib::wr_t {
        atomic: ib::atomic_t {
            remote_addr: remote.address,
            compare_add,
            swap,
            rkey: remote.rkey.0,
        },
    };
    let imm_data = |immediate: u32| ib::imm_data_invalidated_rkey_union_t {
        imm_data: immediate.to_be(),
    };
    // Soft-RoCE's library refuses a bind with immediate data.
    send.imm_data_invalidated_rkey_union = ib::imm_data_invalidated_rkey_union_t { imm_data: 0 };
    match op {
        SendOp::Write(remote, immediate) => {
            send.opcode = opcode::IBV_WR_RDMA_WRITE;
            send.wr = rdma(remote);
            if let Some(immediate) = immediate {
                send.opcode = opcode::IBV_WR_RDMA_WRITE_WITH_IMM;
                send.imm_data_invalidated_rkey_union = imm_data(immediate);
            }
        }
        SendOp::Read(remote) => {
            send.opcode = opcode::IBV_WR_RDMA_READ;
            send.wr = rdma(remote);
        }
        SendOp::Send(immediate) => {
            send.opcode = opcode::IBV_WR_SEND;
            if let Some(immediate) = immediate {
                send.opcode = opcode::IBV_WR_SEND_WITH_IMM;
                send.imm_data_invalidated_rkey_union = imm_data(immediate);
            }
        }
        SendOp::FetchAdd(remote, add) => {
            send.opcode = opcode::IBV_WR_ATOMIC_FETCH_AND_ADD;
            send.wr = atomic(remote, add, 0);
        }
        SendOp::CompareSwap(remote, expected, desired) => {
            send.opcode = opcode::IBV_WR_ATOMIC_CMP_AND_SWP;
            send.wr = atomic(remote, expected, desired);
        }
        SendOp::Bind { .. } => {
            if let Some((window, rkey, bind_info)) = bind_info(op) {
                let mw = window.raw();
                send.opcode = opcode::IBV_WR_BIND_MW;
                send.bind_mw_tso_union.bind_mw = ib::bind_mw_t {
                    mw,
                    rkey,
                    bind_info,
                };
            }
        }
        SendOp::Invalidate(invalidated_rkey) => {
            send.opcode = opcode::IBV_WR_LOCAL_INV;
            send.imm_data_invalidated_rkey_union =
                ib::imm_data_invalidated_rkey_union_t { invalidated_rkey };
        }
    }
}
