//! R12: a peer that takes no requests, and ends what they ask for by other means, can't make them pile up.

mod pair;

use keyfence::ids::{ContextId, GrantId, LcoreId, PeerId, RemoteContext};
use keyfence::{Lease, Rights};
use pair::judged::{MS, Part, fast_limits};
use pair::raw::Duel;
use pair::{Puppet, Slot};

const GRANTS: usize = 64;

fn holder(duel: &Duel) -> RemoteContext {
    RemoteContext {
        peer: PeerId(0),
        session: duel.session(),
        id: ContextId {
            lcore: LcoreId(0),
            slot: 2,
            generation: 1,
        },
    }
}

/// All grants that there can be, in one act.
fn grant_all(duel: &mut Duel, owner: &Puppet) -> Vec<GrantId> {
    let holder = holder(duel);
    let made = Slot::new();
    let to_made = made.clone();
    owner.act(move |cx| {
        let buf = cx.alloc(64).unwrap();
        let grants = (0..GRANTS).map(|_| {
            cx.grant(&buf, 0..64, Rights::ALL, holder, Lease::None)
                .unwrap()
        });
        to_made.set(grants.collect());
    });
    duel.steps(2);
    made.take().unwrap()
}

/// Each in an epoch of its own.
fn revoke_all(duel: &mut Duel, owner: &Puppet, grants: &[GrantId]) {
    let grants = grants.to_vec();
    owner.act(move |cx| {
        for grant in grants {
            cx.revoke(grant).unwrap();
        }
    });
    duel.steps(2);
}

#[test]
fn r12_revokes_whose_fence_is_over_do_not_fill_the_queue_of_a_peer_that_takes_none() {
    let mut part = Part {
        limits: fast_limits(),
        ..Part::quiet()
    };
    part.limits.grants = GRANTS as u32;
    part.limits.windows = GRANTS as u32;
    part.limits.context.grants = GRANTS as u32;
    part.limits.flush_watermark = 1;
    part.limits.epochs = 256;
    part.timeouts.reconnect_timeout_ns = 10_000 * MS;
    part.timeouts.keepalive_interval_ns = 1_000 * MS;
    let mut duel = Duel::new(part);
    let owner = duel.side.puppet(0, "owner");
    let asker = duel.side.puppet(0, "asker");
    duel.steps(5);
    let first = grant_all(&mut duel, &owner);
    let mut came = 0;
    duel.until(|duel| {
        came += duel.raw.grants().len();
        // Nothing that the engine is told tells it of receives but this.
        let header = duel.raw.header(0);
        duel.raw
            .send(0, &header, &keyfence::wire::Frame::KeepAlive { number: 1 });
        came == GRANTS
    });
    duel.raw.gives_credit = false;
    // More questions than there are credits; what is left of them stands in the queue.
    for _ in 0..256 {
        asker.act(|cx| {
            let _ = cx.lookup(PeerId(0), "nobody", 1);
        });
    }
    duel.steps(300);
    revoke_all(&mut duel, &owner, &first);
    for grant in first {
        duel.raw.drop_import(0, grant);
        duel.step();
    }
    duel.until(|duel| duel.side.used(|usage| usage.grants.into()) == 0);
    // Their revokes still wait to be sent, and so do these grants, and their revokes.
    let second = grant_all(&mut duel, &owner);
    revoke_all(&mut duel, &owner, &second);
    assert_eq!(duel.side.stat("services_panicked"), 0);
    duel.until(|duel| duel.side.used(|usage| usage.grants.into()) == 0);
    assert_eq!(duel.side.stat("services_panicked"), 0);
}
