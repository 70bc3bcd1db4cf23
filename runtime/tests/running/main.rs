//! Engines on threads of their own, in real time: pinning, idle policies, death. Nothing is asserted on a real clock but that nothing hangs.

mod affinity;
mod idle;
#[path = "../pair/mod.rs"]
mod pair;

use std::time::Instant;

use keyfence::config::IdlePolicy;
use keyfence::ids::{LcoreId, PeerId, RemoteContext};
use keyfence::pmd::Device;
use keyfence::pmd::soft::{Fabric, SoftConfig, SoftDevice};
use keyfence::{
    Client, ClientConfig, ClientEvent, Engine, EngineEvent, Event, OpDone, RunError, Running,
    Status,
};

type SoftEngine = Engine<SoftDevice>;
type SoftRunning = Running<<SoftDevice as Device>::Path>;

/// No right run takes this long.
const HANG_NS: u64 = 60_000_000_000;

fn clock() -> impl Fn() -> u64 + Clone + Send + 'static {
    let start = Instant::now();
    move || start.elapsed().as_nanos() as u64
}

fn engine(
    name: &str,
    peer: &str,
    cpus: &[u32],
    idle: IdlePolicy,
    device: SoftDevice,
) -> SoftEngine {
    pair::builder(name, peer, 1)
        .cpus(cpus)
        .idle(idle)
        .build(device, pair::seed_of(name))
        .unwrap()
}

/// Two started engines, and the thread that does their control work.
struct Rig<C> {
    left: (SoftEngine, SoftRunning),
    right: (SoftEngine, SoftRunning),
    clock: C,
}

impl<C: Fn() -> u64 + Clone + Send + 'static> Rig<C> {
    fn start(cpus: [u32; 2], idle: IdlePolicy, clock: C) -> Result<Self, RunError> {
        let fabric = Fabric::new();
        let device = || fabric.device(SoftConfig::default()).unwrap();
        let mut left = engine("left", "right", &cpus[..1], idle, device());
        let mut right = engine("right", "left", &cpus[1..], idle, device());
        let running = left.start(clock.clone())?;
        let left = (left, running);
        let running = right.start(clock.clone())?;
        let mut rig = Self {
            left,
            right: (right, running),
            clock,
        };
        let (mut left_up, mut right_up) = (false, false);
        rig.until(|rig| {
            left_up |= matches!(rig.left.0.poll_event(), Some(EngineEvent::PeerUp(_)));
            right_up |= matches!(rig.right.0.poll_event(), Some(EngineEvent::PeerUp(_)));
            left_up && right_up
        });
        Ok(rig)
    }

    /// Does control work, and yields, until `done`.
    fn until(&mut self, mut done: impl FnMut(&mut Self) -> bool) {
        let start_ns = (self.clock)();
        while !done(self) {
            let now_ns = (self.clock)();
            assert!(now_ns - start_ns < HANG_NS, "hangs");
            self.left.0.control(now_ns);
            self.right.0.control(now_ns);
            std::thread::yield_now();
        }
    }

    /// A client on each side, and the right one's name for the left.
    fn clients(&mut self) -> (Client, Client, RemoteContext) {
        let config = ClientConfig::default();
        let open = |engine: &mut SoftEngine, name| engine.open_client(LcoreId(0), name, 1, config);
        let mut from = open(&mut self.left.0, "from").unwrap();
        let mut to = open(&mut self.right.0, "to").unwrap();
        self.until(|_| matches!(to.poll_event(), Some(ClientEvent::Opened { .. })));
        from.lookup(PeerId(0), "to", 1).unwrap();
        let mut found = None;
        self.until(|_| {
            if let Some(ClientEvent::Event(Event::Resolved { context, .. })) = from.poll_event() {
                found = context;
            }
            found.is_some()
        });
        (from, to, found.unwrap())
    }

    /// Sends `number` and waits until it is there and acknowledged; both clients keep beating.
    fn message(&mut self, from: &mut Client, to: &mut Client, id: RemoteContext, number: u64) {
        from.send(id, &number.to_le_bytes(), number).unwrap();
        let (mut arrived, mut acknowledged) = (false, false);
        self.until(|_| {
            if let Some(ClientEvent::Event(Event::Message(message))) = to.poll_event() {
                let mut bytes = [0; 8];
                assert!(message.read_at(0, &mut bytes));
                assert_eq!(u64::from_le_bytes(bytes), number);
                arrived = true;
            }
            if let Some(ClientEvent::Completed { done, .. }) = from.poll_event() {
                let OpDone { token, status, .. } = done;
                assert_eq!((token, status), (number, Status::Ok));
                acknowledged = true;
            }
            arrived && acknowledged
        });
    }

    /// Has all contexts reclaimed and the threads end.
    fn stop(mut self) {
        self.left.0.close_all();
        self.right.0.close_all();
        self.until(|rig| rig.left.0.is_closed() && rig.right.0.is_closed());
        for running in [self.left.1, self.right.1] {
            assert!(running.is_alive());
            for lcore in running.join() {
                lcore.unwrap();
            }
        }
    }
}

#[test]
fn an_lcore_that_dies_by_a_panic_is_reported_once() {
    let fabric = Fabric::new();
    let device = fabric.device(SoftConfig::default()).unwrap();
    let idle = IdlePolicy::Backoff {
        max_sleep_ns: 100_000,
    };
    let mut engine = engine("left", "right", &[0], idle, device);
    let time = clock();
    let mut calls = 0;
    // A clock is the one thing that an lcore calls outside its services.
    let counted = std::sync::Arc::new(std::sync::Mutex::new(move || {
        calls += 1;
        calls
    }));
    let running = engine
        .start(move || {
            let calls = (counted.lock().unwrap())();
            if calls > 100 {
                std::panic::resume_unwind(Box::new("planted"));
            }
            calls
        })
        .unwrap();
    let mut reports = Vec::new();
    // The peer is not there, and is asked for all the same.
    let of_lcores = |event: &EngineEvent| !matches!(event, EngineEvent::JoinRefused { .. });
    let start_ns = time();
    while running.is_alive() || reports.is_empty() {
        assert!(time() - start_ns < HANG_NS, "hangs");
        engine.control(time());
        reports.extend(engine.poll_event().filter(of_lcores));
        std::thread::yield_now();
    }
    for _ in 0..100 {
        engine.control(time());
        reports.extend(engine.poll_event().filter(of_lcores));
    }
    assert_eq!(reports, [EngineEvent::LcoreDied(LcoreId(0))]);
    let ends = running.join();
    assert!(matches!(ends[..], [Err(LcoreId(0))]));
}
