//! Field cases of two engines over an RDMA adapter. It has a `main` of its own: what it could not run must not look like a pass.
//!
//! Arguments: `DEVICE HOST`, an adapter and an address of it. Exit code: 0 if all is well, 77 without arguments, 101 if a case fails.

#[path = "field/b07.rs"]
mod b07;
#[path = "field/b08.rs"]
mod b08;
mod pair;

use std::cell::OnceCell;
use std::process::ExitCode;
use std::time::Instant;

use b07::b07_all_that_was_submitted_completes;
use b08::b08_a_bystander_loses_and_doubles_nothing;
use keyfence::config::KeyMode;
use keyfence::limits::Limits;
use keyfence::pmd::Device;
use keyfence::pmd::verbs::{VerbsConfig, VerbsDevice};
use keyfence::pmd::wrap::check::Check;
use keyfence::pmd::wrap::fault::{Fault, Injection, Plan};
use keyfence::{EngineBuilder, Secret};
use pair::offender::Books;
use pair::switched::Switched;
use pair::{Pair, small_limits, small_memory};

const NOT_RUN: u8 = 77;

/// Lanes broken by dead keys, one after the other.
const BREAKS: usize = 12;

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
    for (number, mode) in (0..).zip([KeyMode::Window, KeyMode::Region]) {
        let longest_ns = b08(device, host, 7491 + 2 * number, mode);
        println!(
            "b08, keys by {mode:?}: {BREAKS} dead keys, and a bystander lost and doubled nothing; the longest repair took {} us",
            longest_ns / 1000
        );
    }
    ExitCode::SUCCESS
}

/// With `garbage`, what a failed completion leaves undefined is filled with noise (B04).
fn b07(device: &str, host: &str, port: u16, case: (KeyMode, usize, bool)) -> u64 {
    let (mode, side, garbage) = case;
    let open = || {
        let injections = garbage.then_some(Injection::Garbage { seed: 4 });
        let plan = Plan::new(Vec::from_iter(injections));
        Switched::new(Fault::new(adapter(device), plan))
    };
    let (left, left_switches) = open();
    let (right, right_switches) = open();
    let [left_engine, right_engine] = engines(host, port, mode, &small_limits());
    let mut pair = Pair::on(left_engine, left, right_engine, right);
    let switches = [left_switches, right_switches];
    b07_all_that_was_submitted_completes(&mut pair, &switches[side], clock())
}

/// Repairs of a lane that dead keys break; the longest, in ns.
fn b08(device: &str, host: &str, port: u16, mode: KeyMode) -> u64 {
    let open = || {
        let (device, switches) = Switched::new(adapter(device));
        let device = Check::new(device);
        let ledger = device.ledger();
        (device, ledger, switches)
    };
    let (left, _, left_switches) = open();
    let (right, right_ledger, _) = open();
    let mut limits = small_limits();
    limits.lanes = 1;
    limits.rebuilds = 1024;
    let [left_engine, right_engine] = engines(host, port, mode, &limits);
    let mut pair = Pair::on(left_engine, left, right_engine, right);
    let books = Books {
        right: &right_ledger,
        left: &left_switches,
    };
    b08_a_bystander_loses_and_doubles_nothing(&mut pair, &books, (false, BREAKS), clock())
}

fn adapter(device: &str) -> VerbsDevice {
    let config = VerbsConfig {
        device: Some(device.to_owned()),
        ..VerbsConfig::default()
    };
    VerbsDevice::open(config).expect("the adapter is there")
}

/// Two engines that are each other's peers, on two ports of an address.
fn engines(host: &str, port: u16, mode: KeyMode, limits: &Limits) -> [EngineBuilder; 2] {
    let builders = [
        ("left", "right", port, port + 1),
        ("right", "left", port + 1, port),
    ];
    builders.map(|(name, peer, ours, theirs)| {
        let secret = Secret::new(&[7; Secret::LEAST_BYTES]).expect("long enough");
        EngineBuilder::new(name, 1)
            .key_mode(mode)
            .memory(small_memory())
            .limits(limits.clone())
            .listen(&format!("rdma:{host}:{ours}"))
            .peer_with_secret(peer, &format!("rdma:{host}:{theirs}"), 1, secret)
    })
}

/// Steps at the time that it is.
fn clock<D: Device>() -> impl Fn(&mut Pair<D>) {
    let began = OnceCell::new();
    move |pair| {
        let (start, start_ns) = began.get_or_init(|| (Instant::now(), pair.now_ns));
        let now_ns = start_ns + start.elapsed().as_nanos() as u64;
        pair.step_for(now_ns.saturating_sub(pair.now_ns));
    }
}
