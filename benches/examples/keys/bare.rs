//! The device alone: registrations, and a chain of invalidations.

use keyfence::pmd::{
    Access, Completion, ControlEvent, DataPath, Device, LcoreId, PdId, QpConfig, QpId, Region,
    Rights, SgeList, Window, WorkId, WorkOp, WorkRequest,
};
use keyfence_mempool::arena::{Arena, ArenaConfig, Policy};
use keyfence_mempool::sync::Arc;

use super::{KEYS, MOST_BYTES, Places};

const DEPTH: u32 = 2 * KEYS as u32;

/// What the memory that is registered lies in.
#[derive(Clone, Copy)]
pub enum Pages {
    /// What an engine's arena has: hugepages if there are any.
    Engines,
    /// Of 4 KiB.
    Plain,
}

/// Two connected queue pairs; keys are made on the first.
pub struct Bare<D: Device> {
    sides: [Side<D>; 2],
    arena: Arc<Arena>,
    /// Of plain pages, as the memory of a program that takes no trouble over it.
    plain: Arc<Arena>,
    region: Region,
    windows: Vec<Window>,
    tag: u8,
}

struct Side<D: Device> {
    device: D,
    path: D::Path,
    pd: PdId,
    qp: QpId,
}

impl<D: Device> Bare<D> {
    pub fn new(places: &Places, open: impl Fn() -> D) -> Self {
        let mut sides = [(); 2].map(|()| Side::new(open()));
        connect(&mut sides, &places.bare);
        let map = |config: &ArenaConfig| {
            let arena = Arena::map(config).expect("the machine has a few MiB");
            Arc::new(arena)
        };
        let arena = map(&ArenaConfig::new(MOST_BYTES));
        let plain = map(&ArenaConfig {
            transparent: false,
            hugepages: Policy::Off,
            ..ArenaConfig::new(MOST_BYTES)
        });
        let access = Access {
            remote: Rights::NONE,
            bind: true,
        };
        let Side { device, pd, qp, .. } = &sides[0];
        let region = device.register(*pd, &arena, 0..arena.bytes(), access);
        let region = region.expect("an arena can be registered");
        let windows = (0..KEYS).map(|_| device.alloc_window(*qp).expect("a window"));
        Self {
            windows: windows.collect(),
            sides,
            arena,
            plain,
            region,
            tag: 0,
        }
    }

    pub fn register_all(&self, pages: Pages, bytes: usize) -> Vec<Region> {
        let access = Access {
            remote: Rights::READ_WRITE,
            bind: false,
        };
        let side = &self.sides[0];
        let arena = match pages {
            Pages::Engines => &self.arena,
            Pages::Plain => &self.plain,
        };
        let register = |_| {
            let region = side.device.register(side.pd, arena, 0..bytes, access);
            region.expect("a region")
        };
        (0..KEYS).map(register).collect()
    }

    pub fn deregister_all(&self, regions: &[Region]) {
        for region in regions {
            let done = self.sides[0].device.deregister(region.id);
            done.expect("nobody uses it");
        }
    }

    pub fn bind_all(&mut self, bytes: usize) {
        self.tag = self.tag.wrapping_add(1);
        self.chain(|bare, at| WorkOp::Bind {
            window: bare.windows[at].id,
            region: bare.region.id,
            address: bare.arena.address(),
            len: bytes as u64,
            rights: Rights::READ_WRITE,
            rkey: bare.windows[at].rkey.with_tag(bare.tag),
        });
    }

    pub fn invalidate_all(&mut self) {
        self.chain(|bare, at| WorkOp::Invalidate {
            rkey: bare.windows[at].rkey.with_tag(bare.tag),
        });
    }

    /// Posts one request a window, the last one signaled, and waits for that.
    fn chain(&mut self, op: impl Fn(&Self, usize) -> WorkOp) {
        let request = |at: usize| {
            let id = WorkId(at as u64);
            let work = WorkRequest::new(id, op(self, at), SgeList::new(&[]).expect("empty"));
            work.signaled(at == KEYS - 1)
        };
        let chain: Vec<WorkRequest> = (0..KEYS).map(request).collect();
        let mut done = [Completion::EMPTY; 16];
        let (mut posted, mut ended) = (0, false);
        while !ended {
            let [side, other] = &mut self.sides;
            posted += side.path.post_burst(side.qp, &chain[posted..]);
            let polled = side.path.poll_burst(&mut done);
            for done in &done[..polled] {
                assert!(done.is_success(), "{done:?}");
                ended |= done.id == WorkId(KEYS as u64 - 1);
            }
            other.path.poll_burst(&mut []);
            // What a device has to do beside its paths.
            assert_eq!(side.device.poll_event(), None);
        }
    }
}

impl<D: Device> Side<D> {
    fn new(device: D) -> Self {
        let path = device.open_path(LcoreId(0)).expect("its first path");
        let pd = device.alloc_pd().expect("its first domain");
        let config = QpConfig {
            pd,
            lcore: LcoreId(0),
            send_depth: DEPTH,
            receive_depth: 16,
            max_sge: 1,
            max_inline_bytes: 0,
        };
        let qp = device.create_qp(&config).expect("its first queue pair");
        Self {
            device,
            path,
            pd,
            qp,
        }
    }
}

fn connect<D: Device>(sides: &mut [Side<D>; 2], address: &str) {
    let [asks, answers] = sides;
    answers.device.listen(address).expect("a free address");
    let started = asks.device.start_connect(asks.qp, address, b"");
    started.expect("an address that is listened on");
    let mut connected = 0;
    while connected < 2 {
        for side in [&mut *asks, &mut *answers] {
            match side.device.poll_event() {
                Some(ControlEvent::ConnectRequest { request, .. }) => {
                    let accepted = side.device.accept(request, side.qp, b"");
                    accepted.expect("it was asked for");
                }
                Some(ControlEvent::Connected { .. }) => connected += 1,
                Some(event) => panic!("{event:?} while connecting"),
                None => {}
            }
            side.path.poll_burst(&mut []);
        }
    }
}
