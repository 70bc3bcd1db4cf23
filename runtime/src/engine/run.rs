//! Threads: one pinned to its CPU for each lcore. The control side stays with the caller.

use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;

use keyfence_mempool::sync::{Arc, AtomicBool, Ordering};
use keyfence_pmd::{DataPath, Device};

use crate::config::IdlePolicy;
use crate::engine::Engine;
use crate::engine::idle::Pace;
use crate::engine::lcore::Lcore;
use crate::ids::LcoreId;
use crate::service::Work;

/// Why lcores could not be started. None runs then.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The kernel did not put a thread on its CPU.
    #[error(
        "lcore {lcore} can't run on CPU {cpu}: this process may use CPUs {allowed:?}; choose one of those in engine.lcores, or widen the cpuset"
    )]
    Pin {
        /// The lcore.
        lcore: LcoreId,
        /// The CPU asked for.
        cpu: u32,
        /// CPUs that the process may use.
        allowed: Vec<usize>,
    },
    /// A thread could not be made.
    #[error("starting the thread of lcore {lcore}: {source}")]
    Spawn {
        /// The lcore.
        lcore: LcoreId,
        /// Why.
        source: std::io::Error,
    },
    /// The lcores were taken, or started before.
    #[error("lcore {0} is no longer the engine's to start")]
    Taken(LcoreId),
}

/// Lcores that run on threads of their own.
pub struct Running<P> {
    threads: Vec<(LcoreId, JoinHandle<Lcore<P>>)>,
    stop: Arc<AtomicBool>,
}

impl<D: Device> Engine<D> {
    /// Starts a thread for each lcore, pinned to its CPU. `clock` gives a monotonic time in nanoseconds: the runtime reads none of its own. The
    /// calling thread's affinity is not changed.
    ///
    /// # Errors
    /// [`RunError`] if a CPU is not to be had; no lcore runs then.
    pub fn start(
        &mut self,
        clock: impl Fn() -> u64 + Clone + Send + 'static,
    ) -> Result<Running<D::Path>, RunError> {
        let mut running = Running {
            threads: Vec::new(),
            stop: Arc::new(AtomicBool::new(false)),
        };
        let (ready, pinned) = channel();
        for at in 0..self.lcores() {
            let id = LcoreId(at as u16);
            let Some(lcore) = self.take_lcore(id) else {
                self.take_back(running);
                return Err(RunError::Taken(id));
            };
            let (cpu, idle) = (self.cpus[at], self.idle);
            let (clock, stop, ready) = (clock.clone(), Arc::clone(&running.stop), ready.clone());
            let body = move || {
                let fits = pin(cpu);
                let go = fits.is_ok();
                // The starter waits for this; it can't be gone.
                let _ = ready.send((id, cpu, fits));
                // It waits until every sender is gone, and this thread lives on.
                drop(ready);
                if go {
                    poll_until(lcore, &clock, &stop, idle)
                } else {
                    lcore
                }
            };
            let thread = std::thread::Builder::new().name(format!("{}-lcore{at}", self.name));
            let handle = thread
                .spawn(body)
                .map_err(|source| RunError::Spawn { lcore: id, source })?;
            running.threads.push((id, handle));
        }
        drop(ready);
        match all_pinned(&pinned) {
            Ok(()) => Ok(running),
            Err(error) => {
                self.take_back(running);
                Err(error)
            }
        }
    }

    /// Stops what was started, so that a start that failed leaves nothing running and can be tried again.
    fn take_back(&mut self, running: Running<D::Path>) {
        for lcore in running.join().into_iter().flatten() {
            let at = lcore.id().0 as usize;
            self.lcores[at] = Some(lcore);
        }
    }
}

impl<P> Running<P> {
    /// Whether each lcore's thread is still there.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.threads.iter().all(|(_, thread)| !thread.is_finished())
    }

    /// Stops the lcores after the step that they are in, and gives them back; the id of one that has died by a panic instead.
    pub fn join(mut self) -> Vec<Result<Lcore<P>, LcoreId>> {
        // Release: what the stopper did before is seen by the lcores' last steps.
        self.stop.store(true, Ordering::Release);
        let threads = core::mem::take(&mut self.threads);
        threads
            .into_iter()
            .map(|(id, thread)| thread.join().map_err(|_| id))
            .collect()
    }
}

impl<P> Drop for Running<P> {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
    }
}

impl<P> core::fmt::Debug for Running<P> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Running")
            .field("lcores", &self.threads.len())
            .finish()
    }
}

/// What a thread says before it polls: its lcore, its CPU, and whether it is there; if not, where it may be.
type Pinned = (LcoreId, u32, Result<(), Vec<usize>>);

fn all_pinned(pinned: &Receiver<Pinned>) -> Result<(), RunError> {
    // Ends when each thread has spoken and dropped its sender.
    for (lcore, cpu, fits) in pinned {
        if let Err(allowed) = fits {
            return Err(RunError::Pin {
                lcore,
                cpu,
                allowed,
            });
        }
    }
    Ok(())
}

/// Puts the calling thread on one CPU, and reads the mask back: the kernel drops CPUs that the process may not use without a word.
fn pin(cpu: u32) -> Result<(), Vec<usize>> {
    let allowed = || -> Vec<usize> {
        core_affinity::get_core_ids()
            .unwrap_or_default()
            .into_iter()
            .map(|core| core.id)
            .collect()
    };
    let before = allowed();
    let wanted = core_affinity::CoreId { id: cpu as usize };
    // The kernel's mask has no bit for it, and the library would panic.
    if cpu >= libc::CPU_SETSIZE as u32 {
        return Err(before);
    }
    if core_affinity::set_for_current(wanted) && allowed() == [cpu as usize] {
        return Ok(());
    }
    Err(before)
}

fn poll_until<P: DataPath>(
    mut lcore: Lcore<P>,
    clock: &impl Fn() -> u64,
    stop: &AtomicBool,
    idle: IdlePolicy,
) -> Lcore<P> {
    let mut pace = Pace::new(idle);
    // Acquire: pairs with the stopper's release.
    while !stop.load(Ordering::Acquire) {
        match lcore.step(clock()) {
            Work::Busy => pace.busy(),
            Work::Idle | Work::Wait => pace.idle(),
        }
    }
    lcore.publish();
    lcore
}
