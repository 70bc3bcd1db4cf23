//! Section 5, "An orderly end": a session that is left ends at both ends at once, and what `Bye` says is no more than it is.

mod pair;

use keyfence::pmd::wrap::fault::Plan;
use keyfence::wire::{self, Frame};
use keyfence::{EngineEvent, Event, GrantError, Lease, Local, Rights};
use pair::judged::{Court, Judged, MS, Part};
use pair::raw::Duel;
use pair::scene::{Scene, completions, ends};
use pair::{Side, Slot};

fn is_down(side: &Side<Judged>) -> bool {
    let down = |event: &EngineEvent| matches!(event, EngineEvent::PeerDown(_));
    side.events.iter().any(down)
}

/// Nothing of a session is left on the side.
fn is_rid(side: &Side<Judged>) -> bool {
    side.used(|usage| {
        let keys = usage.keys.unproven + usage.keys.parked;
        u64::from(usage.lanes + usage.imports + usage.grants + keys)
    }) == 0
}

#[test]
fn r2_an_engine_that_closes_takes_leave_and_both_ends_are_rid_of_the_session() {
    for rebuilds in [0, 8] {
        let part = || {
            let mut part = Part::quiet();
            part.limits.rebuilds = rebuilds;
            part
        };
        let mut court = Court::new(part(), part());
        let scene = Scene::new(&mut court.pair);
        let granted = scene.grant(&mut court.pair, 64);
        let begun_ns = court.pair.now_ns;
        court.pair.left.engine.close_all();
        court
            .pair
            .until(|pair| pair.left.engine.has_left() && is_down(&pair.right));
        // Neither had to wait for the other's silence, nor for the fence of a holder that does not answer.
        assert!(court.pair.now_ns - begun_ns < MS);
        assert!(is_down(&court.pair.left));
        for side in [&court.pair.left, &court.pair.right] {
            assert_eq!(side.stat("sessions_left"), 1);
            assert_eq!(
                (side.stat("lanes_repaired"), side.stat("peers_silent")),
                (0, 0)
            );
        }
        court
            .pair
            .until(|pair| is_rid(&pair.left) && is_rid(&pair.right));
        let heard = scene.owner.events();
        assert_eq!(ends(&heard, granted.id), (1, 0));
        let down = heard
            .iter()
            .position(|event| matches!(event, Event::PeerDown(_)));
        let zapped = heard
            .iter()
            .position(|event| matches!(event, Event::Zapped(_)));
        assert!(zapped.unwrap() < down.unwrap(), "{heard:?}");
        court.acquit();
    }
}

#[test]
fn r2_byes_that_cross_answer_each_other() {
    let mut court = Court::quiet();
    let scene = Scene::new(&mut court.pair);
    drop(scene.grant(&mut court.pair, 64));
    court.pair.left.engine.close_all();
    court.pair.right.engine.close_all();
    court
        .pair
        .until(|pair| pair.left.engine.has_left() && pair.right.engine.has_left());
    for side in [&court.pair.left, &court.pair.right] {
        assert!(is_rid(side) && is_down(side));
    }
    court.acquit();
}

#[test]
fn r6_a_peer_that_does_not_answer_is_left_after_the_fence_timeout() {
    let mut court = Court::quiet();
    let begun_ns = court.pair.now_ns;
    court.pair.left.engine.close_all();
    while !court.pair.left.engine.has_left() {
        court.pair.now_ns += 1_000;
        let now_ns = court.pair.now_ns;
        court.pair.left.step(now_ns);
        assert!(now_ns - begun_ns < 4 * MS, "fence, drain and a little");
    }
    assert!(court.pair.now_ns - begun_ns >= MS);
    assert_eq!(court.pair.left.stat("sessions_left"), 0);
}

/// What the context of an engine that is left has under way is told its end, and it can begin nothing more in that session.
#[test]
fn r7_what_is_under_way_as_the_peer_leaves_ends_once_and_nothing_new_begins() {
    let mut court = Court::quiet();
    let scene = Scene::new(&mut court.pair);
    let granted = scene.grant(&mut court.pair, 1 << 20);
    let import = granted.import;
    let (from, holder) = (Slot::new(), scene.holder_id);
    let to_from = from.clone();
    scene.holder.act(move |cx| {
        let buf = cx.alloc(1 << 20).unwrap();
        for token in 0..3 {
            cx.write(&import, 0, &[Local::prefix(&buf, 1 << 20)], token)
                .unwrap();
        }
        to_from.set(buf);
    });
    court.pair.steps(1);
    court.pair.right.engine.close_all();
    let mut heard = Vec::new();
    court.pair.until(|_| {
        heard.extend(scene.holder.events());
        heard
            .iter()
            .any(|event| matches!(event, Event::PeerDown(_)))
    });
    assert_eq!(completions(&heard).len(), 3);
    let to = scene.owner_id;
    let refused = Slot::new();
    let told = refused.clone();
    scene.holder.act(move |cx| {
        let buf = cx.alloc(64).unwrap();
        told.set((
            cx.send(to, b"late", 9).is_err(),
            cx.grant(&buf, 0..64, Rights::ALL, holder, Lease::None),
        ));
    });
    court.pair.until(|_| refused.is_set());
    assert!(matches!(
        refused.take().unwrap(),
        (true, Err(GrantError::NoSession))
    ));
    court.pair.until(|pair| is_rid(&pair.left));
    court.acquit();
}

fn bye(duel: &mut Duel, lane: usize, session: u32) {
    let header = duel.raw.header(lane);
    duel.raw.send(lane, &header, &Frame::Bye { session });
    duel.steps(20);
}

/// The farewells that came, by lane.
fn byes(duel: &mut Duel) -> Vec<(usize, u32)> {
    let said = |(lane, bytes): &(usize, Vec<u8>)| match wire::decode(bytes) {
        Ok((_, Frame::Bye { session })) => Some((*lane, session)),
        _ => None,
    };
    duel.raw.inbox.iter().filter_map(said).collect()
}

#[test]
fn r12_a_bye_of_another_session_is_refused_and_so_is_a_second_one() {
    let mut duel = Duel::new(Part::quiet());
    let session = duel.raw.lanes[0].session;
    bye(&mut duel, 0, session.wrapping_add(1));
    assert_eq!(duel.side.stat("frames_refused"), 1);
    assert_eq!(byes(&mut duel), []);
    bye(&mut duel, 0, session);
    bye(&mut duel, 0, session);
    assert_eq!(duel.side.stat("frames_refused"), 2);
    // It answers on all lanes.
    let lanes = duel.raw.lanes.len();
    let mut answered: Vec<usize> = byes(&mut duel).iter().map(|(lane, _)| *lane).collect();
    answered.sort_unstable();
    assert_eq!(answered, (0..lanes).collect::<Vec<_>>());
}

/// R3: the peer's word stands for its acknowledgements, but a key is proven ended by the device.
#[test]
fn r3_a_bye_acknowledges_keys_and_proves_none_of_them_ended() {
    let mut duel = Duel::new(Part::new(Plan::default()));
    let owner = duel.side.puppet(0, "owner");
    duel.steps(5);
    let holder = duel.holder(2);
    let made = Slot::new();
    let to_made = made.clone();
    owner.act(move |cx| {
        let buf = cx.alloc(64).unwrap();
        to_made.set(cx.grant(&buf, 0..64, Rights::ALL, holder, Lease::None));
    });
    duel.until(|_| made.is_set());
    let id = made.take().unwrap().unwrap();
    duel.steps(20);
    assert_eq!(duel.ledger.all_live_keys(), 1);
    let begun_ns = duel.now_ns;
    let (lane, _, _) = duel.raw.grants().pop().unwrap();
    let session = duel.raw.lanes[lane].session;
    bye(&mut duel, lane, session);
    let mut heard = Vec::new();
    duel.until(|duel| {
        heard.extend(owner.events());
        let zapped = ends(&heard, id) == (1, 0);
        assert!(!zapped || duel.ledger.all_live_keys() == 0, "R3");
        zapped
    });
    assert!(duel.now_ns - begun_ns < MS, "no fence was waited for");
    assert_eq!(duel.side.parked(), 0, "and no value is kept");
}

/// A grant of the raw peer's to a context of the engine, and the header that it comes with.
fn offer(duel: &Duel, to: &str) -> (wire::Grant, wire::Header) {
    let header = wire::Header {
        src: wire::WireContext {
            slot: 1,
            generation: 1,
        },
        dst: duel.side.id_of(to).unwrap().into(),
        ..duel.raw.header(0)
    };
    (duel.raw.opened(), header)
}

/// The word is given only when it is true: not while an operation of its own is posted.
#[test]
fn r2_a_bye_waits_for_own_operations() {
    let mut duel = Duel::new(Part::quiet());
    let user = duel.side.puppet(0, "user");
    duel.steps(5);
    let lane = 0;
    let (grant, header) = offer(&duel, "user");
    let grants = [grant];
    let grants = wire::List::from(&grants[..]);
    duel.raw.send(lane, &header, &Frame::Grants { grants });
    let mut import = None;
    duel.until(|_| {
        for event in user.events() {
            if let Event::Granted(granted) = event {
                import = Some(granted);
            }
        }
        import.is_some()
    });
    let import = import.unwrap();
    user.act(move |cx| {
        let buf = cx.alloc(64).unwrap();
        cx.write(&import, 0, &[Local::prefix(&buf, 64)], 1).unwrap();
        cx.free(buf);
    });
    // The raw peer, which executes it, does not step meanwhile.
    let alone = |duel: &mut Duel, steps: usize| {
        for _ in 0..steps {
            duel.now_ns += 1_000;
            let now_ns = duel.now_ns;
            duel.side.step(now_ns);
        }
    };
    alone(&mut duel, 2);
    duel.side.engine.close_all();
    alone(&mut duel, 200);
    duel.raw.inbox.clear();
    assert_eq!(duel.side.stat("sessions_left"), 0);
    let posted = |duel: &Duel| duel.side.used(|usage| usage.ops);
    assert_eq!(posted(&duel), 1);
    duel.until(|duel| !byes(duel).is_empty());
    assert_eq!(posted(&duel), 0);
}

/// What the peer opens behind the farewells is not let in, else the word that no import lives would not be true; and nobody here begins anything while the session is left.
#[test]
fn r2_behind_a_bye_no_grant_is_taken_and_nothing_begins() {
    let mut duel = Duel::new(Part::quiet());
    let user = duel.side.puppet(0, "user");
    duel.steps(5);
    let session = duel.raw.lanes[0].session;
    bye(&mut duel, 0, session);
    let (grant, header) = offer(&duel, "user");
    let grants = [grant];
    let grants = wire::List::from(&grants[..]);
    duel.raw.send(0, &header, &Frame::Grants { grants });
    duel.steps(20);
    let (holder, refused) = (duel.holder(2), Slot::new());
    let told = refused.clone();
    user.act(move |cx| {
        let buf = cx.alloc(64).unwrap();
        told.set(cx.grant(&buf, 0..64, Rights::ALL, holder, Lease::None));
    });
    duel.steps(5);
    assert!(matches!(refused.take(), Some(Err(GrantError::NoSession))));
    let heard = user.events();
    let event = |what: fn(&Event) -> bool| heard.iter().any(what);
    assert!(
        !event(|event| matches!(event, Event::Granted(_))),
        "{heard:?}"
    );
    assert!(
        !event(|event| matches!(event, Event::PeerDown(_))),
        "it is not over yet"
    );
    let answers = duel.raw.inbox.iter().filter(|(_, bytes)| {
        matches!(wire::decode(bytes), Ok((_, Frame::Refused { grant: known })) if known == grant.grant)
    });
    assert_eq!(answers.count(), 1);
}
