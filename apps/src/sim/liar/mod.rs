//! A peer that is no engine and lies: it joins by the rules, looks contexts up and takes grants, and then says and does what its dice say. It is seen by nobody but the
//! engines, whose books must be right all the same.

mod breaks;
mod hears;
mod lies;
mod link;
mod memory;
mod oath;
mod temper;

use keyfence::ids::{Incarnation, LcoreId};
use keyfence::pmd::ControlEvent;
use keyfence::pmd::sim::{SimDevice, World};
use keyfence::wire::{self, Frame, Header, Hello, Name, Role, WireContext};
use keyfence_mempool::Arena;
use keyfence_mempool::sync::Arc;

use super::books::Shared;
use super::harm::{Harm, Harms};
use super::plan::{MS, US};
use super::tap::{Tap, Tape};
use crate::random::Random;
use link::{Link, RECEIVE_BYTES, RECEIVES};
use memory::Memory;
use oath::{Asked, Oath};
#[cfg(test)]
pub use temper::Break;
pub use temper::Temper;

/// From one sign of life to the next; it brings credits, too.
const ALIVE_EVERY_NS: u64 = 100 * US;

/// Messages that its contexts say they take ahead of their reading.
const MESSAGES: u32 = 8;

pub struct Liar {
    world: World,
    books: Shared,
    tape: Tape,
    host: usize,
    name: &'static str,
    /// The engines that it has sessions with.
    engines: Vec<&'static str>,
    temper: Temper,
    dice: Random,
    arena: Arc<Arena>,
    /// `None` while it is away.
    link: Option<Link<Tap<SimDevice>>>,
    incarnation: u128,
    /// Of all its contexts; another once in a while.
    generation: u32,
    /// Of this life and those before.
    memory: Memory,
    now_ns: u64,
    alive_ns: u64,
    stopped_until_ns: u64,
    starved_until_ns: u64,
    silenced: bool,
    /// What it has done.
    pub harms: Harms,
}

impl Liar {
    /// One that comes with its first step.
    pub fn new(
        (world, books, tape): (World, Shared, Tape),
        names: &[&'static str],
        temper: Temper,
        seed: u64,
    ) -> Result<Self, String> {
        let (name, engines) = names.split_last().ok_or("a liar needs a name")?;
        Ok(Self {
            world,
            books,
            tape,
            host: engines.len(),
            name,
            engines: engines.to_vec(),
            temper,
            dice: Random::new(seed, 5),
            arena: link::map()?,
            link: None,
            incarnation: 0,
            generation: 1,
            memory: Memory::default(),
            now_ns: 0,
            alive_ns: 0,
            stopped_until_ns: 0,
            starved_until_ns: 0,
            silenced: false,
            harms: Harms::default(),
        })
    }

    /// Whether it is away, and to come back now.
    pub fn is_due(&self, now_ns: u64) -> bool {
        self.link.is_none() && !self.silenced && self.stopped_until_ns <= now_ns
    }

    /// Comes under its name, as a process that was started. Nothing may go wrong at a start.
    pub fn start(&mut self) -> Result<(), String> {
        let device = self.world.device(self.name);
        self.books.open().started_without_books(self.host);
        let host = (self.host, u32::MAX);
        let device = Tap::new(device, host, self.books.clone(), self.tape.clone());
        let address = format!("local:{}", self.name);
        let link = Link::new(device, Arc::clone(&self.arena), &address);
        self.link = Some(link.map_err(|error| format!("the liar: {error}"))?);
        self.incarnation = u128::from(self.dice.bits()) << 64 | u128::from(self.dice.bits());
        Ok(())
    }

    /// Says nothing more: it is gone, or it is there and does nothing.
    pub fn silence(&mut self) {
        self.silenced = true;
        if self.temper.dies {
            self.link = None;
        }
    }

    /// Takes what came, answers, and lies. Returns whether it had anything to do.
    pub fn step(&mut self, now_ns: u64) -> bool {
        self.now_ns = now_ns;
        if self.silenced || self.stopped_until_ns > now_ns || self.link.is_none() {
            return false;
        }
        let mut busy = self.take_events();
        busy |= self.take_frames();
        self.keep_lanes();
        if self.dice.once_in(self.temper.lies_once_in) && self.lie() {
            self.harms.add(Harm::LyingPeer);
            busy = true;
        }
        if self.dice.once_in(self.temper.breaks_once_in) && self.break_a_rule() {
            self.harms.add(Harm::LyingPeer);
            busy = true;
        }
        busy
    }

    fn take_events(&mut self) -> bool {
        let mut any = false;
        while let Some(event) = self.link.as_ref().and_then(Link::poll_event) {
            any = true;
            match event {
                ControlEvent::ConnectRequest {
                    request, private, ..
                } => self.accept(request, private),
                ControlEvent::Connected { qp, .. } => {
                    let at = self.link.as_ref().and_then(|link| link.lane_by_qp(qp));
                    if let Some(at) = at {
                        self.greet(at);
                    }
                }
                ControlEvent::Rejected { qp, .. } => {
                    let Some(link) = &mut self.link else { continue };
                    if let Some(at) = link.lane_by_qp(qp) {
                        link.break_lane(at);
                    }
                }
            }
        }
        any
    }

    fn accept(&mut self, request: keyfence::pmd::RequestId, private: Vec<u8>) {
        let nonce = u128::from(self.dice.bits());
        let connecting = Asked::read(&private).and_then(|asked| self.engine_of(&asked));
        let Some(link) = &mut self.link else { return };
        let at = connecting.and_then(|_| link.add_lane(private.clone()));
        let (Some(connecting), Some(at)) = (connecting, at) else {
            return link.reject(request);
        };
        let oath = Oath {
            connecting,
            accepting: self.name,
        };
        let qp = link.lanes[at].as_ref().map_or(0, |lane| lane.qp.0);
        let reply = oath.reply(&private, qp, self.incarnation, nonce);
        link.accept(request, at, reply);
        self.memory.requests.keep(private);
    }

    fn engine_of(&self, asked: &Asked) -> Option<&'static str> {
        let mut engines = self.engines.iter().copied();
        engines.find(|name| oath::tag(name) == asked.from)
    }

    /// The hello of an honest peer.
    fn greet(&mut self, at: usize) {
        let (incarnation, name) = (self.incarnation, self.name);
        let Some(lane) = self.link.as_ref().and_then(|link| link.lane(at)) else {
            return;
        };
        let asked = lane.asked;
        let Some(connecting) = self.engine_of(&asked).filter(|_| !lane.reply.is_empty()) else {
            // It is we who asked.
            return;
        };
        let hello = Hello {
            role: Role::Accepting,
            incarnation: Incarnation(incarnation),
            session: asked.session,
            lane: asked.number,
            source_lcore: LcoreId(0),
            target_lcore: LcoreId(asked.source_lcore),
            siblings: asked.siblings,
            lcores: 1,
            repair: asked.repair,
            qp: lane.qp.0,
            contexts: 64,
            grants: 256,
            frame_bytes: RECEIVE_BYTES as u32,
            receive_depth: RECEIVES as u32,
            messages_per_context: MESSAGES,
            lane_bytes_cap: 1 << 16,
            slowest_rate: 1 << 40,
            fence_timeout_ns: 1000 * MS,
            mac: [0; 16],
            name: Name::new(name).expect("a host's name is one"),
        };
        let oath = Oath {
            connecting,
            accepting: name,
        };
        let signed = oath.sign(&lane.request, &lane.reply, hello);
        let header = self.header(at);
        let mut bytes = [0; wire::MAX_CONTROL_BYTES];
        let len = wire::encode(&header, &Frame::Hello(signed), &mut bytes);
        let bytes = &bytes[..len.expect("a hello fits a control frame")];
        self.post(at, bytes);
        if let Some(lane) = self.link.as_mut().and_then(|link| link.lane_mut(at)) {
            lane.greeted = true;
        }
    }

    /// Receives, signs of life, and ends of queue pairs.
    fn keep_lanes(&mut self) {
        let starved = self.starved_until_ns > self.now_ns;
        let Some(link) = &mut self.link else { return };
        link.reap();
        let up: Vec<usize> = (0..link::LANES)
            .filter(|at| link.lane(*at).is_some())
            .collect();
        if !starved {
            for at in &up {
                link.post_receives(*at);
            }
        }
        if self.alive_ns > self.now_ns {
            return;
        }
        self.alive_ns = self.now_ns + ALIVE_EVERY_NS;
        for at in up {
            let frame = Frame::KeepAlive { number: 0 };
            self.say(at, &self.header(at), &frame);
            if self.memory.met.is_empty() {
                self.look_up(at);
            }
        }
    }

    /// The runtime's own header, which is true but while it posts no receives: then it says that it does.
    fn header(&self, at: usize) -> Header {
        let lane = self.link.as_ref().and_then(|link| link.lane(at));
        let starved = self.starved_until_ns > self.now_ns;
        let said = lane.map_or(0, |lane| match starved {
            true => lane.posted + lane.empty.len() as u32,
            false => lane.posted,
        });
        Header {
            lane_credit: said,
            ..Header::default()
        }
    }

    /// From a context of ours to one of theirs.
    fn between(&self, at: usize, src: WireContext, dst: WireContext) -> Header {
        Header {
            src,
            dst,
            ..self.header(at)
        }
    }

    /// Says a frame if the engine has a receive for it.
    fn say(&mut self, at: usize, header: &Header, frame: &Frame<'_>) -> bool {
        let mut bytes = [0; wire::MAX_CONTROL_BYTES];
        match wire::encode(header, frame, &mut bytes) {
            Ok(len) => self.say_bytes(at, &bytes[..len]),
            Err(_) => false,
        }
    }

    fn say_bytes(&mut self, at: usize, bytes: &[u8]) -> bool {
        let lane = self.link.as_ref().and_then(|link| link.lane(at));
        let has_room =
            lane.is_some_and(|lane| lane.up && lane.credit.wrapping_sub(lane.sent) as i32 > 0);
        has_room && self.post(at, bytes)
    }

    fn post(&mut self, at: usize, bytes: &[u8]) -> bool {
        self.memory.frames.keep(bytes.to_vec());
        self.link.as_mut().is_some_and(|link| link.send(at, bytes))
    }
}
