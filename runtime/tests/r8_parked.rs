//! R8: a key's value, its window and its slot come back only when the holder has acknowledged, or the queue pair is gone.

mod pair;

use keyfence::ids::{GrantId, RemoteContext};
use keyfence::wire::{self, Frame};
use keyfence::{Event, GrantError, Lease, Rights};
use pair::judged::{Court, MS, Part, fast_limits};
use pair::raw::Duel;
use pair::scene::{Scene, ends, grant};
use pair::{Puppet, REGIONS, Slot};

fn try_grant(
    duel: &mut Duel,
    owner: &Puppet,
    holder: RemoteContext,
) -> Result<GrantId, GrantError> {
    let made = Slot::new();
    let to_made = made.clone();
    owner.act(move |cx| {
        let buf = cx.alloc(64).unwrap();
        to_made.set(cx.grant(&buf, 0..64, Rights::ALL, holder, Lease::None));
    });
    duel.step();
    duel.step();
    made.take().unwrap()
}

/// Tells the engine of the raw peer's receives.
fn give_credit(duel: &mut Duel) {
    for lane in 0..duel.raw.lanes.len() {
        let header = duel.raw.header(lane);
        let keep_alive = Frame::KeepAlive { number: 1 };
        duel.raw.send(lane, &header, &keep_alive);
    }
}

fn small(windows: u32) -> Part {
    let mut limits = fast_limits();
    limits.windows = windows;
    Part {
        limits,
        ..Part::quiet()
    }
}

#[test]
fn r8_without_an_acknowledgement_the_key_is_ended_but_its_window_is_not_reused() {
    let mut duel = Duel::new(small(1));
    let owner = duel.side.puppet(0, "owner");
    duel.steps(5);
    let holder = duel.holder(2);
    let id = try_grant(&mut duel, &owner, holder).unwrap();
    duel.steps(20);
    let (lane, _, first) = duel.raw.grants().pop().unwrap();
    owner.act(move |cx| cx.revoke(id).unwrap());
    let start_ns = duel.now_ns;
    duel.until(|_| ends(&owner.events(), id) == (1, 0));
    assert!(
        duel.now_ns - start_ns >= MS,
        "not before the fence has passed"
    );
    assert_eq!(duel.ledger.all_live_keys(), 0);
    assert_eq!(duel.side.parked(), 1);
    // In key mode `region` there is no window to wait for: values are kept apart (`in_region_mode/domains.rs`).
    assert!(
        REGIONS
            || matches!(
                try_grant(&mut duel, &owner, holder),
                Err(GrantError::Limit(_))
            )
    );
    // It is named again with the keep-alives, until it is acknowledged.
    duel.raw.inbox.clear();
    let mut again = Vec::new();
    duel.until(|duel| {
        again.extend(duel.raw.revokes());
        again.len() >= 3
    });
    assert!(
        again
            .iter()
            .all(|(_, _, last, grants)| *last && *grants == [id])
    );
    duel.raw.acknowledge(lane, again[0].1);
    duel.until(|duel| duel.side.parked() == 0);
    try_grant(&mut duel, &owner, holder).unwrap();
    duel.steps(20);
    let (_, _, second) = duel.raw.grants().pop().unwrap();
    if !REGIONS {
        assert_eq!(first.rkey.index(), second.rkey.index(), "the same window");
    }
    assert_ne!(first.rkey, second.rkey, "with another key");
}

#[test]
fn r8_keys_that_no_revoke_has_named_are_not_acknowledged_by_the_answer_to_one() {
    // So few receives at the holder that most revokes wait until the fence is over; then a frame of the epoch without its keys would be
    // answered, and the answer would count for them.
    let mut duel = Duel::new(small(64));
    let owner = duel.side.puppet(0, "owner");
    duel.steps(5);
    let to = duel.holder(2);
    let mut ids = Vec::new();
    for _ in 0..40 {
        ids.push(try_grant(&mut duel, &owner, to).unwrap());
        duel.steps(2);
    }
    duel.raw.inbox.clear();
    duel.raw.gives_credit = false;
    // Each in an epoch of its own, and all of them past the holder's receives: it gives no credit.
    for &id in &ids {
        owner.act(move |cx| {
            cx.revoke(id).unwrap();
            let _ = cx.flush(0);
        });
        duel.step();
    }
    let mut zapped = 0;
    duel.until(|_| {
        let events = owner.events();
        zapped += events
            .iter()
            .filter(|event| matches!(event, Event::Zapped(_)))
            .count();
        zapped == 40
    });
    duel.raw.gives_credit = true;
    // Whatever was asked is answered, honestly: by what it named.
    let mut named = std::collections::BTreeSet::new();
    duel.until(|duel| {
        for (lane, epoch, last, grants) in duel.raw.revokes() {
            named.extend(grants);
            if last {
                duel.raw.acknowledge(lane, epoch);
            }
        }
        let acknowledged = 40 - duel.side.parked() as usize;
        assert!(
            acknowledged <= named.len(),
            "{acknowledged} keys count as acknowledged, {} were named",
            named.len()
        );
        acknowledged == 40
    });
    assert_eq!(named.len(), 40);
}

#[test]
fn r5_reminders_of_many_keys_wait_behind_a_grant_and_name_what_fits_a_frame() {
    const KEYS: usize = 150;
    let mut limits = fast_limits();
    limits.windows = 200;
    limits.context.grants = 200;
    limits.context.buffers = 300;
    let mut duel = Duel::new(Part {
        limits,
        ..Part::quiet()
    });
    let owner = duel.side.puppet(0, "owner");
    duel.steps(5);
    let to = duel.holder(2);
    for _ in 0..KEYS {
        let id = try_grant(&mut duel, &owner, to).unwrap();
        // Each in an epoch of its own.
        owner.act(move |cx| {
            cx.revoke(id).unwrap();
            let _ = cx.flush(0);
        });
        duel.steps(3);
        give_credit(&mut duel);
    }
    duel.until(|duel| duel.side.parked() == KEYS as u64);
    give_credit(&mut duel);
    duel.steps(5);
    duel.raw.inbox.clear();
    let mut reminders = Vec::new();
    duel.until(|duel| {
        reminders.extend(duel.raw.revokes());
        !reminders.is_empty()
    });
    try_grant(&mut duel, &owner, to).unwrap();
    duel.step();
    let frames: Vec<_> = duel
        .raw
        .inbox
        .iter()
        .map(|(_, bytes)| bytes.clone())
        .collect();
    let granted = |bytes: &Vec<u8>| matches!(wire::decode(bytes), Ok((_, Frame::Grants { .. })));
    assert!(frames.iter().any(granted), "within three steps");
    // All of them in a few frames, though each has an epoch of its own.
    duel.steps(200);
    let more = duel.raw.revokes();
    let named: std::collections::BTreeSet<_> = reminders
        .iter()
        .chain(&more)
        .flat_map(|(.., grants)| grants)
        .collect();
    assert_eq!(named.len(), KEYS);
    assert!(reminders.len() + more.len() <= 8, "{}", more.len());
    for (lane, epoch, ..) in reminders.iter().chain(&more) {
        duel.raw.acknowledge(*lane, *epoch);
    }
    duel.until(|duel| duel.side.parked() == 0);
}

#[test]
fn r8_300_rounds_on_one_window_with_an_acknowledgement_each() {
    let part = || small(1);
    let mut court = Court::new(part(), part());
    let scene = Scene::new(&mut court.pair);
    let mut last = None;
    for round in 0..300 {
        let granted = grant(
            &mut court.pair,
            &scene.owner,
            &scene.holder,
            scene.holder_id,
            64,
        );
        assert_eq!(court.right.live_keys(granted.range.clone()), 1);
        let id = granted.id;
        assert_ne!(last, Some(id), "round {round}");
        last = Some(id);
        scene.owner.act(move |cx| {
            cx.revoke(id).unwrap();
            cx.flush(round).unwrap();
        });
        let owner = scene.owner.clone();
        court.pair.until(|_| ends(&owner.events(), id) == (1, 0));
        assert_eq!(court.right.live_keys(granted.range.clone()), 0);
        drop(granted.buf.take());
        court.pair.until(|pair| pair.right.parked() == 0);
    }
    assert_eq!(court.pair.right.stat("lanes_broken"), 0);
    assert_eq!(court.pair.right.used(|usage| usage.windows.into()), 0);
    court.acquit();
}

#[test]
fn r8_the_end_of_the_queue_pair_frees_what_is_parked() {
    let mut duel = Duel::new(small(1));
    let owner = duel.side.puppet(0, "owner");
    duel.steps(5);
    let to = duel.holder(2);
    let id = try_grant(&mut duel, &owner, to).unwrap();
    owner.act(move |cx| cx.revoke(id).unwrap());
    duel.until(|_| ends(&owner.events(), id) == (1, 0));
    assert_eq!(duel.side.parked(), 1);
    let grant = keyfence::wire::Grant {
        grant: id,
        rkey: keyfence::pmd::Rkey::new(1, 1),
        rights: Rights::ALL,
        address: 64,
        len: 8,
        lease_ns: 1,
    };
    duel.raw.write(0, &grant, 8);
    duel.until(|duel| duel.side.stat("peers_down") == 1);
    duel.until(|duel| duel.side.used(|usage| usage.grants.into()) == 0);
    assert_eq!(duel.side.parked(), 0);
}

#[test]
fn r12_nobody_hears_of_writes_to_a_grant_that_has_ended() {
    let mut duel = Duel::new(Part::quiet());
    let owner = duel.side.puppet(0, "owner");
    duel.steps(5);
    let holder = duel.holder(2);
    let id = try_grant(&mut duel, &owner, holder).unwrap();
    duel.steps(20);
    let (lane, _, _) = duel.raw.grants().pop().unwrap();
    owner.act(move |cx| cx.revoke(id).unwrap());
    duel.until(|_| ends(&owner.events(), id) == (1, 0));
    // Its key's value may still be known, so its name stays; the slot of its owner may have another context.
    assert_eq!(duel.side.parked(), 1);
    let context = duel.side.id_of("owner").unwrap();
    let header = wire::Header {
        src: holder.id.into(),
        dst: context.into(),
        ..duel.raw.header(lane)
    };
    let landed = Frame::Landed {
        grant: id,
        immediate: 1,
        bytes: 1,
    };
    let refused = duel.side.stat("frames_refused");
    duel.raw.send(lane, &header, &landed);
    duel.until(|duel| duel.side.stat("frames_refused") > refused);
    assert!(owner.events().is_empty());
}
