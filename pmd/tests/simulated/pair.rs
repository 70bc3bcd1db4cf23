//! Two adapters of a world and queue pairs between them, for tests that look closer than the suite.

use std::collections::VecDeque;

use keyfence_mempool::arena::Arena;
use keyfence_mempool::sync::Arc;
use keyfence_pmd::conformance::ARENA_BYTES;
use keyfence_pmd::sim::{SimConfig, SimDevice, SimPath, World};
use keyfence_pmd::*;

/// One side.
pub struct Side {
    pub device: SimDevice,
    pub path: SimPath,
    pub arena: Arc<Arena>,
    pub pd: PdId,
    pub region: Region,
    /// Polled, and not asked for yet.
    pub seen: VecDeque<Completion>,
}

/// Both, `sides[0]` asks and `sides[1]` listens; a test may take one out.
pub struct Pair {
    pub world: World,
    pub sides: Vec<Side>,
    next_id: u64,
}

/// A queue pair of each side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Link(pub [QpId; 2]);

pub const ADDRESS: &str = "local:pair";
/// Longer than anything takes without faults.
pub const LONG_NS: u64 = 5_000_000;
const STEP_NS: u64 = 1_000;

impl Pair {
    pub fn new(seed: u64, config: &SimConfig) -> Self {
        let world = super::world(seed, config);
        let sides = super::arenas().map(|arena| {
            let device = world.device("side");
            let path = device.open_path(LcoreId(0)).unwrap();
            let pd = device.alloc_pd().unwrap();
            let access = Access {
                remote: Rights::NONE,
                bind: device.caps().windows,
            };
            let region = device.register(pd, &arena, 0..ARENA_BYTES, access).unwrap();
            Side {
                device,
                path,
                arena,
                pd,
                region,
                seen: VecDeque::new(),
            }
        });
        let sides = Vec::from(sides);
        sides[1].device.listen(ADDRESS).unwrap();
        Self {
            world,
            sides,
            next_id: 0,
        }
    }

    pub fn create(&self, side: usize) -> QpId {
        let Side { device, pd, .. } = &self.sides[side];
        let config = QpConfig {
            pd: *pd,
            lcore: LcoreId(0),
            send_depth: 64,
            receive_depth: 64,
            max_sge: device.caps().max_sge,
            max_inline_bytes: device.caps().max_inline_bytes.min(64),
        };
        device.create_qp(&config).unwrap()
    }

    /// Two connected queue pairs; the faults must be off.
    pub fn link(&mut self) -> Link {
        let qps = [self.create(0), self.create(1)];
        self.sides[0]
            .device
            .start_connect(qps[0], ADDRESS, &[])
            .unwrap();
        let event = self.event(1).expect("a request");
        let ControlEvent::ConnectRequest { request, .. } = event else {
            panic!("{event:?}");
        };
        self.sides[1].device.accept(request, qps[1], &[]).unwrap();
        for side in [0, 1] {
            let event = self.event(side);
            let connected =
                matches!(event, Some(ControlEvent::Connected { qp, .. }) if qp == qps[side]);
            assert!(connected, "{event:?}");
        }
        Link(qps)
    }

    /// The next event of a side that comes in time.
    pub fn event(&mut self, side: usize) -> Option<ControlEvent> {
        let end_ns = self.world.now_ns() + LONG_NS;
        while self.world.now_ns() < end_ns {
            if let Some(event) = self.sides[side].device.poll_event() {
                return Some(event);
            }
            self.step();
        }
        None
    }

    pub fn step(&mut self) {
        self.world.advance_to(self.world.now_ns() + STEP_NS);
        for side in &mut self.sides {
            let mut done = [Completion::EMPTY; 16];
            let count = side.path.poll_burst(&mut done);
            side.seen.extend(&done[..count]);
        }
    }

    pub fn run_for(&mut self, ns: u64) {
        let end_ns = self.world.now_ns() + ns;
        while self.world.now_ns() < end_ns {
            self.step();
        }
    }

    pub fn work(&mut self, op: WorkOp, sges: SgeList) -> WorkRequest {
        self.next_id += 1;
        WorkRequest::new(WorkId(self.next_id), op, sges)
    }

    pub fn post(&mut self, side: usize, qp: QpId, op: WorkOp, sges: SgeList) -> WorkId {
        let work = self.work(op, sges);
        let taken = self.sides[side].path.post_burst(qp, &[work]);
        assert_eq!(taken, 1, "{work:?}");
        work.id
    }

    pub fn receive(&mut self, side: usize, qp: QpId, offset: usize, len: usize) -> WorkId {
        self.next_id += 1;
        let id = WorkId(self.next_id);
        let sge = self.sge(side, offset, len);
        let taken = self.sides[side]
            .path
            .post_receives(qp, &[ReceiveRequest { id, sge }]);
        assert_eq!(taken, 1);
        id
    }

    /// The completion of a request, if it comes in time.
    pub fn wait_for(&mut self, side: usize, id: WorkId, ns: u64) -> Option<Completion> {
        let end_ns = self.world.now_ns() + ns;
        loop {
            let seen = &mut self.sides[side].seen;
            if let Some(at) = seen.iter().position(|done| done.id == id) {
                return seen.remove(at);
            }
            if self.world.now_ns() >= end_ns {
                return None;
            }
            self.step();
        }
    }

    pub fn wait(&mut self, side: usize, id: WorkId) -> Completion {
        let done = self.wait_for(side, id, LONG_NS);
        done.unwrap_or_else(|| panic!("no completion of {id} on side {side}"))
    }

    pub fn run(&mut self, side: usize, qp: QpId, op: WorkOp, sges: SgeList) -> WcStatus {
        let id = self.post(side, qp, op, sges);
        self.wait(side, id).status
    }

    pub fn sge(&self, side: usize, offset: usize, len: usize) -> Sge {
        let Side { arena, region, .. } = &self.sides[side];
        Sge::new(arena.address() + offset as u64, len as u32, region.lkey)
    }

    pub fn one(&self, side: usize, offset: usize, len: usize) -> SgeList {
        SgeList::one(self.sge(side, offset, len))
    }

    /// A place of side 1's memory.
    pub fn remote(&self, offset: usize, rkey: Rkey) -> Remote {
        let address = self.sides[1].arena.address() + offset as u64;
        Remote { address, rkey }
    }

    /// Opens bytes of side 1 through a window of the link.
    pub fn open(&mut self, link: Link, offset: usize, len: usize, rights: Rights) -> Window {
        let side = &self.sides[1];
        let window = side.device.alloc_window(link.0[1]).unwrap();
        let bind = WorkOp::Bind {
            window: window.id,
            region: side.region.id,
            address: side.arena.address() + offset as u64,
            len: len as u64,
            rights,
            rkey: window.rkey,
        };
        let status = self.run(1, link.0[1], bind, SgeList::EMPTY);
        assert_eq!(status, WcStatus::Success);
        window
    }

    pub fn write_op(&self, offset: usize, rkey: Rkey) -> WorkOp {
        WorkOp::Write {
            remote: self.remote(offset, rkey),
            immediate: None,
        }
    }

    pub fn fill(&self, side: usize, offset: usize, len: usize, byte: u8) {
        self.sides[side].arena.dma(offset, len).unwrap().fill(byte);
    }

    /// How many of these bytes are `byte`.
    pub fn count(&self, side: usize, offset: usize, len: usize, byte: u8) -> usize {
        let mut bytes = vec![0; len];
        let range = self.sides[side].arena.dma(offset, len).unwrap();
        range.read_into(&mut bytes).unwrap();
        bytes.iter().filter(|found| **found == byte).count()
    }
}

/// A message without bytes.
pub const NOTHING: WorkOp = WorkOp::Send { immediate: None };
