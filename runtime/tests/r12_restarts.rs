//! R12: a peer that starts again may count its sessions as it did before, and name its contexts so. What was had of its last start names
//! nothing of the next.

mod pair;

use keyfence::pmd::wrap::fault::Plan;
use keyfence::{EngineEvent, Event, GrantError, Lease, Local, Message, Rights, SubmitError};
use pair::judged::{Court, Judged, Part};
use pair::scene::{grant, lookup};
use pair::{Pair, Puppet, Side, Slot};

/// Messages that a context takes on each of its two lanes.
const MESSAGES: u32 = 2;

fn part() -> Part {
    let mut part = Part::quiet();
    part.limits.context.messages = MESSAGES;
    part
}

fn count(side: &Side<Judged>, is: fn(&EngineEvent) -> bool) -> usize {
    side.events.iter().filter(|event| is(event)).count()
}

fn ups(side: &Side<Judged>) -> usize {
    count(side, |event| matches!(event, EngineEvent::PeerUp(_)))
}

fn downs(side: &Side<Judged>) -> usize {
    count(side, |event| matches!(event, EngineEvent::PeerDown(_)))
}

/// The left, which begins the sessions, starts again with another incarnation that leads to the same session numbers.
fn restart_left(court: Court) -> Pair<Judged> {
    let Pair {
        left,
        mut right,
        mut now_ns,
        ..
    } = court.pair;
    let downs_before = downs(&right);
    drop(left);
    while downs(&right) == downs_before {
        now_ns += 1_000;
        right.step(now_ns);
        assert!(now_ns < 1_000_000_000, "the loss is noticed");
    }
    let (device, ..) = pair::judged::device(&court.fabric, Plan::default());
    let builder = part().builder("left", "right");
    let seed = pair::seed_of("left") ^ 1 << 100;
    let left = pair::started(builder, device, seed);
    let mut pair = Pair {
        left,
        right,
        now_ns,
        world: None,
    };
    pair.until(|pair| ups(&pair.left) == 1 && ups(&pair.right) == 2);
    pair
}

fn messages(puppet: &Puppet, held: &mut Vec<Message>) {
    let message = |event| match event {
        Event::Message(message) => Some(message),
        _ => None,
    };
    held.extend(puppet.events().into_iter().filter_map(message));
}

#[test]
fn r12_names_of_a_peer_s_last_start_are_refused_though_its_next_one_counts_alike() {
    let mut court = Court::new(part(), part());
    let pair = &mut court.pair;
    let keeper = pair.right.puppet(0, "keeper");
    let stayer = pair.left.puppet(0, "stayer");
    pair.steps(10);
    let old = lookup(pair, &keeper, "stayer");
    let keeper_id = lookup(pair, &stayer, "keeper");
    let import = grant(pair, &stayer, &keeper, keeper_id, 64).import;
    assert_eq!(import.owner, old);

    let mut pair = restart_left(court);
    let stayer = pair.left.puppet(0, "stayer");
    pair.steps(10);
    let new = lookup(&mut pair, &keeper, "stayer");
    assert_eq!((new.peer, new.id), (old.peer, old.id));
    assert_ne!(new, old, "R12: a name is good for one session");
    let new_import = {
        let keeper_id = lookup(&mut pair, &stayer, "keeper");
        grant(&mut pair, &stayer, &keeper, keeper_id, 64).import
    };
    assert_ne!(new_import.id, import.id);

    let tried = Slot::new();
    let to_tried = tried.clone();
    keeper.act(move |cx| {
        let buf = cx.alloc(64).unwrap();
        let local = [Local::prefix(&buf, 64)];
        to_tried.set((
            cx.send(old, b"late", 1),
            cx.grant(&buf, 0..64, Rights::ALL, old, Lease::None),
            cx.write(&import, 0, &local, 2),
            cx.max_message_bytes(&old),
            cx.send(new, b"in time", 3),
            cx.write(&new_import, 0, &local, 4),
        ));
    });
    pair.steps(10);
    let (sent, granted, written, longest, sent_now, written_now) = tried.take().unwrap();
    assert_eq!(sent, Err(SubmitError::NoSession));
    assert_eq!(granted, Err(GrantError::NoSession));
    assert_eq!(written, Err(SubmitError::NoSuchImport));
    assert_eq!(longest, None);
    assert_eq!((sent_now, written_now), (Ok(()), Ok(())));
}

/// Both lanes have the same slots in the next session. A message of the last one, given back then, is no room for one of this one.
#[test]
fn r12_a_message_of_a_peer_s_last_start_gives_no_credit_to_the_next() {
    let mut court = Court::new(part(), part());
    let keeper = court.pair.right.puppet(0, "keeper");
    let mut held = Vec::new();
    // One a lane.
    for name in ["first", "second"] {
        let sender = court.pair.left.puppet(0, name);
        court.pair.steps(10);
        let to = lookup(&mut court.pair, &sender, "keeper");
        sender.act(move |cx| cx.send(to, b"held", 0).unwrap());
        court.pair.steps(50);
        messages(&keeper, &mut held);
    }
    assert_eq!(held.len(), 2);

    let mut pair = restart_left(court);
    let sender = pair.left.puppet(0, "first");
    pair.steps(10);
    let to = lookup(&mut pair, &sender, "keeper");
    // Refused when there is no room.
    let send_more = || {
        for token in 0..2 * u64::from(MESSAGES) {
            sender.act(move |cx| drop(cx.send(to, b"new", token)));
        }
    };
    let mut new = Vec::new();
    send_more();
    pair.steps(200);
    messages(&keeper, &mut new);
    assert_eq!(new.len(), MESSAGES as usize);
    held.clear();
    pair.steps(200);
    send_more();
    pair.steps(200);
    messages(&keeper, &mut new);
    assert_eq!(new.len(), MESSAGES as usize, "R9: the old ones are no room");
    new.pop();
    pair.steps(200);
    send_more();
    pair.steps(200);
    messages(&keeper, &mut new);
    assert_eq!(new.len(), MESSAGES as usize);
}
