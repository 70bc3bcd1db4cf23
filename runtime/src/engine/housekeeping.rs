//! What need not be done in each step, and the signs of life among it.

use keyfence_pmd::SgeList;

use crate::engine::command::Unrepairable;
use crate::engine::retire::empty_write;
use crate::engine::state::Core;
use crate::ids::LaneId;
use crate::lane::LanePhase;
use crate::lane::inflight::Flight;
use crate::lane::queue::Request;

impl Core {
    /// What need not be done in each step: leases and keep-alives count in milliseconds. Called when it is due.
    pub(super) fn keep_house(&mut self) {
        const INTERVAL_NS: u64 = 4_000;
        self.housekeeping_ns = self.now_ns.saturating_add(INTERVAL_NS);
        self.check_leases();
        self.keep_alive();
        self.look_at_lists();
        self.say_byes();
    }

    /// Posts a request that takes no receive at the peer, and fails if its end is gone. It is signaled, since nothing may be posted behind it that would prove it.
    fn post_probe(&mut self, lane: LaneId) {
        self.stage(lane, Flight::Frame, empty_write(), SgeList::EMPTY);
        let probe = self.lane_mut(lane).staged.last_mut();
        probe.expect("staged just now").signaled = true;
    }

    /// Gives a sign of life on each lane, and ends the session of a peer that gives none for too long. An interval counts as one whatever its
    /// length: a lcore that did not step itself must not take its own absence for the peer's.
    fn keep_alive(&mut self) {
        let now_ns = self.now_ns;
        let interval_ns = self.timeouts.keepalive_interval_ns;
        for lane in self.lane_ids() {
            let entry = self.lane_mut(lane);
            let connected = matches!(entry.phase, LanePhase::Greeting | LanePhase::Up);
            if !connected || now_ns.saturating_sub(entry.kept_alive_ns) < interval_ns {
                continue;
            }
            entry.kept_alive_ns = now_ns;
            entry.silent_ns = entry.silent_ns.saturating_add(interval_ns);
            let silent_ns = entry.silent_ns;
            if entry.is_up() {
                // The last one waits for a credit of a peer whose end may be gone; and nothing that is posted would tell.
                if entry.link.control.waits_to_keep_alive() && entry.inflight.len() == 0 {
                    self.post_probe(lane);
                }
                self.ask(lane, Request::KeepAlive);
            }
            if silent_ns > self.timeouts.reconnect_timeout_ns.max(2 * interval_ns) {
                self.stats.peers_silent += 1;
                self.give_up_session(lane, Unrepairable::Silent);
            }
        }
    }
}
