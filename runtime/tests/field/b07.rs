//! Field case B07, for any device: after a forced queue pair error, what was submitted completes, for every context.

use std::sync::Mutex;

use keyfence::ids::LcoreId;
use keyfence::pmd::Device;
use keyfence::{Buf, Context, EngineEvent, Event, Import, Lease, Local, Rights, Service, Work};
use keyfence::{OpDone, OpKind, Status};
use keyfence_mempool::sync::{Arc, AtomicBool, AtomicU64, Ordering};

use crate::pair::scene::lookup;
use crate::pair::switched::{Switched, Switches, on};
use crate::pair::{Pair, Puppet};

/// The contexts that submit.
const NAMES: [&str; 4] = ["worker-0", "worker-1", "worker-2", "worker-3"];

/// Operations of one in flight.
const DEPTH: u64 = 8;

/// Bytes of each, and of the grants.
const BYTES: usize = 4096;

/// What a worker has done.
#[derive(Default)]
pub struct Tally {
    submitted: AtomicU64,
    /// What completed, in any way.
    ended: Mutex<Vec<OpDone>>,
    stop: AtomicBool,
}

struct Worker {
    tally: Arc<Tally>,
    bufs: Vec<Buf>,
    import: Option<Import>,
}

impl Tally {
    fn submitted(&self) -> u64 {
        self.submitted.load(Ordering::Relaxed)
    }

    fn ended(&self) -> u64 {
        self.ended.lock().unwrap().len() as u64
    }
}

impl Worker {
    /// Writes, reads and messages in turn, with tokens that count up.
    fn submit(&mut self, cx: &mut Context<'_>) -> bool {
        let token = self.tally.submitted();
        let Some(import) = &self.import else {
            return false;
        };
        let local = [Local::prefix(
            &self.bufs[token as usize % self.bufs.len()],
            BYTES,
        )];
        let done = match token % 3 {
            0 => cx.write(import, 0, &local, token),
            1 => cx.read(import, 0, &local, token),
            _ => cx.send(import.owner, b"landed", token),
        };
        if done.is_ok() {
            self.tally.submitted.store(token + 1, Ordering::Relaxed);
        }
        done.is_ok()
    }
}

impl Service for Worker {
    fn poll(&mut self, cx: &mut Context<'_>) -> Work {
        while self.bufs.len() < DEPTH as usize {
            self.bufs.push(cx.alloc(BYTES).unwrap());
        }
        let stopped = self.tally.stop.load(Ordering::Relaxed);
        while !stopped && self.tally.submitted() - self.tally.ended() < DEPTH {
            if !self.submit(cx) {
                break;
            }
        }
        Work::Idle
    }

    fn on_event(&mut self, _cx: &mut Context<'_>, event: Event) {
        match event {
            Event::Granted(import) => self.import = Some(import),
            Event::Completed(done) => self.tally.ended.lock().unwrap().push(done),
            _ => {}
        }
    }
}

/// Whether a completion is of the operation that had its token, and says no more than can be.
fn is_itself(done: &OpDone) -> bool {
    let (kind, bytes) = match done.token % 3 {
        0 => (OpKind::Write, BYTES as u64),
        1 => (OpKind::Read, BYTES as u64),
        _ => (OpKind::Send, 6),
    };
    let may_be = match done.status {
        Status::Ok => done.bytes == bytes,
        Status::PeerLost => done.bytes <= bytes,
        _ => false,
    };
    done.kind == kind && may_be && done.value == 0
}

/// Workers on the left that each hold a grant of an owner's on the right.
struct Field {
    tallies: Vec<Arc<Tally>>,
    owners: Vec<Puppet>,
}

impl Field {
    fn new<D: Device>(pair: &mut Pair<D>) -> Self {
        let (mut tallies, mut owners) = (Vec::new(), Vec::new());
        for name in NAMES {
            let tally = Arc::new(Tally::default());
            let worker = Worker {
                tally: Arc::clone(&tally),
                bufs: Vec::new(),
                import: None,
            };
            let opened = pair.left.engine.open(LcoreId(0), name, 1, Box::new(worker));
            opened.unwrap();
            let owner = pair.right.puppet(0, &name.replace("worker", "owner"));
            pair.steps(100);
            let holder = lookup(pair, &owner, name);
            owner.act(move |cx| {
                let memory = cx.alloc(BYTES).unwrap();
                let granted = cx.grant(&memory, 0..BYTES, Rights::READ_WRITE, holder, Lease::None);
                granted.unwrap();
            });
            owners.push(owner);
            tallies.push(tally);
        }
        Self { tallies, owners }
    }
}

/// A queue pair of `switches` is moved to error while workers on the left are busy. `step` is a step of both, which moves the pair's clock on. Returns
/// the time from the error to the last completion.
pub fn b07_all_that_was_submitted_completes<D: Device>(
    pair: &mut Pair<Switched<D>>,
    switches: &Switches,
    step: impl Fn(&mut Pair<Switched<D>>),
) -> u64 {
    let Field { tallies, owners } = Field::new(pair);
    let until = |pair: &mut Pair<_>, done: &dyn Fn() -> bool, bound_ns: u64, what: &str| {
        let began_ns = pair.now_ns;
        while !done() {
            step(pair);
            // Messages are taken, so that their senders have credit.
            owners.iter().for_each(|owner| drop(owner.events()));
            let waited_ns = pair.now_ns - began_ns;
            assert!(waited_ns < bound_ns, "{what}: not within {bound_ns} ns");
        }
        pair.now_ns - began_ns
    };
    let busy = || tallies.iter().all(|tally| tally.ended() > 100);
    until(pair, &busy, 20_000_000_000, "every context is busy");

    on(&switches.break_last);
    let broken = || !switches.break_last.load(Ordering::Relaxed);
    until(
        pair,
        &broken,
        1_000_000_000,
        "the queue pair is moved to error",
    );
    tallies
        .iter()
        .for_each(|tally| tally.stop.store(true, Ordering::Relaxed));
    let even = || {
        tallies
            .iter()
            .all(|tally| tally.ended() == tally.submitted())
    };
    let took_ns = until(pair, &even, 1_000_000_000, "submitted == completed");

    for tally in &tallies {
        let mut ended = tally.ended.lock().unwrap().clone();
        ended.sort_unstable_by_key(|done| done.token);
        let tokens: Vec<u64> = ended.iter().map(|done| done.token).collect();
        let all: Vec<u64> = (0..tally.submitted()).collect();
        assert_eq!(tokens, all, "each once");
        assert!(ended.iter().all(is_itself), "{ended:?}");
    }
    // And the engines meet again.
    let ups = |pair: &Pair<Switched<D>>| {
        let is_up = |event: &&EngineEvent| matches!(event, EngineEvent::PeerUp(_));
        let count = |events: &[EngineEvent]| events.iter().filter(is_up).count();
        [count(&pair.left.events), count(&pair.right.events)]
    };
    let began_ns = pair.now_ns;
    while ups(pair) != [2, 2] {
        step(pair);
        assert!(pair.now_ns - began_ns < 10_000_000_000, "{:?}", ups(pair));
    }
    took_ns
}
