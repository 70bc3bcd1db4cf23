//! Rules 3 and 6: a key opens exactly its value, its bytes and its life; anything else is refused, and breaks both queue pairs.

use super::bench::{Bench, End, Grant, Link};
use super::grants::write_op;
use super::{Failure, Outcome, ensure, tests};
use crate::device::Device;
use crate::ids::Rkey;
use crate::work::{Rights, WorkOp};

tests! {
    r4_dead_key_is_refused,
    r4_dead_key_reads_nothing,
    wrong_tag_is_refused needs [Windows],
    unknown_index_is_refused,
    r12_bounds_are_byte_exact needs [WindowBounds],
    r12_ranges_that_wrap_around_are_refused,
    b02_first_value_is_dead_for_255_binds_and_valid_again_after_256 needs [Tags],
    rebinding_ends_the_old_value needs [Windows],
    deallocated_windows_key_is_refused needs [Windows],
    other_windows_of_the_queue_pair_stay_live needs [Windows],
    refusal_spares_other_queue_pairs,
}

const TARGET: usize = 1 << 20;
const LOCAL: usize = 0;
const BYTES: usize = 256;

fn linked<D: Device>(bench: &mut Bench<D>) -> Result<(Link, Grant), Failure> {
    let link = bench.link()?;
    bench.fill(End::B, TARGET - 64, BYTES + 128, 0)?;
    bench.fill(End::A, LOCAL, BYTES, 0x55)?;
    let grant = bench.open(End::B, link, TARGET, BYTES, Rights::READ_WRITE)?;
    Ok((link, grant))
}

fn untouched<D: Device>(bench: &Bench<D>, what: &str) -> Outcome {
    bench.all_are(End::B, TARGET - 64, BYTES + 128, 0, what)?;
    bench.all_are(End::A, LOCAL, BYTES, 0x55, what)
}

/// A write of `len` bytes `offset` bytes into the grant must be refused and must change nothing.
fn refuse_write<D: Device>(
    bench: &mut Bench<D>,
    link: Link,
    grant: &Grant,
    offset: u64,
    len: usize,
) -> Outcome {
    let local = bench.one(End::A, LOCAL, len);
    let work = bench.work(write_op(grant.at(offset)), local);
    bench.refused(End::A, link, work).map_err(|Failure(text)| {
        Failure(format!("{len} bytes at offset {}: {text}", offset as i64))
    })?;
    untouched(bench, "a refused write")
}

fn r4_dead_key_is_refused<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let (link, grant) = linked(bench)?;
    bench.close(End::B, link, &grant)?;
    refuse_write(bench, link, &grant, 0, 8)
}

fn r4_dead_key_reads_nothing<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let (link, grant) = linked(bench)?;
    bench.close(End::B, link, &grant)?;
    let local = bench.one(End::A, LOCAL, 8);
    let read = bench.work(
        WorkOp::Read {
            remote: grant.at(0),
        },
        local,
    );
    bench.refused(End::A, link, read)?;
    untouched(bench, "a refused read")
}

fn wrong_tag_is_refused<D: Device>(bench: &mut Bench<D>) -> Outcome {
    for wrong in [1, 0x80, 0xff] {
        let (link, grant) = linked(bench)?;
        let tag = grant.rkey.tag() ^ wrong;
        let other = Grant {
            rkey: grant.rkey.with_tag(tag),
            ..grant
        };
        refuse_write(bench, link, &other, 0, 8)?;
    }
    Ok(())
}

fn unknown_index_is_refused<D: Device>(bench: &mut Bench<D>) -> Outcome {
    for index in [0xff_ffff, 0x7a_bcde] {
        let link = bench.link()?;
        bench.fill(End::B, TARGET - 64, BYTES + 128, 0)?;
        bench.fill(End::A, LOCAL, BYTES, 0x55)?;
        let grant = Grant {
            window: None,
            region: None,
            rkey: Rkey::new(index, 1),
            address: bench.address_of(End::B, TARGET),
            len: BYTES as u64,
        };
        refuse_write(bench, link, &grant, 0, 8)?;
    }
    Ok(())
}

fn r12_bounds_are_byte_exact<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let (link, grant) = linked(bench)?;
    // Each byte at the edges, and all of it.
    for (offset, len) in [(0, 1), (BYTES - 1, 1), (0, BYTES)] {
        let local = bench.one(End::A, LOCAL, len);
        let work = bench.work(write_op(grant.at(offset as u64)), local);
        bench.succeed(End::A, link.a, work)?;
    }
    bench.all_are(
        End::B,
        TARGET,
        BYTES,
        0x55,
        "a write of the whole range is short",
    )?;
    bench.all_are(End::B, TARGET - 64, 64, 0, "before the range")?;
    bench.all_are(End::B, TARGET + BYTES, 64, 0, "behind the range")?;
    let end = BYTES as u64;
    let outside = [
        (u64::MAX, 1),
        (u64::MAX, 2),
        (end, 1),
        (end - 1, 2),
        (0, BYTES + 1),
        (end + 63, 1),
    ];
    for (offset, len) in outside {
        let (link, grant) = linked(bench)?;
        bench.fill(End::A, LOCAL, BYTES + 1, 0x55)?;
        refuse_write(bench, link, &grant, offset, len)?;
    }
    // Neither end of this one on a word.
    let link = bench.link()?;
    bench.fill(End::B, TARGET - 64, BYTES + 128, 0)?;
    let odd = bench.open(End::B, link, TARGET + 3, 5, Rights::READ_WRITE)?;
    let local = bench.one(End::A, LOCAL, 5);
    let work = bench.work(write_op(odd.at(0)), local);
    bench.succeed(End::A, link.a, work)?;
    bench.fill(End::B, TARGET, 16, 0)?;
    refuse_write(bench, link, &odd, 1, 5)
}

fn r12_ranges_that_wrap_around_are_refused<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let wraps = [
        // The last bytes of the address space, and on to 0.
        |grant: &Grant| u64::MAX - 3 - grant.address + 1,
        |grant: &Grant| 0u64.wrapping_sub(grant.address),
        |grant: &Grant| (1 << 63) - (grant.address & !(1 << 63)),
    ];
    for wrap in wraps {
        let (link, grant) = linked(bench)?;
        refuse_write(bench, link, &grant, wrap(&grant), 8)?;
    }
    Ok(())
}

fn b02_first_value_is_dead_for_255_binds_and_valid_again_after_256<D: Device>(
    bench: &mut Bench<D>,
) -> Outcome {
    let link = bench.link()?;
    let window = bench.b.device.alloc_window(link.b)?;
    let range = TARGET..TARGET + BYTES;
    let mut last = None;
    for round in 0..=256u32 {
        let grant = bench.bind(
            End::B,
            link,
            &window,
            round as u8,
            range.clone(),
            Rights::READ_WRITE,
        )?;
        if round < 256 {
            bench.invalidate(End::B, link, &grant)?;
        }
        last = Some(grant);
    }
    // The 257th bind has the first value, and whoever kept the first key holds a valid one.
    let local = bench.one(End::A, LOCAL, 8);
    let Some(grant) = last else {
        return Err(Failure("never bound".into()));
    };
    let work = bench.work(write_op(grant.at(0)), local);
    bench.succeed(End::A, link.a, work)?;
    // Any other of the 256 is dead.
    bench.fill(End::B, TARGET, BYTES, 0)?;
    let other = Grant {
        rkey: grant.rkey.with_tag(255),
        ..grant
    };
    let work = bench.work(write_op(other.at(0)), local);
    bench.refused(End::A, link, work)?;
    bench.all_are(End::B, TARGET, BYTES, 0, "a write by a dead value")
}

fn rebinding_ends_the_old_value<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let (link, first) = linked(bench)?;
    bench.invalidate(End::B, link, &first)?;
    let window = first.window.ok_or_else(|| Failure("no window".into()))?;
    let tag = first.rkey.tag().wrapping_add(1);
    let range = TARGET..TARGET + BYTES;
    let second = bench.bind(End::B, link, &window, tag, range, Rights::READ_WRITE)?;
    let local = bench.one(End::A, LOCAL, 8);
    let work = bench.work(write_op(second.at(0)), local);
    bench.succeed(End::A, link.a, work)?;
    bench.fill(End::B, TARGET, BYTES, 0)?;
    refuse_write(bench, link, &first, 0, 8)
}

fn deallocated_windows_key_is_refused<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let (link, grant) = linked(bench)?;
    let window = bench.window_of(&grant)?;
    bench.b.device.dealloc_window(window)?;
    refuse_write(bench, link, &grant, 0, 8)
}

fn other_windows_of_the_queue_pair_stay_live<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let (link, first) = linked(bench)?;
    let others = [
        bench.open(End::B, link, TARGET, 64, Rights::WRITE)?,
        bench.open(End::B, link, TARGET + 64, 64, Rights::WRITE)?,
    ];
    bench.invalidate(End::B, link, &first)?;
    let window = bench.window_of(&others[0])?;
    bench.b.device.dealloc_window(window)?;
    let local = bench.one(End::A, LOCAL, 8);
    let work = bench.work(write_op(others[1].at(0)), local);
    bench.succeed(End::A, link.a, work)?;
    bench.all_are(End::B, TARGET + 64, 8, 0x55, "a write by a live key")
}

fn refusal_spares_other_queue_pairs<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let (bad, dead) = linked(bench)?;
    let (good, live) = linked(bench)?;
    bench.close(End::B, bad, &dead)?;
    let receive = bench.receive(End::B, good.b, TARGET, 64, 1)?[0];
    refuse_write(bench, bad, &dead, 0, 8)?;
    bench.settle();
    let local = bench.one(End::A, LOCAL, 8);
    let work = bench.work(write_op(live.at(64)), local);
    bench.succeed(End::A, good.a, work)?;
    let send = bench.work(WorkOp::Send { immediate: None }, local);
    bench.succeed(End::A, good.a, send)?;
    let received = bench.wait(End::B, receive)?;
    ensure!(received.is_success(), "a bystander's receive: {received:?}");
    Ok(())
}
