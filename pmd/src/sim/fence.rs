//! Rule 7: before the end of a key, a region or a queue pair is told, what was accepted by it has landed or is dropped.

use super::breach::Breach;
use super::keys::Key;
use super::landing::Turn;
use super::packet::{Accepted, Sink};
use super::qp::{QpRef, in_region};
use super::state::State;

impl State {
    /// Nothing accepted by this window's key can land any more.
    pub(super) fn settle_window(&mut self, adapter: u32, window: u32) {
        let by_it = |item: &Accepted| {
            let mut places = item.places().iter();
            places.any(|place| place.window == Some(window))
        };
        for at in self.qps_of(adapter) {
            self.settle_accepted(at, by_it);
        }
    }

    /// Nothing accepted for this region's bytes can land any more: by its own key, by a window's, by an operation's list.
    pub(super) fn settle_region(&mut self, adapter: u32, region: u32) {
        for at in self.qps_of(adapter) {
            self.settle_accepted(at, |item| in_region(item.places(), region));
            self.settle_sinks(at, |sink| in_region(&sink.places, region));
        }
    }

    /// Nothing of this queue pair's own operations can touch memory any more: sinks and receives.
    pub(super) fn settle_own(&mut self, at: QpRef) {
        if self.breaks(Breach::FlushDoesNotFence) {
            return;
        }
        self.settle_sinks(at, |_| true);
        self.settle_accepted(at, Accepted::is_own);
    }

    /// Nothing of this queue pair can touch memory any more.
    pub(super) fn settle_all(&mut self, at: QpRef) {
        self.settle_sinks(at, |_| true);
        self.settle_accepted(at, |_| true);
    }

    /// A window's key opens nothing from now on, and nothing accepted by it can land any more.
    pub(super) fn end_key(&mut self, adapter: u32, window: u32) {
        if self.breaks(Breach::InvalidationEndsNothing) {
            return;
        }
        self.adapter(adapter).keys.unbind(window);
        if !self.breaks(Breach::InvalidationDoesNotFence) {
            self.settle_window(adapter, window);
        }
    }

    /// The windows of a queue pair that is destroyed: their keys are dead, and they stay until they are deallocated.
    pub(super) fn orphan_windows(&mut self, at: QpRef) {
        let mut orphans = Vec::new();
        for (index, key) in &mut self.adapter(at.adapter).keys.table {
            if let Key::Window(window) = key
                && window.qp == at.qp
            {
                window.is_orphan = true;
                orphans.push(*index);
            }
        }
        if !self.breaks(Breach::DestroyDoesNotFence) {
            for window in orphans {
                self.settle_window(at.adapter, window);
            }
        }
    }

    fn settle_accepted(&mut self, at: QpRef, matches: impl Fn(&Accepted) -> bool) {
        let Some(qp) = self.qps.get(&at) else {
            return;
        };
        let turns = qp.receive.accepted.up_to_last(&matches);
        if turns.is_empty() {
            return;
        }
        if qp.in_error && self.random.coin() {
            if let Some(qp) = self.qp_mut(at) {
                qp.receive.accepted.drop_all(matches);
            }
            return;
        }
        for turn in turns {
            if let Some(item) = self.take_accepted(at, turn) {
                self.land(at, item);
            }
        }
    }

    fn take_accepted(&mut self, at: QpRef, turn: Turn) -> Option<Accepted> {
        self.qp_mut(at)?.receive.accepted.remove(turn)
    }

    fn settle_sinks(&mut self, at: QpRef, matches: impl Fn(&Sink) -> bool) {
        let Some(qp) = self.qps.get(&at) else {
            return;
        };
        let turns = qp.send.sinks.up_to_last(&matches);
        if turns.is_empty() {
            return;
        }
        if qp.in_error && self.random.coin() {
            if let Some(qp) = self.qp_mut(at) {
                qp.send.sinks.drop_all(matches);
            }
            return;
        }
        for turn in turns {
            let sink = self.qp_mut(at).and_then(|qp| qp.send.sinks.remove(turn));
            if let Some(sink) = sink {
                self.sink(at, &sink);
            }
        }
    }
}
