//! What the adapter's statuses mean in the contract.

use rdma_mummy_sys::ibv_wc_status as wc;

use crate::completion::{CompletionKind, WcStatus};

/// Whose completion it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    Sender(CompletionKind),
    Receiver,
}

/// The contract's word for `enum ibv_wc_status`.
pub(crate) fn translate(status: u32, side: Side) -> WcStatus {
    let local = matches!(
        side,
        Side::Sender(CompletionKind::Bind | CompletionKind::Invalidate)
    );
    match status {
        wc::IBV_WC_SUCCESS => WcStatus::Success,
        wc::IBV_WC_WR_FLUSH_ERR => WcStatus::Flushed,
        // All that such a request can be refused for; adapters differ in the word.
        wc::IBV_WC_LOC_QP_OP_ERR
        | wc::IBV_WC_LOC_PROT_ERR
        | wc::IBV_WC_LOC_ACCESS_ERR
        | wc::IBV_WC_LOC_LEN_ERR
            if local =>
        {
            WcStatus::MemoryWindowBind
        }
        wc::IBV_WC_MW_BIND_ERR => WcStatus::MemoryWindowBind,
        wc::IBV_WC_LOC_LEN_ERR => WcStatus::LocalLength,
        // The limits are checked before posting, so what is left of "operation error" is a local key (Soft-RoCE says so of unknown ones).
        wc::IBV_WC_LOC_PROT_ERR | wc::IBV_WC_LOC_ACCESS_ERR | wc::IBV_WC_LOC_QP_OP_ERR => {
            WcStatus::LocalProtection
        }
        // Soft-RoCE gives the receive that was too short the word that it sends to the peer.
        wc::IBV_WC_REM_INV_REQ_ERR if side == Side::Receiver => WcStatus::LocalLength,
        wc::IBV_WC_REM_INV_REQ_ERR | wc::IBV_WC_REM_INV_RD_REQ_ERR => {
            WcStatus::RemoteInvalidRequest
        }
        wc::IBV_WC_REM_ACCESS_ERR => WcStatus::RemoteAccess,
        wc::IBV_WC_REM_OP_ERR | wc::IBV_WC_REM_ABORT_ERR => WcStatus::RemoteOperation,
        wc::IBV_WC_RETRY_EXC_ERR | wc::IBV_WC_RESP_TIMEOUT_ERR => WcStatus::RetryExceeded,
        wc::IBV_WC_RNR_RETRY_EXC_ERR => WcStatus::RnrRetryExceeded,
        _ => WcStatus::General,
    }
}
