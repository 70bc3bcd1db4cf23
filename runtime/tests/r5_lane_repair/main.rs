//! Section 5: a lane that breaks is repaired, and the session goes on. Messages come once and in order, whatever broke when; handles stay valid; what was of unknown end is said to be.

#[path = "../pair/mod.rs"]
mod pair;

mod crossing;
mod unheard;

use std::sync::Arc;

use keyfence::config::Timeouts;
use keyfence::ids::RemoteContext;
use keyfence::pmd::soft::{Fabric, SoftConfig, SoftDevice};
use keyfence::{Context, EngineBuilder, EngineEvent, Event, Local, OpDone, Status};
use pair::scene::{Granted, Scene, completions, ends, lookup};
use pair::switched::{Switched, Switches, on};
use pair::{Pair, Puppet, Slot, builder, small_limits};

type Two = Pair<Switched<SoftDevice>>;

const REBUILDS: u32 = 64;

/// An engine with one lane, which is rebuilt.
fn engine(name: &str, peer: &str) -> EngineBuilder {
    let mut limits = small_limits();
    limits.lanes = 1;
    limits.rebuilds = REBUILDS;
    let timeouts = Timeouts {
        keepalive_interval_ns: 1_000_000,
        ..Timeouts::default()
    };
    builder(name, peer, 1).limits(limits).timeouts(timeouts)
}

fn two() -> (Two, [Arc<Switches>; 2]) {
    two_on(&SoftConfig::default())
}

fn two_on(config: &SoftConfig) -> (Two, [Arc<Switches>; 2]) {
    let fabric = Fabric::new();
    let device = || Switched::new(fabric.device(config.clone()).unwrap());
    let ((left, left_switches), (right, right_switches)) = (device(), device());
    let pair = Pair::on(
        engine("left", "right"),
        left,
        engine("right", "left"),
        right,
    );
    (pair, [left_switches, right_switches])
}

fn repairs(pair: &Two) -> u64 {
    pair.left
        .stat("lanes_repaired")
        .min(pair.right.stat("lanes_repaired"))
}

fn is_down(pair: &Two) -> bool {
    let down = |event: &EngineEvent| matches!(event, EngineEvent::PeerDown(_));
    pair.left.events.iter().chain(&pair.right.events).any(down)
}

/// Breaks the lane from one side, and waits for its repair.
fn break_and_repair(pair: &mut Two, switches: &Switches) {
    let before = repairs(pair);
    on(&switches.break_last);
    pair.until(|pair| repairs(pair) > before);
}

struct Talk {
    sender: Puppet,
    receiver: Puppet,
    to: RemoteContext,
    sent: u64,
    received: Vec<u64>,
    done: Vec<OpDone>,
}

impl Talk {
    fn new(pair: &mut Two) -> Self {
        let sender = pair.left.puppet(0, "sender");
        let receiver = pair.right.puppet(0, "receiver");
        pair.steps(5);
        let to = lookup(pair, &sender, "receiver");
        Self {
            sender,
            receiver,
            to,
            sent: 0,
            received: Vec::new(),
            done: Vec::new(),
        }
    }

    /// Sends the next number if there is room.
    fn send(&mut self) {
        let (to, number) = (self.to, self.sent);
        self.sender.act(move |cx| {
            // Without room it is not said at all.
            let _ = cx.send(to, &number.to_le_bytes(), number);
        });
        self.sent += 1;
    }

    fn listen(&mut self) {
        for event in self.receiver.events() {
            if let Event::Message(message) = event {
                let mut bytes = [0; 8];
                assert!(message.read_at(0, &mut bytes));
                self.received.push(u64::from_le_bytes(bytes));
            }
        }
        for event in self.sender.events() {
            if let Event::Completed(done) = event {
                self.done.push(done);
            }
        }
    }
}

#[test]
fn r5_messages_come_once_and_in_order_over_broken_lanes() {
    let (mut pair, switches) = two();
    let mut talk = Talk::new(&mut pair);
    for round in 0..400 {
        talk.send();
        pair.step();
        talk.listen();
        if round % 40 == 7 {
            on(&switches[(round / 40) % 2].break_last);
        }
        if round % 40 == 39 {
            let wanted = 1 + round as u64 / 40;
            pair.until(|pair| {
                talk.listen();
                repairs(pair) >= wanted
            });
        }
    }
    pair.until(|_| {
        talk.listen();
        talk.received.len() == talk.done.len()
    });
    pair.steps(200);
    talk.listen();
    assert!(!is_down(&pair));
    assert!(
        talk.done.iter().all(|done| done.status == Status::Ok),
        "{:?}",
        talk.done
    );
    let sent: Vec<u64> = talk.done.iter().map(|done| done.token).collect();
    assert_eq!(
        talk.received, sent,
        "once each, in the order of their sends"
    );
    assert!(talk.received.len() > 100, "{}", talk.received.len());
    assert!(repairs(&pair) >= 9);
}

/// Section 5: rebuilds are rate-limited. The session outlives that.
#[test]
fn r5_a_lane_that_breaks_again_and_again_is_rebuilt_less_often() {
    let (mut pair, switches) = two();
    let each_ns = Timeouts::default().reconnect_timeout_ns / u64::from(REBUILDS);
    for _ in 0..REBUILDS {
        break_and_repair(&mut pair, &switches[0]);
    }
    let begun_ns = pair.now_ns;
    assert!(begun_ns < each_ns, "those were at once");
    const MORE: u64 = 5;
    for _ in 0..MORE {
        let wanted = repairs(&pair) + 1;
        on(&switches[0].break_last);
        while repairs(&pair) < wanted {
            pair.step_for(10_000);
            assert!(pair.now_ns - begun_ns < (MORE + 1) * each_ns);
        }
    }
    assert!(pair.now_ns - begun_ns > (MORE - 1) * each_ns);
    assert!(!is_down(&pair));
}

/// Runs an act of a context to its end.
fn now<T: Send + 'static>(
    pair: &mut Two,
    puppet: &Puppet,
    act: impl FnOnce(&mut Context<'_>) -> T + Send + 'static,
) -> T {
    let slot = Slot::new();
    let told = slot.clone();
    puppet.act(move |cx| told.set(act(cx)));
    pair.until(|_| slot.is_set());
    slot.take().unwrap()
}

/// Submits a write of 8 bytes of `value` to the import, or one that may be repeated.
fn write(cx: &mut Context<'_>, granted: &Granted, value: u64, token: u64, idempotent: bool) {
    let buf = cx.alloc(8).unwrap();
    buf.write_at(0, &value.to_le_bytes()).unwrap();
    let (import, from) = (&granted.import, [Local::prefix(&buf, 8)]);
    match idempotent {
        true => cx.write_idempotent(import, 0, &from, token),
        false => cx.write(import, 0, &from, token),
    }
    .unwrap();
    cx.free(buf);
}

fn word(granted: &Granted) -> u64 {
    let buf = granted.buf.take().unwrap();
    let mut bytes = [0; 8];
    buf.read_at(0, &mut bytes).unwrap();
    granted.buf.set(buf);
    u64::from_le_bytes(bytes)
}

fn done_of(pair: &mut Two, puppet: &Puppet, tokens: &[u64]) -> Vec<Status> {
    let mut done: Vec<OpDone> = Vec::new();
    pair.until(|_| {
        done.extend(completions(&puppet.events()));
        done.len() >= tokens.len()
    });
    let of = |token: &u64| done.iter().find(|done| done.token == *token);
    tokens
        .iter()
        .map(|token| of(token).unwrap().status)
        .collect()
}

#[test]
fn r5_imports_and_grants_stay_valid_over_a_repair() {
    let (mut pair, switches) = two();
    let scene = Scene::new(&mut pair);
    let granted = Arc::new(scene.grant(&mut pair, 4096));
    for round in 1..5 {
        break_and_repair(&mut pair, &switches[round as usize % 2]);
        let with = Arc::clone(&granted);
        now(&mut pair, &scene.holder, move |cx| {
            write(cx, &with, round, round, false)
        });
        assert_eq!(done_of(&mut pair, &scene.holder, &[round]), [Status::Ok]);
        assert_eq!(word(&granted), round);
    }
    let id = granted.id;
    now(&mut pair, &scene.owner, move |cx| cx.revoke(id).unwrap());
    let mut events = Vec::new();
    pair.until(|_| {
        events.extend(scene.owner.events());
        ends(&events, id) == (1, 0)
    });
    assert!(!is_down(&pair));
    assert_eq!(pair.right.used(|usage| usage.grants.into()), 0);
    assert_eq!(pair.left.used(|usage| usage.imports.into()), 0);
}

/// Steps of the left alone: the right sees nothing of it meanwhile.
fn left_alone(pair: &mut Two, steps: usize) {
    for _ in 0..steps {
        pair.now_ns += 1_000;
        let now_ns = pair.now_ns;
        pair.left.step(now_ns);
    }
}

/// Breaks the lane from the right with what was just submitted on the left posted and not executed: the lcore on the right does not step meanwhile.
fn break_with_posted(pair: &mut Two, switches: &[Arc<Switches>; 2]) {
    left_alone(pair, 1);
    on(&switches[1].break_last);
    pair.right.engine.control(pair.now_ns);
}

#[test]
fn r5_behind_a_write_of_unknown_end_nothing_is_said_until_the_context_resumes() {
    let (mut pair, switches) = two();
    let scene = Scene::new(&mut pair);
    let granted = Arc::new(scene.grant(&mut pair, 4096));
    let (with, to) = (Arc::clone(&granted), scene.owner_id);
    scene.holder.act(move |cx| {
        write(cx, &with, 7, 1, false);
        cx.send(to, b"ready", 2).unwrap();
    });
    break_with_posted(&mut pair, &switches);
    let statuses = done_of(&mut pair, &scene.holder, &[1, 2]);
    assert_eq!(statuses, [Status::Indeterminate, Status::NotSent]);
    // What comes behind is not sent either.
    now(&mut pair, &scene.holder, move |cx| {
        cx.send(to, b"more", 3).unwrap()
    });
    assert_eq!(done_of(&mut pair, &scene.holder, &[3]), [Status::NotSent]);
    now(&mut pair, &scene.holder, move |cx| {
        cx.resume();
        cx.send(to, b"again", 4).unwrap();
    });
    assert_eq!(done_of(&mut pair, &scene.holder, &[4]), [Status::Ok]);
    pair.steps(50);
    let heard: Vec<usize> = scene.owner.events().iter().filter_map(length).collect();
    assert_eq!(heard, [5], "\"again\" alone");
}

fn length(event: &Event) -> Option<usize> {
    match event {
        Event::Message(message) => Some(message.len()),
        _ => None,
    }
}

#[test]
fn r5_what_may_be_repeated_is_and_what_stands_behind_it_is_said() {
    let (mut pair, switches) = two();
    let scene = Scene::new(&mut pair);
    let granted = Arc::new(scene.grant(&mut pair, 4096));
    let (with, to) = (Arc::clone(&granted), scene.owner_id);
    scene.holder.act(move |cx| {
        write(cx, &with, 9, 1, true);
        cx.send(to, b"ready", 2).unwrap();
    });
    break_with_posted(&mut pair, &switches);
    let statuses = done_of(&mut pair, &scene.holder, &[1, 2]);
    assert_eq!(statuses, [Status::Ok, Status::Ok]);
    assert_eq!(word(&granted), 9);
    pair.steps(50);
    assert_eq!(scene.owner.events().iter().filter_map(length).count(), 1);
    assert!(!is_down(&pair) && repairs(&pair) == 1);
}

#[test]
fn r5_what_is_submitted_while_a_lane_is_repaired_waits_for_it() {
    let (mut pair, switches) = two();
    let scene = Scene::new(&mut pair);
    let (to, holder) = (scene.owner_id, scene.holder_id);
    on(&switches[0].break_last);
    pair.until(|pair| pair.left.stat("lanes_broken") > 0);
    let grant = Slot::new();
    let told = grant.clone();
    scene.owner.act(move |cx| {
        let buf = cx.alloc(64).unwrap();
        let rights = keyfence::Rights::READ_WRITE;
        let id = cx.grant(&buf, 0..64, rights, holder, keyfence::Lease::None);
        told.set((id.unwrap(), buf));
    });
    scene.holder.act(move |cx| cx.send(to, b"x", 1).unwrap());
    pair.until(|pair| repairs(pair) == 1);
    let mut events = Vec::new();
    pair.until(|_| {
        events.extend(scene.holder.events());
        let granted = |event: &Event| matches!(event, Event::Granted(_));
        events.iter().any(granted) && completions(&events).len() == 1
    });
    assert_eq!(completions(&events)[0].status, Status::Ok);
    assert!(grant.is_set());
}
