//! Whose turn it is to post: which lane comes first in a step, and on it which class of its traffic.

use crate::engine::state::Core;
use crate::ids::LaneId;
use crate::lane::LanePhase;
use crate::lane::credits::Class;
use crate::lane::link::Turn;

impl Core {
    /// The next step starts at another lane: what a step may spend on reclaims must not go to the lowest lane for ever (R6).
    pub(super) fn rotate_lanes(&mut self) {
        if self.lanes_taken.count_ones() < 2 {
            self.first_lane = 0;
            return;
        }
        let next = self.lane_ids_from(self.first_lane + 1).next();
        self.first_lane = next.map_or(0, |lane| lane.0);
    }

    /// Lets a lane post what it may. Returns whether it posted anything.
    pub(super) fn pump(&mut self, lane: LaneId) -> bool {
        let entry = self.lane(lane);
        if entry.has_nothing_to_post() {
            return false;
        }
        let before = entry.inflight.next_sequence();
        let ended_before = self.stats.regions_ended;
        match entry.phase {
            LanePhase::Greeting => {
                // Nothing but the hello is said before the peer's is admitted.
                self.pump_requests(lane);
                self.announce_receives(lane);
            }
            LanePhase::Up => self.pump_up(lane),
            _ => {}
        }
        // Nothing is posted for a region's end; there may be more than the step's budget had room for.
        let has_ended_regions = self.stats.regions_ended != ended_before;
        let lane = self.lane_mut(lane);
        let posted = lane.inflight.next_sequence() != before;
        if posted && let Some(last) = lane.staged.last_mut() {
            // The success of the last one proves the whole burst.
            last.signaled = true;
        }
        posted || has_ended_regions
    }

    /// What a lane that is up posts. Answers go before requests and those before invalidations, but for those that found no room behind the others: they go first the next
    /// time, and those in front of them wait until one of them is posted. So neither a peer that asks without end nor contexts that do hold up a reclaim (R5, R6).
    fn pump_up(&mut self, lane: LaneId) {
        self.tell_senders(lane);
        let first = self.lane(lane).link.first_turn;
        let mut starved = None;
        for turn in first.and_the_others() {
            if starved == Some(first) && turn.waits_for(first) {
                continue;
            }
            let before = self.lane(lane).inflight.next_sequence();
            match turn {
                Turn::Answers => self.pump_answers(lane),
                Turn::Requests => self.pump_requests(lane),
                Turn::Closings => self.pump_closing(lane),
            }
            let posted = self.lane(lane).inflight.next_sequence() != before;
            if !posted && starved.is_none() && self.is_short_of_room(lane, turn) {
                starved = Some(turn);
            }
        }
        self.lane_mut(lane).link.first_turn = starved.unwrap_or(Turn::Answers);
        self.announce_receives(lane);
        if !self.request_waits_for_room(lane) {
            self.pump_operations(lane);
        }
    }

    /// Whether a request or an invalidation waits, for send slots or for receives at the peer. Answers have no class above them.
    fn is_short_of_room(&self, lane: LaneId, turn: Turn) -> bool {
        let entry = self.lane(lane);
        let room = self.send_room(lane, Class::Request);
        match turn {
            Turn::Answers => false,
            Turn::Requests => {
                entry.link.control.peek_request().is_some()
                    && (room < self.slots_of_next_request(lane)
                        || !entry
                            .credits
                            .allows(Class::Request, entry.peer_receive_depth))
            }
            Turn::Closings => !entry.closing.is_empty() && room == 0,
        }
    }
}
