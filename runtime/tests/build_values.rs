//! Section 8: an engine built in code is refused for what a file would be refused for, by the same ranges and checks.

use keyfence::config::{IdlePolicy, MemoryConfig, PoolConfig, Timeouts};
use keyfence::ids::LcoreId;
use keyfence::limits::Limits;
use keyfence::pmd::soft::{Fabric, SoftConfig};
use keyfence::{BuildError, Context, EngineBuilder, Event, OpenError, Service, Work};

const MIB: u64 = 1 << 20;

fn memory() -> MemoryConfig {
    MemoryConfig {
        arena_bytes: 16 * MIB,
        hugepages: keyfence_mempool::Policy::Off,
        lock: keyfence_mempool::Policy::Off,
        pools: vec![PoolConfig {
            buffer_bytes: 4096,
            count: 64,
        }],
        ..MemoryConfig::default()
    }
}

fn limits() -> Limits {
    let mut limits = Limits {
        contexts: 16,
        ..Limits::default()
    };
    limits.context.messages = 4;
    limits
}

fn legal() -> EngineBuilder {
    EngineBuilder::new("left", 1)
        .memory(memory())
        .limits(limits())
        .peer("right", "local:right", 1)
}

fn build(builder: EngineBuilder) -> Result<(), BuildError> {
    let device = Fabric::new().device(SoftConfig::default()).unwrap();
    builder.build(device, 1).map(drop)
}

/// The builder is refused for the value of `key`, with these words in what is wrong and in what is allowed.
#[track_caller]
fn refused(builder: EngineBuilder, wanted_key: &str, is: &str, rule: &str) {
    let error = build(builder).unwrap_err();
    let BuildError::BadValue { key, what, allowed } = &error else {
        panic!("{error}");
    };
    assert_eq!(key, wanted_key, "{error}");
    assert!(what.contains(is), "{is}: {error}");
    assert!(allowed.contains(rule), "{rule}: {error}");
}

#[track_caller]
fn refused_limit(change: impl FnOnce(&mut Limits), key: &str, is: &str, rule: &str) {
    let mut limits = limits();
    change(&mut limits);
    refused(legal().limits(limits), key, is, rule);
}

#[track_caller]
fn refused_time(change: impl FnOnce(&mut Timeouts), key: &str, is: &str, rule: &str) {
    let mut timeouts = Timeouts::default();
    change(&mut timeouts);
    refused(legal().timeouts(timeouts), key, is, rule);
}

#[track_caller]
fn refused_memory(change: impl FnOnce(&mut MemoryConfig), key: &str, is: &str, rule: &str) {
    let mut memory = memory();
    change(&mut memory);
    refused(legal().memory(memory), key, is, rule);
}

#[test]
fn the_legal_one_is_built() {
    build(legal()).unwrap();
}

#[test]
fn names_that_no_peer_could_be_told_are_refused() {
    let long = "n".repeat(64);
    let rule = "1 to 63 letters";
    let named = |name: &str| EngineBuilder::new(name, 1).peer("right", "local:right", 1);
    refused(named(&long), "engine.name", "nnnn", rule);
    refused(named(""), "engine.name", "\"\"", rule);
    refused(named("a b"), "engine.name", "a b", rule);
    refused(
        legal().peer(&long, "local:far", 1),
        "peer.name",
        "nnnn",
        rule,
    );
    let twice = legal().peer("right", "local:right", 1);
    refused(twice, "peer.name", "second time", "its own");
}

#[test]
fn lcores_are_counted_and_each_has_a_cpu() {
    let (key, most) = ("engine.lcores", "1 to 64");
    refused(EngineBuilder::new("left", 0), key, "0 items", most);
    refused(EngineBuilder::new("left", 65), key, "65 items", most);
    refused(legal().cpus(&[3, 4, 3]), key, "CPU 3 twice", "its own");
    refused(legal().cpus(&[5000]), key, "5000", "0 to 4095");
    let far = legal().peer("far", "local:far", 65);
    refused(far, "peer.lcores", "is 65", "1 to 64");
    let lazy = IdlePolicy::Backoff { max_sleep_ns: 0 };
    refused(legal().idle(lazy), "engine.backoff_max", "0ns", "1us");
    let error = build(
        EngineBuilder::new("left", 17)
            .memory(memory())
            .limits(limits()),
    );
    assert!(matches!(error, Err(BuildError::Unfit { .. })), "{error:?}");
}

#[test]
fn limits_have_the_ranges_of_a_file() {
    refused_limit(|l| l.epochs = 1, "limits.epochs", "is 1", "4 to 65535");
    refused_limit(
        |l| l.flush_watermark = 0,
        "limits.flush_watermark",
        "is 0",
        "1 to",
    );
    refused_limit(
        |l| l.contexts = 70_000,
        "limits.contexts",
        "70000",
        "1 to 65535",
    );
    refused_limit(|l| l.contexts = 0, "limits.contexts", "is 0", "1 to 65535");
    refused_limit(|l| l.slice_bytes = 0, "limits.slice", "0B", "4KiB");
    refused_limit(|l| l.lanes = 0, "limits.lanes", "is 0", "1 to 16");
    refused_limit(|l| l.send_depth = 3, "limits.send_depth", "is 3", "4 to");
    refused_limit(
        |l| l.context.messages = 0,
        "limits.context.messages",
        "is 0",
        "1 to",
    );
    refused_limit(|l| l.peer.grants = 0, "limits.peer.grants", "is 0", "1 to");
}

#[test]
fn r6_times_have_the_ranges_of_a_file() {
    refused_time(|t| t.fence_timeout_ns = 0, "timeouts.fence", "0ns", "100us");
    refused_time(
        |t| t.lease_ns = Some(1),
        "timeouts.lease",
        "1ns",
        "none, or",
    );
    refused_time(
        |t| t.keepalive_interval_ns = u64::MAX,
        "timeouts.keepalive",
        "ns",
        "60s",
    );
}

#[test]
fn memory_has_the_ranges_of_a_file() {
    refused_memory(|m| m.arena_bytes = 0, "memory.bytes", "0B", "4KiB");
    refused_memory(|m| m.pools.clear(), "memory.pools", "0 pools", "1 to 4");
    refused_memory(
        |m| m.pools[0].count = 0,
        "memory.pools.count",
        "is 0",
        "1 to",
    );
    refused_memory(
        |m| m.pools[0].buffer_bytes = 100,
        "memory.pools.buffer",
        "100B",
        "64",
    );
    refused_memory(
        |m| m.pools.push(m.pools[0]),
        "memory.pools",
        "4KiB, 4KiB",
        "ascending",
    );
    refused_memory(
        |m| m.receive_buffer_bytes = 1000,
        "memory.receive_buffer",
        "1KB",
        "multiple of 64",
    );
}

#[test]
fn what_must_fit_together_is_refused_with_the_numbers() {
    refused_limit(
        |l| l.slice_bytes = 8 * MIB,
        "limits.slice",
        "lane_bytes_in_flight is 4MiB",
        "4MiB",
    );
    refused_limit(
        |l| l.lane_bytes_in_flight = 1 << 30,
        "limits.lane_bytes_in_flight",
        "fence timeout",
        "timeouts.fence",
    );
    refused_time(
        |t| t.shutdown_timeout_ns = 1_000_000,
        "timeouts.shutdown",
        "1ms",
        "1363840us",
    );
    refused_time(
        |t| t.lease_ns = Some(150_000_000),
        "timeouts.lease",
        "100ms",
        "200ms",
    );
    refused_memory(
        |m| m.arena_bytes = MIB,
        "memory.bytes",
        "receives",
        "at least",
    );
    let mut limits = limits();
    limits.lanes = 16;
    let peers = legal().limits(limits).peer("far", "local:far", 8);
    refused(
        peers,
        "limits.lanes",
        "144 lanes to 9 lcores",
        "at most 128",
    );
}

#[test]
fn a_context_has_a_weight_from_1_to_256() {
    struct Nothing;
    impl Service for Nothing {
        fn poll(&mut self, _cx: &mut Context<'_>) -> Work {
            Work::Wait
        }
        fn on_event(&mut self, _cx: &mut Context<'_>, _event: Event) {}
    }
    let fabric = Fabric::new();
    let device = fabric.device(SoftConfig::default()).unwrap();
    let mut engine = legal().build(device, 1).unwrap();
    for weight in [0, 257, u32::MAX] {
        let refused = engine.open(LcoreId(0), "name", weight, Box::new(Nothing));
        assert_eq!(refused, Err(OpenError::Weight { weight }));
        assert!(refused.unwrap_err().to_string().contains("1 to 256"));
    }
    for (weight, name) in [(1, "light"), (256, "heavy")] {
        let opened = engine.open(LcoreId(0), name, weight, Box::new(Nothing));
        assert_eq!(opened, Ok(()));
    }
}
