//! What does an operation cost over `soft`, between two pinned threads?
//!
//! A one-way time is half of a round trip of two messages. Figures are of the whole way through the device contract: post, key check, copy, poll.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::thread;
use std::time::Duration;

use keyfence_benches::{Suite, beside, until};
use keyfence_mempool::sync::{Arc, AtomicBool, Ordering};
use keyfence_mempool::{Arena, ArenaConfig};
use keyfence_pmd::soft::{Fabric, SoftConfig, SoftDevice, SoftPath};
use keyfence_pmd::*;

const DEPTH: u32 = 256;
const ARENA_BYTES: usize = 1 << 20;
/// Where received messages land.
const RECEIVES: u64 = 512 << 10;
/// Messages of a burst; the last one is signaled.
const BURST: usize = 32;

fn main() -> io::Result<()> {
    let mut suite = Suite::new("soft", std::env::args().skip(1));
    let pair = Rc::new(RefCell::new(Pair::new()));
    type Run = fn(&mut Pair, u64) -> Duration;
    let cases: [(&str, u64, Run); 5] = [
        ("write/8", 1, |pair, count| writes(pair, count)),
        ("message/8/one_way", 2, |pair, count| {
            round_trips(pair, 8, count)
        }),
        ("message/64/one_way", 2, |pair, count| {
            round_trips(pair, 64, count)
        }),
        ("message/64/rate/single", BURST as u64, |pair, bursts| {
            stream(pair, 1, bursts)
        }),
        ("message/64/rate/burst_32", BURST as u64, |pair, bursts| {
            stream(pair, BURST, bursts)
        }),
    ];
    for (name, operations, run) in cases {
        let pair = Rc::clone(&pair);
        suite.case(name, operations, move |calls| {
            run(&mut pair.borrow_mut(), calls)
        });
    }
    suite.run(&mut io::stdout())
}

/// One adapter with a queue pair.
struct Side {
    device: SoftDevice,
    path: SoftPath,
    arena: Arc<Arena>,
    region: Region,
    qp: QpId,
    done: [Completion; BURST],
}

/// Two connected sides, and a range of b's that a may write.
struct Pair {
    a: Side,
    b: Side,
    open: Remote,
}

impl Side {
    fn new(fabric: &Fabric) -> Self {
        let device = fabric.device(SoftConfig::default()).expect("legal");
        let path = device.open_path(LcoreId(0)).expect("not open");
        let arena = Arc::new(Arena::map(&ArenaConfig::new(ARENA_BYTES)).expect("memory"));
        let pd = device.alloc_pd().expect("one is left");
        let access = Access {
            remote: Rights::NONE,
            bind: true,
        };
        let region = device.register(pd, &arena, 0..ARENA_BYTES, access);
        let qp = device.create_qp(&QpConfig {
            pd,
            lcore: LcoreId(0),
            send_depth: DEPTH,
            receive_depth: DEPTH,
            max_sge: 1,
            max_inline_bytes: 0,
        });
        Self {
            device,
            path,
            arena,
            region: region.expect("in the arena"),
            qp: qp.expect("legal"),
            done: [Completion::EMPTY; BURST],
        }
    }

    fn sge(&self, offset: u64, bytes: u32) -> Sge {
        Sge::new(self.arena.address() + offset, bytes, self.region.lkey)
    }

    fn post(&mut self, work: &[WorkRequest]) -> usize {
        self.path.post_burst(self.qp, work)
    }

    /// Posts a receive of 64 bytes; the name tells where it lands.
    fn receive(&mut self, id: WorkId) {
        let sge = self.sge(RECEIVES + 64 * id.0, 64);
        let taken = self
            .path
            .post_receives(self.qp, &[ReceiveRequest { id, sge }]);
        assert_eq!(taken, 1, "as many receives as the queue has");
    }

    /// Polls; receives are posted again. Gives how many messages came and how many requests completed.
    fn poll(&mut self) -> (u64, u64) {
        let count = self.path.poll_burst(&mut self.done);
        let (mut received, mut completed) = (0, 0);
        for at in 0..count {
            let done = self.done[at];
            assert!(done.is_success(), "{done:?}");
            if done.kind == CompletionKind::Receive {
                self.receive(done.id);
                received += 1;
            } else {
                completed += 1;
            }
        }
        (received, completed)
    }

    fn message(&self, bytes: u32) -> WorkRequest {
        let op = WorkOp::Send { immediate: None };
        WorkRequest::new(WorkId(0), op, SgeList::one(self.sge(0, bytes)))
    }

    /// Polls until that is over, and yields now and then so that one core is enough.
    fn serve(&mut self, over: &AtomicBool) {
        until(|| {
            self.poll();
            over.load(Ordering::Acquire).then_some(())
        });
    }
}

impl Pair {
    fn new() -> Self {
        let fabric = Fabric::new();
        let (mut a, mut b) = (Side::new(&fabric), Side::new(&fabric));
        b.device.listen("local:b").expect("free");
        a.device
            .start_connect(a.qp, "local:b", &[])
            .expect("it listens");
        let Some(ControlEvent::ConnectRequest { request, .. }) = b.device.poll_event() else {
            panic!("no request of a connection");
        };
        b.device.accept(request, b.qp, &[]).expect("it waits");
        for side in [&mut a, &mut b] {
            (0..u64::from(DEPTH)).for_each(|id| side.receive(WorkId(id)));
        }
        let window = b.device.alloc_window(b.qp).expect("one is left");
        let open = Remote {
            address: b.arena.address(),
            rkey: window.rkey,
        };
        let bind = WorkOp::Bind {
            window: window.id,
            region: b.region.id,
            address: open.address,
            len: 4096,
            rights: Rights::WRITE,
            rkey: open.rkey,
        };
        b.post(&[WorkRequest::new(WorkId(0), bind, SgeList::EMPTY)]);
        assert_eq!(b.poll(), (0, 1));
        Self { a, b, open }
    }
}

/// Writes of 8 bytes, one at a time, from the post to the completion.
fn writes(pair: &mut Pair, count: u64) -> Duration {
    let Pair { a, b, open } = pair;
    let op = WorkOp::Write {
        remote: *open,
        immediate: None,
    };
    let write = WorkRequest::new(WorkId(0), op, SgeList::one(a.sge(0, 8)));
    let over = AtomicBool::new(false);
    let timed = || {
        for _ in 0..count {
            assert_eq!(a.post(&[write]), 1);
            until(|| (a.poll().1 == 1).then_some(()));
        }
        over.store(true, Ordering::Release);
    };
    beside(|| b.serve(&over), timed)
}

/// A message there and one back. A silent one frees its place with the next that is reported.
fn round_trips(pair: &mut Pair, bytes: u32, count: u64) -> Duration {
    let Pair { a, b, .. } = pair;
    let turn = |side: &mut Side, number: u64| {
        let message = side.message(bytes).signaled(number % 16 == 15);
        assert_eq!(
            side.post(&[message]),
            1,
            "the queue is deeper than what is silent"
        );
    };
    let answer = || {
        for number in 0..count {
            until(|| (b.poll().0 == 1).then_some(()));
            turn(b, number);
        }
    };
    let timed = || {
        for number in 0..count {
            turn(a, number);
            until(|| (a.poll().0 == 1).then_some(()));
        }
    };
    let took = beside(answer, timed);
    pair.settle();
    took
}

/// Messages of 64 bytes in posts of `together`, as fast as they go, until all are acknowledged.
fn stream(pair: &mut Pair, together: usize, bursts: u64) -> Duration {
    let Pair { a, b, .. } = pair;
    let mut work = [a.message(64).signaled(false); BURST];
    work[BURST - 1].signaled = true;
    let over = AtomicBool::new(false);
    let timed = || {
        let (mut posted, mut completed) = (0, 0);
        while completed < bursts {
            let at = posted % BURST;
            if (posted / BURST) as u64 == bursts || posted / BURST >= completed as usize + 6 {
                completed += until(|| Some(a.poll().1).filter(|more| *more > 0));
                continue;
            }
            posted += a.post(&work[at..(at + together).min(BURST)]);
        }
        over.store(true, Ordering::Release);
    };
    beside(|| b.serve(&over), timed)
}

impl Pair {
    /// Takes what is still on the way: what was silent at the end of a run is reported behind a message that is not.
    fn settle(&mut self) {
        for turn in [true, false] {
            let (from, to) = match turn {
                true => (&mut self.a, &mut self.b),
                false => (&mut self.b, &mut self.a),
            };
            let last = from.message(8);
            assert_eq!(from.post(&[last]), 1);
            // The last completion has been taken when nothing comes any more: both sides are polled by this thread.
            let mut idle = 0;
            while idle < 16 {
                let (there, here) = (to.poll(), from.poll());
                idle = if (there, here) == ((0, 0), (0, 0)) {
                    idle + 1
                } else {
                    0
                };
                thread::yield_now();
            }
        }
    }
}
