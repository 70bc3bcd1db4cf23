//! What a key opens: its rights, its queue pair, its protection domain. And the bench's ways to open and end keys.

use super::bench::{Bench, End, Grant, Link, Side};
use super::{Failure, Outcome, ensure, tests};
use crate::completion::WcStatus;
use crate::device::{Access, Device, Window};
use crate::ids::{QpId, RegionId, Rkey, WindowId};
use crate::work::{Remote, Rights, SgeList, WorkOp, WorkRequest};

tests! {
    rights_are_enforced needs [Windows],
    atomic_rights_are_enforced needs [WindowAtomics],
    window_works_through_its_queue_pair_alone needs [WindowScope],
    arena_key_opens_nothing,
    region_key_works_through_its_domain_until_deregistered,
    region_key_has_byte_exact_bounds,
    region_rights_are_enforced,
    message_behind_its_bind_carries_a_usable_key needs [Windows],
}

/// A zero-length write: names no memory, checks no key, and shows whether a queue pair works.
pub(super) const NOTHING: WorkOp = WorkOp::Write {
    remote: Remote {
        address: 0,
        rkey: Rkey(0),
    },
    immediate: None,
};

pub(super) fn write_op(remote: Remote) -> WorkOp {
    WorkOp::Write {
        remote,
        immediate: None,
    }
}

impl<D: Device> Bench<D> {
    /// Opens bytes of one side to the other, and waits until they are open.
    pub fn open(
        &mut self,
        end: End,
        link: Link,
        offset: usize,
        len: usize,
        rights: Rights,
    ) -> Result<Grant, Failure> {
        let caps = self.caps();
        if !caps.windows || (rights.atomic && !caps.window_atomics) {
            return self
                .open_region(end, offset, len, rights)
                .map(|(grant, _)| grant);
        }
        let window = self.side(end).device.alloc_window(link.qp(end))?;
        self.bind(
            end,
            link,
            &window,
            window.rkey.tag().wrapping_add(1),
            offset..offset + len,
            rights,
        )
    }

    /// Opens bytes through a region of its own.
    pub fn open_region(
        &mut self,
        end: End,
        offset: usize,
        len: usize,
        rights: Rights,
    ) -> Result<(Grant, RegionId), Failure> {
        let side: &mut Side<D> = self.side(end);
        let access = Access {
            remote: rights,
            bind: false,
        };
        let region = side
            .device
            .register(side.pd, &side.arena, offset..offset + len, access)?;
        let grant = Grant {
            window: None,
            region: Some(region.id),
            rkey: region.rkey,
            address: self.address_of(end, offset),
            len: len as u64,
        };
        Ok((grant, region.id))
    }

    /// Binds a window with this tag, and waits until it is bound.
    pub fn bind(
        &mut self,
        end: End,
        link: Link,
        window: &Window,
        tag: u8,
        range: core::ops::Range<usize>,
        rights: Rights,
    ) -> Result<Grant, Failure> {
        let (work, grant) = self.bind_work(end, window, tag, range, rights);
        self.succeed(end, link.qp(end), work)?;
        Ok(grant)
    }

    /// A bind, and the grant that it makes.
    pub fn bind_work(
        &mut self,
        end: End,
        window: &Window,
        tag: u8,
        range: core::ops::Range<usize>,
        rights: Rights,
    ) -> (WorkRequest, Grant) {
        let grant = Grant {
            window: Some(*window),
            region: None,
            rkey: window.rkey.with_tag(tag),
            address: self.address_of(end, range.start),
            len: range.len() as u64,
        };
        let op = WorkOp::Bind {
            window: window.id,
            region: self.side(end).region.id,
            address: grant.address,
            len: grant.len,
            rights,
            rkey: grant.rkey,
        };
        (self.work(op, SgeList::EMPTY), grant)
    }

    /// Invalidates a key, and waits for the proof.
    pub fn invalidate(&mut self, end: End, link: Link, grant: &Grant) -> Outcome {
        let work = self.work(WorkOp::Invalidate { rkey: grant.rkey }, SgeList::EMPTY);
        self.succeed(end, link.qp(end), work).map(|_| ())
    }

    /// Ends a grant's key by what it is: invalidates it, or deregisters its region. Waits for the proof.
    pub fn close(&mut self, end: End, link: Link, grant: &Grant) -> Outcome {
        match grant.region {
            Some(region) => Ok(self.side(end).device.deregister(region)?),
            None => self.invalidate(end, link, grant),
        }
    }

    /// The window behind a grant.
    pub fn window_of(&self, grant: &Grant) -> Result<WindowId, Failure> {
        let window = grant.window.map(|window| window.id);
        window.ok_or_else(|| Failure("this grant is not through a window".into()))
    }

    /// The access must be refused, and break both queue pairs.
    pub fn refused(&mut self, end: End, link: Link, work: WorkRequest) -> Outcome {
        self.fail(end, link.qp(end), work, WcStatus::RemoteAccess)?;
        for end in [end, end.other()] {
            let nothing = self.work(NOTHING, SgeList::EMPTY);
            self.fail(end, link.qp(end), nothing, WcStatus::Flushed)
                .map_err(|Failure(text)| {
                    Failure(format!("after a refusal, side {end:?}: {text}"))
                })?;
        }
        Ok(())
    }

    /// The queue pair must still work.
    pub fn works(&mut self, end: End, qp: QpId) -> Outcome {
        let nothing = self.work(NOTHING, SgeList::EMPTY);
        self.succeed(end, qp, nothing).map(|_| ())
    }
}

const TARGET: usize = 1 << 20;
const LOCAL: usize = 0;
const BYTES: usize = 256;

/// The access that needs each right, with 8 local bytes.
fn accesses(remote: Remote, atomics: bool) -> Vec<(Rights, WorkOp)> {
    let only_atomic = Rights {
        atomic: true,
        ..Rights::NONE
    };
    let mut all = vec![
        (Rights::WRITE, write_op(remote)),
        (
            Rights::WRITE,
            WorkOp::Write {
                remote,
                immediate: Some(1),
            },
        ),
        (Rights::READ, WorkOp::Read { remote }),
    ];
    if atomics {
        all.push((only_atomic, WorkOp::FetchAdd { remote, add: 1 }));
        all.push((
            only_atomic,
            WorkOp::CompareSwap {
                remote,
                expected: 0,
                desired: 1,
            },
        ));
    }
    all
}

/// Opens side B's target with some rights.
type Open<D> = fn(&mut Bench<D>, Link, Rights) -> Result<Grant, Failure>;

fn through_window<D: Device>(
    bench: &mut Bench<D>,
    link: Link,
    rights: Rights,
) -> Result<Grant, Failure> {
    bench.open(End::B, link, TARGET, BYTES, rights)
}

fn through_region<D: Device>(
    bench: &mut Bench<D>,
    _link: Link,
    rights: Rights,
) -> Result<Grant, Failure> {
    let (grant, _) = bench.open_region(End::B, TARGET, BYTES, rights)?;
    Ok(grant)
}

/// Every access against a grant with these rights: allowed or refused, and no byte moved by a refused one.
fn rights_of<D: Device>(
    bench: &mut Bench<D>,
    rights: Rights,
    atomics: bool,
    open: Open<D>,
) -> Outcome {
    let count = accesses(
        Remote {
            address: 0,
            rkey: Rkey(0),
        },
        atomics,
    )
    .len();
    for at in 0..count {
        let link = bench.link()?;
        bench.fill(End::B, TARGET, BYTES, 0)?;
        bench.fill(End::A, LOCAL, 8, 0x55)?;
        bench.receive(End::B, link.b, TARGET + BYTES, 64, 1)?;
        let grant = open(bench, link, rights)?;
        let (needed, op) = accesses(grant.at(64), atomics)[at];
        let local = bench.one(End::A, LOCAL, 8);
        let work = bench.work(op, local);
        if rights.allow(needed) {
            bench.succeed(End::A, link.a, work)?;
            continue;
        }
        bench
            .refused(End::A, link, work)
            .map_err(|Failure(text)| Failure(format!("through a key with {rights:?}: {text}")))?;
        bench.all_are(End::B, TARGET, BYTES, 0, "a refused access")?;
        bench.all_are(End::A, LOCAL, 8, 0x55, "a refused access's local bytes")?;
    }
    Ok(())
}

fn rights_are_enforced<D: Device>(bench: &mut Bench<D>) -> Outcome {
    for rights in [Rights::READ, Rights::WRITE, Rights::READ_WRITE] {
        rights_of(bench, rights, bench.caps().window_atomics, through_window)?;
    }
    Ok(())
}

fn atomic_rights_are_enforced<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let only_atomic = Rights {
        atomic: true,
        ..Rights::NONE
    };
    rights_of(bench, only_atomic, true, through_window)?;
    rights_of(bench, Rights::ALL, true, through_window)
}

fn region_rights_are_enforced<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let atomics = bench.caps().atomics;
    for rights in [Rights::READ, Rights::WRITE, Rights::READ_WRITE] {
        rights_of(bench, rights, atomics, through_region)?;
    }
    Ok(())
}

fn window_works_through_its_queue_pair_alone<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let owner = bench.link()?;
    let other = bench.link()?;
    let grant = bench.open(End::B, owner, TARGET, BYTES, Rights::READ_WRITE)?;
    bench.fill(End::B, TARGET, BYTES, 0)?;
    let local = bench.one(End::A, LOCAL, 8);
    let work = bench.work(write_op(grant.at(0)), local);
    bench.refused(End::A, other, work)?;
    bench.all_are(End::B, TARGET, BYTES, 0, "a key on a foreign queue pair")?;
    // The rightful holder does not notice.
    let work = bench.work(write_op(grant.at(0)), local);
    bench.succeed(End::A, owner.a, work).map(|_| ())
}

fn arena_key_opens_nothing<D: Device>(bench: &mut Bench<D>) -> Outcome {
    bench.fill(End::B, TARGET, 8, 0)?;
    let remote = Remote {
        address: bench.address_of(End::B, TARGET),
        rkey: bench.b.region.rkey,
    };
    let ops = [write_op(remote), WorkOp::Read { remote }];
    for op in ops {
        let link = bench.link()?;
        let local = bench.one(End::A, LOCAL, 8);
        let work = bench.work(op, local);
        bench.refused(End::A, link, work)?;
    }
    bench.all_are(End::B, TARGET, 8, 0, "the arena's own key")
}

fn region_key_works_through_its_domain_until_deregistered<D: Device>(
    bench: &mut Bench<D>,
) -> Outcome {
    let links = [bench.link()?, bench.link()?];
    let (grant, region) = bench.open_region(End::B, TARGET, BYTES, Rights::READ_WRITE)?;
    let bytes = bench.pattern(End::A, LOCAL, BYTES, 1)?;
    for link in links {
        bench.fill(End::B, TARGET, BYTES, 0)?;
        let local = bench.one(End::A, LOCAL, BYTES);
        let work = bench.work(write_op(grant.at(0)), local);
        bench.succeed(End::A, link.a, work)?;
        bench.holds(End::B, TARGET, &bytes, "a write through a region's key")?;
    }
    bench.b.device.deregister(region)?;
    bench.fill(End::B, TARGET, BYTES, 0)?;
    let local = bench.one(End::A, LOCAL, BYTES);
    let work = bench.work(write_op(grant.at(0)), local);
    bench.refused(End::A, links[0], work)?;
    bench.all_are(End::B, TARGET, BYTES, 0, "a deregistered region's key")
}

fn region_key_has_byte_exact_bounds<D: Device>(bench: &mut Bench<D>) -> Outcome {
    // Neither end on a page or a word.
    let (grant, _) = bench.open_region(End::B, TARGET + 3, 101, Rights::READ_WRITE)?;
    for (offset, len, inside) in [
        (0, 101, true),
        (100, 1, true),
        (100, 2, false),
        (u64::MAX, 1, false),
    ] {
        let link = bench.link()?;
        let local = bench.one(End::A, LOCAL, len);
        let work = bench.work(write_op(grant.at(offset)), local);
        match inside {
            true => _ = bench.succeed(End::A, link.a, work)?,
            false => bench.refused(End::A, link, work)?,
        }
    }
    Ok(())
}

fn message_behind_its_bind_carries_a_usable_key<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let link = bench.link()?;
    let receive = bench.receive(End::A, link.a, LOCAL, 64, 1)?[0];
    let window = bench.b.device.alloc_window(link.b)?;
    let range = TARGET..TARGET + BYTES;
    let (bind, grant) = bench.bind_work(End::B, &window, 7, range, Rights::WRITE);
    let source = bench.one(End::B, 0, 8);
    let message = bench.work(WorkOp::Send { immediate: None }, source);
    bench.post(End::B, link.b, &[bind.signaled(false), message])?;
    let received = bench.wait(End::A, receive)?;
    ensure!(received.is_success(), "the message ended as {received:?}");
    // Used at once, without a look at the other side's completions.
    let local = bench.one(End::A, LOCAL, 8);
    let work = bench.work(write_op(grant.at(0)), local);
    bench.succeed(End::A, link.a, work).map(|_| ())
}
