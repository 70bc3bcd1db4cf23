//! From the start of the engines to their end: drives the control side while the file goes through.

use std::thread;

use keyfence::ids::ContextId;
use keyfence::pmd::Device;
use keyfence_mempool::sync::{Arc, Ordering};

use super::board::{Board, Side};
use super::crew::{Crew, Tally};
use super::disk;
use super::file::{Destination, Source};
use super::plan::Plan;
use super::seat::Stream;
use crate::host::{Clock, Ended, Host};
use crate::progress::Progress;
use crate::signals::Signals;

/// A copy in which no byte arrives for so long has failed.
const STALL_NS: u64 = 60_000_000_000;

/// The bound of an orderly end.
const SHUTDOWN_NS: u64 = 2_000_000_000;

/// How a transfer ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// Every block is in the destination.
    Complete,
    /// By a signal.
    Interrupted,
    /// One of the file's threads has given up; the board says why.
    Failed,
    /// The session with the peer, or an lcore, was lost.
    Lost,
    /// Nothing has come for a minute.
    Stalled,
}

/// What a transfer leaves.
pub struct Transferred {
    /// How it ended.
    pub end: End,
    /// Of the whole source; `None` if it was not read to its end.
    pub digest: Option<blake3::Hash>,
    /// From the session's start to the last block.
    pub elapsed_ns: u64,
    /// Events added up.
    pub tally: Tally,
    /// Whose memory it was when operations failed though nobody had killed that context.
    pub bystander_errors: u64,
    /// The engines.
    pub engines: Vec<Ended>,
}

/// Carries a file through the engines of a host.
pub fn transfer(
    mut host: Host<impl Device>,
    clock: &Clock,
    plan: &Arc<Plan>,
    board: &Arc<Board>,
    files: (&Source, &Destination),
    kill_every_ns: Option<u64>,
    signals: &Signals,
) -> Transferred {
    let (mut chairs, mut readers, mut writers) = (Vec::new(), Vec::new(), Vec::new());
    for stream in (0..plan.streams).map(|_| Stream::new(plan)) {
        chairs.push((stream.sender, stream.receiver));
        readers.push(stream.reader);
        writers.push(stream.writer);
    }
    let mut crew = Crew::new(plan, board, chairs.clone(), kill_every_ns);
    let (end, elapsed_ns, digest) = thread::scope(|scope| {
        let reader = scope.spawn(|| disk::read(&files.0.file, plan, board, &mut readers));
        scope.spawn(|| disk::write(&files.1.file, plan, board, &mut writers));
        let (end, elapsed_ns) = drive(&mut host, clock, plan, board, &mut crew, signals);
        board.stop();
        (end, elapsed_ns, reader.join().ok().flatten())
    });
    let mut events = Vec::new();
    let engines = host.end(SHUTDOWN_NS, &mut events);
    for (_, event) in &events {
        crew.tally.note(event);
    }
    show_counters(&engines);
    let seats = chairs.iter().filter_map(|(sender, _)| sender.take());
    let failed: Vec<ContextId> = seats.flat_map(|seat| seat.failed_owners).collect();
    let unexplained = |owner: &&ContextId| !crew.was_killed(Side::Receiver, **owner);
    // After a signal every operation under way is cut short.
    let bystander_errors = match end {
        End::Complete => failed.iter().filter(unexplained).count() as u64,
        _ => 0,
    };
    Transferred {
        end,
        digest,
        elapsed_ns,
        tally: crew.tally,
        bystander_errors,
        engines,
    }
}

/// Every counter that counted something, for whoever asks with `RUST_LOG=debug`.
fn show_counters(engines: &[Ended]) {
    for ended in engines {
        for stats in ended.stats.iter().flatten() {
            for (name, value) in stats.xstats().into_iter().filter(|(_, value)| *value > 0) {
                tracing::debug!("engine {}: {name} {value}", ended.name);
            }
        }
    }
}

fn drive(
    host: &mut Host<impl Device>,
    clock: &Clock,
    plan: &Plan,
    board: &Board,
    crew: &mut Crew,
    signals: &Signals,
) -> (End, u64) {
    let mut progress = Progress::new("copying", plan.bytes);
    let mut events = Vec::new();
    let (mut started_ns, mut written_bytes, mut moved_ns) = (None, 0, clock.now_ns());
    crew.open_all(host);
    loop {
        let busy = host.control(&mut events);
        for (engine, event) in events.drain(..) {
            crew.note(host, engine, &event);
        }
        let now_ns = clock.now_ns();
        if started_ns.is_none() && crew.tally.peers_up == 2 {
            started_ns = Some(now_ns);
        }
        let elapsed_ns = started_ns.map_or(0, |start_ns| now_ns.saturating_sub(start_ns));
        let written = board.written_bytes.load(Ordering::Acquire);
        if written > written_bytes {
            (written_bytes, moved_ns) = (written, now_ns);
            progress.set(written);
        }
        if started_ns.is_some() && written == plan.bytes {
            return (End::Complete, elapsed_ns);
        }
        if signals.interrupted() {
            return (End::Interrupted, elapsed_ns);
        }
        if board.is_stopped() {
            return (End::Failed, elapsed_ns);
        }
        if crew.tally.peer_lost || !host.is_alive() {
            return (End::Lost, elapsed_ns);
        }
        if now_ns.saturating_sub(moved_ns) > STALL_NS {
            return (End::Stalled, elapsed_ns);
        }
        if started_ns.is_some() {
            crew.reap(host, elapsed_ns);
        }
        if !busy {
            host.rest();
        }
    }
}
