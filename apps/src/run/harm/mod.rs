//! `Harm`: a device that breaks a lane when the driver wants it, as an adapter or a hostile peer would. The runtime has no part in it and is told nothing.
//!
//! It strikes between the two engines under load alone: on a post that has an access to the other one's arena, so that there is something to cut off.

mod graves;
mod path;
mod wish;

use core::ops::Range;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use keyfence::pmd::{
    Access, Caps, Control, ControlError, ControlEvent, Device, LcoreId, OpenPathError, PdId,
    QpConfig, QpId, Region, RegionId, RequestId, Rights, Window, WindowId,
};
use keyfence_mempool::arena::Arena;
use keyfence_mempool::sync::Arc;

use graves::Grave;
pub use path::HarmPath;
pub use wish::{Strike, Wishes};

/// A device that does harm, if there are wishes.
pub struct Harm<D> {
    inner: Arc<D>,
    wishes: Option<(Arc<Wishes>, usize)>,
    regions: Regions,
}

/// Regions that open something, by their names: the keys of key mode `region`.
type Regions = Mutex<HashMap<RegionId, Grave>>;

impl<D: Device> Harm<D> {
    /// Does what is wished for `side`; without wishes the device as it is.
    pub fn new(inner: D, wishes: Option<(Arc<Wishes>, usize)>) -> Self {
        let inner = Arc::new(inner);
        Self {
            inner,
            wishes,
            regions: Regions::default(),
        }
    }

    fn regions(&self) -> MutexGuard<'_, HashMap<RegionId, Grave>> {
        self.regions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<D: Device> Control for Harm<D> {
    fn caps(&self) -> &Caps {
        self.inner.caps()
    }
    fn alloc_pd(&self) -> Result<PdId, ControlError> {
        self.inner.alloc_pd()
    }
    fn dealloc_pd(&self, pd: PdId) -> Result<(), ControlError> {
        self.inner.dealloc_pd(pd)
    }
    fn register(
        &self,
        pd: PdId,
        arena: &Arc<Arena>,
        range: Range<usize>,
        access: Access,
    ) -> Result<Region, ControlError> {
        let (address, len) = (arena.address() + range.start as u64, range.len() as u64);
        let region = self.inner.register(pd, arena, range, access)?;
        if let Some((wishes, side)) = &self.wishes
            && access.remote != Rights::NONE
        {
            let rkey = region.rkey;
            wishes.lives(*side, rkey);
            self.regions()
                .insert(region.id, Grave { rkey, address, len });
        }
        Ok(region)
    }
    fn deregister(&self, region: RegionId) -> Result<(), ControlError> {
        self.inner.deregister(region)?;
        if let Some((wishes, side)) = &self.wishes {
            wishes.bury(*side, self.regions().remove(&region).into_iter());
        }
        Ok(())
    }
    fn create_qp(&self, config: &QpConfig) -> Result<QpId, ControlError> {
        self.inner.create_qp(config)
    }
    fn listen(&self, address: &str) -> Result<(), ControlError> {
        self.inner.listen(address)
    }
    fn start_connect(&self, qp: QpId, address: &str, private: &[u8]) -> Result<(), ControlError> {
        self.inner.start_connect(qp, address, private)
    }
    fn accept(&self, request: RequestId, qp: QpId, private: &[u8]) -> Result<(), ControlError> {
        self.inner.accept(request, qp, private)
    }
    fn reject(&self, request: RequestId, private: &[u8]) -> Result<(), ControlError> {
        self.inner.reject(request, private)
    }
    fn poll_event(&self) -> Option<ControlEvent> {
        self.inner.poll_event()
    }
    fn error_qp(&self, qp: QpId) -> Result<(), ControlError> {
        self.inner.error_qp(qp)
    }
    fn destroy_qp(&self, qp: QpId) -> Result<(), ControlError> {
        self.inner.destroy_qp(qp)
    }
    fn alloc_window(&self, qp: QpId) -> Result<Window, ControlError> {
        self.inner.alloc_window(qp)
    }
    fn dealloc_window(&self, window: WindowId) -> Result<(), ControlError> {
        self.inner.dealloc_window(window)
    }
}

impl<D: Device> Device for Harm<D> {
    type Path = HarmPath<D>;

    fn open_path(&self, lcore: LcoreId) -> Result<Self::Path, OpenPathError> {
        let path = self.inner.open_path(lcore)?;
        Ok(HarmPath::new(
            path,
            Arc::clone(&self.inner),
            self.wishes.clone(),
        ))
    }
}
