//! What happens to accepted packets at the responder's memory, and the answers that follow.

use super::faults::SimFault;
use super::keys::Place;
use super::packet::{Accepted, Response};
use super::qp::QpRef;
use super::state::{Happening, State};
use crate::completion::WcStatus;

impl State {
    /// When something that is accepted now lands, and whether that is late by chance.
    pub(super) fn landing_time(&mut self) -> (u64, bool) {
        let at_ns = self.after(self.config.landing_ns);
        match self.sometimes(self.faults.late_landing) {
            Some(ns) => (at_ns + ns, true),
            None => (at_ns, false),
        }
    }

    /// Adds something accepted.
    pub(super) fn add(&mut self, at: QpRef, begins: bool, item: Accepted) {
        let touches = !item.places().is_empty();
        let (at_ns, is_late) = match touches {
            true => self.landing_time(),
            false => (self.now_ns, false),
        };
        if let Some(qp) = self.qp_mut(at) {
            let at_ns = qp.receive.accepted.add(at_ns, begins, is_late, item);
            self.schedule(at_ns, Happening::Land(at));
        }
    }

    /// Lets land what is due.
    pub(super) fn land_due(&mut self, at: QpRef) {
        let now_ns = self.now_ns;
        while let Some(item) = self
            .qp_mut(at)
            .and_then(|qp| qp.receive.accepted.pop_due(now_ns))
        {
            if item.is_late {
                self.fired.add(SimFault::LateLanding);
            }
            self.land(at, item.what);
        }
    }

    /// One thing lands. In error only memory is touched: nobody is told.
    pub(super) fn land(&mut self, at: QpRef, item: Accepted) {
        let Some(qp) = self.qp(at) else {
            return;
        };
        let silent = qp.in_error && !qp.is_ghost;
        match item {
            Accepted::Write { place, bytes } => self.write(at, &[place], &bytes),
            Accepted::Receive { places, bytes } => self.write(at, &places, &bytes),
            Accepted::Read {
                place,
                number,
                offset,
            } => {
                let bytes = self.read(at, &[place]);
                if !silent {
                    let data = Response::Data {
                        number,
                        offset,
                        bytes,
                    };
                    self.answer(at, data);
                }
            }
            Accepted::Atomic { place, number, op } => {
                let former = self.modify(at, &place, &op);
                if !silent {
                    let data = Response::Data {
                        number,
                        offset: 0,
                        bytes: former.to_ne_bytes().to_vec(),
                    };
                    self.answer(at, data);
                }
            }
            _ if silent => {}
            Accepted::End {
                number,
                report,
                acknowledge,
            } => {
                if let Some(report) = report {
                    self.report_receive(at, Ok(report));
                }
                if acknowledge {
                    self.answer(at, Response::Done { number });
                }
            }
            Accepted::Refusal {
                number,
                status,
                receive,
                breaks,
            } => {
                self.answer(at, Response::Refused { number, status });
                self.break_off(at, receive, breaks);
            }
        }
    }

    /// This side's part of a refusal.
    fn break_off(&mut self, at: QpRef, receive: Option<WcStatus>, breaks: bool) {
        if breaks {
            self.enter_error(at);
        }
        if let Some(status) = receive {
            self.report_receive(at, Err(status));
        }
    }

    /// Sends a response to the peer, behind the earlier ones.
    pub(super) fn answer(&mut self, at: QpRef, response: Response) {
        let at_ns = self.after(self.config.travel_ns);
        let peer = self.qp(at).and_then(|qp| qp.peer);
        let Some((peer, there)) = peer.and_then(|peer| Some((peer, self.qps.get_mut(&peer)?)))
        else {
            return;
        };
        there.send.responses.push_back((at_ns, response));
        self.schedule(at_ns, Happening::Response(peer));
    }

    /// Where a later packet of a request goes whose key nobody looks at any more.
    pub(super) fn place_of_earlier(&self, at: QpRef, address: u64, len: u64) -> Option<Place> {
        let keys = &self.adapters[at.adapter as usize].keys;
        keys.anywhere(address, len)
    }
}
