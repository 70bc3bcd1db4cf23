//! What the peer answers: acknowledgements and refusals, and data on its way into a request's sink.

use super::breach::Breach;
use super::faults::SimFault;
use super::packet::{Response, Sink};
use super::qp::{QpRef, WqeState};
use super::state::{Happening, State};
use crate::completion::WcStatus;

impl State {
    /// Takes the answers that have come.
    pub(super) fn take_responses(&mut self, at: QpRef) {
        if let Some(until_ns) = self.stalled(at) {
            return self.schedule(until_ns, Happening::Response(at));
        }
        loop {
            let now_ns = self.now_ns;
            let Some(qp) = self.qp_mut(at) else {
                return;
            };
            let due = qp
                .send
                .responses
                .front()
                .is_some_and(|(at_ns, _)| *at_ns <= now_ns);
            let Some((_, response)) = due.then(|| qp.send.responses.pop_front()).flatten() else {
                return;
            };
            if !qp.in_error {
                self.take_response(at, response);
            }
        }
    }

    fn take_response(&mut self, at: QpRef, response: Response) {
        let Some(qp) = self.qp_mut(at) else {
            return;
        };
        match response {
            Response::Done { number } => {
                let begun = qp.send.issued + 1 - qp.send.reported;
                for wqe in qp.send.wqes.iter_mut().take(begun as usize) {
                    let executed = wqe.number.is_some_and(|sent| sent <= number);
                    if executed && wqe.state == WqeState::Open && !wqe.is_question() {
                        wqe.state = WqeState::Done;
                    }
                }
            }
            Response::Refused { number, status } => {
                qp.send.halted = true;
                if let Some(wqe) = qp.send.by_number(number) {
                    wqe.state = WqeState::Failed(status);
                }
            }
            Response::Data {
                number,
                offset,
                bytes,
            } => self.take_data(at, number, offset, bytes),
        }
        self.advance(at);
    }

    fn take_data(&mut self, at: QpRef, number: u64, offset: u64, bytes: Vec<u8>) {
        let early = self.breaks(Breach::CompletesReadsEarly);
        let Some(wqe) = self.qp_mut(at).and_then(|qp| qp.send.by_number(number)) else {
            return;
        };
        if wqe.state != WqeState::Open {
            return;
        }
        wqe.come += bytes.len() as u64;
        if early && wqe.come == wqe.bytes() {
            wqe.state = WqeState::Done;
        }
        let work = wqe.work;
        let Ok(places) = self.gather(at, &work, offset, bytes.len() as u64) else {
            if let Some(qp) = self.qp_mut(at) {
                qp.send.halted = true;
                if let Some(wqe) = qp.send.by_number(number) {
                    wqe.state = WqeState::Failed(WcStatus::LocalProtection);
                }
            }
            return;
        };
        let (at_ns, is_late) = self.landing_time();
        let sink = Sink {
            number,
            places,
            bytes,
        };
        if let Some(qp) = self.qp_mut(at) {
            let at_ns = qp.send.sinks.add(at_ns, offset == 0, is_late, sink);
            self.schedule(at_ns, Happening::Sink(at));
        }
    }

    /// Lets answers land that are due.
    pub(super) fn sink_due(&mut self, at: QpRef) {
        let now_ns = self.now_ns;
        while let Some(item) = self.qp_mut(at).and_then(|qp| qp.send.sinks.pop_due(now_ns)) {
            if item.is_late {
                self.fired.add(SimFault::LateLanding);
            }
            self.sink(at, &item.what);
        }
    }

    /// A part of an answer lands; the last one ends its request.
    pub(super) fn sink(&mut self, at: QpRef, sink: &Sink) {
        self.write(at, &sink.places, &sink.bytes);
        let Some(wqe) = self
            .qp_mut(at)
            .and_then(|qp| qp.send.by_number(sink.number))
        else {
            return;
        };
        wqe.landed += sink.bytes.len() as u64;
        if wqe.state == WqeState::Open && wqe.landed == wqe.bytes() {
            wqe.state = WqeState::Done;
            self.advance(at);
        }
    }
}
