//! Rule 7 with accesses that are under way when their key ends. On Soft-RoCE the suite's mebibyte has landed before anybody can look, so here
//! it is 64 of them in eight requests, and a test in which all had ended before is a failure: it would have shown nothing.

use super::{BYTES, Outcome, Side, config, connect, ensure, pair_of, text};
use keyfence_mempool::arena::{Arena, ArenaConfig, PageSize, Policy};
use keyfence_mempool::sync::Arc;
use keyfence_pmd::conformance::Setup;
use keyfence_pmd::verbs::VerbsDevice;
use keyfence_pmd::{
    Access, Control, DataPath, Region, Remote, Rights, Rkey, Sge, SgeList, WcStatus, Window,
    WorkId, WorkOp, WorkRequest,
};

const LEN: usize = 8 << 20;
const COUNT: u64 = 8;
const MARK: u8 = 0xee;

/// Two sides with large arenas.
struct Rig {
    a: Side,
    b: Side,
    big: Region,
}

/// What opens the target.
struct Key {
    rkey: Rkey,
    window: Option<Window>,
    region: Option<Region>,
}

fn arena() -> Result<Arc<Arena>, String> {
    let config = ArenaConfig {
        page_size: PageSize::Base4KiB,
        transparent: false,
        hugepages: Policy::Off,
        lock: Policy::Off,
        ..ArenaConfig::new(LEN)
    };
    Ok(Arc::new(Arena::map(&config).map_err(text)?))
}

fn rig(mut setup: Setup<VerbsDevice>) -> Result<Rig, String> {
    setup.arena_a = arena()?;
    setup.arena_b = arena()?;
    let (a, b) = pair_of(setup, LEN)?;
    a.arena.dma(0, LEN).map_err(text)?.fill(0x11);
    b.arena.dma(0, LEN).map_err(text)?.fill(0);
    let big = b.region;
    Ok(Rig { a, b, big })
}

impl Rig {
    /// Opens the target through a window.
    fn open(&mut self) -> Result<Key, String> {
        let window = self.b.device.alloc_window(self.b.qp).map_err(text)?;
        let rkey = window.rkey.with_tag(window.rkey.tag().wrapping_add(1));
        let op = WorkOp::Bind {
            window: window.id,
            region: self.big.id,
            address: self.b.arena.address(),
            len: LEN as u64,
            rights: Rights::READ_WRITE,
            rkey,
        };
        let bind = WorkRequest::new(WorkId(100), op, SgeList::EMPTY);
        let taken = self.b.path.post_burst(self.b.qp, &[bind]);
        ensure(taken == 1 && self.b.next()?.is_success(), "not bound")?;
        Ok(Key {
            rkey,
            window: Some(window),
            region: None,
        })
    }

    /// Opens the target through a region.
    fn open_region(&mut self) -> Result<Key, String> {
        let access = Access {
            remote: Rights::READ_WRITE,
            bind: false,
        };
        let (device, arena) = (&self.b.device, &self.b.arena);
        let region = device
            .register(self.b.pd, arena, 0..LEN, access)
            .map_err(text)?;
        Ok(Key {
            rkey: region.rkey,
            window: None,
            region: Some(region),
        })
    }

    /// Starts eight large accesses of side A, and waits until the first bytes have moved.
    fn start(&mut self, key: &Key, read: bool) -> Outcome {
        let remote = Remote {
            address: self.b.arena.address(),
            rkey: key.rkey,
        };
        let op = match read {
            true => WorkOp::Read { remote },
            false => WorkOp::Write {
                remote,
                immediate: None,
            },
        };
        let local = Sge::new(self.a.arena.address(), LEN as u32, self.a.region.lkey);
        let watched = match read {
            true => Arc::clone(&self.a.arena),
            false => Arc::clone(&self.b.arena),
        };
        let first = watched.dma(0, BYTES).map_err(text)?;
        let before = first.load_u64(0).map_err(text)?;
        let work: Vec<_> = (0..COUNT)
            .map(|id| WorkRequest::new(WorkId(id), op, SgeList::one(local)))
            .collect();
        let taken = self.a.path.post_burst(self.a.qp, &work);
        ensure(taken as u64 == COUNT, format!("took {taken}"))?;
        for _ in 0..1_000_000 {
            if first.load_u64(0).map_err(text)? != before {
                return Ok(());
            }
        }
        Err("nothing was moved".into())
    }

    /// Ends the target's key by an invalidation. Whether that succeeded and accesses were under way.
    fn invalidate(&mut self) -> Result<bool, String> {
        let key = self.open()?;
        self.b.arena.dma(0, LEN).map_err(text)?.zero();
        self.start(&key, false)?;
        let op = WorkOp::Invalidate { rkey: key.rkey };
        let end = WorkRequest::new(WorkId(101), op, SgeList::EMPTY);
        let taken = self.b.path.post_burst(self.b.qp, &[end]);
        ensure(taken == 1, "not taken")?;
        let ended = self.b.next()?.status;
        match ended {
            WcStatus::Success => {
                let target = Arc::clone(&self.b.arena);
                self.stays(&target, "an invalidation")?;
            }
            // The write that it stopped broke the queue pair before the adapter reported it. That proves nothing.
            WcStatus::Flushed => {}
            status => return Err(format!("the invalidation ended as {status:?}")),
        }
        Ok(ended == WcStatus::Success && self.completed()? < COUNT)
    }

    /// A new pair of queue pairs.
    fn start_anew(&mut self, address: &str) -> Outcome {
        for side in [&mut self.a, &mut self.b] {
            side.path.release_qp(side.qp);
            side.device.destroy_qp(side.qp).map_err(text)?;
            let made = side.device.create_qp(&config(side.pd, 16));
            side.qp = made.map_err(text)?;
        }
        connect(&self.a, &self.b, address)
    }

    /// Nothing changes the bytes of this side any more.
    fn stays(&mut self, arena: &Arena, what: &str) -> Outcome {
        let bytes = arena.dma(0, LEN).map_err(text)?;
        bytes.fill(MARK);
        for _ in 0..1_000 {
            std::thread::yield_now();
        }
        let changed = bytes.first_not(MARK);
        ensure(
            changed.is_none(),
            format!("byte {changed:?} was changed after {what}"),
        )
    }

    /// How side A's accesses ended: not all may have been over before.
    fn under_way(&mut self, what: &str) -> Outcome {
        ensure(
            self.completed()? < COUNT,
            format!("all accesses were over before {what}, so nothing was shown"),
        )
    }

    /// How many of side A's accesses succeeded.
    fn completed(&mut self) -> Result<u64, String> {
        let mut good = 0;
        for _ in 0..COUNT {
            good += u64::from(self.a.next()?.is_success());
        }
        Ok(good)
    }

    fn ended(&mut self, what: &str) -> Outcome {
        let target = Arc::clone(&self.b.arena);
        self.stays(&target, what)?;
        self.under_way(what)
    }
}

/// Ends of a key with a success, under way. Without the hold one in five to twenty of these had late bytes, by the load of the machine.
const INVALIDATIONS: u32 = 80;

/// Tries. On a quiet machine the queue pair breaks before the invalidation is reported in most of them.
const TRIES: u32 = 4 * INVALIDATIONS;

/// With fewer that were under way the test has shown too little: it goes on.
const LEAST: u32 = 12;

/// Tries at most.
const MOST_TRIES: u32 = 5 * TRIES;

/// Soft-RoCE says that an invalidation is done while it still copies a packet, and by chance alone is that seen: so it is done often.
pub fn invalidation(setup: Setup<VerbsDevice>) -> Outcome {
    let address = setup.address.clone();
    let mut rig = rig(setup)?;
    let mut shown = 0;
    for tried in 1..=MOST_TRIES {
        shown += u32::from(rig.invalidate()?);
        if shown == INVALIDATIONS || tried >= TRIES && shown >= LEAST {
            return Ok(());
        }
        rig.start_anew(&address)?;
    }
    Err(format!(
        "only {shown} of {MOST_TRIES} runs showed something"
    ))
}

pub fn deallocation(setup: Setup<VerbsDevice>) -> Outcome {
    let mut rig = rig(setup)?;
    let key = rig.open()?;
    rig.start(&key, false)?;
    let window = key.window.ok_or("no window")?;
    rig.b.device.dealloc_window(window.id).map_err(text)?;
    rig.ended("a deallocation")
}

pub fn deallocation_in_error(setup: Setup<VerbsDevice>) -> Outcome {
    let mut rig = rig(setup)?;
    let key = rig.open()?;
    rig.start(&key, false)?;
    rig.b.device.error_qp(rig.b.qp).map_err(text)?;
    let window = key.window.ok_or("no window")?;
    rig.b.device.dealloc_window(window.id).map_err(text)?;
    rig.ended("a deallocation on a queue pair in error")
}

pub fn deregistration(setup: Setup<VerbsDevice>) -> Outcome {
    let mut rig = rig(setup)?;
    let key = rig.open_region()?;
    rig.start(&key, false)?;
    let region = key.region.ok_or("no region")?;
    rig.b.device.deregister(region.id).map_err(text)?;
    rig.ended("a deregistration")
}

pub fn owners_destruction(setup: Setup<VerbsDevice>) -> Outcome {
    let mut rig = rig(setup)?;
    let key = rig.open()?;
    rig.start(&key, false)?;
    rig.b.path.release_qp(rig.b.qp);
    rig.b.device.destroy_qp(rig.b.qp).map_err(text)?;
    rig.ended("the owner's destruction of its queue pair")
}

pub fn own_destruction(setup: Setup<VerbsDevice>) -> Outcome {
    let mut rig = rig(setup)?;
    let key = rig.open()?;
    rig.start(&key, true)?;
    let mut done = [keyfence_pmd::Completion::EMPTY; 16];
    let over = rig.a.path.poll_burst(&mut done) as u64;
    rig.a.path.release_qp(rig.a.qp);
    rig.a.device.destroy_qp(rig.a.qp).map_err(text)?;
    let sink = Arc::clone(&rig.a.arena);
    rig.stays(&sink, "the destruction of the reader's queue pair")?;
    ensure(
        over < COUNT,
        "all reads were over before, so nothing was shown",
    )
}

pub fn flushed_reads(setup: Setup<VerbsDevice>) -> Outcome {
    let mut rig = rig(setup)?;
    let key = rig.open()?;
    rig.start(&key, true)?;
    rig.a.device.error_qp(rig.a.qp).map_err(text)?;
    rig.under_way("the reader's error")?;
    let sink = Arc::clone(&rig.a.arena);
    rig.stays(&sink, "the reads were flushed")
}
