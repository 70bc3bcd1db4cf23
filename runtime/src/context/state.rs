//! The contexts of one lcore: slots, generations, lifecycle.

use std::collections::VecDeque;

use keyfence_mempool::buf::BufId;

use crate::context::offences::Offences;
use crate::context::quota::Quota;
use crate::event::Event;
use crate::ids::{ContextId, LcoreId, RemoteContext, SessionId};
use crate::lane::link::LinkName;

/// Remote contexts that a context is remembered to have to do with.
const ACQUAINTANCES: usize = 64;

/// Where a context is in its life. Only this file changes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// The slot is free; or, with a quarantine, never free again until its proof comes.
    Free,
    /// It works.
    Live,
    /// It asked to be closed; the cordon follows within the step.
    Closing,
    /// Step 1 of its reclaim is done: nothing new is accepted, its epoch is taken.
    Cordoned {
        /// When.
        since_ns: u64,
        /// Own work requests posted then.
        ops_in_flight: u32,
    },
    /// Its reclaim ended without every proof: the slot and what is unproven stay.
    Quarantined,
}

/// A buffer that belongs to a context.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OwnedBuf {
    /// Which of the lcore's pools.
    pub pool: u8,
    /// The buffer.
    pub id: BufId,
    /// Address of its first byte.
    pub address: u64,
}

/// A message that a context has not given back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HeldMessage {
    /// The lane it came on.
    pub link: LinkName,
    /// The lane's session: there may be another one by the time the message is given back.
    pub session: SessionId,
    /// Its buffer in the receive pool.
    pub id: BufId,
}

/// A notice of landed data that a context was not yet told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HeldLanding {
    /// The lane it came on.
    pub link: LinkName,
    /// The lane's session.
    pub session: SessionId,
}

/// One context.
#[derive(Debug)]
pub struct ContextState {
    phase: Phase,
    generation: u32,
    /// Its name for look-ups.
    pub name: String,
    /// What it may use, and uses.
    pub quota: Quota,
    /// Buffers given out to it. May list ones that were dropped meanwhile; `Core::sweep_buffers` strikes those.
    pub buffers: Vec<OwnedBuf>,
    /// Most entries of `buffers`.
    pub buffers_limit: usize,
    /// Messages not yet given back.
    pub messages: Vec<HeldMessage>,
    /// Most entries of `messages`: the windows of all lanes. Those of an ended session that it still has count too.
    pub messages_limit: usize,
    /// What it was not yet told.
    pub events: VecDeque<Event>,
    /// Events that it was told.
    pub events_told: u64,
    /// Most entries of `events`.
    pub events_limit: usize,
    /// The lanes of the `Landed` among `events`, in order: each takes a message's credit until it is told.
    pub landed: VecDeque<HeldLanding>,
    /// Whether a submission was refused since the last `Writable`.
    pub wants_writable: bool,
    /// Whether a `Writable` is among `events`: a second one would say nothing more.
    pub writable_untold: bool,
    /// Whether it stands in the lcore's list of those that wait for room which all share.
    pub wants_room: bool,
    /// Where it stands in the lcore's list of those whose service is polled each step.
    pub polled_at: Option<u16>,
    /// Whether its service waits for an event.
    pub waits: bool,
    /// Whether it stands in the lcore's list of those to be told something.
    pub ready: bool,
    /// Its share of a lane against others.
    pub weight: u32,
    /// Operations ended since it was opened.
    pub completed_ops: u64,
    /// Those of its operations that broke a lane.
    pub offences: Offences,
    /// With a planted fault alone: whether the slot is to be freed when its last operation has ended.
    pub free_when_at_rest: bool,
    /// Remote contexts that it has to do with.
    acquaintances: Vec<RemoteContext>,
    /// The last one that it was acquainted with: most messages come from the same one again.
    met_last: Option<RemoteContext>,
    /// Whether it had to do with more than are remembered, and so hears of each end.
    well_connected: bool,
}

impl ContextState {
    /// Where it is in its life.
    #[inline]
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Whether it may submit.
    #[inline]
    pub fn is_live(&self) -> bool {
        self.phase == Phase::Live
    }

    /// Asks for its reclaim; of a context that is not live nothing changes.
    pub fn close(&mut self) {
        if self.phase == Phase::Live {
            self.phase = Phase::Closing;
        }
    }

    /// Step 1 of its reclaim.
    pub fn cordon(&mut self, since_ns: u64, ops_in_flight: u32) {
        assert!(
            matches!(self.phase, Phase::Live | Phase::Closing),
            "a context is cordoned once"
        );
        self.phase = Phase::Cordoned {
            since_ns,
            ops_in_flight,
        };
    }

    /// Whether this is the remote context that was remembered last, and is still.
    #[inline]
    pub fn met_last(&self, remote: &RemoteContext) -> bool {
        self.met_last.as_ref() == Some(remote)
    }

    /// Remembers that it has to do with a remote context.
    pub fn acquaint(&mut self, remote: RemoteContext) {
        self.met_last = Some(remote);
        if self.acquaintances.contains(&remote) {
            return;
        }
        if self.acquaintances.len() == ACQUAINTANCES {
            self.well_connected = true;
        } else {
            self.acquaintances.push(remote);
        }
    }

    /// Whether it has to do with more remote contexts than are remembered, so that any may be among them.
    pub fn well_connected(&self) -> bool {
        self.well_connected
    }

    /// Forgets a remote context that is gone; whether it was remembered.
    pub fn forget(&mut self, remote: RemoteContext) -> bool {
        self.met_last = self.met_last.filter(|met| *met != remote);
        let at = self.acquaintances.iter().position(|known| *known == remote);
        if let Some(at) = at {
            self.acquaintances.swap_remove(at);
        }
        at.is_some()
    }

    /// The end of a reclaim that left something unproven.
    pub fn quarantine(&mut self) {
        assert!(
            matches!(self.phase, Phase::Cordoned { .. }),
            "only a reclaim ends in quarantine"
        );
        self.phase = Phase::Quarantined;
    }
}

/// The table of one lcore.
#[derive(Debug)]
pub struct Contexts {
    lcore: LcoreId,
    slots: Vec<ContextState>,
    free: Vec<u16>,
    /// Slots that are not free, by name and then by slot: peers ask for names as often as they like.
    by_name: Vec<u16>,
}

impl Contexts {
    /// Room for `capacity` contexts with these quotas, everything allocated now. `messages` are of all lanes.
    pub fn new(
        lcore: LcoreId,
        capacity: u16,
        quota: &Quota,
        buffers: usize,
        messages: usize,
        events: usize,
    ) -> Self {
        let slot = |_| ContextState {
            phase: Phase::Free,
            generation: 0,
            name: String::new(),
            quota: quota.clone(),
            buffers: Vec::with_capacity(buffers),
            buffers_limit: buffers,
            messages: Vec::with_capacity(messages),
            messages_limit: messages,
            events: VecDeque::with_capacity(events),
            events_told: 0,
            events_limit: events,
            landed: VecDeque::with_capacity(messages),
            wants_writable: false,
            writable_untold: false,
            wants_room: false,
            polled_at: None,
            waits: false,
            ready: false,
            weight: 1,
            completed_ops: 0,
            offences: Offences::default(),
            free_when_at_rest: false,
            acquaintances: Vec::with_capacity(ACQUAINTANCES),
            met_last: None,
            well_connected: false,
        };
        Self {
            lcore,
            slots: (0..capacity).map(slot).collect(),
            free: (0..capacity).rev().collect(),
            by_name: Vec::with_capacity(capacity.into()),
        }
    }

    /// Opens a context, or gives `None` when all slots are taken.
    pub fn open(&mut self, name: String, weight: u32) -> Option<u16> {
        let slot = self.free.pop()?;
        let at = self.place_of(&name, slot);
        self.by_name.insert(at, slot);
        let context = &mut self.slots[slot as usize];
        assert!(
            context.phase == Phase::Free && context.quota.is_at_rest(),
            "R7: a free slot uses nothing"
        );
        context.phase = Phase::Live;
        context.generation += 1;
        context.name = name;
        context.weight = weight;
        context.completed_ops = 0;
        context.offences = Offences::default();
        context.acquaintances.clear();
        context.met_last = None;
        context.well_connected = false;
        Some(slot)
    }

    /// Gives the slot of a reclaimed context back; its name was of the last generation.
    pub fn free(&mut self, slot: u16) {
        let at = self.place_of(&self.get(slot).name, slot);
        let struck = self.by_name.remove(at);
        assert_eq!(struck, slot, "a context is listed by its name");
        let context = &mut self.slots[slot as usize];
        assert!(
            matches!(context.phase, Phase::Cordoned { .. } | Phase::Quarantined),
            "R2: a slot is reused after its reclaim"
        );
        assert!(
            context.quota.is_at_rest() && context.buffers.is_empty() && context.messages.is_empty(),
            "R7: a reclaimed context uses nothing"
        );
        context.phase = Phase::Free;
        context.name.clear();
        context.events.clear();
        context.landed.clear();
        context.wants_writable = false;
        context.writable_untold = false;
        context.waits = false;
        self.free.push(slot);
    }

    /// The context in `slot`, which is one of the table's.
    #[inline]
    pub fn get(&self, slot: u16) -> &ContextState {
        &self.slots[slot as usize]
    }

    /// The context in `slot`, to change.
    #[inline]
    pub fn get_mut(&mut self, slot: u16) -> &mut ContextState {
        &mut self.slots[slot as usize]
    }

    /// How many slots there are.
    pub fn capacity(&self) -> u16 {
        self.slots.len() as u16
    }

    /// The full name of the context in `slot`.
    pub fn id(&self, slot: u16) -> ContextId {
        ContextId {
            lcore: self.lcore,
            slot,
            generation: self.slots[slot as usize].generation,
        }
    }

    /// The last context in `slot` whose reclaim has ended, if there was one.
    pub fn last_ended(&self, slot: u16) -> Option<ContextId> {
        let ContextState {
            phase, generation, ..
        } = self.slots[slot as usize];
        let ended = match phase {
            Phase::Free | Phase::Quarantined => generation,
            Phase::Live | Phase::Closing | Phase::Cordoned { .. } => generation - 1,
        };
        let id = ContextId {
            generation: ended,
            ..self.id(slot)
        };
        (ended > 0).then_some(id)
    }

    /// The slot of a context, if `slot` and `generation` name a live one.
    pub fn live(&self, slot: u16, generation: u32) -> Option<u16> {
        let context = self.slots.get(slot as usize)?;
        (context.generation == generation && context.is_live()).then_some(slot)
    }

    /// The live context with this name; the one in the lowest slot if there are several. A binary search, and a walk over those of that name.
    pub fn named(&self, name: &str) -> Option<u16> {
        self.by_name[self.place_of(name, 0)..]
            .iter()
            .copied()
            .take_while(|&slot| self.get(slot).name == name)
            .find(|&slot| self.get(slot).is_live())
    }

    /// Where a slot with this name stands, or would stand, in the list by name.
    fn place_of(&self, name: &str, slot: u16) -> usize {
        self.by_name
            .partition_point(|&known| (self.get(known).name.as_str(), known) < (name, slot))
    }

    /// Slots that are not free.
    pub fn in_use(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::ContextLimits;

    #[test]
    fn names_lead_to_live_contexts_alone() {
        let quota = Quota::new(&ContextLimits::default());
        let mut contexts = Contexts::new(LcoreId(0), 6, &quota, 0, 0, 0);
        let slots = ["m", "z", "a", "m"].map(|name| contexts.open(name.to_owned(), 1).unwrap());
        assert_eq!(contexts.named("m"), Some(slots[0]));
        assert_eq!(contexts.named("z"), Some(slots[1]));
        assert_eq!(contexts.named("a"), Some(slots[2]));
        assert_eq!(contexts.named("b"), None);
        contexts.get_mut(slots[0]).close();
        assert_eq!(contexts.named("m"), Some(slots[3]));
        contexts.get_mut(slots[0]).cordon(0, 0);
        contexts.free(slots[0]);
        assert_eq!(contexts.open("b".to_owned(), 1), Some(slots[0]));
        assert_eq!(contexts.named("b"), Some(slots[0]));
        assert_eq!(contexts.named("m"), Some(slots[3]));
    }
}
