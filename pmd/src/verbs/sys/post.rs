//! Posting: the data path's calls, and `ibv_wr_*`.
//!
//! Unsafe because it builds the lists that libibverbs reads. All memory that a list names is the chain's own; memory behind a local key is
//! checked by the adapter.

use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};

use keyfence_mempool::sync::{AtomicU32, Ordering};
use rdma_mummy_sys as ib;

use super::objects::{Mr, Mw, Qp, access_flags};
use crate::work::{MAX_SGE, Remote, Rights, Sge};

/// Requests that one doorbell covers at most.
const CHAIN: usize = 32;

/// Room for the requests behind one doorbell. A path has one and uses it for every post.
pub(crate) struct Chain {
    pub(super) sends: Box<[ib::ibv_send_wr]>,
    pub(super) receives: Box<[ib::ibv_recv_wr]>,
    pub(super) sges: Box<[[ib::ibv_sge; MAX_SGE]]>,
    /// Inline bytes, those of one request behind those of another.
    pub(super) inline: Box<[u8]>,
    pub(super) inline_bytes: usize,
}

// SAFETY: its pointers are null or point into itself, and are written anew before each use.
unsafe impl Send for Chain {}

/// A request without what the shadow queue keeps of it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SendOp<'a> {
    Write(Remote, Option<u32>),
    Read(Remote),
    Send(Option<u32>),
    FetchAdd(Remote, u64),
    CompareSwap(Remote, u64, u64),
    Bind {
        window: &'a Mw,
        region: &'a Mr,
        address: u64,
        len: u64,
        rights: Rights,
        rkey: u32,
    },
    Invalidate(u32),
}

/// A burst that is being posted.
#[derive(Debug)]
pub(crate) struct Posting<'a> {
    pub(super) chain: &'a mut Chain,
    pub(super) qp: &'a Qp,
    /// By `ibv_wr_*`; else by a list.
    extended: Option<NonNull<ib::ibv_qp_ex>>,
    /// Requests behind the next doorbell.
    pub(super) len: usize,
    /// Requests that the adapter has.
    given: usize,
    refused: bool,
}

impl Chain {
    /// A chain for requests of up to `inline_bytes` inline bytes.
    pub(crate) fn new(inline_bytes: usize) -> Self {
        // SAFETY: plain C data, for which zeros are valid.
        let send = || unsafe { MaybeUninit::<ib::ibv_send_wr>::zeroed().assume_init() };
        // SAFETY: plain C data, for which zeros are valid.
        let receive = || unsafe { MaybeUninit::<ib::ibv_recv_wr>::zeroed().assume_init() };
        let sge = ib::ibv_sge {
            addr: 0,
            length: 0,
            lkey: 0,
        };
        Self {
            sends: (0..CHAIN).map(|_| send()).collect(),
            receives: (0..CHAIN).map(|_| receive()).collect(),
            sges: vec![[sge; MAX_SGE]; CHAIN].into(),
            inline: vec![0; CHAIN * inline_bytes].into(),
            inline_bytes,
        }
    }

    /// Begins a burst. It goes by a list where the adapter has nothing else, and if a request has `several` entries: Soft-RoCE of rdma-core 44
    /// takes the first one's length for each in `ibv_wr_set_sge_list`.
    pub(crate) fn begin<'a>(&'a mut self, qp: &'a Qp, several: bool) -> Posting<'a> {
        Posting {
            chain: self,
            qp,
            extended: qp.extended().filter(|_| !several),
            len: 0,
            given: 0,
            refused: false,
        }
    }

    /// Posts receives, each with its number, and gives how many of them the adapter has.
    pub(crate) fn post_receives(
        &mut self,
        qp: &Qp,
        mut receives: impl ExactSizeIterator<Item = (u64, Sge)>,
    ) -> usize {
        let mut given = 0;
        while receives.len() > 0 {
            let len = receives.len().min(CHAIN);
            for at in 0..len {
                let Some((wr_id, sge)) = receives.next() else {
                    break;
                };
                let count = self.set_sges(at, &[sge]);
                self.receives[at].wr_id = wr_id;
                self.receives[at].sg_list = self.sges[at].as_mut_ptr();
                self.receives[at].num_sge = count;
            }
            let posted = self.submit_receives(qp, len);
            given += posted;
            if posted < len {
                break;
            }
        }
        given
    }

    fn submit_receives(&mut self, qp: &Qp, len: usize) -> usize {
        for at in 1..len {
            self.receives[at - 1].next = &raw mut self.receives[at];
        }
        self.receives[len - 1].next = ptr::null_mut();
        let first: *mut ib::ibv_recv_wr = self.receives.as_mut_ptr();
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair is alive, and the list and its entries lie in this chain.
        let returned = unsafe { ib::ibv_post_recv(qp.raw(), first, &raw mut bad) };
        posted(returned, first, bad, len)
    }

    /// Writes a list of entries; those without bytes name no memory, and to some adapters 0 means 2^31.
    pub(super) fn set_sges(&mut self, at: usize, sges: &[Sge]) -> i32 {
        let mut count = 0;
        for sge in sges.iter().filter(|sge| sge.len > 0) {
            self.sges[at][count] = ib::ibv_sge {
                addr: sge.address,
                length: sge.len,
                lkey: sge.lkey,
            };
            count += 1;
        }
        count as i32
    }
}

/// How many of a list were posted, by where the first bad one is. A list that failed as a whole with no bad one named was taken.
pub(super) fn posted<T>(returned: i32, first: *mut T, bad: *mut T, len: usize) -> usize {
    if returned == 0 || bad.is_null() {
        return len;
    }
    let offset = (bad as usize).wrapping_sub(first as usize) / size_of::<T>();
    offset.min(len)
}

impl<'a> Posting<'a> {
    /// Where the next request's inline bytes are to be put before it is pushed.
    pub(crate) fn inline_room(&mut self) -> &mut [u8] {
        self.make_room();
        let start = self.len * self.chain.inline_bytes;
        &mut self.chain.inline[start..start + self.chain.inline_bytes]
    }

    /// Adds a request. Its local memory is `sges`, or the first `inline` bytes of the room for that.
    pub(crate) fn push(
        &mut self,
        (wr_id, signaled, fence): (u64, bool, bool),
        op: SendOp<'a>,
        sges: &[Sge],
        inline: Option<usize>,
    ) {
        self.make_room();
        if self.refused {
            return;
        }
        if let SendOp::Bind { window, .. } = op
            && self.extended.is_none()
            && self.binds_already(window)
        {
            // The list is read at the doorbell, and a bind's present key is the window's then.
            self.submit();
        }
        let mut flags = 0;
        if signaled {
            flags |= ib::ibv_send_flags::IBV_SEND_SIGNALED.0;
        }
        if fence {
            flags |= ib::ibv_send_flags::IBV_SEND_FENCE.0;
        }
        if inline.is_some() {
            // Also by `ibv_wr_*`: Soft-RoCE goes by it there, too.
            flags |= ib::ibv_send_flags::IBV_SEND_INLINE.0;
        }
        match self.extended {
            Some(extended) => self.push_extended(extended, (wr_id, flags), op, sges, inline),
            None => self.push_listed((wr_id, flags), op, sges, inline),
        }
        self.len += 1;
    }

    /// Rings the doorbell, and gives how many requests of the burst the adapter has. Any behind those it refused.
    pub(crate) fn finish(mut self) -> usize {
        self.submit();
        self.given
    }

    fn make_room(&mut self) {
        if self.len == CHAIN {
            self.submit();
        }
    }

    fn submit(&mut self) {
        let len = std::mem::take(&mut self.len);
        if len == 0 || self.refused {
            return;
        }
        let given = match self.extended {
            Some(extended) => {
                // SAFETY: the queue pair is alive, and `push` has begun the burst.
                match unsafe { ib::ibv_wr_complete(extended.as_ptr()) } {
                    0 => len,
                    _ => 0,
                }
            }
            None => self.submit_list(len),
        };
        self.given += given;
        self.refused = given < len;
    }
}

/// `ibv_wr_*`.
impl<'a> Posting<'a> {
    fn push_extended(
        &mut self,
        extended: NonNull<ib::ibv_qp_ex>,
        (wr_id, flags): (u64, u32),
        op: SendOp<'a>,
        sges: &[Sge],
        inline: Option<usize>,
    ) {
        let raw = extended.as_ptr();
        if self.len == 0 {
            // SAFETY: the queue pair is alive, and no burst of it is open: `submit` closed the last one.
            unsafe { ib::ibv_wr_start(raw) };
        }
        // SAFETY: the queue pair is alive, and only its own path posts to it.
        let fields = unsafe { &mut *raw };
        fields.wr_id = wr_id;
        fields.wr_flags = flags;
        match op {
            SendOp::Bind { .. } => return self.bind_extended(raw, op),
            // SAFETY: a burst is open.
            SendOp::Invalidate(rkey) => return unsafe { ib::ibv_wr_local_inv(raw, rkey) },
            _ => access_extended(raw, op),
        }
        match inline {
            Some(bytes) => {
                let at = self.len * self.chain.inline_bytes;
                let source = self.chain.inline[at..at + bytes].as_mut_ptr().cast();
                // SAFETY: the request was just begun, and the bytes are copied in this call.
                unsafe { ib::ibv_wr_set_inline_data(raw, source, bytes) };
            }
            None => {
                let count = self.chain.set_sges(self.len, sges) as usize;
                let list = self.chain.sges[self.len].as_ptr();
                // SAFETY: the request was just begun, and the list is copied in this call.
                unsafe { ib::ibv_wr_set_sge_list(raw, count, list) };
            }
        }
    }

    fn bind_extended(&mut self, raw: *mut ib::ibv_qp_ex, op: SendOp<'a>) {
        let Some((window, rkey, info)) = bind_info(op) else {
            return;
        };
        // SAFETY: a burst is open, window and region are alive, and all is copied in this call.
        unsafe { ib::ibv_wr_bind_mw(raw, window.raw(), rkey, &raw const info) };
        set_rkey(window, rkey);
    }
}

/// Begins an access to the peer's memory, or a message.
fn access_extended(raw: *mut ib::ibv_qp_ex, op: SendOp<'_>) {
    match op {
        SendOp::Write(Remote { address, rkey }, None) => {
            // SAFETY: a burst is open.
            unsafe { ib::ibv_wr_rdma_write(raw, rkey.0, address) }
        }
        SendOp::Write(Remote { address, rkey }, Some(immediate)) => {
            // SAFETY: a burst is open.
            unsafe { ib::ibv_wr_rdma_write_imm(raw, rkey.0, address, immediate.to_be()) }
        }
        SendOp::Read(Remote { address, rkey }) => {
            // SAFETY: a burst is open.
            unsafe { ib::ibv_wr_rdma_read(raw, rkey.0, address) }
        }
        // SAFETY: a burst is open.
        SendOp::Send(None) => unsafe { ib::ibv_wr_send(raw) },
        SendOp::Send(Some(immediate)) => {
            // SAFETY: a burst is open.
            unsafe { ib::ibv_wr_send_imm(raw, immediate.to_be()) }
        }
        SendOp::FetchAdd(Remote { address, rkey }, add) => {
            // SAFETY: a burst is open; the queue pair was made for atomics, or the caller posts none.
            unsafe { ib::ibv_wr_atomic_fetch_add(raw, rkey.0, address, add) }
        }
        SendOp::CompareSwap(Remote { address, rkey }, expected, desired) => {
            // SAFETY: as above.
            unsafe { ib::ibv_wr_atomic_cmp_swp(raw, rkey.0, address, expected, desired) }
        }
        SendOp::Bind { .. } | SendOp::Invalidate(_) => {}
    }
}

pub(super) fn bind_info<'a>(op: SendOp<'a>) -> Option<(&'a Mw, u32, ib::ibv_mw_bind_info)> {
    let SendOp::Bind {
        window,
        region,
        address,
        len,
        rights,
        rkey,
    } = op
    else {
        return None;
    };
    let info = ib::ibv_mw_bind_info {
        mr: region.raw(),
        addr: address,
        length: len,
        mw_access_flags: access_flags(rights),
    };
    Some((window, rkey, info))
}

/// The provider names a window by its present key and leaves it to us to say which that is.
fn set_rkey(window: &Mw, rkey: u32) {
    set_raw_rkey(window.raw(), rkey);
}

pub(super) fn set_raw_rkey(window: *mut ib::ibv_mw, rkey: u32) {
    // SAFETY: the window is alive: its bind was just posted.
    let place = unsafe { &raw mut (*window).rkey };
    // SAFETY: an aligned word, which only posts of the window's own queue pair read or write; those come from one path.
    let place = unsafe { AtomicU32::from_ptr(place) };
    place.store(rkey, Ordering::Relaxed);
}

impl std::fmt::Debug for Chain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Chain").finish_non_exhaustive()
    }
}
