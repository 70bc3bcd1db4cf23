//! R3: batches of single revokes, and explicit flushes: of what anyone has retired, on any lcore.

mod pair;

use keyfence::Local;
use keyfence::ids::GrantId;
use keyfence::pmd::soft::{Fabric, SoftConfig};
use keyfence::pmd::wrap::fault::{Injection, Plan, Span, Target};
use keyfence::{Event, FlushError, GrantError, Lease, RevokeError, Rights, SubmitError};
use pair::judged::{Court, MS, Part, US, fast_limits};
use pair::scene::{Granted, Scene, ends, grant, lookup};
use pair::switched::{Switched, off, on};
use pair::{Pair, Puppet, Slot, builder};

fn revoke(owner: &Puppet, id: GrantId) {
    owner.act(move |cx| cx.revoke(id).unwrap());
}

fn batching(watermark: u32, interval_ns: u64) -> Court {
    let mut limits = fast_limits();
    limits.flush_watermark = watermark;
    let mut right = Part {
        limits,
        ..Part::quiet()
    };
    right.timeouts.flush_interval_ns = interval_ns;
    Court::new(Part::quiet(), right)
}

#[test]
fn r3_a_batch_is_sealed_at_its_watermark() {
    let mut court = batching(4, 1_000 * MS);
    let scene = Scene::new(&mut court.pair);
    let grants: Vec<_> = (0..4).map(|_| scene.grant(&mut court.pair, 64)).collect();
    for granted in &grants[..3] {
        revoke(&scene.owner, granted.id);
    }
    court.pair.steps(3_000);
    assert_eq!(court.right.all_live_keys(), 4, "three wait for the fourth");
    revoke(&scene.owner, grants[3].id);
    let mut events = Vec::new();
    court.pair.until(|_| {
        events.extend(scene.owner.events());
        grants
            .iter()
            .all(|granted| ends(&events, granted.id) == (1, 0))
    });
    assert_eq!(court.right.all_live_keys(), 0);
    assert_eq!(court.pair.right.stat("epochs_ended"), 1);
    court.acquit();
}

#[test]
fn r3_a_batch_is_sealed_when_its_interval_is_over() {
    let mut court = batching(4, 300 * US);
    let scene = Scene::new(&mut court.pair);
    let granted = scene.grant(&mut court.pair, 64);
    let start_ns = court.pair.now_ns;
    revoke(&scene.owner, granted.id);
    court
        .pair
        .until(|_| ends(&scene.owner.events(), granted.id) == (1, 0));
    let took_ns = court.pair.now_ns - start_ns;
    assert!((300 * US..400 * US).contains(&took_ns), "{took_ns} ns");
    let again = Slot::new();
    let error = again.clone();
    let id = granted.id;
    scene.owner.act(move |cx| error.set(cx.revoke(id)));
    court.pair.step();
    assert_eq!(again.take(), Some(Err(RevokeError::Stale)));
}

#[test]
fn r3_a_flush_captures_what_others_have_retired_and_nothing_later() {
    let mut court = batching(32, 1_000 * MS);
    let scene = Scene::new(&mut court.pair);
    let witness = court.pair.right.puppet(0, "witness");
    let before: Vec<_> = (0..3).map(|_| scene.grant(&mut court.pair, 64)).collect();
    let after = scene.grant(&mut court.pair, 64);
    for granted in &before {
        revoke(&scene.owner, granted.id);
    }
    court.pair.steps(5);
    witness.act(|cx| cx.flush(9).unwrap());
    court.pair.step();
    revoke(&scene.owner, after.id);
    court.pair.until(|_| {
        witness.events().iter().any(|event| {
            matches!(
                event,
                Event::Flushed {
                    token: 9,
                    quarantined: 0
                }
            )
        })
    });
    for granted in &before {
        assert_eq!(court.right.live_keys(granted.range.clone()), 0);
    }
    assert_eq!(court.right.live_keys(after.range.clone()), 1);
    court.acquit();
}

#[test]
fn r3_a_flush_captures_a_context_that_was_closed_in_the_same_step() {
    let mut court = batching(32, 1_000 * MS);
    let scene = Scene::new(&mut court.pair);
    // Polled behind the owner.
    let witness = court.pair.right.puppet(0, "witness");
    court.pair.steps(5);
    let grants: Vec<_> = (0..3).map(|_| scene.grant(&mut court.pair, 64)).collect();
    scene.owner.act(|cx| cx.close());
    witness.act(|cx| cx.flush(9).unwrap());
    let flushed = |event: &Event| {
        matches!(
            event,
            Event::Flushed {
                token: 9,
                quarantined: 0
            }
        )
    };
    court.pair.until(|_| witness.events().iter().any(flushed));
    for granted in &grants {
        assert_eq!(court.right.live_keys(granted.range.clone()), 0);
    }
    drop(grants);
    court.acquit();
}

#[test]
fn r3_flush_tickets_run_out_with_a_typed_error_and_come_back() {
    let mut court = batching(32, 1_000 * MS);
    let scene = Scene::new(&mut court.pair);
    for round in 0..3 {
        let granted = scene.grant(&mut court.pair, 64);
        let id = granted.id;
        let results = Slot::new();
        let to_results = results.clone();
        scene.owner.act(move |cx| {
            cx.revoke(id).unwrap();
            to_results.set((0..20).map(|token| cx.flush(token)).collect::<Vec<_>>());
        });
        court.pair.step();
        let results = results.take().unwrap();
        assert!(results[..16].iter().all(Result::is_ok), "round {round}");
        assert_eq!(
            results[16..],
            vec![Err(FlushError::TooMany { limit: 16 }); 4]
        );
        let mut tokens = Vec::new();
        court.pair.until(|_| {
            for event in scene.owner.events() {
                if let Event::Flushed {
                    token,
                    quarantined: 0,
                } = event
                {
                    tokens.push(token);
                }
            }
            tokens.len() == 16
        });
        tokens.sort_unstable();
        assert_eq!(tokens, (0..16).collect::<Vec<_>>(), "each once");
    }
}

fn four_lcores() -> Court {
    let part = || Part {
        lcores: 2,
        ..Part::quiet()
    };
    let mut right = part();
    right.timeouts.flush_interval_ns = 1_000 * MS;
    Court::new(part(), right)
}

#[test]
fn r3_a_flush_captures_what_another_lcore_has_retired() {
    let mut court = four_lcores();
    let pair = &mut court.pair;
    let owner = pair.right.puppet(0, "owner");
    let witness = pair.right.puppet(1, "witness");
    let holder = pair.left.puppet(1, "holder");
    pair.steps(20);
    let holder_id = lookup(pair, &owner, "holder");
    let granted = grant(pair, &owner, &holder, holder_id, 64);
    revoke(&owner, granted.id);
    pair.step();
    witness.act(|cx| cx.flush(3).unwrap());
    let right = court.right.clone();
    pair.until(|_| {
        witness.events().iter().any(|event| {
            matches!(
                event,
                Event::Flushed {
                    token: 3,
                    quarantined: 0
                }
            )
        })
    });
    assert_eq!(right.live_keys(granted.range.clone()), 0);
    court.acquit();
}

#[test]
fn r12_lcores_grant_to_each_other_s_peers_and_know_their_own_buffers() {
    let mut court = four_lcores();
    let pair = &mut court.pair;
    let owners = [0, 1].map(|lcore| pair.right.puppet(lcore, ["o0", "o1"][lcore as usize]));
    let holders = [0, 1].map(|lcore| pair.left.puppet(lcore, ["h0", "h1"][lcore as usize]));
    pair.steps(20);
    let mut all: Vec<Granted> = Vec::new();
    for owner in &owners {
        for (holder, name) in holders.iter().zip(["h0", "h1"]) {
            let id = lookup(pair, owner, name);
            let granted = grant(pair, owner, holder, id, 64);
            let import = granted.import;
            holder.act(move |cx| {
                let buf = cx.alloc(64).unwrap();
                buf.dma().fill(0x44);
                cx.write(&import, 0, &[Local::prefix(&buf, 64)], 1).unwrap();
            });
            pair.until(|_| !pair::scene::completions(&holder.events()).is_empty());
            let buf = granted.buf.take().unwrap();
            assert_eq!(buf.dma().slice(0, 64).unwrap().first_not(0x44), None);
            granted.buf.set(buf);
            all.push(granted);
        }
    }
    // The same slot on another lcore is another context.
    assert_eq!(
        pair.right.id_of("o0").unwrap().slot,
        pair.right.id_of("o1").unwrap().slot
    );
    let holder_id = lookup(pair, &owners[1], "h1");
    let foreign = all[0].buf.take().unwrap();
    let refused = Slot::new();
    let error = refused.clone();
    owners[1].act(move |cx| {
        let grant = cx.grant(&foreign, 0..8, Rights::READ, holder_id, Lease::None);
        let send = cx.send_from(holder_id, &[Local::prefix(&foreign, 8)], 1);
        error.set((grant, send));
    });
    pair.steps(3);
    assert_eq!(
        refused.take().unwrap(),
        (
            Err(GrantError::ForeignBuffer),
            Err(SubmitError::ForeignBuffer)
        )
    );
    for granted in &all {
        drop(granted.buf.take());
    }
    for name in ["o0", "o1"] {
        let id = pair.right.id_of(name).unwrap();
        pair.right.engine.kill(id);
        pair.until(|pair| pair.right.reclaimed(id));
    }
    pair.steps(200);
    assert_eq!(pair.right.used(|usage| usage.grants.into()), 0);
    assert_eq!(pair.right.used(|usage| usage.windows.into()), 0);
    assert_eq!(pair.right.engine.buffers_in_use(), 0);
    court.acquit();
}

#[test]
fn r3_a_flush_captures_own_operations_of_a_context_that_was_killed() {
    let late = Injection::HoldBack {
        target: Target::Every,
        span: Span::EVERY,
        polls: 200,
    };
    let mut court = Court::new(Part::new(Plan::new([late])), Part::quiet());
    let scene = Scene::new(&mut court.pair);
    let witness = court.pair.left.puppet(0, "witness");
    let granted = scene.grant(&mut court.pair, 1 << 20);
    let import = granted.import;
    let address = Slot::new();
    let to_address = address.clone();
    scene.holder.act(move |cx| {
        let buf = cx.alloc(1 << 20).unwrap();
        to_address.set(buf.address());
        cx.read(&import, 0, &[Local::prefix(&buf, 1 << 20)], 1)
            .unwrap();
    });
    court.pair.steps(2);
    let first = address.take().unwrap();
    let range = first..first + (1 << 20);
    assert!(court.left.open_work(range.clone()) > 0);
    court.pair.left.engine.kill(scene.holder_context());
    court.pair.steps(2);
    witness.act(|cx| cx.flush(5).unwrap());
    court.pair.step();
    assert!(court.left.open_work(range.clone()) > 0, "still posted");
    court.pair.until(|_| {
        witness.events().iter().any(|event| {
            matches!(
                event,
                Event::Flushed {
                    token: 5,
                    quarantined: 0
                }
            )
        })
    });
    assert_eq!(court.left.open_work(range), 0);
    assert!(court.pair.left.reclaimed(scene.holder_context()));
    court.acquit();
}

/// Of a session that is over the keys are live until their queue pair is in error, and that may hang.
#[test]
fn r3_a_flush_captures_what_is_revoked_while_the_end_of_a_session_hangs() {
    let fabric = Fabric::new();
    let device = || Switched::new(fabric.device(SoftConfig::default()).unwrap());
    let ((left, _), (right, switches)) = (device(), device());
    let mut pair = Pair::on(
        builder("left", "right", 1),
        left,
        builder("right", "left", 1),
        right,
    );
    let scene = Scene::new(&mut pair);
    let granted = scene.grant(&mut pair, 64);
    on(&switches.error_hangs);
    on(&switches.break_last);
    pair.until(|pair| pair.right.stat("lanes_broken") > 0);
    pair.steps(20);
    let id = granted.id;
    scene.owner.act(move |cx| {
        cx.revoke(id).unwrap();
        cx.flush(1).unwrap();
    });
    pair.steps(2_000);
    let flushed = |event: &Event| matches!(event, Event::Flushed { .. });
    let mut events = scene.owner.events();
    assert_eq!(ends(&events, id), (0, 0));
    assert!(!events.iter().any(flushed), "its key is live");
    off(&switches.error_hangs);
    pair.until(|_| {
        events.extend(scene.owner.events());
        events.iter().any(flushed)
    });
    let at = events.iter().position(flushed).unwrap();
    assert_eq!(ends(&events[..at], id), (1, 0));
}
