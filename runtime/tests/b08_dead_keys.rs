//! B08, R5: the engine of one context posts a dead key again and again, and the lane breaks each time. Another context on that lane loses nothing, and
//! nothing of it comes twice; the engine's owner is told how long each repair took. The dead keys are a device's: no application has a key.

mod pair;

use keyfence::ids::RemoteContext;
use keyfence::pmd::Remote;
use keyfence::pmd::wrap::fault::{Injection, Plan, Span, Target};
use keyfence::{EngineEvent, Event, Import, Local, OpDone, Status};
use pair::judged::{Court, MS, Part};
use pair::scene::{Scene, completions, ends, lookup};
use pair::{Puppet, Slot};

const BREAKS: usize = 200;

/// One lane, rebuilt as often as it breaks.
fn part() -> Part {
    let mut part = Part::quiet();
    part.limits.lanes = 1;
    part.limits.rebuilds = 1024;
    part
}

/// A context that has done nothing wrong: it says numbers, and reads, or writes what may be written twice. (Not both: a read with a write behind it is
/// `Indeterminate`.)
struct Bystander {
    reads: bool,
    sender: Puppet,
    receiver: Puppet,
    to: RemoteContext,
    import: Import,
    next: Slot<u64>,
    heard: Vec<u64>,
    done: Vec<OpDone>,
}

impl Bystander {
    fn new(court: &mut Court, reads: bool) -> Self {
        let pair = &mut court.pair;
        let receiver = pair.right.puppet(0, "receiver");
        let sender = pair.left.puppet(0, "sender");
        pair.steps(10);
        let holder = lookup(pair, &receiver, "sender");
        let import = pair::scene::grant(pair, &receiver, &sender, holder, 4096).import;
        let to = lookup(pair, &sender, "receiver");
        let next = Slot::new();
        next.set(0);
        Self {
            reads,
            sender,
            receiver,
            to,
            import,
            next,
            heard: Vec::new(),
            done: Vec::new(),
        }
    }

    /// What there is room for, each with the next number.
    fn act(&self) {
        let (to, import, next) = (self.to, self.import, self.next.clone());
        let reads = self.reads;
        self.sender.act(move |cx| {
            let mut number = next.take().unwrap();
            let buf = cx.alloc(4096).unwrap();
            let local = [Local::prefix(&buf, 4096)];
            let said = match number % 3 {
                0 if reads => cx.read(&import, 0, &local, number),
                0 => cx.write_idempotent(&import, 0, &local, number),
                _ => cx.send(to, &number.to_le_bytes(), number),
            };
            number += u64::from(said.is_ok());
            next.set(number);
        });
    }

    fn listen(&mut self) {
        for event in self.receiver.events() {
            if let Event::Message(message) = event {
                let mut bytes = [0; 8];
                assert!(message.read_at(0, &mut bytes));
                self.heard.push(u64::from_le_bytes(bytes));
            }
        }
        self.done.extend(completions(&self.sender.events()));
    }

    /// All that it began has ended well, once, and every message came once, in order.
    fn has_lost_nothing(&mut self) {
        let begun = self.next.take().unwrap();
        let bad = self.done.iter().find(|done| done.status != Status::Ok);
        assert_eq!(bad, None);
        let mut tokens: Vec<u64> = self.done.iter().map(|done| done.token).collect();
        tokens.sort_unstable();
        assert_eq!(tokens, (0..begun).collect::<Vec<_>>());
        let said: Vec<u64> = (0..begun).filter(|number| number % 3 != 0).collect();
        assert_eq!(self.heard, said);
        assert!(said.len() > BREAKS, "{} messages", said.len());
    }
}

/// The offender: its device has it use a key that has died.
struct Offender {
    scene: Scene,
    import: Import,
}

impl Offender {
    fn new(court: &mut Court) -> Self {
        let scene = Scene::new(&mut court.pair);
        let dead = scene.grant(&mut court.pair, 4096);
        let key = court.right.first_live_key(dead.range.clone()).unwrap();
        let id = dead.id;
        scene.owner.act(move |cx| {
            cx.revoke(id).unwrap();
            cx.flush(0).unwrap();
        });
        let mut events = Vec::new();
        court.pair.until(|_| {
            events.extend(scene.owner.events());
            ends(&events, id) == (1, 0)
        });
        let live = scene.grant(&mut court.pair, 4096);
        *court.left_switches.forged_within.lock().unwrap() = Some(live.range.clone());
        *court.left_switches.forged.lock().unwrap() = Some(Remote {
            address: key.address,
            rkey: key.rkey,
        });
        Self {
            scene,
            import: live.import,
        }
    }

    fn offend(&self) {
        let import = self.import;
        self.scene.holder.act(move |cx| {
            cx.resume();
            let buf = cx.alloc(8).unwrap();
            let _ = cx.write(&import, 0, &[Local::prefix(&buf, 8)], 0);
        });
    }
}

fn dead_keys_beside(reads: bool) {
    // Late completions, so that others have posted behind each dead key.
    let late = Injection::HoldBack {
        target: Target::Every,
        span: Span::EVERY,
        polls: 20,
    };
    let left = Part {
        plan: Plan::new([late]),
        ..part()
    };
    let mut court = Court::new(left, part());
    let mut bystander = Bystander::new(&mut court, reads);
    let offender = Offender::new(&mut court);
    let repaired = |court: &Court| -> Vec<u64> {
        let took = |event: &EngineEvent| match event {
            EngineEvent::LaneRepaired { took_ns, .. } => Some(*took_ns),
            _ => None,
        };
        court.pair.left.events.iter().filter_map(took).collect()
    };
    for round in 0..BREAKS {
        offender.offend();
        for _ in 0..50_000 {
            bystander.act();
            court.pair.step();
            bystander.listen();
            offender.scene.holder.events();
            if repaired(&court).len() > round {
                break;
            }
        }
        assert_eq!(repaired(&court).len(), round + 1, "each dead key breaks it");
    }
    court.pair.steps(2_000);
    bystander.listen();
    bystander.has_lost_nothing();
    let down = |event: &EngineEvent| matches!(event, EngineEvent::PeerDown(_));
    assert!(!court.pair.left.events.iter().any(down));
    let longest_ns = repaired(&court).into_iter().max().unwrap();
    assert!(longest_ns < MS, "{longest_ns} ns");
    court.acquit();
}

#[test]
fn b08_a_bystander_of_dead_keys_loses_and_doubles_nothing_and_each_repair_is_told() {
    dead_keys_beside(false);
    dead_keys_beside(true);
}
