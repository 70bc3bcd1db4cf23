//! What an adapter's driver promises beside the contract: how devices, paths and queue pairs end, and what is said when memory cannot be
//! locked. Each test is given fresh devices and returns what was wrong.

mod held;
mod in_flight;
mod self_test;

pub use self_test::learns;

use keyfence_mempool::arena::Arena;
use keyfence_mempool::sync::Arc;
use keyfence_pmd::conformance::Setup;
use keyfence_pmd::verbs::{VerbsConfig, VerbsDevice, VerbsError, VerbsPath};
use keyfence_pmd::{
    Access, Completion, Control, ControlError, ControlEvent, DataPath, Device, LcoreId, PdId,
    QpConfig, QpId, Region, Remote, Rights, Rkey, Sge, SgeList, WcStatus, WorkId, WorkOp,
    WorkRequest,
};

pub type Outcome = Result<(), String>;
type Body = fn(Setup<VerbsDevice>) -> Outcome;

/// The tests of this file.
pub const TESTS: &[(&str, Body)] = &[
    (
        "unknown_adapters_are_named_with_those_there_are",
        unknown_adapter,
    ),
    ("a_device_may_go_before_its_path", device_first),
    ("a_path_may_go_before_its_device", path_first),
    ("an_unanswered_request_ends_with_its_device", unanswered),
    ("completions_are_reserved_and_given_back", reservation),
    ("a_wrong_local_key_waits_its_turn", local_fault_in_turn),
    (
        "a_refused_bind_is_never_posted_and_waits_its_turn",
        refused_in_turn,
    ),
    (
        "r1_in_flight_nothing_lands_after_an_invalidation",
        in_flight::invalidation,
    ),
    (
        "an_invalidation_is_held_and_only_what_is_behind_it",
        held::goes_on,
    ),
    (
        "an_invalidation_that_is_held_succeeds_in_error_too",
        held::in_error,
    ),
    (
        "an_invalidation_that_is_held_is_flushed_without_its_device",
        held::device_first,
    ),
    (
        "an_invalidation_that_is_held_is_never_told_after_the_release",
        held::released,
    ),
    (
        "r1_in_flight_nothing_lands_after_a_deallocation",
        in_flight::deallocation,
    ),
    (
        "r1_in_flight_nothing_lands_after_a_deallocation_in_error",
        in_flight::deallocation_in_error,
    ),
    (
        "r1_in_flight_nothing_lands_after_a_deregistration",
        in_flight::deregistration,
    ),
    (
        "r1_in_flight_nothing_lands_after_the_owners_destruction",
        in_flight::owners_destruction,
    ),
    (
        "r1_in_flight_destruction_ends_own_reads",
        in_flight::own_destruction,
    ),
    (
        "r1_in_flight_a_flushed_read_writes_its_sink_no_more",
        in_flight::flushed_reads,
    ),
];

const LCORE: LcoreId = LcoreId(0);
const BYTES: usize = 4096;

/// One side with a queue pair and a region.
struct Side {
    device: VerbsDevice,
    path: VerbsPath,
    arena: Arc<Arena>,
    pd: PdId,
    region: Region,
    qp: QpId,
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn ensure(condition: bool, text: impl Into<String>) -> Outcome {
    condition.then_some(()).ok_or_else(|| text.into())
}

fn side(device: VerbsDevice, arena: Arc<Arena>, bytes: usize) -> Result<Side, String> {
    let path = device.open_path(LCORE).map_err(text)?;
    let pd = device.alloc_pd().map_err(text)?;
    let access = Access {
        remote: Rights::NONE,
        bind: true,
    };
    let region = device
        .register(pd, &arena, 0..bytes, access)
        .map_err(text)?;
    let qp = device.create_qp(&config(pd, 16)).map_err(text)?;
    Ok(Side {
        device,
        path,
        arena,
        pd,
        region,
        qp,
    })
}

fn config(pd: PdId, depth: u32) -> QpConfig {
    QpConfig {
        pd,
        lcore: LCORE,
        send_depth: depth,
        receive_depth: depth,
        max_sge: 1,
        max_inline_bytes: 0,
    }
}

/// Two connected sides.
fn pair(setup: Setup<VerbsDevice>) -> Result<(Side, Side), String> {
    pair_of(setup, BYTES)
}

/// The same with regions of so many bytes.
fn pair_of(setup: Setup<VerbsDevice>, bytes: usize) -> Result<(Side, Side), String> {
    setup.b.listen(&setup.address).map_err(text)?;
    let a = side(setup.a, setup.arena_a, bytes)?;
    let b = side(setup.b, setup.arena_b, bytes)?;
    connect(&a, &b, &setup.address)?;
    Ok((a, b))
}

/// Connects their queue pairs; B listens.
fn connect(a: &Side, b: &Side, address: &str) -> Outcome {
    a.device.start_connect(a.qp, address, b"").map_err(text)?;
    let (mut connected, mut polls) = (0, 0);
    while connected < 2 {
        for device in [&a.device, &b.device] {
            match device.poll_event() {
                Some(ControlEvent::ConnectRequest { request, .. }) => {
                    device.accept(request, b.qp, b"").map_err(text)?;
                }
                Some(ControlEvent::Connected { .. }) => connected += 1,
                Some(event) => return Err(format!("{event:?} while connecting")),
                None => {}
            }
        }
        polls += 1;
        ensure(polls < 1_000_000, "never connected")?;
        std::thread::yield_now();
    }
    Ok(())
}

impl Side {
    fn bind(&self, rkey_tag: u8, len: u64) -> Result<WorkOp, String> {
        let window = self.device.alloc_window(self.qp).map_err(text)?;
        Ok(WorkOp::Bind {
            window: window.id,
            region: self.region.id,
            address: self.arena.address(),
            len,
            rights: Rights::READ_WRITE,
            rkey: window.rkey.with_tag(rkey_tag),
        })
    }

    /// A write that no key opens, of local bytes.
    fn write(&self, id: u64, signaled: bool) -> WorkRequest {
        let remote = Remote {
            address: 0,
            rkey: Rkey(0),
        };
        let immediate = None;
        let op = WorkOp::Write { remote, immediate };
        WorkRequest::new(WorkId(id), op, SgeList::EMPTY).signaled(signaled)
    }

    /// A message of local bytes that nobody receives.
    fn message(&self, id: u64) -> WorkRequest {
        let sge = Sge::new(self.arena.address(), 64, self.region.lkey);
        let op = WorkOp::Send { immediate: None };
        WorkRequest::new(WorkId(id), op, SgeList::one(sge))
    }

    /// The next completion. Polls events, too, as an engine does.
    fn next(&mut self) -> Result<Completion, String> {
        let mut done = [Completion::EMPTY];
        for _ in 0..1_000_000 {
            if self.path.poll_burst(&mut done) == 1 {
                return Ok(done[0]);
            }
            if let Some(event) = self.device.poll_event() {
                return Err(format!("{event:?}"));
            }
            std::thread::yield_now();
        }
        Err("no completion".into())
    }

    /// A bound window, and messages on their way: what a device in use looks like.
    fn be_busy(&mut self) -> Outcome {
        let bind = WorkRequest::new(WorkId(1), self.bind(1, 64)?, SgeList::EMPTY);
        let taken = self.path.post_burst(self.qp, &[bind]);
        ensure(taken == 1 && self.next()?.is_success(), "not bound")?;
        let messages = [self.message(2), self.message(3)];
        let taken = self.path.post_burst(self.qp, &messages);
        ensure(taken == 2, "not posted")
    }
}

fn unknown_adapter(_setup: Setup<VerbsDevice>) -> Outcome {
    let config = VerbsConfig {
        device: Some("nowhere7".into()),
        ..VerbsConfig::default()
    };
    match VerbsDevice::open(config) {
        Err(VerbsError::NoSuchAdapter { name, present }) => {
            ensure(name == "nowhere7" && !present.is_empty(), "without names")
        }
        other => Err(format!("{other:?}")),
    }
}

/// The device's end flushes what is posted; the path can be polled until it goes, too.
fn device_first(setup: Setup<VerbsDevice>) -> Outcome {
    let (mut a, b) = pair(setup)?;
    a.be_busy()?;
    let Side {
        device,
        mut path,
        qp,
        ..
    } = a;
    drop(device);
    let mut done = [Completion::EMPTY; 4];
    let (mut flushed, mut polls) = (0, 0);
    while flushed < 2 {
        let count = path.poll_burst(&mut done);
        let all = done[..count].iter();
        flushed += all
            .filter(|done| done.status == WcStatus::Flushed && done.qp == qp)
            .count();
        polls += 1;
        ensure(polls < 1_000_000, format!("{flushed} of 2 were flushed"))?;
        std::thread::yield_now();
    }
    drop(path);
    drop(b);
    Ok(())
}

fn path_first(setup: Setup<VerbsDevice>) -> Outcome {
    let (mut a, mut b) = pair(setup)?;
    a.be_busy()?;
    b.be_busy()?;
    drop(a.path);
    let more = a
        .device
        .create_qp(&config(a.device.alloc_pd().map_err(text)?, 4));
    let gone = matches!(more, Err(ControlError::NoSuchLcore(LCORE)));
    ensure(gone, format!("on a lcore without a path: {more:?}"))?;
    a.device.destroy_qp(a.qp).map_err(text)?;
    drop(a.device);
    drop(b);
    Ok(())
}

fn unanswered(setup: Setup<VerbsDevice>) -> Outcome {
    setup.b.listen(&setup.address).map_err(text)?;
    let a = side(setup.a, setup.arena_a, BYTES)?;
    a.device
        .start_connect(a.qp, &setup.address, b"")
        .map_err(text)?;
    let mut b = Some(setup.b);
    for _ in 0..1_000_000 {
        if let Some(ControlEvent::ConnectRequest { .. }) = b.as_ref().and_then(Control::poll_event)
        {
            b = None;
        }
        match a.device.poll_event() {
            Some(ControlEvent::Rejected { qp, .. }) => return ensure(qp == a.qp, "another"),
            Some(event) => return Err(format!("{event:?}")),
            None => std::thread::yield_now(),
        }
    }
    Err("the asking side was never told".into())
}

/// The sum of the depths is bounded by the completion queue, and what is destroyed makes room once the lcore has polled.
fn reservation(setup: Setup<VerbsDevice>) -> Outcome {
    let mut a = side(setup.a, setup.arena_a, BYTES)?;
    let pd = a.device.alloc_pd().map_err(text)?;
    let depth = a.device.caps().max_send_depth;
    let mut made = Vec::new();
    let full = loop {
        match a.device.create_qp(&config(pd, depth.min(1024))) {
            Ok(qp) => made.push(qp),
            Err(error) => break error,
        }
        ensure(made.len() < 64, "no end of completions")?;
    };
    ensure(
        matches!(full, ControlError::Exhausted { .. }),
        full.to_string(),
    )?;
    let first = made[0];
    a.path.release_qp(first);
    a.device.destroy_qp(first).map_err(text)?;
    let early = a.device.create_qp(&config(pd, depth.min(1024)));
    ensure(early.is_err(), "room before the queue was seen empty")?;
    for _ in 0..2 {
        a.path.poll_burst(&mut [Completion::EMPTY]);
    }
    a.device
        .create_qp(&config(pd, depth.min(1024)))
        .map_err(text)?;
    Ok(())
}

/// A bind that the driver itself refuses fails behind what was posted before it, and what is behind it is flushed.
fn refused_in_turn(setup: Setup<VerbsDevice>) -> Outcome {
    let (mut a, _b) = pair(setup)?;
    let good = WorkRequest::new(WorkId(11), a.bind(1, 64)?, SgeList::EMPTY).signaled(false);
    let bad = WorkRequest::new(WorkId(12), a.bind(1, u64::MAX)?, SgeList::EMPTY).signaled(false);
    let work = [
        a.write(10, true),
        good,
        a.write(14, false),
        bad,
        a.write(13, false),
    ];
    let taken = a.path.post_burst(a.qp, &work);
    ensure(taken == work.len(), format!("took {taken}"))?;
    let wanted = [
        (10, WcStatus::Success),
        (12, WcStatus::MemoryWindowBind),
        (13, WcStatus::Flushed),
    ];
    for (id, status) in wanted {
        let done = a.next()?;
        let as_wanted = (done.id, done.status) == (WorkId(id), status);
        ensure(
            as_wanted,
            format!("{done:?} where {id} was to end as {status:?}"),
        )?;
    }
    // The good one is bound: its region is in use.
    let early = a.device.deregister(a.region.id);
    let in_use = matches!(early, Err(ControlError::InUse { .. }));
    ensure(in_use, format!("deregistered: {early:?}"))
}

/// A request with a wrong local key fails behind what was posted before it, also if that is under way.
fn local_fault_in_turn(setup: Setup<VerbsDevice>) -> Outcome {
    let (mut a, mut b) = pair(setup)?;
    for round in 0..8 {
        let sge = Sge::new(b.arena.address(), 64, b.region.lkey);
        let receive = keyfence_pmd::ReceiveRequest {
            id: WorkId(round),
            sge,
        };
        ensure(b.path.post_receives(b.qp, &[receive]) == 1, "no receive")?;
    }
    let mut work: Vec<_> = (0..8).map(|id| a.message(id)).collect();
    let mut bad = a.message(8);
    let mut sge = bad.sges.as_slice()[0];
    sge.lkey ^= 0xff00;
    bad.sges = SgeList::one(sge);
    work.push(bad);
    work.push(a.message(9));
    let taken = a.path.post_burst(a.qp, &work);
    ensure(taken == work.len(), format!("took {taken}"))?;
    for id in 0..10 {
        let status = match id {
            0..8 => WcStatus::Success,
            8 => WcStatus::LocalProtection,
            _ => WcStatus::Flushed,
        };
        let done = a.next()?;
        let as_wanted = (done.id, done.status) == (WorkId(id), status);
        ensure(
            as_wanted,
            format!("{done:?} where {id} was to end as {status:?}"),
        )?;
    }
    Ok(())
}

/// With little lockable memory a registration says the limit, the need and what to do. The caller has lowered the limit.
pub fn little_memory(device: &VerbsDevice, arena: &Arc<Arena>) -> Outcome {
    let pd = device.alloc_pd().map_err(text)?;
    let made = device.register(pd, arena, 0..arena.bytes(), Access::default());
    let error = made.err().ok_or("the limit did not hold")?;
    println!("{error}");
    match error {
        ControlError::LockedMemory {
            limit_bytes,
            needed_bytes,
        } => ensure(
            needed_bytes == arena.bytes() as u64 && limit_bytes < needed_bytes,
            "with other numbers",
        ),
        error => Err(error.to_string()),
    }
}
