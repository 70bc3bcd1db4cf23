//! Rule 8: a zero-length access names no memory.

use super::bench::{Bench, End, Link};
use super::grants::write_op;
use super::{Outcome, ensure, tests};
use crate::device::Device;
use crate::ids::Rkey;
use crate::work::{Remote, Rights, SgeList, WorkOp};

tests! {
    b27_zero_length_with_a_live_key,
    b27_zero_length_with_a_dead_key,
    b27_zero_length_with_a_garbage_key,
}

const TARGET: usize = 1 << 20;

/// Write, read and send of no bytes, without entries and with an empty one: one success each, and nothing else.
fn zero_lengths<D: Device>(bench: &mut Bench<D>, link: Link, remote: Remote) -> Outcome {
    let ops = [
        write_op(remote),
        WorkOp::Read { remote },
        WorkOp::Send { immediate: None },
        WorkOp::Write {
            remote,
            immediate: Some(3),
        },
    ];
    for sges in [SgeList::EMPTY, bench.one(End::A, 0, 0)] {
        for op in ops {
            let receive = bench.receive(End::B, link.b, TARGET, 64, 1)?[0];
            let work = bench.work(op, sges);
            let done = bench.succeed(End::A, link.a, work)?;
            let read = matches!(op, WorkOp::Read { .. });
            ensure!(!read || done.bytes == 0, "{done:?} of no bytes");
            // Those that take no receive leave it to this.
            let takes = matches!(op, WorkOp::Send { .. })
                || matches!(op, WorkOp::Write { immediate, .. } if immediate.is_some());
            if !takes {
                let send = bench.work(WorkOp::Send { immediate: None }, SgeList::EMPTY);
                bench.succeed(End::A, link.a, send)?;
            }
            let received = bench.wait(End::B, receive)?;
            ensure!(received.is_success() && received.bytes == 0, "{received:?}");
            bench.quiet()?;
        }
    }
    bench.works(End::A, link.a)?;
    bench.works(End::B, link.b)
}

fn b27_zero_length_with_a_live_key<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let link = bench.link()?;
    let grant = bench.open(End::B, link, TARGET, 64, Rights::READ_WRITE)?;
    zero_lengths(bench, link, grant.at(0))
}

fn b27_zero_length_with_a_dead_key<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let link = bench.link()?;
    let grant = bench.open(End::B, link, TARGET, 64, Rights::READ_WRITE)?;
    bench.close(End::B, link, &grant)?;
    zero_lengths(bench, link, grant.at(0))
}

fn b27_zero_length_with_a_garbage_key<D: Device>(bench: &mut Bench<D>) -> Outcome {
    let link = bench.link()?;
    let remote = Remote {
        address: u64::MAX,
        rkey: Rkey(u32::MAX),
    };
    zero_lengths(bench, link, remote)
}
