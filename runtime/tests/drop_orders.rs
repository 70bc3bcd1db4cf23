//! B49: engines, lcores, clients, buffers and messages dropped in every order, with operations, grants and imports under way. Alone in its
//! process, so that nobody else maps memory where an arena was.

mod pair;

use keyfence::ids::{LcoreId, PeerId};
use keyfence::pmd::Device;
use keyfence::pmd::soft::{Fabric, SoftConfig, SoftDevice};
use keyfence::pmd::wrap::check::{Check, Ledger, Party};
use keyfence::{
    Buf, Client, ClientConfig, ClientEvent, Engine, Event, Lcore, Lease, Locals, Message, Rights,
};
use keyfence_mempool::sync::Arc;
use pair::{Pair, builder};

type Checked = Check<SoftDevice>;

/// What can outlive the rest of its engine.
enum Thing {
    Engine(Box<Engine<Checked>>),
    Lcore(Box<Lcore<<Checked as Device>::Path>>),
    Client(Client),
    Buf(Buf),
    Message(Message),
}

const THINGS: usize = 9;

struct World {
    things: Vec<Thing>,
    ledgers: [Arc<Ledger>; 2],
    /// First addresses of the arenas.
    arenas: [u64; 2],
    now_ns: u64,
}

fn event<T>(
    pair: &mut Pair<Checked>,
    client: &mut Client,
    mut wanted: impl FnMut(ClientEvent) -> Option<T>,
) -> T {
    let mut found = None;
    pair.until(|_| {
        found = client.poll_event().and_then(&mut wanted);
        found.is_some()
    });
    found.unwrap()
}

fn allocate(pair: &mut Pair<Checked>, client: &mut Client, len: usize) -> Buf {
    client.alloc(len, 0).unwrap();
    event(pair, client, |event| match event {
        ClientEvent::Allocated { result, .. } => Some(result.unwrap()),
        _ => None,
    })
}

fn two_devices() -> (Pair<Checked>, [Arc<Ledger>; 2]) {
    let fabric = Fabric::new();
    let device = || Check::new(fabric.device(SoftConfig::default()).unwrap());
    let (left, right) = (device(), device());
    let ledgers = [left.ledger(), right.ledger()];
    let (left_builder, right_builder) = (builder("left", "right", 1), builder("right", "left", 1));
    (Pair::on(left_builder, left, right_builder, right), ledgers)
}

/// A client on each side: the right one has granted a buffer to the left one and sent it a message; the left one writes to it.
fn world() -> World {
    let (mut pair, ledgers) = two_devices();
    let config = ClientConfig::default();
    let mut holder = pair
        .left
        .engine
        .open_client(LcoreId(0), "holder", 1, config)
        .unwrap();
    let mut owner = pair
        .right
        .engine
        .open_client(LcoreId(0), "owner", 1, config)
        .unwrap();
    pair.steps(10);
    owner.lookup(PeerId(0), "holder", 0).unwrap();
    let holder_id = event(&mut pair, &mut owner, |event| match event {
        ClientEvent::Event(Event::Resolved { context, .. }) => context,
        _ => None,
    });
    let granted = allocate(&mut pair, &mut owner, 4096);
    owner
        .grant(granted, 0..4096, Rights::ALL, holder_id, Lease::None, 1)
        .unwrap();
    let granted = event(&mut pair, &mut owner, |event| match event {
        ClientEvent::GrantMade { buf, .. } => Some(buf),
        _ => None,
    });
    owner.send(holder_id, b"kept", 2).unwrap();
    let (mut import, mut message) = (None, None);
    pair.until(|_| {
        match holder.poll_event() {
            Some(ClientEvent::Event(Event::Granted(granted))) => import = Some(granted),
            Some(ClientEvent::Event(Event::Message(came))) => message = Some(came),
            _ => {}
        }
        import.is_some() && message.is_some()
    });
    let kept = allocate(&mut pair, &mut holder, 4096);
    let posted = allocate(&mut pair, &mut holder, 4096);
    let locals = Locals::one(posted, 0..4096);
    holder.write(&import.unwrap(), 0, locals, 3).unwrap();
    pair.left.lcores[0].step(pair.now_ns);
    let Pair {
        left,
        right,
        now_ns,
        ..
    } = pair;
    let arenas = [&left, &right].map(|side| side.engine.arena().address());
    let mut things = vec![
        Thing::Client(holder),
        Thing::Client(owner),
        Thing::Buf(kept),
        Thing::Message(message.unwrap()),
        Thing::Buf(granted),
    ];
    for side in [left, right] {
        things.push(Thing::Engine(Box::new(side.engine)));
        let lcores = side.lcores.into_iter();
        things.extend(lcores.map(|lcore| Thing::Lcore(Box::new(lcore))));
    }
    World {
        things,
        ledgers,
        arenas,
        now_ns,
    }
}

fn end(thing: Thing) {
    match thing {
        // Its memory is there, whatever was dropped before.
        Thing::Buf(buf) => {
            buf.write_at(0, b"mapped").unwrap();
            let mut bytes = [0; 6];
            buf.read_at(0, &mut bytes).unwrap();
            assert_eq!(&bytes, b"mapped");
        }
        Thing::Message(message) => {
            let mut bytes = [0; 4];
            assert!(message.read_at(0, &mut bytes));
            assert_eq!(&bytes, b"kept");
        }
        other => drop(other),
    }
}

/// What is left goes on for a while.
fn go_on(things: &mut [Option<Thing>], now_ns: &mut u64) {
    for _ in 0..30 {
        *now_ns += 1_000;
        for thing in things.iter_mut().flatten() {
            match thing {
                Thing::Engine(engine) => {
                    engine.control(*now_ns);
                    while engine.poll_event().is_some() {}
                }
                Thing::Lcore(lcore) => {
                    lcore.step(*now_ns);
                }
                Thing::Client(client) => drop(client.poll_event()),
                Thing::Buf(_) | Thing::Message(_) => {}
            }
        }
    }
}

/// Whether the page at `address` is mapped.
fn is_mapped(address: u64) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().any(|line| {
        let (start, rest) = line.split_once('-').unwrap();
        let end = rest.split_once(' ').unwrap().0;
        let [start, end] = [start, end].map(|hex| u64::from_str_radix(hex, 16).unwrap());
        (start..end).contains(&address)
    })
}

#[test]
fn b49_engines_lcores_clients_buffers_and_messages_dropped_in_every_order() {
    for first in 0..THINGS {
        for last in (0..THINGS).filter(|last| *last != first) {
            let World {
                things,
                ledgers,
                arenas,
                mut now_ns,
            } = world();
            assert_eq!(things.len(), THINGS);
            assert!(arenas.iter().all(|address| is_mapped(*address)));
            let mut things: Vec<_> = things.into_iter().map(Some).collect();
            let between = (0..THINGS).map(|at| (at + first * last) % THINGS);
            let between = between.filter(|at| *at != first && *at != last);
            for at in [first].into_iter().chain(between).chain([last]) {
                end(things[at].take().unwrap());
                go_on(&mut things, &mut now_ns);
            }
            for ledger in ledgers {
                for party in [Party::Caller, Party::Device] {
                    assert_eq!(ledger.violations(party), 0, "{:?}", ledger.reports());
                }
                let ours = Arc::into_inner(ledger);
                assert!(
                    ours.is_some(),
                    "a device is leaked: {first} first, {last} last"
                );
            }
            for address in arenas {
                assert!(
                    !is_mapped(address),
                    "an arena is leaked: {first} first, {last} last"
                );
            }
        }
    }
}
