//! R5: what one context calls a remote one changes nothing for the others. Who lives where is learnt from the peer's frames.

mod pair;

use keyfence::ids::{ContextId, PeerId, RemoteContext};
use keyfence::pmd::soft::SoftDevice;
use keyfence::wire::{self, Frame, Header, Hello, Name, WireContext};
use keyfence::{Event, Lease, Rights, SubmitError};
use pair::judged::{Part, fast_limits};
use pair::raw::Duel;
use pair::scene::lookup;
use pair::{Pair, Puppet, Slot};

/// Sends one byte; what the call says.
fn send(
    pair: &mut Pair<SoftDevice>,
    from: &Puppet,
    to: RemoteContext,
    byte: u8,
) -> Result<(), SubmitError> {
    let said = Slot::new();
    let to_said = said.clone();
    from.act(move |cx| to_said.set(cx.send(to, &[byte], 0)));
    pair.step();
    said.take().unwrap()
}

fn bytes_of(puppet: &Puppet) -> Vec<u8> {
    let messages = puppet.events().into_iter().filter_map(|event| match event {
        Event::Message(message) => Some(message),
        _ => None,
    });
    let byte = |message: keyfence::Message| {
        let mut byte = [0];
        assert!(message.read_at(0, &mut byte));
        byte[0]
    };
    messages.map(byte).collect()
}

fn with_generation(to: RemoteContext, generation: u32) -> RemoteContext {
    let id = ContextId {
        generation,
        ..to.id
    };
    RemoteContext { id, ..to }
}

#[test]
fn r5_a_made_up_name_cuts_nobody_off_from_the_one_that_lives_there() {
    let mut pair = Pair::new();
    let to = pair.right.puppet(0, "to");
    // Four of them are on both lanes.
    let senders = ["one", "two", "three", "four"].map(|name| pair.left.puppet(0, name));
    pair.steps(10);
    let known = lookup(&mut pair, &senders[0], "to");
    for (at, sender) in senders.iter().enumerate() {
        assert_eq!(
            send(&mut pair, sender, known, at as u8),
            Ok(()),
            "one told, all know"
        );
    }
    for (sender, ahead) in senders.iter().zip([1, 2, 1 << 30, i32::MAX as u32]) {
        let made_up = with_generation(known, known.id.generation + ahead);
        let refused = send(&mut pair, sender, made_up, 9);
        assert_eq!(refused, Err(SubmitError::UnknownContext));
    }
    for (at, sender) in senders.iter().enumerate() {
        assert_eq!(send(&mut pair, sender, known, 10 + at as u8), Ok(()));
        let made = Slot::new();
        let to_made = made.clone();
        sender.act(move |cx| {
            let buf = cx.alloc(64).unwrap();
            to_made.set(cx.grant(&buf, 0..64, Rights::READ, known, Lease::None));
        });
        pair.step();
        assert!(made.take().unwrap().is_ok());
    }
    pair.steps(50);
    let mut bytes = bytes_of(&to);
    bytes.sort_unstable();
    assert_eq!(bytes, [0, 1, 2, 3, 10, 11, 12, 13]);
}

#[test]
fn r5_a_slot_s_next_context_is_known_on_every_lane_once_a_frame_names_it() {
    let mut pair = Pair::new();
    pair.right.puppet(0, "to");
    let senders = ["one", "two"].map(|name| pair.left.puppet(0, name));
    pair.steps(10);
    let first = lookup(&mut pair, &senders[0], "to");
    pair.right.engine.kill(first.id);
    pair.until(|pair| pair.right.reclaimed(first.id));
    let to = pair.right.puppet(0, "to");
    pair.steps(50);
    for sender in &senders {
        let gone = send(&mut pair, sender, first, 1);
        assert_eq!(gone, Err(SubmitError::ContextGone));
    }
    let second = with_generation(first, first.id.generation + 1);
    let unknown = send(&mut pair, &senders[1], second, 2);
    assert_eq!(
        unknown,
        Err(SubmitError::UnknownContext),
        "guessed right, but not told"
    );
    assert_eq!(lookup(&mut pair, &senders[0], "to"), second);
    for (at, sender) in senders.iter().enumerate() {
        assert_eq!(send(&mut pair, sender, second, at as u8), Ok(()));
    }
    pair.steps(50);
    assert_eq!(bytes_of(&to), [0, 1]);
}

/// Receives that the raw peer says it has: few, so that the engine's answers soon wait.
const RECEIVES: u32 = 4;

/// What the raw peer has posted, ever, if it has posted again what `frames` took.
fn posting_again(duel: &Duel, frames: u32) -> Header {
    Header {
        lane_credit: RECEIVES + frames,
        ..duel.raw.header(0)
    }
}

#[test]
fn r5_a_late_credit_never_names_the_next_context_of_its_slot() {
    let mut limits = fast_limits();
    limits.contexts = 1;
    let mut duel = Duel::before_hello(Part {
        limits,
        ..Part::quiet()
    });
    for lane in 0..2 {
        duel.until(|duel| duel.raw.lanes.len() > lane);
        let hello = Hello {
            receive_depth: RECEIVES,
            ..duel.raw.hello(lane)
        };
        let header = posting_again(&duel, 0);
        duel.raw.greet(lane, &header, hello);
    }
    let first = duel.side.puppet(0, "first");
    duel.steps(50);
    let id = duel.side.id_of("first").unwrap();
    // Answers take all receives but one, so that the credit has to wait.
    for request in 0..8 {
        let name = Name::new("nobody").unwrap();
        let header = posting_again(&duel, 0);
        duel.raw.send(0, &header, &Frame::Lookup { request, name });
    }
    let header = Header {
        src: WireContext {
            slot: 3,
            generation: 1,
        },
        dst: id.into(),
        ..posting_again(&duel, 0)
    };
    for _ in 0..8 {
        duel.raw.send(0, &header, &Frame::Message(&[1]));
    }
    duel.until(|_| {
        let events = first.events();
        events
            .iter()
            .any(|event| matches!(event, Event::Message(_)))
    });
    duel.steps(20);
    drop(first.events());
    duel.side.engine.kill(id);
    duel.until(|duel| duel.side.reclaimed(id));
    duel.side.puppet(0, "second");
    duel.steps(20);
    let next = duel.side.id_of("second").unwrap();
    assert_eq!((next.slot, next.generation), (id.slot, id.generation + 1));
    let mut gone = false;
    for frames in 1..40 {
        let header = posting_again(&duel, frames);
        duel.raw
            .send(0, &header, &Frame::KeepAlive { number: frames });
        duel.steps(5);
        for (_, bytes) in duel.raw.inbox.drain(..) {
            match wire::decode(&bytes) {
                Ok((_, Frame::Credit { limits })) => {
                    let names = |limit: wire::CreditLimit| limit.context == next.into();
                    assert!(!limits.iter().any(names), "it has taken no message");
                }
                Ok((_, Frame::ContextGone(_))) => gone = true,
                _ => {}
            }
        }
    }
    assert!(gone, "what waited has come");
}

#[test]
fn r5_a_lane_that_is_admitted_late_knows_what_the_others_were_told() {
    let mut duel = Duel::before_hello(Part::quiet());
    duel.greet(0);
    duel.until(|duel| duel.raw.lanes.len() == 2);
    // The second is on the lane that is not admitted yet.
    duel.side.puppet(0, "first");
    let second = duel.side.puppet(0, "second");
    duel.steps(50);
    let id = duel.side.id_of("second").unwrap();
    assert_eq!(id.slot % 2, 1);
    let header = Header {
        src: WireContext {
            slot: 3,
            generation: 7,
        },
        dst: id.into(),
        ..duel.raw.header(0)
    };
    duel.raw.send(0, &header, &Frame::Message(&[1]));
    let mut from = None;
    duel.until(|_| {
        for event in second.events() {
            if let Event::Message(message) = event {
                from = Some(message.from());
            }
        }
        from.is_some()
    });
    assert_eq!(duel.ups(), 0);
    duel.greet(1);
    duel.until(|duel| duel.ups() == 1);
    let (said, to) = (Slot::new(), from.unwrap());
    let to_said = said.clone();
    second.act(move |cx| to_said.set(cx.send(to, b"an answer", 0)));
    duel.step();
    assert_eq!(said.take(), Some(Ok(())));
}

/// An answer that waited behind other frames: of the context that it names it would never be told that it is gone.
#[test]
fn r5_a_late_answer_names_nobody_who_is_known_to_be_gone() {
    for is_gone in [false, true] {
        let mut duel = Duel::new(Part::quiet());
        let asker = duel.side.puppet(0, "asker");
        duel.steps(5);
        asker.act(|cx| cx.lookup(PeerId(0), "one", 7).unwrap());
        let mut asked = None;
        duel.until(|duel| {
            let mut frames = duel.raw.inbox.drain(..);
            asked = frames.find_map(|(lane, bytes)| match wire::decode(&bytes) {
                Ok((_, Frame::Lookup { request, .. })) => Some((lane, request)),
                _ => None,
            });
            asked.is_some()
        });
        let (lane, request) = asked.unwrap();
        let named = duel.holder(2);
        let header = duel.raw.header(lane);
        if is_gone {
            let gone = Frame::ContextGone(wire::ContextGone {
                context: named.id.into(),
                quarantined_keys: 0,
                quarantined_bytes: 0,
            });
            duel.raw.send(lane, &header, &gone);
        }
        let found = Some(wire::Found {
            context: named.id,
            credit: 1,
        });
        let reply = Frame::LookupReply { request, found };
        duel.raw.send(lane, &header, &reply);
        let mut said = None;
        duel.until(|_| {
            said = asker.events().into_iter().find_map(|event| match event {
                Event::Resolved { token: 7, context } => Some(context),
                _ => None,
            });
            said.is_some()
        });
        let wanted = (!is_gone).then_some(named);
        assert_eq!(said, Some(wanted));
    }
}
