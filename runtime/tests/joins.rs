//! Joins that fail: each is told with its reason and the time of the next try, the tries back off, and between them there is nothing to do.

mod pair;

use keyfence::config::Timeouts;
use keyfence::ids::LcoreId;
use keyfence::pmd::soft::{Fabric, SoftConfig, SoftDevice};
use keyfence::pmd::wrap::fault::Plan;
use keyfence::pmd::{Control, ControlError, ControlEvent, Device, QpConfig, QpId, RequestId};
use keyfence::wire::VERSION;
use keyfence::{EngineBuilder, EngineEvent, JoinRefusal};
use keyfence_mempool::sync::{Arc, Ordering};
use pair::Side;
use pair::judged::{Court, Judged, MS, Part, US};
use pair::raw::Duel;
use pair::scene::Scene;
use pair::switched::{Switches, off, on};

/// What an engine has told of its joins.
#[derive(Default)]
struct Told {
    /// When, why, and when it will be tried again.
    refusals: Vec<(u64, JoinRefusal, Option<u64>)>,
    ups: usize,
    downs: usize,
    /// Calls of `control` that found work.
    busy: usize,
}

/// One step of an engine and what it told.
fn step(side: &mut Side<Judged>, told: &mut Told, now_ns: u64) {
    for lcore in &mut side.lcores {
        lcore.step(now_ns);
    }
    told.busy += usize::from(side.engine.control(now_ns));
    while let Some(event) = side.engine.poll_event() {
        match event {
            EngineEvent::JoinRefused { why, retry_ns, .. } => {
                told.refusals.push((now_ns, why, retry_ns));
            }
            EngineEvent::PeerUp(_) => told.ups += 1,
            EngineEvent::PeerDown(_) => told.downs += 1,
            _ => {}
        }
    }
}

/// The left asks, the right accepts.
struct Two {
    sides: [Side<Judged>; 2],
    told: [Told; 2],
    switches: [Arc<Switches>; 2],
    now_ns: u64,
}

impl Two {
    fn new(left: EngineBuilder, right: EngineBuilder) -> Self {
        let fabric = Fabric::new();
        let [
            (left_device, _, left_switches),
            (right_device, _, right_switches),
        ] = [0, 1].map(|_| pair::judged::device(&fabric, Plan::default()));
        Self {
            sides: [
                pair::side(left, left_device),
                pair::side(right, right_device),
            ],
            told: Default::default(),
            switches: [left_switches, right_switches],
            now_ns: 1,
        }
    }

    fn parts() -> [EngineBuilder; 2] {
        [("left", "right"), ("right", "left")].map(|(name, peer)| Part::quiet().builder(name, peer))
    }

    fn quiet() -> Self {
        let [left, right] = Self::parts();
        Self::new(left, right)
    }

    fn step(&mut self) {
        self.now_ns += US;
        for (side, told) in self.sides.iter_mut().zip(&mut self.told) {
            step(side, told, self.now_ns);
        }
    }

    fn until(&mut self, mut done: impl FnMut(&Self) -> bool) {
        for _ in 0..200_000 {
            if done(self) {
                return;
            }
            self.step();
        }
        panic!("not done in 200000 steps");
    }

    /// The first reason that each side has told within some time.
    fn reasons(&mut self) -> [Option<JoinRefusal>; 2] {
        for _ in 0..3_000 {
            self.step();
        }
        [0, 1].map(|side| {
            let first = self.told[side].refusals.first();
            first.map(|(_, why, _)| why.clone())
        })
    }

    fn come_together(&mut self) {
        self.until(|two| two.told.iter().all(|told| told.ups == 1));
    }
}

/// What answers at the address of the peer "zed", by the test's hand.
struct Stranger {
    device: SoftDevice,
    _path: <SoftDevice as Device>::Path,
}

impl Stranger {
    fn new(fabric: &Fabric) -> Self {
        let device = fabric.device(SoftConfig::default()).unwrap();
        let path = device.open_path(LcoreId(0)).unwrap();
        device.listen("local:zed").unwrap();
        Self {
            device,
            _path: path,
        }
    }

    fn asked(&self) -> Option<(RequestId, Vec<u8>)> {
        match self.device.poll_event()? {
            ControlEvent::ConnectRequest {
                request, private, ..
            } => Some((request, private)),
            _ => None,
        }
    }

    fn queue_pair(&self) -> QpId {
        let config = QpConfig {
            pd: self.device.alloc_pd().unwrap(),
            lcore: LcoreId(0),
            send_depth: 4,
            receive_depth: 4,
            max_sge: 1,
            max_inline_bytes: 0,
        };
        self.device.create_qp(&config).unwrap()
    }
}

fn alone(fabric: &Fabric, timeouts: Timeouts) -> Side<Judged> {
    let (device, ..) = pair::judged::device(fabric, Plan::default());
    let builder = Part {
        timeouts,
        ..Part::quiet()
    }
    .builder("left", "zed");
    pair::side(builder, device)
}

fn patient(reconnect_timeout_ns: u64) -> Timeouts {
    Timeouts {
        reconnect_timeout_ns,
        ..pair::judged::short_timeouts()
    }
}

#[test]
fn tries_for_a_peer_that_is_not_there_back_off_and_leave_nothing_to_do() {
    let fabric = Fabric::new();
    let mut left = alone(&fabric, patient(4_000 * MS));
    let mut told = Told::default();
    let mut now_ns = 1;
    let mut run = |told: &mut Told, left: &mut Side<Judged>, steps: u64| {
        for _ in 0..steps {
            now_ns += 100 * US;
            step(left, told, now_ns);
        }
    };
    run(&mut told, &mut left, 80_000);
    let mut longest_ns = 5 * MS;
    for (at, (told_ns, why, retry_ns)) in told.refusals.iter().enumerate() {
        assert_eq!(*why, JoinRefusal::Unreachable);
        let wait_ns = retry_ns.expect("the left asks") - told_ns;
        let range = longest_ns / 2..=longest_ns;
        assert!(range.contains(&wait_ns), "try {at}: {wait_ns} ns");
        longest_ns = (2 * longest_ns).min(1_000 * MS);
        if let Some((next_ns, ..)) = told.refusals.get(at + 1) {
            let late_ns = next_ns - retry_ns.unwrap();
            assert!(late_ns <= 100 * US, "try {at} is {late_ns} ns late");
        }
    }
    let tries = told.refusals.len();
    assert!((13..=24).contains(&tries), "{tries} in 8 seconds");
    assert!(told.busy <= tries + 4, "{} calls had work", told.busy);
    // No two waits of the longest kind are alike.
    let waits = told.refusals[tries - 4..].iter();
    let waits: std::collections::BTreeSet<_> = waits
        .map(|(told_ns, _, retry_ns)| retry_ns.unwrap() - told_ns)
        .collect();
    assert_eq!(waits.len(), 4);
}

#[test]
fn a_session_that_stands_ends_the_back_off() {
    let fabric = Fabric::new();
    let mut left = alone(&fabric, patient(400 * MS));
    let mut told = Told::default();
    let mut now_ns = 1;
    for _ in 0..500 {
        now_ns += MS;
        step(&mut left, &mut told, now_ns);
    }
    let wait_ns = |told: &Told| {
        let (told_ns, _, retry_ns) = told.refusals.last().unwrap();
        retry_ns.unwrap() - told_ns
    };
    assert!(wait_ns(&told) >= 50 * MS);
    let (device, ..) = pair::judged::device(&fabric, Plan::default());
    let builder = Part {
        timeouts: patient(400 * MS),
        ..Part::quiet()
    }
    .builder("zed", "left");
    let mut zed = pair::side(builder, device);
    let mut zed_told = Told::default();
    while (told.ups, zed_told.ups) != (1, 1) {
        now_ns += 10 * US;
        step(&mut left, &mut told, now_ns);
        step(&mut zed, &mut zed_told, now_ns);
        assert!(now_ns < 2_000 * MS, "they find each other");
    }
    drop(zed);
    let tries = told.refusals.len();
    while told.refusals.len() == tries {
        now_ns += 10 * US;
        step(&mut left, &mut told, now_ns);
        assert!(now_ns < 4_000 * MS, "the loss is noticed");
    }
    assert_eq!(told.downs, 1);
    assert!(wait_ns(&told) <= 5 * MS);
}

#[test]
fn the_asking_engine_hears_why_and_the_other_one_what_it_refused() {
    let [left, _] = Two::parts();
    let stranger = Part::quiet().builder("right", "other");
    let mut two = Two::new(left, stranger);
    assert_eq!(two.reasons(), [Some(JoinRefusal::NotConfigured), None]);

    let [left, _] = Two::parts();
    let mut one_lane = Part::quiet();
    one_lane.limits.lanes = 1;
    let mut two = Two::new(left, one_lane.builder("right", "left"));
    let lanes = |ours, theirs| Some(JoinRefusal::Lanes { ours, theirs });
    assert_eq!(two.reasons(), [lanes(2, 1), lanes(1, 2)]);
    assert_eq!(two.told[1].refusals[0].2, None, "the left asks");

    // The peer has memory for one lcore of the other's.
    let one = |name, peer| Part::quiet().builder(name, peer);
    let two_lcores = |name, peer| one(name, peer).cpus(&[0, 1]);
    let cases = [
        (two_lcores("left", "right"), one("right", "left"), 1),
        (one("left", "right"), two_lcores("right", "left"), 0),
    ];
    for (left, right, told) in cases {
        let mut two = Two::new(left, right);
        two.until(|two| !two.told[told].refusals.is_empty());
        let (configured, claimed) = (1, 2);
        let why = JoinRefusal::Lcores {
            configured,
            claimed,
        };
        assert_eq!(two.told[told].refusals[0].1, why);
        assert_eq!(two.told.iter().map(|told| told.ups).sum::<usize>(), 0);
    }

    let mut two = Two::quiet();
    two.sides[1].engine.close_all();
    assert_eq!(two.reasons(), [Some(JoinRefusal::Ended), None]);
}

const LATE: JoinRefusal = JoinRefusal::Device(ControlError::Late { waited_ns: 1 });

#[test]
fn a_lane_that_can_not_be_made_is_told_by_both() {
    // From the first lane on, and from the second: a lane that stood already then breaks at the other end.
    let cases = [
        (0, 0, [Some(LATE), None]),
        (0, 1, [Some(LATE), Some(JoinRefusal::LaneBroke)]),
        (1, 0, [Some(JoinRefusal::Full), Some(LATE)]),
        (1, 1, [Some(JoinRefusal::Full), Some(LATE)]),
    ];
    for (fails, lanes, expected) in cases {
        let mut two = Two::quiet();
        let switches = Arc::clone(&two.switches[fails]);
        two.until(|_| switches.qps.load(Ordering::Relaxed) >= lanes);
        on(&switches.create_fails);
        assert_eq!(two.reasons(), expected, "{fails} {lanes}");
        off(&switches.create_fails);
        two.come_together();
    }
}

#[test]
fn a_lane_that_can_not_be_made_beside_one_in_quarantine_is_tried_again() {
    let mut court = Court::quiet();
    let scene = Scene::new(&mut court.pair);
    drop(scene.grant(&mut court.pair, 64));
    on(&court.right_switches.dealloc_hangs);
    on(&court.right_switches.break_last);
    // The key stays in quarantine, and with it the lane's place.
    let downs =
        |side: &Side<Judged>| count(side, |event| matches!(event, EngineEvent::PeerDown(_)));
    on(&court.right_switches.create_fails);
    court
        .pair
        .until(|pair| downs(&pair.left) == 1 && downs(&pair.right) == 1);
    assert_eq!(court.pair.right.used(|usage| usage.keys.unproven.into()), 1);
    let refused =
        |event: &EngineEvent| matches!(event, EngineEvent::JoinRefused { why, .. } if *why == LATE);
    court.pair.until(|pair| count(&pair.right, refused) > 0);
    off(&court.right_switches.create_fails);
    let ups = |side: &Side<Judged>| count(side, |event| matches!(event, EngineEvent::PeerUp(_)));
    court
        .pair
        .until(|pair| ups(&pair.left) == 2 && ups(&pair.right) == 2);
}

fn count(side: &Side<Judged>, what: impl Fn(&EngineEvent) -> bool) -> usize {
    side.events.iter().filter(|event| what(event)).count()
}

#[test]
fn answers_of_another_protocol_version_or_engine_are_told_apart() {
    let next = VERSION + 1;
    let versions = JoinRefusal::Version {
        ours: VERSION,
        theirs: next,
    };
    let refused_with = |private: &[u8]| {
        first_refusal(|stranger, request, _| {
            stranger.device.reject(request, private).unwrap();
        })
    };
    let [low, high] = next.to_le_bytes();
    assert_eq!(refused_with(&[0x66, 0x6b, low, high]), versions);
    assert_eq!(refused_with(&[]), JoinRefusal::Unreachable);
    assert_eq!(refused_with(&[7; 8]), JoinRefusal::Malformed);
    let accepted_with = |change: fn(&mut Vec<u8>)| {
        first_refusal(|stranger, request, mut private| {
            change(&mut private);
            let qp = stranger.queue_pair();
            stranger.device.accept(request, qp, &private).unwrap();
        })
    };
    // The asker's own words.
    assert_eq!(accepted_with(|_| ()), JoinRefusal::Unauthenticated);
    assert_eq!(accepted_with(|private| private[2] += 1), versions);
    assert_eq!(accepted_with(Vec::clear), JoinRefusal::Malformed);
}

/// What an engine tells first when a stranger answers its request.
fn first_refusal(answer: impl FnOnce(&Stranger, RequestId, Vec<u8>)) -> JoinRefusal {
    let fabric = Fabric::new();
    let stranger = Stranger::new(&fabric);
    let mut left = alone(&fabric, pair::judged::short_timeouts());
    let mut told = Told::default();
    let mut answer = Some(answer);
    for now_us in 1..1_000 {
        step(&mut left, &mut told, now_us * US);
        if let Some((request, private)) = stranger.asked()
            && let Some(answer) = answer.take()
        {
            answer(&stranger, request, private);
        }
    }
    told.refusals.swap_remove(0).1
}

#[test]
fn a_peer_that_never_answers_is_given_up_in_time_and_asked_again() {
    let fabric = Fabric::new();
    let stranger = Stranger::new(&fabric);
    let mut left = alone(&fabric, pair::judged::short_timeouts());
    let mut told = Told::default();
    let mut asked = 0;
    let mut now_ns = 1;
    while told.refusals.len() < 3 {
        now_ns += 10 * US;
        step(&mut left, &mut told, now_ns);
        asked += usize::from(stranger.asked().is_some());
        assert!(now_ns < 200 * MS);
    }
    let timeout = JoinRefusal::Timeout { waited_ns: 20 * MS };
    for (_, why, retry_ns) in &told.refusals {
        assert_eq!(*why, timeout);
        assert!(retry_ns.is_some());
    }
    assert_eq!(asked, 3);
    assert!((20 * MS..21 * MS).contains(&told.refusals[0].0));
}

#[test]
fn a_hello_that_never_comes_or_does_not_fit_is_told() {
    let refusal = |duel: &mut Duel| {
        duel.until(|duel| {
            let mut events = duel.side.events.iter();
            events.any(|event| matches!(event, EngineEvent::JoinRefused { .. }))
        });
        let refusals = duel.side.events.iter().filter_map(|event| match event {
            EngineEvent::JoinRefused { why, .. } => Some(why.clone()),
            _ => None,
        });
        refusals.collect::<Vec<_>>()
    };
    let mut duel = Duel::before_hello(Part::quiet());
    let timeout = JoinRefusal::Timeout { waited_ns: 20 * MS };
    assert_eq!(refusal(&mut duel), [timeout]);

    let mut duel = Duel::before_hello(Part::quiet());
    let (header, mut hello) = (duel.raw.header(0), duel.raw.hello(0));
    hello.session += 1;
    duel.raw.greet(0, &header, hello);
    assert_eq!(refusal(&mut duel), [JoinRefusal::Hello]);
    duel.steps(3_000);
    assert_eq!(
        refusal(&mut duel).len(),
        1,
        "the rest of it is the same try"
    );
}

#[test]
fn calls_that_stay_late_leave_nothing_to_do_between_the_tries() {
    let mut two = Two::quiet();
    two.come_together();
    let switches = Arc::clone(&two.switches[0]);
    on(&switches.destroy_hangs);
    let Two {
        sides: [mut left, right],
        told: [mut told, _],
        mut now_ns,
        ..
    } = two;
    drop(right);
    let mut run = |left: &mut _, told: &mut Told, steps: usize| {
        for _ in 0..steps {
            now_ns += US;
            step(left, told, now_ns);
        }
    };
    // The loss is noticed, and the lanes are drained.
    run(&mut left, &mut told, 30_000);
    told.busy = 0;
    run(&mut left, &mut told, 10_000);
    // Two lanes, each tried again after at most a quarter of the control timeout, which is 1 ms, and at least half of that.
    assert!((2 * 40..=2 * 80).contains(&told.busy), "{}", told.busy);
    assert_eq!(told.downs, 0);
    off(&switches.destroy_hangs);
    run(&mut left, &mut told, 1_000);
    assert_eq!(told.downs, 1);
}
