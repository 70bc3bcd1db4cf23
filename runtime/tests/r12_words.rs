//! R12: what is said again, sent back, said too early, or said by somebody without the secret, against a whole engine.

mod pair;

use keyfence::JoinRefusal;
use keyfence::wire::{self, Frame, List, Name, WireContext};
use pair::judged::{MS, Part};
use pair::oath::{Oath, request};
use pair::raw::{Duel, RAW};

const SHARED: [u8; 32] = [7; 32];

/// The engine asks.
fn asking() -> Duel {
    let mut duel = Duel::apart(Part::quiet(), "engine", Some(&SHARED));
    duel.until(|duel| duel.raw.lanes.len() == 1 && duel.raw.inbox.len() == 1);
    duel
}

/// The engine is asked.
fn asked() -> Duel {
    Duel::apart(Part::quiet(), "zed", Some(&SHARED))
}

fn refused(duel: &mut Duel) -> JoinRefusal {
    duel.until(|duel| !duel.refusals().is_empty());
    duel.refusals().remove(0)
}

/// The reason of the refusal that comes to the raw peer.
fn code(duel: &mut Duel) -> u8 {
    let before = duel.raw.rejected.len();
    duel.until(|duel| duel.raw.rejected.len() > before);
    duel.raw.rejected[before][4]
}

const NOT_CONFIGURED: u8 = 1;
const BUSY: u8 = 4;
const ENDED: u8 = 5;
const WRONG_NAME: u8 = 7;
const ROLE: u8 = 8;
const DUPLICATE: u8 = 9;
const REPAIR: u8 = 10;

/// The raw peer asks for both lanes and is let in.
fn join(duel: &mut Duel, session: u32) {
    let ups = duel.ups();
    let first = duel.raw.ask(session, 0);
    duel.until(|duel| !duel.raw.lanes[first].reply.is_empty());
    duel.greet(first);
    let second = duel.raw.ask(session, 1);
    duel.until(|duel| !duel.raw.lanes[second].reply.is_empty());
    duel.greet(second);
    duel.until(|duel| duel.ups() > ups);
}

fn lookup<'a>() -> Frame<'a> {
    let name = Name::new("nobody").unwrap();
    Frame::Lookup { request: 1, name }
}

fn send(duel: &mut Duel, lane: usize, frame: &Frame<'_>) {
    let header = duel.raw.header(lane);
    duel.raw.send(lane, &header, frame);
}

fn answers(duel: &Duel) -> usize {
    let frames = duel.raw.inbox.iter();
    let answer =
        |bytes: &Vec<u8>| matches!(wire::decode(bytes), Ok((_, Frame::LookupReply { .. })));
    frames.filter(|(_, bytes)| answer(bytes)).count()
}

#[test]
fn r12_a_peer_that_has_the_secret_is_let_in_on_either_side() {
    let mut duel = asking();
    duel.greet(0);
    duel.until(|duel| duel.raw.lanes.len() == 2 && !duel.raw.lanes[1].reply.is_empty());
    duel.steps(10);
    duel.greet(1);
    duel.until(|duel| duel.ups() == 1);
    let mut duel = asked();
    join(&mut duel, 5);
    assert_eq!(duel.refusals(), []);
    assert_eq!(duel.side.engine.admissions().lanes_admitted, 2);
}

#[test]
fn r12_who_has_not_the_secret_learns_nothing_but_a_request() {
    let mut duel = Duel::apart(Part::quiet(), "engine", Some(&SHARED));
    duel.raw.oath.secret = vec![8; 32];
    assert_eq!(refused(&mut duel), JoinRefusal::Unauthenticated);
    duel.steps(3_000);
    assert!(duel.raw.inbox.is_empty(), "no hello");
    assert_eq!(duel.side.engine.admissions().replies_refused, 1);

    // Asked, the engine answers; a hello without the secret ends it.
    for wrong in [vec![8; 32], Vec::new()] {
        let mut duel = asked();
        let lane = duel.raw.ask(5, 0);
        duel.until(|duel| !duel.raw.lanes[lane].reply.is_empty());
        duel.raw.oath.secret = wrong;
        duel.greet(lane);
        assert_eq!(refused(&mut duel), JoinRefusal::Unauthenticated);
        assert_eq!(duel.side.engine.admissions().hellos_refused, 1);
        duel.until(|duel| duel.side.used(|usage| usage.lanes.into()) == 0);
        // It is kept apart by that from nobody who has it.
        duel.raw.oath.secret = SHARED.to_vec();
        join(&mut duel, 5);
    }
}

#[test]
fn r12_a_reply_said_again_is_refused() {
    let mut duel = asking();
    let reply = duel.raw.lanes[0].reply.clone();
    duel.raw.break_lane(0);
    duel.raw.says_reply = Some(reply);
    duel.until(|duel| duel.side.engine.admissions().replies_refused == 1);
    assert_eq!(duel.refusals().pop(), Some(JoinRefusal::Unauthenticated));
}

#[test]
fn r12_a_hello_said_again_or_sent_back_is_refused() {
    // On another lane.
    let mut duel = asking();
    let (header, hello) = (duel.raw.header(0), duel.raw.hello(0));
    let mut bytes = [0; 512];
    let signed = {
        let lane = &duel.raw.lanes[0];
        duel.raw.oath.sign(&lane.request, &lane.reply, hello)
    };
    let len = wire::encode(&header, &Frame::Hello(signed), &mut bytes).unwrap();
    duel.raw.send_bytes(0, &bytes[..len]);
    duel.until(|duel| duel.raw.lanes.len() == 2 && !duel.raw.lanes[1].reply.is_empty());
    duel.steps(10);
    duel.raw.send_bytes(1, &bytes[..len]);
    assert_eq!(refused(&mut duel), JoinRefusal::Unauthenticated);

    // The engine's own.
    let mut duel = asking();
    let (_, own) = duel.raw.inbox.pop_front().unwrap();
    duel.raw.send_bytes(0, &own);
    assert_eq!(refused(&mut duel), JoinRefusal::Unauthenticated);

    // In the next session.
    let mut duel = asking();
    duel.raw.break_lane(0);
    duel.until(|duel| duel.raw.lanes.len() == 2 && !duel.raw.lanes[1].reply.is_empty());
    duel.steps(10);
    duel.side.events.clear();
    duel.raw.send_bytes(1, &bytes[..len]);
    assert_eq!(refused(&mut duel), JoinRefusal::Unauthenticated);
}

#[test]
fn r12_nothing_is_read_before_the_hello_nor_anything_bound_before_it_is_admitted() {
    let mut duel = asking();
    for _ in 0..3 {
        send(&mut duel, 0, &lookup());
    }
    let mut cut = duel.raw.lanes[0].request.clone();
    cut[0] = wire::Kind::Hello as u8;
    duel.raw.send_bytes(0, &cut);
    duel.steps(50);
    assert_eq!(duel.side.stat("frames_refused"), 3);
    assert_eq!(duel.side.stat("frames_malformed"), 1);
    assert_eq!((answers(&duel), duel.refusals().len()), (0, 0));
    assert_eq!(duel.ledger.all_live_keys(), 0);
    duel.greet(0);
    duel.until(|duel| duel.side.engine.admissions().lanes_admitted == 1);
}

/// A peer whose control side is quicker than ours speaks behind its hello: that waits, and is answered in its turn.
#[test]
fn r12_what_comes_behind_a_hello_is_read_when_that_is_admitted() {
    let mut duel = asking();
    duel.greet(0);
    for _ in 0..3 {
        send(&mut duel, 0, &lookup());
    }
    let without_control = |duel: &mut Duel| {
        duel.now_ns += 1_000;
        for lcore in &mut duel.side.lcores {
            lcore.step(duel.now_ns);
        }
        duel.raw.step();
    };
    for _ in 0..100 {
        without_control(&mut duel);
    }
    assert_eq!(duel.side.stat("frames_received"), 4);
    assert_eq!((answers(&duel), duel.side.stat("frames_refused")), (0, 0));
    duel.until(|duel| answers(duel) == 3);
    assert_eq!(duel.side.stat("frames_refused"), 0);

    // Of a hello that is not admitted it is never read, and its buffers come back.
    let mut duel = asking();
    let receives = duel.side.engine.receives_in_use();
    let (header, mut hello) = (duel.raw.header(0), duel.raw.hello(0));
    hello.session += 1;
    duel.raw.greet(0, &header, hello);
    for _ in 0..3 {
        send(&mut duel, 0, &lookup());
    }
    assert_eq!(refused(&mut duel), JoinRefusal::Hello);
    duel.until(|duel| duel.side.used(|usage| usage.lanes.into()) == 0);
    assert_eq!(answers(&duel), 0);
    assert!(receives > 0);
    assert_eq!(duel.side.engine.receives_in_use(), 0);
}

/// Whoever refuses the other for its numbers: both must have heard them.
#[test]
fn r12_no_hello_is_judged_before_ours_has_arrived() {
    let mut duel = Duel::apart(Part::quiet(), "engine", Some(&SHARED));
    duel.until(|duel| duel.raw.lanes.len() == 1);
    let (header, mut hello) = (duel.raw.header(0), duel.raw.hello(0));
    hello.fence_timeout_ns = 1;
    duel.raw.greet(0, &header, hello);
    for _ in 0..100 {
        duel.now_ns += 1_000;
        duel.side.step(duel.now_ns);
    }
    // It came, but the peer has not polled ours yet.
    assert_eq!(duel.side.stat("frames_received"), 1);
    assert_eq!(duel.side.engine.admissions().hellos_refused, 0);
    assert!(matches!(refused(&mut duel), JoinRefusal::OurPace(_)));
    assert_eq!(duel.raw.inbox.len(), 1);
}

#[test]
fn r12_a_second_hello_is_no_frame_of_a_lane_that_is_up() {
    let mut duel = asked();
    join(&mut duel, 5);
    duel.greet(0);
    duel.until(|duel| duel.side.stat("frames_refused") == 1);
    duel.steps(100);
    assert_eq!(duel.refusals(), []);
}

/// Nothing is repaired yet, so nobody is told that something lives or is gone by what begins a repair.
#[test]
fn r12_what_a_repair_begins_with_is_no_frame_of_a_lane_that_repairs_none() {
    let mut duel = asked();
    join(&mut duel, 5);
    let contexts = [WireContext::default()];
    let frames = [
        Frame::Begin {
            repair: 0,
            // More than was ever sent.
            received: 77,
        },
        Frame::Ended {
            contexts: List::from(&contexts[..]),
        },
        Frame::End { repair: 0 },
    ];
    for (at, frame) in frames.iter().enumerate() {
        send(&mut duel, 0, frame);
        duel.until(|duel| duel.side.stat("frames_refused") == at as u64 + 1);
    }
    duel.steps(100);
    assert_eq!(duel.side.stat("lanes_broken"), 0);
    // The lane goes on.
    send(&mut duel, 0, &lookup());
    duel.until(|duel| answers(duel) == 1);
}

#[test]
fn r12_requests_of_the_wrong_engine_or_side_are_refused_and_counted() {
    let mut duel = asked();
    let mut strange = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut words = duel.raw.oath.request(5, 0, 0, [9; 16]);
        change(&mut words);
        duel.raw.ask_as(words);
        code(&mut duel)
    };
    let tag = |at: usize, name: &'static str| {
        move |words: &mut Vec<u8>| words[at..at + 4].copy_from_slice(&Oath::tag(name))
    };
    assert_eq!(strange(&tag(request::FROM, "nobody")), NOT_CONFIGURED);
    assert_eq!(strange(&tag(request::TO, "other")), WRONG_NAME);
    // Who sends our own request back has our name.
    assert_eq!(strange(&tag(request::FROM, "zed")), NOT_CONFIGURED);
    let lanes = strange(&|words| words[request::LANE] = 0x20);
    assert_eq!(lanes, 3);
    for (at, byte) in [
        (request::SOURCE_LCORE, 64),
        (request::TARGET_LCORE, 64),
        // The third of two lanes.
        (request::LANE, 0x12),
    ] {
        assert_eq!(strange(&|words| words[at] = byte), 0, "{at}");
    }
    // No lane of a session that is being made was made before.
    for repair in [1, 0x80, 0xff] {
        let code = strange(&|words| words[request::REPAIR] = repair);
        assert_eq!(code, REPAIR, "{repair}");
    }
    assert_eq!(strange(&|words| words.truncate(55)), 0);
    assert_eq!(strange(&|words| words[request::VERSION] += 1), 2);
    assert_eq!(duel.side.engine.admissions().requests_refused, 12);
    assert_eq!(duel.side.used(|usage| usage.lanes.into()), 0);

    // The engine whose name sorts first asks.
    let mut duel = Duel::apart(Part::quiet(), "engine", Some(&SHARED));
    duel.raw.oath = Oath {
        secret: SHARED.to_vec(),
        ..Oath::none(RAW, "engine")
    };
    duel.raw.ask(5, 0);
    assert_eq!(code(&mut duel), ROLE);
}

#[test]
fn r12_a_request_said_again_is_refused() {
    let mut duel = asked();
    let first = duel.raw.ask(5, 0);
    duel.until(|duel| !duel.raw.lanes[first].reply.is_empty());
    // While the session is made: the very same, and the same lane with other words.
    let words = duel.raw.lanes[first].request.clone();
    duel.raw.ask_as(words.clone());
    assert_eq!(code(&mut duel), DUPLICATE);
    let mut other = words.clone();
    other[request::NONCE] ^= 1;
    duel.raw.ask_as(other);
    assert_eq!(code(&mut duel), DUPLICATE);
    // Another start of the same peer has to wait for the end of this one, and so has another session.
    for at in [request::INCARNATION, request::SESSION] {
        let mut other = words.clone();
        other[at] ^= 1;
        duel.raw.ask_as(other);
        assert_eq!(code(&mut duel), BUSY);
    }
    duel.greet(first);
    let second = duel.raw.ask(5, 1);
    duel.until(|duel| !duel.raw.lanes[second].reply.is_empty());
    duel.greet(second);
    duel.until(|duel| duel.ups() == 1);
    duel.raw.ask_as(words.clone());
    assert_eq!(code(&mut duel), BUSY);

    // When that has ended: the same words, and what is older.
    duel.raw.break_lane(first);
    duel.until(|duel| duel.side.used(|usage| usage.lanes.into()) == 0);
    duel.steps(100);
    duel.raw.ask_as(words);
    assert_eq!(code(&mut duel), ENDED);
    duel.raw.ask(4, 0);
    assert_eq!(code(&mut duel), ENDED);
    let before = duel.side.engine.admissions();
    assert_eq!(before.requests_refused, 7);
    join(&mut duel, 6);
}

/// Each lane of a session that stands was proven: else who slipped one in while it was made could end it later.
#[test]
fn r12_a_lane_to_an_lcore_that_the_peer_has_not_keeps_the_session_from_standing() {
    let mut duel = asked();
    let first = duel.raw.ask(5, 0);
    duel.until(|duel| !duel.raw.lanes[first].reply.is_empty());
    let mut beyond = duel.raw.lanes[first].request.clone();
    // It was configured with two.
    beyond[request::SOURCE_LCORE] = 2;
    duel.raw.ask_as(beyond.clone());
    assert_eq!(code(&mut duel), 0);
    beyond[request::SOURCE_LCORE] = 1;
    let slipped = duel.raw.ask_as(beyond.clone());
    duel.until(|duel| !duel.raw.lanes[slipped].reply.is_empty());
    duel.greet(first);
    assert_eq!(refused(&mut duel), JoinRefusal::Malformed);
    duel.until(|duel| duel.side.used(|usage| usage.lanes.into()) == 0);
    duel.steps(100);

    // Behind the first hello it is known how many there are.
    let first = duel.raw.ask(6, 0);
    duel.until(|duel| !duel.raw.lanes[first].reply.is_empty());
    duel.greet(first);
    duel.until(|duel| duel.side.engine.admissions().lanes_admitted == 1);
    beyond[request::SESSION] = 6;
    duel.raw.ask_as(beyond);
    assert_eq!(code(&mut duel), 0);
    let second = duel.raw.ask(6, 1);
    duel.until(|duel| !duel.raw.lanes[second].reply.is_empty());
    duel.greet(second);
    duel.until(|duel| duel.ups() == 1);
}

/// Who knocks decides how often; what is told of that, and what it costs the next join, is not his to decide.
#[test]
fn r12_requests_that_are_refused_while_a_session_stands_are_not_told_and_hold_nothing_off() {
    const KNOCKS: usize = 20;
    let mut duel = asking();
    duel.greet(0);
    duel.until(|duel| duel.raw.lanes.len() == 2 && !duel.raw.lanes[1].reply.is_empty());
    duel.steps(10);
    duel.greet(1);
    duel.until(|duel| duel.ups() == 1);
    let asks = duel.raw.lanes.len();
    duel.raw.oath = Oath {
        secret: SHARED.to_vec(),
        ..Oath::none(RAW, "engine")
    };
    for _ in 0..KNOCKS {
        duel.raw.ask(5, 0);
        assert_eq!(code(&mut duel), ROLE);
    }
    assert_eq!(
        duel.side.engine.admissions().requests_refused,
        KNOCKS as u64
    );
    assert_eq!(duel.refusals(), []);
    // The session is lost: the engine asks again soon, and not after twenty doubled waits.
    duel.raw.break_lane(0);
    duel.until(|duel| duel.raw.lanes.len() > asks + KNOCKS);
}

/// A session that nobody has proven leaves no memory: else a stranger could use up the numbers of the real one.
#[test]
fn r12_who_only_knocks_keeps_nobody_out_for_longer_than_the_join_takes() {
    let mut duel = asked();
    duel.raw.ask(u32::MAX / 2, 0);
    let timeout = JoinRefusal::Timeout { waited_ns: 20 * MS };
    assert_eq!(refused(&mut duel), timeout);
    duel.until(|duel| duel.side.used(|usage| usage.lanes.into()) == 0);
    duel.steps(100);
    join(&mut duel, 5);
}

/// Where lanes are repaired the numbers of messages say what came: one that came is not taken again, and behind a gap nothing is, for its completion was lost.
#[test]
fn r7_a_message_that_came_is_not_taken_again_and_none_behind_a_gap() {
    let mut part = Part::quiet();
    part.limits.rebuilds = 8;
    let mut duel = Duel::apart(part, "zed", Some(&SHARED));
    join(&mut duel, 5);
    let say = |duel: &mut Duel, number: u32| {
        let header = wire::Header {
            sequence: number,
            ..duel.raw.header(0)
        };
        duel.raw.send(0, &header, &Frame::Message(b"x"));
        duel.steps(20);
        ["messages_unclaimed", "frames_refused", "lanes_broken"].map(|name| duel.side.stat(name))
    };
    assert_eq!(say(&mut duel, 1), [1, 0, 0]);
    assert_eq!(say(&mut duel, 1), [1, 1, 0], "again");
    assert_eq!(say(&mut duel, 2), [2, 1, 0]);
    assert_eq!(say(&mut duel, 4), [2, 2, 1], "the third is missing");
}
