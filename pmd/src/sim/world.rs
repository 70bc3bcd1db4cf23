//! The handle of a world.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::adapter::Adapter;
use super::config::SimConfig;
use super::device::SimDevice;
use super::faults::{Fired, SimFaults};
use super::keys::Key;
use super::record::Access;
use super::state::State;
use crate::error::ControlError;

/// A simulated network with its adapters, and the clock of it all. Cloning gives a second handle to the same one. One thread steps everything; the lock
/// within only keeps a call whole.
#[derive(Clone)]
pub struct World {
    state: Arc<Mutex<State>>,
}

impl World {
    /// A world at time 0 without adapters or faults.
    ///
    /// # Errors
    /// [`ControlError::OutOfRange`] names the first value of `config` that is outside its range.
    pub fn new(seed: u64, config: SimConfig) -> Result<Self, ControlError> {
        config.check()?;
        Ok(Self {
            state: Arc::new(Mutex::new(State::new(seed, config))),
        })
    }

    /// Adds an adapter. The name is for reports alone.
    #[must_use]
    pub fn device(&self, name: &str) -> SimDevice {
        let (number, caps) = {
            let mut state = self.lock();
            let number = state.adapters.len() as u32;
            let adapter = Adapter::new(name, number, &state.config);
            state.adapters.push(adapter);
            (number, state.caps.clone())
        };
        SimDevice::new(self.clone(), number, caps)
    }

    /// The present, in nanoseconds.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.lock().now_ns
    }

    /// When the next thing happens, if anything is to happen at all. Completions that nobody polls are no such thing.
    #[must_use]
    pub fn next_ns(&self) -> Option<u64> {
        self.lock().next_ns()
    }

    /// Lets everything happen that is due at `now_ns`, which is the present from then on. An earlier time than the present changes nothing, and
    /// the clock ends at 2^62.
    pub fn advance_to(&self, now_ns: u64) {
        self.lock().advance_to(now_ns);
    }

    /// Sets the faults from now on.
    ///
    /// # Errors
    /// [`ControlError::OutOfRange`] names the first range of times that is none, or that is beyond [`Nanos::MOST`](super::Nanos::MOST).
    pub fn set_faults(&self, faults: &SimFaults) -> Result<(), ControlError> {
        faults.check()?;
        self.lock().faults = faults.clone();
        Ok(())
    }

    /// No fault begins from now on, and stalls end. What is late comes at its time; everything can end.
    pub fn faults_off(&self) {
        self.lock().faults_off();
    }

    /// How often each kind of fault has struck.
    #[must_use]
    pub fn fired(&self) -> Fired {
        self.lock().fired.clone()
    }

    /// How often a caller did what the contract forbids it: an invalidation of a key that is not live on its queue pair, on a device without
    /// [`Caps::invalidate_checks`](crate::Caps::invalidate_checks) (a host with Soft-RoCE may panic of it); the deallocation of a window whose invalidation is
    /// posted on a queue pair that is not in error.
    #[must_use]
    pub fn misuses(&self) -> u64 {
        self.lock().misuses
    }

    /// How many regions and queue pairs an adapter has, those included whose making came back as late, so that nobody can name them.
    ///
    /// # Panics
    /// If no adapter has the number.
    #[must_use]
    pub fn objects(&self, adapter: u32) -> usize {
        let mut state = self.lock();
        let keys = state.adapter(adapter).keys.table.values();
        let regions = keys.filter(|key| matches!(key, Key::Region(_))).count();
        regions + state.qps_of(adapter).len()
    }

    /// Moves the accesses that were recorded since the last call behind those in `into`, in the order in which they happened. Returns how many
    /// were lost since the beginning, because more than [`SimConfig::accesses_max`] waited to be taken: a checker that wants the truth asks for 0.
    pub fn take_accesses(&self, into: &mut Vec<Access>) -> u64 {
        let accesses = &mut self.lock().accesses;
        into.append(&mut accesses.kept);
        accesses.lost
    }

    /// A hash over all that has happened: equal if the seed, the configuration and the calls were.
    #[must_use]
    pub fn hash(&self) -> u64 {
        self.lock().hash.get()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        // A call that panicked is a defect; what is dropped behind it must not panic again.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        let mut shown = f.debug_struct("World");
        shown.field("now_ns", &state.now_ns);
        for adapter in &state.adapters {
            shown.field("adapter", &adapter.name);
        }
        shown.field("qps", &state.qps.len()).finish_non_exhaustive()
    }
}
