//! What a wrong device does to requests.

use super::Rule;
use super::path::{Disguise, Fate, WrongPath};
use super::world::{BindFact, Facts, LATE_POLLS, SideId};
use crate::completion::{CompletionKind, WcStatus};
use crate::device::Device;
use crate::ids::{QpId, Rkey, WorkId};
use crate::work::{Remote, Rights, Sge, SgeList, WorkOp, WorkRequest};

/// Names of requests that the caller knows nothing of: it must not use this bit.
pub(super) const HIDDEN: u64 = 1 << 63;

/// Bytes that a key without bounds opens at each end.
pub(super) const SLACK: u64 = 64;

impl<D: Device> WrongPath<D> {
    /// The burst in the order in which it goes to the device.
    pub(super) fn arrange(&self, qp: QpId, work: &[WorkRequest]) -> Vec<WorkRequest> {
        let mut burst = work.to_vec();
        if self.breaks(Rule::MessageOvertakesData) {
            burst.sort_by_key(|request| !matches!(request.op, WorkOp::Send { .. }));
        }
        if self.breaks(Rule::TakesSuffix) {
            let facts = self.world.facts();
            let fact = facts.qps.get(&(self.side, qp));
            let depth = fact.map_or(usize::MAX, |fact| fact.config.send_depth as usize);
            burst.drain(..burst.len().saturating_sub(depth));
        }
        burst
    }

    /// What becomes of one request.
    pub(super) fn fate(&mut self, qp: QpId, request: &WorkRequest) -> Fate {
        let mut work = *request;
        if let Some(fate) = self.fate_of_key(qp, &work) {
            return fate;
        }
        match self.world.rule {
            Rule::ReportsUnsignaledSuccess => work.signaled = true,
            Rule::InlineReadsLate if work.inline => {
                return Fate::Later(2, work.inline(false));
            }
            Rule::RefusesOverlongInline if work.inline && self.is_over_inline(qp, &work) => {
                return Fate::Stop;
            }
            Rule::CutsEntries => work.sges = self.cut_entries(qp, work.sges),
            Rule::IgnoresLocalKey => work.sges = self.known_keys(work.sges),
            Rule::IgnoresLocalDomain if self.has_foreign_entry(qp, &work.sges) => {
                return self.stand_in(qp, &work, None);
            }
            Rule::TruncatesMessages if matches!(work.op, WorkOp::Send { .. }) => {
                work.sges = self.cut_to_receive(qp, work.sges);
            }
            Rule::AlignsAtomics => align(&mut work.op),
            Rule::LosesMessages if matches!(work.op, WorkOp::Send { .. }) => {
                return self.stand_in(qp, &work, None);
            }
            Rule::ExecutesTwice if is_counted(&work.op) => {
                let mut twin = work.signaled(false);
                twin.id = WorkId(work.id.0 | HIDDEN);
                return Fate::Post(qp, vec![twin, work]);
            }
            Rule::SucceedsEarly if work.signaled && is_nothing(&work) => {
                self.make_up(qp, &work, WcStatus::Success);
                work.signaled = false;
                work.id = WorkId(work.id.0 | HIDDEN);
            }
            Rule::ImmediateOvertakesData => {
                if let Some(parts) = split_immediate(&work) {
                    return Fate::Post(qp, parts);
                }
            }
            _ => {}
        }
        Fate::Post(qp, vec![work])
    }

    /// Rules about keys: binds, invalidations, and the keys of accesses.
    fn fate_of_key(&mut self, qp: QpId, work: &WorkRequest) -> Option<Fate> {
        match work.op {
            WorkOp::Bind { .. } => self.fate_of_bind(qp, work),
            WorkOp::Invalidate { rkey } => self.fate_of_invalidate(qp, work, rkey),
            _ => {
                let remote = remote_of(&work.op)?;
                self.fate_of_access(qp, work, remote)
            }
        }
    }

    fn fate_of_bind(&mut self, qp: QpId, work: &WorkRequest) -> Option<Fate> {
        let WorkOp::Bind {
            window,
            region,
            mut address,
            mut len,
            mut rights,
            rkey,
        } = work.op
        else {
            return None;
        };
        let side = self.side;
        let mut facts = self.world.facts();
        let inside = facts.is_inside(side, region, address, len);
        let bound = facts.binds.get(&rkey.index()).is_some_and(|bind| bind.live);
        let owner = facts.windows.get(&(side, window)).copied();
        let stands_in = match self.world.rule {
            Rule::BindIgnoresRegion => !inside,
            Rule::BindIgnoresQueuePair => owner.is_some_and(|owner| owner != qp),
            Rule::BindsTwice => bound,
            Rule::BindIgnoresDomain => facts.is_elsewhere((side, qp), |id, _| *id == region),
            _ => false,
        };
        let runs_on = self.world.rule == Rule::ChainRunsOn && !inside;
        if inside && !bound && owner == Some(qp) {
            let bind = BindFact {
                side,
                qp,
                window,
                rkey,
                live: true,
            };
            facts.binds.insert(rkey.index(), bind);
        }
        if self.world.rule == Rule::IgnoresBounds && inside {
            (address, len) = widen(&facts, side, address, len);
        }
        drop(facts);
        if stands_in {
            return Some(self.stand_in(qp, work, None));
        }
        if runs_on {
            return Some(self.stand_in(qp, work, Some(WcStatus::MemoryWindowBind)));
        }
        if self.breaks(Rule::IgnoresRights) {
            rights = Rights::READ_WRITE;
        }
        let op = WorkOp::Bind {
            window,
            region,
            address,
            len,
            rights,
            rkey,
        };
        let work = WorkRequest { op, ..*work };
        let loud = work.signaled || self.breaks(Rule::ReportsUnsignaledSuccess);
        Some(Fate::Post(qp, vec![work.signaled(loud)]))
    }

    fn fate_of_invalidate(&mut self, qp: QpId, work: &WorkRequest, rkey: Rkey) -> Option<Fate> {
        let mut facts = self.world.facts();
        let bind = facts.binds.get_mut(&rkey.index());
        let stands_in = bind.is_some_and(|bind| {
            let (was_live, ours) = (bind.live, bind.qp == qp && bind.side == self.side);
            bind.live &= bind.rkey != rkey || !ours;
            was_live
                && match self.world.rule {
                    Rule::InvalidateIgnoresQueuePair => !ours,
                    Rule::InvalidateIgnoresTag => bind.rkey != rkey,
                    _ => false,
                }
        });
        drop(facts);
        if stands_in {
            return Some(self.stand_in(qp, work, None));
        }
        if self.breaks(Rule::AcceptsDeadKey) {
            return Some(self.stand_in(qp, work, None));
        }
        if self.breaks(Rule::CompletesInvalidateEarly) {
            self.make_up(qp, work, WcStatus::Success);
            let mut hidden = work.signaled(false);
            hidden.id = WorkId(work.id.0 | HIDDEN);
            return Some(Fate::Later(LATE_POLLS, hidden));
        }
        None
    }

    fn fate_of_access(&mut self, qp: QpId, work: &WorkRequest, remote: Remote) -> Option<Fate> {
        let facts = self.world.facts();
        let live = facts.is_live(remote.rkey);
        let bind = facts.binds.get(&remote.rkey.index()).copied();
        let elsewhere = facts.qps.get(&(self.side, qp)).and_then(|fact| fact.peer);
        let elsewhere = elsewhere
            .is_some_and(|peer| facts.is_elsewhere(peer, |_, region| region.rkey == remote.rkey));
        let holder = bind.and_then(|bind| facts.qps.get(&(bind.side, bind.qp))?.peer);
        drop(facts);
        let empty = work.sges.bytes() == 0;
        match self.world.rule {
            Rule::ZeroLengthChecksKey if empty && !live => {
                Some(self.stand_in(qp, work, Some(WcStatus::RemoteAccess)))
            }
            Rule::RefusalLeavesRequesterRunning if !empty && !live => {
                Some(self.stand_in(qp, work, Some(WcStatus::RemoteAccess)))
            }
            Rule::RefusalLeavesResponderRunning if !empty && !live => {
                // The device may call it done or flushed; in error it is in any case.
                let fate = self.stand_in(qp, work, Some(WcStatus::RemoteAccess));
                if let Fate::Post(qp, parts) = &fate {
                    crate::DataPath::post_burst(&mut self.inner, *qp, parts);
                }
                let _ = self.device.error_qp(qp);
                Some(Fate::Post(qp, Vec::new()))
            }
            Rule::IgnoresRegionDomain if elsewhere => Some(self.stand_in(qp, work, None)),
            Rule::IgnoresTag => {
                let bind = bind.filter(|bind| bind.live)?;
                let op = with_key(work.op, bind.rkey);
                Some(Fate::Post(qp, vec![WorkRequest { op, ..*work }]))
            }
            Rule::IgnoresScope => {
                let (side, on) = holder?;
                if side != self.side || on == qp {
                    return None;
                }
                let disguise = self.disguise(qp, work, None);
                self.disguises.insert(work.id.0, disguise);
                Some(Fate::Post(on, vec![*work]))
            }
            _ => None,
        }
    }

    fn disguise(&self, qp: QpId, work: &WorkRequest, status: Option<WcStatus>) -> Disguise {
        Disguise {
            qp,
            kind: kind_of(&work.op),
            status,
        }
    }

    /// A write of nothing in place of the request, whose completion will look like that of the request.
    fn stand_in(&mut self, qp: QpId, work: &WorkRequest, status: Option<WcStatus>) -> Fate {
        let disguise = self.disguise(qp, work, status);
        self.disguises.insert(work.id.0, disguise);
        let remote = Remote {
            address: 0,
            rkey: Rkey(0),
        };
        let op = WorkOp::Write {
            remote,
            immediate: None,
        };
        let nothing = WorkRequest::new(work.id, op, SgeList::EMPTY);
        // A failure is reported always.
        let signaled = work.signaled || status.is_some();
        Fate::Post(qp, vec![nothing.signaled(signaled)])
    }

    fn is_over_inline(&self, qp: QpId, work: &WorkRequest) -> bool {
        let facts = self.world.facts();
        let fact = facts.qps.get(&(self.side, qp));
        fact.is_some_and(|fact| work.sges.bytes() > fact.config.max_inline_bytes as u64)
    }

    fn cut_entries(&self, qp: QpId, sges: SgeList) -> SgeList {
        let facts = self.world.facts();
        let fact = facts.qps.get(&(self.side, qp));
        let most = fact.map_or(usize::MAX, |fact| fact.config.max_sge);
        let entries = sges.as_slice();
        SgeList::new(&entries[..entries.len().min(most)]).unwrap_or(sges)
    }

    fn known_keys(&self, sges: SgeList) -> SgeList {
        let facts = self.world.facts();
        let known = |sge: &Sge| {
            let region = facts.region_at(self.side, sge.address, sge.len.into());
            region.map_or(*sge, |region| Sge {
                lkey: region.lkey.0,
                ..*sge
            })
        };
        let entries: Vec<Sge> = sges.as_slice().iter().map(known).collect();
        SgeList::new(&entries).unwrap_or(sges)
    }

    fn has_foreign_entry(&self, qp: QpId, sges: &SgeList) -> bool {
        let facts = self.world.facts();
        let mut entries = sges.as_slice().iter();
        entries
            .any(|sge| facts.is_elsewhere((self.side, qp), |_, region| region.lkey.0 == sge.lkey))
    }

    fn cut_to_receive(&self, qp: QpId, sges: SgeList) -> SgeList {
        let mut facts = self.world.facts();
        let peer = facts.qps.get(&(self.side, qp)).and_then(|fact| fact.peer);
        let fact = peer.and_then(|peer| facts.qps.get_mut(&peer));
        let room = fact.and_then(|fact| fact.receives.pop_front());
        match (room, sges.as_slice()) {
            (Some(room), [only]) => SgeList::one(Sge {
                len: only.len.min(room),
                ..*only
            }),
            _ => sges,
        }
    }
}

/// A range with some slack at both ends, as far as its region goes.
fn widen<D>(facts: &Facts<D>, side: SideId, address: u64, len: u64) -> (u64, u64) {
    let Some(region) = facts.region_at(side, address, len) else {
        return (address, len);
    };
    let start = (address - SLACK.min(address)).max(region.addresses.start);
    let end = (address + len + SLACK).min(region.addresses.end);
    (start, end - start)
}

fn is_nothing(work: &WorkRequest) -> bool {
    let write = matches!(
        work.op,
        WorkOp::Write {
            immediate: None,
            ..
        }
    );
    write && work.sges.bytes() == 0
}

fn is_counted(op: &WorkOp) -> bool {
    matches!(
        op,
        WorkOp::Send { .. } | WorkOp::FetchAdd { .. } | WorkOp::CompareSwap { .. }
    )
}

fn split_immediate(work: &WorkRequest) -> Option<Vec<WorkRequest>> {
    let WorkOp::Write {
        remote,
        immediate: Some(_),
    } = work.op
    else {
        return None;
    };
    let mut notice = WorkRequest::new(WorkId(work.id.0 | HIDDEN), work.op, SgeList::EMPTY);
    notice.signaled = false;
    let op = WorkOp::Write {
        remote,
        immediate: None,
    };
    Some(vec![notice, WorkRequest { op, ..*work }])
}

fn remote_of(op: &WorkOp) -> Option<Remote> {
    match *op {
        WorkOp::Write { remote, .. }
        | WorkOp::Read { remote }
        | WorkOp::FetchAdd { remote, .. }
        | WorkOp::CompareSwap { remote, .. } => Some(remote),
        _ => None,
    }
}

fn remote_mut(op: &mut WorkOp) -> Option<&mut Remote> {
    match op {
        WorkOp::Write { remote, .. }
        | WorkOp::Read { remote }
        | WorkOp::FetchAdd { remote, .. }
        | WorkOp::CompareSwap { remote, .. } => Some(remote),
        _ => None,
    }
}

fn with_key(mut op: WorkOp, rkey: Rkey) -> WorkOp {
    if let Some(remote) = remote_mut(&mut op) {
        remote.rkey = rkey;
    }
    op
}

fn align(op: &mut WorkOp) {
    let atomic = matches!(op, WorkOp::FetchAdd { .. } | WorkOp::CompareSwap { .. });
    if let (true, Some(remote)) = (atomic, remote_mut(op)) {
        remote.address &= !7;
    }
}

pub(super) fn kind_of(op: &WorkOp) -> CompletionKind {
    match op {
        WorkOp::Write { .. } => CompletionKind::Write,
        WorkOp::Read { .. } => CompletionKind::Read,
        WorkOp::Send { .. } => CompletionKind::Send,
        WorkOp::FetchAdd { .. } | WorkOp::CompareSwap { .. } => CompletionKind::Atomic,
        WorkOp::Bind { .. } => CompletionKind::Bind,
        WorkOp::Invalidate { .. } => CompletionKind::Invalidate,
    }
}
