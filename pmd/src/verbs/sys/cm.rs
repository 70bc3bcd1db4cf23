//! The connection manager: ids, their events, and the states of queue pairs that follow from them.
//!
//! Unsafe because it calls librdmacm and reads the ids and events that it returns. An id is freed once, when it is dropped, and never
//! while one of its events is unacknowledged: events are copied and acknowledged in the call that reads them.

use std::io;
use std::mem::{self, MaybeUninit};
use std::net::SocketAddr;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use rdma_mummy_sys as ib;

use super::check_errno;
use super::device::{device_name, make_nonblocking};
use super::objects::{Qp, QpState, RemoteAccess};

/// Where the events of a device's ids come from. Reading it never waits.
#[derive(Debug)]
pub(crate) struct EventChannel {
    raw: NonNull<ib::rdma_event_channel>,
}

// SAFETY: librdmacm is thread-safe.
unsafe impl Send for EventChannel {}
// SAFETY: as above.
unsafe impl Sync for EventChannel {}

/// A listener, or one side of a connection. It has no queue pair: ours are made on our own context.
#[derive(Debug)]
pub(crate) struct CmId {
    raw: NonNull<ib::rdma_cm_id>,
    _channel: Arc<EventChannel>,
}

// SAFETY: librdmacm is thread-safe.
unsafe impl Send for CmId {}
// SAFETY: as above.
unsafe impl Sync for CmId {}

/// What both sides agree on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ConnectParameters {
    pub(crate) qp_number: u32,
    /// A bit that the peer gets, and that means nothing to the connection manager: the end-to-end flow control of a queue pair, which each side sets
    /// up for itself.
    pub(crate) full: bool,
    /// Reads and atomics under way that we answer, and that we begin.
    pub(crate) responded: u8,
    pub(crate) initiated: u8,
    pub(crate) retries: u8,
    pub(crate) rnr_retries: u8,
    pub(crate) min_rnr_timer: u8,
    pub(crate) ack_timeout: u8,
    /// `enum ibv_mtu`, if the path's own is not wanted.
    pub(crate) mtu: Option<u32>,
    pub(crate) gid_index: Option<u8>,
    pub(crate) access: RemoteAccess,
}

/// What an event is about.
#[derive(Debug)]
pub(crate) enum CmEventKind {
    AddressResolved,
    RouteResolved,
    /// A peer wants to connect, by a new id.
    Request {
        id: CmId,
        responded: u8,
        initiated: u8,
        /// [`ConnectParameters::full`] of the peer.
        full: bool,
    },
    /// The peer has accepted.
    Response,
    Established,
    /// The connection will not come about.
    Failed {
        /// By a word of the peer's program, not of a connection manager.
        by_peer: bool,
    },
    /// Anything that changes nothing here.
    Other,
}

/// An event, copied.
#[derive(Debug)]
pub(crate) struct CmEvent {
    /// The name of the id it came to: the listener's, if it is a request.
    pub(crate) id: usize,
    pub(crate) kind: CmEventKind,
    pub(crate) private: Vec<u8>,
}

impl EventChannel {
    pub(crate) fn create() -> io::Result<Self> {
        // SAFETY: takes nothing.
        let raw = unsafe { ib::rdma_create_event_channel() };
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        let channel = Self { raw };
        // SAFETY: the channel is open.
        make_nonblocking(unsafe { channel.raw.as_ref() }.fd)?;
        Ok(channel)
    }

    /// The next event, or `None` at once.
    pub(crate) fn next_event(self: &Arc<Self>) -> Option<CmEvent> {
        let mut raw = ptr::null_mut();
        // SAFETY: the channel is open and `raw` writable.
        let got = check_errno(unsafe { ib::rdma_get_cm_event(self.raw.as_ptr(), &raw mut raw) });
        if got.is_err() {
            return None;
        }
        // SAFETY: the call succeeded, so it gave an event, which lives until it is acknowledged.
        let event = self.copy(unsafe { &*raw });
        // SAFETY: the event is the one just got, and is acknowledged once.
        unsafe { ib::rdma_ack_cm_event(raw) };
        Some(event)
    }

    fn copy(self: &Arc<Self>, event: &ib::rdma_cm_event) -> CmEvent {
        use ib::rdma_cm_event_type as kind;
        // SAFETY: ids of this library are all of the reliable port space, whose events have this member.
        let conn = unsafe { event.param.conn };
        let mut private = Vec::new();
        if !conn.private_data.is_null() {
            let len = usize::from(conn.private_data_len);
            // SAFETY: the event carries so many bytes, and lives.
            let bytes = unsafe { std::slice::from_raw_parts(conn.private_data.cast::<u8>(), len) };
            private.extend_from_slice(bytes);
        }
        let mut id = event.id;
        let kind = match event.event {
            kind::RDMA_CM_EVENT_ADDR_RESOLVED => CmEventKind::AddressResolved,
            kind::RDMA_CM_EVENT_ROUTE_RESOLVED => CmEventKind::RouteResolved,
            kind::RDMA_CM_EVENT_CONNECT_RESPONSE => CmEventKind::Response,
            kind::RDMA_CM_EVENT_ESTABLISHED => CmEventKind::Established,
            kind::RDMA_CM_EVENT_CONNECT_REQUEST => {
                id = event.listen_id;
                match NonNull::new(event.id) {
                    Some(raw) => CmEventKind::Request {
                        id: CmId {
                            raw,
                            _channel: Arc::clone(self),
                        },
                        responded: conn.responder_resources,
                        initiated: conn.initiator_depth,
                        full: conn.flow_control != 0,
                    },
                    None => CmEventKind::Other,
                }
            }
            kind::RDMA_CM_EVENT_REJECTED => CmEventKind::Failed {
                by_peer: event.status == CONSUMER_REJECT,
            },
            kind::RDMA_CM_EVENT_ADDR_ERROR
            | kind::RDMA_CM_EVENT_ROUTE_ERROR
            | kind::RDMA_CM_EVENT_CONNECT_ERROR
            | kind::RDMA_CM_EVENT_UNREACHABLE => CmEventKind::Failed { by_peer: false },
            _ => CmEventKind::Other,
        };
        CmEvent {
            id: id as usize,
            kind,
            private,
        }
    }
}

/// `IB_CM_REJ_CONSUMER_DEFINED`.
const CONSUMER_REJECT: i32 = 28;

impl Drop for EventChannel {
    fn drop(&mut self) {
        // SAFETY: every id holds the channel, so none is left.
        unsafe { ib::rdma_destroy_event_channel(self.raw.as_ptr()) };
    }
}

impl CmId {
    pub(crate) fn create(channel: &Arc<EventChannel>) -> io::Result<Self> {
        let mut raw = ptr::null_mut();
        let space = ib::rdma_port_space::RDMA_PS_TCP;
        let from = channel.raw.as_ptr();
        // SAFETY: the channel is open and `raw` writable; no user pointer is wanted.
        check_errno(unsafe { ib::rdma_create_id(from, &raw mut raw, ptr::null_mut(), space) })?;
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        Ok(Self {
            raw,
            _channel: Arc::clone(channel),
        })
    }

    /// The name that its events have.
    pub(crate) fn name(&self) -> usize {
        self.raw.as_ptr() as usize
    }

    /// Listens on an address.
    pub(crate) fn listen(&self, address: &SocketAddr, backlog: i32) -> io::Result<()> {
        let mut address = RawAddress::new(address);
        // SAFETY: the id is alive, and the address is a whole one of its family.
        check_errno(unsafe { ib::rdma_bind_addr(self.raw.as_ptr(), address.raw()) })?;
        // SAFETY: the id is alive.
        check_errno(unsafe { ib::rdma_listen(self.raw.as_ptr(), backlog) })
    }

    /// Sets the traffic class of what the connection sends.
    pub(crate) fn set_traffic_class(&self, class: u8) -> io::Result<()> {
        const OPTION_ID: i32 = 0;
        const OPTION_ID_TOS: i32 = 0;
        let mut class = class;
        let value = (&raw mut class).cast();
        // SAFETY: the id is alive, and the option is one byte.
        let set =
            unsafe { ib::rdma_set_option(self.raw.as_ptr(), OPTION_ID, OPTION_ID_TOS, value, 1) };
        check_errno(set)
    }

    pub(crate) fn resolve_address(&self, address: &SocketAddr, timeout_ms: i32) -> io::Result<()> {
        let mut address = RawAddress::new(address);
        let (id, from) = (self.raw.as_ptr(), ptr::null_mut());
        // SAFETY: the id is alive, the address is a whole one of its family, and any source will do.
        check_errno(unsafe { ib::rdma_resolve_addr(id, from, address.raw(), timeout_ms) })
    }

    pub(crate) fn resolve_route(&self, timeout_ms: i32) -> io::Result<()> {
        // SAFETY: the id is alive.
        check_errno(unsafe { ib::rdma_resolve_route(self.raw.as_ptr(), timeout_ms) })
    }

    /// The adapter and port that the address belongs to, once that is known.
    pub(crate) fn adapter(&self) -> Option<(String, u8)> {
        // SAFETY: the id is alive. Its adapter and port are written in the calls that read events, which the caller's lock orders.
        let id = unsafe { self.raw.as_ref() };
        let (context, port) = (id.verbs, id.port_num);
        // SAFETY: null, or a context that librdmacm keeps open.
        let context = unsafe { context.as_ref() }?;
        Some((device_name(context.device), port))
    }

    pub(crate) fn connect(&self, with: &ConnectParameters, private: &[u8]) -> io::Result<()> {
        let mut raw = with.raw(private);
        // SAFETY: the id is alive, and the private data lives through the call.
        check_errno(unsafe { ib::rdma_connect(self.raw.as_ptr(), &raw mut raw) })
    }

    pub(crate) fn accept(&self, with: &ConnectParameters, private: &[u8]) -> io::Result<()> {
        let mut raw = with.raw(private);
        // SAFETY: the id is alive, and the private data lives through the call.
        check_errno(unsafe { ib::rdma_accept(self.raw.as_ptr(), &raw mut raw) })
    }

    pub(crate) fn reject(&self, private: &[u8]) -> io::Result<()> {
        let (bytes, len) = (private.as_ptr().cast(), private.len() as u8);
        // SAFETY: the id is alive, and so are the bytes.
        check_errno(unsafe { ib::rdma_reject(self.raw.as_ptr(), bytes, len) })
    }

    /// Tells the peer that its answer was taken: the connection stands.
    pub(crate) fn establish(&self) -> io::Result<()> {
        // SAFETY: the id is alive and has no queue pair.
        check_errno(unsafe { ib::rdma_establish(self.raw.as_ptr()) })
    }

    /// Moves a queue pair of ours to a state, with what the connection manager has agreed on and what we want otherwise.
    pub(crate) fn move_qp(&self, qp: &Qp, to: QpState, with: &ConnectParameters) -> io::Result<()> {
        // SAFETY: plain C data, for which zeros are valid.
        let mut attr: ib::ibv_qp_attr = unsafe { MaybeUninit::zeroed().assume_init() };
        attr.qp_state = to.raw();
        let mut mask = 0;
        let id = self.raw.as_ptr();
        // SAFETY: the id is alive; both are writable.
        check_errno(unsafe { ib::rdma_init_qp_attr(id, &raw mut attr, &raw mut mask) })?;
        match to {
            QpState::Initialised => attr.qp_access_flags = with.access.raw(),
            QpState::ReadyToReceive => {
                attr.min_rnr_timer = with.min_rnr_timer;
                attr.max_dest_rd_atomic = with.responded;
                attr.path_mtu = with.mtu.unwrap_or(attr.path_mtu);
                if let Some(index) = with.gid_index {
                    attr.ah_attr.grh.sgid_index = index;
                }
            }
            QpState::ReadyToSend => {
                attr.max_rd_atomic = with.initiated;
                attr.retry_cnt = with.retries;
                attr.rnr_retry = with.rnr_retries;
                attr.timeout = with.ack_timeout;
            }
        }
        qp.modify(&mut attr, mask as u32)
    }
}

impl Drop for CmId {
    fn drop(&mut self) {
        // SAFETY: the id is alive and owned, and none of its events is unacknowledged.
        unsafe { ib::rdma_destroy_id(self.raw.as_ptr()) };
    }
}

impl ConnectParameters {
    fn raw(&self, private: &[u8]) -> ib::rdma_conn_param {
        ib::rdma_conn_param {
            private_data: private.as_ptr().cast(),
            private_data_len: private.len() as u8,
            responder_resources: self.responded,
            initiator_depth: self.initiated,
            flow_control: u8::from(self.full),
            retry_count: self.retries,
            rnr_retry_count: self.rnr_retries,
            srq: 0,
            qp_num: self.qp_number,
        }
    }
}

/// A socket address as C wants it.
struct RawAddress {
    storage: libc::sockaddr_storage,
}

impl RawAddress {
    fn new(address: &SocketAddr) -> Self {
        // SAFETY: plain C data, for which zeros are valid.
        let mut storage: libc::sockaddr_storage = unsafe { mem::zeroed() };
        let place: *mut libc::sockaddr_storage = &raw mut storage;
        match address {
            SocketAddr::V4(v4) => {
                let of_v4 = libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: v4.port().to_be(),
                    sin_addr: libc::in_addr {
                        s_addr: u32::from_ne_bytes(v4.ip().octets()),
                    },
                    sin_zero: [0; 8],
                };
                // SAFETY: the storage is large and aligned enough for every family.
                unsafe { place.cast::<libc::sockaddr_in>().write(of_v4) };
            }
            SocketAddr::V6(v6) => {
                let of_v6 = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: v6.port().to_be(),
                    sin6_flowinfo: v6.flowinfo(),
                    sin6_addr: libc::in6_addr {
                        s6_addr: v6.ip().octets(),
                    },
                    sin6_scope_id: v6.scope_id(),
                };
                // SAFETY: as above.
                unsafe { place.cast::<libc::sockaddr_in6>().write(of_v6) };
            }
        }
        Self { storage }
    }

    fn raw(&mut self) -> *mut libc::sockaddr {
        (&raw mut self.storage).cast()
    }
}
