//! Completions as the adapter writes them.
//!
//! Unsafe because libibverbs writes them, and a union of C is read.

use std::mem::MaybeUninit;

use rdma_mummy_sys as ib;

use super::objects::Cq;

/// A completion as the adapter writes it.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Wc(ib::ibv_wc);

impl Wc {
    pub(crate) fn empty() -> Self {
        // SAFETY: plain C data, for which zeros are valid.
        Self(unsafe { MaybeUninit::zeroed().assume_init() })
    }

    #[inline]
    pub(crate) fn wr_id(&self) -> u64 {
        self.0.wr_id
    }

    /// `enum ibv_wc_status`.
    #[inline]
    pub(crate) fn status(&self) -> u32 {
        self.0.status
    }

    /// Whether a write with immediate took the receive. Of a successful completion of a receive only.
    #[inline]
    pub(crate) fn is_write_immediate(&self) -> bool {
        self.0.opcode == ib::ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM
    }

    #[inline]
    pub(crate) fn bytes(&self) -> u32 {
        self.0.byte_len
    }

    #[inline]
    pub(crate) fn immediate(&self) -> Option<u32> {
        let carried = self.0.wc_flags & ib::ibv_wc_flags::IBV_WC_WITH_IMM.0 != 0;
        carried.then(|| {
            // SAFETY: both members are numbers of 32 bits.
            u32::from_be(unsafe { self.0.imm_data_invalidated_rkey_union.imm_data })
        })
    }
}

impl Cq {
    /// Takes up to `done.len()` completions.
    #[inline]
    pub(crate) fn poll(&self, done: &mut [Wc]) -> usize {
        let room = i32::try_from(done.len()).unwrap_or(i32::MAX);
        // SAFETY: the queue is alive, and `done` has room for so many completions of this layout.
        let count = unsafe { ib::ibv_poll_cq(self.raw(), room, done.as_mut_ptr().cast()) };
        // A queue that cannot be polled is reported by an asynchronous event.
        usize::try_from(count).unwrap_or(0)
    }
}

impl std::fmt::Debug for Wc {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wc")
            .field("wr_id", &self.0.wr_id)
            .field("status", &self.0.status)
            .finish_non_exhaustive()
    }
}
