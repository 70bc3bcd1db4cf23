//! A peer that is no engine: it joins by hand, over the device contract alone, and then sends whatever a test wants.

use std::collections::VecDeque;

use keyfence::ids::{
    ContextId, Epoch, GrantId, Incarnation, LcoreId, PeerId, RemoteContext, SessionId,
};
use keyfence::pmd::soft::{Fabric, SoftConfig, SoftDevice, SoftPath};
use keyfence::pmd::*;
use keyfence::wire::{self, Frame, Header, Hello, List, Name, Role};
use keyfence::{EngineEvent, JoinRefusal, Secret};
use keyfence_mempool::sync::Arc;
use keyfence_mempool::{Arena, ArenaConfig};

use super::judged::{Judged, Part, device_of};
use super::oath::{Oath, request, u32_at};
use super::switched::Switches;
use super::{Side, side, with_secret};

const ENGINE: &str = "engine";

/// The raw peer's name: it sorts behind the engine's, so the engine connects.
pub const RAW: &str = "raw";

const SLOT_BYTES: usize = 4096;
const RECEIVES: usize = 64;
const SENDS: usize = 64;

/// Its incarnation.
const INCARNATION: [u8; 16] = [9; 16];

/// One lane, by its number.
#[derive(Clone, Debug)]
pub struct RawLane {
    pub qp: QpId,
    pub number: u16,
    pub session: u32,
    pub broken: bool,
    /// What was said with the connection.
    pub request: Vec<u8>,
    pub reply: Vec<u8>,
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
    pub oath: Oath,
    /// The number of the reply that is said next, over and over, unless one is to be said as it is.
    pub nonce: u8,
    pub says_reply: Option<Vec<u8>>,
    /// The private data of refusals of what we asked.
    pub rejected: Vec<Vec<u8>>,
}

/// An engine with a raw peer, and the books of the engine's device.
pub struct Duel {
    pub side: Side<Judged>,
    pub raw: Raw,
    pub ledger: Arc<check::Ledger>,
    pub switches: Arc<Switches>,
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
            oath: Oath::none(ENGINE, RAW),
            nonce: 7,
            says_reply: None,
            rejected: Vec::new(),
        }
    }

    pub fn step(&mut self) {
        while let Some(event) = self.device.poll_event() {
            match event {
                ControlEvent::ConnectRequest {
                    request, private, ..
                } => self.accept(request, private),
                ControlEvent::Connected { qp, private } => {
                    let lane = self.lanes.iter_mut().find(|lane| lane.qp == qp);
                    // On the accepting side nothing comes with it.
                    if let Some(lane) = lane.filter(|lane| lane.reply.is_empty()) {
                        lane.reply = private;
                    }
                }
                ControlEvent::Rejected { private, .. } => self.rejected.push(private),
            }
        }
        let mut done = [Completion::EMPTY; 32];
        let count = self.path.poll_burst(&mut done);
        for done in &done[..count] {
            self.complete(done);
        }
    }

    fn accept(&mut self, id: RequestId, request: Vec<u8>) {
        let lane = self.add_lane(request);
        let request = &self.lanes[lane].request;
        let qp = self.lanes[lane].qp;
        let reply = self.oath.reply(request, qp.0, INCARNATION, self.nonce);
        let reply = self.says_reply.take().unwrap_or(reply);
        self.lanes[lane].reply = reply.clone();
        self.device.accept(id, qp, &reply).unwrap();
    }

    /// Asks the engine for a lane by hand.
    pub fn ask(&mut self, session: u32, number: u8) -> usize {
        let request = self.oath.request(session, 0, number, INCARNATION);
        self.ask_as(request)
    }

    /// With these words.
    pub fn ask_as(&mut self, request: Vec<u8>) -> usize {
        let lane = self.add_lane(request);
        let address = format!("local:{}", self.oath.accepting);
        let RawLane { qp, request, .. } = &mut self.lanes[lane];
        self.device.start_connect(*qp, &address, request).unwrap();
        lane
    }

    /// Ends a lane at this end.
    pub fn break_lane(&mut self, lane: usize) {
        self.device.error_qp(self.lanes[lane].qp).unwrap();
    }

    fn add_lane(&mut self, request: Vec<u8>) -> usize {
        let config = QpConfig {
            pd: self.pd,
            lcore: LcoreId(0),
            send_depth: SENDS as u32,
            receive_depth: RECEIVES as u32,
            max_sge: 1,
            max_inline_bytes: 0,
        };
        let qp = self.device.create_qp(&config).unwrap();
        self.lanes.push(RawLane {
            qp,
            number: (request[request::LANE] & 0xf).into(),
            session: u32_at(&request, request::SESSION),
            broken: false,
            request,
            reply: Vec::new(),
            posted: 0,
        });
        let lane = self.lanes.len() - 1;
        for slot in 0..RECEIVES {
            self.post_receive(lane, slot);
        }
        lane
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
        let asks = self.oath.connecting == RAW;
        Hello {
            role: if asks {
                Role::Connecting
            } else {
                Role::Accepting
            },
            incarnation: Incarnation(u128::from_le_bytes(INCARNATION)),
            session: self.lanes[lane].session,
            lane: self.lanes[lane].number,
            source_lcore: LcoreId(0),
            target_lcore: LcoreId(0),
            siblings: 2,
            lcores: 1,
            repair: 0,
            // As it was said with the connection.
            qp: if asks { 0 } else { self.lanes[lane].qp.0 },
            contexts: 128,
            grants: 64,
            frame_bytes: 2048,
            receive_depth: RECEIVES as u32,
            messages_per_context: 8,
            lane_bytes_cap: 1 << 20,
            slowest_rate: 64_000_000_000,
            fence_timeout_ns: 1_000_000_000,
            mac: [0; 16],
            name: Name::new(RAW).unwrap(),
        }
    }

    /// Says a hello with the MAC that belongs to it.
    pub fn greet(&mut self, lane: usize, header: &Header, hello: Hello<'_>) -> bool {
        let RawLane { request, reply, .. } = &self.lanes[lane];
        let signed = self.oath.sign(request, reply, hello);
        self.send(lane, header, &Frame::Hello(signed))
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

    /// A grant of memory of ours that the engine may really use.
    pub fn opened(&self) -> wire::Grant {
        let (len, access) = (
            64,
            Access {
                remote: Rights::READ_WRITE,
                bind: false,
            },
        );
        let region = self.device.register(self.pd, &self.arena, 0..len, access);
        wire::Grant {
            grant: GrantId {
                slot: 0,
                generation: 1,
            },
            rkey: region.unwrap().rkey,
            rights: Rights::READ_WRITE,
            address: self.arena.address(),
            len: len as u64,
            lease_ns: wire::NO_LEASE,
        }
    }

    /// The grants that came, taken out of the inbox; everything else is dropped.
    pub fn grants(&mut self) -> Vec<(usize, Header, wire::Grant)> {
        let frames = self.inbox.drain(..);
        frames
            .flat_map(|(lane, bytes)| match wire::decode(&bytes) {
                Ok((header, Frame::Grants { grants })) => {
                    grants.iter().map(|grant| (lane, header, grant)).collect()
                }
                _ => Vec::new(),
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

impl Duel {
    /// A context of the raw peer's, as the engine names it.
    pub fn holder(&self, slot: u16) -> RemoteContext {
        RemoteContext {
            peer: PeerId(0),
            session: self.session(),
            id: ContextId {
                lcore: LcoreId(0),
                slot,
                generation: 1,
            },
        }
    }

    pub fn new(part: Part) -> Self {
        let mut duel = Self::before_hello(part);
        let mut greeted = 0;
        duel.until(|duel| {
            // The first one leads to the others.
            while greeted < duel.raw.lanes.len() {
                duel.greet(greeted);
                greeted += 1;
            }
            duel.ups() == 1
        });
        duel.raw.inbox.clear();
        duel
    }

    /// The first lane is connected, and nothing said on it by the raw peer.
    pub fn before_hello(part: Part) -> Self {
        let mut duel = Self::apart(part, ENGINE, None);
        duel.until(|duel| duel.raw.lanes.len() == 1 && duel.raw.inbox.len() == 1);
        duel.raw.inbox.clear();
        duel
    }

    /// Nothing said. The engine asks if its name sorts before the raw peer's; a secret is shared by both.
    pub fn apart(part: Part, engine: &str, secret: Option<&[u8]>) -> Self {
        let fabric = Fabric::new();
        let mut raw = Raw::new(&fabric);
        let (device, ledger, switches) = device_of(&fabric, part.plan, part.soft);
        let (connecting, accepting) = if engine < RAW {
            (engine, RAW)
        } else {
            (RAW, engine)
        };
        raw.oath = Oath {
            secret: secret.unwrap_or_default().to_vec(),
            ..Oath::none(connecting, accepting)
        };
        let shared = secret.map(|bytes| Secret::new(bytes).unwrap());
        // The raw peer says that it has one lcore, and may have two.
        let builder = with_secret(engine, RAW, 2, shared)
            .cpus(&[0])
            .limits(part.limits)
            .timeouts(part.timeouts);
        Self {
            side: side(builder, device),
            raw,
            ledger,
            switches,
            now_ns: 1,
            fabric,
        }
    }

    /// The raw peer's honest hello.
    pub fn greet(&mut self, lane: usize) {
        let (header, hello) = (self.raw.header(lane), self.raw.hello(lane));
        self.raw.greet(lane, &header, hello);
    }

    /// Sessions that the engine has announced.
    pub fn ups(&self) -> usize {
        let events = self.side.events.iter();
        let up = |event: &&EngineEvent| matches!(event, EngineEvent::PeerUp(_));
        events.filter(up).count()
    }

    /// Why joins have failed, as the engine has told.
    pub fn refusals(&self) -> Vec<JoinRefusal> {
        let refused = |event: &EngineEvent| match event {
            EngineEvent::JoinRefused { why, .. } => Some(why.clone()),
            _ => None,
        };
        self.side.events.iter().filter_map(refused).collect()
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
