//! The control side's part of a lane's repair: a new queue pair and its connection in the place of one that broke. The engine that connects in a session connects here too, and gives
//! each try the next number. What the lcore does with it is `engine/repair.rs`.

use keyfence_pmd::{Device, RequestId};

use crate::engine::backoff::Backoff;
use crate::engine::command::Unrepairable;
use crate::engine::control::ControlSide;
use crate::engine::peers::{LaneRecord, PeerPhase};
use crate::event::EngineEvent;
use crate::ids::{Incarnation, LaneId, LcoreId, PeerId};
use crate::session::{Admission, JoinRefusal, Request};

/// Which lane of a session is rebuilt: the peer, the lcores of its ends, ours first, and its number between them.
pub(super) type Place = (PeerId, (LcoreId, LcoreId), u16);

/// A lane of a standing session that has broken, now or before.
#[derive(Clone, Debug)]
pub(super) struct Rebuild {
    place: Place,
    /// The number of the last try; where the peer asks, of the last one that was admitted.
    pub repair: u32,
    /// When it broke, while it is not repaired.
    since_ns: Option<u64>,
    /// The queue pair of the try that is under way, and when that is given up.
    trying: Option<(LaneId, u64)>,
    next_ns: u64,
    backoff: Backoff,
    pace: Pace,
}

/// How often a lane is rebuilt: `limits.rebuilds` times at once, and in the long run as often in `timeouts.reconnect`.
#[derive(Clone, Copy, Debug, Default)]
struct Pace {
    /// Until when the breaks so far take, each an equal part of that time.
    taken_ns: u64,
    /// When the next rebuild may begin.
    free_ns: u64,
}

impl Pace {
    /// Counts a break.
    fn broke(&mut self, now_ns: u64, rebuilds: u32, window_ns: u64) {
        let each_ns = window_ns / u64::from(rebuilds.max(1));
        self.taken_ns = self.taken_ns.max(now_ns).saturating_add(each_ns);
        self.free_ns = self.taken_ns.saturating_sub(window_ns).max(now_ns);
    }
}

impl Rebuild {
    fn new(place: Place) -> Self {
        Self {
            place,
            repair: 0,
            since_ns: None,
            trying: None,
            next_ns: 0,
            backoff: Backoff::default(),
            pace: Pace::default(),
        }
    }
}

impl<D: Device> ControlSide<D> {
    /// A lane broke. One of a session that stands is rebuilt, later if it breaks too often.
    pub fn lane_broke(&mut self, lcore: LcoreId, lane: LaneId) {
        let Some(record) = self.peers.lane_mut(lcore, lane).cloned() else {
            return;
        };
        if record.broken {
            return;
        }
        let is_try = self.is_trying(&record);
        tracing::debug!(qp = ?record.qp, repair = record.repair, is_try, "a lane broke");
        if !self.may_rebuild(&record) {
            return self.end_session(record.peer, JoinRefusal::LaneBroke);
        }
        if record.up || !is_try {
            // Whether its repair came to an end or not: a peer that has the secret can make and break as many as it likes.
            self.count_break(&record);
        }
        if is_try {
            return self.try_failed(&record);
        }
        let now_ns = self.now_ns;
        let rebuild = self.rebuild_of(&record);
        rebuild.since_ns.get_or_insert(now_ns);
        rebuild.next_ns = now_ns;
        self.give_up_lane(&record);
    }

    /// Whether a lane that breaks is rebuilt.
    fn may_rebuild(&self, record: &LaneRecord) -> bool {
        let peer = self.peers.get(record.peer);
        let stands = peer.phase == PeerPhase::Up && peer.staying.is_none();
        self.identity.limits.rebuilds > 0 && stands && !self.parting
    }

    fn count_break(&mut self, record: &LaneRecord) {
        let (now_ns, rebuilds) = (self.now_ns, self.identity.limits.rebuilds);
        let window_ns = self.patience.join_ns;
        let pace = &mut self.rebuild_of(record).pace;
        pace.broke(now_ns, rebuilds, window_ns);
    }

    fn rebuild_of(&mut self, record: &LaneRecord) -> &mut Rebuild {
        self.rebuild_at(record.place())
    }

    fn rebuild_at(&mut self, place: Place) -> &mut Rebuild {
        let known = self.rebuilds.iter().position(|known| known.place == place);
        let at = known.unwrap_or_else(|| {
            self.rebuilds.push(Rebuild::new(place));
            self.rebuilds.len() - 1
        });
        &mut self.rebuilds[at]
    }

    /// Whether the lane is a try that has not become its session's yet.
    pub fn is_trying(&mut self, record: &LaneRecord) -> bool {
        let place = record.place();
        let mut rebuilds = self.rebuilds.iter();
        rebuilds.any(|known| {
            known.place == place && known.trying.is_some_and(|(lane, _)| lane == record.lane)
        })
    }

    /// A join or a try has failed: of a session that does not stand, or of a lane that is rebuilt.
    pub fn failed(&mut self, record: &LaneRecord, why: JoinRefusal) {
        if record.repair == 0 || why == JoinRefusal::Ended {
            return self.end_session(record.peer, why);
        }
        tracing::info!(%why, repair = record.repair, "a lane was not rebuilt");
        self.try_failed(record);
    }

    fn try_failed(&mut self, record: &LaneRecord) {
        let (now_ns, patience) = (self.now_ns, self.patience.join);
        let at = self
            .rebuilds
            .iter()
            .position(|known| known.place == record.place());
        if let Some(at) = at {
            let rebuild = &mut self.rebuilds[at];
            rebuild.trying = None;
            let wait_ns = rebuild.backoff.failed(patience, &mut self.random);
            rebuild.next_ns = now_ns.saturating_add(wait_ns);
        }
        self.give_up_lane(record);
    }

    fn give_up_lane(&mut self, record: &LaneRecord) {
        if let Some(known) = self.peers.lane_mut(record.lcore, record.lane)
            && !core::mem::replace(&mut known.broken, true)
        {
            self.error_lane(record.lcore, record.lane, record.qp);
        }
    }

    /// The peer's hello on a lane that is a try is admitted: the lane that stood there is to be given up at both ends.
    pub fn rebuild_admitted(&mut self, record: &LaneRecord) {
        let now_ns = self.now_ns;
        let rebuild = self.rebuild_of(record);
        rebuild.repair = record.repair;
        // From here on it is the session's own time that runs.
        rebuild.trying = Some((record.lane, u64::MAX));
        rebuild.since_ns.get_or_insert(now_ns);
    }

    /// A lane's repair has ended.
    pub fn lane_repaired(&mut self, lcore: LcoreId, lane: LaneId) {
        let record = self.peers.lane_mut(lcore, lane).cloned();
        // One that was given up meanwhile is no repair: the next try is on its way.
        let Some(record) = record.filter(|record| !record.broken) else {
            return;
        };
        let now_ns = self.now_ns;
        let rebuild = self.rebuild_of(&record);
        rebuild.trying.take_if(|(trying, _)| *trying == lane);
        rebuild.backoff = Backoff::default();
        let took_ns = now_ns.saturating_sub(rebuild.since_ns.take().unwrap_or(now_ns));
        self.events.push_back(EngineEvent::LaneRepaired {
            peer: record.peer,
            lcore,
            took_ns,
        });
    }

    /// The session of a lane can't go on.
    pub fn unrepairable(&mut self, lcore: LcoreId, lane: LaneId, why: Unrepairable) {
        let Some(record) = self.peers.lane_mut(lcore, lane).cloned() else {
            return;
        };
        let peer = self.peers.get(record.peer);
        if (peer.phase, peer.session) == (PeerPhase::Up, record.session) {
            tracing::warn!(peer = %self.peers.get(record.peer).name, %why, "a session is given up");
            self.end_session(record.peer, JoinRefusal::LaneBroke);
        }
    }

    /// The session is over: so are its rebuilds.
    pub fn forget_rebuilds(&mut self, peer: PeerId) {
        self.rebuilds.retain(|known| known.place.0 != peer);
    }

    /// Makes the tries that are due, and gives up those that have had their time, and sessions whose lanes are not rebuilt in time. Returns whether there was any.
    pub fn rebuild_due(&mut self) -> bool {
        let mut any = false;
        for at in 0..self.rebuilds.len() {
            // A session that ends takes its own with it.
            let Some(rebuild) = self.rebuilds.get(at).cloned() else {
                break;
            };
            any |= self.rebuild_step(at, &rebuild);
        }
        any
    }

    fn rebuild_step(&mut self, at: usize, rebuild: &Rebuild) -> bool {
        let (peer, ends, _) = rebuild.place;
        let waited_ns = self.patience.join_ns;
        let over = |since_ns: u64| self.now_ns >= since_ns.saturating_add(waited_ns);
        if rebuild.since_ns.is_some_and(over) {
            self.end_session(peer, JoinRefusal::Timeout { waited_ns });
            return true;
        }
        if let Some((lane, until_ns)) = rebuild.trying {
            if self.now_ns < until_ns {
                return false;
            }
            if let Some(record) = self.peers.lane_mut(ends.0, lane).cloned() {
                tracing::info!(repair = record.repair, "a lane was not rebuilt in its time");
                self.try_failed(&record);
            }
            return true;
        }
        let free_ns = rebuild.next_ns.max(rebuild.pace.free_ns);
        let waits = rebuild.since_ns.is_none() || self.now_ns < free_ns;
        if waits || !self.is_ours_to_join(peer) {
            return false;
        }
        let repair = &mut self.rebuilds[at].repair;
        *repair += 1;
        let repair = *repair;
        self.try_lane(rebuild.place, repair, None);
        true
    }

    fn try_lane(
        &mut self,
        place: Place,
        repair: u32,
        asked: Option<(RequestId, Admission)>,
    ) -> bool {
        let (peer, ends, number) = place;
        let is_asked = asked.is_some();
        let made = self.make_lane(peer, ends, number, repair, asked);
        let (now_ns, patience) = (self.now_ns, self.patience.join);
        // Several tries fit the time that a session has.
        let until_ns = now_ns.saturating_add(self.patience.join_ns / 4);
        let at = self.rebuilds.iter().position(|known| known.place == place);
        let rebuild = &mut self.rebuilds[at.expect("seen above")];
        tracing::debug!(
            ?place,
            repair,
            asks = !is_asked,
            ok = made.is_ok(),
            "a lane is rebuilt"
        );
        match &made {
            Ok(lane) => rebuild.trying = Some((*lane, until_ns)),
            Err(_) => {
                let wait_ns = rebuild.backoff.failed(patience, &mut self.random);
                rebuild.next_ns = now_ns.saturating_add(wait_ns);
            }
        }
        made.is_ok()
    }

    /// The peer asks for a lane again that has broken at its end, whether that was seen here or not. Nothing here is authentic yet: the lane that there is stays as it is
    /// until the hello of the new one is admitted.
    pub fn admit_rebuild(
        &mut self,
        id: RequestId,
        peer: PeerId,
        request: &Request,
    ) -> Result<(), JoinRefusal> {
        let ends = crate::engine::admit::ends(request);
        let number = request.number();
        let entry = self.peers.get(peer);
        let incarnation = Incarnation(request.incarnation.get());
        let same =
            (entry.agreed_session, entry.incarnation) == (request.session.get(), incarnation);
        if entry.phase != PeerPhase::Up || !same {
            let had = entry.has_had(incarnation, request.session.get());
            return Err(match had {
                true => JoinRefusal::Ended,
                // No lane of a session that does not stand was made before.
                false => Admission::accepting(request, 0)
                    .err()
                    .unwrap_or(JoinRefusal::Malformed),
            });
        }
        if self.identity.limits.rebuilds == 0 {
            // It ends here when it breaks, and is over for the peer then.
            return Err(JoinRefusal::Ended);
        }
        let now_ns = self.now_ns;
        let rebuild = self.rebuild_at((peer, ends, number));
        let ahead = request.repair.wrapping_sub(rebuild.repair as u8);
        if rebuild.trying.is_some() || now_ns < rebuild.pace.free_ns {
            return Err(JoinRefusal::Busy);
        }
        if ahead == 0 || ahead > 128 {
            return Err(JoinRefusal::Duplicate);
        }
        let repair = rebuild.repair + u32::from(ahead);
        let asked = Some((id, Admission::accepting(request, repair)?));
        let made = self.try_lane((peer, ends, number), repair, asked);
        made.then_some(()).ok_or(JoinRefusal::Full)
    }
}
