//! Reminders: keys that are dead or given up, but whose value the holder may still know, are named again (R8).

use crate::engine::state::Core;
use crate::grant::keys::KeyId;
use crate::ids::{Epoch, GrantId, LaneId};
use crate::lane::queue::Request;
use crate::lane::reminders::{Reminder, Reminders};
use crate::reclaim;
use crate::wire::{Frame, List, MAX_REVOKE_GRANTS};

/// Keys that are looked at for one frame.
const LOOKS: usize = 64;

const NOBODY: GrantId = GrantId {
    slot: 0,
    generation: 0,
};

const NO_KEY: KeyId = KeyId {
    slot: 0,
    generation: 0,
};

impl Core {
    /// Begins a round with a keep-alive.
    pub(super) fn begin_reminders(&mut self, lane: LaneId) {
        let keys = self.machine.aside(lane);
        self.lane_mut(lane).link.reminders.begin(keys);
        self.ask_reminder(lane);
    }

    /// Asks for the next frame, behind all that waits.
    fn ask_reminder(&mut self, lane: LaneId) {
        if self.lane(lane).link.reminders.are_due() {
            self.ask(lane, Request::Remind);
        }
    }

    /// One frame: one that is sent again, or a new one of keys of whatever epochs.
    pub(super) fn post_reminder(&mut self, lane: LaneId) {
        if let Some(reminder) = self.lane_mut(lane).link.reminders.next_again() {
            self.post_reminder_again(lane, &reminder);
        } else {
            self.post_new_reminder(lane);
        }
        self.ask_reminder(lane);
    }

    fn post_reminder_again(&mut self, lane: LaneId, reminder: &Reminder) {
        let mut named = [NOBODY; MAX_REVOKE_GRANTS];
        let mut len = 0;
        for key in reminder.keys() {
            // What was acknowledged by name meanwhile may have its slot reused.
            if let Some(key) = self.keys.get(*key) {
                named[len] = self.grants.id(key.grant);
                len += 1;
            }
        }
        if len == 0 {
            self.lane_mut(lane).link.reminders.end(reminder.number);
        } else {
            self.post_names(lane, reminder.number, &named[..len]);
        }
    }

    fn post_new_reminder(&mut self, lane: LaneId) {
        let mut named = [NOBODY; MAX_REVOKE_GRANTS];
        let mut keys = [NO_KEY; MAX_REVOKE_GRANTS];
        let mut len = 0;
        for _ in 0..LOOKS {
            if len == named.len() || !self.lane_mut(lane).link.reminders.look() {
                break;
            }
            if let Some(key) = self.machine.next_to_remind(lane)
                && !core::mem::replace(&mut self.keys.at_mut(key).reminded, true)
            {
                named[len] = self.grant_of(key);
                keys[len] = self.keys.id(key);
                len += 1;
            }
        }
        if len > 0 {
            let number = self.lane_mut(lane).link.reminders.note(&keys[..len]);
            self.post_names(lane, number, &named[..len]);
        }
    }

    fn post_names(&mut self, lane: LaneId, epoch: Epoch, grants: &[GrantId]) {
        let frame = Frame::Revoke {
            epoch,
            last: true,
            grants: List::from(grants),
        };
        self.post_frame(lane, None, &frame);
    }

    /// The holder says that nothing of an epoch, or of what a reminder named, is on its way any more.
    pub(super) fn revoked(&mut self, lane: LaneId, epoch: Epoch) {
        if !Reminders::are_meant(epoch) {
            self.drive(reclaim::Event::Acked { epoch, lane });
            return;
        }
        let Some(reminder) = self.lane_mut(lane).link.reminders.end(epoch) else {
            self.stats.stale_names += 1;
            return;
        };
        for key in reminder.keys() {
            // One of them may have been acknowledged by name meanwhile.
            if self.keys.get(*key).is_some() {
                self.drive(reclaim::Event::ImportDropped { key: key.ix() });
            }
        }
        self.ask_reminder(lane);
    }
}
