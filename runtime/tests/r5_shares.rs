//! R5, R6: contexts share a lane by weight, whatever their sizes and however late completions are; lanes share what a step may spend on reclaims.

mod pair;

use keyfence::ids::LcoreId;
use keyfence::pmd::wrap::fault::{Injection, Plan, Span, Target};
use keyfence::{Buf, Context, Event, Import, Lease, Local, Rights, Service, Work};
use keyfence_mempool::sync::{Arc, AtomicU64, Ordering};
use pair::Puppet;
use pair::judged::{Court, Part, fast_limits};
use pair::scene::{grant, lookup};

const KIB: usize = 1024;

/// Writes the same bytes to what it was granted, as often as it may or `a_poll` times a poll.
struct Writer {
    bytes: usize,
    a_poll: usize,
    import: Option<Import>,
    buf: Option<Buf>,
    done_bytes: Arc<AtomicU64>,
}

impl Service for Writer {
    fn poll(&mut self, cx: &mut Context<'_>) -> Work {
        let Some(import) = self.import else {
            return Work::Idle;
        };
        if self.buf.is_none() {
            self.buf = Some(cx.alloc(self.bytes).unwrap());
        }
        let buf = self.buf.as_ref().unwrap();
        for _ in 0..self.a_poll {
            let from = [Local::prefix(buf, self.bytes)];
            if cx.write(&import, 0, &from, 1).is_err() {
                break;
            }
        }
        Work::Busy
    }

    fn on_event(&mut self, _cx: &mut Context<'_>, event: Event) {
        match event {
            Event::Granted(import) => self.import = Some(import),
            Event::Completed(done) => {
                self.done_bytes.fetch_add(done.bytes, Ordering::Relaxed);
            }
            _ => {}
        }
    }
}

/// A lane of two slices whose completions come 50 polls late.
fn late_and_short() -> Court {
    let mut limits = fast_limits();
    limits.lanes = 1;
    limits.slice_bytes = 64 << 10;
    limits.lane_bytes_in_flight = 128 << 10;
    // Enough for more than a lane and a turn of the smallest of these: each has something waiting at all times.
    limits.context.ops_in_flight = 64;
    let late = Injection::HoldBack {
        target: Target::Every,
        span: Span {
            first: 0,
            count: u64::MAX,
        },
        polls: 50,
    };
    let left = Part {
        limits: limits.clone(),
        ..Part::new(Plan {
            injections: vec![late],
        })
    };
    let right = Part {
        limits,
        ..Part::quiet()
    };
    Court::new(left, right)
}

/// A writer on the left with a grant of an owner of its own; what it has written is counted.
fn writer(
    court: &mut Court,
    owner: &Puppet,
    name: &'static str,
    weight: u32,
    bytes: usize,
    a_poll: usize,
) -> Arc<AtomicU64> {
    let done_bytes = Arc::new(AtomicU64::new(0));
    let service = Writer {
        bytes,
        a_poll,
        import: None,
        buf: None,
        done_bytes: Arc::clone(&done_bytes),
    };
    let left = &mut court.pair.left.engine;
    left.open(LcoreId(0), name, weight, Box::new(service))
        .unwrap();
    court.pair.steps(10);
    let holder = lookup(&mut court.pair, owner, name);
    owner.act(move |cx| {
        let memory = cx.alloc(bytes).unwrap();
        cx.grant(&memory, 0..bytes, Rights::ALL, holder, Lease::Configured)
            .unwrap();
    });
    done_bytes
}

#[test]
fn r5_a_context_with_long_writes_does_not_keep_a_short_one_off_a_full_lane() {
    for hog_bytes in [40 * KIB, 24 * KIB, 64 * KIB] {
        let mut court = late_and_short();
        let owner = court.pair.right.puppet(0, "owner");
        let hog = writer(&mut court, &owner, "hog", 1, hog_bytes, 1);
        court
            .pair
            .until(|_| hog.load(Ordering::Relaxed) > 4 * hog_bytes as u64);
        let small = writer(&mut court, &owner, "small", 1, 64, 1);
        court.pair.steps(5_000);
        let (hog, small) = (hog.load(Ordering::Relaxed), small.load(Ordering::Relaxed));
        assert!(small >= 10 * 64, "{small} bytes beside {hog} of the hog's");
        court.acquit();
    }
}

#[test]
fn r5_shares_of_a_full_lane_follow_the_weights_whatever_the_sizes() {
    for (light_bytes, heavy_bytes) in [
        (40 * KIB, 40 * KIB),
        (40 * KIB, 24 * KIB + 17),
        (5 * KIB + 1, 63 * KIB),
        (130 * KIB + 5, 24 * KIB),
    ] {
        let mut court = late_and_short();
        let owner = court.pair.right.puppet(0, "owner");
        let light = writer(&mut court, &owner, "light", 1, light_bytes, 64);
        let heavy = writer(&mut court, &owner, "heavy", 3, heavy_bytes, 64);
        court.pair.steps(2_000);
        let before = (light.load(Ordering::Relaxed), heavy.load(Ordering::Relaxed));
        court.pair.steps(30_000);
        let light = light.load(Ordering::Relaxed) - before.0;
        let heavy = heavy.load(Ordering::Relaxed) - before.1;
        let share = heavy as f64 / light as f64;
        assert!(
            (2.5..3.5).contains(&share),
            "{light_bytes} and {heavy_bytes}: {heavy} / {light} = {share}"
        );
        court.acquit();
    }
}

#[test]
fn r6_no_lane_waits_for_all_reclaims_of_a_lower_one() {
    let mut limits = fast_limits();
    limits.lanes = 2;
    limits.reclaim_budget_wrs = 1;
    let part = || Part {
        limits: limits.clone(),
        ..Part::quiet()
    };
    let mut court = Court::new(part(), part());
    let pair = &mut court.pair;
    let owner = pair.right.puppet(0, "owner");
    let low = pair.left.puppet(0, "low");
    let high = pair.left.puppet(0, "high");
    pair.steps(10);
    let low_id = lookup(pair, &owner, "low");
    let high_id = lookup(pair, &owner, "high");
    assert_eq!((low_id.id.slot % 2, high_id.id.slot % 2), (0, 1));
    let mut grants: Vec<_> = (0..31)
        .map(|_| grant(pair, &owner, &low, low_id, 64).id)
        .collect();
    let on_high = grant(pair, &owner, &high, high_id, 64).id;
    grants.push(on_high);
    owner.act(move |cx| {
        for grant in grants {
            cx.revoke(grant).unwrap();
        }
    });
    let mut zapped = Vec::new();
    pair.until(|_| {
        for event in owner.events() {
            if let Event::Zapped(grant) = event {
                zapped.push(grant);
            }
        }
        zapped.len() == 32
    });
    let place = zapped.iter().position(|grant| *grant == on_high).unwrap();
    assert!(place < 8, "behind {place} of the other lane's");
    court.acquit();
}

#[test]
fn r5_the_end_of_all_contexts_is_spread_over_steps() {
    let mut limits = fast_limits();
    limits.contexts = 64;
    let part = || Part {
        limits: limits.clone(),
        ..Part::quiet()
    };
    let mut court = Court::new(part(), part());
    for _ in 0..64 {
        court.pair.left.puppet(0, "one of many");
    }
    court.pair.steps(20);
    court.pair.left.engine.close_all();
    let mut steps = 0;
    while !court.pair.left.engine.is_closed() {
        let before = court.pair.left.stat("contexts_cordoned");
        court.pair.step();
        let cordoned = court.pair.left.stat("contexts_cordoned") - before;
        assert!(cordoned <= 8, "{cordoned} in one step");
        steps += 1;
        assert!(steps < 1_000);
    }
    assert_eq!(court.pair.left.stat("contexts_reclaimed"), 64);
    court.acquit();
}
