//! R12: who is let in, between two engines and against a peer that is none. Both sides tell why nobody was.

mod pair;

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use keyfence::config::{Catalog, Config, KeyMode};
use keyfence::ids::PeerId;
use keyfence::pmd::soft::{Fabric, SoftConfig};
use keyfence::pmd::wrap::fault::Plan;
use keyfence::{
    BuildError, EngineBuilder, EngineEvent, JoinRefusal, LookupError, PaceMisfit, Secret,
};
use pair::judged::{Judged, MS, Part, US, fast_limits, short_timeouts};
use pair::switched::Switched;
use pair::{Puppet, Side, Slot, side, with_secret};

const SHARED: [u8; 32] = [7; 32];
const OTHER: [u8; 32] = [8; 32];

/// Two engines that ask and accept as they will, and what each told.
struct Two {
    sides: [Side<Judged>; 2],
    ledgers: [keyfence_mempool::sync::Arc<pair::raw::check::Ledger>; 2],
    now_ns: u64,
}

impl Two {
    fn new(builders: [EngineBuilder; 2]) -> Self {
        let fabric = Fabric::new();
        let devices = [0, 1].map(|_| pair::judged::device(&fabric, Plan::default()));
        let [(left, left_ledger, _), (right, right_ledger, _)] = devices;
        let [left_builder, right_builder] = builders;
        Self {
            sides: [side(left_builder, left), side(right_builder, right)],
            ledgers: [left_ledger, right_ledger],
            now_ns: 1,
        }
    }

    fn with_secrets(secrets: [Option<[u8; 32]>; 2]) -> Self {
        Self::new(builders(secrets, Part::quiet(), Part::quiet()))
    }

    fn run(&mut self, steps: usize) {
        for _ in 0..steps {
            self.now_ns += US;
            for side in &mut self.sides {
                side.step(self.now_ns);
            }
        }
    }

    fn told(&self, side: usize) -> Vec<(JoinRefusal, Option<u64>)> {
        let refused = |event: &EngineEvent| match event {
            EngineEvent::JoinRefused { why, retry_ns, .. } => Some((why.clone(), *retry_ns)),
            _ => None,
        };
        self.sides[side].events.iter().filter_map(refused).collect()
    }

    fn ups(&self) -> [usize; 2] {
        let up = |event: &&EngineEvent| matches!(event, EngineEvent::PeerUp(_));
        [0, 1].map(|side| self.sides[side].events.iter().filter(up).count())
    }
}

fn builders(secrets: [Option<[u8; 32]>; 2], left: Part, right: Part) -> [EngineBuilder; 2] {
    let of = |name: &str, peer: &str, secret: Option<[u8; 32]>, part: Part| {
        let secret = secret.map(|bytes| Secret::new(&bytes).unwrap());
        with_secret(name, peer, 1, secret)
            .limits(part.limits)
            .timeouts(part.timeouts)
    };
    [
        of("left", "right", secrets[0], left),
        of("right", "left", secrets[1], right),
    ]
}

#[test]
fn r12_engines_that_share_a_secret_join() {
    let mut two = Two::with_secrets([Some(SHARED); 2]);
    two.run(300);
    assert_eq!(two.ups(), [1, 1]);
    for side in 0..2 {
        let admissions = two.sides[side].engine.admissions();
        assert_eq!(admissions.lanes_admitted, 2);
        let refused =
            admissions.requests_refused + admissions.replies_refused + admissions.hellos_refused;
        assert_eq!((refused, two.told(side)), (0, Vec::new()));
    }
}

fn asks_for_a_name(puppet: &Puppet) -> Slot<Result<(), LookupError>> {
    let asked = Slot::new();
    let to_asked = asked.clone();
    puppet.act(move |cx| to_asked.set(cx.lookup(PeerId(0), "other", 1)));
    asked
}

#[test]
fn r12_another_secret_lets_nobody_in_and_no_context_speaks() {
    for secrets in [
        [Some(SHARED), Some(OTHER)],
        [Some(SHARED), None],
        [None, Some(SHARED)],
    ] {
        let mut two = Two::with_secrets(secrets);
        let [left, right] = [0, 1].map(|at| two.sides[at].puppet(0, "other"));
        two.run(5);
        let asked = [&left, &right].map(asks_for_a_name);
        two.run(60_000);
        assert_eq!(two.ups(), [0, 0]);
        for asked in asked {
            assert_eq!(asked.take(), Some(Err(LookupError::NoSession)));
        }
        let whys = |side: usize| two.told(side).into_iter().map(|(why, _)| why);
        assert!(whys(0).all(|why| why == JoinRefusal::Unauthenticated));
        // The left goes away without a word to who has not proven itself.
        assert!(whys(1).all(|why| why == JoinRefusal::LaneBroke));
        let tries = two.told(0).len() as u64;
        // In 60 ms: waits double from 5 ms to a quarter of `reconnect`, which is as much here.
        assert!((4..=24).contains(&tries), "{tries} tries");
        assert!((2..=24).contains(&two.told(1).len()));
        assert!(two.told(0).iter().all(|(_, retry_ns)| retry_ns.is_some()));
        let [left, right] = [0, 1].map(|side| two.sides[side].engine.admissions());
        assert_eq!((left.replies_refused, left.lanes_admitted), (tries, 0));
        assert_eq!(right.lanes_admitted, 0);
        // No hello of the left's, which would be under its secret, and nothing but hellos of the right's.
        assert_eq!(two.sides[0].stat("requests_posted"), 0);
        assert!(two.sides[1].stat("requests_posted") <= tries);
        assert_eq!(two.sides[1].stat("frames_received"), 0);
        for ledger in &two.ledgers {
            assert_eq!(ledger.all_live_keys(), 0);
        }
    }
}

#[test]
fn r6_limits_that_do_not_fit_are_refused_by_both_with_the_numbers() {
    let misfit = PaceMisfit {
        cap_bytes: 8 << 20,
        slowest_rate_bytes_per_s: 64_000_000,
        fence_timeout_ns: MS,
    };
    let slow = || Part {
        limits: keyfence::limits::Limits {
            lane_bytes_in_flight: misfit.cap_bytes,
            slowest_rate_bytes_per_s: misfit.slowest_rate_bytes_per_s,
            ..fast_limits()
        },
        timeouts: keyfence::config::Timeouts {
            fence_timeout_ns: 200 * MS,
            ..short_timeouts()
        },
        ..Part::quiet()
    };
    let shared = [Some(SHARED); 2];
    let (ours, theirs) = (JoinRefusal::OurPace(misfit), JoinRefusal::TheirPace(misfit));
    for (left, right, expected) in [
        (slow(), Part::quiet(), [&ours, &theirs]),
        (Part::quiet(), slow(), [&theirs, &ours]),
    ] {
        let mut two = Two::new(builders(shared, left, right));
        two.run(30_000);
        assert_eq!(two.ups(), [0, 0]);
        for (side, expected) in expected.into_iter().enumerate() {
            let told = two.told(side);
            assert!(told.len() >= 2, "{told:?}");
            let all = told.iter().all(|(why, _)| why == expected);
            assert!(all, "{told:?}");
            assert!(two.sides[side].engine.admissions().hellos_refused > 0);
        }
    }
    let text = ours.to_string();
    for number in [
        "8388608 bytes",
        "64000000 bytes a second",
        "131072000 ns",
        "1000000 ns",
    ] {
        assert!(text.contains(number), "{text}");
    }
}

#[test]
fn r12_a_peer_over_a_fabric_needs_a_secret_and_names_must_be_told_apart() {
    let device = || Fabric::new().device(SoftConfig::default()).unwrap();
    let engine = || EngineBuilder::new("left", 1);
    let refused = engine()
        .peer("right", "rdma:10.0.0.1:4791", 1)
        .build(device(), 1);
    let Err(BuildError::NoSecret { peer }) = refused else {
        panic!("{refused:?}")
    };
    assert_eq!(peer, "right");
    // "far" sorts before "left", so it connects; "right" is connected to.
    let secret = || Secret::new(&[7; Secret::LEAST_BYTES]).unwrap();
    let asked = engine().peer_with_secret("far", "rdma:10.0.0.1:4791", 1, secret());
    let refused = asked.clone().build(device(), 1);
    let Err(BuildError::ListensNowhere { peer }) = refused else {
        panic!("{refused:?}")
    };
    assert_eq!(peer, "far");
    asked.listen("local:left").build(device(), 1).unwrap();
    let asking = engine().peer_with_secret("right", "rdma:10.0.0.1:4791", 1, secret());
    asking.build(device(), 1).unwrap();
    let refused = engine()
        .peer("peer-620", "local:one", 1)
        .peer("peer-24768", "local:other", 1)
        .build(device(), 1);
    assert!(matches!(refused, Err(BuildError::NamesCollide { .. })));

    // A configuration that was parsed and not loaded has not read its secrets.
    let source = "[[engine]]\nname = \"left\"\nlcores = [0]\n[[peer]]\nname = \"right\"\n\
                  address = \"shm:right\"\nsecret_file = \"s\"\n";
    let catalog = Catalog {
        devices: &["soft"],
        services: &[],
    };
    let config = Config::parse("f.toml", source, catalog).unwrap();
    let refused = EngineBuilder::from_config(&config, 0).build(device(), 1);
    assert!(matches!(refused, Err(BuildError::NoSecret { .. })));
}

/// Two engines from one file, each with a secret file of its own.
#[test]
fn r12_the_secrets_of_the_files_decide() {
    let folder = std::env::temp_dir().join(format!("keyfence-admission-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let peer = |name: &str, engine: &str| {
        format!(
            "[[engine]]\nname = \"{engine}\"\nlcores = [0]\n[[peer]]\nname = \"{name}\"\n\
             engine = \"{engine}\"\naddress = \"local:{name}\"\nsecret_file = \"{engine}.secret\"\n"
        )
    };
    let memory = "[memory]\nbytes = \"32MiB\"\nhugepages = \"off\"\nlock = \"off\"\n\
                  pools = [{ buffer = 4096, count = 64 }]\nreceive_buffer = 2048\n\
                  [limits]\ncontexts = 16\n";
    let file = folder.join("f.toml");
    let text = peer("right", "left") + &peer("left", "right") + memory;
    fs::write(&file, text).unwrap();
    for (secrets, joined) in [([SHARED, SHARED], [1, 1]), ([SHARED, OTHER], [0, 0])] {
        for (name, secret) in ["left.secret", "right.secret"].iter().zip(secrets) {
            fs::write(folder.join(name), secret).unwrap();
            fs::set_permissions(folder.join(name), Permissions::from_mode(0o600)).unwrap();
        }
        let catalog = Catalog {
            devices: &["soft"],
            services: &[],
        };
        let config = Config::load(&file, catalog).unwrap();
        let mut two = Two::new([0, 1].map(|at| EngineBuilder::from_config(&config, at)));
        two.run(1_000);
        assert_eq!(two.ups(), joined);
    }
    fs::remove_dir_all(&folder).unwrap();
}

/// A mode that does not keep a key to its bytes is used if somebody has named it, and not by default.
#[test]
fn r12_windows_that_confine_nothing_must_be_named() {
    let device = || {
        let device = Fabric::new().device(SoftConfig::default()).unwrap();
        let (device, _) = Switched::new(device);
        device.saying(|caps| caps.window_bounds = false)
    };
    let engine = || EngineBuilder::new("left", 1);
    let refused = engine().build(device(), 1);
    let Err(error @ BuildError::Unfit { .. }) = refused else {
        panic!("built")
    };
    assert!(
        error.to_string().contains("EngineBuilder::key_mode"),
        "{error}"
    );
    for named in [KeyMode::Window, KeyMode::Region] {
        engine().key_mode(named).build(device(), 1).unwrap();
    }
}
