//! Rule 7 with so much under way that some of it still is when the key or the queue pair ends, also on an adapter that goes on by itself:
//! the suite's mebibyte has landed there before anybody can look. For `probe`, not part of the suite: whether anything was under way
//! depends on the adapter's speed, so a run that shows nothing is told apart from one that shows that all is well.

use super::bench::{Bench, End, Grant, Link};
use super::grants::write_op;
use super::proof::MARK;
use super::{Failure, Setup, ensure};
use crate::completion::WcStatus;
use crate::device::{DataPath, Device};
use crate::work::{Rights, SgeList, WorkOp};

/// What ends while accesses are under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// A window's key, by an invalidation.
    Invalidation,
    /// A window on a healthy queue pair.
    Deallocation,
    /// A window on a queue pair in error.
    DeallocationInError,
    /// A region with remote rights.
    Deregistration,
    /// The queue pair of the side whose memory is accessed.
    OwnersDestruction,
    /// The queue pair of the side that reads.
    OwnDestruction,
    /// Reads, by an error of their queue pair: their completions are the proof.
    Flush,
}

/// What one run saw.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Seen {
    /// Accesses were under way, and not a byte moved after the proof.
    Stopped {
        /// How many of [`COUNT`] had been completed successfully before.
        completed: usize,
    },
    /// Nothing was shown, and why.
    Nothing(&'static str),
    /// The contract was broken.
    Broken(String),
}

/// Accesses of each run.
pub const COUNT: usize = 32;
/// Bytes of each.
pub const LEN: usize = 2 << 20;

/// Of the side that opens its memory. The other side's bytes are its arena's first.
const TARGET: usize = 1 << 20;

/// Runs it once, on two fresh devices.
pub fn run<D: Device>(ending: Ending, setup: Setup<D>) -> Seen {
    let went = Bench::new(setup).and_then(|mut bench| ending.run(&mut bench));
    went.unwrap_or_else(|Failure(text)| Seen::Broken(text))
}

impl Ending {
    fn reads(self) -> bool {
        matches!(self, Self::OwnDestruction | Self::Flush)
    }

    fn run<D: Device>(self, bench: &mut Bench<D>) -> Result<Seen, Failure> {
        let link = bench.link()?;
        let rights = Rights::READ_WRITE;
        let mut region = None;
        let grant = match self {
            Self::Deregistration => {
                let (grant, id) = bench.open_region(End::B, TARGET, LEN, rights)?;
                region = Some(id);
                grant
            }
            _ => bench.open(End::B, link, TARGET, LEN, rights)?,
        };
        start(bench, link, &grant, self.reads())?;
        let b = &mut bench.b;
        match self {
            Self::Invalidation => {
                let end = bench.work(WorkOp::Invalidate { rkey: grant.rkey }, SgeList::EMPTY);
                match bench.run(End::B, link.b, end)?.status {
                    WcStatus::Success => {}
                    // An access that it stopped broke the queue pair before it was reported, so it proves nothing.
                    WcStatus::Flushed => return Ok(Seen::Nothing("the invalidation was flushed")),
                    status => {
                        let text = format!("the invalidation ended as {status:?}");
                        return Ok(Seen::Broken(text));
                    }
                }
            }
            Self::Deallocation => bench.b.device.dealloc_window(bench.window_of(&grant)?)?,
            Self::DeallocationInError => {
                b.device.error_qp(link.b)?;
                // There the invalidation is but flushed.
                let end = bench.work(WorkOp::Invalidate { rkey: grant.rkey }, SgeList::EMPTY);
                bench.fail(End::B, link.b, end, WcStatus::Flushed)?;
                bench.b.device.dealloc_window(bench.window_of(&grant)?)?;
            }
            Self::Deregistration => {
                let region = region.ok_or_else(|| Failure("no region".into()))?;
                b.device.deregister(region)?;
            }
            Self::OwnersDestruction => {
                b.path.release_qp(link.b);
                b.device.destroy_qp(link.b)?;
            }
            Self::OwnDestruction => return self.own_destruction(bench, link),
            Self::Flush => return self.flush(bench, link),
        }
        stays(bench, End::B, TARGET)?;
        let completed = completed(bench)?;
        Ok(seen(completed))
    }

    fn own_destruction<D: Device>(self, bench: &mut Bench<D>, link: Link) -> Result<Seen, Failure> {
        bench.a.poll();
        let completed = bench.leftovers(End::A).len();
        bench.a.path.release_qp(link.a);
        bench.a.device.destroy_qp(link.a)?;
        stays(bench, End::A, 0)?;
        Ok(seen(completed))
    }

    fn flush<D: Device>(self, bench: &mut Bench<D>, link: Link) -> Result<Seen, Failure> {
        bench.a.device.error_qp(link.a)?;
        let completed = completed(bench)?;
        stays(bench, End::A, 0)?;
        Ok(seen(completed))
    }
}

fn seen(completed: usize) -> Seen {
    match completed < COUNT {
        true => Seen::Stopped { completed },
        false => Seen::Nothing("every access was over before"),
    }
}

/// Starts the accesses of side A, and waits until the first bytes have moved.
fn start<D: Device>(
    bench: &mut Bench<D>,
    link: Link,
    grant: &Grant,
    reads: bool,
) -> Result<(), Failure> {
    let (from, to, op) = match reads {
        true => {
            let remote = grant.at(0);
            ((End::B, TARGET), (End::A, 0), WorkOp::Read { remote })
        }
        false => ((End::A, 0), (End::B, TARGET), write_op(grant.at(0))),
    };
    bench.pattern(from.0, from.1, LEN, 1)?;
    bench.fill(to.0, to.1, LEN, 0)?;
    let local = bench.one(End::A, 0, LEN);
    let work: Vec<_> = (0..COUNT).map(|_| bench.work(op, local)).collect();
    let taken = bench.a.path.post_burst(link.a, &work);
    ensure!(taken == COUNT, "took {taken} of {COUNT} requests");
    for _ in 0..bench.poll_limit {
        if bench.word(to.0, to.1)? != 0 {
            return Ok(());
        }
        bench.step();
    }
    Err(Failure("no byte was moved".into()))
}

/// The memory is given to somebody else: nobody but that one may change it.
fn stays<D: Device>(bench: &mut Bench<D>, end: End, offset: usize) -> Result<(), Failure> {
    bench.fill(end, offset, LEN, MARK)?;
    bench.settle();
    let bytes = bench.bytes(end, offset, LEN)?;
    let late = bytes.iter().filter(|byte| **byte != MARK).count();
    ensure!(late == 0, "{late} bytes landed after the proof");
    Ok(())
}

/// How many of side A's accesses succeeded; all have ended.
fn completed<D: Device>(bench: &mut Bench<D>) -> Result<usize, Failure> {
    let done = bench.next(End::A, COUNT)?;
    Ok(done.iter().filter(|done| done.is_success()).count())
}
