//! B16: a context is closed with everything under way and its slot opened again at once. The new one hears nothing of what the old one had begun.

mod pair;

use std::sync::Mutex;

use keyfence::ids::{ContextId, GrantId, LcoreId, PeerId, RemoteContext};
use keyfence::pmd::wrap::fault::{Injection, Plan, Span, Target};
use keyfence::{
    Buf, Client, ClientConfig, ClientEvent, Context, Event, Import, Lease, Local, Locals, Rights,
    Service, Work,
};
use keyfence_mempool::sync::Arc;
use pair::Puppet;
use pair::judged::{Court, Part, fast_limits};
use pair::scene::lookup;

const BYTES: usize = 256 << 10;

/// The left has one slot, and its completions come so many polls late.
fn court(polls: u64) -> Court {
    let late = Injection::HoldBack {
        target: Target::Every,
        span: Span::EVERY,
        polls,
    };
    let mut limits = fast_limits();
    limits.contexts = 1;
    let left = Part {
        limits,
        ..Part::new(Plan::new([late]))
    };
    Court::new(left, Part::quiet())
}

/// What one life was told, by what could be mistaken for another's: tokens and names.
#[derive(Default, Debug)]
struct Told {
    tokens: Vec<u64>,
    grants: Vec<GrantId>,
    messages: Vec<u64>,
}

impl Told {
    /// Whether all of it is of life `number`, whose grants those are.
    fn is_of(&self, number: u64, grants: &[GrantId]) -> bool {
        self.tokens.iter().all(|token| token >> 8 == number)
            && self.messages.iter().all(|told| *told == number)
            && self.grants.iter().all(|told| grants.contains(told))
    }
}

/// One life of the slot. Everything that it begins carries its number, but for the names that the runtime gives.
struct Life {
    number: u64,
    owner: RemoteContext,
    import: Option<Import>,
    begun: bool,
    grants: Arc<Mutex<Vec<GrantId>>>,
    told: Arc<Mutex<Told>>,
}

type Record = (Arc<Mutex<Vec<GrantId>>>, Arc<Mutex<Told>>);

impl Life {
    /// What the test sees of it comes with it.
    fn new(number: u64, owner: RemoteContext) -> (Self, Record) {
        let record = Record::default();
        let life = Self {
            number,
            owner,
            import: None,
            begun: false,
            grants: Arc::clone(&record.0),
            told: Arc::clone(&record.1),
        };
        (life, record)
    }

    fn token(&self, at: u64) -> u64 {
        self.number << 8 | at
    }

    /// As many things at once as there are kinds, and no waiting for any.
    fn begin(&mut self, cx: &mut Context<'_>, import: &Import) {
        let buf: Buf = cx.alloc(BYTES).unwrap();
        let local = [Local::prefix(&buf, BYTES)];
        for at in 0..4 {
            cx.write(import, 0, &local, self.token(4 * at)).unwrap();
            cx.read(import, 0, &local, self.token(4 * at + 1)).unwrap();
            cx.fetch_add(import, 0, 1, self.token(4 * at + 2)).unwrap();
            let _ = cx.send(self.owner, b"from one life", self.token(4 * at + 3));
        }
        cx.lookup(PeerId(0), "nobody", self.token(100)).unwrap();
        let lease = Lease::None;
        let made = cx.grant(&buf, 0..64, Rights::ALL, self.owner, lease);
        let made = made.unwrap();
        self.grants.lock().unwrap().push(made);
        cx.revoke(made).unwrap();
        cx.flush(self.token(101)).unwrap();
    }
}

impl Service for Life {
    fn poll(&mut self, cx: &mut Context<'_>) -> Work {
        if let (Some(import), false) = (self.import, self.begun) {
            self.begun = true;
            self.begin(cx, &import);
        } else if self.begun && self.number.is_multiple_of(2) {
            // What it began is posted by now.
            cx.close();
        }
        Work::Idle
    }

    fn on_event(&mut self, _cx: &mut Context<'_>, event: Event) {
        let mut told = self.told.lock().unwrap();
        match event {
            Event::Completed(done) => told.tokens.push(done.token),
            Event::Flushed { token, .. } | Event::Resolved { token, .. } => told.tokens.push(token),
            Event::Zapped(grant) | Event::GrantQuarantined(grant) => told.grants.push(grant),
            Event::Granted(import) => {
                self.import.get_or_insert(import);
            }
            Event::Message(message) => {
                let mut bytes = [0; 8];
                assert!(message.read_at(0, &mut bytes));
                told.messages.push(u64::from_le_bytes(bytes));
            }
            _ => {}
        }
    }
}

/// The owner on the right, and how the left knows it.
struct Scene {
    court: Court,
    owner: Puppet,
    owner_id: RemoteContext,
    /// The life before: closed, or about to be.
    last: Option<ContextId>,
    /// How the owner knows it, and its number.
    told: Option<(RemoteContext, u64)>,
}

impl Scene {
    fn new(polls: u64) -> Self {
        let mut court = court(polls);
        let owner = court.pair.right.puppet(0, "owner");
        let asks = court.pair.left.puppet(0, "asks");
        court.pair.steps(10);
        let owner_id = lookup(&mut court.pair, &asks, "owner");
        let id = court.pair.left.id_of("asks").unwrap();
        court.pair.left.engine.kill(id);
        Self {
            court,
            owner,
            owner_id,
            last: Some(id),
            told: None,
        }
    }

    /// The owner sends to the life before, as long as it does not know better.
    fn say(&self) {
        let Some((to, number)) = self.told else {
            return;
        };
        self.owner.act(move |cx| {
            let _ = cx.send(to, &number.to_le_bytes(), 0);
        });
    }

    /// Asks for the slot with each step, until it is given.
    fn open<T>(&mut self, ask: impl Fn(&mut Self) -> T) -> T {
        for _ in 0..20_000 {
            self.court.pair.left.events.clear();
            let asked = ask(self);
            self.say();
            self.court.pair.step();
            if let Some(id) = self.court.pair.left.id_of("life") {
                let last = self.last.replace(id).unwrap();
                assert_eq!(id.slot, last.slot);
                assert!(id.generation > last.generation);
                return asked;
            }
        }
        panic!("the slot is never free: {:?}", self.court.pair.left.lcores);
    }

    /// The owner gives the new life something to work with, and tells it its number.
    fn feed(&mut self, number: u64) {
        let to = lookup(&mut self.court.pair, &self.owner, "life");
        self.told = Some((to, number));
        self.owner.act(move |cx| {
            let buf = cx.alloc(BYTES).unwrap();
            cx.grant(&buf, 0..BYTES, Rights::ALL, to, Lease::None)
                .unwrap();
            for _ in 0..3 {
                cx.send(to, &number.to_le_bytes(), 0).unwrap();
            }
        });
    }

    fn end(self, lives: u64) {
        let left = &self.court.pair.left;
        let with_ops = left.stat("cordons_with_ops_in_flight");
        assert!(with_ops > lives * 9 / 10, "{with_ops} of {lives}");
        assert_eq!(left.stat("lanes_broken"), 0);
        assert_eq!(left.stat("services_panicked"), 0);
        self.court.acquit();
    }
}

fn services(polls: u64) {
    const LIVES: u64 = 120;
    let mut scene = Scene::new(polls);
    let mut records = Vec::new();
    for number in 1..=LIVES {
        let record = scene.open(|scene| {
            let (life, record) = Life::new(number, scene.owner_id);
            let left = &mut scene.court.pair.left.engine;
            left.open(LcoreId(0), "life", 1, Box::new(life)).unwrap();
            record
        });
        scene.feed(number);
        let begun = Arc::clone(&record.0);
        scene
            .court
            .pair
            .until(|_| !begun.lock().unwrap().is_empty());
        records.push((number, record));
        // Every other one closes itself.
        if number % 2 != 0 {
            scene.court.pair.left.engine.kill(scene.last.unwrap());
        }
    }
    scene.court.pair.steps(2_000);
    for (number, (grants, told)) in records {
        let (grants, told) = (grants.lock().unwrap(), told.lock().unwrap());
        assert!(told.is_of(number, &grants), "life {number}: {told:?}");
    }
    scene.end(LIVES);
}

#[test]
fn b16_a_service_in_a_slot_opened_again_hears_nothing_of_the_one_before() {
    for polls in [3, 9, 60] {
        services(polls);
    }
}

/// Does with a client what [`Life::begin`] does.
fn begin(scene: &mut Scene, client: &mut Client, number: u64, told: &mut Told) {
    let token = |at: u64| number << 8 | at;
    for at in 0..6 {
        client.alloc(BYTES, token(at)).unwrap();
    }
    let (mut bufs, mut import) = (Vec::new(), None);
    while bufs.len() < 6 || import.is_none() {
        scene.court.pair.step();
        while let Some(event) = client.poll_event() {
            match event {
                ClientEvent::Allocated { token, result } => {
                    told.tokens.push(token);
                    bufs.push(result.unwrap());
                }
                ClientEvent::Event(Event::Granted(granted)) => import = Some(granted),
                other => hear(told, other),
            }
        }
    }
    let import = import.unwrap();
    for (at, buf) in (0..).zip(bufs) {
        let locals = Locals::one(buf, 0..BYTES);
        match at % 2 {
            0 => client.write(&import, 0, locals, token(10 + at)).unwrap(),
            _ => client.read(&import, 0, locals, token(10 + at)).unwrap(),
        }
    }
    client.fetch_add(&import, 0, 1, token(20)).unwrap();
    client.send(scene.owner_id, b"?", token(21)).unwrap();
    client.lookup(PeerId(0), "nobody", token(22)).unwrap();
    client.flush(token(23)).unwrap();
}

fn hear(told: &mut Told, event: ClientEvent) {
    match event {
        ClientEvent::Completed { done, .. } => told.tokens.push(done.token),
        ClientEvent::Refused { token, .. } | ClientEvent::Allocated { token, .. } => {
            told.tokens.push(token);
        }
        ClientEvent::Event(Event::Flushed { token, .. } | Event::Resolved { token, .. }) => {
            told.tokens.push(token);
        }
        ClientEvent::Event(Event::Message(message)) => {
            let mut bytes = [0; 8];
            assert!(message.read_at(0, &mut bytes));
            told.messages.push(u64::from_le_bytes(bytes));
        }
        _ => {}
    }
}

fn clients(polls: u64) {
    const LIVES: u64 = 120;
    let mut scene = Scene::new(polls);
    for number in 1..=LIVES {
        let mut client = scene.open(|scene| {
            let left = &mut scene.court.pair.left.engine;
            let config = ClientConfig::default();
            left.open_client(LcoreId(0), "life", 1, config).unwrap()
        });
        scene.feed(number);
        let mut told = Told::default();
        begin(&mut scene, &mut client, number, &mut told);
        // Taken, and posted in part.
        scene.court.pair.step();
        match number % 3 {
            0 => client.close().unwrap(),
            1 => scene.court.pair.left.engine.kill(scene.last.unwrap()),
            _ => {}
        }
        while let Some(event) = client.poll_event() {
            hear(&mut told, event);
        }
        assert!(told.is_of(number, &[]), "life {number}: {told:?}");
        drop(client);
    }
    scene.court.pair.steps(2_000);
    scene.end(LIVES);
}

#[test]
fn b16_a_client_in_a_slot_opened_again_hears_nothing_of_the_one_before() {
    for polls in [3, 9, 60] {
        clients(polls);
    }
}
