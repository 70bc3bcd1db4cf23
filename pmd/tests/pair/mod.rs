//! Two engines' worth of software adapter, connected, stepped by one thread unless a test takes the sides apart.
#![allow(dead_code)] // Each test file uses a part.

use keyfence_mempool::arena::{Arena, ArenaConfig, PageSize, Policy};
use keyfence_mempool::sync::Arc;
use keyfence_pmd::soft::{Fabric, SoftConfig, SoftDevice, SoftPath};
use keyfence_pmd::*;

/// Bytes of each side's arena.
pub const ARENA_BYTES: usize = 4 << 20;
/// Polls after which a test that waits has failed. A poll moves at least a slice, so anything ends within these.
pub const POLL_LIMIT: usize = 20_000;

/// One adapter with a path, an arena and a queue pair.
pub struct Side {
    pub device: SoftDevice,
    pub path: SoftPath,
    pub arena: Arc<Arena>,
    pub pd: PdId,
    pub region: Region,
    pub qp: QpId,
    /// Everything polled and not yet taken.
    pub done: Vec<Completion>,
}

/// Two connected sides.
pub struct Pair {
    pub fabric: Fabric,
    pub a: Side,
    pub b: Side,
}

pub const QP: QpConfig = QpConfig {
    pd: PdId(0),
    lcore: LcoreId(0),
    send_depth: 64,
    receive_depth: 64,
    max_sge: MAX_SGE,
    max_inline_bytes: 64,
};

impl Pair {
    pub fn new() -> Self {
        Self::with(SoftConfig::TEST_MIN, QP)
    }

    pub fn with(config: SoftConfig, qp: QpConfig) -> Self {
        let fabric = Fabric::new();
        let mut a = Side::new(&fabric, config.clone(), qp);
        let mut b = Side::new(&fabric, config, qp);
        b.device.listen("local:b").unwrap();
        connect(&mut a, &mut b);
        Self { fabric, a, b }
    }

    /// Polls both sides once.
    pub fn step(&mut self) {
        self.a.poll();
        self.b.poll();
    }

    /// Polls both sides until `a` has a completion, and takes it.
    pub fn wait_a(&mut self) -> Completion {
        for _ in 0..POLL_LIMIT {
            if !self.a.done.is_empty() {
                return self.a.done.remove(0);
            }
            self.step();
        }
        panic!("no completion on a");
    }

    /// The same for `b`.
    pub fn wait_b(&mut self) -> Completion {
        for _ in 0..POLL_LIMIT {
            if !self.b.done.is_empty() {
                return self.b.done.remove(0);
            }
            self.step();
        }
        panic!("no completion on b");
    }

    /// Opens `len` bytes of b's arena at `offset` for a.
    pub fn open(&mut self, offset: usize, len: u64, rights: Rights) -> (Window, Remote) {
        self.b.open(offset, len, rights)
    }

    /// Posts one request on a and waits for its completion.
    pub fn run_a(&mut self, work: WorkRequest) -> Completion {
        assert_eq!(self.a.post(work), 1);
        let done = self.wait_a();
        assert_eq!(done.id, work.id);
        done
    }
}

impl Side {
    pub fn new(fabric: &Fabric, config: SoftConfig, qp: QpConfig) -> Self {
        let device = fabric.device(config).unwrap();
        let path = device.open_path(LcoreId(0)).unwrap();
        let arena = arena(ARENA_BYTES);
        let pd = device.alloc_pd().unwrap();
        let access = Access {
            remote: Rights::NONE,
            bind: true,
        };
        let region = device.register(pd, &arena, 0..ARENA_BYTES, access).unwrap();
        let qp = device.create_qp(&QpConfig { pd, ..qp }).unwrap();
        Self {
            device,
            path,
            arena,
            pd,
            region,
            qp,
            done: Vec::new(),
        }
    }

    pub fn poll(&mut self) -> usize {
        let mut done = [Completion::EMPTY; 16];
        let count = self.path.poll_burst(&mut done);
        self.done.extend_from_slice(&done[..count]);
        count
    }

    pub fn post(&mut self, work: WorkRequest) -> usize {
        self.path.post_burst(self.qp, &[work])
    }

    /// The list of one entry for this side's arena.
    pub fn list(&self, offset: usize, len: u32) -> SgeList {
        SgeList::one(self.sge(offset, len))
    }

    pub fn sge(&self, offset: usize, len: u32) -> Sge {
        Sge::new(self.arena.address() + offset as u64, len, self.region.lkey)
    }

    pub fn receive(&mut self, id: u64, offset: usize, len: u32) -> usize {
        let sge = self.sge(offset, len);
        let id = WorkId(id);
        self.path
            .post_receives(self.qp, &[ReceiveRequest { id, sge }])
    }

    /// Binds a new window of this side's queue pair.
    pub fn open(&mut self, offset: usize, len: u64, rights: Rights) -> (Window, Remote) {
        let window = self.device.alloc_window(self.qp).unwrap();
        let done = self.bind(&window, window.rkey, offset, len, rights);
        assert!(done.is_success(), "{done:?}");
        let address = self.arena.address() + offset as u64;
        let rkey = window.rkey;
        (window, Remote { address, rkey })
    }

    pub fn bind(
        &mut self,
        window: &Window,
        rkey: Rkey,
        offset: usize,
        len: u64,
        rights: Rights,
    ) -> Completion {
        let op = WorkOp::Bind {
            window: window.id,
            region: self.region.id,
            address: self.arena.address() + offset as u64,
            len,
            rights,
            rkey,
        };
        self.run_local(op)
    }

    pub fn invalidate(&mut self, rkey: Rkey) -> Completion {
        self.run_local(WorkOp::Invalidate { rkey })
    }

    /// Runs a bind or an invalidation: the peer is not needed.
    fn run_local(&mut self, op: WorkOp) -> Completion {
        let id = WorkId(u64::MAX - 1);
        assert_eq!(self.post(WorkRequest::new(id, op, SgeList::EMPTY)), 1);
        for _ in 0..64 {
            self.poll();
            if let Some(at) = self.done.iter().position(|done| done.id == id) {
                return self.done.remove(at);
            }
        }
        panic!("{op:?} does not complete");
    }

    pub fn fill(&self, offset: usize, bytes: &[u8]) {
        self.arena
            .dma(offset, bytes.len())
            .unwrap()
            .write_from(bytes)
            .unwrap();
    }

    pub fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.arena
            .dma(offset, len)
            .unwrap()
            .read_into(&mut bytes)
            .unwrap();
        bytes
    }

    pub fn word(&self, offset: usize) -> u64 {
        self.arena.dma(offset, 8).unwrap().load_u64(0).unwrap()
    }

    /// Every completion of a queue pair in error.
    pub fn drain(&mut self) -> Vec<Completion> {
        for _ in 0..64 {
            self.poll();
        }
        std::mem::take(&mut self.done)
    }
}

/// Connects a's queue pair to b's; b listens on "local:b".
pub fn connect(a: &mut Side, b: &mut Side) {
    connect_qps(a, b, a.qp, b.qp);
}

pub fn connect_qps(a: &Side, b: &Side, a_qp: QpId, b_qp: QpId) {
    a.device.start_connect(a_qp, "local:b", b"hi").unwrap();
    let Some(ControlEvent::ConnectRequest { request, .. }) = b.device.poll_event() else {
        panic!("no connection request");
    };
    b.device.accept(request, b_qp, b"yes").unwrap();
    let connected = |qp, private: &[u8]| ControlEvent::Connected {
        qp,
        private: private.to_vec(),
    };
    assert_eq!(a.device.poll_event(), Some(connected(a_qp, b"yes")));
    assert_eq!(b.device.poll_event(), Some(connected(b_qp, b"")));
}

pub fn arena(bytes: usize) -> Arc<Arena> {
    let config = ArenaConfig {
        page_size: PageSize::Base4KiB,
        transparent: false,
        hugepages: Policy::Off,
        lock: Policy::Off,
        ..ArenaConfig::new(bytes)
    };
    Arc::new(Arena::map(&config).unwrap())
}

pub fn write(id: u64, remote: Remote, list: SgeList) -> WorkRequest {
    let op = WorkOp::Write {
        remote,
        immediate: None,
    };
    WorkRequest::new(WorkId(id), op, list)
}

pub fn read(id: u64, remote: Remote, list: SgeList) -> WorkRequest {
    WorkRequest::new(WorkId(id), WorkOp::Read { remote }, list)
}

pub fn send(id: u64, list: SgeList) -> WorkRequest {
    WorkRequest::new(WorkId(id), WorkOp::Send { immediate: None }, list)
}

/// Bytes that differ from their neighbours and between seeds.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut word = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        bytes.extend_from_slice(&word.to_ne_bytes());
    }
    bytes.truncate(len);
    bytes
}
