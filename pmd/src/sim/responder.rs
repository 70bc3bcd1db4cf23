//! The responder: takes the peer's packets in order and checks the key of each as it is accepted. What is accepted lands later (`land`).

use super::breach::Breach;
use super::packet::{Accepted, Packet, Source};
use super::qp::{Ask, QpRef, Reading};
use super::state::{Happening, State};
use crate::completion::WcStatus;
use crate::ids::PdId;
use crate::work::{Remote, Rights, WorkOp};

const ATOMIC: Rights = Rights {
    read: false,
    write: false,
    atomic: true,
};

impl State {
    /// Takes the packets that have come, until one has to wait.
    pub(super) fn take_requests(&mut self, at: QpRef) {
        if let Some(until_ns) = self.stalled(at) {
            return self.schedule(until_ns, Happening::Request(at));
        }
        loop {
            let now_ns = self.now_ns;
            let Some(qp) = self.qp_mut(at) else {
                return;
            };
            let Some((at_ns, packet)) = qp.receive.requests.front() else {
                return;
            };
            if *at_ns > now_ns {
                return;
            }
            let from = packet.from;
            if !qp.serves(from) || qp.receive.deaf {
                qp.receive.requests.pop_front();
                self.schedule_retry(from);
                continue;
            }
            if qp.receive.halted || qp.receive.reading.is_some() {
                return;
            }
            if packet.needs_receive() && !qp.has_receive() {
                let number = packet.number;
                return self.wait_for_receive(at, number);
            }
            qp.receive.waiting = None;
            if let Some((_, packet)) = qp.receive.requests.pop_front() {
                self.accept(at, packet);
            }
        }
    }

    fn accept(&mut self, at: QpRef, packet: Packet) {
        let Some(pd) = self.qp(at).map(|qp| qp.pd) else {
            return;
        };
        match (packet.op, packet.remote()) {
            (WorkOp::Send { .. }, _) => self.accept_message(at, pd, packet),
            (WorkOp::Write { .. }, Some(remote)) => self.accept_write(at, pd, packet, remote),
            (WorkOp::Read { .. }, Some(remote)) if packet.total > 0 => {
                let ask = Ask {
                    number: packet.number,
                    remote,
                    total: packet.total,
                };
                if let Some(qp) = self.qp_mut(at) {
                    qp.receive.reading = Some(Reading {
                        packet: ask,
                        offset: 0,
                    });
                }
                let now_ns = self.now_ns;
                self.schedule_respond(at, now_ns);
            }
            (WorkOp::Read { .. }, _) => self.accept_end(at, &packet),
            (_, Some(remote)) => self.accept_atomic(at, pd, &packet, remote),
            (_, None) => self.refuse(at, packet.number, WcStatus::RemoteInvalidRequest),
        }
    }

    fn accept_write(&mut self, at: QpRef, pd: PdId, packet: Packet, remote: Remote) {
        let len = packet.len();
        if len > 0 {
            let address = remote.address.wrapping_add(packet.offset);
            let rest = packet.total - packet.offset;
            let once = self.breaks(Breach::ChecksKeysOnce) && !packet.is_first();
            let checked = match once {
                true => self.place_of_earlier(at, address, len),
                false => {
                    let keys = &self.adapters[at.adapter as usize].keys;
                    let scope = at.scope(pd);
                    let range = (address, rest);
                    keys.remote(&self.config, remote.rkey, scope, range, Rights::WRITE)
                        .ok()
                }
            };
            let Some(mut place) = checked else {
                return self.refuse(at, packet.number, WcStatus::RemoteAccess);
            };
            place.len = len as usize;
            let bytes = self.bytes_of(&packet);
            let item = Accepted::Write { place, bytes };
            self.add(at, packet.is_first(), item);
        }
        if packet.is_last() {
            self.accept_end(at, &packet);
        }
    }

    fn accept_message(&mut self, at: QpRef, pd: PdId, packet: Packet) {
        let Some(qp) = self.qp_mut(at) else {
            return;
        };
        if packet.is_first() {
            qp.receive.taken += 1;
        }
        let taken = qp.receive.taken;
        let Some(receive) = qp.receive.receives.get(taken.wrapping_sub(1)).copied() else {
            return;
        };
        let (number, len) = (packet.number, packet.len());
        if packet.offset + len > u64::from(receive.sge.len) {
            let status = WcStatus::RemoteInvalidRequest;
            return self.refuse_with(at, number, status, Some(WcStatus::LocalLength));
        }
        let sges = core::slice::from_ref(&receive.sge);
        let Ok(places) = self.local(at, pd, sges, (packet.offset, len)) else {
            let status = WcStatus::RemoteOperation;
            return self.refuse_with(at, number, status, Some(WcStatus::LocalProtection));
        };
        if len > 0 {
            let bytes = self.bytes_of(&packet);
            let item = Accepted::Receive { places, bytes };
            self.add(at, packet.is_first(), item);
        }
        if packet.is_last() {
            self.accept_end(at, &packet);
        }
    }

    fn accept_atomic(&mut self, at: QpRef, pd: PdId, packet: &Packet, remote: Remote) {
        let keys = &self.adapters[at.adapter as usize].keys;
        let range = (remote.address, 8);
        let checked = keys.remote(&self.config, remote.rkey, at.scope(pd), range, ATOMIC);
        let number = packet.number;
        let Ok(place) = checked else {
            return self.refuse(at, number, WcStatus::RemoteAccess);
        };
        if !self.config.atomics || !place.address.is_multiple_of(8) {
            return self.refuse(at, number, WcStatus::RemoteInvalidRequest);
        }
        let op = packet.op;
        self.add(at, true, Accepted::Atomic { place, number, op });
    }

    /// Looks up the next part of a read; its bytes are taken when it lands.
    pub(super) fn respond(&mut self, at: QpRef) {
        let stalled = self.stalled(at);
        let most = u64::from(self.config.packet_bytes);
        let Some(qp) = self.qp_mut(at) else {
            return;
        };
        qp.receive.respond_due = false;
        let (pd, reading) = (qp.pd, qp.receive.reading);
        let Some(Reading { packet, offset }) = reading else {
            return;
        };
        if let Some(until_ns) = stalled {
            return self.schedule_respond(at, until_ns);
        }
        let rest = packet.total - offset;
        let range = (packet.remote.address.wrapping_add(offset), rest);
        let keys = &self.adapters[at.adapter as usize].keys;
        let rkey = packet.remote.rkey;
        let checked = keys.remote(&self.config, rkey, at.scope(pd), range, Rights::READ);
        let Ok(mut place) = checked else {
            if let Some(qp) = self.qp_mut(at) {
                qp.receive.reading = None;
            }
            return self.refuse(at, packet.number, WcStatus::RemoteAccess);
        };
        let len = rest.min(most);
        place.len = len as usize;
        let number = packet.number;
        let item = Accepted::Read {
            place,
            number,
            offset,
        };
        self.add(at, offset == 0, item);
        let is_last = len == rest;
        if let Some(qp) = self.qp_mut(at) {
            let offset = offset + len;
            qp.receive.reading = (!is_last).then_some(Reading { packet, offset });
        }
        let at_ns = self.after(self.config.issue_ns);
        match is_last {
            true => self.schedule(at_ns, Happening::Request(at)),
            false => self.schedule_respond(at, at_ns),
        }
    }

    pub(super) fn schedule_respond(&mut self, at: QpRef, at_ns: u64) {
        if let Some(qp) = self.qp_mut(at)
            && qp.receive.reading.is_some()
            && !qp.receive.respond_due
        {
            qp.receive.respond_due = true;
            self.schedule(at_ns, Happening::Respond(at));
        }
    }

    fn accept_end(&mut self, at: QpRef, packet: &Packet) {
        let number = packet.number;
        let acknowledge = !self.breaks(Breach::AcknowledgesBeforeLanding);
        let item = Accepted::End {
            number,
            report: packet.report(),
            acknowledge,
        };
        self.add(at, true, item);
        if !acknowledge {
            self.answer(at, super::packet::Response::Done { number });
        }
    }

    fn refuse(&mut self, at: QpRef, number: u64, status: WcStatus) {
        self.refuse_with(at, number, status, None);
    }

    /// Refuses a request when everything before it has landed; until then nothing more is accepted.
    fn refuse_with(&mut self, at: QpRef, number: u64, status: WcStatus, receive: Option<WcStatus>) {
        if let Some(qp) = self.qp_mut(at) {
            qp.receive.halted = true;
        }
        let refusal = Accepted::Refusal {
            number,
            status,
            receive,
            breaks: true,
        };
        self.add(at, true, refusal);
    }

    fn bytes_of(&mut self, packet: &Packet) -> Vec<u8> {
        match &packet.data {
            Source::Bytes(bytes) => bytes.clone(),
            Source::Late(places) => self.read(packet.from, places),
        }
    }
}
