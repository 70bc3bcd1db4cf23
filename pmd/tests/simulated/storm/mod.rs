//! Random work on adapters where everything goes wrong, judged by the accesses that the world records: none by a key that was proven dead, none to memory that
//! its operation had let go, and each request completes once.

mod judge;

use std::collections::{BTreeMap, BTreeSet};

use keyfence_pmd::sim::{Fired, Nanos, SimConfig, SimFault, SimFaults, Sometimes};
use keyfence_pmd::*;

use super::pair::{ADDRESS, Link, Pair};

const SLOT_BYTES: usize = 16 << 10;
const SLOTS: usize = 64;
const TARGET: usize = SLOTS * SLOT_BYTES;
const LINKS: usize = 3;

/// What a storm ends with.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Outcome {
    pub violations: Vec<String>,
    pub completed: u64,
    pub succeeded: u64,
    pub keys_ended: u64,
    pub touches: u64,
    pub hash: u64,
    pub fired: Fired,
}

/// The machine.
pub struct Storm {
    pair: Pair,
    dice: Dice,
    links: [Link; LINKS],
    grants: Vec<Grant>,
    open: BTreeMap<WorkId, Posted>,
    /// Of each side: whether an operation holds the slot.
    held: [[bool; SLOTS]; 2],
    /// Queue pairs on which something failed.
    broken: BTreeSet<(usize, QpId)>,
    made_late: bool,
    swallowed: u64,
    outcome: Outcome,
}

struct Grant {
    window: WindowId,
    rkey: Rkey,
    owner: QpId,
    place: usize,
    bound: bool,
    /// An invalidation is posted.
    ending: bool,
    ended: bool,
}

struct Posted {
    side: usize,
    qp: QpId,
    slot: Option<usize>,
    binds: Option<Rkey>,
    ends: Option<Rkey>,
    is_receive: bool,
}

struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(0x1405_7b7e_f767_814f);
        (self.0 >> 33) as usize % sides
    }
}

/// Everything at once.
pub fn all_faults() -> SimFaults {
    let some = |per_million, min, max| Sometimes {
        per_million,
        ns: Nanos::new(min, max),
    };
    SimFaults {
        slow_invalidation: some(300_000, 1_000, 200_000),
        failed_invalidation_per_million: 150_000,
        error_here_per_million: 300,
        error_there_per_million: 300,
        error_both_per_million: 300,
        stall: some(500, 10_000, 300_000),
        late_landing: some(20_000, 5_000, 300_000),
        garbage_per_million: 500_000,
        swallowed_completion_per_million: 50_000,
        late_completion: some(50_000, 1_000, 100_000),
        bunched_completion: some(50_000, 10_000, 50_000),
        failed_call_per_million: 30_000,
        late_call_undone_per_million: 30_000,
        late_call_done_per_million: 30_000,
        refused_connection_per_million: 100_000,
        slow_connection: some(200_000, 10_000, 300_000),
        no_receive: some(300_000, 5_000, 50_000),
    }
}

/// Runs a storm of so many steps.
pub fn run(seed: u64, steps: usize, config: &SimConfig) -> Outcome {
    let config = SimConfig {
        accesses_max: 1 << 20,
        ..config.clone()
    };
    let mut pair = Pair::new(seed, &config);
    let links = [(); LINKS].map(|()| pair.link());
    let mut storm = Storm {
        pair,
        dice: Dice(seed),
        links,
        grants: Vec::new(),
        open: BTreeMap::new(),
        held: [[false; SLOTS]; 2],
        broken: BTreeSet::new(),
        made_late: false,
        swallowed: 0,
        outcome: Outcome::default(),
    };
    storm.pair.world.set_faults(&all_faults()).unwrap();
    for _ in 0..steps {
        storm.act();
        for _ in 0..storm.dice.roll(4) {
            storm.step();
        }
    }
    storm.end()
}

impl Storm {
    fn act(&mut self) {
        let at = self.dice.roll(LINKS);
        let link = self.links[at];
        let broken = (0..2).any(|side| self.broken.contains(&(side, link.0[side])));
        if broken && self.dice.roll(10) > 0 {
            if self.dice.roll(10) == 0 {
                self.replace(at);
            }
            return;
        }
        match self.dice.roll(1000) {
            0..550 => self.operate(link),
            550..700 => self.receive(link),
            700..850 => self.bind(link),
            850..930 => self.invalidate(),
            930..960 => self.deallocate(),
            960..990 => {}
            990..992 => self.break_off(link),
            992..999 => {}
            _ => self.replace(at),
        }
    }

    fn slot(&mut self, side: usize) -> Option<usize> {
        let first = self.dice.roll(SLOTS);
        let mut slots = (first..SLOTS).chain(0..first);
        let slot = slots.find(|slot| !self.held[side][*slot])?;
        self.held[side][slot] = true;
        Some(slot)
    }

    fn post(&mut self, side: usize, qp: QpId, op: WorkOp, sges: SgeList, posted: Posted) -> bool {
        let work = self.pair.work(op, sges);
        let taken = self.pair.sides[side].path.post_burst(qp, &[work]);
        if taken == 0 {
            self.free(posted.side, posted.slot);
            return false;
        }
        self.open.insert(work.id, posted);
        true
    }

    fn operate(&mut self, link: Link) {
        let Some(slot) = self.slot(0) else {
            return;
        };
        let (rkey, place) = self.key_for(link);
        let most = if rkey == Rkey(0) { 1 } else { SLOT_BYTES };
        let len = self.dice.roll(most);
        let remote = self.pair.remote(TARGET + place * SLOT_BYTES, rkey);
        let (op, len) = match self.dice.roll(8) {
            0..3 => (
                WorkOp::Write {
                    remote,
                    immediate: None,
                },
                len,
            ),
            3..6 => (WorkOp::Read { remote }, len),
            6 if rkey != Rkey(0) => (WorkOp::FetchAdd { remote, add: 1 }, 8),
            _ => (WorkOp::Send { immediate: None }, len),
        };
        let sges = self.pair.one(0, slot * SLOT_BYTES, len);
        let qp = link.0[0];
        let posted = Posted {
            side: 0,
            qp,
            slot: Some(slot),
            binds: None,
            ends: None,
            is_receive: false,
        };
        self.post(0, qp, op, sges, posted);
    }

    /// A live key of this queue pair as a rule; now and then one that is not.
    fn key_for(&mut self, link: Link) -> (Rkey, usize) {
        let wrong = self.dice.roll(200) == 0;
        let usable = |grant: &&Grant| {
            wrong || grant.owner == link.0[1] && grant.bound && !grant.ending && !grant.ended
        };
        let grants: Vec<_> = self.grants.iter().filter(usable).collect();
        match grants.len() {
            0 => (Rkey(0), 0),
            count => {
                let grant = grants[self.dice.roll(count)];
                (grant.rkey, grant.place)
            }
        }
    }

    fn receive(&mut self, link: Link) {
        let Some(slot) = self.slot(1) else {
            return;
        };
        let (qp, id) = (
            link.0[1],
            self.pair.work(super::pair::NOTHING, SgeList::EMPTY).id,
        );
        let sge = self.pair.sge(1, slot * SLOT_BYTES, SLOT_BYTES);
        let taken = self.pair.sides[1]
            .path
            .post_receives(qp, &[ReceiveRequest { id, sge }]);
        match taken {
            1 => {
                let posted = Posted {
                    side: 1,
                    qp,
                    slot: Some(slot),
                    binds: None,
                    ends: None,
                    is_receive: true,
                };
                self.open.insert(id, posted);
            }
            _ => self.free(1, Some(slot)),
        }
    }

    fn bind(&mut self, link: Link) {
        let owner = link.0[1];
        let side = &self.pair.sides[1];
        let (device, region) = (side.device.clone(), side.region.id);
        let base = side.arena.address();
        let Ok(window) = device.alloc_window(owner) else {
            return;
        };
        let place = self.dice.roll(32);
        let op = WorkOp::Bind {
            window: window.id,
            region,
            address: base + (TARGET + place * SLOT_BYTES) as u64,
            len: SLOT_BYTES as u64,
            rights: Rights::ALL,
            rkey: window.rkey,
        };
        let posted = Posted {
            side: 1,
            qp: owner,
            slot: None,
            binds: Some(window.rkey),
            ends: None,
            is_receive: false,
        };
        self.post(1, owner, op, SgeList::EMPTY, posted);
        let (window, rkey) = (window.id, window.rkey);
        self.grants.push(Grant {
            window,
            rkey,
            owner,
            place,
            bound: false,
            ending: false,
            ended: false,
        });
    }

    fn invalidate(&mut self) {
        let mut fresh = self
            .grants
            .iter()
            .filter(|grant| !grant.ending && !grant.ended);
        let Some((rkey, owner)) = fresh.next().map(|grant| (grant.rkey, grant.owner)) else {
            return;
        };
        let posted = Posted {
            side: 1,
            qp: owner,
            slot: None,
            binds: None,
            ends: Some(rkey),
            is_receive: false,
        };
        let op = WorkOp::Invalidate { rkey };
        if self.post(1, owner, op, SgeList::EMPTY, posted) {
            self.grant(rkey).ending = true;
        }
    }

    fn deallocate(&mut self) {
        let mut fresh = self
            .grants
            .iter()
            .filter(|grant| !grant.ending && !grant.ended);
        let Some((rkey, window)) = fresh.next_back().map(|grant| (grant.rkey, grant.window)) else {
            return;
        };
        let device = &self.pair.sides[1].device;
        let (ended, fences) = (
            device.dealloc_window(window).is_ok(),
            device.caps().dealloc_fences,
        );
        self.judge();
        if ended {
            self.grant(rkey).ending = true;
        }
        if ended && fences {
            self.end_key(rkey);
        }
    }

    fn break_off(&mut self, link: Link) {
        let side = self.dice.roll(2);
        let _ = self.pair.sides[side].device.error_qp(link.0[side]);
    }

    fn replace(&mut self, at: usize) {
        for side in [0, 1] {
            let qp = self.links[at].0[side];
            self.destroy(side, qp);
        }
        let qps = [0, 1].map(|side| self.create(side));
        self.links[at] = Link(qps);
        self.start(qps[0]);
    }

    /// Late and failed calls are made again, as a runtime does.
    fn destroy(&mut self, side: usize, qp: QpId) {
        self.pair.sides[side].path.release_qp(qp);
        while self.pair.sides[side].device.destroy_qp(qp).is_err() {}
        self.judge();
        let gone: Vec<_> = self
            .open
            .iter()
            .filter(|(_, posted)| posted.side == side && posted.qp == qp)
            .map(|(id, _)| *id)
            .collect();
        for id in gone {
            self.close(id);
        }
        let dead: Vec<_> = self
            .grants
            .iter()
            .filter(|grant| side == 1 && grant.owner == qp)
            .map(|grant| grant.rkey)
            .collect();
        for rkey in dead {
            self.end_key(rkey);
        }
    }

    fn create(&mut self, side: usize) -> QpId {
        let device = &self.pair.sides[side].device;
        let config = QpConfig {
            pd: self.pair.sides[side].pd,
            lcore: LcoreId(0),
            send_depth: 32,
            receive_depth: 32,
            max_sge: 1,
            max_inline_bytes: 0,
        };
        loop {
            match device.create_qp(&config) {
                Ok(qp) => return qp,
                Err(ControlError::Late { .. }) => self.made_late = true,
                Err(_) => {}
            }
        }
    }

    /// The question carries the number of the asking queue pair, by which the other side finds the one meant for it.
    fn start(&mut self, qp: QpId) {
        let _ = self.pair.sides[0]
            .device
            .start_connect(qp, ADDRESS, &qp.0.to_le_bytes());
    }

    fn take_events(&mut self) {
        while let Some(event) = self.pair.sides[1].device.poll_event() {
            let ControlEvent::ConnectRequest {
                request, private, ..
            } = event
            else {
                continue;
            };
            let meant = self
                .links
                .iter()
                .find(|link| private == link.0[0].0.to_le_bytes());
            let device = &self.pair.sides[1].device;
            let _ = match meant {
                Some(link) => device.accept(request, link.0[1], &[]),
                None => device.reject(request, &[]),
            };
        }
        while let Some(event) = self.pair.sides[0].device.poll_event() {
            if let ControlEvent::Rejected { qp, .. } = event {
                self.start(qp);
            }
        }
    }

    fn step(&mut self) {
        self.pair.step();
        self.judge();
        for side in [0, 1] {
            for done in std::mem::take(&mut self.pair.sides[side].seen) {
                self.complete(side, &done);
            }
        }
        self.take_events();
    }

    /// Without faults everything ends, and nothing is left.
    fn end(mut self) -> Outcome {
        self.pair.world.faults_off();
        for link in self.links {
            for side in [0, 1] {
                let erred = self.pair.sides[side].device.error_qp(link.0[side]);
                assert_eq!(erred, Ok(()));
            }
        }
        for _ in 0..2000 {
            self.step();
        }
        let left = self.open.len();
        if left > 0 {
            self.violation(format!("{left} requests never completed"));
        }
        for link in self.links {
            for side in [0, 1] {
                self.destroy(side, link.0[side]);
            }
        }
        for grant in std::mem::take(&mut self.grants) {
            let ended = self.pair.sides[1].device.dealloc_window(grant.window);
            let known = matches!(ended, Ok(()) | Err(ControlError::NoSuchWindow(_)));
            assert!(known, "{ended:?}");
        }
        for side in &self.pair.sides {
            assert_eq!(side.device.deregister(side.region.id), Ok(()));
            let ended = side.device.dealloc_pd(side.pd);
            assert!(ended.is_ok() || self.made_late, "{ended:?}");
        }
        self.outcome.hash = self.pair.world.hash();
        self.outcome.fired = self.pair.world.fired();
        let swallowed = self.outcome.fired.count(SimFault::SwallowedCompletion);
        if self.swallowed > swallowed {
            let lost = self.swallowed - swallowed;
            self.violation(format!("{lost} completions were lost by no fault"));
        }
        self.outcome
    }
}
