//! What it costs to open memory and to take it back: 1,000 grants of one context by an engine's windows, beside 1,000 registrations and deregistrations, and
//! the revokes beside a bare chain of invalidations. In turn, on one thread, so that all meet the same machine.
//!
//! `keys soft`, or with `--features verbs` `keys ADAPTER HOST [software]`. A line a round; then the medians of the ratios with their quartiles, as JSON. An adapter is taken to be
//! hardware, so that keys cost what they cost there; with `software` the driver holds the ends of keys back until they are true of Soft-RoCE, too, which costs a grace period of
//! the kernel each time, in all three.

mod bare;
mod engines;

use std::time::Instant;

use self::bare::Pages;

use keyfence::Secret;
use keyfence::pmd::Device;
use keyfence::pmd::soft::{Fabric, SoftConfig};
use keyfence_benches::Quartiles;

/// Grants, registrations and bare keys of a round.
pub const KEYS: usize = 1000;

/// Bytes of each key, all over the same memory: what a registration costs grows with its pages, and what a window costs does not.
const SIZES: [usize; 3] = [4 << 10, 64 << 10, 1 << 20];

/// The largest of them.
pub const MOST_BYTES: usize = 1 << 20;

const ROUNDS: usize = 9;

/// Where two engines and two bare queue pairs meet.
pub struct Places {
    /// Of the two engines.
    pub engines: [String; 2],
    /// What they share, over a fabric.
    pub secret: Option<Secret>,
    /// Of the bare queue pair that is connected to.
    pub bare: String,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["soft"] => {
            let fabric = Fabric::new();
            let places = Places {
                engines: ["local:a".into(), "local:b".into()],
                secret: None,
                bare: "local:bare".into(),
            };
            let config = SoftConfig::default();
            measure("soft", &places, || {
                fabric.device(config.clone()).expect("a fresh fabric")
            });
        }
        #[cfg(feature = "verbs")]
        [adapter, host] => measure_verbs(adapter, host, false),
        #[cfg(feature = "verbs")]
        [adapter, host, "software"] => measure_verbs(adapter, host, true),
        _ => {
            panic!("usage: keys soft | ADAPTER HOST [software] (the latter with --features verbs)")
        }
    }
}

#[cfg(feature = "verbs")]
fn measure_verbs(adapter: &str, host: &str, software: bool) {
    use keyfence::pmd::verbs::{KnownCaps, VerbsConfig, VerbsDevice};

    let place = |port| format!("rdma:{host}:{port}");
    let places = Places {
        engines: [place(7471), place(7472)],
        secret: Some(Secret::new(&[7; Secret::LEAST_BYTES]).expect("long enough")),
        bare: place(7473),
    };
    measure(adapter, &places, || {
        let config = VerbsConfig {
            device: Some(adapter.to_owned()),
            known: KnownCaps {
                // Both ways signal a chain's last alone.
                chain_stops: Some(true),
                dealloc_fences: Some(true),
                software: Some(software),
                ..KnownCaps::default()
            },
            ..VerbsConfig::default()
        };
        VerbsDevice::open(config).expect("the adapter is there")
    });
}

/// Nanoseconds.
fn timed(work: impl FnOnce()) -> f64 {
    let began = Instant::now();
    work();
    began.elapsed().as_nanos() as f64
}

fn measure<D: Device>(name: &str, places: &Places, open: impl Fn() -> D) {
    let mut engines = engines::Engines::new(places, &open);
    let mut bare = bare::Bare::new(places, &open);
    // The first of all is a warm-up.
    rounds(&mut engines, &mut bare, SIZES[0], 1);
    for bytes in SIZES {
        let [both, plain, alone] = rounds(&mut engines, &mut bare, bytes, ROUNDS);
        println!(
            "{{\"device\":\"{name}\",\"keys\":{KEYS},\"bytes\":{bytes},\"rounds\":{ROUNDS},\"times_as_fast_as_registration\":{both},\"times_as_fast_as_registration_of_plain_pages\":{plain},\"revoke_to_bare_chain\":{alone}}}"
        );
    }
}

/// The quartiles of how many times as fast grants are as registrations, of an arena's pages and of plain ones, and of what the revokes reach of a bare
/// chain, as JSON.
fn rounds<D: Device>(
    engines: &mut engines::Engines<D>,
    bare: &mut bare::Bare<D>,
    bytes: usize,
    rounds: usize,
) -> [String; 3] {
    let mut both = Vec::new();
    let mut plain = Vec::new();
    let mut alone = Vec::new();
    for round in 0..rounds {
        let grant_ns = timed(|| engines.grant_all(bytes));
        let revoke_ns = timed(|| engines.revoke_all());
        let registered = |pages| {
            let mut regions = Vec::new();
            let register_ns = timed(|| regions = bare.register_all(pages, bytes));
            (register_ns, timed(|| bare.deregister_all(&regions)))
        };
        let (register_ns, deregister_ns) = registered(Pages::Engines);
        let (register_plain_ns, deregister_plain_ns) = registered(Pages::Plain);
        let bind_ns = timed(|| bare.bind_all(bytes));
        let chain_ns = timed(|| bare.invalidate_all());
        both.push((register_ns + deregister_ns) / (grant_ns + revoke_ns));
        plain.push((register_plain_ns + deregister_plain_ns) / (grant_ns + revoke_ns));
        alone.push(chain_ns / revoke_ns);
        println!(
            "{bytes} bytes, round {round}, ns a key: grant {:.0} revoke {:.0}; register {:.0} deregister {:.0}; of plain pages {:.0} and {:.0}; bare bind {:.0} invalidation {:.0}",
            grant_ns / KEYS as f64,
            revoke_ns / KEYS as f64,
            register_ns / KEYS as f64,
            deregister_ns / KEYS as f64,
            register_plain_ns / KEYS as f64,
            deregister_plain_ns / KEYS as f64,
            bind_ns / KEYS as f64,
            chain_ns / KEYS as f64,
        );
    }
    [both, plain, alone].map(|values| {
        let of = Quartiles::of(&values).expect("there are rounds");
        format!(
            "{{\"p25\":{:.3},\"p50\":{:.3},\"p75\":{:.3}}}",
            of.q1, of.median, of.q3
        )
    })
}
