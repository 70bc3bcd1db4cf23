//! The end of a context: cordon, release, announcement (REQUIREMENTS section 4, steps 1, 5 and 6).

use keyfence_mempool::cache::ReclaimError;

use crate::context::state::Phase;
use crate::engine::command::ToControl;
use crate::engine::state::Core;
use crate::event::{EngineEvent, QuarantineReason};
use crate::ids::{Epoch, PeerId};
use crate::lane::queue::Answer;
use crate::limits::{Limit, LimitError};
use crate::op::Status;
use crate::plant::{self, Plant};
use crate::reclaim::{self, ContextIx, LaneSet, Outcome, Quarantine, Why};

/// Where the lists of buffers are swept next, and when they were last.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sweep {
    step: u64,
    context: u16,
    at: usize,
}

impl Core {
    /// Asks for the reclaim of a context; it starts before the step ends.
    pub(super) fn close(&mut self, slot: u16) {
        if self.contexts.get(slot).is_live() {
            self.contexts.get_mut(slot).close();
            self.closing.push_back(slot);
        }
    }

    /// Step 1, first half: nothing new is accepted, nothing more is posted. The service is dropped after this, and then
    /// [`Core::take_epoch`] is called.
    pub(super) fn cordon(&mut self, slot: u16) {
        assert_eq!(
            self.contexts.get(slot).phase(),
            Phase::Closing,
            "a context is cordoned once"
        );
        for lane in self.lane_ids() {
            while let Some(op) = self.take_queued(lane, slot, |_| true) {
                self.end_unposted(op, Status::Cancelled);
            }
            // Else the slot's next context would wait for a credit that only this one needed.
            self.lane_mut(lane).unstarve(slot);
            self.end_cut_of(lane, slot);
        }
        self.unstall_all(slot);
        self.clients.remove(slot);
        self.fence_imports_of(slot);
        self.lookups.forget(slot);
        // Before the service's destructor: what that drops goes home with step 5 and not before.
        self.sweep_buffers(slot);
        self.retain_buffers(slot);
    }

    /// Step 1, second half: the context's epoch.
    pub(super) fn take_epoch(&mut self, slot: u16) {
        let (mut own_ops, mut flushed_ops) = (LaneSet::EMPTY, LaneSet::EMPTY);
        let mut in_flight = 0;
        for lane in self.lane_ids() {
            let entry = self.lane(lane);
            let posted = entry.posted[slot as usize];
            if posted > 0 {
                in_flight += posted;
                own_ops = own_ops.with(lane);
                if !entry.is_sound() && entry.in_error {
                    flushed_ops = flushed_ops.with(lane);
                }
            }
            let entry = self.lane_mut(lane);
            let cut = core::mem::take(&mut entry.unconfirmed[slot as usize]);
            if cut && !entry.free {
                flushed_ops = flushed_ops.with(lane);
            }
        }
        self.end_keyless_grants(slot);
        // Messages among them are handles, and nobody will be told of them.
        let context = self.contexts.get_mut(slot);
        context.events.clear();
        context.landed.clear();
        let handles_out = self.handles_out(slot);
        if handles_out {
            self.awaiting_handles.push_back(slot);
        }
        self.stats.cordons_with_ops_in_flight += u64::from(in_flight > 0);
        // Each has a key that is not proven ended yet: when that is, the grant is settled.
        for key in self.machine.keys_of(ContextIx(slot)) {
            self.grants.at_mut(self.keys.at(key).grant).retired = true;
        }
        self.contexts.get_mut(slot).cordon(self.now_ns, in_flight);
        self.drive(reclaim::Event::Cordon {
            context: ContextIx(slot),
            own_ops,
            flushed_ops,
            handles_out,
        });
        self.stats.contexts_cordoned += 1;
    }

    /// Step 5 and 6: memory goes back, then everyone may know.
    pub(super) fn context_ended(&mut self, slot: u16, epoch: Epoch, outcome: Outcome) {
        let Phase::Cordoned {
            since_ns,
            ops_in_flight,
            ..
        } = self.contexts.get(slot).phase()
        else {
            unreachable!("R6: a reclaim ends once");
        };
        let context = self.contexts.id(slot);
        let kept_bytes = self.release(slot);
        let (event, keys, bytes) = match outcome {
            Outcome::Flushed => {
                self.stats.contexts_reclaimed += 1;
                self.stats
                    .reclaim_ns
                    .record(self.now_ns.saturating_sub(since_ns));
                let took_ns = self.now_ns.saturating_sub(since_ns);
                let event = EngineEvent::Reclaimed {
                    context,
                    epoch,
                    took_ns,
                    ops_in_flight,
                };
                (event, 0, 0)
            }
            Outcome::Quarantined(quarantine) => {
                self.contexts.get_mut(slot).quarantine();
                self.stats.contexts_quarantined += 1;
                let first = quarantine.unconfirmed.iter().next();
                let target = first.map(|lane| self.lane(lane).peer);
                let why = reason(&quarantine, target, ops_in_flight);
                let keys = quarantine.keys;
                let event = EngineEvent::Quarantined {
                    context,
                    epoch,
                    keys,
                    bytes: kept_bytes,
                    why,
                };
                (event, keys, kept_bytes)
            }
        };
        self.outbox.push(ToControl::Event(event));
        self.announce_gone(slot, keys, bytes);
    }

    /// Gives back every buffer of a context that nothing keeps; returns the bytes of those that stay.
    fn release(&mut self, slot: u16) -> u64 {
        let listed = self.contexts.get(slot).buffers.len();
        let mut kept_bytes = 0;
        let mut at = 0;
        while at < self.contexts.get(slot).buffers.len() {
            let owned = self.contexts.get(slot).buffers[at];
            if self.take_for_zeroing(owned) {
                self.contexts.get_mut(slot).buffers.swap_remove(at);
                continue;
            }
            let pool = &mut self.memory.pools[owned.pool as usize];
            match pool.cache.reclaim(owned.id) {
                Ok(()) | Err(ReclaimError::Id(_)) => {
                    self.contexts.get_mut(slot).buffers.swap_remove(at);
                }
                Err(ReclaimError::Overrun { .. }) => {
                    // The pool keeps it for good.
                    self.stats.buffers_overrun += 1;
                    self.contexts.get_mut(slot).buffers.swap_remove(at);
                }
                Err(_) => {
                    kept_bytes += pool.buffer_bytes as u64;
                    at += 1;
                }
            }
        }
        let left = self.contexts.get(slot).buffers.len();
        self.buffers.give((listed - left) as u64);
        self.sweep_messages(slot);
        kept_bytes + self.contexts.get(slot).messages.len() as u64 * self.frame_bytes as u64
    }

    /// After a late proof: what of a context in quarantine nothing keeps any more goes back; what is left waits for its own proof.
    pub(super) fn release_late(&mut self, slot: u16) {
        if self.contexts.get(slot).phase() == Phase::Quarantined {
            self.release(slot);
        }
    }

    fn announce_gone(&mut self, slot: u16, keys: u32, bytes: u64) {
        let context = self.contexts.id(slot);
        for peer in self.peer_ids() {
            for lcore in 0..self.peers[peer.0 as usize].lanes.len() {
                let Some(&Some(lane)) = self.peers[peer.0 as usize].lanes[lcore].first() else {
                    continue;
                };
                if self.lane(lane).is_up() {
                    self.answer(
                        lane,
                        Answer::ContextGone {
                            context,
                            keys,
                            bytes,
                        },
                    );
                }
            }
        }
    }

    /// Nothing of the context is left: the slot may be used again.
    pub(super) fn context_free(&mut self, slot: u16) {
        let early =
            plant::active(Plant::OwnOpsForgotten) || plant::active(Plant::AckBeforeInvalidate);
        if early && !self.contexts.get(slot).quota.is_at_rest() {
            // Operations that the epoch did not wait for still name the slot; the last one's end frees it.
            self.contexts.get_mut(slot).free_when_at_rest = true;
            return;
        }
        let kept_bytes = self.release(slot);
        assert_eq!(kept_bytes, 0, "R1: a slot is free after its last byte is");
        self.contexts.free(slot);
    }

    /// Strikes buffers that were dropped and have gone home off a context's list.
    pub(super) fn sweep_buffers(&mut self, slot: u16) {
        let pools = &mut self.memory.pools;
        let buffers = &mut self.contexts.get_mut(slot).buffers;
        let listed = buffers.len();
        buffers.retain(|owned| {
            pools[owned.pool as usize]
                .cache
                .handle_is_out(owned.id)
                .is_ok()
        });
        self.buffers.give((listed - buffers.len()) as u64);
    }

    /// Whether one more buffer fits the limits of the context and of all on the lcore.
    pub(super) fn admit_buffer(&mut self, slot: u16) -> Result<(), LimitError> {
        let context = self.contexts.get(slot);
        let limit = context.buffers_limit as u64;
        if context.buffers.len() as u64 >= limit {
            self.sweep_buffers(slot);
            Limit::ContextBuffers.admit(limit, self.contexts.get(slot).buffers.len() as u64, 1)?;
        }
        if self.buffers.admits(1).is_err() {
            self.sweep_some_buffers();
        }
        self.buffers.admits(1)
    }

    /// Strikes what was dropped off the lists of all contexts, a part of them a step: whoever asks in vain again and again must not slow the others.
    fn sweep_some_buffers(&mut self) {
        const LOOKS_A_STEP: usize = 256;
        if self.buffers_sweep.step == self.stats.steps {
            return;
        }
        self.buffers_sweep.step = self.stats.steps;
        for _ in 0..LOOKS_A_STEP {
            let Sweep { context, at, .. } = self.buffers_sweep;
            let buffers = &mut self.contexts.get_mut(context).buffers;
            let Some(owned) = buffers.get(at) else {
                self.buffers_sweep.context = (context + 1) % self.contexts.capacity();
                self.buffers_sweep.at = 0;
                continue;
            };
            self.stats.buffers_looked_at += 1;
            let cache = &self.memory.pools[owned.pool as usize].cache;
            if cache.handle_is_out(owned.id).is_ok() {
                self.buffers_sweep.at += 1;
            } else {
                buffers.swap_remove(at);
                self.buffers.give(1);
            }
        }
    }

    /// From the cordon on, dropping a buffer of the context returns nothing to a pool.
    fn retain_buffers(&mut self, slot: u16) {
        for at in 0..self.contexts.get(slot).buffers.len() {
            let owned = self.contexts.get(slot).buffers[at];
            // One that goes home at this moment, by a drop on another thread, was never retained and needs no reclaim.
            let _ = self.memory.pools[owned.pool as usize]
                .cache
                .retain(owned.id);
        }
        self.sweep_buffers(slot);
    }

    /// Whether anything outside the lcore can still name the context's bytes.
    fn handles_out(&mut self, slot: u16) -> bool {
        self.sweep_messages(slot);
        let context = self.contexts.get(slot);
        let out = |owned: &crate::context::state::OwnedBuf| {
            let cache = &self.memory.pools[owned.pool as usize].cache;
            cache.handle_is_out(owned.id).unwrap_or(false)
        };
        !context.messages.is_empty() || context.buffers.iter().any(out)
    }

    /// Looks whether the handles of contexts under reclaim have come back; of a few in each step, since some may be held for ever.
    pub(super) fn check_handles(&mut self) {
        const CONTEXTS_A_STEP: usize = 4;
        for _ in 0..self.awaiting_handles.len().min(CONTEXTS_A_STEP) {
            let Some(slot) = self.awaiting_handles.pop_front() else {
                return;
            };
            if self.handles_out(slot) {
                self.awaiting_handles.push_back(slot);
            } else {
                let context = ContextIx(slot);
                self.drive(reclaim::Event::HandlesReturned { context });
                self.release_late(slot);
            }
        }
    }
}

/// `target` is the peer of the first lane that has not confirmed.
fn reason(quarantine: &Quarantine, target: Option<PeerId>, operations: u32) -> QuarantineReason {
    match quarantine.why() {
        Why::Unproven | Why::OwnOps => QuarantineReason::Unproven,
        Why::HandleHeld => QuarantineReason::HandleHeld,
        Why::Unconfirmed => QuarantineReason::Unconfirmed {
            peer: target.expect("R2: something unconfirmed has a target"),
            operations,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::LaneId;

    #[test]
    fn r2_what_is_not_confirmed_names_its_target_and_how_much() {
        let mut left = Quarantine {
            keys: 0,
            own_ops: LaneSet::EMPTY,
            unconfirmed: LaneSet::EMPTY.with(LaneId(3)),
            handles_held: false,
        };
        let named = QuarantineReason::Unconfirmed {
            peer: PeerId(2),
            operations: 5,
        };
        assert_eq!(reason(&left, Some(PeerId(2)), 5), named);
        left.keys = 1;
        assert_eq!(
            reason(&left, Some(PeerId(2)), 5),
            QuarantineReason::Unproven
        );
    }
}
