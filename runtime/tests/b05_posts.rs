//! B05: posts that the device does not take, and grants that are refused, use nothing of a quota up.

mod pair;

use keyfence::ids::{ContextId, RemoteContext, SessionId};
use keyfence::limits::Limit;
use keyfence::pmd::wrap::fault::{Injection, Plan, Span, Target};
use keyfence::{Context, Event, GrantError, Lease, Local, Rights, Status};
use pair::judged::{Court, Part, fast_limits};
use pair::scene::{Scene, completions};
use pair::{Puppet, Slot};

const QUOTA: u64 = 16;

/// A full quota of operations in one poll; gives how each was answered.
fn full_quota(court: &mut Court, scene: &Scene, import: keyfence::Import) {
    let said = Slot::new();
    let to_said = said.clone();
    scene.holder.act(move |cx| {
        let buf = cx.alloc(64).unwrap();
        let write = |token| cx.write(&import, 0, &[Local::prefix(&buf, 64)], token);
        to_said.set((0..QUOTA).map(write).collect::<Vec<_>>());
    });
    court.pair.step();
    let admitted = said.take().unwrap();
    assert!(admitted.iter().all(Result::is_ok), "{admitted:?}");
    let mut done = Vec::new();
    court.pair.until(|_| {
        done.extend(completions(&scene.holder.events()));
        done.len() as u64 == QUOTA
    });
    assert!(
        done.iter().all(|done| done.status == Status::Ok),
        "{done:?}"
    );
    assert_eq!(court.pair.left.used(|usage| usage.ops + usage.op_bytes), 0);
}

#[test]
fn b05_ten_quotas_of_posts_that_the_device_does_not_take_lose_no_operation() {
    for (first, take) in [(10, 0), (25, 0), (10, 1)] {
        let short = Injection::ShortPosts {
            target: Target::Every,
            span: Span {
                first,
                count: 10 * QUOTA,
            },
            take,
        };
        let mut left = Part::new(Plan::new([short]));
        left.limits.context.ops_in_flight = QUOTA as u32;
        left.limits.lanes = 1;
        let mut right = Part::quiet();
        right.limits.lanes = 1;
        let mut court = Court::new(left, right);
        let scene = Scene::new(&mut court.pair);
        let import = scene.grant(&mut court.pair, 64).import;
        for _ in 0..20 {
            full_quota(&mut court, &scene, import);
        }
        assert_eq!(court.pair.left.stat("lanes_broken"), 0);
        court.acquit();
    }
}

type Try = fn(&mut Context<'_>, RemoteContext, &keyfence::Buf) -> GrantError;

fn granted(
    cx: &mut Context<'_>,
    buf: &keyfence::Buf,
    range: core::ops::Range<usize>,
    rights: Rights,
    to: RemoteContext,
    lease: Lease,
) -> GrantError {
    cx.grant(buf, range, rights, to, lease).unwrap_err()
}

/// What is tried, how, and with which errors.
type Refusal = (&'static str, Try, fn(&GrantError) -> bool);

/// Each point at which a grant is refused for its arguments. The buffer is another's.
const TRIES: &[Refusal] = &[
    (
        "no byte",
        |cx, to, _| {
            let buf = cx.alloc(64).unwrap();
            granted(cx, &buf, 8..8, Rights::ALL, to, Lease::None)
        },
        |why| matches!(why, GrantError::BadRange { .. }),
    ),
    (
        "past the buffer's end",
        |cx, to, _| {
            let buf = cx.alloc(64).unwrap();
            let end = buf.capacity() + 1;
            granted(cx, &buf, 0..end, Rights::ALL, to, Lease::None)
        },
        |why| matches!(why, GrantError::BadRange { .. }),
    ),
    (
        "no right",
        |cx, to, _| {
            let buf = cx.alloc(64).unwrap();
            granted(cx, &buf, 0..8, Rights::NONE, to, Lease::None)
        },
        |why| *why == GrantError::NoRights,
    ),
    (
        "another's buffer",
        |cx, to, foreign| granted(cx, foreign, 0..8, Rights::ALL, to, Lease::None),
        |why| *why == GrantError::ForeignBuffer,
    ),
    (
        "a lease shorter than its renewal",
        |cx, to, _| {
            let buf = cx.alloc(64).unwrap();
            granted(cx, &buf, 0..8, Rights::ALL, to, Lease::Ns(1))
        },
        |why| matches!(why, GrantError::LeaseTooShort { .. }),
    ),
    (
        "another session's holder",
        |cx, to, _| {
            let buf = cx.alloc(64).unwrap();
            let session = SessionId(999);
            let to = RemoteContext { session, ..to };
            granted(cx, &buf, 0..8, Rights::ALL, to, Lease::None)
        },
        |why| *why == GrantError::NoSession,
    ),
    (
        "a holder in a slot that there is not",
        |cx, to, _| {
            let buf = cx.alloc(64).unwrap();
            let id = ContextId { slot: 999, ..to.id };
            let to = RemoteContext { id, ..to };
            granted(cx, &buf, 0..8, Rights::ALL, to, Lease::None)
        },
        |why| *why == GrantError::HolderGone,
    ),
];

const GRANTS: u64 = 8;

fn gauges(cx: &Context<'_>) -> [Option<u64>; 2] {
    [
        cx.in_use(Limit::ContextGrants),
        cx.in_use(Limit::ContextExposedBytes),
    ]
}

#[test]
fn b05_b06_ten_quotas_of_refused_grants_leave_a_full_one_at_each_point_of_refusal() {
    let mut part = Part::quiet();
    part.limits = fast_limits();
    part.limits.context.grants = GRANTS as u32;
    part.limits.context.exposed_bytes = 64 * GRANTS;
    let mut court = Court::new(Part::quiet(), part);
    let scene = Scene::new(&mut court.pair);
    let other: Puppet = court.pair.right.puppet(0, "other");
    court.pair.steps(5);
    for (name, attempt, is_right) in TRIES {
        let (foreign, said) = (Slot::new(), Slot::new());
        let (to_foreign, to_said, to) = (foreign.clone(), said.clone(), scene.holder_id);
        other.act(move |cx| to_foreign.set(cx.alloc(64).unwrap()));
        court.pair.step();
        let foreign = foreign.take().unwrap();
        scene.owner.act(move |cx| {
            let tries = (0..10 * GRANTS).map(|_| attempt(cx, to, &foreign));
            let refused: Vec<_> = tries.collect();
            let buf = cx.alloc(64).unwrap();
            let used = gauges(cx);
            let grant = |_| cx.grant(&buf, 0..64, Rights::ALL, to, Lease::None);
            let made: Vec<_> = (0..GRANTS).map(grant).collect();
            to_said.set((refused, used, made, gauges(cx)));
        });
        court.pair.step();
        let (refused, used, made, full) = said.take().unwrap();
        assert!(refused.iter().all(is_right), "{name}: {refused:?}");
        assert_eq!(used, [Some(0), Some(0)], "{name}");
        assert!(made.iter().all(Result::is_ok), "{name}: {made:?}");
        assert_eq!(full, [Some(GRANTS), Some(64 * GRANTS)], "{name}");
        scene.owner.act(move |cx| {
            for id in made {
                cx.revoke(id.unwrap()).unwrap();
            }
            cx.flush(0).unwrap();
        });
        let mut zapped = 0;
        court.pair.until(|pair| {
            let events = scene.owner.events();
            let ends = events.iter().filter(|it| matches!(it, Event::Zapped(_)));
            zapped += ends.count() as u64;
            zapped == GRANTS && pair.right.used(|usage| usage.grants.into()) == 0
        });
    }
    assert_eq!(court.pair.right.stat("services_panicked"), 0);
    assert_eq!(court.pair.right.engine.buffers_in_use(), 0);
    court.acquit();
}
