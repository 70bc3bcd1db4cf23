//! Queues of every small depth, and clocks that go back: nothing hangs and nothing is lost.

mod pair;

use keyfence::ids::{PeerId, RemoteContext};
use keyfence::limits::Limits;
use keyfence::pmd::soft::{Fabric, SoftConfig, SoftDevice};
use keyfence::{Context, Event, Import, Lease, Local, Rights, Status};
use pair::{Pair, Puppet, builder, small_limits};

/// Bytes of the holder's import.
const BYTES: usize = 1 << 20;

struct Scene {
    pair: Pair<SoftDevice>,
    holder: Puppet,
    owner: Puppet,
    holder_id: RemoteContext,
    owner_id: RemoteContext,
    import: Import,
}

fn lookup(pair: &mut Pair<SoftDevice>, puppet: &Puppet, name: &'static str) -> RemoteContext {
    puppet.act(move |cx| cx.lookup(PeerId(0), name, 1).unwrap());
    let mut found = None;
    pair.until(|_| {
        if let Some(Event::Resolved { context, .. }) = puppet.next_event() {
            found = context;
        }
        found.is_some()
    });
    found.unwrap()
}

fn scene(limits: &Limits) -> Scene {
    let fabric = Fabric::new();
    let device = || fabric.device(SoftConfig::default()).unwrap();
    let mut pair = Pair::on(
        builder("left", "right", 1).limits(limits.clone()),
        device(),
        builder("right", "left", 1).limits(limits.clone()),
        device(),
    );
    let holder = pair.left.puppet(0, "holder");
    let owner = pair.right.puppet(0, "owner");
    pair.steps(10);
    let holder_id = lookup(&mut pair, &owner, "holder");
    let owner_id = lookup(&mut pair, &holder, "owner");
    owner.act(move |cx| {
        let buf = cx.alloc(BYTES).unwrap();
        cx.grant(&buf, 0..BYTES, Rights::ALL, holder_id, Lease::None)
            .unwrap();
    });
    let mut import = None;
    pair.until(|_| {
        if let Some(Event::Granted(granted)) = holder.next_event() {
            import = Some(granted);
        }
        import.is_some()
    });
    Scene {
        pair,
        holder,
        owner,
        holder_id,
        owner_id,
        import: import.unwrap(),
    }
}

/// Operation number `number` of a burst that mixes all kinds.
fn submit(cx: &mut Context<'_>, import: &Import, to: RemoteContext, number: u64) {
    let buf = cx.alloc(64).unwrap();
    let local = [Local::prefix(&buf, 64)];
    let submitted = match number % 6 {
        0 => cx.write(import, 0, &local, number),
        1 => cx.send(to, b"short", number),
        2 => cx.read(import, 64, &local, number),
        3 => cx.fetch_add(import, 128, 1, number),
        4 => cx.write_with_immediate(import, 192, &local, 9, number),
        _ => cx.compare_swap(import, 256, 0, 0, number),
    };
    submitted.unwrap();
}

/// Bursts of every length, each waited for, against one depth; with grants that come and go beside them.
fn bursts(depth: u32, receive_depth: u32) {
    let mut limits = Limits {
        send_depth: depth,
        receive_depth,
        windows: 4,
        ..small_limits()
    };
    // The receiver takes a whole burst: what is short is the lane.
    limits.context.messages = depth;
    let Scene {
        mut pair,
        holder,
        owner,
        holder_id,
        owner_id,
        import,
    } = scene(&limits);
    let mut zapped = 0;
    for burst in 1..=2 * u64::from(depth) + 1 {
        owner.act(move |cx| {
            let buf = cx.alloc(64).unwrap();
            let grant = cx.grant(&buf, 0..64, Rights::ALL, holder_id, Lease::None);
            cx.revoke(grant.unwrap()).unwrap();
        });
        holder.act(move |cx| {
            for number in 0..burst {
                submit(cx, &import, owner_id, number);
            }
        });
        let mut ended = vec![0; burst as usize];
        pair.until(|_| {
            while let Some(event) = holder.next_event() {
                if let Event::Completed(done) = event {
                    assert_eq!(done.status, Status::Ok);
                    ended[done.token as usize] += 1;
                }
            }
            zapped += owner
                .events()
                .iter()
                .filter(|event| matches!(event, Event::Zapped(_)))
                .count() as u64;
            ended.iter().sum::<u64>() == burst && zapped == burst
        });
        assert!(ended.iter().all(|count| *count == 1), "R7, {ended:?}");
    }
    assert_eq!(pair.left.stat("lanes_broken"), 0);
    assert_eq!(pair.left.engine.buffers_in_use(), 0);
}

#[test]
fn b24_bursts_of_every_length_on_queues_of_every_small_depth_never_hang() {
    for depth in 4..=12 {
        bursts(depth, 64);
    }
}

#[test]
fn b24_bursts_of_every_length_with_as_few_receives_never_hang() {
    for depth in 4..=8 {
        bursts(depth, depth);
    }
}

/// Reads so long that one is always in flight, and a grant beside them.
#[test]
fn r6_a_short_queue_full_of_operations_lets_requests_through() {
    for depth in 4..=12 {
        let limits = Limits {
            send_depth: depth,
            windows: 4,
            slice_bytes: BYTES as u64,
            ..small_limits()
        };
        let Scene {
            mut pair,
            holder,
            owner_id,
            import,
            ..
        } = scene(&limits);
        let sink = std::sync::Arc::new(std::sync::Mutex::new(None));
        let mut zapped = false;
        for step in 0..3_000 {
            let sink = std::sync::Arc::clone(&sink);
            holder.act(move |cx| {
                let mut sink = sink.lock().unwrap();
                let sink = sink.get_or_insert_with(|| cx.alloc(BYTES).unwrap());
                // Refused when the quota is full, which is the point.
                while cx
                    .read(&import, 0, &[Local::prefix(sink, BYTES)], 1)
                    .is_ok()
                {}
                if step == 100 {
                    let buf = cx.alloc(64).unwrap();
                    let grant = cx.grant(&buf, 0..64, Rights::ALL, owner_id, Lease::None);
                    cx.revoke(grant.unwrap()).unwrap();
                }
            });
            pair.step();
            zapped |= holder
                .events()
                .iter()
                .any(|event| matches!(event, Event::Zapped(_)));
        }
        assert!(zapped, "depth {depth}");
    }
}

#[test]
fn b26_lcores_whose_clock_goes_back_go_on_and_their_timers_too() {
    let Scene {
        mut pair,
        holder,
        owner,
        holder_id,
        owner_id,
        import,
    } = scene(&small_limits());
    // Hours back, to the beginning, and into the far future of a broken counter and back.
    pair.now_ns += 3_600_000_000_000;
    pair.steps(10);
    let times = [1, 0, 3_000_000_000_000, 500, 3_600_000_000_000];
    for (round, now_ns) in (0_u64..).zip(times) {
        owner.act(move |cx| {
            let buf = cx.alloc(64).unwrap();
            let grant = cx.grant(&buf, 0..64, Rights::ALL, holder_id, Lease::None);
            cx.revoke(grant.unwrap()).unwrap();
        });
        holder.act(move |cx| submit(cx, &import, owner_id, round));
        for _ in 0..1_000 {
            for side in [&mut pair.left, &mut pair.right] {
                side.step(now_ns);
            }
        }
        let done = |event: &Event| matches!(event, Event::Completed(op) if op.token == round && op.status == Status::Ok);
        assert!(holder.events().iter().any(done), "round {round}");
    }
    // The batch of revokes waits for its interval, which has not passed on any of these clocks; now it does.
    pair.now_ns += 1_000_000_000;
    let mut zapped = 0;
    pair.until(|_| {
        zapped += owner
            .events()
            .iter()
            .filter(|event| matches!(event, Event::Zapped(_)))
            .count();
        zapped == times.len()
    });
    let id = pair.left.id_of("holder").unwrap();
    pair.left.engine.kill(id);
    for _ in 0..1_000 {
        pair.left.step(7);
        pair.right.step(7);
    }
    assert!(pair.left.reclaimed(id));
    let took = pair.left.events.iter().find_map(|event| match event {
        keyfence::EngineEvent::Reclaimed { took_ns, .. } => Some(*took_ns),
        _ => None,
    });
    assert_eq!(took, Some(0), "no time has passed, and not 2^64 ns");
    assert_eq!(
        pair.left.stat("peers_down") + pair.right.stat("peers_down"),
        0
    );
}
