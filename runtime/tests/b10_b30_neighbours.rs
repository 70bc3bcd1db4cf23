//! B10, B30, R5: what a context beside a deaf partner's sender, or beside a hog, feels of it, in virtual time.

mod pair;

use keyfence::ids::{LcoreId, RemoteContext};
use keyfence::limits::Limits;
use keyfence::pmd::wrap::fault::{Injection, Plan, Span, Target};
use keyfence::{Buf, Context, Event, Import, Lease, Local, Rights, Service, SubmitError, Work};
use keyfence_mempool::sync::{Arc, AtomicBool, AtomicU64, Ordering};
use std::sync::Mutex;

use pair::Puppet;
use pair::judged::{Court, Part, fast_limits};
use pair::scene::lookup;

const MIB: usize = 1 << 20;
const SLICE: u64 = 64 << 10;

/// Round trips of one that pings, each sample in ns of virtual time.
#[derive(Default)]
struct Samples(Mutex<Vec<u64>>);

impl Samples {
    fn count(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    /// The sample that 99 of 100 do not pass, of the last `count`.
    fn p99_ns(&self, count: usize) -> u64 {
        let all = self.0.lock().unwrap();
        let mut last = all[all.len() - count..].to_vec();
        last.sort_unstable();
        last[(count * 99).div_ceil(100) - 1]
    }
}

/// Sends 8 bytes, and again when the answer is there.
struct Pinger {
    asked: bool,
    to: Option<RemoteContext>,
    sent_ns: Option<u64>,
    samples: Arc<Samples>,
}

impl Service for Pinger {
    fn poll(&mut self, cx: &mut Context<'_>) -> Work {
        if !core::mem::replace(&mut self.asked, true) {
            let peer = cx.peers().next().unwrap();
            cx.lookup(peer, "echo", 0).unwrap();
        }
        if let (Some(to), None) = (self.to, self.sent_ns)
            && cx.send(to, &8_u64.to_le_bytes(), 0).is_ok()
        {
            self.sent_ns = Some(cx.now_ns());
        }
        Work::Idle
    }

    fn on_event(&mut self, cx: &mut Context<'_>, event: Event) {
        match event {
            Event::Resolved { context, .. } => self.to = context,
            Event::Message(_) => {
                let sent_ns = self.sent_ns.take().expect("an answer to a question");
                let took_ns = cx.now_ns() - sent_ns;
                self.samples.0.lock().unwrap().push(took_ns);
            }
            _ => {}
        }
    }
}

/// Sends each message back.
struct Echo;

impl Service for Echo {
    fn poll(&mut self, _cx: &mut Context<'_>) -> Work {
        Work::Wait
    }

    fn on_event(&mut self, cx: &mut Context<'_>, event: Event) {
        if let Event::Message(message) = event {
            let mut bytes = [0; 8];
            assert!(message.read_at(0, &mut bytes));
            cx.send(message.from(), &bytes, 0).unwrap();
        }
    }
}

/// One lane, and a ping on it.
fn with_ping(left: Part, right: Part) -> (Court, Arc<Samples>) {
    let mut court = Court::new(left, right);
    let samples = Arc::new(Samples::default());
    let right = &mut court.pair.right.engine;
    right.open(LcoreId(0), "echo", 1, Box::new(Echo)).unwrap();
    court.pair.steps(10);
    let pinger = Pinger {
        asked: false,
        to: None,
        sent_ns: None,
        samples: Arc::clone(&samples),
    };
    let left = &mut court.pair.left.engine;
    left.open(LcoreId(0), "pinger", 1, Box::new(pinger))
        .unwrap();
    court.pair.until(|_| samples.count() > 10);
    (court, samples)
}

/// The 99th percentile of the next 500 round trips.
fn next_p99_ns(court: &mut Court, samples: &Samples) -> u64 {
    const PINGS: usize = 500;
    let enough = samples.count() + PINGS;
    court.pair.until(|_| samples.count() >= enough);
    samples.p99_ns(PINGS)
}

fn one_lane() -> Part {
    let mut part = Part::quiet();
    part.limits.lanes = 1;
    part
}

/// Sends to one that never takes a message, whenever it is polled.
struct Stubborn {
    to: RemoteContext,
    stop: Arc<AtomicBool>,
    refused: Arc<AtomicU64>,
}

impl Service for Stubborn {
    fn poll(&mut self, cx: &mut Context<'_>) -> Work {
        while !self.stop.load(Ordering::Relaxed) {
            match cx.send(self.to, b"anybody?", 0) {
                Ok(()) => {}
                Err(why) => {
                    assert!(matches!(why, SubmitError::NoCredit { .. }), "{why}");
                    self.refused.fetch_add(1, Ordering::Relaxed);
                    break;
                }
            }
        }
        Work::Busy
    }

    fn on_event(&mut self, _cx: &mut Context<'_>, _event: Event) {}
}

#[test]
fn b10_senders_to_deaf_contexts_do_not_move_the_others_p99() {
    let (mut court, samples) = with_ping(one_lane(), one_lane());
    let quiet_ns = next_p99_ns(&mut court, &samples);
    // Each keeps what it is sent.
    let deaf: Vec<Puppet> = ["deaf a", "deaf b", "deaf c"]
        .map(|name| court.pair.right.puppet(0, name))
        .into();
    let asks = court.pair.left.puppet(0, "asks");
    court.pair.steps(10);
    let stop = Arc::new(AtomicBool::new(false));
    let mut refused = Vec::new();
    for name in ["deaf a", "deaf b", "deaf c"] {
        let counted = Arc::new(AtomicU64::new(0));
        let service = Stubborn {
            to: lookup(&mut court.pair, &asks, name),
            stop: Arc::clone(&stop),
            refused: Arc::clone(&counted),
        };
        refused.push(counted);
        let left = &mut court.pair.left.engine;
        left.open(LcoreId(0), name, 1, Box::new(service)).unwrap();
    }
    court.pair.steps(200);
    let besieged_ns = next_p99_ns(&mut court, &samples);
    assert_eq!(besieged_ns, quiet_ns);
    for counted in &refused {
        let refused = counted.load(Ordering::Relaxed);
        assert!(refused > 400, "the sender is told each time: {refused}");
    }
    let messages = |puppet: &Puppet| {
        let events = puppet.events();
        let came = events.iter().filter(|it| matches!(it, Event::Message(_)));
        came.count()
    };
    assert!(deaf.iter().all(|puppet| messages(puppet) == 8));
    assert_eq!(court.pair.left.stat("services_panicked"), 0);
    court.acquit();
}

/// Keeps 64 writes of 1 MiB under way.
struct Hog {
    import: Option<Import>,
    buf: Option<Buf>,
    under_way: u64,
    done_bytes: Arc<AtomicU64>,
}

impl Service for Hog {
    fn poll(&mut self, cx: &mut Context<'_>) -> Work {
        let Some(import) = &self.import else {
            return Work::Idle;
        };
        if self.buf.is_none() {
            self.buf = Some(cx.alloc(MIB).unwrap());
        }
        let buf = self.buf.as_ref().unwrap();
        while self.under_way < 64 {
            cx.write(import, 0, &[Local::prefix(buf, MIB)], 0).unwrap();
            self.under_way += 1;
        }
        Work::Idle
    }

    fn on_event(&mut self, _cx: &mut Context<'_>, event: Event) {
        match event {
            Event::Granted(import) => self.import = Some(import),
            Event::Completed(done) => {
                self.under_way -= 1;
                self.done_bytes.fetch_add(done.bytes, Ordering::Relaxed);
            }
            _ => {}
        }
    }
}

/// Room for hogs on a lane that may have this many bytes in flight, and completions that come so many polls late: what a slow wire is like.
fn hog_lane(lane_bytes: u64, late_polls: u64) -> Part {
    let late = Injection::HoldBack {
        target: Target::Every,
        span: Span::EVERY,
        polls: late_polls,
    };
    let mut part = Part::new(Plan::new([late]));
    part.limits = Limits {
        lanes: 1,
        slice_bytes: SLICE,
        lane_bytes_in_flight: lane_bytes,
        bytes_in_flight: 256 << 20,
        ..fast_limits()
    };
    part.limits.context.ops_in_flight = 64;
    part.limits.context.bytes_in_flight = 64 << 20;
    part
}

fn hog(court: &mut Court, owner: &Puppet, name: &'static str, weight: u32) -> Arc<AtomicU64> {
    let done_bytes = Arc::new(AtomicU64::new(0));
    let service = Hog {
        import: None,
        buf: None,
        under_way: 0,
        done_bytes: Arc::clone(&done_bytes),
    };
    let left = &mut court.pair.left.engine;
    left.open(LcoreId(0), name, weight, Box::new(service))
        .unwrap();
    court.pair.steps(10);
    let holder = lookup(&mut court.pair, owner, name);
    owner.act(move |cx| {
        let memory = cx.alloc(MIB).unwrap();
        cx.grant(&memory, 0..MIB, Rights::ALL, holder, Lease::None)
            .unwrap();
    });
    let began = Arc::clone(&done_bytes);
    court.pair.until(|_| began.load(Ordering::Relaxed) > 0);
    done_bytes
}

/// A ping beside hogs of these weights: what it may wait for is a turn of each on a lane that is full all the time, at the pace of the lane.
fn ping_beside(weights: &[u32], lane_bytes: u64, late_polls: u64) {
    let (left, right) = (hog_lane(lane_bytes, late_polls), hog_lane(lane_bytes, 0));
    let (mut court, samples) = with_ping(left, right);
    let quiet_ns = next_p99_ns(&mut court, &samples);
    let owner = court.pair.right.puppet(0, "owner");
    court.pair.steps(5);
    let names = ["hog a", "hog b", "hog c"];
    let hogs: Vec<_> = weights
        .iter()
        .zip(names)
        .map(|(weight, name)| hog(&mut court, &owner, name, *weight))
        .collect();
    court.pair.steps(2_000);
    let done = || hogs.iter().map(|hog| hog.load(Ordering::Relaxed));
    let before: Vec<u64> = done().collect();
    let beside_ns = next_p99_ns(&mut court, &samples);
    court.pair.steps(20_000);
    let turns_bytes = weights.iter().map(|weight| u64::from(*weight) * SLICE);
    let rounds = turns_bytes.sum::<u64>().div_ceil(lane_bytes) + 1;
    let bound_ns = quiet_ns + 1_000 * (late_polls + 1) * rounds;
    let what = format!("{weights:?}, {lane_bytes} bytes, {late_polls} polls");
    assert!(
        beside_ns <= bound_ns,
        "{what}: {beside_ns} ns, {bound_ns} allowed, {quiet_ns} alone"
    );
    let shares = done().zip(&before).zip(weights);
    let shares: Vec<f64> = shares
        .map(|((now, before), weight)| (now - before) as f64 / f64::from(*weight))
        .collect();
    let (least, most) = (
        shares.iter().copied().fold(f64::MAX, f64::min),
        shares.iter().copied().fold(0.0, f64::max),
    );
    assert!(least > 0.0 && most / least < 1.2, "{what}: {shares:?}");
    court.acquit();
}

#[test]
fn b30_a_ping_beside_hogs_waits_for_a_turn_of_each_at_most_and_they_share_by_weight() {
    for weights in [&[1][..], &[1, 3], &[2, 1, 4]] {
        for (slices, late_polls) in [(2, 50), (8, 50), (8, 200)] {
            ping_beside(weights, slices * SLICE, late_polls);
        }
    }
}
