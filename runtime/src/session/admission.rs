//! The admission of one lane, at one of its ends.
//!
//! ```text
//! connecting                                   accepting
//! Asked     -- request: nonce -------------->
//!           <-- reply: nonce, MAC -----------  Answered
//! Proven    -- hello, MAC ------------------>  Admitted
//! Admitted  <-- hello, MAC ------------------
//! ```
//! The connecting side says its hello, and with it its first MAC, only to one that has proven itself.

use super::mac::{Transcript, is_same};
use super::pace::Pace;
use super::refusal::{JoinRefusal, Refused};
use super::secret::{Nonce, Secret};
use super::words::{Preface, Reply, Request, WORDS_BYTES, name_tag};
use crate::ids::{Incarnation, LcoreId};
use crate::wire::{Hello, MAX_CONTROL_BYTES, Role};

use zerocopy::{FromZeros, IntoBytes};

/// The most lcores that an engine can have.
const MAX_LCORES: u16 = 64;

/// The fewest receives that a lane works with.
const LEAST_RECEIVES: u32 = 4;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Phase {
    /// Nothing said.
    Open,
    /// Connecting: the request is out.
    Asked,
    /// Accepting: the reply is out.
    Answered,
    /// Connecting: the peer's reply is authentic.
    Proven,
    /// The peer's hello is authentic and fits.
    Admitted,
    /// Something was wrong: nothing is heard any more.
    Refused,
}

/// One end's state. Holds no key.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Admission {
    role: Role,
    phase: Phase,
    /// In full; the request has its last eight bits.
    repair: u32,
    request: Request,
    reply: Reply,
}

/// The lane that is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaneNames {
    pub session: u32,
    pub source_lcore: LcoreId,
    pub target_lcore: LcoreId,
    pub number: u16,
    pub siblings: u16,
    /// How often it was made anew in its session.
    pub repair: u32,
    pub qp: u32,
}

/// What an end knows without the peer's word.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known<'a> {
    pub our_name: &'a str,
    pub our_incarnation: Incarnation,
    pub pace: Pace,
    pub peer_name: &'a str,
    pub secret: &'a Secret,
    /// The peer's, if another lane of the session has proven it.
    pub peer_incarnation: Option<Incarnation>,
}

/// What happens.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event<'a> {
    /// Connecting: ask, for the first time or again.
    Ask {
        /// One that was never used.
        nonce: Nonce,
    },
    /// Accepting: answer the request.
    Answer {
        /// Our queue pair.
        qp: u32,
        /// One that was never used.
        nonce: Nonce,
    },
    /// Connecting: the connection stands, with this reply.
    Reply(&'a [u8]),
    /// The connection stands: say hello.
    Greet(Hello<'a>),
    /// The peer's hello came.
    Hello(&'a Hello<'a>),
}

/// What is to be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Order<'a> {
    /// Ask for or accept the connection with this private data.
    Say([u8; WORDS_BYTES]),
    /// Send this hello.
    Hello(Hello<'a>),
    /// The peer has proven itself: say hello.
    Greet,
    /// The lane may be used.
    Admit,
}

impl Admission {
    /// Of a lane that we ask for.
    pub fn connecting(names: &LaneNames, known: &Known<'_>) -> Self {
        let small = |lcore: LcoreId| u8::try_from(lcore.0).expect("an engine has at most 64");
        let lane = Request::lane_byte(names.number, names.siblings);
        let request = Request {
            preface: Preface::ours(),
            session: names.session.into(),
            from: name_tag(known.our_name).into(),
            to: name_tag(known.peer_name).into(),
            qp: names.qp.into(),
            source_lcore: small(names.source_lcore),
            target_lcore: small(names.target_lcore),
            lane: lane.expect("there are at most 16 lanes between two lcores"),
            repair: names.repair as u8,
            incarnation: known.our_incarnation.0.into(),
            nonce: Nonce::default(),
        };
        Self {
            role: Role::Connecting,
            phase: Phase::Open,
            repair: names.repair,
            request,
            reply: Reply::new_zeroed(),
        }
    }

    /// Of a lane that the peer asks for, and that has been made anew `repair` times here.
    pub fn accepting(request: &Request, repair: u32) -> Result<Self, JoinRefusal> {
        let (ours, theirs) = (repair as u8, request.repair);
        if theirs != ours {
            return Err(JoinRefusal::Repair { ours, theirs });
        }
        Ok(Self {
            role: Role::Accepting,
            phase: Phase::Open,
            repair,
            request: *request,
            reply: Reply::new_zeroed(),
        })
    }

    /// How often the lane was made anew, for its hello.
    pub const fn repair(&self) -> u32 {
        self.repair
    }

    /// What it means that the peer refused our request with this private data.
    pub fn refused(&self, private: &[u8]) -> JoinRefusal {
        Refused::read(private, &self.request)
    }

    /// Takes an event. A refusal is final, and says why.
    pub fn handle<'a>(
        &mut self,
        event: Event<'a>,
        known: &Known<'_>,
    ) -> Result<Order<'a>, JoinRefusal> {
        let done = self.take(event, known);
        if done.is_err() {
            self.phase = Phase::Refused;
        }
        done
    }

    /// Whether two ends have heard and said the same before their hellos.
    #[cfg(test)]
    pub(super) fn said_alike(&self, other: &Self) -> bool {
        (self.request, self.reply) == (other.request, other.reply)
    }

    fn take<'a>(&mut self, event: Event<'a>, known: &Known<'_>) -> Result<Order<'a>, JoinRefusal> {
        match (self.role, self.phase, event) {
            // With a new nonce: a reply to the last one is none to this.
            (Role::Connecting, Phase::Open | Phase::Asked, Event::Ask { nonce }) => {
                self.request.nonce = nonce;
                self.phase = Phase::Asked;
                Ok(Order::Say(words(&self.request)))
            }
            (Role::Accepting, Phase::Open, Event::Answer { qp, nonce }) => {
                self.reply = Reply::new(qp, known.our_incarnation.0, nonce);
                self.reply.mac = self.transcript(known).of_reply();
                self.phase = Phase::Answered;
                Ok(Order::Say(words(&self.reply)))
            }
            (Role::Connecting, Phase::Asked, Event::Reply(private)) => {
                self.prove(private, known)?;
                Ok(Order::Greet)
            }
            (_, Phase::Answered | Phase::Proven | Phase::Admitted, Event::Greet(hello)) => {
                let mac = self.transcript(known).of_hello(self.role, &hello);
                let mac = mac.ok_or(JoinRefusal::Malformed)?;
                Ok(Order::Hello(Hello { mac, ..hello }))
            }
            (_, Phase::Answered | Phase::Proven, Event::Hello(hello)) => {
                self.admit(hello, known)?;
                Ok(Order::Admit)
            }
            _ => Err(JoinRefusal::Malformed),
        }
    }

    fn prove(&mut self, private: &[u8], known: &Known<'_>) -> Result<(), JoinRefusal> {
        self.reply = *Reply::read(private)?;
        if !is_same(&self.transcript(known).of_reply(), &self.reply.mac) {
            return Err(JoinRefusal::Unauthenticated);
        }
        let incarnation = Incarnation(self.reply.said().incarnation.get());
        if known.peer_incarnation.is_some_and(|met| met != incarnation) {
            return Err(JoinRefusal::Restarted);
        }
        self.phase = Phase::Proven;
        Ok(())
    }

    /// The MAC first: what is not authentic is not looked at.
    fn admit(&mut self, hello: &Hello<'_>, known: &Known<'_>) -> Result<(), JoinRefusal> {
        // By the role that the peer must have: our own hello, sent back to us, is not authentic.
        let peer_role = match self.role {
            Role::Connecting => Role::Accepting,
            Role::Accepting => Role::Connecting,
        };
        let mac = self.transcript(known).of_hello(peer_role, hello);
        if !mac.is_some_and(|mac| is_same(&mac, &hello.mac)) {
            return Err(JoinRefusal::Unauthenticated);
        }
        self.check_names(hello, known)?;
        check_sizes(hello)?;
        known
            .pace
            .fits(hello.fence_timeout_ns)
            .map_err(JoinRefusal::OurPace)?;
        let theirs = Pace {
            cap_bytes: hello.lane_bytes_cap,
            slowest_rate_bytes_per_s: hello.slowest_rate,
            fence_timeout_ns: hello.fence_timeout_ns,
        };
        theirs
            .fits(known.pace.fence_timeout_ns)
            .map_err(JoinRefusal::TheirPace)?;
        self.phase = Phase::Admitted;
        Ok(())
    }

    /// A hello must say what the connection said.
    fn check_names(&self, hello: &Hello<'_>, known: &Known<'_>) -> Result<(), JoinRefusal> {
        let (request, said) = (&self.request, self.reply.said());
        if hello.role == self.role {
            return Err(JoinRefusal::Role);
        }
        let connecting = (request.source_lcore, request.qp, request.incarnation);
        let accepting = (request.target_lcore, said.qp, said.incarnation);
        let ((source, qp, incarnation), (target, ..)) = match self.role {
            Role::Connecting => (accepting, connecting),
            Role::Accepting => (connecting, accepting),
        };
        if hello.incarnation.0 != incarnation.get() {
            return Err(JoinRefusal::Restarted);
        }
        let (ours, theirs) = (request.siblings(), hello.siblings);
        if theirs != ours {
            return Err(JoinRefusal::Lanes { ours, theirs });
        }
        let same = hello.session == request.session.get()
            && hello.lane == request.number()
            && hello.repair == self.repair
            && hello.source_lcore.0 == source.into()
            && hello.target_lcore.0 == target.into()
            && hello.qp == qp.get()
            && hello.name.as_str() == known.peer_name;
        same.then_some(()).ok_or(JoinRefusal::Hello)
    }

    fn transcript<'a>(&'a self, known: &Known<'a>) -> Transcript<'a> {
        let (connecting_name, accepting_name) = match self.role {
            Role::Connecting => (known.our_name, known.peer_name),
            Role::Accepting => (known.peer_name, known.our_name),
        };
        Transcript {
            secret: known.secret,
            connecting_name,
            accepting_name,
            request: &self.request,
            reply: &self.reply,
        }
    }
}

/// Sizes that a lane can work with.
fn check_sizes(hello: &Hello<'_>) -> Result<(), JoinRefusal> {
    let sound = (1..=MAX_LCORES).contains(&hello.lcores)
        && hello.source_lcore.0 < hello.lcores
        && hello.frame_bytes as usize >= MAX_CONTROL_BYTES
        && hello.receive_depth >= LEAST_RECEIVES
        && hello.messages_per_context >= 1;
    sound.then_some(()).ok_or(JoinRefusal::Hello)
}

fn words(said: &(impl IntoBytes + zerocopy::Immutable)) -> [u8; WORDS_BYTES] {
    let bytes = said.as_bytes().try_into();
    bytes.expect("requests and replies have this size")
}
