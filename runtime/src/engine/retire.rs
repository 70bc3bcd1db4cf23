//! Drives the reclaim machine: what has happened goes in, what it orders is done (REQUIREMENTS section 4, steps 2 to 6).

use keyfence_pmd::{QpId, Remote, Rkey, SgeList, Window, WorkOp};

use crate::engine::command::ToControl;
use crate::engine::state::Core;
use crate::grant::keys::KeyId;
use crate::ids::{Epoch, LaneId};
use crate::lane::credits::Class;
use crate::lane::inflight::Flight;
use crate::lane::queue::{Closing, Request};
use crate::plant::{self, Plant};
use crate::reclaim::{self, Action, KeyIx, Note, Timer};

/// A write of no bytes, which names no memory: it succeeds if the other end's queue pair is there.
pub(super) fn empty_write() -> WorkOp {
    let remote = Remote {
        address: 0,
        rkey: Rkey(0),
    };
    WorkOp::Write {
        remote,
        immediate: None,
    }
}

impl Core {
    /// Hands the machine an event and does what it orders. What that leads to is handed in behind it, not inside it.
    pub(super) fn drive(&mut self, event: reclaim::Event) {
        self.events.push_back(event);
        if self.driving {
            return;
        }
        self.driving = true;
        while let Some(event) = self.events.pop_front() {
            self.reclaim_pairs.insert(self.machine.pair(&event));
            let note = self.machine.handle(event, &mut self.actions);
            if note != Note::Applied {
                self.stats.reclaim_notes += 1;
            }
            for at in 0..self.actions.transitions().len() {
                let transition = self.actions.transitions()[at];
                self.key_changed(transition);
            }
            for at in 0..self.actions.orders().len() {
                let order = self.actions.orders()[at];
                self.obey(order);
            }
            self.actions.clear();
        }
        self.driving = false;
    }

    /// Takes a grant back, for whatever reason; once.
    pub(super) fn retire(&mut self, slot: u32) {
        let key = self.grants.at(slot).key;
        if !self.take_back(slot) {
            return;
        }
        self.stats.grants_retired += 1;
        // One of a queue pair that broke was retired with it.
        if let Some(key) = key
            && self.machine.key_epoch(key).is_none()
        {
            self.drive(reclaim::Event::Retire { key });
        }
    }

    /// Has new windows made for those that a sound lane has lost to deallocations.
    pub(super) fn replace_windows(&mut self, lane: LaneId) {
        let entry = self.lane_mut(lane);
        if !entry.is_sound() {
            return;
        }
        let qp = entry.qp;
        while let Some(place) = self.lane_mut(lane).take_spent_window() {
            self.outbox
                .push(ToControl::ReplaceWindow { lane, qp, place });
        }
    }

    /// A new window was made for a lane, which may have broken or gone meanwhile: then the control side ends it with the queue pair.
    pub(super) fn window_replaced(&mut self, lane: LaneId, qp: QpId, place: u32, window: Window) {
        if let Some(entry) = self.lanes[lane.0 as usize].as_deref_mut()
            && entry.qp == qp
            && entry.is_sound()
        {
            entry.replace_window(place, window);
        }
    }

    fn obey(&mut self, order: Action) {
        match order {
            Action::Arm(timer) => {
                let deadline = self.now_ns.saturating_add(self.timeout_ns(timer));
                self.timers.arm(timer, deadline);
            }
            Action::Disarm(timer) => self.timers.disarm(timer),
            Action::Revoke { epoch, lane } if self.lane(lane).byes.heard => {
                self.drive(reclaim::Event::Acked { epoch, lane });
            }
            Action::Revoke { epoch, lane } => self.ask(lane, Request::Revoke(epoch)),
            Action::Invalidate { epoch, lane } => {
                self.lane_mut(lane).close_with(Closing::Chain(epoch))
            }
            Action::Close { epoch, lane } => self.lane_mut(lane).close_with(Closing::Lone(epoch)),
            Action::Dealloc { lane } => self.dealloc_keys(lane),
            Action::BreakLane { lane } => self.break_lane(lane),
            Action::EpochEnded {
                epoch,
                context,
                outcome,
            } => {
                self.stats.epochs_ended += 1;
                self.look_for_ended_sessions();
                if let Some(context) = context {
                    self.context_ended(context.0, epoch, outcome);
                }
            }
            Action::FlushEnded {
                ticket,
                quarantined,
            } => self.flush_ended(ticket, quarantined),
            Action::ContextFree { context } => self.context_free(context.0),
            Action::LaneFree { lane } => self.lane_free(lane),
        }
    }

    fn timeout_ns(&self, timer: Timer) -> u64 {
        let timeouts = &self.timeouts;
        match timer {
            Timer::FlushInterval => timeouts.flush_interval_ns,
            Timer::Fence(_) => timeouts.fence_timeout_ns,
            Timer::Invalidate(_) => timeouts.invalidate_timeout_ns,
            Timer::Final(_) => self.final_timeout_ns,
        }
    }

    /// Hands the timers that have run out to the machine.
    pub(super) fn expire_timers(&mut self) -> bool {
        let mut any = false;
        while let Some(timer) = self.timers.expired(self.now_ns) {
            self.drive(reclaim::Event::Expired(timer));
            any = true;
        }
        any
    }

    /// Section 4, step 3: the choice between invalidation and deallocation, before anything is posted. A key behind a backlog that won't clear in time is
    /// deallocated off the lcore: waiting for its invalidation would cost the lane, and with it a session that has done nothing wrong but wait.
    fn refuse_chains(&mut self, lane: LaneId) {
        if !self.caps.dealloc_fences {
            return;
        }
        let mut at = 0;
        while let Some(closing) = self.lane(lane).closing.get(at).copied() {
            match closing {
                Closing::Chain(epoch) if self.backlog_outlasts(lane, epoch) => {
                    self.lane_mut(lane).closing.remove(at);
                    self.stats.chains_refused += 1;
                    self.drive(reclaim::Event::ChainRefused { epoch, lane });
                }
                _ => at += 1,
            }
        }
    }

    /// Whether what is posted on the lane stands still, or does not clear by the epoch's deadline.
    fn backlog_outlasts(&self, lane: LaneId, epoch: Epoch) -> bool {
        let (entry, now_ns) = (self.lane(lane), self.now_ns);
        // A full lane has drained by then if it is healthy: the cap is held against the slowest rate.
        let window_ns = self.lane_drain_ns;
        if entry.inflight.len() == 0 {
            return false;
        }
        let left_ns = match self.timers.of_epoch(epoch) {
            Some((Timer::Fence(_), deadline_ns)) => deadline_ns
                .saturating_sub(now_ns)
                .saturating_add(self.timeouts.invalidate_timeout_ns),
            Some((_, deadline_ns)) => deadline_ns.saturating_sub(now_ns),
            None => u64::MAX,
        };
        let bytes = entry.posted_bytes;
        entry.backlog.stands(now_ns, window_ns)
            || entry.backlog.outlasts(now_ns, bytes, left_ns, window_ns)
    }

    /// Posts invalidations and closing requests, at most what is left of the step's budget (R5).
    pub(super) fn pump_closing(&mut self, lane: LaneId) {
        self.refuse_chains(lane);
        while self.reclaim_budget_wrs > 0 && self.send_room(lane, Class::Request) > 0 {
            let Some(closing) = self.lane(lane).closing.front().copied() else {
                break;
            };
            match closing {
                Closing::Chain(epoch) => match self.machine.next_to_invalidate(epoch, lane) {
                    Some(key) => self.post_invalidate(lane, key),
                    None => {
                        self.lane_mut(lane).closing.pop_front();
                    }
                },
                Closing::Lone(epoch) => {
                    self.post_closing(lane, epoch);
                    self.lane_mut(lane).closing.pop_front();
                }
            }
        }
        // Behind closing requests, of which an epoch has one a lane: regions may be as many as the grants, and new ones come as others are retired.
        if self.lane(lane).regions_due {
            self.end_regions(lane);
        }
    }

    fn post_invalidate(&mut self, lane: LaneId, key: KeyIx) {
        let rkey = self.keys.at(key).rkey;
        let early = plant::active(Plant::AckBeforeInvalidate);
        let flight = if early {
            Flight::Ignored
        } else {
            Flight::Invalidate { key: key.0 }
        };
        self.stage(lane, flight, WorkOp::Invalidate { rkey }, SgeList::EMPTY);
        self.reclaim_budget_wrs -= 1;
        self.stats.invalidations_posted += 1;
        if early {
            self.drive(reclaim::Event::Invalidated { key });
        }
    }

    /// The signaled request behind the last own operation of an epoch.
    fn post_closing(&mut self, lane: LaneId, epoch: Epoch) {
        let closing = Flight::Closing { epoch };
        self.stage(lane, closing, empty_write(), SgeList::EMPTY);
        self.reclaim_budget_wrs -= 1;
    }

    /// With a planted fault alone: the invalidation that was left out when the window's last key was flushed.
    pub(super) fn invalidate_late(&mut self, lane: LaneId, window: u32) {
        if let Some(rkey) = self.lane_mut(lane).windows[window as usize].stale.take() {
            self.stage(
                lane,
                Flight::Ignored,
                WorkOp::Invalidate { rkey },
                SgeList::EMPTY,
            );
        }
    }

    /// Has keys ended by deallocation, off the lcore. On a lane that drains this waits until it has; regions of one that is up wait for their turn in a step.
    pub(super) fn dealloc_keys(&mut self, lane: LaneId) {
        if matches!(
            self.lane(lane).phase,
            crate::lane::LanePhase::Draining { .. }
        ) {
            return;
        }
        if self.caps.regions && self.lane(lane).is_up() {
            self.lane_mut(lane).regions_due = true;
            return;
        }
        while let Some(key) = self.machine.next_to_dealloc(lane) {
            let window = self.keys.at(key).window;
            let key = self.keys.id(key);
            let Some(window) = window else {
                self.end_region(key);
                continue;
            };
            let window = window as usize;
            let entry = self.lane_mut(lane);
            if !core::mem::replace(&mut entry.windows[window].deallocated, true) {
                entry.deallocated_windows += 1;
            }
            let window = entry.windows[window].window.id;
            self.outbox.push(ToControl::Dealloc { lane, key, window });
        }
    }

    /// The control side has ended a key's window or region, or failed to.
    pub(super) fn deallocated(&mut self, key: KeyId, done: bool) {
        if self.keys.get(key).is_none() {
            // Proven by another call meanwhile: this one says nothing about whoever has the slot now (R4).
            self.stats.reclaim_notes += 1;
            return;
        }
        let key = key.ix();
        self.drive(if done {
            reclaim::Event::Deallocated { key }
        } else {
            reclaim::Event::DeallocFailed { key }
        });
    }

    /// Looks at the leases of a few grants.
    pub(super) fn check_leases(&mut self) {
        const GRANTS_A_STEP: u32 = 16;
        let slots = self.grants.touched();
        for _ in 0..GRANTS_A_STEP.min(slots) {
            let slot = self.lease_cursor;
            self.lease_cursor = if slot + 1 < slots { slot + 1 } else { 0 };
            let Some(grant) = self.grants.in_slot(slot) else {
                continue;
            };
            let Some(lease_ns) = grant.lease_ns.filter(|_| !grant.retired) else {
                continue;
            };
            // By how long the holder's engine was listened to in vain, and not by the clock: a pause of this one is no silence of the other (R10).
            let silent_ns = self.lanes[grant.lane.0 as usize]
                .as_deref()
                .map_or(u64::MAX, |lane| lane.silent_ns);
            let age_ns = self.now_ns.saturating_sub(grant.made_ns);
            if age_ns > lease_ns && silent_ns > lease_ns {
                self.stats.leases_ended += 1;
                self.retire(slot);
            }
        }
    }
}
