//! Reminders: keys that are dead or given up, but whose value the holder may still know, are named again (R8).

use crate::engine::state::Core;
use crate::ids::{Epoch, GrantId, LaneId};
use crate::lane::queue::Request;
use crate::lane::reminders::{Reminder, Reminders};
use crate::reclaim::{self, KeyIx};
use crate::wire::{Frame, List, MAX_REVOKE_GRANTS};

/// Keys that are looked at for one frame.
const LOOKS: usize = 64;

const NOBODY: GrantId = GrantId {
    slot: 0,
    generation: 0,
};

impl Core {
    /// Begins a round with a keep-alive.
    pub(super) fn begin_reminders(&mut self, lane: LaneId) {
        let keys = self.machine.aside(lane);
        self.lane_mut(lane).reminders.begin(keys);
        self.ask_reminder(lane);
    }

    /// Asks for the next frame, behind all that waits.
    fn ask_reminder(&mut self, lane: LaneId) {
        if self.lane(lane).reminders.are_due() {
            self.ask(lane, Request::Remind);
        }
    }

    /// One frame: one that is sent again, or a new one of keys of whatever epochs.
    pub(super) fn post_reminder(&mut self, lane: LaneId) {
        if let Some(reminder) = self.lane_mut(lane).reminders.next_again() {
            self.post_reminder_again(lane, &reminder);
        } else {
            self.post_new_reminder(lane);
        }
        self.ask_reminder(lane);
    }

    fn post_reminder_again(&mut self, lane: LaneId, reminder: &Reminder) {
        let mut named = [NOBODY; MAX_REVOKE_GRANTS];
        let mut len = 0;
        for grant in reminder.grants() {
            // What was acknowledged by name meanwhile may have its slot reused.
            if self.grants.get(*grant).is_some() {
                named[len] = *grant;
                len += 1;
            }
        }
        if len == 0 {
            self.lane_mut(lane).reminders.end(reminder.number);
        } else {
            self.post_names(lane, reminder.number, &named[..len]);
        }
    }

    fn post_new_reminder(&mut self, lane: LaneId) {
        let mut named = [NOBODY; MAX_REVOKE_GRANTS];
        let mut len = 0;
        for _ in 0..LOOKS {
            if len == named.len() || !self.lane_mut(lane).reminders.look() {
                break;
            }
            if let Some(KeyIx(key)) = self.machine.next_to_remind(lane)
                && !core::mem::replace(&mut self.grants.at_mut(key).reminded, true)
            {
                named[len] = self.grants.id(key);
                len += 1;
            }
        }
        if len > 0 {
            let number = self.lane_mut(lane).reminders.note(&named[..len]);
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
        let Some(reminder) = self.lane_mut(lane).reminders.end(epoch) else {
            self.stats.stale_names += 1;
            return;
        };
        for grant in reminder.grants() {
            // One of them may have been acknowledged by name meanwhile.
            if self.grants.get(*grant).is_some() {
                self.drive(reclaim::Event::ImportDropped {
                    key: KeyIx(grant.slot),
                });
            }
        }
        self.ask_reminder(lane);
    }
}
