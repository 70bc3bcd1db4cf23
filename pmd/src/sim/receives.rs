//! Receives: posted, and waited for by messages.

use super::faults::SimFault;
use super::packet::Accepted;
use super::qp::QpRef;
use super::state::{Happening, State};
use crate::completion::WcStatus;
use crate::work::ReceiveRequest;

impl State {
    /// Takes a prefix of `receives`.
    pub(super) fn post_receives(&mut self, at: QpRef, receives: &[ReceiveRequest]) -> usize {
        let now_ns = self.now_ns;
        let Some(qp) = self.qp_mut(at) else {
            return 0;
        };
        if qp.released {
            return 0;
        }
        let room = qp.limits.receive_depth as usize - qp.receive.held;
        let count = receives.len().min(room);
        qp.receive.receives.extend(&receives[..count]);
        qp.receive.held += count;
        if qp.in_error {
            self.schedule_flush(at);
        } else if qp.receive.waiting.is_some() {
            self.schedule(now_ns, Happening::Request(at));
        }
        count
    }

    /// Chance decides once for each message how long it waits.
    pub(super) fn wait_for_receive(&mut self, at: QpRef, number: u64) {
        let Some(qp) = self.qp_mut(at) else {
            return;
        };
        if qp.receive.waiting == Some(number) {
            return;
        }
        qp.receive.waiting = Some(number);
        if let Some(ns) = self.sometimes(self.faults.no_receive) {
            let at_ns = self.now_ns + ns;
            self.schedule(at_ns, Happening::NoReceive(at, number));
        }
    }

    /// The peer is told that there is no receive. This side stays as it is, and hears nothing more of the peer.
    pub(super) fn stop_waiting(&mut self, at: QpRef, number: u64) {
        let armed = self.faults.no_receive.per_million > 0;
        let Some(qp) = self.qp_mut(at) else {
            return;
        };
        if !armed || qp.in_error || qp.receive.waiting != Some(number) {
            return;
        }
        self.fired.add(SimFault::NoReceive);
        if let Some(qp) = self.qp_mut(at) {
            qp.receive.deaf = true;
            qp.receive.waiting = None;
        }
        let refusal = Accepted::Refusal {
            number,
            status: WcStatus::RnrRetryExceeded,
            receive: None,
            breaks: false,
        };
        self.add(at, true, refusal);
    }
}
