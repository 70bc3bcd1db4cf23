//! An adapter: what its control calls and its paths share.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use keyfence_mempool::sync::{AtomicBool, AtomicU64, Ordering};

use super::books::Books;
use super::by_key::ByKey;
use super::config::VerbsConfig;
use super::datapath::VerbsPath;
use super::error::{VerbsError, check_libraries, lock_hint, open_error};
use super::events::AsyncCounts;
use super::grace::Grace;
use super::sys::can_wait_for_accesses;
use super::sys::{Clocks, Context, Cq, EventChannel, Limits, Pd, Qp, QpSizes, Table};
use super::windows::{Objects, RegionUses};
use crate::device::{Caps, Device};
use crate::error::OpenPathError;
use crate::ids::LcoreId;

/// An RDMA adapter. Cloning gives a second handle to the same one; when the last is dropped, its listeners end, its windows are
/// deallocated and its queue pairs go to error.
#[derive(Clone, Debug)]
pub struct VerbsDevice {
    handle: Arc<Handle>,
}

/// Ends the device when the last handle is dropped; paths keep `Shared` alone.
#[derive(Debug)]
struct Handle {
    shared: Arc<Shared>,
}

/// What control calls and paths share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: VerbsConfig,
    pub(crate) caps: Caps,
    pub(crate) limits: Limits,
    pub(crate) adapter: String,
    /// The adapter is software: what it has begun to copy when a key ends is copied to its end.
    pub(crate) software: bool,
    books: Mutex<Books>,
    pub(crate) objects: Objects,
    pub(crate) lcores: Box<[LcoreState]>,
    pub(crate) context: Arc<Context>,
}

/// What a path says of itself.
#[derive(Debug)]
pub(crate) struct LcoreState {
    /// Polls that have found the completion queue empty.
    empty_polls: AtomicU64,
    /// The path was dropped: it will never step again.
    pub(crate) path_gone: AtomicBool,
}

impl VerbsDevice {
    /// Opens an adapter.
    ///
    /// # Errors
    /// Which setting is out of range, which library or adapter is missing, or which call failed, and what to do.
    pub fn open(config: VerbsConfig) -> Result<Self, VerbsError> {
        config.check()?;
        check_libraries()?;
        let context = open_context(config.device.as_deref())?;
        let limits = context.limits(config.port);
        let mut limits = limits.map_err(|error| open_error("ibv_query_device", &error))?;
        config.check_port(&limits)?;
        check_gid(&context, &config)?;
        let software = config.is_software(&context.name());
        // Without a way to prove a window's end there are none to be had.
        limits.windows &= !software || can_wait_for_accesses();
        let max_inline_bytes = find_inline(&context, &config, &limits)?;
        let channel = EventChannel::create();
        let channel = channel.map_err(|error| open_error("rdma_create_event_channel", &error))?;
        let caps = config.caps(&limits, max_inline_bytes);
        let shared = Shared::new((config, software), caps, limits, context, channel);
        Ok(Self {
            handle: Arc::new(Handle {
                shared: Arc::new(shared),
            }),
        })
    }

    /// What the adapter has reported by itself until now. Events are read in `poll_event`.
    #[must_use]
    pub fn async_counts(&self) -> AsyncCounts {
        self.shared().books().async_events.clone()
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.handle.shared
    }
}

fn open_context(name: Option<&str>) -> Result<Arc<Context>, VerbsError> {
    let none = |source_text: String| VerbsError::NoAdapter { source_text };
    match Context::open(name) {
        Ok(Ok(context)) => Ok(Arc::new(context)),
        Ok(Err(present)) if present.is_empty() => Err(none("the list of adapters is empty".into())),
        Ok(Err(present)) => Err(match name {
            Some(name) => VerbsError::NoSuchAdapter {
                name: name.into(),
                present,
            },
            None => VerbsError::Ambiguous { present },
        }),
        Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => Err(none(error.to_string())),
        Err(error) => Err(open_error("ibv_open_device", &error)),
    }
}

fn check_gid(context: &Context, config: &VerbsConfig) -> Result<(), VerbsError> {
    match config.gid_index {
        Some(index) if !context.has_gid(config.port, index) => Err(VerbsError::NoGid {
            adapter: context.name(),
            port: config.port,
            index,
        }),
        _ => Ok(()),
    }
}

/// The most inline bytes that a queue pair of this adapter can have: no query tells, so it is tried.
fn find_inline(
    context: &Arc<Context>,
    config: &VerbsConfig,
    limits: &Limits,
) -> Result<u32, VerbsError> {
    let pd = Pd::alloc(context).map_err(|error| open_error("ibv_alloc_pd", &error))?;
    let cq = Cq::create(context, 2).map_err(|error| open_error("ibv_create_cq", &error))?;
    let (pd, cq) = (Arc::new(pd), Arc::new(cq));
    let mut max_inline_bytes = config.max_inline_bytes;
    loop {
        let sizes = QpSizes {
            send_depth: 1,
            receive_depth: 1,
            max_sge: 1,
            max_inline_bytes,
            windows: limits.windows,
            atomics: limits.atomics,
            extended: config.extended_posts,
        };
        match Qp::create(&pd, &cq, &sizes) {
            Ok(qp) => return Ok(qp.max_inline_bytes().min(max_inline_bytes)),
            Err(error) if max_inline_bytes == 0 => {
                return Err(open_error("ibv_create_qp", &error));
            }
            Err(_) => max_inline_bytes /= 2,
        }
    }
}

impl Device for VerbsDevice {
    type Path = VerbsPath;

    fn open_path(&self, lcore: LcoreId) -> Result<VerbsPath, OpenPathError> {
        let shared = self.shared();
        let limit = shared.caps.max_lcores;
        if lcore.0 >= limit {
            return Err(OpenPathError::TooMany { lcore, limit });
        }
        let number = usize::from(lcore.0);
        if shared.books().lcores[number].is_open() {
            return Err(OpenPathError::AlreadyOpen(lcore));
        }
        let cq = Cq::create(&shared.context, shared.config.completions);
        let cq = cq.map_err(|error| OpenPathError::System {
            call: "ibv_create_cq",
            source_text: format!("{error}{}", lock_hint()),
        })?;
        let rings = shared.books().open_lcore(number, cq, shared.caps.max_qps);
        let rings = rings.ok_or(OpenPathError::AlreadyOpen(lcore))?;
        Ok(VerbsPath::new(Arc::clone(shared), number, rings))
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.close();
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // A path may have kept it alive, and windows may have been too slow to end when the device was closed.
        let books = self.books.get_mut().unwrap_or_else(PoisonError::into_inner);
        let windows = std::mem::take(&mut books.windows);
        for (id, record) in windows {
            let slot = super::numbers::slot_of(id.0, self.caps.max_windows);
            for retired in [self.objects.windows.retire(slot), record.retired] {
                // No path is left, so nobody is in a step.
                let waited = retired.map(|retired| retired.wait(0).map_err(|(_, late)| late));
                debug_assert!(waited.is_none_or(|waited| waited.is_ok()));
            }
            drop(record.window);
        }
        books.qps.clear();
    }
}

impl Shared {
    fn new(
        (mut config, software): (VerbsConfig, bool),
        caps: Caps,
        limits: Limits,
        context: Arc<Context>,
        channel: EventChannel,
    ) -> Self {
        config.completions = u64::from(config.completions).min(limits.max_cqes) as u32;
        let (clocks, handles) = Clocks::new(caps.max_lcores);
        let slots = |limit: u32| limit.next_power_of_two() as usize;
        let (windows, regions) = (slots(caps.max_windows), slots(caps.max_regions));
        let lcore = |_| LcoreState {
            empty_polls: AtomicU64::new(0),
            path_gone: AtomicBool::new(false),
        };
        Self {
            objects: Objects {
                windows: Table::new(windows, &clocks),
                window_slots: ByKey::new(windows),
                regions: Table::new(regions, &clocks),
                region_slots: ByKey::new(regions),
                uses: RegionUses::new(regions),
                grace: Grace::new(),
            },
            books: Mutex::new(Books::new(&caps, channel, handles)),
            lcores: (0..caps.max_lcores).map(lcore).collect(),
            adapter: context.name(),
            software,
            config,
            caps,
            limits,
            context,
        }
    }

    pub(crate) fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().expect("no call panics with this lock")
    }

    /// The books for a path or a device that is dropped, perhaps by a panic.
    pub(crate) fn books_of_the_dying(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A poll of this lcore has found its completion queue empty.
    #[inline]
    pub(crate) fn found_empty(&self, lcore: usize) {
        let polls = &self.lcores[lcore].empty_polls;
        // Written by the lcore alone.
        let count = polls.load(Ordering::Relaxed) + 1;
        polls.store(count, Ordering::Release);
    }

    pub(crate) fn empty_polls(&self, lcore: usize) -> u64 {
        self.lcores[lcore].empty_polls.load(Ordering::Acquire)
    }

    pub(crate) fn is_path_gone(&self, lcore: usize) -> bool {
        self.lcores[lcore].path_gone.load(Ordering::Acquire)
    }

    /// Ends all that can be ended while paths live: peers are told, keys die, and what is posted is flushed.
    fn close(&self) {
        let (listeners, requests, windows) = {
            let mut books = self.books_of_the_dying();
            books.closed = true;
            for record in books.qps.values() {
                // What the adapter refuses now ends with the queue pair.
                let _ = record.fail();
            }
            let windows: Vec<_> = books.windows.keys().copied().collect();
            // Nobody asks for events any more, so nobody runs grace periods.
            self.objects.grace.end();
            (
                std::mem::take(&mut books.listeners),
                std::mem::take(&mut books.requests),
                windows,
            )
        };
        // Without the lock: each of them is a call into the kernel. An id that is dropped unanswered refuses its peer.
        drop(requests);
        drop(listeners);
        for window in windows {
            self.drop_window(window);
        }
    }
}
