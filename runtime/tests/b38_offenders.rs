//! B38, section 5: a context whose engine uses dead keys again and again, ten thousand times. Its lane is rebuilt at a bounded rate, others on it lose nothing, what is told and logged stays bounded, and by
//! configuration the offender is expelled.

mod pair;

use keyfence::ids::{ContextId, RemoteContext};
use keyfence::{EngineEvent, Event, Local, Status};
use keyfence_mempool::sync::{Arc, AtomicU64, Ordering};
use pair::judged::{Court, MS, Part, US};
use pair::offender::{Books, Offender};
use pair::scene::{completions, grant, lookup};
use pair::{Puppet, Slot};

const BAD: u64 = 10_000;

const REBUILDS: u32 = 16;

fn part(offences: u32) -> Part {
    let mut part = Part::quiet();
    part.limits.lanes = 1;
    part.limits.rebuilds = REBUILDS;
    part.limits.context.offences = offences;
    part
}

/// The holder on the left offends.
fn offender(court: &mut Court) -> Offender {
    let books = Books {
        right: &court.right,
        left: &court.left_switches,
    };
    Offender::new(&mut court.pair, &books)
}

/// Someone who says a number after the other on the same lane.
struct Bystander {
    sender: Puppet,
    receiver: Puppet,
    to: RemoteContext,
    said: Slot<u64>,
    heard: u64,
    done: u64,
}

impl Bystander {
    fn new(court: &mut Court) -> Self {
        let pair = &mut court.pair;
        let (receiver, sender) = (
            pair.right.puppet(0, "receiver"),
            pair.left.puppet(0, "sender"),
        );
        pair.steps(10);
        let to = lookup(pair, &sender, "receiver");
        let said = Slot::new();
        said.set(0);
        Self {
            sender,
            receiver,
            to,
            said,
            heard: 0,
            done: 0,
        }
    }

    fn act(&mut self) {
        let (to, said) = (self.to, self.said.clone());
        self.sender.act(move |cx| {
            let number = said.take().unwrap();
            let sent = cx.send(to, &number.to_le_bytes(), number);
            said.set(number + u64::from(sent.is_ok()));
        });
        self.listen();
    }

    fn listen(&mut self) {
        for event in self.receiver.events() {
            if let Event::Message(message) = event {
                let mut bytes = [0; 8];
                assert!(message.read_at(0, &mut bytes));
                assert_eq!(u64::from_le_bytes(bytes), self.heard, "once, and in order");
                self.heard += 1;
            }
        }
        for done in completions(&self.sender.events()) {
            assert_eq!((done.status, done.token), (Status::Ok, self.done));
            self.done += 1;
        }
    }
}

fn count(court: &Court, what: impl Fn(&EngineEvent) -> bool) -> u64 {
    let events = court
        .pair
        .left
        .events
        .iter()
        .chain(&court.pair.right.events);
    events.filter(|event| what(event)).count() as u64
}

/// Counts the lines that are logged, those for debugging apart.
#[derive(Default)]
struct Lines(AtomicU64);

impl tracing::Subscriber for Lines {
    fn enabled(&self, of: &tracing::Metadata<'_>) -> bool {
        *of.level() <= tracing::Level::INFO
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, _: &tracing::Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

/// Rebuilds of one lane that `ns` have room for.
fn rebuilds_within(ns: u64) -> u64 {
    let window_ns = Part::quiet().timeouts.reconnect_timeout_ns;
    u64::from(REBUILDS) * (1 + ns.div_ceil(window_ns))
}

#[test]
fn b38_ten_thousand_bad_operations_cost_others_nothing_but_time() {
    let lines = Arc::new(Lines::default());
    let _logged = tracing::subscriber::set_default(Arc::clone(&lines));
    let mut court = Court::new(part(0), part(0));
    let mut bystander = Bystander::new(&mut court);
    let offence = offender(&mut court);
    let (import, bad) = (offence.import, Slot::new());
    bad.set(0);
    let begun_ns = court.pair.now_ns;
    let mut ended = 0;
    while ended < BAD {
        let bad = bad.clone();
        offence.scene.holder.act(move |cx| {
            cx.resume();
            let buf = cx.alloc(8).unwrap();
            let mut begun = bad.take().unwrap();
            while begun < BAD
                && cx
                    .write(&import, 0, &[Local::prefix(&buf, 8)], begun)
                    .is_ok()
            {
                begun += 1;
            }
            bad.set(begun);
            cx.free(buf);
        });
        bystander.act();
        court.pair.step_for(2 * US);
        let events = offence.scene.holder.events();
        let done = completions(&events);
        assert!(done.iter().all(|done| done.status != Status::Ok));
        ended += done.len() as u64;
    }
    // The last break is repaired, and all that waited for it is said.
    let said = bystander.said.take().unwrap();
    court.pair.until(|_| {
        bystander.listen();
        (bystander.heard, bystander.done) == (said, said)
    });
    let repairs = court.pair.left.stat("lanes_repaired");
    assert!(said > 4 * repairs, "{said} messages over {repairs} repairs");
    let most = rebuilds_within(court.pair.now_ns - begun_ns);
    let repairs = court.pair.left.stat("lanes_repaired");
    assert!(
        (u64::from(REBUILDS)..=most).contains(&repairs),
        "{repairs} of {most}"
    );
    // Named, once a break, and left alone by configuration.
    let holder_id = court.pair.left.id_of("holder").unwrap();
    let named = |event: &EngineEvent| matches!(event, EngineEvent::Offence { context, is_expelled: false, .. } if *context == holder_id);
    let offences = count(&court, named);
    assert!(
        (repairs..=repairs + 1).contains(&offences),
        "{offences} for {repairs}"
    );
    assert_eq!(
        offences,
        count(&court, |event| matches!(event, EngineEvent::Offence { .. }))
    );
    assert_eq!(court.pair.left.stat("offences"), offences);
    assert_eq!(
        count(&court, |event| matches!(event, EngineEvent::PeerDown(_))),
        0
    );
    let logged = lines.0.load(Ordering::Relaxed);
    assert!(logged <= 4 * most, "{logged} lines for {repairs} repairs");
    court.acquit();
}

#[test]
fn b38_an_offender_is_expelled_by_configuration_and_others_go_on() {
    let mut court = Court::new(part(3), part(3));
    let mut bystander = Bystander::new(&mut court);
    let offence = offender(&mut court);
    let holder_id = court.pair.left.id_of("holder").unwrap();
    let expelled = |court: &Court, id: ContextId| {
        let is = |event: &EngineEvent| matches!(event, EngineEvent::Offence { context, is_expelled: true, offences: 3, .. } if *context == id);
        count(court, is)
    };
    for _ in 0..40 * MS / US {
        offence.offend();
        bystander.act();
        court.pair.step();
        if court.pair.left.reclaimed(holder_id) {
            break;
        }
    }
    assert!(court.pair.left.reclaimed(holder_id));
    assert_eq!(expelled(&court, holder_id), 1);
    assert_eq!(court.pair.left.stat("contexts_expelled"), 1);
    assert_eq!(court.pair.left.stat("lanes_broken"), 3);
    let heard = bystander.heard;
    for _ in 0..2_000 {
        bystander.act();
        court.pair.step();
    }
    assert!(bystander.heard > heard);
    // Its name is free again.
    let again = court.pair.left.puppet(0, "holder");
    court.pair.steps(10);
    let id = court.pair.left.id_of("holder").unwrap();
    assert_ne!(id, holder_id);
    let holder = lookup(&mut court.pair, &offence.scene.owner, "holder");
    drop(grant(
        &mut court.pair,
        &offence.scene.owner,
        &again,
        holder,
        64,
    ));
    court.acquit();
}
