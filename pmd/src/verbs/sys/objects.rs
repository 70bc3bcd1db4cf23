//! Protection domains, completion queues, regions, windows and queue pairs.
//!
//! Unsafe because it calls libibverbs and keeps the pointers that it returns. Each object owns its pointer, so it is freed once, and
//! holds what its own object needs.

use std::io;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use keyfence_mempool::arena::Arena;
use rdma_mummy_sys as ib;

use super::device::Context;
use crate::work::Rights;

macro_rules! object {
    ($(#[$doc:meta])* $name:ident($raw:ty) freed by $free:path, holding { $($field:ident: $held:ty),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub(crate) struct $name {
            raw: Option<NonNull<$raw>>,
            $($field: $held),*
        }

        // SAFETY: verbs may be called by any thread, and by several at a time.
        unsafe impl Send for $name {}
        // SAFETY: as above.
        unsafe impl Sync for $name {}

        impl $name {
            pub(super) fn raw(&self) -> *mut $raw {
                self.raw.map_or(ptr::null_mut(), NonNull::as_ptr)
            }

            #[allow(dead_code, reason = "a completion queue is only dropped")]
            /// Frees it. It is given back if the adapter refuses.
            pub(crate) fn free(mut self) -> Result<(), (Self, io::Error)> {
                // SAFETY: it is alive, and not used again if that succeeds.
                let freed = super::check(unsafe { $free(self.raw()) });
                match freed {
                    Ok(()) => {
                        self.raw = None;
                        Ok(())
                    }
                    Err(error) => Err((self, error)),
                }
            }
        }

        impl Drop for $name {
            fn drop(&mut self) {
                if self.raw.is_some() {
                    // SAFETY: it is alive and owned, and nobody can use it any more. If the adapter refuses, closing its context ends it.
                    unsafe { $free(self.raw()) };
                }
            }
        }
    };
}

object! {
    /// A protection domain.
    Pd(ib::ibv_pd) freed by ib::ibv_dealloc_pd, holding { _context: Arc<Context> }
}
object! {
    /// A completion queue.
    Cq(ib::ibv_cq) freed by ib::ibv_destroy_cq, holding { context: Arc<Context> }
}
object! {
    /// A region.
    Mr(ib::ibv_mr) freed by ib::ibv_dereg_mr, holding { _pd: Arc<Pd>, arena: Arc<Arena> }
}
object! {
    /// A window of type 2.
    Mw(ib::ibv_mw) freed by ib::ibv_dealloc_mw, holding { _pd: Arc<Pd> }
}
object! {
    /// A queue pair of a reliable connection.
    Qp(ib::ibv_qp) freed by ib::ibv_destroy_qp, holding {
        extended: Option<NonNull<ib::ibv_qp_ex>>, _pd: Arc<Pd>, _cq: Arc<Cq>, max_inline_bytes: u32,
    }
}

/// What peers may do on a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RemoteAccess {
    pub(crate) atomics: bool,
}

/// Sizes of a queue pair, and what it must be able to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct QpSizes {
    pub(crate) send_depth: u32,
    pub(crate) receive_depth: u32,
    pub(crate) max_sge: u32,
    pub(crate) max_inline_bytes: u32,
    pub(crate) windows: bool,
    pub(crate) atomics: bool,
    /// Post by `ibv_wr_*` where the adapter can.
    pub(crate) extended: bool,
}

/// A state to move a queue pair to, by what the connection manager says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum QpState {
    Initialised,
    ReadyToReceive,
    ReadyToSend,
}

impl QpState {
    pub(super) fn raw(self) -> ib::ibv_qp_state::Type {
        match self {
            Self::Initialised => ib::ibv_qp_state::IBV_QPS_INIT,
            Self::ReadyToReceive => ib::ibv_qp_state::IBV_QPS_RTR,
            Self::ReadyToSend => ib::ibv_qp_state::IBV_QPS_RTS,
        }
    }
}

/// `enum ibv_access_flags` of some rights.
pub(super) fn access_flags(rights: Rights) -> u32 {
    use ib::ibv_access_flags as flags;
    let mut access = 0;
    for (right, flag) in [
        (rights.read, flags::IBV_ACCESS_REMOTE_READ),
        (rights.write, flags::IBV_ACCESS_REMOTE_WRITE),
        (rights.atomic, flags::IBV_ACCESS_REMOTE_ATOMIC),
    ] {
        if right {
            access |= flag.0;
        }
    }
    access
}

impl Pd {
    pub(crate) fn alloc(context: &Arc<Context>) -> io::Result<Self> {
        // SAFETY: the context is open.
        let raw = unsafe { ib::ibv_alloc_pd(context.raw()) };
        Ok(Self {
            raw: Some(NonNull::new(raw).ok_or_else(io::Error::last_os_error)?),
            _context: Arc::clone(context),
        })
    }
}

impl Cq {
    pub(crate) fn create(context: &Arc<Context>, entries: u32) -> io::Result<Self> {
        let entries = i32::try_from(entries).unwrap_or(i32::MAX);
        let (user, channel) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the context is open; neither a user pointer nor a channel is wanted.
        let raw = unsafe { ib::ibv_create_cq(context.raw(), entries, user, channel, 0) };
        Ok(Self {
            raw: Some(NonNull::new(raw).ok_or_else(io::Error::last_os_error)?),
            context: Arc::clone(context),
        })
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }
}

impl Mr {
    /// Registers a range of an arena that lies inside it: local writes, and what is asked for.
    pub(crate) fn register(
        pd: &Arc<Pd>,
        arena: &Arc<Arena>,
        range: Range<usize>,
        remote: Rights,
        bind: bool,
    ) -> io::Result<Self> {
        assert!(range.start < range.end && range.end <= arena.bytes());
        let mut access = ib::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0 | access_flags(remote);
        if bind {
            access |= ib::ibv_access_flags::IBV_ACCESS_MW_BIND.0;
        }
        let address = ptr::with_exposed_provenance_mut(arena.address() as usize + range.start);
        // SAFETY: the range lies in the arena, which the region keeps mapped. Arena bytes are atomics for everybody here, so the adapter may
        // change them.
        let raw = unsafe { ib::ibv_reg_mr(pd.raw(), address, range.len(), access as i32) };
        Ok(Self {
            raw: Some(NonNull::new(raw).ok_or_else(io::Error::last_os_error)?),
            _pd: Arc::clone(pd),
            arena: Arc::clone(arena),
        })
    }

    pub(crate) fn arena(&self) -> &Arena {
        &self.arena
    }

    pub(crate) fn lkey(&self) -> u32 {
        // SAFETY: the region is registered; its keys never change.
        unsafe { (*self.raw()).lkey }
    }

    pub(crate) fn rkey(&self) -> u32 {
        // SAFETY: the region is registered; its keys never change.
        unsafe { (*self.raw()).rkey }
    }
}

impl Mw {
    pub(crate) fn alloc(pd: &Arc<Pd>) -> io::Result<Self> {
        // SAFETY: the domain is allocated.
        let raw = unsafe { ib::ibv_alloc_mw(pd.raw(), ib::ibv_mw_type::IBV_MW_TYPE_2) };
        Ok(Self {
            raw: Some(NonNull::new(raw).ok_or_else(io::Error::last_os_error)?),
            _pd: Arc::clone(pd),
        })
    }

    /// The key that the adapter gave it, until the first bind.
    pub(crate) fn rkey(&self) -> u32 {
        // SAFETY: the window is allocated. Called before any path knows it, so nobody changes the key meanwhile.
        unsafe { (*self.raw()).rkey }
    }
}

impl Qp {
    /// Makes a queue pair, whose both queues complete to `cq`.
    pub(crate) fn create(pd: &Arc<Pd>, cq: &Arc<Cq>, sizes: &QpSizes) -> io::Result<Self> {
        let mut made = Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        if sizes.extended {
            made = Self::create_extended(pd, cq, sizes);
        }
        match made {
            Err(error)
                if matches!(
                    error.raw_os_error(),
                    Some(libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL)
                ) =>
            {
                Self::create_plain(pd, cq, sizes)
            }
            made => made,
        }
    }

    fn create_extended(pd: &Arc<Pd>, cq: &Arc<Cq>, sizes: &QpSizes) -> io::Result<Self> {
        use ib::ibv_qp_create_send_ops_flags as ops;
        use ib::ibv_qp_init_attr_mask as mask;
        // SAFETY: plain C data, for which zeros are valid.
        let mut attr: ib::ibv_qp_init_attr_ex = unsafe { MaybeUninit::zeroed().assume_init() };
        attr.send_cq = cq.raw();
        attr.recv_cq = cq.raw();
        attr.cap = sizes.raw();
        attr.qp_type = ib::ibv_qp_type::IBV_QPT_RC;
        attr.comp_mask = mask::IBV_QP_INIT_ATTR_PD.0 | mask::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS.0;
        attr.pd = pd.raw();
        let mut wanted = ops::IBV_QP_EX_WITH_RDMA_WRITE
            | ops::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
            | ops::IBV_QP_EX_WITH_SEND
            | ops::IBV_QP_EX_WITH_SEND_WITH_IMM
            | ops::IBV_QP_EX_WITH_RDMA_READ;
        if sizes.atomics {
            wanted = wanted
                | ops::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
                | ops::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
        }
        if sizes.windows {
            wanted = wanted | ops::IBV_QP_EX_WITH_BIND_MW | ops::IBV_QP_EX_WITH_LOCAL_INV;
        }
        attr.send_ops_flags = u64::from(wanted.0);
        // SAFETY: the context is open, and `attr` names live objects of it.
        let raw = unsafe { ib::ibv_create_qp_ex(cq.context().raw(), &raw mut attr) };
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        // SAFETY: the queue pair was made with its operations named, so it has this form, too.
        let extended = NonNull::new(unsafe { ib::ibv_qp_to_qp_ex(raw.as_ptr()) });
        Ok(Self::own(raw, extended, (pd, cq), attr.cap.max_inline_data))
    }

    fn create_plain(pd: &Arc<Pd>, cq: &Arc<Cq>, sizes: &QpSizes) -> io::Result<Self> {
        // SAFETY: plain C data, for which zeros are valid.
        let mut attr: ib::ibv_qp_init_attr = unsafe { MaybeUninit::zeroed().assume_init() };
        attr.send_cq = cq.raw();
        attr.recv_cq = cq.raw();
        attr.cap = sizes.raw();
        attr.qp_type = ib::ibv_qp_type::IBV_QPT_RC;
        // SAFETY: `attr` names live objects of one context.
        let raw = unsafe { ib::ibv_create_qp(pd.raw(), &raw mut attr) };
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        Ok(Self::own(raw, None, (pd, cq), attr.cap.max_inline_data))
    }

    fn own(
        raw: NonNull<ib::ibv_qp>,
        extended: Option<NonNull<ib::ibv_qp_ex>>,
        (pd, cq): (&Arc<Pd>, &Arc<Cq>),
        max_inline_bytes: u32,
    ) -> Self {
        Self {
            raw: Some(raw),
            extended,
            _pd: Arc::clone(pd),
            _cq: Arc::clone(cq),
            max_inline_bytes,
        }
    }

    pub(super) fn extended(&self) -> Option<NonNull<ib::ibv_qp_ex>> {
        self.extended
    }

    /// Bytes of an inline request that the adapter really has room for.
    pub(crate) fn max_inline_bytes(&self) -> u32 {
        self.max_inline_bytes
    }

    /// The number that peers know it by.
    pub(crate) fn number(&self) -> u32 {
        // SAFETY: the queue pair is alive; its number never changes.
        unsafe { (*self.raw()).qp_num }
    }

    /// From reset: receives may be posted from now on.
    pub(crate) fn initialise(&self, port: u8, access: RemoteAccess) -> io::Result<()> {
        use ib::ibv_qp_attr_mask as mask;
        // SAFETY: plain C data, for which zeros are valid.
        let mut attr: ib::ibv_qp_attr = unsafe { MaybeUninit::zeroed().assume_init() };
        attr.qp_state = ib::ibv_qp_state::IBV_QPS_INIT;
        attr.port_num = port;
        attr.qp_access_flags = access.raw();
        let set = mask::IBV_QP_STATE
            | mask::IBV_QP_PKEY_INDEX
            | mask::IBV_QP_PORT
            | mask::IBV_QP_ACCESS_FLAGS;
        self.modify(&mut attr, set.0)
    }

    /// To error, from any state but reset.
    pub(crate) fn fail(&self) -> io::Result<()> {
        // SAFETY: plain C data, for which zeros are valid.
        let mut attr: ib::ibv_qp_attr = unsafe { MaybeUninit::zeroed().assume_init() };
        attr.qp_state = ib::ibv_qp_state::IBV_QPS_ERR;
        self.modify(&mut attr, ib::ibv_qp_attr_mask::IBV_QP_STATE.0)
    }

    pub(super) fn modify(&self, attr: &mut ib::ibv_qp_attr, mask: u32) -> io::Result<()> {
        // SAFETY: the queue pair is alive and `attr` a whole structure.
        super::check(unsafe { ib::ibv_modify_qp(self.raw(), &raw mut *attr, mask as i32) })
    }
}

impl RemoteAccess {
    pub(super) fn raw(self) -> u32 {
        access_flags(Rights {
            read: true,
            write: true,
            atomic: self.atomics,
        })
    }
}

impl QpSizes {
    fn raw(&self) -> ib::ibv_qp_cap {
        ib::ibv_qp_cap {
            max_send_wr: self.send_depth,
            max_recv_wr: self.receive_depth,
            max_send_sge: self.max_sge,
            max_recv_sge: 1,
            max_inline_data: self.max_inline_bytes,
        }
    }
}
