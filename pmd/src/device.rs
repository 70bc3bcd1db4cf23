//! The device contract: three traits and the capabilities that the runtime asks for.
//!
//! The contract is the part of InfiniBand verbs that reclaim needs, with its hazards kept:
//!
//! 1. A queue pair executes its requests in the order of posting and completes them in that order. A successful completion of one
//!    says that each earlier one on that queue pair has been executed (of earlier binds and invalidations only where [`Caps::chain_stops`]).
//! 2. An unsignaled request completes silently; a failed one always gives a completion. The queue slot of a silent one is free
//!    when a later completion of its queue pair has been polled.
//! 3. A refused access puts *both* queue pairs in error: the requester's request completes with the reason, everything
//!    behind it as `Flushed`, and so does everything the responder had posted.
//! 4. Moving one queue pair to error leaves its peer's alone: the peer's *keys stay live*. Its next request ends as `RetryExceeded`.
//! 5. On a queue pair in error every posted request, an invalidation too, completes as `Flushed` and ends no key.
//! 6. A window belongs to one queue pair. A key works only through the queue pair that it was bound on.
//! 7. The successful completion of an invalidation, the return of `dealloc_window`, of `deregister`, and of `destroy_qp` each prove
//!    that no access by the keys concerned goes on or comes. For the local memory of a request that is proven by its completion, whatever the
//!    status, by the successful completion of a later request of its queue pair, and by the return of `destroy_qp`.
//! 8. A zero-length access names no memory: no key is checked, and it completes once, successfully.
//! 9. After `release_qp` no completion of that queue pair is polled, and after `destroy_qp` has returned no event names it.
//!
//! `DESIGN.md` of this crate lists the tests of the conformance suite that hold each of them.

use std::ops::Range;

use keyfence_mempool::{arena::Arena, sync::Arc};

use crate::completion::Completion;
use crate::error::{ControlError, OpenPathError};
use crate::ids::{LcoreId, Lkey, PdId, QpId, RegionId, RequestId, Rkey, WindowId};
use crate::work::{ReceiveRequest, Rights, WorkRequest};

/// What a device can do. The runtime decides by these and never asks which device it has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Caps {
    /// The driver's name, for reports alone.
    pub name: &'static str,
    /// Lcores.
    pub max_lcores: u16,
    /// Queue pairs at a time.
    pub max_qps: u32,
    /// Windows at a time.
    pub max_windows: u32,
    /// Regions at a time.
    pub max_regions: u32,
    /// Work requests posted and not completed, a queue pair.
    pub max_send_depth: u32,
    /// Receives posted and not completed, a queue pair.
    pub max_receive_depth: u32,
    /// Scatter/gather entries of a work request, at most [`MAX_SGE`](crate::MAX_SGE).
    pub max_sge: usize,
    /// Bytes of an inline request.
    pub max_inline_bytes: usize,
    /// The longest write or send that is quicker inline, since the adapter then fetches nothing; at most `max_inline_bytes`. 0 where inline
    /// only copies once more.
    pub inline_pays_bytes: usize,
    /// Bytes of one operation.
    pub max_operation_bytes: u64,
    /// Bytes of the private data that connecting carries.
    pub max_private_bytes: usize,
    /// Type-2 windows, bound and invalidated through the send queue.
    pub windows: bool,
    /// The device itself refuses an access beyond a window's range. If not, only the initiator's check stands (Soft-RoCE).
    pub window_bounds: bool,
    /// A window's key is refused on any other queue pair.
    pub window_scope: bool,
    /// Atomics at all.
    pub atomics: bool,
    /// Atomics through a window's key.
    pub window_atomics: bool,
    /// Bits of a window key that change with each bind.
    pub tag_bits: u32,
    /// A bind or an invalidation that fails stops its queue pair as any request does, also if it is unsignaled: nothing behind it is
    /// executed, and nothing behind it succeeds. So the success of the last of a chain proves each. Where this is false, only its own success
    /// proves a bind or an invalidation.
    pub chain_stops: bool,
    /// `dealloc_window` on a healthy queue pair ends the key's accesses before it returns.
    pub dealloc_fences: bool,
    /// An invalidation of a key that is not live on its queue pair fails and ends nothing. Where this is false the caller must not post one:
    /// it may end another's key or stop the host (Soft-RoCE).
    pub invalidate_checks: bool,
}

/// How a region may be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Access {
    /// What a peer may do with the region's own remote key. [`Rights::NONE`] for an arena: its key opens nothing.
    pub remote: Rights,
    /// Whether windows may be bound to it.
    pub bind: bool,
}

/// A registered region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Region {
    /// Its name.
    pub id: RegionId,
    /// The key for local scatter/gather entries.
    pub lkey: Lkey,
    /// Its own remote key; opens what [`Access::remote`] says, on every queue pair of its protection domain.
    pub rkey: Rkey,
}

/// An allocated window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    /// Its name.
    pub id: WindowId,
    /// A key with its index. The tag of the first bind is the caller's to choose; this one's has never been live.
    pub rkey: Rkey,
}

/// What a queue pair is made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpConfig {
    /// Its protection domain.
    pub pd: PdId,
    /// The lcore that posts to it and polls it.
    pub lcore: LcoreId,
    /// Work requests posted and not completed.
    pub send_depth: u32,
    /// Receives posted and not completed.
    pub receive_depth: u32,
    /// Scatter/gather entries a request.
    pub max_sge: usize,
    /// Inline bytes a request.
    pub max_inline_bytes: usize,
}

/// What happened on the control side.
///
/// A connection that was started, and that the peer answers, ends in one `Connected` or `Rejected`, as long as its queue pair waits for
/// it. One that was moved to error or released meanwhile does not: no event comes of it, and the peer's `accept` fails, or connects a queue pair whose
/// next request ends as `RetryExceeded`. An event that came before stays to be polled, but none names a queue pair after its
/// `destroy_qp` has returned.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ControlEvent {
    /// A peer wants to connect. Answer with `accept` or `reject`.
    ConnectRequest {
        /// Names the request.
        request: RequestId,
        /// The address listened on.
        address: String,
        /// What the peer's `start_connect` carried.
        private: Vec<u8>,
    },
    /// A connection stands: posting is allowed. Comes to both sides.
    Connected {
        /// Our queue pair.
        qp: QpId,
        /// What the peer's `accept` carried; empty on the accepting side.
        private: Vec<u8>,
    },
    /// The peer refused, or the connection did not come about.
    Rejected {
        /// Our queue pair, still unconnected.
        qp: QpId,
        /// What the peer's `reject` carried; empty if it was not the peer.
        private: Vec<u8>,
    },
}

/// Setup and repair. May allocate, block and enter the kernel. Called by control threads (any number), never inside a poll step.
///
/// **Calls that end an object** are `deregister`, `dealloc_window`, `destroy_qp` and `dealloc_pd`.
/// * `Ok` ends it, with what the call proves (rule 7). From then on its name is nobody's: made again, the call says `NoSuch...` and touches nothing, an object
///   that was made since neither. A name is not given out again at once.
/// * Any error but `NoSuch...` leaves the object: nothing is proven, it keeps its place in the device's limits and in what refers to it, and the call may be made
///   again, after [`ControlError::Late`] too. A key may be dead already, or not: nothing may be concluded from that. The value of a key that may be alive is given to no other.
/// * To a thread that made all calls for an object, `NoSuch...` says that an earlier one has ended it. To others it does not: *for one object one thread calls at a
///   time*, since of two calls at once the second may find no object while the first still waits for its proof. Different objects may be ended from any number of threads at once.
pub trait Control: Send + Sync + 'static {
    /// What this device can do.
    fn caps(&self) -> &Caps;

    /// Makes a protection domain.
    fn alloc_pd(&self) -> Result<PdId, ControlError>;

    /// Ends a protection domain that no region and no queue pair uses; [`ControlError::InUse`] while one does. Proves nothing about keys but that none of the domain is left.
    fn dealloc_pd(&self, pd: PdId) -> Result<(), ControlError>;

    /// Registers the bytes `range` of `arena` in `pd`. Addresses in work requests are those of this process
    /// ([`Arena::address`] plus the offset).
    fn register(
        &self,
        pd: PdId,
        arena: &Arc<Arena>,
        range: Range<usize>,
        access: Access,
    ) -> Result<Region, ControlError>;

    /// Ends a region. [`ControlError::InUse`] while windows are bound to it. On return no access by its keys goes on or comes.
    fn deregister(&self, region: RegionId) -> Result<(), ControlError>;

    /// Makes a queue pair for a lcore whose path is open. Receives may be posted at once, work only once it is connected.
    fn create_qp(&self, config: &QpConfig) -> Result<QpId, ControlError>;

    /// Starts to listen. Requests come as [`ControlEvent::ConnectRequest`].
    fn listen(&self, address: &str) -> Result<(), ControlError>;

    /// Starts to connect; never waits for the other side. The end comes as an event.
    fn start_connect(&self, qp: QpId, address: &str, private: &[u8]) -> Result<(), ControlError>;

    /// Answers a request with a queue pair of ours.
    fn accept(&self, request: RequestId, qp: QpId, private: &[u8]) -> Result<(), ControlError>;

    /// Refuses a request.
    fn reject(&self, request: RequestId, private: &[u8]) -> Result<(), ControlError>;

    /// The next event, or `None` without waiting for one. To be called often, whether events are expected or not: a device may bring
    /// connections about here, and run here what it must wait for (some ten milliseconds) before its paths may report an invalidation.
    fn poll_event(&self) -> Option<ControlEvent>;

    /// Moves a queue pair to error. Its posted requests and receives will complete as `Flushed`. Idempotent.
    fn error_qp(&self, qp: QpId) -> Result<(), ControlError>;

    /// Destroys a queue pair that its lcore has released. On return no access for its requests goes on: not to local memory, not by
    /// keys bound on it.
    fn destroy_qp(&self, qp: QpId) -> Result<(), ControlError>;

    /// Allocates a window for one queue pair (after the queue pair: the other order makes destruction take a minute on Soft-RoCE).
    fn alloc_window(&self, qp: QpId) -> Result<Window, ControlError>;

    /// Ends a window, bound or not. On return no access by its key goes on or comes. Not while an invalidation of it is
    /// posted on a queue pair that is not in error.
    fn dealloc_window(&self, window: WindowId) -> Result<(), ControlError>;
}

/// A whole device: its control side, and a poll path a lcore.
pub trait Device: Control {
    /// The poll path.
    type Path: DataPath;

    /// Opens the path of one lcore, once.
    fn open_path(&self, lcore: LcoreId) -> Result<Self::Path, OpenPathError>;
}

/// The poll path of one lcore; owned and called by one thread at a time. Never blocks, never allocates, never fails as a whole.
pub trait DataPath: Send + 'static {
    /// Posts a prefix of `work` in order and returns its length: as many as the send queue has room for, to its depth exactly, and 0 on a queue
    /// pair that is unknown, unconnected or released. It does a bounded amount of what they ask for; polls do the rest, in order. On a
    /// queue pair in error, connected or not, as many are taken, and complete as `Flushed`. A request that breaks a limit (too many entries, too
    /// long, inline too long) is taken too and completes with an error, as one that breaks a key does.
    fn post_burst(&mut self, qp: QpId, work: &[WorkRequest]) -> usize;

    /// Posts a prefix of `receives` and returns its length: as many as the receive queue has room for, to its depth exactly, also before the
    /// queue pair is connected and when it is in error (they complete as `Flushed`); 0 if it is unknown or released.
    fn post_receives(&mut self, qp: QpId, receives: &[ReceiveRequest]) -> usize;

    /// Moves the device on by a bounded amount of work and writes up to `done.len()` completions of all queue pairs of this lcore. What there is no
    /// room for comes with a later poll; an array without room moves the device on, too.
    fn poll_burst(&mut self, done: &mut [Completion]) -> usize;

    /// Gives a queue pair up after its last post: posts to it return 0 from now on, and only now can `destroy_qp` end it.
    /// Completions of it that were not polled before are never polled (rule 9), so drain first.
    fn release_qp(&mut self, qp: QpId);
}
