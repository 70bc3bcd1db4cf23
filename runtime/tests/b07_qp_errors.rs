//! B07: a queue pair is moved to error under load, on the side that submits and on the other one. `verbs_field.rs` has the same on an RDMA adapter.

#[path = "field/b07.rs"]
mod b07;
mod pair;

use b07::b07_all_that_was_submitted_completes;
use keyfence::pmd::soft::{Fabric, SoftConfig};
use pair::switched::Switched;
use pair::{Pair, builder};

fn breaks(side: usize) {
    let fabric = Fabric::new();
    let device = || Switched::new(fabric.device(SoftConfig::default()).unwrap());
    let (left, left_switches) = device();
    let (right, right_switches) = device();
    let engine = |name, peer| builder(name, peer, 1);
    let mut pair = Pair::on(
        engine("left", "right"),
        left,
        engine("right", "left"),
        right,
    );
    let switches = [left_switches, right_switches];
    b07_all_that_was_submitted_completes(&mut pair, &switches[side], Pair::step);
}

#[test]
fn b07_an_error_of_our_queue_pair_completes_all_that_was_submitted() {
    breaks(0);
}

#[test]
fn b07_an_error_of_the_peers_queue_pair_completes_all_that_was_submitted() {
    breaks(1);
}
