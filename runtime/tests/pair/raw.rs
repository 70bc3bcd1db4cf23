//! A peer that is no engine: it joins by hand, over the device contract alone, and then sends whatever a test wants.

use std::collections::VecDeque;

use keyfence::EngineEvent;
use keyfence::ids::{Epoch, GrantId, Incarnation, LcoreId, SessionId};
use keyfence::pmd::soft::{Fabric, SoftConfig, SoftDevice, SoftPath};
use keyfence::pmd::*;
use keyfence::wire::{self, Frame, Header, Hello, List, Name, Role};
use keyfence_mempool::sync::Arc;
use keyfence_mempool::{Arena, ArenaConfig};

use super::judged::{Judged, Part, device};
use super::{Side, builder, side};

/// The raw peer's name: it sorts behind the engine's, so the engine connects.
pub const RAW: &str = "raw";

const SLOT_BYTES: usize = 4096;
const RECEIVES: usize = 64;
const SENDS: usize = 64;

/// What the engine's connection request says, in the order of its bytes; all numbers are little-endian.
mod private {
    pub const SOURCE_LCORE: usize = 4;
    pub const TARGET_LCORE: usize = 6;
    pub const NUMBER: usize = 8;
    pub const SESSION: usize = 16;
    pub const CONTEXTS: usize = 20;
    pub const GRANTS: usize = 24;
    pub const NAME_HASH: usize = 28;
    pub const INCARNATION: usize = 36;
}

/// One lane, by its number.
#[derive(Clone, Copy, Debug)]
pub struct RawLane {
    pub qp: QpId,
    pub number: u16,
    pub session: u32,
    pub broken: bool,
    posted: u32,
}

pub struct Raw {
    device: SoftDevice,
    path: SoftPath,
    arena: Arc<Arena>,
    region: Region,
    pd: PdId,
    pub lanes: Vec<RawLane>,
    /// What came: the lane and the bytes.
    pub inbox: VecDeque<(usize, Vec<u8>)>,
    /// The statuses of our own requests.
    pub done: Vec<Completion>,
    sent: u64,
    /// Whether headers tell of receives posted again.
    pub gives_credit: bool,
}

/// An engine with a raw peer, and the books of the engine's device.
pub struct Duel {
    pub side: Side<Judged>,
    pub raw: Raw,
    pub ledger: Arc<check::Ledger>,
    pub now_ns: u64,
    fabric: Fabric,
}

pub use keyfence::pmd::wrap::check;

impl Raw {
    fn new(fabric: &Fabric) -> Self {
        let device = fabric.device(SoftConfig::default()).unwrap();
        let path = device.open_path(LcoreId(0)).unwrap();
        let pd = device.alloc_pd().unwrap();
        let bytes = (SENDS + 4 * RECEIVES) * SLOT_BYTES;
        let arena = Arc::new(Arena::map(&ArenaConfig::new(bytes)).unwrap());
        let access = Access {
            remote: Rights::NONE,
            bind: false,
        };
        let region = device
            .register(pd, &arena, 0..arena.bytes(), access)
            .unwrap();
        device.listen(&format!("local:{RAW}")).unwrap();
        Self {
            device,
            path,
            arena,
            region,
            pd,
            lanes: Vec::new(),
            inbox: VecDeque::new(),
            done: Vec::new(),
            sent: 0,
            gives_credit: true,
        }
    }

    pub fn step(&mut self) {
        while let Some(event) = self.device.poll_event() {
            if let ControlEvent::ConnectRequest {
                request, private, ..
            } = event
            {
                self.accept(request, private);
            }
        }
        let mut done = [Completion::EMPTY; 32];
        let count = self.path.poll_burst(&mut done);
        for done in &done[..count] {
            self.complete(done);
        }
    }

    fn accept(&mut self, request: RequestId, mut private: Vec<u8>) {
        let config = QpConfig {
            pd: self.pd,
            lcore: LcoreId(0),
            send_depth: SENDS as u32,
            receive_depth: RECEIVES as u32,
            max_sge: 1,
            max_inline_bytes: 0,
        };
        let qp = self.device.create_qp(&config).unwrap();
        let word = |at: usize| u16::from_le_bytes([private[at], private[at + 1]]);
        let number = word(private::NUMBER);
        let at = private::SESSION;
        let session = u32::from_le_bytes(private[at..at + 4].try_into().unwrap());
        private.copy_within(
            private::SOURCE_LCORE..private::TARGET_LCORE,
            private::TARGET_LCORE,
        );
        private[private::CONTEXTS..private::CONTEXTS + 4].copy_from_slice(&128_u32.to_le_bytes());
        private[private::GRANTS..private::GRANTS + 4].copy_from_slice(&64_u32.to_le_bytes());
        let hash = name_hash(RAW).to_le_bytes();
        private[private::NAME_HASH..private::NAME_HASH + 8].copy_from_slice(&hash);
        private[private::INCARNATION..private::INCARNATION + 16].copy_from_slice(&[9; 16]);
        self.lanes.push(RawLane {
            qp,
            number,
            session,
            broken: false,
            posted: 0,
        });
        let lane = self.lanes.len() - 1;
        for slot in 0..RECEIVES {
            self.post_receive(lane, slot);
        }
        self.device.accept(request, qp, &private).unwrap();
    }

    fn post_receive(&mut self, lane: usize, slot: usize) {
        let slots = SENDS + (lane % 4) * RECEIVES;
        let address = self.arena.address() + ((slots + slot) * SLOT_BYTES) as u64;
        let id = WorkId(1 << 63 | (lane as u64) << 32 | slot as u64);
        let sge = Sge::new(address, SLOT_BYTES as u32, self.region.lkey);
        let qp = self.lanes[lane].qp;
        self.path.post_receives(qp, &[ReceiveRequest { id, sge }]);
        self.lanes[lane].posted += 1;
    }

    fn complete(&mut self, done: &Completion) {
        if done.id.0 >> 63 == 0 {
            self.done.push(*done);
            return;
        }
        let (lane, slot) = (
            (done.id.0 >> 32) as usize & 0xffff,
            done.id.0 as u32 as usize,
        );
        if !done.is_success() {
            self.lanes[lane].broken = true;
            return;
        }
        let slots = SENDS + (lane % 4) * RECEIVES;
        let mut bytes = vec![0; done.bytes as usize];
        let from = self.arena.dma((slots + slot) * SLOT_BYTES, bytes.len());
        from.unwrap().read_into(&mut bytes).unwrap();
        self.post_receive(lane, slot);
        self.inbox.push_back((lane, bytes));
    }

    /// Sends bytes as one frame, whatever they are.
    pub fn send_bytes(&mut self, lane: usize, bytes: &[u8]) -> bool {
        let at = (self.sent as usize % SENDS) * SLOT_BYTES;
        let slice = self.arena.dma(at, bytes.len()).unwrap();
        slice.write_from(bytes).unwrap();
        let address = self.arena.address() + at as u64;
        let sges = SgeList::one(Sge::new(address, bytes.len() as u32, self.region.lkey));
        let work = WorkRequest::new(WorkId(self.sent), WorkOp::Send { immediate: None }, sges);
        self.sent += 1;
        self.path.post_burst(self.lanes[lane].qp, &[work]) == 1
    }

    /// The runtime's own header on a lane.
    pub fn header(&self, lane: usize) -> Header {
        let posted = self.lanes[lane].posted;
        Header {
            lane_credit: if self.gives_credit {
                posted
            } else {
                RECEIVES as u32
            },
            ..Header::default()
        }
    }

    pub fn send(&mut self, lane: usize, header: &Header, frame: &Frame<'_>) -> bool {
        let mut bytes = [0; 512];
        let len = wire::encode(header, frame, &mut bytes).unwrap();
        self.send_bytes(lane, &bytes[..len])
    }

    /// What an honest peer would say first.
    pub fn hello(&self, lane: usize) -> Hello<'static> {
        Hello {
            role: Role::Accepting,
            incarnation: Incarnation(u128::from_le_bytes([9; 16])),
            session: self.lanes[lane].session,
            lane: self.lanes[lane].number,
            source_lcore: LcoreId(0),
            target_lcore: LcoreId(0),
            frame_bytes: 2048,
            receive_depth: RECEIVES as u32,
            messages_per_context: 8,
            lane_bytes_cap: 1 << 20,
            slowest_rate: 64_000_000_000,
            fence_timeout_ns: 1_000_000_000,
            name: Name::new(RAW).unwrap(),
        }
    }

    /// Writes through a key of the engine's, as an importer would.
    pub fn write(&mut self, lane: usize, grant: &wire::Grant, len: u32) {
        let remote = Remote {
            address: grant.address,
            rkey: grant.rkey,
        };
        let sges = SgeList::one(Sge::new(self.arena.address(), len, self.region.lkey));
        let op = WorkOp::Write {
            remote,
            immediate: None,
        };
        let work = WorkRequest::new(WorkId(1 << 40 | self.sent), op, sges);
        self.sent += 1;
        self.path.post_burst(self.lanes[lane].qp, &[work]);
    }

    /// The grants that came, taken out of the inbox; everything else is dropped.
    pub fn grants(&mut self) -> Vec<(usize, Header, wire::Grant)> {
        let frames = self.inbox.drain(..);
        frames
            .filter_map(|(lane, bytes)| match wire::decode(&bytes) {
                Ok((header, Frame::Grant(grant))) => Some((lane, header, grant)),
                _ => None,
            })
            .collect()
    }

    /// The revokes that came, taken out of the inbox.
    pub fn revokes(&mut self) -> Vec<(usize, Epoch, bool, Vec<GrantId>)> {
        let frames = self.inbox.drain(..);
        frames
            .filter_map(|(lane, bytes)| match wire::decode(&bytes) {
                Ok((
                    _,
                    Frame::Revoke {
                        epoch,
                        last,
                        grants,
                    },
                )) => Some((lane, epoch, last, grants.iter().collect())),
                _ => None,
            })
            .collect()
    }

    pub fn acknowledge(&mut self, lane: usize, epoch: Epoch) {
        let header = self.header(lane);
        self.send(lane, &header, &Frame::Revoked { epoch });
    }

    pub fn drop_import(&mut self, lane: usize, grant: GrantId) {
        let (header, grants) = (self.header(lane), [grant]);
        let grants = List::from(&grants[..]);
        self.send(lane, &header, &Frame::ImportsDropped { grants });
    }
}

/// FNV-1a of 64 bits, as connections carry it.
fn name_hash(name: &str) -> u64 {
    let step = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    name.bytes().fold(0xcbf2_9ce4_8422_2325, step)
}

impl Duel {
    pub fn new(part: Part) -> Self {
        let mut duel = Self::before_hello(part);
        for lane in 0..duel.raw.lanes.len() {
            let (header, hello) = (duel.raw.header(lane), duel.raw.hello(lane));
            duel.raw.send(lane, &header, &Frame::Hello(hello));
        }
        duel.until(|duel| {
            let mut events = duel.side.events.iter();
            events.any(|event| matches!(event, EngineEvent::PeerUp(_)))
        });
        duel
    }

    /// Connected, and nothing said by the raw peer.
    pub fn before_hello(part: Part) -> Self {
        let fabric = Fabric::new();
        let raw = Raw::new(&fabric);
        let (device, ledger, _) = device(&fabric, part.plan);
        let builder = builder("engine", RAW, 1)
            .limits(part.limits)
            .timeouts(part.timeouts);
        let mut duel = Self {
            side: side(builder, device),
            raw,
            ledger,
            now_ns: 1,
            fabric,
        };
        duel.until(|duel| {
            // The first lane's answer leads to the others.
            duel.raw.lanes.len() == 2 && duel.raw.inbox.len() == 2
        });
        duel.raw.inbox.clear();
        duel
    }

    pub fn step(&mut self) {
        self.now_ns += 1_000;
        self.side.step(self.now_ns);
        self.raw.step();
    }

    pub fn steps(&mut self, count: usize) {
        for _ in 0..count {
            self.step();
        }
    }

    pub fn until(&mut self, mut done: impl FnMut(&mut Self) -> bool) {
        for _ in 0..100_000 {
            if done(self) {
                return;
            }
            self.step();
        }
        panic!("not done in 100000 steps: {:?}", self.side.lcores);
    }

    /// The engine's first session, by its own count.
    pub fn session(&self) -> SessionId {
        SessionId(1)
    }

    pub fn fabric(&self) -> &Fabric {
        &self.fabric
    }
}
