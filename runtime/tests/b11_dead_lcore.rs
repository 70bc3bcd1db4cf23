//! B11: an lcore dies by a panic. Whoever has business with it hears so within a second; the other lcores of its engine go on.

mod pair;

use std::panic::{AssertUnwindSafe, catch_unwind};

use keyfence::ids::{ContextId, LcoreId, PeerId, RemoteContext};
use keyfence::{
    Client, ClientConfig, ClientEvent, CommandError, EngineEvent, Local, Status, SubmitError,
};
use pair::judged::{Court, Judged, Part};
use pair::scene::{completions, grant, lookup};
use pair::switched::on;
use pair::{Pair, Puppet, Slot};

const SECOND_NS: u64 = 1_000_000_000;

/// The timeouts are those of a file that names none.
fn court() -> Court {
    let part = || Part {
        lcores: 2,
        timeouts: keyfence::config::Timeouts::default(),
        ..Part::quiet()
    };
    Court::new(part(), part())
}

/// Steps of both, a right lcore at a time, so that one may be missing.
#[track_caller]
fn steps_until(
    pair: &mut Pair<Judged>,
    bound_ns: u64,
    mut done: impl FnMut(&mut Pair<Judged>) -> bool,
) -> u64 {
    let began_ns = pair.now_ns;
    while !done(pair) {
        pair.step_for(20_000);
        let waited_ns = pair.now_ns - began_ns;
        assert!(waited_ns < bound_ns, "not within {bound_ns} ns");
    }
    pair.now_ns - began_ns
}

/// A right lcore panics in its step, and goes as a thread's would.
fn dies(court: &mut Court) {
    on(&court.right_switches.panics);
    let mut lcore = court.pair.right.lcores.remove(0);
    let now_ns = court.pair.now_ns;
    let died = catch_unwind(AssertUnwindSafe(move || {
        lcore.step(now_ns);
    }));
    assert!(died.is_err());
}

/// A context on a dying lcore of the right's, with a partner on the left's lcore of the same number.
struct Couple {
    client: Client,
    partner: Puppet,
    to_client: RemoteContext,
    import: keyfence::Import,
}

fn opened(pair: &mut Pair<Judged>, lcore: u16, name: &str) -> (Client, ContextId) {
    let config = ClientConfig::default();
    let right = &mut pair.right.engine;
    let mut client = right.open_client(LcoreId(lcore), name, 1, config).unwrap();
    let mut id = None;
    pair.until(|_| {
        if let Some(ClientEvent::Opened { context }) = client.poll_event() {
            id = Some(context);
        }
        id.is_some()
    });
    (client, id.unwrap())
}

impl Couple {
    fn new(pair: &mut Pair<Judged>, lcore: u16) -> Self {
        let names = [["client 0", "partner 0"], ["client 1", "partner 1"]];
        let [client, partner] = names[usize::from(lcore)];
        let (client, id) = opened(pair, lcore, client);
        let owner_name = ["owner 0", "owner 1"][usize::from(lcore)];
        let owner = pair.right.puppet(lcore, owner_name);
        let puppet = pair.left.puppet(lcore, partner);
        pair.steps(10);
        let holder = lookup(pair, &owner, partner);
        let import = grant(pair, &owner, &puppet, holder, 4096).import;
        let to_client = lookup(pair, &puppet, names[usize::from(lcore)][0]);
        assert_eq!(to_client.id, id);
        Self {
            client,
            partner: puppet,
            to_client,
            import,
        }
    }

    /// The partner writes and sends, as often as it may in one poll.
    fn submit(&self) -> Slot<u64> {
        let (import, to, count) = (self.import, self.to_client, Slot::new());
        let to_count = count.clone();
        self.partner.act(move |cx| {
            let buf = cx.alloc(4096).unwrap();
            let mut submitted = 0;
            for token in 0..8 {
                let write = cx.write(&import, 0, &[Local::prefix(&buf, 4096)], token);
                submitted += u64::from(write.is_ok());
                submitted += u64::from(cx.send(to, b"?", token).is_ok());
            }
            to_count.set(submitted);
        });
        count
    }
}

/// The partner's operations, until all have ended; how they did.
#[track_caller]
fn ended(pair: &mut Pair<Judged>, partner: &Puppet, count: u64) -> Vec<Status> {
    let mut done = Vec::new();
    steps_until(pair, SECOND_NS, |_| {
        done.extend(completions(&partner.events()));
        done.len() as u64 == count
    });
    done.iter().map(|done| done.status).collect()
}

#[test]
fn b11_all_who_have_business_with_a_dead_lcore_hear_so_within_a_second() {
    let mut court = court();
    let mut doomed = Couple::new(&mut court.pair, 0);
    let count = doomed.submit();
    court.pair.left.step(court.pair.now_ns);
    let count = count.take().unwrap();
    assert!(count >= 8, "{count}");
    // A command that the lcore has not taken when it dies.
    doomed.client.flush(1).unwrap();
    court.pair.right.events.clear();
    dies(&mut court);
    let pair = &mut court.pair;
    // Its owner.
    let told = |event: &EngineEvent| *event == EngineEvent::LcoreDied(LcoreId(0));
    steps_until(pair, SECOND_NS, |pair| pair.right.events.iter().any(told));
    // Its client: every call.
    steps_until(pair, SECOND_NS, |_| doomed.client.is_closed());
    let client = &mut doomed.client;
    assert_eq!(client.alloc(64, 2), Err(CommandError::Closed(())));
    assert_eq!(client.flush(3), Err(CommandError::Closed(())));
    let unknown = client.lookup(PeerId(0), "partner 0", 4);
    assert!(unknown.is_err(), "{unknown:?}");
    // Its partner at the other engine: what is under way ends, and what comes then is refused.
    let statuses = ended(pair, &doomed.partner, count);
    let known = |status: &Status| matches!(status, Status::Ok | Status::PeerLost);
    assert!(statuses.iter().all(known), "{statuses:?}");
    // And what it asks for then is refused, by a word that says why.
    let said = Slot::new();
    let (to_said, import, to) = (said.clone(), doomed.import, doomed.to_client);
    doomed.partner.act(move |cx| {
        let buf = cx.alloc(64).unwrap();
        let write = cx.write(&import, 0, &[Local::prefix(&buf, 64)], 1);
        to_said.set((write, cx.send(to, b"?", 2)));
    });
    pair.step();
    let (write, send) = said.take().unwrap();
    assert!(matches!(write, Err(SubmitError::NoSuchImport)), "{write:?}");
    assert!(matches!(send, Err(SubmitError::NoSession)), "{send:?}");
    assert_eq!(pair.left.used(|usage| usage.ops), 0);
    let deaths = pair.right.events.iter().filter(|event| told(event));
    assert_eq!(deaths.count(), 1);
}

#[test]
fn b11_who_lives_on_another_lcore_lives_on() {
    let mut court = court();
    let mut couples = [0, 1].map(|lcore| Couple::new(&mut court.pair, lcore));
    dies(&mut court);
    let pair = &mut court.pair;
    let survivor = &mut couples[1].client;
    survivor.alloc(64, 1).unwrap();
    let mut buf = None;
    steps_until(pair, SECOND_NS, |_| {
        if let Some(ClientEvent::Allocated { result, .. }) = survivor.poll_event() {
            buf = Some(result.unwrap());
        }
        buf.is_some()
    });
    let (_newcomer, id) = opened(pair, 1, "newcomer");
    pair.right.engine.kill(id);
    steps_until(pair, SECOND_NS, |pair| pair.right.reclaimed(id));
    assert!(!couples[1].client.is_closed());
}
