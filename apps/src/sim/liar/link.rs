//! The liar's adapter: queue pairs, receives and posts, over the device contract alone.

use keyfence::ids::LcoreId;
use keyfence::pmd::{
    Access, Completion, ControlError, ControlEvent, DataPath, Device, QpConfig, QpId,
    ReceiveRequest, Region, Remote, RequestId, Rights, Sge, SgeList, WorkId, WorkOp, WorkRequest,
};
use keyfence_mempool::sync::Arc;
use keyfence_mempool::{Arena, ArenaConfig, Policy};

use super::oath::Asked;

/// Lanes at a time.
pub const LANES: usize = 24;

/// Receives of a lane, and the bytes of each.
pub const RECEIVES: usize = 8;
pub const RECEIVE_BYTES: usize = 1024;

/// Places for what is sent, used in turn.
const SENDS: usize = 64;
pub const SEND_BYTES: usize = 8192;

/// Where what it grants begins.
const GRANTED: usize = SENDS * SEND_BYTES + LANES * RECEIVES * RECEIVE_BYTES;
pub const GRANTED_BYTES: usize = 4096;

/// In the name of a receive.
const IS_RECEIVE: u64 = 1 << 63;

pub struct Lane {
    pub qp: QpId,
    pub asked: Asked,
    pub request: Vec<u8>,
    pub reply: Vec<u8>,
    /// Our hello was said.
    pub greeted: bool,
    /// Theirs came.
    pub up: bool,
    pub broken: bool,
    released: bool,
    /// Receives posted since it was made, and the slots of those to be posted again.
    pub posted: u32,
    pub empty: Vec<usize>,
    /// What the engine said last of its own.
    pub credit: u32,
    pub sent: u32,
    /// Messages taken by each context of ours.
    pub taken: [u32; 4],
}

/// A frame that came.
pub struct Arrived {
    pub lane: usize,
    pub bytes: Vec<u8>,
}

pub struct Link<D: Device> {
    device: D,
    path: D::Path,
    arena: Arc<Arena>,
    region: Region,
    pd: keyfence::pmd::PdId,
    pub lanes: Vec<Option<Lane>>,
    turn: u64,
}

/// Memory that outlives what is done with it.
pub fn map() -> Result<Arc<Arena>, String> {
    let config = ArenaConfig {
        hugepages: Policy::Off,
        transparent: false,
        lock: Policy::Off,
        ..ArenaConfig::new(GRANTED + GRANTED_BYTES)
    };
    let arena = Arena::map(&config).map_err(|error| error.to_string())?;
    Ok(Arc::new(arena))
}

impl<D: Device> Link<D> {
    pub fn new(device: D, arena: Arc<Arena>, address: &str) -> Result<Self, ControlError> {
        let path = device.open_path(LcoreId(0));
        let path = path.expect("an adapter that was made just now has its paths");
        let pd = device.alloc_pd()?;
        let access = Access {
            remote: Rights {
                atomic: device.caps().atomics,
                ..Rights::ALL
            },
            bind: false,
        };
        let region = device.register(pd, &arena, 0..arena.bytes(), access)?;
        device.listen(address)?;
        Ok(Self {
            device,
            path,
            arena,
            region,
            pd,
            lanes: (0..LANES).map(|_| None).collect(),
            turn: 0,
        })
    }

    pub fn poll_event(&self) -> Option<ControlEvent> {
        self.device.poll_event()
    }

    pub fn window_bounds(&self) -> bool {
        self.device.caps().window_bounds
    }

    /// Memory of ours that others are let write to, with its key.
    pub fn granted(&self) -> Remote {
        Remote {
            address: self.arena.address() + GRANTED as u64,
            rkey: self.region.rkey,
        }
    }

    /// A queue pair with its receives, if there is a place.
    pub fn add_lane(&mut self, request: Vec<u8>) -> Option<usize> {
        let asked = Asked::read(&request)?;
        let at = self.lanes.iter().position(Option::is_none)?;
        let config = QpConfig {
            pd: self.pd,
            lcore: LcoreId(0),
            send_depth: SENDS as u32,
            receive_depth: RECEIVES as u32,
            max_sge: 1,
            max_inline_bytes: 0,
        };
        // Refused by chance now and then.
        let qp = self.device.create_qp(&config).ok()?;
        self.lanes[at] = Some(Lane {
            qp,
            asked,
            request,
            reply: Vec::new(),
            greeted: false,
            up: false,
            broken: false,
            released: false,
            posted: 0,
            empty: (0..RECEIVES).collect(),
            credit: 0,
            sent: 0,
            taken: [0; 4],
        });
        self.post_receives(at);
        Some(at)
    }

    pub fn lane(&self, at: usize) -> Option<&Lane> {
        self.lanes[at].as_ref().filter(|lane| !lane.broken)
    }

    pub fn lane_mut(&mut self, at: usize) -> Option<&mut Lane> {
        self.lanes[at].as_mut().filter(|lane| !lane.broken)
    }

    pub fn lane_by_qp(&self, qp: QpId) -> Option<usize> {
        let is = |lane: &Option<Lane>| lane.as_ref().is_some_and(|lane| lane.qp == qp);
        self.lanes.iter().position(is)
    }

    /// Takes the engine up on its offer with this reply.
    pub fn accept(&mut self, request: RequestId, at: usize, reply: Vec<u8>) {
        let Some(lane) = self.lanes[at].as_mut() else {
            return;
        };
        lane.broken = self.device.accept(request, lane.qp, &reply).is_err();
        lane.reply = reply;
    }

    pub fn reject(&self, request: RequestId) {
        // One that can't be refused times out.
        let _ = self.device.reject(request, &[]);
    }

    pub fn connect(&mut self, at: usize, address: &str, words: &[u8]) {
        if let Some(lane) = self.lanes[at].as_mut() {
            lane.broken = self.device.start_connect(lane.qp, address, words).is_err();
        }
    }

    pub fn break_lane(&mut self, at: usize) {
        if let Some(lane) = self.lanes[at].as_mut() {
            lane.broken = true;
            // It is destroyed all the same.
            let _ = self.device.error_qp(lane.qp);
        }
    }

    /// What has come since. Of a queue pair that failed no more is taken.
    pub fn poll(&mut self, arrived: &mut Vec<Arrived>) -> bool {
        let mut done = [Completion::EMPTY; 32];
        let count = self.path.poll_burst(&mut done);
        for done in &done[..count] {
            let Some(at) = self.lane_by_qp(done.qp) else {
                continue;
            };
            let Some(lane) = self.lanes[at].as_mut() else {
                continue;
            };
            if !done.is_success() {
                lane.broken = true;
            } else if done.id.0 & IS_RECEIVE != 0 {
                let slot = (done.id.0 & !IS_RECEIVE) as usize;
                lane.empty.push(slot);
                let mut bytes = vec![0; done.bytes as usize];
                let from = self.arena.dma(receive_place(at, slot), bytes.len());
                let read = from.map(|from| from.read_into(&mut bytes));
                read.expect("a receive is in the arena")
                    .expect("it has as many bytes");
                arrived.push(Arrived { lane: at, bytes });
            }
        }
        count > 0
    }

    /// Posts what was taken again.
    pub fn post_receives(&mut self, at: usize) {
        let Some(lane) = self.lanes[at].as_mut() else {
            return;
        };
        for slot in lane.empty.drain(..) {
            let address = self.arena.address() + receive_place(at, slot) as u64;
            let sge = Sge::new(address, RECEIVE_BYTES as u32, self.region.lkey);
            let id = WorkId(IS_RECEIVE | slot as u64);
            let receive = ReceiveRequest { id, sge };
            lane.posted += self.path.post_receives(lane.qp, &[receive]) as u32;
        }
    }

    /// Sends bytes as one frame, whatever they are. Returns whether they were taken.
    pub fn send(&mut self, at: usize, bytes: &[u8]) -> bool {
        let place = (self.turn as usize % SENDS) * SEND_BYTES;
        let slice = self.arena.dma(place, bytes.len());
        let written = slice.map(|slice| slice.write_from(bytes));
        written
            .expect("a place is in the arena")
            .expect("it has as many bytes");
        let sent = self.post(at, place, bytes.len(), WorkOp::Send { immediate: None });
        if let Some(lane) = self.lanes[at].as_mut() {
            lane.sent += u32::from(sent);
        }
        sent
    }

    /// An access of the engine's memory from or to bytes of ours.
    pub fn access(&mut self, at: usize, op: WorkOp, len: usize) -> bool {
        self.post(at, GRANTED, len, op)
    }

    fn post(&mut self, at: usize, place: usize, len: usize, op: WorkOp) -> bool {
        let Some(qp) = self.lane(at).map(|lane| lane.qp) else {
            return false;
        };
        let address = self.arena.address() + place as u64;
        let sges = SgeList::one(Sge::new(address, len as u32, self.region.lkey));
        let work = WorkRequest::new(WorkId(self.turn), op, sges);
        self.turn += 1;
        self.path.post_burst(qp, &[work]) == 1
    }

    /// Ends queue pairs that failed; a call that did not is made again.
    pub fn reap(&mut self) {
        for entry in &mut self.lanes {
            let Some(lane) = entry.as_mut().filter(|lane| lane.broken) else {
                continue;
            };
            if !lane.released {
                lane.released = true;
                self.path.release_qp(lane.qp);
            }
            match self.device.destroy_qp(lane.qp) {
                Ok(()) | Err(ControlError::NoSuchQp(_)) => *entry = None,
                Err(_) => {}
            }
        }
    }
}

fn receive_place(lane: usize, slot: usize) -> usize {
    SENDS * SEND_BYTES + (lane * RECEIVES + slot) * RECEIVE_BYTES
}
