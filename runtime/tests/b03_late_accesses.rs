//! B03, R1: requests that come late through the key of an aborted one. The memory has been given to somebody else by then: it is neither seen nor altered.

mod pair;

use core::ops::Range;

use keyfence::config::{MemoryConfig, PoolConfig};
use keyfence::pmd::Remote;
use keyfence::pmd::soft::Fabric;
use keyfence::pmd::wrap::fault::{Injection, Plan, Span, Target};
use keyfence::{Buf, Local};
use pair::judged::{Court, Part, US, device_of};
use pair::scene::{Granted, Scene, grant, lookup};
use pair::{Pair, Puppet, Slot, small_memory};

const BYTES: usize = 256 << 10;

/// What the memory holds: before the grant, what the holder writes to it, in the holder's own before it reads, and what the next one keeps there.
const BEFORE: u8 = 0x11;
const WRITTEN: u8 = 0xee;
const SINK: u8 = 0x22;
const SECRET: u8 = 0x5a;

/// SplitMix64.
struct Dice(u64);

impl Dice {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % most
    }
}

/// Few buffers, and of the granted one's size a single one at the owner: what is allocated next is that.
fn memory(large: u32) -> MemoryConfig {
    let pool = |buffer_bytes, count| PoolConfig {
        buffer_bytes,
        count,
    };
    MemoryConfig {
        arena_bytes: 4 << 20,
        pools: vec![pool(4096, 16), pool(BYTES as u64, large)],
        ..small_memory()
    }
}

fn part(dice: &mut Dice) -> Part {
    let mut plan = Vec::new();
    if dice.below(2) == 0 {
        plan.push(Injection::HoldBack {
            target: Target::Every,
            span: Span::EVERY,
            polls: dice.below(60),
        });
    }
    let mut part = Part::new(Plan::new(plan));
    part.limits.slice_bytes = [4096, 65536][dice.below(2) as usize];
    part.limits.receive_depth = 16;
    part
}

fn court(dice: &mut Dice) -> Court {
    let (left, right) = (part(dice), part(dice));
    let fabric = Fabric::new();
    let builders = (
        left.builder("left", "right").memory(memory(4)),
        right.builder("right", "left").memory(memory(1)),
    );
    let (left_device, left, left_switches) = device_of(&fabric, left.plan, left.soft);
    let (right_device, right, right_switches) = device_of(&fabric, right.plan, right.soft);
    Court {
        pair: Pair::on(builders.0, left_device, builders.1, right_device),
        left,
        right,
        left_switches,
        right_switches,
        fabric,
    }
}

/// What the runs met: a driver that meets nothing proves nothing.
#[derive(Default, Debug)]
struct Met {
    /// Runs whose grant was aborted with accesses by it in flight.
    in_flight: u64,
    /// Runs in which some still were when the memory was another's.
    late: u64,
    /// Runs whose holder then used the dead key.
    astray: u64,
    /// Runs whose lane broke.
    broken: u64,
}

struct Run {
    dice: Dice,
    court: Court,
    scene: Scene,
    granted: Granted,
    /// Another context's grant to the same holder, which lives on: what is posted by it can be led astray.
    other: Granted,
    _bystander: Puppet,
    /// The holder's memory that is read into.
    sink: Slot<Buf>,
    /// The key of the grant, as the device knows it.
    remote: Remote,
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut dice = Dice(seed);
        let mut court = court(&mut dice);
        let pair = &mut court.pair;
        let scene = Scene::new(pair);
        let granted = scene.grant(pair, BYTES);
        let bystander = pair.right.puppet(0, "bystander");
        pair.steps(5);
        let to = lookup(pair, &bystander, "holder");
        let other = grant(pair, &bystander, &scene.holder, to, 4096);
        let key = court.right.first_live_key(granted.range.clone()).unwrap();
        let memory = granted.buf.take().unwrap();
        memory.dma().fill(BEFORE);
        drop(memory);
        let sink = Slot::new();
        let to_sink = sink.clone();
        scene.holder.act(move |cx| {
            let buf = cx.alloc(BYTES).unwrap();
            buf.dma().fill(SINK);
            to_sink.set(buf);
        });
        court.pair.steps(200);
        assert!(sink.is_set());
        let remote = Remote {
            address: key.address,
            rkey: key.rkey,
        };
        Self {
            dice,
            court,
            scene,
            granted,
            other,
            _bystander: bystander,
            sink,
            remote,
        }
    }

    /// The holder writes all of the grant and reads it back.
    fn post(&mut self) {
        let (import, sink) = (self.granted.import, self.sink.clone());
        let reads_first = self.dice.below(2) == 0;
        self.scene.holder.act(move |cx| {
            let from = cx.alloc(BYTES).unwrap();
            from.dma().fill(WRITTEN);
            let into = sink.take().unwrap();
            for read in [reads_first, !reads_first] {
                let local = [Local::prefix(if read { &into } else { &from }, BYTES)];
                let done = match read {
                    true => cx.read(&import, 0, &local, 1),
                    false => cx.write(&import, 0, &local, 2),
                };
                done.unwrap();
            }
            sink.set(into);
        });
        self.court.pair.left.step(self.court.pair.now_ns);
    }

    /// What the holder's adapter posts from now on goes to the dead key: the other import is live, so the engine lets it pass.
    fn go_astray(&mut self) {
        *self.court.left_switches.forged.lock().unwrap() = Some(self.remote);
        let (import, sink) = (self.other.import, self.sink.clone());
        let reads = self.dice.below(2) == 0;
        self.scene.holder.act(move |cx| {
            let from = cx.alloc(4096).unwrap();
            from.dma().fill(WRITTEN);
            let into = sink.take().unwrap();
            let _ = match reads {
                true => cx.read(&import, 0, &[Local::prefix(&into, 4096)], 3),
                false => cx.write(&import, 0, &[Local::prefix(&from, 4096)], 4),
            };
            sink.set(into);
        });
    }

    /// One of the two engines steps, or both, after some time.
    fn stumble(&mut self) {
        let pair = &mut self.court.pair;
        pair.now_ns += [US, US, 10 * US, 200 * US][self.dice.below(4) as usize];
        let which = self.dice.below(3);
        if which != 0 {
            pair.left.step(pair.now_ns);
        }
        if which != 1 {
            pair.right.step(pair.now_ns);
        }
    }

    fn stumbles(&mut self, most: u64) {
        for _ in 0..self.dice.below(most) {
            self.stumble();
        }
    }

    /// The grant is aborted, in one of the ways that there are.
    fn abort(&mut self) {
        let (owner, holder) = (self.scene.owner_context(), self.scene.holder_context());
        let id = self.granted.id;
        match self.dice.below(4) {
            0 => self.court.pair.right.engine.kill(owner),
            1 => self.court.pair.left.engine.kill(holder),
            2 => self.scene.owner.act(|cx| cx.close()),
            _ => self.scene.owner.act(move |cx| {
                cx.revoke(id).unwrap();
                cx.flush(0).unwrap();
            }),
        }
    }

    /// The next context takes the memory as soon as it gets it.
    fn reuse(&mut self) -> Buf {
        let next = self.court.pair.right.puppet(0, "next");
        let taken = Slot::new();
        for _ in 0..20_000 {
            let to_taken = taken.clone();
            next.act(move |cx| {
                if !to_taken.is_set()
                    && let Ok(buf) = cx.alloc(BYTES)
                {
                    buf.dma().fill(SECRET);
                    to_taken.set(buf);
                }
            });
            self.stumble();
            if let Some(buf) = taken.take() {
                return buf;
            }
        }
        panic!(
            "the memory never came back: {:?}",
            self.court.pair.right.lcores
        );
    }
}

fn touches(court: &Court, range: &Range<u64>) -> bool {
    court.left.open_remote(range.clone()) > 0
}

fn interleaved(seed: u64, met: &mut Met) {
    let mut run = Run::new(seed);
    let range = run.granted.range.clone();
    if run.dice.below(8) != 0 {
        run.post();
    }
    run.stumbles(30);
    met.in_flight += u64::from(touches(&run.court, &range));
    run.abort();
    run.stumbles(30);
    let buf = run.reuse();
    assert_eq!(buf.address(), range.start, "the memory of the grant");
    assert_eq!(run.court.right.live_keys(range.clone()), 0, "seed {seed}");
    met.late += u64::from(touches(&run.court, &range));
    if run.dice.below(2) == 0 {
        run.go_astray();
        met.astray += 1;
    }
    for _ in 0..150 {
        run.stumble();
    }
    let altered = buf.dma().first_not(SECRET);
    assert_eq!(altered, None, "seed {seed}: a byte was altered");
    let mut bytes = vec![0; BYTES];
    let sink = run.sink.take().unwrap();
    sink.read_at(0, &mut bytes).unwrap();
    let seen = bytes.iter().position(|byte| *byte == SECRET);
    assert_eq!(seen, None, "seed {seed}: a byte was seen");
    met.broken += u64::from(run.court.pair.right.stat("lanes_broken") > 0);
    run.court.acquit();
}

#[test]
fn b03_late_accesses_neither_see_nor_alter_reused_memory_in_1000_interleavings() {
    let mut met = Met::default();
    for seed in 0..1_000 {
        interleaved(seed, &mut met);
    }
    let all = [met.in_flight, met.late, met.astray, met.broken];
    assert!(all.iter().all(|count| *count >= 50), "{met:?}");
}
