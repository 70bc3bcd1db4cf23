//! The machine alone: what must be refused is refused, whatever the order.

mod bits;
mod explore;
mod fits;
mod secrets;

use zerocopy::IntoBytes;

use crate::ids::{Incarnation, LcoreId};
use crate::session::admission::{Admission, Event, Known, LaneNames, Order};
use crate::session::pace::Pace;
use crate::session::refusal::{JoinRefusal, Refused};
use crate::session::secret::Secret;
use crate::session::words::{Request, WORDS_BYTES, name_tag};
use crate::wire::{Hello, Name, Role};

const LEFT: Incarnation = Incarnation(0x1111_2222_3333);
const RIGHT: Incarnation = Incarnation(0x7777_8888_9999);

const PACE: Pace = Pace {
    cap_bytes: 1 << 20,
    slowest_rate_bytes_per_s: 1 << 30,
    fence_timeout_ns: 1_000_000,
};

fn secret(byte: u8) -> Secret {
    Secret::new(&[byte; 32]).unwrap()
}

/// What the side that takes `role` knows.
fn known(role: Role, secret: &Secret) -> Known<'_> {
    let names = [("left", LEFT), ("right", RIGHT)];
    let [ours, theirs] = match role {
        Role::Connecting => names,
        Role::Accepting => [names[1], names[0]],
    };
    Known {
        our_name: ours.0,
        our_incarnation: ours.1,
        pace: PACE,
        peer_name: theirs.0,
        secret,
        peer_incarnation: None,
    }
}

fn names(session: u32, number: u16) -> LaneNames {
    LaneNames {
        session,
        source_lcore: LcoreId(1),
        target_lcore: LcoreId(2),
        number,
        siblings: 4,
        repair: 0,
        qp: 40 + u32::from(number),
    }
}

/// The first lane, made anew.
fn repaired(repair: u32) -> LaneNames {
    LaneNames {
        repair,
        ..names(7, 0)
    }
}

/// What an honest side says on a lane of these names.
fn hello(role: Role, names: &LaneNames) -> Hello<'static> {
    let (incarnation, source, target, qp, name) = match role {
        Role::Connecting => (LEFT, LcoreId(1), LcoreId(2), names.qp, "left"),
        Role::Accepting => (RIGHT, LcoreId(2), LcoreId(1), names.qp + 100, "right"),
    };
    Hello {
        role,
        incarnation,
        session: names.session,
        lane: names.number,
        source_lcore: source,
        target_lcore: target,
        siblings: names.siblings,
        lcores: 3,
        repair: names.repair,
        qp,
        contexts: 8,
        grants: 8,
        frame_bytes: 4096,
        receive_depth: 16,
        messages_per_context: 2,
        lane_bytes_cap: PACE.cap_bytes,
        slowest_rate: PACE.slowest_rate_bytes_per_s,
        fence_timeout_ns: PACE.fence_timeout_ns,
        mac: [0; 16],
        name: Name::new(name).unwrap(),
    }
}

fn said(order: Result<Order<'_>, JoinRefusal>) -> [u8; WORDS_BYTES] {
    match order {
        Ok(Order::Say(words)) => words,
        other => panic!("{other:?}"),
    }
}

/// A lane between two that share a secret, up to both hellos.
struct Lane {
    names: LaneNames,
    secret: Secret,
    connecting: Admission,
    accepting: Admission,
    request: [u8; WORDS_BYTES],
    reply: [u8; WORDS_BYTES],
}

impl Lane {
    fn new(names: LaneNames, nonces: (u8, u8)) -> Self {
        let secret = secret(5);
        let (left, right) = (
            known(Role::Connecting, &secret),
            known(Role::Accepting, &secret),
        );
        let mut connecting = Admission::connecting(&names, &left);
        let nonce = [nonces.0; 16];
        let request = said(connecting.handle(Event::Ask { nonce }, &left));
        let asked = Request::read(&request).unwrap();
        let mut accepting = Admission::accepting(asked, names.repair).unwrap();
        let (qp, nonce) = (names.qp + 100, [nonces.1; 16]);
        let reply = said(accepting.handle(Event::Answer { qp, nonce }, &right));
        Self {
            names,
            connecting,
            accepting,
            request,
            reply,
            secret: secret.clone(),
        }
    }

    fn first() -> Self {
        Self::new(names(7, 0), (1, 2))
    }

    /// The connecting side has heard the reply.
    fn proven(mut self) -> Self {
        let reply = self.reply;
        assert_eq!(self.hear_reply(&reply), Ok(Order::Greet));
        self
    }

    fn hear_reply(&mut self, reply: &[u8]) -> Result<Order<'static>, JoinRefusal> {
        let left = known(Role::Connecting, &self.secret);
        let order = self.connecting.handle(Event::Reply(reply), &left)?;
        assert_eq!(order, Order::Greet);
        Ok(Order::Greet)
    }

    /// The hello of a side, as that side says it.
    fn signed(&self, role: Role, hello: Hello<'static>) -> Hello<'static> {
        let mut speaker = match role {
            Role::Connecting => self.connecting.clone(),
            Role::Accepting => self.accepting.clone(),
        };
        match speaker.handle(Event::Greet(hello), &known(role, &self.secret)) {
            Ok(Order::Hello(hello)) => hello,
            other => panic!("{other:?}"),
        }
    }

    fn hello(&self, role: Role) -> Hello<'static> {
        self.signed(role, hello(role, &self.names))
    }

    /// What the side that does not say it makes of a hello.
    fn hear(&self, from: Role, hello: &Hello<'_>) -> Result<(), JoinRefusal> {
        let (mut hearer, role) = match from {
            Role::Connecting => (self.accepting.clone(), Role::Accepting),
            Role::Accepting => (self.connecting.clone(), Role::Connecting),
        };
        let known = known(role, &self.secret);
        let order = hearer.handle(Event::Hello(hello), &known)?;
        assert_eq!(order, Order::Admit);
        // Once only.
        let again = hearer.handle(Event::Hello(hello), &known);
        assert_eq!(again, Err(JoinRefusal::Malformed));
        Ok(())
    }
}

const BOTH: [Role; 2] = [Role::Connecting, Role::Accepting];

#[test]
fn two_that_share_a_secret_admit_each_other() {
    let lane = Lane::first().proven();
    for role in BOTH {
        assert_eq!(lane.hear(role, &lane.hello(role)), Ok(()), "{role:?}");
    }
}

#[test]
fn r12_another_secret_is_none() {
    let mut lane = Lane::first();
    let other = secret(6);
    for wrong in [&other, &Secret::none()] {
        let left = known(Role::Connecting, wrong);
        let mut asker = lane.connecting.clone();
        let heard = asker.handle(Event::Reply(&lane.reply), &left);
        assert_eq!(heard, Err(JoinRefusal::Unauthenticated));
    }
    lane = lane.proven();
    lane.secret = other;
    for role in BOTH {
        // Said under the other secret, heard under the right one.
        let said = lane.hello(role);
        let hearer = Lane::first().proven();
        let heard = hearer.hear(role, &said);
        assert_eq!(heard, Err(JoinRefusal::Unauthenticated));
    }
}

#[test]
fn r12_what_was_said_on_another_lane_in_another_session_or_by_ourselves_is_refused() {
    let lane = || Lane::first().proven();
    let unproven = Lane::first;
    let others = [
        // Other nonces on either side, another lane, another session, the same lane made anew.
        Lane::new(names(7, 0), (3, 2)),
        Lane::new(names(7, 0), (1, 3)),
        Lane::new(names(7, 1), (1, 2)),
        Lane::new(names(8, 0), (1, 2)),
        Lane::new(repaired(1), (1, 2)),
    ];
    for (at, other) in others.into_iter().enumerate() {
        let heard = unproven().hear_reply(&other.reply);
        let same_nonce = at == 1;
        let expected = if same_nonce {
            // It is a good answer to the same request; the accepting side has forgotten it.
            Ok(Order::Greet)
        } else {
            Err(JoinRefusal::Unauthenticated)
        };
        assert_eq!(heard, expected, "{at}");
        let other = other.proven();
        for role in BOTH {
            let heard = lane().hear(role, &other.hello(role));
            assert_eq!(heard, Err(JoinRefusal::Unauthenticated), "{at} {role:?}");
        }
    }
    let lane = lane();
    for (said, role) in [(BOTH[0], BOTH[1]), (BOTH[1], BOTH[0])] {
        // Our own hello, sent back to us.
        let heard = lane.hear(role, &lane.hello(said));
        assert_eq!(heard, Err(JoinRefusal::Unauthenticated));
    }
    // Our own request is no reply.
    let mut asker = unproven();
    let request = asker.request;
    assert_eq!(
        asker.hear_reply(&request),
        Err(JoinRefusal::Unauthenticated)
    );
}

#[test]
fn r12_a_reply_to_a_question_that_was_asked_again_since_is_refused() {
    let mut lane = Lane::first();
    let secret = secret(5);
    let left = known(Role::Connecting, &secret);
    let nonce = [9; 16];
    said(lane.connecting.handle(Event::Ask { nonce }, &left));
    let reply = lane.reply;
    assert_eq!(lane.hear_reply(&reply), Err(JoinRefusal::Unauthenticated));
}

#[test]
fn r12_another_start_of_the_peer_than_on_the_lanes_before_is_refused() {
    let lane = Lane::first();
    for (met, expected) in [
        (RIGHT, Ok(Order::Greet)),
        (Incarnation(1), Err(JoinRefusal::Restarted)),
    ] {
        let left = Known {
            peer_incarnation: Some(met),
            ..known(Role::Connecting, &lane.secret)
        };
        let mut asker = lane.connecting.clone();
        assert_eq!(asker.handle(Event::Reply(&lane.reply), &left), expected);
    }
}

#[test]
fn names_are_apart_and_whole_under_the_mac() {
    // The tags of two names may be the same; the MAC has the names.
    let lane = Lane::first();
    let left = Known {
        peer_name: "might",
        ..known(Role::Connecting, &lane.secret)
    };
    let mut asker = lane.connecting.clone();
    let heard = asker.handle(Event::Reply(&lane.reply), &left);
    assert_eq!(heard, Err(JoinRefusal::Unauthenticated));
    assert_ne!(name_tag("left"), name_tag("right"));
}

#[test]
fn words_out_of_turn_end_an_admission_and_never_admit() {
    let lane = Lane::first().proven();
    let (left, right) = (
        known(Role::Connecting, &lane.secret),
        known(Role::Accepting, &lane.secret),
    );
    let accepting = lane.hello(Role::Accepting);
    let asked = Lane::first().connecting;
    // No hello before the reply, even the right one.
    let heard = asked.clone().handle(Event::Hello(&accepting), &left);
    assert_eq!(heard, Err(JoinRefusal::Malformed));
    let fresh = Admission::accepting(Request::read(&lane.request).unwrap(), 0).unwrap();
    let connecting = lane.hello(Role::Connecting);
    let heard = fresh.clone().handle(Event::Hello(&connecting), &right);
    assert_eq!(heard, Err(JoinRefusal::Malformed));
    let heard = fresh.clone().handle(Event::Reply(&lane.reply), &right);
    assert_eq!(heard, Err(JoinRefusal::Malformed));
    // Nothing said before there is something to prove.
    for mut early in [asked, fresh] {
        let role = hello(Role::Connecting, &lane.names);
        let heard = early.handle(Event::Greet(role), &left);
        assert_eq!(heard, Err(JoinRefusal::Malformed));
    }
}

/// The words are a promise to other builds: these bytes change only together with the version.
#[test]
fn the_words_are_fixed() {
    let lane = Lane::first();
    let request = Request::read(&lane.request).unwrap();
    assert_eq!(request.as_bytes(), lane.request);
    assert_eq!(lane.request[..8], [0x66, 0x6b, 4, 0, 7, 0, 0, 0]);
    assert_eq!(lane.request[16..24], [40, 0, 0, 0, 1, 2, 0x30, 0]);
    assert_eq!(lane.request[8..12], name_tag("left").to_le_bytes());
    assert_eq!(lane.request[12..16], name_tag("right").to_le_bytes());
    assert_eq!(lane.request[24..40], LEFT.0.to_le_bytes());
    assert_eq!(lane.request[40..], [1; 16]);
    assert_eq!(lane.reply[4..8], 140_u32.to_le_bytes());
    assert_eq!(lane.reply[8..24], RIGHT.0.to_le_bytes());
    assert_eq!(lane.reply[24..40], [2; 16]);
    let last = LaneNames {
        number: 15,
        siblings: 16,
        ..repaired(0x0102_0304)
    };
    assert_eq!(Lane::new(last, (1, 2)).request[22..24], [0xff, 4]);
}

#[test]
fn a_lane_fits_its_byte_or_has_none() {
    for number in 0..20 {
        for siblings in 0..20 {
            let fits = number < 16 && (1..=16).contains(&siblings);
            let byte = Request::lane_byte(number, siblings);
            assert_eq!(byte.is_some(), fits, "{number} {siblings}");
            let Some(lane) = byte else { continue };
            let mut request = *Request::read(&Lane::first().request).unwrap();
            request.lane = lane;
            assert_eq!((request.number(), request.siblings()), (number, siblings));
        }
    }
}

#[test]
fn r12_a_lane_is_made_anew_only_as_often_as_both_have_counted() {
    for repair in [0, 1, 255, 256, 70_000, u32::MAX] {
        let lane = Lane::new(repaired(repair), (1, 2)).proven();
        for role in BOTH {
            assert_eq!(lane.hear(role, &lane.hello(role)), Ok(()), "{role:?}");
            // Said in full, and not only as far as the request has it.
            for other in [1, 256, 1 << 31] {
                let mut hello = hello(role, &lane.names);
                hello.repair = repair.wrapping_add(other);
                let heard = lane.hear(role, &lane.signed(role, hello));
                assert_eq!(heard, Err(JoinRefusal::Hello), "{role:?} {repair} {other}");
            }
        }
        let asked = *Request::read(&lane.request).unwrap();
        for off in 1..=u8::MAX {
            let expected = repair.wrapping_add(off.into());
            let refused = Admission::accepting(&asked, expected).unwrap_err();
            let (ours, theirs) = (expected as u8, repair as u8);
            assert_eq!(refused, JoinRefusal::Repair { ours, theirs });
            // And so it is told.
            let told = lane.connecting.refused(Refused::new(&refused).as_bytes());
            let (ours, theirs) = (theirs, ours);
            assert_eq!(told, JoinRefusal::Repair { ours, theirs });
        }
    }
}
