//! `Wrong`: a device that breaks one [`Rule`] of the contract, to show that the conformance suite sees it.
//!
//! Where a rule cannot be broken from outside the inner device, the wrong devices of both sides work together so that the caller
//! sees the effect that a broken device would have. This is a test's tool: its paths allocate and lock.

mod completions;
mod path;
mod requests;
mod rule;
mod world;

use std::ops::Range;
use std::sync::Arc;

use keyfence_mempool::arena::Arena;
use keyfence_mempool::sync;

pub use path::WrongPath;
pub use rule::Rule;
pub use world::World;

use self::world::{Delayed, DelayedCall, LATE_POLLS, QpFact, RegionFact, SideId};
use crate::completion::{Completion, CompletionKind, WcStatus};
use crate::device::{Access, Caps, Control, ControlEvent, Device, QpConfig, Region, Window};
use crate::error::{ControlError, OpenPathError};
use crate::ids::{LcoreId, PdId, QpId, RegionId, RequestId, WindowId, WorkId};
use crate::work::Rights;

/// A device that breaks one rule.
pub struct Wrong<D> {
    inner: Arc<D>,
    world: Arc<World<D>>,
    side: SideId,
}

impl<D: Device> Wrong<D> {
    /// Adds a device to a world; nothing may have been made on it before.
    pub fn new(inner: D, world: &Arc<World<D>>) -> Self {
        let inner = Arc::new(inner);
        let mut facts = world.facts();
        let side = facts.devices.len();
        facts.devices.push(Arc::downgrade(&inner));
        drop(facts);
        Self {
            inner,
            world: Arc::clone(world),
            side,
        }
    }

    fn breaks(&self, rule: Rule) -> bool {
        self.world.rule == rule
    }

    fn delay(&self, call: DelayedCall) {
        self.world.facts().delayed.push(Delayed {
            side: self.side,
            polls_left: LATE_POLLS,
            call,
        });
    }

    /// What an error does to the peer on a wrong device.
    fn spread_error(&self, qp: QpId) {
        let mut facts = self.world.facts();
        let fact = facts.qps.get(&(self.side, qp));
        let Some((side, peer)) = fact.and_then(|fact| fact.peer) else {
            return;
        };
        let Some(device) = facts.device(side) else {
            return;
        };
        if self.breaks(Rule::ErrorSpreadsToPeer) {
            facts.note_error(side, peer);
            let _ = device.error_qp(peer);
        }
        if self.breaks(Rule::ErrorEndsPeersKeys) {
            let of_peer = facts.windows.iter().filter(|(_, of)| **of == peer);
            let ended: Vec<_> = of_peer
                .map(|(window, _)| *window)
                .filter(|(of, _)| *of == side)
                .collect();
            for (side, window) in ended {
                let _ = device.dealloc_window(window);
                facts.ended_windows.insert((side, window));
            }
        }
    }
}

impl<D: Device> Control for Wrong<D> {
    fn caps(&self) -> &Caps {
        self.inner.caps()
    }

    fn alloc_pd(&self) -> Result<PdId, ControlError> {
        self.inner.alloc_pd()
    }

    fn dealloc_pd(&self, pd: PdId) -> Result<(), ControlError> {
        match self.inner.dealloc_pd(pd) {
            Err(ControlError::NoSuchPd(_)) if self.breaks(Rule::EndsWhatIsGone) => Ok(()),
            ended => ended,
        }
    }

    fn register(
        &self,
        pd: PdId,
        arena: &sync::Arc<Arena>,
        mut range: Range<usize>,
        mut access: Access,
    ) -> Result<Region, ControlError> {
        if self.breaks(Rule::ArenaKeyOpens) {
            access.remote = Rights::READ_WRITE;
        }
        if access.remote != Rights::NONE {
            if self.breaks(Rule::IgnoresRights) {
                access.remote = Rights::READ_WRITE;
            }
            if self.breaks(Rule::IgnoresBounds) {
                let slack = requests::SLACK as usize;
                let end = (range.end + slack).min(arena.bytes());
                range = range.start.saturating_sub(slack)..end;
            }
        }
        let region = self.inner.register(pd, arena, range.clone(), access)?;
        let base = arena.address();
        let fact = RegionFact {
            pd,
            arena: sync::Arc::clone(arena),
            addresses: base + range.start as u64..base + range.end as u64,
            lkey: region.lkey,
            rkey: region.rkey,
            opens: access.remote != Rights::NONE,
        };
        let mut facts = self.world.facts();
        facts.regions.insert((self.side, region.id), fact);
        Ok(region)
    }

    fn deregister(&self, region: RegionId) -> Result<(), ControlError> {
        if self.breaks(Rule::DeregisterDoesNotFence) {
            self.delay(DelayedCall::Deregister(region));
            return Ok(());
        }
        match self.inner.deregister(region) {
            Err(ControlError::InUse { .. }) if self.breaks(Rule::DeregistersUnderWindows) => Ok(()),
            Err(ControlError::NoSuchRegion(_)) if self.breaks(Rule::EndsWhatIsGone) => Ok(()),
            Err(error) => Err(error),
            Ok(()) => {
                self.world.facts().regions.remove(&(self.side, region));
                Ok(())
            }
        }
    }

    fn create_qp(&self, config: &QpConfig) -> Result<QpId, ControlError> {
        let qp = self.inner.create_qp(config)?;
        let fact = QpFact {
            config: *config,
            peer: None,
            in_error: false,
            released: false,
            receives: Default::default(),
        };
        self.world.facts().qps.insert((self.side, qp), fact);
        Ok(qp)
    }

    fn listen(&self, address: &str) -> Result<(), ControlError> {
        self.inner.listen(address)
    }

    fn start_connect(&self, qp: QpId, address: &str, private: &[u8]) -> Result<(), ControlError> {
        self.inner.start_connect(qp, address, private)?;
        let mut facts = self.world.facts();
        let waiting = facts.connecting.entry(address.into()).or_default();
        waiting.push_back((self.side, qp));
        Ok(())
    }

    fn accept(&self, request: RequestId, qp: QpId, private: &[u8]) -> Result<(), ControlError> {
        let lost = self.breaks(Rule::LosesPrivateData);
        let private = if lost { &[] } else { private };
        self.inner.accept(request, qp, private)?;
        let (mine, mut facts) = ((self.side, qp), self.world.facts());
        let Some(its) = facts.requests.remove(&(self.side, request)) else {
            return Ok(());
        };
        for (one, other) in [(mine, its), (its, mine)] {
            if let Some(fact) = facts.qps.get_mut(&one) {
                fact.peer = Some(other);
            }
        }
        Ok(())
    }

    fn reject(&self, request: RequestId, private: &[u8]) -> Result<(), ControlError> {
        self.inner.reject(request, private)
    }

    fn poll_event(&self) -> Option<ControlEvent> {
        let side = self.side;
        let made_up = || {
            let mut facts = self.world.facts();
            let at = facts.events.iter().position(|(of, _)| *of == side)?;
            Some(facts.events.remove(at).1)
        };
        let event = self.inner.poll_event().or_else(made_up)?;
        if let ControlEvent::ConnectRequest {
            request, address, ..
        } = &event
        {
            let mut facts = self.world.facts();
            let waiting = facts.connecting.get_mut(address);
            if let Some(from) = waiting.and_then(std::collections::VecDeque::pop_front) {
                facts.requests.insert((self.side, *request), from);
            }
        }
        Some(event)
    }

    fn error_qp(&self, qp: QpId) -> Result<(), ControlError> {
        let mut facts = self.world.facts();
        if self.breaks(Rule::ConnectsInError) && facts.is_connecting(self.side, qp) {
            facts.pretend_connected(self.side, qp);
        }
        drop(facts);
        match self.breaks(Rule::FlushesEarly) {
            true => self.delay(DelayedCall::Error(qp)),
            false => self.inner.error_qp(qp)?,
        }
        self.world.facts().note_error(self.side, qp);
        self.spread_error(qp);
        Ok(())
    }

    fn destroy_qp(&self, qp: QpId) -> Result<(), ControlError> {
        if self.breaks(Rule::DestroyDoesNotFence) {
            self.delay(DelayedCall::Destroy(qp));
            return Ok(());
        }
        match self.inner.destroy_qp(qp) {
            Err(ControlError::NotReleased(_)) if self.breaks(Rule::DestroysUnreleased) => Ok(()),
            Err(ControlError::NoSuchQp(_)) if self.breaks(Rule::EndsWhatIsGone) => Ok(()),
            Err(error) => Err(error),
            Ok(()) => {
                if self.breaks(Rule::CompletesAfterDestroy) {
                    let late = Completion {
                        id: WorkId(0),
                        qp,
                        status: WcStatus::Flushed,
                        kind: CompletionKind::Send,
                        ..Completion::EMPTY
                    };
                    self.world.facts().made_up.push((self.side, late));
                }
                if self.breaks(Rule::EventAfterDestroy) {
                    self.world.facts().pretend_connected(self.side, qp);
                }
                Ok(())
            }
        }
    }

    fn alloc_window(&self, qp: QpId) -> Result<Window, ControlError> {
        let window = self.inner.alloc_window(qp)?;
        let mut facts = self.world.facts();
        facts.windows.insert((self.side, window.id), qp);
        Ok(window)
    }

    fn dealloc_window(&self, window: WindowId) -> Result<(), ControlError> {
        let mut facts = self.world.facts();
        if facts.ended_windows.remove(&(self.side, window)) {
            return Ok(());
        }
        let mine = |side, of| side == self.side && of == window;
        for bind in facts.binds.values_mut() {
            bind.live &= !mine(bind.side, bind.window);
        }
        drop(facts);
        if self.breaks(Rule::DeallocDoesNotFence) {
            self.delay(DelayedCall::Dealloc(window));
            return Ok(());
        }
        match self.inner.dealloc_window(window) {
            Err(ControlError::NoSuchWindow(_)) if self.breaks(Rule::EndsWhatIsGone) => Ok(()),
            ended => ended,
        }
    }
}

impl<D: Device> Device for Wrong<D> {
    type Path = WrongPath<D>;

    fn open_path(&self, lcore: LcoreId) -> Result<Self::Path, OpenPathError> {
        let path = self.inner.open_path(lcore)?;
        let (device, world) = (Arc::clone(&self.inner), Arc::clone(&self.world));
        Ok(WrongPath::new(path, device, world, self.side))
    }
}
