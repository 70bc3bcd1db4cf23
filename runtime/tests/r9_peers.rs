//! R9: what the contexts of one peer may cost, and that its noise costs nobody else.

mod pair;

use keyfence::ids::{ContextId, GrantId, LcoreId, PeerId};
use keyfence::limits::{Limit, Limits};
use keyfence::pmd::Rkey;
use keyfence::wire::{self, Frame, Header, WireContext};
use keyfence::{
    AllocError, Context, Event, GrantError, Lease, Local, Rights, Service, SubmitError, Work,
};
use keyfence_mempool::sync::{Arc, AtomicBool, Ordering};
use pair::judged::{Part, fast_limits};
use pair::raw::Duel;
use pair::scene::Scene;
use pair::{Pair, Puppet, Slot};

fn limited(change: impl FnOnce(&mut Limits)) -> Duel {
    let mut limits = fast_limits();
    change(&mut limits);
    Duel::new(Part {
        limits,
        ..Part::quiet()
    })
}

fn try_grant(duel: &mut Duel, owner: &Puppet) -> Result<GrantId, GrantError> {
    let made = Slot::new();
    let (to_made, holder) = (made.clone(), duel.holder(2));
    owner.act(move |cx| {
        let buf = cx.alloc(64).unwrap();
        to_made.set(cx.grant(&buf, 0..64, Rights::ALL, holder, Lease::None));
    });
    duel.steps(20);
    made.take().unwrap()
}

fn refused_by(result: Result<GrantId, GrantError>) -> Option<(Limit, u64, u64)> {
    match result {
        Err(GrantError::Limit(error)) => Some((error.limit, error.value, error.in_use)),
        _ => None,
    }
}

#[test]
fn r9_grants_to_one_peer_are_limited_whoever_makes_them() {
    let mut duel = limited(|limits| limits.peer.grants = 2);
    let owners = ["one", "two", "three"].map(|name| duel.side.puppet(0, name));
    duel.steps(5);
    let first = try_grant(&mut duel, &owners[0]).unwrap();
    try_grant(&mut duel, &owners[1]).unwrap();
    let refused = refused_by(try_grant(&mut duel, &owners[2]));
    assert_eq!(refused, Some((Limit::PeerGrants, 2, 2)));
    // Parked still counts: the peer has not acknowledged.
    owners[0].act(move |cx| cx.revoke(first).unwrap());
    duel.until(|duel| duel.side.parked() == 1);
    assert!(refused_by(try_grant(&mut duel, &owners[2])).is_some());
    for (lane, epoch, ..) in duel.raw.revokes() {
        duel.raw.acknowledge(lane, epoch);
    }
    duel.until(|duel| duel.side.parked() == 0);
    try_grant(&mut duel, &owners[2]).unwrap();
}

#[test]
fn r9_bytes_open_to_one_peer_are_limited() {
    let mut duel = limited(|limits| limits.peer.exposed_bytes = 100);
    let owner = duel.side.puppet(0, "owner");
    duel.steps(5);
    let first = try_grant(&mut duel, &owner).unwrap();
    let refused = refused_by(try_grant(&mut duel, &owner));
    assert_eq!(refused, Some((Limit::PeerExposedBytes, 100, 64)));
    owner.act(move |cx| cx.revoke(first).unwrap());
    // Proven ended is enough, acknowledged or not.
    duel.until(|duel| duel.side.parked() == 1);
    try_grant(&mut duel, &owner).unwrap();
}

#[test]
fn r9_imports_from_one_peer_are_limited() {
    let mut duel = limited(|limits| limits.peer.imports = 2);
    let taker = duel.side.puppet(0, "taker");
    duel.steps(5);
    let id = duel.side.id_of("taker").unwrap();
    for slot in 0..3 {
        let header = Header {
            src: duel.holder(3).id.into(),
            dst: id.into(),
            ..duel.raw.header(0)
        };
        let grant = wire::Grant {
            grant: GrantId {
                slot,
                generation: 1,
            },
            rkey: Rkey::new(7, 7),
            rights: Rights::ALL,
            address: 0x10_0000,
            len: 64,
            lease_ns: wire::NO_LEASE,
        };
        duel.raw.send(
            0,
            &header,
            &Frame::Grants {
                grants: wire::List::from(&[grant][..]),
            },
        );
        duel.steps(10);
    }
    let granted = |event: &Event| matches!(event, Event::Granted(_));
    assert_eq!(
        taker.events().iter().filter(|event| granted(event)).count(),
        2
    );
    assert_eq!(duel.side.stat("grants_refused"), 1);
    // The quota comes back with the imports.
    duel.side.engine.kill(id);
    duel.until(|duel| duel.side.reclaimed(id));
    assert_eq!(duel.side.used(|usage| usage.imports.into()), 0);
}

#[test]
fn r8_a_peer_past_its_allowance_of_parked_keys_loses_its_session() {
    let mut duel = limited(|limits| limits.peer.parked_keys = 1);
    let owner = duel.side.puppet(0, "owner");
    duel.steps(5);
    for round in 0..2 {
        let id = try_grant(&mut duel, &owner).unwrap();
        assert_eq!(duel.side.stat("peers_past_parked"), 0, "round {round}");
        owner.act(move |cx| cx.revoke(id).unwrap());
        duel.until(|duel| duel.side.stat("grants_zapped") == round + 1);
    }
    assert_eq!(duel.side.stat("peers_past_parked"), 1);
    duel.until(|duel| duel.side.stat("peers_down") == 1);
    assert_eq!(duel.side.parked(), 0);
    assert_eq!(duel.side.used(|usage| usage.grants.into()), 0);
}

#[test]
fn r9_buffers_of_all_contexts_together_are_limited() {
    let mut limits = pair::small_limits();
    limits.buffers = 3;
    let fabric = keyfence::pmd::soft::Fabric::new();
    let device = || fabric.device(keyfence::pmd::soft::SoftConfig::default());
    let mut pair = Pair::on(
        pair::builder("left", "right", 1).limits(limits),
        device().unwrap(),
        pair::builder("right", "left", 1),
        device().unwrap(),
    );
    let (one, two) = (pair.left.puppet(0, "one"), pair.left.puppet(0, "two"));
    pair.steps(5);
    let kept = Slot::new();
    let to_kept = kept.clone();
    one.act(move |cx| to_kept.set([0; 3].map(|_| cx.alloc(64).unwrap())));
    let tried = Slot::new();
    let try_one = |pair: &mut Pair<_>| {
        let to_tried = tried.clone();
        two.act(move |cx| to_tried.set(cx.alloc(64).map(drop)));
        pair.steps(5);
        tried.take().unwrap()
    };
    pair.steps(5);
    let Err(AllocError::Limit(error)) = try_one(&mut pair) else {
        panic!("three buffers are out");
    };
    assert_eq!(
        (error.limit, error.value, error.in_use),
        (Limit::Buffers, 3, 3)
    );
    // A dropped buffer makes room at once, though its context does not say so.
    drop(kept.take());
    try_one(&mut pair).unwrap();
}

/// Takes its events until it is told to stop.
struct Listener {
    listens: Arc<AtomicBool>,
    heard: Puppet,
}

impl Service for Listener {
    fn poll(&mut self, _cx: &mut Context<'_>) -> Work {
        Work::Idle
    }

    fn on_event(&mut self, _cx: &mut Context<'_>, event: Event) {
        let heard = self.heard.clone();
        heard.hear(event);
    }

    fn takes_events(&mut self) -> bool {
        self.listens.load(Ordering::Relaxed)
    }
}

/// A message to a context from a raw one that it has not met.
fn meet(duel: &mut Duel, context: ContextId, src: WireContext) {
    let header = Header {
        src,
        dst: context.into(),
        ..duel.raw.header(0)
    };
    duel.raw.send(0, &header, &Frame::Message(&[1]));
    duel.steps(6);
}

fn leave(duel: &mut Duel, context: WireContext, keys: u32) {
    let gone = wire::ContextGone {
        context,
        quarantined_keys: keys,
        quarantined_bytes: u64::from(keys) * 4096,
    };
    let header = duel.raw.header(0);
    duel.raw.send(0, &header, &Frame::ContextGone(gone));
    duel.steps(6);
}

fn of(slot: u16, generation: u32) -> WireContext {
    WireContext { slot, generation }
}

#[test]
fn r12_notices_of_ends_are_taken_once_and_say_how_much() {
    let mut duel = Duel::new(Part::quiet());
    let puppet = duel.side.puppet(0, "met");
    duel.steps(5);
    let id = duel.side.id_of("met").unwrap();
    meet(&mut duel, id, of(3, 1));
    leave(&mut duel, of(3, 1), 2);
    let counts = |puppet: &Puppet| -> Vec<(u32, u32, u64)> {
        let events = puppet.events();
        let told = events.iter().filter_map(|event| match event {
            Event::ContextGone {
                context,
                quarantined_keys,
                quarantined_bytes,
            } => Some((context.id.generation, *quarantined_keys, *quarantined_bytes)),
            _ => None,
        });
        told.collect()
    };
    assert_eq!(counts(&puppet), [(1, 2, 8192)]);
    // Again, of an older one, of a slot that is none: nobody hears of it, and no walk is made.
    let refused = duel.side.stat("frames_refused");
    for stale in [of(3, 1), of(3, 0), of(128, 1)] {
        leave(&mut duel, stale, 1);
    }
    assert_eq!(duel.side.stat("frames_refused"), refused + 3);
    // A slot's next context is met before the notice of the last one's end: both are told, once each.
    meet(&mut duel, id, of(4, 1));
    meet(&mut duel, id, of(4, 2));
    assert_eq!(counts(&puppet), [(1, 0, 0)]);
    leave(&mut duel, of(4, 1), 1);
    leave(&mut duel, of(4, 2), 1);
    assert_eq!(counts(&puppet), [(2, 1, 4096)]);
}

#[test]
fn r9_notices_of_ends_fill_no_context_that_is_slow() {
    let mut duel = Duel::new(Part::quiet());
    let (listens, heard) = (Arc::new(AtomicBool::new(true)), Puppet::default());
    let listener = Listener {
        listens: Arc::clone(&listens),
        heard: heard.clone(),
    };
    duel.side
        .engine
        .open(LcoreId(0), "slow", 1, Box::new(listener))
        .unwrap();
    let other = duel.side.puppet(0, "other");
    duel.steps(5);
    let slow = duel.side.id_of("slow").unwrap();
    let talker = duel.side.id_of("other").unwrap();
    // More acquaintances than are remembered: it may have to do with any.
    for slot in 0..70 {
        meet(&mut duel, slow, of(slot, 1));
        drop(heard.events());
    }
    listens.store(false, Ordering::Relaxed);
    // Contexts that only the other one has met come and go.
    for generation in 1..1500 {
        meet(&mut duel, talker, of(100, generation));
        leave(&mut duel, of(100, generation), 0);
        drop(other.events());
    }
    assert_eq!(duel.side.stat("contexts_deaf"), 0);
    assert!(duel.side.stat("notices_spared") > 0);
    // What it has to do with for sure, it hears of.
    leave(&mut duel, of(0, 1), 0);
    listens.store(true, Ordering::Relaxed);
    duel.steps(10);
    let first =
        |event: &Event| matches!(event, Event::ContextGone { context, .. } if context.id.slot == 0);
    assert_eq!(
        heard.events().iter().filter(|event| first(event)).count(),
        1
    );
}

#[test]
fn r9_what_can_never_fit_is_refused_for_good() {
    let mut limits = pair::small_limits();
    limits.context.bytes_in_flight = 4096;
    let fabric = keyfence::pmd::soft::Fabric::new();
    let device = || fabric.device(keyfence::pmd::soft::SoftConfig::default());
    let mut pair = Pair::on(
        pair::builder("left", "right", 1).limits(limits),
        device().unwrap(),
        pair::builder("right", "left", 1),
        device().unwrap(),
    );
    let scene = Scene::new(&mut pair);
    let granted = scene.grant(&mut pair, 8192);
    let (tried, to_tried) = slots();
    let (import, owner_id) = (granted.import, scene.owner_id);
    scene.holder.act(move |cx| {
        let buf = cx.alloc(8192).unwrap();
        let too_large = cx.write(&import, 0, &[Local::prefix(&buf, 4097)], 1);
        cx.write(&import, 0, &[Local::prefix(&buf, 4096)], 2)
            .unwrap();
        let used =
            [Limit::ContextBytesInFlight, Limit::ContextBuffers].map(|limit| cx.in_use(limit));
        let names = ["right", "left"].map(|name| cx.peer_by_name(name));
        let short = cx.grant(&buf, 0..64, Rights::ALL, owner_id, Lease::Ns(199_999_999));
        let long = cx.grant(&buf, 0..64, Rights::ALL, owner_id, Lease::Ns(200_000_000));
        to_tried.set((
            too_large,
            used,
            names,
            short,
            long.is_ok(),
            cx.limits().contexts,
        ));
    });
    pair.steps(3);
    let (too_large, used, names, short, long, contexts) = tried.take().unwrap();
    assert!(matches!(
        too_large,
        Err(SubmitError::TooLarge {
            len: 4097,
            most: 4096
        })
    ));
    assert_eq!(used, [Some(4096), Some(1)]);
    assert_eq!(names, [Some(PeerId(0)), None]);
    let least_ns = 200_000_000;
    assert_eq!(
        short,
        Err(GrantError::LeaseTooShort {
            lease_ns: least_ns - 1,
            least_ns
        })
    );
    assert!(long);
    assert_eq!(contexts, 16);
}

fn slots<T>() -> (Slot<T>, Slot<T>) {
    let slot = Slot::new();
    (slot.clone(), slot)
}
