//! Messages: order, credits, back-pressure.

mod pair;

use keyfence::config::MemoryConfig;
use keyfence::ids::{PeerId, RemoteContext};
use keyfence::pmd::soft::Fabric;
use keyfence::pmd::wrap::fault::{Injection, Plan, Span, Target};
use keyfence::{Event, Local, Message, Status, SubmitError};
use keyfence_mempool::sync::{Arc, AtomicU64, Ordering};
use pair::judged::{Judged, device, fast_limits};
use pair::scene::{Scene, completions};
use pair::{Pair, Puppet, Slot, builder, small_memory};

fn two() -> (
    Pair<keyfence::pmd::soft::SoftDevice>,
    Puppet,
    Puppet,
    RemoteContext,
) {
    let mut pair = Pair::new();
    let from = pair.left.puppet(0, "from");
    let to = pair.right.puppet(0, "to");
    pair.steps(10);
    from.act(|cx| cx.lookup(PeerId(0), "to", 0).unwrap());
    let mut found = None;
    pair.until(|_| {
        if let Some(Event::Resolved { context, .. }) = from.next_event() {
            found = context;
        }
        found.is_some()
    });
    (pair, from, to, found.unwrap())
}

#[test]
fn messages_come_in_order_and_none_is_lost() {
    let (mut pair, from, to, remote) = two();
    let mut expected = 0_u64;
    let sent = Arc::new(AtomicU64::new(0));
    pair.until(|_| {
        let sent = Arc::clone(&sent);
        from.act(move |cx| {
            let number = sent.load(Ordering::Relaxed);
            if number < 300 && cx.send(remote, &number.to_le_bytes(), number).is_ok() {
                sent.store(number + 1, Ordering::Relaxed);
            }
        });
        while let Some(event) = to.next_event() {
            if let Event::Message(message) = event {
                let mut bytes = [0; 8];
                assert!(message.read_at(0, &mut bytes));
                assert_eq!(u64::from_le_bytes(bytes), expected);
                expected += 1;
            }
        }
        expected == 300
    });
    pair.steps(100);
    let done = completions(&from.events());
    assert_eq!(done.len(), 300);
    assert!(done.iter().all(|op| op.status == Status::Ok));
    assert_eq!(
        pair.right.engine.receives_in_use(),
        2 * 64,
        "what the lanes have posted"
    );
}

#[test]
fn b10_a_receiver_that_keeps_its_messages_stops_its_sender_alone() {
    let (mut pair, from, to, remote) = two();
    let other = pair.left.puppet(0, "other");
    let listener = pair.right.puppet(0, "listener");
    pair.steps(10);
    other.act(|cx| cx.lookup(PeerId(0), "listener", 9).unwrap());
    let mut listener_id = None;
    pair.until(|_| {
        if let Some(Event::Resolved { token: 9, context }) = other.next_event() {
            listener_id = context;
        }
        listener_id.is_some()
    });
    let mut kept: Vec<Message> = Vec::new();
    let refused = Slot::new();
    let error = refused.clone();
    from.act(move |cx| error.set((0..64).find_map(|_| cx.send(remote, b"flood", 2).err())));
    pair.steps(500);
    kept.extend(to.events().into_iter().filter_map(|event| match event {
        Event::Message(message) => Some(message),
        _ => None,
    }));
    assert_eq!(kept.len(), 8, "the window of one context");
    let refused = refused.take().unwrap();
    assert_eq!(refused, Some(SubmitError::NoCredit { messages: 8 }));
    let listener_id = listener_id.unwrap();
    let mut heard = 0;
    pair.until(|_| {
        other.act(move |cx| drop(cx.send(listener_id, b"to one that listens", 3)));
        heard += listener
            .events()
            .iter()
            .filter(|event| matches!(event, Event::Message(_)))
            .count();
        heard >= 100
    });
    let before = from.events();
    assert_eq!(completions(&before).len(), 8);
    assert_eq!(before.len(), 8, "nobody tells it that there is room");
    kept.clear();
    pair.until(|_| {
        let events = from.events();
        events.iter().any(|event| matches!(event, Event::Writable))
    });
    from.act(move |cx| cx.send(remote, b"more", 1).unwrap());
}

/// Both sides take messages of 64 KiB, and have 32 KiB in flight on a lane; the left's completions come 50 polls late.
fn short_lane() -> Pair<Judged> {
    let fabric = Fabric::new();
    let late = Injection::HoldBack {
        target: Target::Every,
        span: Span {
            first: 0,
            count: u64::MAX,
        },
        polls: 50,
    };
    let late = Plan {
        injections: vec![late],
    };
    let side = |name, peer| {
        let mut limits = fast_limits();
        limits.receive_depth = 8;
        limits.slice_bytes = 8 << 10;
        limits.lane_bytes_in_flight = 32 << 10;
        let memory = MemoryConfig {
            arena_bytes: 64 << 20,
            receive_buffer_bytes: 64 << 10,
            ..small_memory()
        };
        builder(name, peer, 1).limits(limits).memory(memory)
    };
    let (left, right) = (device(&fabric, late).0, device(&fabric, Plan::default()).0);
    Pair::on(side("left", "right"), left, side("right", "left"), right)
}

#[test]
fn messages_keep_to_what_a_lane_may_have_in_flight() {
    let mut pair = short_lane();
    let scene = Scene::new(&mut pair);
    let to = scene.owner_id;
    pair.steps(200);
    let error = Slot::new();
    let refused = error.clone();
    scene.holder.act(move |cx| {
        let buf = cx.alloc(64 << 10).unwrap();
        let whole = [Local::prefix(&buf, 33 << 10)];
        refused.set(cx.send_from(to, &whole, 1).unwrap_err());
        for token in 0..2 {
            cx.send_from(to, &[Local::prefix(&buf, 20 << 10)], token)
                .unwrap();
        }
    });
    pair.steps(30);
    let Some(SubmitError::TooLong { most, .. }) = error.take() else {
        panic!("a message longer than the lane may have in flight was taken");
    };
    assert!(most < 32 << 10, "{most}");
    let heard = |events: &[Event]| {
        let messages = events.iter();
        messages
            .filter(|event| matches!(event, Event::Message(_)))
            .count()
    };
    assert_eq!(heard(&scene.owner.events()), 1, "the second is to wait");
    let mut more = 0;
    pair.until(|_| {
        more += heard(&scene.owner.events());
        more == 1
    });
}

#[test]
fn b05_the_longest_message_is_what_send_from_takes() {
    let fabric = Fabric::new();
    let side = |name: &str, peer: &str| {
        let mut limits = fast_limits();
        limits.lane_bytes_in_flight = 4096;
        limits.slice_bytes = 4096;
        let memory = MemoryConfig {
            arena_bytes: 64 << 20,
            receive_buffer_bytes: 64 << 10,
            ..small_memory()
        };
        builder(name, peer, 1).limits(limits).memory(memory)
    };
    let (left, ..) = device(&fabric, Plan::default());
    let (right, ..) = device(&fabric, Plan::default());
    let mut pair = Pair::on(side("left", "right"), left, side("right", "left"), right);
    let scene = Scene::new(&mut pair);
    let (said, to) = (Slot::new(), scene.owner_id);
    let to_said = said.clone();
    scene.holder.act(move |cx| {
        let most = cx.max_message_bytes(&to).unwrap();
        let buf = cx.alloc(64 << 10).unwrap();
        let longer = cx.send_from(to, &[Local::prefix(&buf, most + 1)], 1);
        let longest = cx.send_from(to, &[Local::prefix(&buf, most)], 2);
        to_said.set((most, longer, longest));
    });
    pair.step();
    let (most, longer, longest) = said.take().unwrap();
    assert!(matches!(longer, Err(SubmitError::TooLong { most: known, .. }) if known == most));
    assert_eq!(longest, Ok(()), "{most} bytes");
    pair.until(|_| !completions(&scene.holder.events()).is_empty());
}
