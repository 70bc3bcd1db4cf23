//! Field cases of two engines over an RDMA adapter. It has a `main` of its own: what it could not run must not look like a pass.
//!
//! Arguments: `DEVICE HOST`, an adapter and an address of it. Exit code: 0 if all is well, 77 without arguments, 101 if a case fails.

mod field;
mod pair;

use std::process::ExitCode;
use std::time::Instant;

use field::b07_all_that_was_submitted_completes;
use keyfence::config::KeyMode;
use keyfence::pmd::Device;
use keyfence::pmd::verbs::{VerbsConfig, VerbsDevice};
use keyfence::pmd::wrap::fault::{Fault, Injection, Plan};
use keyfence::{EngineBuilder, Secret};
use pair::switched::Switched;
use pair::{Pair, small_limits, small_memory};

const NOT_RUN: u8 = 77;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [device, host] = &arguments[..] else {
        eprintln!("NOT RUN: name an adapter and an address of it (.ci/verbs does)");
        return NOT_RUN.into();
    };
    let cases = [(0, false), (1, false), (0, true), (1, true)];
    let cases = [KeyMode::Window, KeyMode::Region]
        .into_iter()
        .flat_map(|mode| cases.map(|(side, garbage)| (mode, side, garbage)));
    for (number, (mode, side, garbage)) in (0..).zip(cases) {
        let took_ns = b07(device, host, 7471 + 2 * number, (mode, side, garbage));
        let whose = ["the submitting side's", "the other side's"][side];
        let fields = ["as they are", "full of garbage"][usize::from(garbage)];
        println!(
            "b07 b04, keys by {mode:?}: an error of {whose} queue pair, failed completions {fields}: all completed after {} us",
            took_ns / 1000
        );
    }
    ExitCode::SUCCESS
}

/// With `garbage`, what a failed completion leaves undefined is filled with noise (B04).
fn b07(device: &str, host: &str, port: u16, case: (KeyMode, usize, bool)) -> u64 {
    let (mode, side, garbage) = case;
    let open = || {
        let config = VerbsConfig {
            device: Some(device.to_owned()),
            ..VerbsConfig::default()
        };
        let injections = garbage.then_some(Injection::Garbage { seed: 4 });
        let device = VerbsDevice::open(config).expect("the adapter is there");
        Switched::new(Fault::new(device, Plan::new(Vec::from_iter(injections))))
    };
    let (left, left_switches) = open();
    let (right, right_switches) = open();
    let builders = [
        ("left", "right", port, port + 1),
        ("right", "left", port + 1, port),
    ];
    let [left_engine, right_engine] = builders.map(|(name, peer, ours, theirs)| {
        let secret = Secret::new(&[7; Secret::LEAST_BYTES]).expect("long enough");
        EngineBuilder::new(name, 1)
            .key_mode(mode)
            .memory(small_memory())
            .limits(small_limits())
            .listen(&format!("rdma:{host}:{ours}"))
            .peer_with_secret(peer, &format!("rdma:{host}:{theirs}"), 1, secret)
    });
    let mut pair = Pair::on(left_engine, left, right_engine, right);
    let switches = [left_switches, right_switches];
    let began = Instant::now();
    let start_ns = pair.now_ns;
    b07_all_that_was_submitted_completes(&mut pair, &switches[side], |pair| {
        on_time(pair, start_ns + began.elapsed().as_nanos() as u64);
    })
}

/// A step at the time that it is.
fn on_time<D: Device>(pair: &mut Pair<D>, now_ns: u64) {
    let passed_ns = now_ns.saturating_sub(pair.now_ns);
    pair.step_for(passed_ns);
}
