//! A context with nothing of its own on a lane ends there although the peer has stopped: what others have posted is not its fault, and its end is not theirs.

mod pair;

use keyfence::pmd::Device;
use keyfence::pmd::soft::{Fabric, SoftConfig};
use keyfence::{Local, Status};

use pair::judged::{Court, MS, Part, US};
use pair::scene::{Granted, Scene, completions, grant, lookup};
use pair::switched::Switched;
use pair::{Pair, Puppet, REGIONS};

const WRITES: u64 = 4;
const BYTES: usize = 1 << 20;

fn part() -> Part {
    let mut part = Part::quiet();
    part.limits.lanes = 1;
    // So that one that does not come back is missed.
    part.limits.windows = 2;
    part
}

/// A context beside the scene's owner that writes to one of the holder's engine, on the same lane.
struct Bystander {
    writer: Puppet,
    target: Granted,
}

impl Bystander {
    fn new<D: Device>(pair: &mut Pair<D>) -> Self {
        let writer = pair.right.puppet(0, "writer");
        let host = pair.left.puppet(0, "host");
        pair.steps(10);
        let writer_id = lookup(pair, &host, "writer");
        let target = grant(pair, &host, &writer, writer_id, BYTES);
        Self { writer, target }
    }

    fn write(&self) {
        let import = self.target.import;
        self.writer.act(move |cx| {
            let buf = cx.alloc(BYTES).unwrap();
            for token in 0..WRITES {
                cx.write(&import, 0, &[Local::prefix(&buf, BYTES)], token)
                    .unwrap();
            }
        });
    }

    fn has_written<D: Device>(&self, pair: &mut Pair<D>) {
        let mut done = Vec::new();
        pair.until(|_| {
            done.extend(completions(&self.writer.events()));
            done.len() as u64 == WRITES
        });
        assert!(
            done.iter().all(|done| done.status == Status::Ok),
            "{done:?}"
        );
    }
}

/// Time goes on, and the left side's steps come every so many of the right's.
fn go_on<D: Device>(pair: &mut Pair<D>, us: u64, left_every: u64) {
    for at in 1..=us {
        pair.now_ns += US;
        pair.right.step(pair.now_ns);
        if at % left_every == 0 {
            pair.left.step(pair.now_ns);
        }
    }
}

const NEVER: u64 = u64::MAX;

/// As many chains; a region's key has none, and never waits for its lane's backlog.
const fn refused(chains: u64) -> u64 {
    if REGIONS { 0 } else { chains }
}

#[test]
fn r5_an_idle_context_ends_behind_a_stalled_bystander() {
    let mut court = Court::new(part(), part());
    let pair = &mut court.pair;
    let mut scene = Scene::new(pair);
    let bystander = Bystander::new(pair);
    for round in 1..=3 {
        scene.grant(pair, 4096);
        let owner = pair.right.id_of("owner").unwrap();
        bystander.write();
        go_on(pair, 100, NEVER);
        pair.right.engine.kill(owner);
        go_on(pair, 5 * MS / US, NEVER);
        assert!(pair.right.reclaimed(owner), "{:?}", pair.right.events);
        assert_eq!(pair.right.stat("chains_refused"), refused(round));
        assert_eq!(pair.right.parked(), 1, "its holder has not acknowledged it");

        // The peer is back.
        bystander.has_written(pair);
        pair.until(|pair| pair.right.parked() == 0);
        pair.until(|pair| pair.right.used(|usage| usage.windows.into()) == 0);
        for side in [&pair.left, &pair.right] {
            assert_eq!(side.stat("lanes_broken"), 0, "the session lives on");
        }
        let again = pair.right.puppet(0, "owner");
        pair.steps(10);
        scene = Scene {
            holder_id: lookup(pair, &again, "holder"),
            owner_id: lookup(pair, &scene.holder, "owner"),
            owner: again,
            holder: scene.holder,
        };
    }
    assert_eq!(pair.right.stat("invalidations_posted"), 0);
    court.acquit();
}

#[test]
fn r5_so_it_does_behind_a_backlog_that_is_too_slow() {
    let mut part = part();
    // A lane counts as standing still after a millisecond.
    part.limits.slowest_rate_bytes_per_s = 4_300_000_000;
    let mut court = Court::new(self::part(), part);
    let pair = &mut court.pair;
    let scene = Scene::new(pair);
    let bystander = Bystander::new(pair);
    scene.grant(pair, 4096);
    let owner = pair.right.id_of("owner").unwrap();
    bystander.write();
    go_on(pair, 100, NEVER);
    pair.right.engine.kill(owner);
    go_on(pair, 5 * MS / US, 400);
    assert!(pair.right.reclaimed(owner), "{:?}", pair.right.events);
    assert_eq!(pair.right.stat("chains_refused"), refused(1));
    bystander.has_written(pair);
    assert_eq!(pair.right.stat("lanes_broken"), 0);
    court.acquit();
}

#[test]
fn r5_a_backlog_that_moves_is_waited_for() {
    let mut court = Court::new(part(), part());
    let pair = &mut court.pair;
    let scene = Scene::new(pair);
    let bystander = Bystander::new(pair);
    scene.grant(pair, 4096);
    let owner = pair.right.id_of("owner").unwrap();
    bystander.write();
    go_on(pair, 30, 1);
    pair.right.engine.kill(owner);
    bystander.has_written(pair);
    pair.until(|pair| pair.right.reclaimed(owner));
    assert_eq!(pair.right.stat("chains_refused"), 0);
    assert_eq!(pair.right.stat("invalidations_posted"), refused(1));
    court.acquit();
}

#[test]
fn r3_where_a_deallocation_does_not_fence_the_lane_is_sacrificed() {
    let fabric = Fabric::new();
    let device = || {
        let soft = fabric.device(SoftConfig::default()).unwrap();
        Switched::new(soft)
            .0
            .saying(|caps| caps.dealloc_fences = false)
    };
    let (left, right) = (device(), device());
    let part = part();
    let builders = (part.builder("left", "right"), part.builder("right", "left"));
    let mut pair = Pair::on(builders.0, left, builders.1, right);
    let scene = Scene::new(&mut pair);
    let bystander = Bystander::new(&mut pair);
    scene.grant(&mut pair, 4096);
    let owner = pair.right.id_of("owner").unwrap();
    bystander.write();
    go_on(&mut pair, 100, NEVER);
    pair.right.engine.kill(owner);
    go_on(&mut pair, 10 * MS / US, NEVER);
    assert!(pair.right.reclaimed(owner), "{:?}", pair.right.events);
    assert_eq!(pair.right.stat("chains_refused"), 0);
    assert_eq!(pair.right.stat("lanes_broken"), refused(1));
}
