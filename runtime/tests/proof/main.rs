//! The data path allocates nothing and makes no system call. The proof: a process that can do neither any more does a million operations of each
//! kind, a thousand revokes, a hundred thousand things by way of a client, and the reclaims of a service and of a client. Its twins, with one `yield` and one `Vec` planted in a service, die of it.

mod caller;
mod load;
#[path = "../pair/mod.rs"]
mod pair;
#[allow(unsafe_code)] // Gives up the allocator and the kernel.
mod sealed;

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};

use caller::Caller;
use keyfence::ids::LcoreId;
use keyfence::pmd::soft::SoftDevice;
use keyfence_mempool::sync::Ordering::Relaxed;
use load::{BOARD, Holder, KINDS, Owner, Victim};
use pair::Pair;

const OPS: u64 = 1_000_000;
const REVOKES: u64 = 1_000;
const CALLS: u64 = 100_000;

/// Says to a re-executed test that it is the child, and what is planted in it.
const CHILD: &str = "KEYFENCE_PROOF";

/// Exit codes of a child that got stuck: the kind of operation, or one of these.
const STUCK_REVOKING: i32 = 10;
const STUCK_RECLAIMING: i32 = 11;
const FAILED: i32 = 12;
const STUCK_CALLING: i32 = 13;

/// Runs the test `name` again in a process of its own, as the child; or, being that, never returns.
fn child(name: &str, plant: &str) -> ExitStatus {
    if std::env::var(CHILD).is_ok() {
        run(plant);
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--nocapture", "--test-threads=1"]);
    command.env(CHILD, plant).output().unwrap().status
}

fn run(plant: &str) -> ! {
    let mut pair = Pair::new();
    let open = |side: &mut pair::Side<SoftDevice>, name: &str, service| {
        side.engine.open(LcoreId(0), name, 1, service).unwrap();
    };
    open(&mut pair.right, "owner", Box::<Owner>::default());
    open(&mut pair.left, "holder", Box::<Holder>::default());
    // Warm: everything once, so that what grows to its size has it.
    work(&mut pair, 2_000, 100);
    let mut caller = warm_caller(&mut pair);
    for dead in 0..2 {
        BOARD.victim_ready.store(false, Relaxed);
        open(&mut pair.left, "victim", Box::new(Victim));
        pair.until(|_| BOARD.victim_ready.load(Relaxed));
        pair.steps(2_000);
        if dead == 0 {
            kill_victim(&mut pair, 2);
            pair.steps(2_000);
        }
    }
    BOARD.plant_yield.store(plant == "yield", Relaxed);
    BOARD.plant_vec.store(plant == "vec", Relaxed);
    sealed::seal();
    work(&mut pair, OPS, REVOKES);
    kill_victim(&mut pair, 3);
    call(&mut pair, &mut caller, CALLS);
    let failed = BOARD.failed.load(Relaxed) + caller.failed;
    if caller.close().is_err() {
        sealed::exit(FAILED);
    }
    step_until(&mut pair, 1_000_000, STUCK_RECLAIMING, |pair| {
        caller.forget();
        pair.left.stat("contexts_reclaimed") == 4 && caller.is_closed()
    });
    if failed > 0 {
        sealed::exit(FAILED);
    }
    sealed::exit(0)
}

/// `ops` operations of each kind, and `revokes` grants with their revokes. The control side of the engines stands still.
fn work(pair: &mut Pair<SoftDevice>, ops: u64, revokes: u64) {
    for kind in 0..KINDS.len() {
        BOARD.kind.store(kind as u64, Relaxed);
        BOARD.done.store(0, Relaxed);
        BOARD.submitted.store(0, Relaxed);
        BOARD.wanted.store(ops, Relaxed);
        step_until(pair, 100 * ops, 1 + kind as i32, |_| {
            BOARD.done.load(Relaxed) == ops
        });
    }
    BOARD.granted.store(0, Relaxed);
    BOARD.zapped.store(0, Relaxed);
    BOARD.revokes_wanted.store(revokes, Relaxed);
    step_until(pair, 10_000 * revokes, STUCK_REVOKING, |_| {
        BOARD.zapped.load(Relaxed) == revokes
    });
}

/// A client that has done everything, behind one that has ended.
fn warm_caller(pair: &mut Pair<SoftDevice>) -> Caller {
    let mut first = Caller::new(&mut pair.left, "caller");
    pair.steps(50);
    BOARD.caller_opened.store(true, Relaxed);
    pair.until(|_| {
        first.step();
        first.is_ready()
    });
    call(pair, &mut first, 2_000);
    let mut second = Caller::new(&mut pair.left, "second");
    second.close().unwrap();
    pair.until(|pair| pair.left.stat("contexts_reclaimed") == 1);
    first
}

fn call(pair: &mut Pair<SoftDevice>, caller: &mut Caller, calls: u64) {
    let wanted = caller.done + calls;
    step_until(pair, 1_000 * calls, STUCK_CALLING, |_| {
        caller.step();
        caller.done >= wanted
    });
}

fn kill_victim(pair: &mut Pair<SoftDevice>, reclaimed: u64) {
    BOARD.victim_dies.store(true, Relaxed);
    step_until(pair, 1_000_000, STUCK_RECLAIMING, |pair| {
        pair.left.stat("contexts_reclaimed") == reclaimed
    });
    BOARD.victim_dies.store(false, Relaxed);
}

fn step_until(
    pair: &mut Pair<SoftDevice>,
    most: u64,
    stuck: i32,
    mut done: impl FnMut(&Pair<SoftDevice>) -> bool,
) {
    for _ in 0..most {
        if done(pair) {
            return;
        }
        pair.now_ns += 1_000;
        pair.left.lcores[0].step(pair.now_ns);
        pair.right.lcores[0].step(pair.now_ns);
    }
    sealed::exit(stuck);
}

#[test]
fn the_data_path_neither_allocates_nor_enters_the_kernel() {
    let name = "the_data_path_neither_allocates_nor_enters_the_kernel";
    let status = child(name, "nothing");
    assert_eq!(status.code(), Some(0), "{status}");
}

#[test]
fn a_planted_yield_dies_of_its_system_call() {
    let status = child("a_planted_yield_dies_of_its_system_call", "yield");
    assert_eq!(status.signal(), Some(libc::SIGSYS), "{status}");
}

#[test]
fn a_planted_vec_dies_of_its_allocation() {
    let status = child("a_planted_vec_dies_of_its_allocation", "vec");
    assert_eq!(status.code(), Some(sealed::ALLOCATED), "{status}");
}
