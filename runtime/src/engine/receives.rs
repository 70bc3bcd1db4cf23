//! The receives of a lane: their buffers, and what becomes of those that took no message.

use keyfence_mempool::Buf;
use keyfence_pmd::{ReceiveRequest, Sge, WorkId};

use crate::engine::complete::{receive_id, receive_slot};
use crate::engine::state::{Core, RECEIVE_OWNER};
use crate::ids::LaneId;
use crate::lane::Lane;

impl Core {
    /// A receive was flushed: its queue pair is in error.
    pub(super) fn receive_flushed(&mut self, lane: LaneId, slot: u32) {
        let entry = self.lane_mut(lane);
        if let Some(buf) = entry.receives.get_mut(slot as usize) {
            // Not given back yet: only the queue pair's destruction proves that nothing lands in it.
            entry.flushed_receives += u32::from(buf.is_some());
        }
    }

    /// A receive was consumed by something that the runtime never sends, or on a lane that has ended.
    pub(super) fn receive_unwanted(&mut self, lane: LaneId, slot: u32) {
        self.stats.frames_refused += 1;
        let buf = self
            .lane_mut(lane)
            .receives
            .get_mut(slot as usize)
            .and_then(Option::take);
        if let Some(buf) = buf {
            self.repost(lane, slot, buf);
        }
    }

    /// Posts a receive again whose buffer nobody keeps.
    pub(super) fn repost(&mut self, lane: LaneId, slot: u32, buf: Buf) {
        let frame_bytes = self.frame_bytes as u32;
        stage_receive(
            self.lane_mut(lane),
            receive_id(lane, slot),
            frame_bytes,
            buf,
        );
    }

    /// Puts buffers into the empty receive slots, as far as the pool has any.
    pub(super) fn refill_receives(&mut self, lane: LaneId) {
        let Self {
            lanes,
            memory,
            stats,
            frame_bytes,
            ..
        } = self;
        let entry = lanes[lane.0 as usize].as_deref_mut();
        let entry = entry.expect("a lane in use is in the table");
        while let Some(&slot) = entry.empty_receives.last() {
            let Some(buf) = memory.receives.cache.get(RECEIVE_OWNER) else {
                stats.receive_pool_empty += 1;
                return;
            };
            entry.empty_receives.pop();
            stage_receive(entry, receive_id(lane, slot), *frame_bytes as u32, buf);
        }
    }
}

/// Has a receive posted. On a lane that has ended nothing is posted, and nothing would come of it: the buffer goes home.
#[inline]
fn stage_receive(entry: &mut Lane, id: WorkId, frame_bytes: u32, buf: Buf) {
    if entry.is_sound() {
        let sge = Sge::new(buf.address(), frame_bytes, entry.arena.lkey);
        entry.receives[receive_slot(id) as usize] = Some(buf);
        entry.staged_receives.push(ReceiveRequest { id, sge });
    }
}
