//! The requester: takes work, sends it in order packet by packet, executes binds and invalidations in their turn, takes answers.

use super::breach::Breach;
use super::faults::SimFault;
use super::keys::Refused;
use super::packet::{Packet, Source};
use super::qp::{Phase, QpRef, Wqe, WqeState};
use super::state::{Happening, State};
use crate::completion::WcStatus;
use crate::work::{WorkOp, WorkRequest};

/// What became of the request whose turn it is.
enum Step {
    /// Over; on to the next.
    Done,
    /// It has left; the next one may.
    Sent,
    /// There is more of it to send.
    More,
    /// Something else must happen first, and will say so.
    Wait,
    /// Not before this time.
    Later(u64),
    Fail(WcStatus),
}

impl State {
    /// Takes a prefix of `work`.
    pub(super) fn post(&mut self, at: QpRef, work: &[WorkRequest]) -> usize {
        let Some(qp) = self.qp(at) else {
            return 0;
        };
        if qp.released || !(qp.in_error || qp.phase == Phase::Connected) {
            return 0;
        }
        let room = u64::from(qp.limits.send_depth) - (qp.send.posted - qp.send.freed);
        let count = work.len().min(room as usize);
        for work in &work[..count] {
            let wqe = self.wqe(at, work);
            if let Some(qp) = self.qp_mut(at) {
                qp.send.wqes.push_back(wqe);
                qp.send.posted += 1;
            }
        }
        if self.qp(at).is_some_and(|qp| qp.in_error) {
            self.schedule_flush(at);
        } else {
            let at_ns = self.after(self.config.issue_ns);
            self.schedule_issue(at, at_ns);
        }
        count
    }

    /// A request as posted. The bytes of an inline one are taken now; if that fails, it fails in its turn.
    fn wqe(&mut self, at: QpRef, work: &WorkRequest) -> Wqe {
        let mut wqe = Wqe::new(work);
        if !work.inline || self.qp(at).is_none_or(|qp| qp.in_error) {
            return wqe;
        }
        if self.breaks_limit(at, work) {
            wqe.state = WqeState::Failed(WcStatus::LocalLength);
            return wqe;
        }
        match self.gather(at, work, 0, work.sges.bytes()) {
            Ok(places) => wqe.inline = Some(self.read(at, &places)),
            Err(Refused) => wqe.state = WqeState::Failed(WcStatus::LocalProtection),
        }
        wqe
    }

    pub(super) fn gather(
        &self,
        at: QpRef,
        work: &WorkRequest,
        skip: u64,
        len: u64,
    ) -> Result<Vec<super::keys::Place>, Refused> {
        let pd = self.qp(at).ok_or(Refused)?.pd;
        self.local(at, pd, work.sges.as_slice(), (skip, len))
    }

    fn breaks_limit(&self, at: QpRef, work: &WorkRequest) -> bool {
        let Some(qp) = self.qp(at) else {
            return true;
        };
        let bytes = work.sges.bytes();
        let limit = match work.op {
            WorkOp::Bind { .. } | WorkOp::Invalidate { .. } => return work.inline,
            WorkOp::FetchAdd { .. } | WorkOp::CompareSwap { .. } if bytes != 8 => return true,
            WorkOp::Write { .. } | WorkOp::Send { .. } if work.inline => {
                qp.limits.max_inline_bytes as u64
            }
            _ if work.inline => return true,
            _ => self.config.max_operation_bytes,
        };
        bytes > limit || work.sges.as_slice().len() > qp.limits.max_sge
    }

    pub(super) fn schedule_issue(&mut self, at: QpRef, at_ns: u64) {
        if let Some(qp) = self.qp_mut(at)
            && !qp.send.issue_due
            && qp.send.issued < qp.send.posted
        {
            qp.send.issue_due = true;
            self.schedule(at_ns, Happening::Issue(at));
        }
    }

    /// Does the next thing of a send queue.
    pub(super) fn issue(&mut self, at: QpRef) {
        let stalled = self.stalled(at);
        let Some(qp) = self.qp_mut(at) else {
            return;
        };
        qp.send.issue_due = false;
        if qp.in_error || qp.send.halted || qp.phase != Phase::Connected {
            return;
        }
        if let Some(until_ns) = stalled {
            return self.schedule_issue(at, until_ns);
        }
        let step = self.issue_current(at);
        let Some(qp) = self.qp_mut(at) else {
            return;
        };
        let send = &mut qp.send;
        match step {
            Step::Wait => return,
            Step::Later(at_ns) => return self.schedule_issue(at, at_ns),
            Step::More => {}
            Step::Sent | Step::Done => {
                if let (Step::Done, Some(wqe)) = (step, send.current()) {
                    wqe.state = WqeState::Done;
                }
                send.issued += 1;
                send.offset = 0;
            }
            Step::Fail(status) => {
                send.halted = true;
                if let Some(wqe) = send.current() {
                    wqe.state = WqeState::Failed(status);
                }
            }
        }
        self.advance(at);
        let at_ns = self.after(self.config.issue_ns);
        self.schedule_issue(at, at_ns);
    }

    fn issue_current(&mut self, at: QpRef) -> Step {
        let Some(qp) = self.qp_mut(at) else {
            return Step::Wait;
        };
        let (pd, offset) = (qp.pd, qp.send.offset);
        let Some(wqe) = qp.send.current() else {
            return Step::Wait;
        };
        if let WqeState::Failed(status) = wqe.state {
            return Step::Fail(status);
        }
        let work = wqe.work;
        if offset == 0 {
            if self.breaks_limit(at, &work) {
                return Step::Fail(WcStatus::LocalLength);
            }
            if !work.inline && self.gather(at, &work, 0, work.sges.bytes()).is_err() {
                return Step::Fail(WcStatus::LocalProtection);
            }
        }
        match work.op {
            WorkOp::Bind { .. } => {
                let bound = self
                    .adapter(at.adapter)
                    .keys
                    .bind(&work.op, at.scope(pd))
                    .is_ok();
                self.local_end(&work, bound)
            }
            WorkOp::Invalidate { .. } => self.invalidate(at, &work),
            _ => self.send_packet(at, &work),
        }
    }

    /// How a bind or an invalidation ends.
    fn local_end(&mut self, work: &WorkRequest, done: bool) -> Step {
        let silent = !self.config.chain_stops && !work.signaled;
        if done || silent && self.random.coin() {
            Step::Done
        } else {
            Step::Fail(WcStatus::MemoryWindowBind)
        }
    }

    fn invalidate(&mut self, at: QpRef, work: &WorkRequest) -> Step {
        let now_ns = self.now_ns;
        let Some(qp) = self.qp_mut(at) else {
            return Step::Wait;
        };
        let pd = qp.pd;
        if qp.send.reported < qp.send.issued {
            return Step::Wait;
        }
        let ready_ns = qp.send.current().and_then(|wqe| wqe.ready_ns);
        let Some(ready_ns) = ready_ns else {
            let slow = self.sometimes(self.faults.slow_invalidation);
            if slow.is_some() {
                self.fired.add(SimFault::SlowInvalidation);
            }
            let ready_ns = now_ns + slow.unwrap_or(0);
            if let Some(wqe) = self.qp_mut(at).and_then(|qp| qp.send.current()) {
                wqe.ready_ns = Some(ready_ns);
            }
            return Step::Later(ready_ns);
        };
        if now_ns < ready_ns {
            return Step::Later(ready_ns);
        }
        let WorkOp::Invalidate { rkey } = work.op else {
            return Step::Fail(WcStatus::General);
        };
        let checks = self.config.invalidate_checks;
        let live = self.adapter(at.adapter).keys.is_live(rkey, at.scope(pd));
        if !checks && live != Ok(true) {
            self.misuses += 1;
        }
        let ends = match live {
            Ok(live) => live || !checks,
            Err(Refused) => false,
        };
        let rate = self.faults.failed_invalidation_per_million;
        if ends && self.random.strikes(rate) {
            return Step::Fail(self.fail_invalidation(at, &work.op));
        }
        if ends {
            self.end_key(at.adapter, rkey.index());
            // What landed just now may have been a refusal.
            if self.qp(at).is_none_or(|qp| qp.in_error) {
                return Step::Wait;
            }
        }
        self.local_end(work, ends)
    }

    /// The next packet of a request that goes to the peer.
    fn send_packet(&mut self, at: QpRef, work: &WorkRequest) -> Step {
        let carries = matches!(work.op, WorkOp::Write { .. } | WorkOp::Send { .. });
        let total = work.sges.bytes();
        let offset = self.qp(at).map_or(0, |qp| qp.send.offset);
        let len = match carries {
            true => (total - offset).min(u64::from(self.config.packet_bytes)),
            false => 0,
        };
        let data = match self.payload(at, work, offset, len) {
            Ok(data) => data,
            Err(Refused) => return Step::Fail(WcStatus::LocalProtection),
        };
        let Some(qp) = self.qp_mut(at) else {
            return Step::Wait;
        };
        let send = &mut qp.send;
        let fresh = send.next_number;
        let Some(wqe) = send.current() else {
            return Step::Wait;
        };
        let number = *wqe.number.get_or_insert(fresh);
        if number == fresh {
            send.next_number += 1;
        }
        send.offset += len;
        let peer = qp.peer;
        let packet = Packet {
            from: at,
            number,
            op: work.op,
            total,
            offset,
            data,
        };
        let sent_all = !carries || packet.is_last();
        self.transmit(at, peer, packet);
        if sent_all { Step::Sent } else { Step::More }
    }

    fn payload(
        &mut self,
        at: QpRef,
        work: &WorkRequest,
        offset: u64,
        len: u64,
    ) -> Result<Source, Refused> {
        if work.inline {
            let wqe = self.qp_mut(at).and_then(|qp| qp.send.current());
            let taken = wqe.and_then(|wqe| wqe.inline.as_deref()).ok_or(Refused)?;
            let part = &taken[offset as usize..][..len as usize];
            return Ok(Source::Bytes(part.to_vec()));
        }
        let places = self.gather(at, work, offset, len)?;
        Ok(match self.breaks(Breach::ReadsSourcesLate) {
            true => Source::Late(places),
            false => Source::Bytes(self.read(at, &places)),
        })
    }

    fn transmit(&mut self, at: QpRef, peer: Option<QpRef>, packet: Packet) {
        let at_ns = self.after(self.config.travel_ns);
        let Some((peer, there)) = peer.and_then(|peer| Some((peer, self.qps.get_mut(&peer)?)))
        else {
            return self.schedule_retry(at);
        };
        there.receive.requests.push_back((at_ns, packet));
        self.schedule(at_ns, Happening::Request(peer));
    }
}
