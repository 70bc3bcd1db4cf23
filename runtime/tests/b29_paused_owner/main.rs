//! B29, R1, R3, R6: an owner's lcore stands still in the middle of an access while the control thread deallocates the window, or destroys the queue pair.
//! The call does not succeed before the lcore goes on; past the deadline the key is in quarantine, and its memory nobody else's; who lives on another lcore
//! notices nothing.

#[path = "../pair/mod.rs"]
mod pair;
mod stopping;

use std::thread::JoinHandle;

use keyfence::ids::ContextId;
use keyfence::pmd::soft::{Fabric, SoftConfig};
use keyfence::{EngineEvent, Import, Lcore, Local, Status};
use keyfence_mempool::sync::{Arc, AtomicU64, Ordering};
use pair::judged::{MS, Part, US};
use pair::scene::{Granted, completions, grant, lookup};
use pair::switched::{Switched, SwitchedPath, Switches, off, on};
use pair::{Pair, Puppet, Side};
use stopping::{Keeper, Stopping, StoppingPath};

type Stopped = Pair<Switched<Stopping>>;

/// Two engines of two lcores. On lcore 0 a victim and those it deals with; on lcore 1 two that are not concerned.
struct Field {
    pair: Stopped,
    keeper: Keeper,
    switches: Arc<Switches>,
    /// On the right; what it owns, and what it writes to.
    victim: Puppet,
    granted: Granted,
    target: (Granted, Granted),
    /// Beside it, on the same lane.
    bystander: Puppet,
    /// On the left: writes to the victim.
    holder: Puppet,
    /// On the left's lcore 1.
    writer: Puppet,
    import: Import,
    /// On the right's lcore 1, and how often it has done something.
    host: Puppet,
    acted: Arc<AtomicU64>,
}

const BYTES: usize = 1 << 20;

/// A lane to each lcore of the peer has `limits.windows`.
const ITS_WINDOWS: u64 = 2 * 64;

/// How long a call waits in real time for the lcore: not at all, so that it is late at once and virtual time says what follows; or for ever.
const NOT: u64 = 1;
const FOR_EVER: u64 = 600_000_000_000;

fn part(waits_ns: u64) -> Part {
    let mut part = Part::quiet();
    part.lcores = 2;
    part.limits.lanes = 1;
    // Room enough between the first try of a call and what follows if it is late.
    part.timeouts.invalidate_timeout_ns = 20 * MS;
    part.timeouts.control_timeout_ns = 20 * MS;
    // The left's silence is no loss.
    part.timeouts.reconnect_timeout_ns = 5_000 * MS;
    part.soft = SoftConfig {
        quiesce_timeout_ns: waits_ns,
        ..SoftConfig::default()
    };
    part
}

type Path = SwitchedPath<StoppingPath>;

/// A step of whoever has nothing to do with the right's lcore 0.
fn others_step(now_ns: &mut u64, left: &mut Side<Switched<Stopping>>, right: &mut [Lcore<Path>]) {
    *now_ns += 20 * US;
    left.lcores[1].step(*now_ns);
    for lcore in right {
        lcore.step(*now_ns);
    }
    left.engine.control(*now_ns);
    left.events
        .extend(core::iter::from_fn(|| left.engine.poll_event()));
}

impl Field {
    fn new(waits_ns: u64) -> Self {
        let fabric = Fabric::new();
        let part = part(waits_ns);
        let builders = (part.builder("left", "right"), part.builder("right", "left"));
        let (left, _) = Stopping::new(fabric.device(part.soft.clone()).unwrap());
        let (right, keeper) = Stopping::new(fabric.device(part.soft).unwrap());
        let (right, switches) = Switched::new(right);
        let left = Switched::new(left).0;
        let mut pair = Pair::on(builders.0, left, builders.1, right);
        let victim = pair.right.puppet(0, "victim");
        let holder = pair.left.puppet(0, "holder");
        let bystander = pair.right.puppet(0, "bystander");
        let host = pair.right.puppet(1, "host");
        let writer = pair.left.puppet(1, "writer");
        pair.steps(10);
        let to_holder = lookup(&mut pair, &victim, "holder");
        let to_victim = lookup(&mut pair, &holder, "victim");
        let to_bystander = lookup(&mut pair, &holder, "bystander");
        let to_writer = lookup(&mut pair, &host, "writer");
        let granted = grant(&mut pair, &victim, &holder, to_holder, BYTES);
        let target = (
            grant(&mut pair, &holder, &victim, to_victim, BYTES),
            grant(&mut pair, &holder, &bystander, to_bystander, BYTES),
        );
        let import = grant(&mut pair, &host, &writer, to_writer, 4096).import;
        drop(granted.buf.take());
        pair.steps(50);
        Self {
            pair,
            keeper,
            switches,
            victim,
            granted,
            target,
            bystander,
            holder,
            writer,
            import,
            host,
            acted: Arc::new(AtomicU64::new(0)),
        }
    }

    /// The holder's write to the victim is on its way, and a write the other way, the victim's own or a bystander's on its lane; then the left's lcore 0
    /// stands still.
    fn begin(&mut self, own: bool) {
        let import = self.granted.import;
        self.holder.act(move |cx| {
            let buf = cx.alloc(BYTES).unwrap();
            cx.write(&import, 0, &[Local::prefix(&buf, BYTES)], 1)
                .unwrap();
        });
        let (writes, target) = match own {
            true => (&self.victim, self.target.0.import),
            false => (&self.bystander, self.target.1.import),
        };
        writes.act(move |cx| {
            let buf = cx.alloc(BYTES).unwrap();
            for token in 0..4 {
                cx.write(&target, 0, &[Local::prefix(&buf, BYTES)], token)
                    .unwrap();
            }
        });
        self.pair.step();
    }

    /// Time goes on for all lcores but the left's first, and the right's if it is taken away.
    fn go_on(&mut self, us: u64) {
        for _ in 0..us / 20 {
            let Side {
                engine,
                lcores,
                events,
            } = &mut self.pair.right;
            others_step(&mut self.pair.now_ns, &mut self.pair.left, lcores);
            engine.control(self.pair.now_ns);
            events.extend(core::iter::from_fn(|| engine.poll_event()));
        }
    }

    /// The right's lcore 0 stops in the middle of a step.
    fn stop(&mut self) -> JoinHandle<Lcore<Path>> {
        let mut first = self.pair.right.lcores.remove(0);
        let now_ns = self.pair.now_ns;
        self.keeper.arm();
        let thread = std::thread::spawn(move || {
            first.step(now_ns);
            first
        });
        self.keeper.stopped();
        thread
    }

    /// It goes on.
    fn go(&mut self, thread: JoinHandle<Lcore<Path>>) {
        self.keeper.go();
        self.pair.right.lcores.insert(0, thread.join().unwrap());
    }

    /// It stops while `us` pass for the others; nothing that it might touch has ended by then.
    fn pause(&mut self, us: u64) {
        let thread = self.stop();
        // From now on nothing but the lcore holds the call up.
        off(&self.switches.destroy_hangs);
        let before = self.objects();
        for _ in 0..10 {
            self.others_act();
            self.go_on(us / 10);
            assert_eq!(self.objects(), before, "a call returned beside the access");
        }
        self.go(thread);
    }

    /// It stops, and the control thread is in its call until it goes on.
    fn pause_a_call(&mut self) {
        let thread = self.stop();
        for _ in 0..10 {
            self.others_act();
        }
        let now_ns = self.pair.now_ns;
        let windows = || self.switches.windows.load(Ordering::Relaxed);
        let all = windows();
        std::thread::scope(|scope| {
            let Side { engine, lcores, .. } = &mut self.pair.right;
            let call = scope.spawn(move || engine.control(now_ns));
            for _ in 0..1_000 {
                others_step(&mut self.pair.now_ns, &mut self.pair.left, lcores);
                std::thread::yield_now();
            }
            assert!(!call.is_finished(), "the call returned beside the access");
            assert_eq!(windows(), all);
            self.keeper.go();
            assert!(call.join().unwrap(), "there was a call");
        });
        self.pair.right.lcores.insert(0, thread.join().unwrap());
    }

    /// One who lives on the right's lcore 1 writes, and one there has something to do. With the session the other's memory is gone.
    fn others_act(&mut self) {
        let (import, acted) = (self.import, Arc::clone(&self.acted));
        self.writer.act(move |cx| {
            let buf = cx.alloc(64).unwrap();
            let _ = cx.write(&import, 0, &[Local::prefix(&buf, 64)], 1);
        });
        self.host.act(move |cx| {
            drop(cx.alloc(64).unwrap());
            acted.fetch_add(1, Ordering::Relaxed);
        });
    }

    /// What the right's lcore 0 has: windows, queue pairs, and two buffers, the victim's granted one and the one that is written from. Lcore 1 has as many
    /// of the device, and a buffer, which end with their session.
    fn objects(&self) -> [u64; 3] {
        let [windows, qps] =
            [&self.switches.windows, &self.switches.qps].map(|of| of.load(Ordering::Relaxed));
        let buffers = self.pair.right.engine.buffers_in_use() as u64;
        [windows.min(ITS_WINDOWS), qps.min(2), buffers.min(2)]
    }

    fn kill(&mut self) -> ContextId {
        let id = self.pair.right.id_of("victim").unwrap();
        self.pair.right.engine.kill(id);
        id
    }

    /// The one end that was told of a context.
    fn end_of(&self, context: ContextId) -> Option<EngineEvent> {
        let about = |event: &&EngineEvent| match event {
            EngineEvent::Reclaimed { context: known, .. }
            | EngineEvent::Quarantined { context: known, .. } => *known == context,
            _ => false,
        };
        let ends: Vec<_> = self.pair.right.events.iter().filter(about).collect();
        assert!(ends.len() <= 1, "{ends:?}");
        ends.first().map(|end| (*end).clone())
    }

    /// The lcore's next step sees that the deadline is over, before the control side's call has returned.
    fn quarantined(&mut self, context: ContextId) {
        self.pair.right.lcores[0].step(self.pair.now_ns);
        let keys = self.pair.right.stat("contexts_quarantined");
        assert_eq!(keys, 1);
        // The call is made again, and its return is the late proof.
        self.go_on(50_000);
        let end = self.end_of(context);
        assert!(
            matches!(end, Some(EngineEvent::Quarantined { .. })),
            "{end:?}"
        );
        self.released();
    }

    /// Nothing of the victim is left.
    fn released(&mut self) {
        let first = &self.pair.right.lcores[0];
        let keys = first.usage().keys;
        assert_eq!(first.usage().contexts, 1, "the bystander");
        assert_eq!((keys.live, keys.unproven), (0, 0), "{keys:?}");
    }

    /// Each of the writer's writes has ended well.
    fn others_went_on(&self) {
        assert_eq!(self.acted.load(Ordering::Relaxed), 10);
        let done = completions(&self.writer.events());
        assert_eq!(done.len(), 10);
        assert!(
            done.iter().all(|done| done.status == Status::Ok),
            "{done:?}"
        );
    }
}

/// The victim has a key and nothing under way; its lane has a backlog that stands still, so the control side is to deallocate its window, and has not begun.
fn deallocation(waits_ns: u64) -> (Field, ContextId) {
    let mut field = Field::new(waits_ns);
    field.begin(false);
    let id = field.kill();
    while field.pair.right.stat("chains_refused") == 0 {
        let pair = &mut field.pair;
        others_step(&mut pair.now_ns, &mut pair.left, &mut pair.right.lcores);
    }
    (field, id)
}

#[test]
fn b29_a_window_is_deallocated_when_the_paused_owner_has_gone_on() {
    let (mut field, id) = deallocation(FOR_EVER);
    field.pause_a_call();
    field.go_on(10_000);
    let end = field.end_of(id);
    assert!(
        matches!(end, Some(EngineEvent::Reclaimed { .. })),
        "{end:?}"
    );
    assert_eq!(field.pair.right.stat("lanes_broken"), 0);
    field.released();
    field.others_went_on();
}

#[test]
fn b29_past_the_deadline_the_key_of_a_paused_owner_is_in_quarantine() {
    let (mut field, id) = deallocation(NOT);
    field.pause(20_000);
    field.others_went_on();
    // It gets no further than a step at a time, so what follows, the end of its lane, is late too.
    let mut pauses = 0;
    while field.pair.right.lcores[0].usage().keys.unproven == 0 {
        field.pause(20_000);
        pauses += 1;
        assert!(pauses < 10, "{:?}", field.pair.right.lcores[0]);
    }
    field.quarantined(id);
}

/// The victim has a write under way on a lane that stands still: the lane is sacrificed, and its queue pair is to be destroyed.
fn destruction(pause_us: u64) -> (Field, ContextId) {
    let mut field = Field::new(NOT);
    field.begin(true);
    on(&field.switches.destroy_hangs);
    let id = field.kill();
    field.go_on(30_000);
    assert!(field.pair.right.stat("lanes_broken") > 0);
    field.pause(pause_us);
    (field, id)
}

#[test]
fn b29_a_queue_pair_is_destroyed_when_the_paused_owner_has_gone_on() {
    let (mut field, id) = destruction(10_000);
    field.go_on(50_000);
    let end = field.end_of(id);
    assert!(
        matches!(end, Some(EngineEvent::Reclaimed { .. })),
        "{end:?}"
    );
    field.released();
}

#[test]
fn b29_past_the_deadline_the_operations_of_a_paused_owner_are_in_quarantine() {
    let (mut field, id) = destruction(100_000);
    field.quarantined(id);
    assert_eq!(field.acted.load(Ordering::Relaxed), 10);
}
