//! The protection domain of a session: what it keeps apart (R12), which values it has (R8), and when it ends.

#[path = "../pair/mod.rs"]
mod pair;

use keyfence::ids::{ContextId, GrantId, LcoreId, PeerId, RemoteContext, SessionId};
use keyfence::pmd::soft::{Fabric, SoftConfig};
use keyfence::pmd::wrap::fault::Plan;
use keyfence::pmd::{ControlError, Remote, Rights};
use keyfence::{DomainUsage, Event, JoinRefusal, Lease, Local, Status};
use keyfence_mempool::sync::{Arc, Ordering};
use pair::judged::{Judged, Part, device};
use pair::raw::{Duel, check::Ledger};
use pair::scene::{completions, ends};
use pair::switched::{Switches, off, on};
use pair::{Puppet, Side, Slot};

/// In the session that stood last, where no join has failed.
fn holder(duel: &Duel) -> RemoteContext {
    RemoteContext {
        peer: PeerId(0),
        session: SessionId(duel.ups() as u64),
        id: ContextId {
            lcore: LcoreId(0),
            slot: 2,
            generation: 1,
        },
    }
}

/// A grant that the raw peer has heard of: the lane, the frame.
fn grant(duel: &mut Duel, owner: &Puppet) -> (usize, keyfence::wire::Grant) {
    let to = holder(duel);
    owner.act(move |cx| {
        let buf = cx.alloc(64).unwrap();
        cx.grant(&buf, 0..64, Rights::ALL, to, Lease::None).unwrap();
    });
    let mut came = None;
    duel.until(|duel| {
        came = duel.raw.grants().pop();
        came.is_some()
    });
    let (lane, _, grant) = came.unwrap();
    (lane, grant)
}

fn revoke(duel: &mut Duel, owner: &Puppet, id: GrantId) {
    owner.act(move |cx| {
        cx.revoke(id).unwrap();
        let _ = cx.flush(0);
    });
    duel.steps(2);
}

/// Acknowledges all that is asked.
fn acknowledge(duel: &mut Duel) {
    for (lane, epoch, last, _) in duel.raw.revokes() {
        if last {
            duel.raw.acknowledge(lane, epoch);
        }
    }
}

#[test]
fn r8_the_value_of_a_region_does_not_come_back_before_its_acknowledgement_and_may_after_it() {
    // So few regions that an index comes back at every third grant, and a value after 256 times that.
    let soft = SoftConfig {
        max_regions: 4,
        ..SoftConfig::default()
    };
    let mut duel = Duel::new(Part {
        soft,
        ..Part::quiet()
    });
    let owner = duel.side.puppet(0, "owner");
    duel.steps(5);
    let (_, first) = grant(&mut duel, &owner);
    revoke(&mut duel, &owner, first.grant);
    duel.until(|_| ends(&owner.events(), first.grant) == (1, 0));
    duel.raw.inbox.clear();
    let round = |duel: &mut Duel| {
        let (lane, granted) = grant(duel, &owner);
        revoke(duel, &owner, granted.grant);
        duel.until(|duel| {
            // What names the first one is left unanswered.
            for (on, epoch, last, grants) in duel.raw.revokes() {
                if last && on == lane && grants.contains(&granted.grant) {
                    duel.raw.acknowledge(lane, epoch);
                }
            }
            ends(&owner.events(), granted.grant) == (1, 0)
        });
        granted.rkey
    };
    for _ in 0..1_000 {
        assert_ne!(round(&mut duel), first.rkey, "R8");
    }
    assert_eq!(duel.side.parked(), 1);
    duel.until(|duel| {
        acknowledge(duel);
        duel.side.parked() == 0
    });
    assert!((0..1_000).any(|_| round(&mut duel) == first.rkey));
    duel.until(|duel| {
        acknowledge(duel);
        duel.side.used(|usage| usage.grants.into()) == 0
    });
    duel.steps(10);
    assert_eq!(
        duel.switches.regions.load(Ordering::Relaxed),
        1,
        "R7: the arena"
    );
}

#[test]
fn r8_parked_values_are_worthless_when_nothing_can_come_in_by_them_and_not_before() {
    let mut duel = Duel::new(Part::quiet());
    let owner = duel.side.puppet(0, "owner");
    duel.steps(5);
    let (lane, granted) = grant(&mut duel, &owner);
    revoke(&mut duel, &owner, granted.grant);
    duel.until(|_| ends(&owner.events(), granted.grant) == (1, 0));
    assert_eq!(duel.side.parked(), 1);
    assert_eq!(duel.switches.pds.load(Ordering::Relaxed), 1);
    on(&duel.switches.destroy_hangs);
    // The value is dead: an access by it ends the session.
    duel.raw.write(lane, &granted, 8);
    duel.until(|duel| duel.side.stat("lanes_broken") == 2);
    duel.steps(5_000);
    assert_eq!(duel.side.parked(), 1, "a queue pair is left");
    assert_eq!(domains(&duel), (1, 0));
    off(&duel.switches.destroy_hangs);
    duel.until(|duel| duel.side.parked() == 0);
    assert_eq!(duel.side.used(|usage| usage.grants.into()), 0);
    assert_eq!(duel.ledger.violations(pair::raw::check::Party::Caller), 0);
}

/// Those of sessions, and those that the device has not ended.
fn domains(duel: &Duel) -> (usize, usize) {
    let usage = duel.side.engine.domains();
    (usage.sessions, usage.ending)
}

/// A session in which a value stays parked, from its first word to its end.
fn lose_a_session(duel: &mut Duel, owner: &Puppet) {
    let (_, granted) = grant(duel, owner);
    revoke(duel, owner, granted.grant);
    duel.until(|duel| duel.side.parked() == 1);
    for lane in 0..duel.raw.lanes.len() {
        duel.raw.break_lane(lane);
    }
    duel.until(|duel| duel.side.used(|usage| usage.lanes.into()) == 0);
    assert_eq!(duel.side.parked(), 0);
}

/// The engine asks again, and the raw peer lets it in.
fn join_again(duel: &mut Duel) {
    let (ups, mut greeted) = (duel.ups(), duel.raw.lanes.len());
    duel.until(|duel| {
        while greeted < duel.raw.lanes.len() {
            duel.greet(greeted);
            greeted += 1;
        }
        duel.ups() > ups
    });
    duel.raw.inbox.clear();
}

#[test]
fn r8_a_domain_that_can_not_be_ended_keeps_no_lane_and_is_told() {
    let mut duel = Duel::new(Part::quiet());
    let owner = duel.side.puppet(0, "owner");
    duel.steps(5);
    on(&duel.switches.pd_hangs);
    for stuck in 1..=DomainUsage::MOST_ENDING {
        lose_a_session(&mut duel, &owner);
        assert_eq!(domains(&duel), (0, stuck));
        if stuck < DomainUsage::MOST_ENDING {
            join_again(&mut duel);
        }
    }
    // An adapter must not be made to hold ever more of them.
    let refused = |duel: &Duel| {
        let exhausted = |why: &JoinRefusal| {
            let JoinRefusal::Device(error) = why else {
                return false;
            };
            matches!(error, ControlError::Exhausted { limit: 16, .. })
        };
        duel.refusals().iter().any(exhausted)
    };
    duel.until(|duel| refused(duel));
    assert_eq!(domains(&duel), (0, DomainUsage::MOST_ENDING));
    off(&duel.switches.pd_hangs);
    join_again(&mut duel);
    duel.until(|duel| domains(duel) == (1, 0));
    assert_eq!(duel.switches.pds.load(Ordering::Relaxed), 1, "R7");
    assert_eq!(duel.switches.regions.load(Ordering::Relaxed), 1, "R7");
}

/// An engine with two peers, stepped by hand.
struct Three {
    sides: Vec<Side<Judged>>,
    ledgers: Vec<Arc<Ledger>>,
    switches: Vec<Arc<Switches>>,
    now_ns: u64,
}

const OWNER: usize = 0;

impl Three {
    /// The owner, and two peers of it that do not know each other.
    fn new() -> Self {
        let fabric = Fabric::new();
        let part = Part::quiet();
        let builders = [
            part.builder("owner", "one").peer("two", "local:two", 1),
            part.builder("one", "owner"),
            part.builder("two", "owner"),
        ];
        let mut three = Self {
            sides: Vec::new(),
            ledgers: Vec::new(),
            switches: Vec::new(),
            now_ns: 1,
        };
        for builder in builders {
            let (device, ledger, switches) = device(&fabric, Plan::default());
            three.sides.push(pair::side(builder, device));
            three.ledgers.push(ledger);
            three.switches.push(switches);
        }
        three.until(|three| {
            let ups = |side: &Side<Judged>| {
                let up = |event: &&keyfence::EngineEvent| {
                    matches!(event, keyfence::EngineEvent::PeerUp(_))
                };
                side.events.iter().filter(up).count()
            };
            three.sides.iter().map(ups).eq([2, 1, 1])
        });
        three
    }

    fn until(&mut self, mut done: impl FnMut(&mut Self) -> bool) {
        for _ in 0..100_000 {
            if done(self) {
                return;
            }
            self.now_ns += 1_000;
            for side in &mut self.sides {
                side.step(self.now_ns);
            }
        }
        panic!("not done in 100000 steps");
    }

    fn lookup(&mut self, from: &Puppet, peer: u16, name: &'static str) -> RemoteContext {
        from.act(move |cx| cx.lookup(PeerId(peer), name, 0).unwrap());
        let mut found = None;
        self.until(|_| {
            for event in from.events() {
                if let Event::Resolved { context, .. } = event {
                    found = Some(context.unwrap());
                }
            }
            found.is_some()
        });
        found.unwrap()
    }

    /// What the owner opens to a peer, and the holder's import of it.
    fn grant(&mut self, owner: &Puppet, holder: &Puppet, to: RemoteContext) -> Opened {
        let (made, to_made) = (Slot::new(), Slot::new());
        let out = made.clone();
        owner.act(move |cx| {
            let buf = cx.alloc(4096).unwrap();
            buf.dma().fill(0x33);
            let id = cx.grant(&buf, 0..64, Rights::ALL, to, Lease::None);
            out.set((id.unwrap(), buf));
        });
        self.until(|_| {
            for event in holder.events() {
                if let Event::Granted(import) = event {
                    to_made.set(import);
                }
            }
            to_made.is_set()
        });
        let (id, buf) = made.take().unwrap();
        (id, buf, to_made.take().unwrap())
    }
}

type Opened = (GrantId, keyfence::Buf, keyfence::Import);

/// What peer two's write with a forged key does.
fn forged(pick: fn(&Switches, &Opened) -> Remote) {
    let mut three = Three::new();
    let owner = three.sides[OWNER].puppet(0, "owner");
    let [one, two] = [1, 2].map(|side| three.sides[side].puppet(0, "holder"));
    three.until(|three| {
        three.sides[1..]
            .iter()
            .all(|side| side.id_of("holder").is_some())
    });
    let to = [0, 1].map(|peer| three.lookup(&owner, peer, "holder"));
    let mine = three.grant(&owner, &one, to[0]);
    let (id, buf, import) = three.grant(&owner, &two, to[1]);
    *three.switches[2].forged.lock().unwrap() = Some(pick(&three.switches[OWNER], &mine));
    two.act(move |cx| {
        let buf = cx.alloc(8).unwrap();
        cx.write(&import, 0, &[Local::prefix(&buf, 8)], 1).unwrap();
    });
    // Refused: it costs peer two its session, and nobody else anything.
    let mut events = Vec::new();
    three.until(|_| {
        events.extend(owner.events());
        ends(&events, id) == (1, 0)
    });
    let done = completions(&two.events());
    assert!(
        done.iter().all(|done| done.status != Status::Ok),
        "{done:?}"
    );
    assert_eq!(mine.1.dma().first_not(0x33), None, "R12");
    assert_eq!(buf.dma().first_not(0x33), None);
    assert_eq!(ends(&events, mine.0), (0, 0));
    let import = mine.2;
    one.act(move |cx| {
        let buf = cx.alloc(8).unwrap();
        cx.write(&import, 0, &[Local::prefix(&buf, 8)], 1).unwrap();
    });
    let mut done = Vec::new();
    three.until(|_| {
        done.extend(completions(&one.events()));
        !done.is_empty()
    });
    assert_eq!(done[0].status, Status::Ok);
    assert_eq!(
        three.ledgers[OWNER].violations(pair::raw::check::Party::Caller),
        0
    );
}

#[test]
fn r12_a_region_opens_nothing_to_another_peer() {
    forged(|owner, (_, buf, _)| {
        let registered = owner.registered.lock().unwrap();
        let mut its = registered.iter().filter(|it| it.1.remote == Rights::ALL);
        let (range, access, region) = its.next().unwrap().clone();
        assert_eq!((range.len(), access.bind), (64, false), "exactly the grant");
        Remote {
            address: buf.address(),
            rkey: region.rkey,
        }
    });
}

/// The arena is registered once for each peer: in the forger's own domain, where its key is in scope, and in the other's.
#[test]
fn r12_the_arenas_own_key_opens_nothing() {
    for forger in [
        |owner: &Switches, opened: &Opened| arena_key(owner, opened, 0),
        |owner: &Switches, opened: &Opened| arena_key(owner, opened, 1),
    ] {
        forged(forger);
    }
}

fn arena_key(owner: &Switches, (_, buf, _): &Opened, which: usize) -> Remote {
    let registered = owner.registered.lock().unwrap();
    let arenas = registered.iter().filter(|it| it.0.len() > 64);
    let arenas: Vec<_> = arenas.collect();
    assert_eq!(arenas.len(), 2);
    let (_, access, region) = arenas[which];
    assert_eq!((access.remote, access.bind), (Rights::NONE, false));
    Remote {
        address: buf.address(),
        rkey: region.rkey,
    }
}
