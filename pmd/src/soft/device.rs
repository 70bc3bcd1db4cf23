//! A software adapter: what its control calls and its paths share.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use keyfence_mempool::sync::{AtomicBool, Ordering};

use super::books::Books;
use super::config::SoftConfig;
use super::datapath::SoftPath;
use super::fabric::Fabric;
use super::keys::KeyTable;
use crate::device::{Caps, ControlEvent, Device};
use crate::error::{ControlError, OpenPathError};
use crate::ids::{LcoreId, QpId};
use crate::quiesce::{PathClock, wait_for};

/// A software adapter on a [`Fabric`]. Cloning gives a second handle to the same one; when the last is dropped, its queue pairs go to error
/// and its names are free.
#[derive(Clone, Debug)]
pub struct SoftDevice {
    pub(crate) handle: Arc<Handle>,
}

/// Ends the device when the last handle is dropped; paths keep `Shared` alone.
#[derive(Debug)]
pub(crate) struct Handle {
    pub(crate) shared: Arc<Shared>,
}

/// What control calls, paths and the fabric share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: SoftConfig,
    pub(crate) caps: Caps,
    pub(crate) fabric: Fabric,
    pub(crate) keys: KeyTable,
    /// One a lcore.
    pub(crate) clocks: Box<[PathClock]>,
    /// Whether a lcore's path was dropped: it will never step again.
    pub(crate) path_gone: Box<[AtomicBool]>,
    books: Mutex<Books>,
    events: Mutex<VecDeque<ControlEvent>>,
}

impl SoftDevice {
    pub(crate) fn new(fabric: Fabric, config: SoftConfig) -> Self {
        let lcores = 0..config.max_lcores;
        let shared = Shared {
            caps: config.caps(),
            fabric,
            keys: KeyTable::new(config.max_windows + config.max_regions),
            clocks: lcores.clone().map(|_| PathClock::new()).collect(),
            path_gone: lcores.map(|_| AtomicBool::new(false)).collect(),
            books: Mutex::new(Books::new(&config)),
            events: Mutex::new(VecDeque::new()),
            config,
        };
        Self {
            handle: Arc::new(Handle {
                shared: Arc::new(shared),
            }),
        }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.handle.shared
    }
}

impl Device for SoftDevice {
    type Path = SoftPath;

    fn open_path(&self, lcore: LcoreId) -> Result<SoftPath, OpenPathError> {
        let shared = self.shared();
        let limit = shared.config.max_lcores;
        if lcore.0 >= limit {
            return Err(OpenPathError::TooMany { lcore, limit });
        }
        let number = usize::from(lcore.0);
        let mut books = shared.books();
        if books.lcores[number].is_some() {
            return Err(OpenPathError::AlreadyOpen(lcore));
        }
        let rings = books.open_lcore(number, shared.config.max_qps);
        let arenas = books.arenas.open_path();
        Ok(SoftPath::new(Arc::clone(shared), number, arenas, rings))
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.fabric.forget(&self.shared);
        let requests = {
            let mut books = self.shared.books();
            books.closed = true;
            books.qps.values().for_each(|record| record.fail());
            std::mem::take(&mut books.requests)
        };
        for request in requests.into_values() {
            if let Some(peer) = request.from.upgrade() {
                peer.rejected(request.qp, request.attempt, &[]);
            }
        }
    }
}

impl Shared {
    pub(crate) fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().expect("no call panics with this lock")
    }

    /// The books for a path that is dropped, perhaps by a panic.
    pub(crate) fn books_of_the_dying(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn push_event(&self, event: ControlEvent) {
        self.lock_events().push_back(event);
    }

    pub(crate) fn pop_event(&self) -> Option<ControlEvent> {
        self.lock_events().pop_front()
    }

    /// Nobody is told anything more of a queue pair that is destroyed.
    pub(crate) fn forget_events(&self, gone: QpId) {
        self.lock_events().retain(|event| match event {
            ControlEvent::Connected { qp, .. } | ControlEvent::Rejected { qp, .. } => *qp != gone,
            ControlEvent::ConnectRequest { .. } => true,
        });
    }

    /// The place of a queue pair in a path's table.
    #[inline]
    pub(crate) fn slot(&self, qp: QpId) -> usize {
        qp.0 as usize & (self.config.max_qps.next_power_of_two() as usize - 1)
    }

    /// Waits until the lcores have left the step, if any, that may not have seen a mark. Not with the books locked.
    pub(crate) fn wait_for_lcores(
        &self,
        lcores: impl IntoIterator<Item = usize>,
    ) -> Result<(), ControlError> {
        let clocks = lcores.into_iter().map(|lcore| &self.clocks[lcore]);
        wait_for(clocks, self.config.quiesce_timeout_ns)
    }

    pub(crate) fn is_path_gone(&self, lcore: usize) -> bool {
        self.path_gone[lcore].load(Ordering::Acquire)
    }

    fn lock_events(&self) -> MutexGuard<'_, VecDeque<ControlEvent>> {
        self.events.lock().expect("no call panics with this lock")
    }
}
