//! R9: each limit refuses with its name, value and use; nobody else notices; and what was given back may be taken again in full.

mod pair;

use keyfence::ids::RemoteContext;
use keyfence::limits::{Limit, LimitError, Limits};
use keyfence::{AllocError, Buf, Context, EngineEvent, Event, GrantError, Lease, Local, Rights};
use keyfence::{Import, SubmitError};
use pair::judged::{Court, Part, fast_limits};
use pair::scene::{Scene, completions, grant};
use pair::{Puppet, REGIONS, Slot};

fn court(change: impl Fn(&mut Limits)) -> Court {
    let part = || {
        let mut limits = fast_limits();
        change(&mut limits);
        Part {
            limits,
            ..Part::quiet()
        }
    };
    Court::new(part(), part())
}

/// Runs an act and gives what it found.
fn ask<T: Send + 'static>(
    court: &mut Court,
    puppet: &Puppet,
    act: impl FnOnce(&mut Context<'_>) -> T + Send + 'static,
) -> T {
    let slot = Slot::new();
    let result = slot.clone();
    puppet.act(move |cx| result.set(act(cx)));
    let mut found = None;
    court.pair.until(|_| {
        found = slot.take();
        found.is_some()
    });
    found.unwrap()
}

fn limit_error(limit: Limit, value: u64, wanted: u64) -> LimitError {
    LimitError {
        limit,
        value,
        in_use: value,
        wanted,
    }
}

/// Grants of one buffer, as many as asked for.
fn open_all(cx: &mut Context<'_>, to: RemoteContext, count: usize) -> Vec<Result<(), GrantError>> {
    let buf = cx.alloc(64).unwrap();
    let open = |_| {
        let lease = Lease::None;
        cx.grant(&buf, 0..64, Rights::ALL, to, lease).map(|_| ())
    };
    (0..count).map(open).collect()
}

/// Grants as many as fit and one more: the limit is the error's, a bystander is free unless it is the limit of all, and the end of all
/// gives all back.
fn grants_refused_at(change: impl Fn(&mut Limits), fits: usize, error: LimitError, shared: bool) {
    let mut court = court(change);
    let scene = Scene::new(&mut court.pair);
    let bystander = court.pair.right.puppet(0, "bystander");
    court.pair.steps(5);
    let to = scene.holder_id;
    let made = ask(&mut court, &scene.owner, move |cx| {
        open_all(cx, to, fits + 1)
    });
    assert!(made[..fits].iter().all(Result::is_ok), "{made:?}");
    assert_eq!(made[fits], Err(GrantError::Limit(error)));
    let other = ask(&mut court, &bystander, move |cx| open_all(cx, to, 1));
    assert_eq!(other[0].is_err(), shared, "{other:?}");
    let mut granted = 0;
    let holder = scene.holder.clone();
    court.pair.until(|_| {
        let events = holder.events();
        let came = events.iter().filter(|it| matches!(it, Event::Granted(_)));
        granted += came.count();
        granted == fits + usize::from(!shared)
    });
    // The holder's end ends them all.
    let id = court.pair.left.id_of("holder").unwrap();
    court.pair.left.engine.kill(id);
    court
        .pair
        .until(|pair| pair.right.used(|usage| usage.grants.into()) == 0);
    assert_eq!(court.pair.right.engine.buffers_in_use(), 0);
    again(&mut court, &scene.owner, fits, error);
}

/// A new holder, and for the same owner again a full quota.
fn again(court: &mut Court, owner: &Puppet, fits: usize, error: LimitError) {
    let _holder = court.pair.left.puppet(0, "holder again");
    court.pair.steps(20);
    let to = pair::scene::lookup(&mut court.pair, owner, "holder again");
    let made = ask(court, owner, move |cx| open_all(cx, to, fits + 1));
    assert!(made[..fits].iter().all(Result::is_ok), "{made:?}");
    assert_eq!(made[fits], Err(GrantError::Limit(error)));
    court.acquit();
}

#[test]
fn r9_grants_of_a_context() {
    let error = limit_error(Limit::ContextGrants, 4, 1);
    grants_refused_at(|limits| limits.context.grants = 4, 4, error, false);
}

#[test]
fn r9_exposed_bytes_of_a_context() {
    let error = limit_error(Limit::ContextExposedBytes, 256, 64);
    grants_refused_at(|limits| limits.context.exposed_bytes = 256, 4, error, false);
}

#[test]
fn r9_grants_of_the_engine() {
    let error = limit_error(Limit::Grants, 4, 1);
    grants_refused_at(|limits| limits.grants = 4, 4, error, true);
}

#[test]
fn r9_windows_of_a_lane() {
    let error = limit_error(Limit::Windows, 4, 1);
    if REGIONS {
        // There are none, and the limit limits nothing.
        let mut court = court(|limits| limits.windows = 4);
        let scene = Scene::new(&mut court.pair);
        for _ in 0..5 {
            scene.grant(&mut court.pair, 64);
        }
        return;
    }
    grants_refused_at(|limits| limits.windows = 4, 4, error, true);
}

#[test]
fn r9_imports_of_a_context_and_of_the_engine() {
    for whole in [false, true] {
        let mut court = court(|limits| {
            if whole {
                limits.imports = 3;
            } else {
                limits.context.imports = 3;
            }
        });
        let scene = Scene::new(&mut court.pair);
        let to = scene.holder_id;
        for _ in 0..3 {
            let ids = ask(&mut court, &scene.owner, move |cx| {
                let buf = cx.alloc(64).unwrap();
                let grant = |_| cx.grant(&buf, 0..8, Rights::ALL, to, Lease::None).unwrap();
                (0..5).map(grant).collect::<Vec<_>>()
            });
            // Those beyond are refused by the holder's engine, and so end at their owner.
            let mut zapped = Vec::new();
            court.pair.until(|_| {
                for event in scene.owner.events() {
                    if let Event::Zapped(id) = event {
                        zapped.push(id);
                    }
                }
                zapped.len() == 2
            });
            assert_eq!(zapped, ids[3..]);
            assert_eq!(court.pair.left.used(|usage| usage.imports.into()), 3);
            for id in ids[..3].iter().copied() {
                scene.owner.act(move |cx| cx.revoke(id).unwrap());
            }
            court.pair.until(|pair| {
                scene.owner.events();
                pair.right.used(|usage| usage.grants.into()) == 0
            });
        }
        assert_eq!(court.pair.left.stat("grants_refused"), 6);
        court.acquit();
    }
}

#[test]
fn r9_buffers_of_a_context() {
    let mut court = court(|limits| limits.context.buffers = 3);
    let scene = Scene::new(&mut court.pair);
    for _ in 0..3 {
        let refused = ask(&mut court, &scene.owner, |cx| {
            let kept: Vec<Buf> = (0..3).map(|_| cx.alloc(64).unwrap()).collect();
            let error = cx.alloc(64).map(|_| ()).unwrap_err();
            drop(kept);
            error
        });
        let error = limit_error(Limit::ContextBuffers, 3, 1);
        assert_eq!(refused, AllocError::Limit(error));
    }
    ask(&mut court, &scene.owner, |cx| {
        assert!(matches!(
            cx.alloc(2 << 20),
            Err(AllocError::TooLarge {
                largest: 1_048_576,
                ..
            })
        ));
    });
    court.pair.steps(5);
    assert_eq!(court.pair.right.engine.buffers_in_use(), 0);
}

fn write(cx: &mut Context<'_>, import: &Import, bytes: usize) -> Result<(), SubmitError> {
    let buf = cx.alloc(bytes).unwrap();
    cx.write(import, 0, &[Local::prefix(&buf, bytes)], 1)
}

fn operations_refused_at(change: impl Fn(&mut Limits), error: LimitError, shared: bool) {
    let mut court = court(change);
    let scene = Scene::new(&mut court.pair);
    let bystander = court.pair.left.puppet(0, "bystander");
    court.pair.steps(5);
    let import = scene.grant(&mut court.pair, 4096).import;
    let to = scene.owner_id;
    for round in 0..20 {
        let made = ask(&mut court, &scene.holder, move |cx| {
            // b05, b06: what can't be right is no use of the limit, however often, before anything that can.
            let buf = cx.alloc(64).unwrap();
            for _ in 0..40 {
                let past = cx.write(&import, 4090, &[Local::prefix(&buf, 64)], 9);
                assert!(matches!(past, Err(SubmitError::OutsideImport { .. })));
            }
            drop(buf);
            (0..5).map(|_| write(cx, &import, 1024)).collect::<Vec<_>>()
        });
        assert!(
            made[..4].iter().all(Result::is_ok),
            "round {round}: {made:?}"
        );
        assert_eq!(made[4], Err(SubmitError::Limit(error)), "round {round}");
        if !shared {
            let other = ask(&mut court, &bystander, move |cx| cx.send(to, b"hello", 1));
            assert_eq!(other, Ok(()));
            scene.owner.events();
        }
        let (mut done, mut writable) = (0, 0);
        court.pair.until(|_| {
            let events = scene.holder.events();
            done += completions(&events).len();
            writable += events
                .iter()
                .filter(|event| matches!(event, Event::Writable))
                .count();
            done == 4
        });
        assert_eq!(writable, 1, "round {round}");
        assert_eq!(court.pair.left.used(|usage| usage.op_bytes % 5), 0);
    }
    assert_eq!(court.pair.left.stat("services_panicked"), 0);
    court.acquit();
}

#[test]
fn r9_b05_b06_operations_in_flight_of_a_context() {
    let error = limit_error(Limit::ContextOpsInFlight, 4, 1);
    operations_refused_at(|limits| limits.context.ops_in_flight = 4, error, false);
}

#[test]
fn r9_b05_b06_bytes_in_flight_of_a_context() {
    let error = limit_error(Limit::ContextBytesInFlight, 4096, 1024);
    operations_refused_at(|limits| limits.context.bytes_in_flight = 4096, error, false);
}

#[test]
fn r9_operations_and_bytes_in_flight_of_the_engine() {
    let error = limit_error(Limit::OpsInFlight, 4, 1);
    operations_refused_at(|limits| limits.ops_in_flight = 4, error, true);
    let error = limit_error(Limit::BytesInFlight, 4096, 1024);
    operations_refused_at(|limits| limits.bytes_in_flight = 4096, error, true);
}

#[test]
fn r9_contexts_of_the_engine() {
    let mut court = court(|limits| limits.contexts = 2);
    for _ in 0..3 {
        for name in ["one", "two", "three"] {
            court.pair.left.puppet(0, name);
        }
        court.pair.steps(5);
        let why = court.pair.left.events.iter().find_map(|event| match event {
            EngineEvent::OpenFailed { name, why } => Some((name.clone(), why.clone())),
            _ => None,
        });
        let (name, why) = why.expect("the third is refused");
        assert_eq!(name, "three");
        assert!(
            why.starts_with("limits.contexts is 2 with 2 in use"),
            "{why}"
        );
        for name in ["one", "two"] {
            let id = court.pair.left.id_of(name).unwrap();
            court.pair.left.engine.kill(id);
        }
        court.pair.steps(50);
        assert_eq!(court.pair.left.used(|usage| usage.contexts.into()), 0);
        court.pair.left.events.clear();
    }
}

#[test]
fn r5_who_asks_for_buffers_in_vain_slows_nobody() {
    let mut court = court(|limits| {
        limits.contexts = 16;
        limits.buffers = 401;
        limits.context.buffers = 400;
    });
    let left = &mut court.pair.left;
    let (rich, poor) = (left.puppet(0, "rich"), left.puppet(0, "poor"));
    court.pair.steps(5);
    let kept = Slot::new();
    let to_kept = kept.clone();
    rich.act(move |cx| {
        to_kept.set((0..400).map(|_| cx.alloc(64).unwrap()).collect::<Vec<_>>());
    });
    let one = Slot::new();
    let to_one = one.clone();
    court.pair.step();
    poor.act(move |cx| to_one.set(cx.alloc(64).unwrap()));
    court.pair.step();
    let looked_at = court.pair.left.stat("buffers_looked_at");
    for _ in 0..10 {
        poor.act(|cx| {
            for _ in 0..100 {
                let full = matches!(cx.alloc(64), Err(AllocError::Limit(error)) if error.limit == Limit::Buffers);
                assert!(full);
            }
        });
        court.pair.step();
    }
    let looked_at = court.pair.left.stat("buffers_looked_at") - looked_at;
    assert!(looked_at <= 10 * 256, "{looked_at} in ten steps");
    // What is dropped is found, if not at once.
    drop(kept.take());
    let got = Slot::new();
    court.pair.until(|_| {
        let to_got = got.clone();
        poor.act(move |cx| {
            if let Ok(buf) = cx.alloc(64) {
                to_got.set(buf);
            }
        });
        got.take().is_some()
    });
}

#[test]
fn b13_a_context_that_comes_too_late_is_told_so_and_no_limit_is_blamed() {
    let mut court = Court::quiet();
    court.pair.left.engine.close_all();
    court.pair.steps(5);
    court.pair.left.puppet(0, "late");
    court.pair.steps(5);
    let why = court.pair.left.events.iter().find_map(|event| match event {
        EngineEvent::OpenFailed { name, why } if name == "late" => Some(why.clone()),
        _ => None,
    });
    let why = why.expect("it is refused");
    assert!(why.starts_with("all contexts are being closed"), "{why}");
}

/// Everything as short as it may be: one context, one grant, one window, four requests.
#[test]
fn r9_the_smallest_engines_work_and_never_hang() {
    let part = || {
        let mut part = Part::quiet();
        part.limits = Limits {
            slowest_rate_bytes_per_s: 64_000_000_000,
            context: keyfence::limits::ContextLimits {
                exposed_bytes: 4096,
                bytes_in_flight: 4096,
                buffers: 1,
                ..Limits::TEST_MIN.context
            },
            peer: keyfence::limits::PeerLimits {
                exposed_bytes: 4096,
                ..Limits::TEST_MIN.peer
            },
            ..Limits::TEST_MIN
        };
        part
    };
    let mut court = Court::new(part(), part());
    for _ in 0..20 {
        let scene = Scene::new(&mut court.pair);
        for _ in 0..3 {
            let granted = grant(
                &mut court.pair,
                &scene.owner,
                &scene.holder,
                scene.holder_id,
                4096,
            );
            let import = granted.import;
            for act in 0..8 {
                let to = scene.owner_id;
                scene.holder.act(move |cx| {
                    if act % 2 == 0 {
                        write(cx, &import, 4096).unwrap();
                    } else {
                        cx.send(to, b"!", 1).unwrap();
                    }
                });
                let mut done = Vec::new();
                court.pair.until(|_| {
                    // Messages are given back at once.
                    scene.owner.events();
                    done.extend(completions(&scene.holder.events()));
                    !done.is_empty()
                });
                assert_eq!(done[0].status, keyfence::Status::Ok);
            }
            drop(granted.buf.take());
            let id = granted.id;
            scene.owner.act(move |cx| cx.revoke(id).unwrap());
            court.pair.until(|pair| {
                scene.owner.events();
                pair.right.used(|usage| usage.grants.into()) == 0
            });
        }
        let (owner, holder) = (scene.owner_context(), scene.holder_context());
        court.pair.right.engine.kill(owner);
        court.pair.left.engine.kill(holder);
        court
            .pair
            .until(|pair| pair.right.reclaimed(owner) && pair.left.reclaimed(holder));
    }
    court.pair.steps(100);
    assert_eq!(court.pair.left.stat("lanes_broken"), 0);
    court.acquit();
}
