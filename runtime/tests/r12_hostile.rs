//! R12: a peer that joins by the rules and then breaks each of them. Everything is counted and dropped; the engine lives.

mod pair;

use keyfence::ids::{ContextId, Epoch, GrantId, LcoreId, PeerId, RemoteContext};
use keyfence::pmd::{Rights, Rkey};
use keyfence::wire::{self, Frame, Header, List, WireContext};
use keyfence::{Event, Import, Lease, Local, Status};
use pair::judged::Part;
use pair::raw::{Duel, Raw};
use pair::{Puppet, REGIONS, Slot};

fn open(duel: &mut Duel, name: &str) -> (Puppet, ContextId) {
    let puppet = duel.side.puppet(0, name);
    duel.until(|duel| duel.side.id_of(name).is_some());
    (puppet, duel.side.id_of(name).unwrap())
}

/// The lane that the engine uses for a context of ours, or for its own by a slot.
fn lane_of(raw: &Raw, slot: u16) -> usize {
    let at = raw.lanes.iter().position(|lane| lane.number == slot % 2);
    at.unwrap()
}

fn to(raw: &Raw, lane: usize, context: ContextId, src: WireContext) -> Header {
    Header {
        src,
        dst: context.into(),
        ..raw.header(lane)
    }
}

const NOBODY: WireContext = WireContext {
    slot: 3,
    generation: 1,
};

fn granting(grants: &[wire::Grant]) -> Frame<'_> {
    let grants = List::from(grants);
    Frame::Grants { grants }
}

fn wire_grant(slot: u32, len: u64) -> wire::Grant {
    wire::Grant {
        grant: GrantId {
            slot,
            generation: 1,
        },
        rkey: Rkey::new(7, 7),
        rights: Rights::ALL,
        address: 0x10_0000,
        len,
        lease_ns: wire::NO_LEASE,
    }
}

fn gone(slot: u16) -> wire::ContextGone {
    wire::ContextGone {
        context: WireContext {
            slot,
            generation: 5,
        },
        quarantined_keys: 0,
        quarantined_bytes: 0,
    }
}

fn import(duel: &mut Duel, puppet: &Puppet) -> Import {
    let mut import = None;
    duel.until(|_| {
        for event in puppet.events() {
            if let Event::Granted(granted) = event {
                import = Some(granted);
            }
        }
        import.is_some()
    });
    import.unwrap()
}

#[test]
fn r12_a_hello_that_promises_no_receives_ends_its_lane_and_nothing_else() {
    for credit in [0, 66, u32::MAX] {
        let mut duel = Duel::before_hello(Part::quiet());
        let header = Header {
            lane_credit: credit,
            ..Header::default()
        };
        let hello = duel.raw.hello(0);
        duel.raw.greet(0, &header, hello);
        duel.until(|duel| duel.side.engine.admissions().hellos_refused == 1);
        duel.until(|duel| duel.side.used(|usage| usage.lanes.into()) == 0);
        assert_eq!(duel.side.stat("peers_down"), 0, "it was never up");
    }
}

#[test]
fn r12_a_grant_of_a_context_that_can_not_be_is_refused() {
    let mut duel = Duel::new(Part::quiet());
    let (puppet, id) = open(&mut duel, "holder");
    let lane = lane_of(&duel.raw, id.slot);
    let far = WireContext {
        slot: u16::MAX,
        generation: 1,
    };
    let header = to(&duel.raw, lane, id, far);
    duel.raw
        .send(lane, &header, &granting(&[wire_grant(1, 64)]));
    duel.until(|duel| duel.side.stat("frames_refused") == 1);
    assert!(puppet.events().is_empty());
    // One that may be is taken, and a write with immediate finds its owner's credits.
    let header = to(&duel.raw, lane, id, NOBODY);
    duel.raw
        .send(lane, &header, &granting(&[wire_grant(2, 64)]));
    let import = import(&mut duel, &puppet);
    puppet.act(move |cx| {
        let buf = cx.alloc(8).unwrap();
        cx.write_with_immediate(&import, 0, &[Local::prefix(&buf, 0)], 1, 9)
            .unwrap();
    });
    duel.until(|_| {
        puppet
            .events()
            .iter()
            .any(|event| matches!(event, Event::Completed(done) if done.status == Status::Ok))
    });
    // Its owner is said to be gone, and the grant stands: the notice goes to nobody, least of all to a successor.
    let gone = Frame::ContextGone(gone(NOBODY.slot));
    duel.raw.send(lane, &header, &gone);
    duel.steps(20);
    puppet.act(move |cx| {
        let buf = cx.alloc(8).unwrap();
        let local = [Local::prefix(&buf, 0)];
        let refused = cx.write_with_immediate(&import, 0, &local, 1, 9);
        assert_eq!(refused, Err(keyfence::SubmitError::ContextGone));
    });
    duel.steps(20);
    assert_eq!(duel.side.stat("services_panicked"), 0);
}

#[test]
fn r12_messages_beyond_credit_are_dropped_and_those_within_are_not() {
    let mut duel = Duel::new(Part::quiet());
    let (puppet, id) = open(&mut duel, "flooded");
    let lane = lane_of(&duel.raw, id.slot);
    // The puppet's events are left in the puppet, so their buffers are not given back.
    let header = to(&duel.raw, lane, id, NOBODY);
    for round in 0..40_u8 {
        duel.raw.send(lane, &header, &Frame::Message(&[round]));
        duel.steps(5);
    }
    assert_eq!(duel.side.stat("messages_beyond_credit"), 40 - 8);
    let mut heard = Vec::new();
    for event in puppet.events() {
        if let Event::Message(message) = event {
            let mut byte = [0];
            assert!(message.read_at(0, &mut byte));
            heard.push(byte[0]);
        }
    }
    assert_eq!(heard, (0..8).collect::<Vec<_>>());
    duel.steps(10);
    duel.raw.send(lane, &header, &Frame::Message(&[99]));
    duel.until(|_| {
        puppet
            .events()
            .iter()
            .any(|event| matches!(event, Event::Message(_)))
    });
}

#[test]
fn r12_frames_about_the_objects_of_others_change_nothing() {
    let mut duel = Duel::new(Part::quiet());
    let (owner, id) = open(&mut duel, "owner");
    let session = duel.session();
    let holder = RemoteContext {
        peer: PeerId(0),
        session,
        id: ContextId {
            lcore: LcoreId(0),
            slot: 3,
            generation: 1,
        },
    };
    let made = Slot::new();
    let to_made = made.clone();
    owner.act(move |cx| {
        let buf = cx.alloc(64).unwrap();
        let id = cx.grant(&buf, 0..64, Rights::ALL, holder, Lease::None);
        to_made.set((id.unwrap(), buf));
    });
    duel.steps(20);
    let (grant, _buf) = made.take().unwrap();
    let theirs = lane_of(&duel.raw, holder.id.slot);
    let other = 1 - theirs;
    let header = duel.raw.header(theirs);
    // Of a grant on another lane; of one that is not; of an epoch that never was.
    duel.raw.send(other, &header, &Frame::Refused { grant });
    let stale = GrantId {
        generation: grant.generation + 1,
        ..grant
    };
    duel.raw
        .send(theirs, &header, &Frame::Refused { grant: stale });
    let epoch = Epoch(u64::MAX);
    duel.raw.send(theirs, &header, &Frame::Revoked { epoch });
    // Landed from a lane that the grant is not on; a look-up's answer that nobody asked for.
    let landed = Frame::Landed {
        grant,
        immediate: 1,
        bytes: 1,
    };
    let to_owner = to(&duel.raw, other, id, holder.id.into());
    duel.raw.send(other, &to_owner, &landed);
    let reply = Frame::LookupReply {
        request: 77,
        found: None,
    };
    duel.raw.send(theirs, &header, &reply);
    let gone = gone(9999);
    duel.raw.send(theirs, &header, &Frame::ContextGone(gone));
    duel.steps(200);
    assert!(duel.side.stat("frames_refused") >= 3);
    assert_eq!(duel.side.stat("grants_retired"), 0);
    assert_eq!(duel.side.stat("lanes_broken"), 0);
    assert!(owner.events().is_empty());
    // The rightful lane's word is taken.
    duel.raw.drop_import(theirs, grant);
    duel.until(|_| {
        owner
            .events()
            .iter()
            .any(|event| matches!(event, Event::Zapped(id) if *id == grant))
    });
}

#[test]
fn r12_a_key_opens_nothing_on_another_lane_or_beyond_its_range() {
    // A region's key works on every lane of its session: it is kept from other peers (`in_region_mode/domains.rs`).
    for beyond in [false, true]
        .into_iter()
        .filter(|beyond| *beyond || !REGIONS)
    {
        let mut duel = Duel::new(Part::quiet());
        let (owner, _) = open(&mut duel, "owner");
        let session = duel.session();
        let holder = RemoteContext {
            peer: PeerId(0),
            session,
            id: ContextId {
                lcore: LcoreId(0),
                slot: 2,
                generation: 1,
            },
        };
        let made = Slot::new();
        let to_made = made.clone();
        owner.act(move |cx| {
            let buf = cx.alloc(64).unwrap();
            buf.dma().fill(0x33);
            cx.grant(&buf, 0..32, Rights::ALL, holder, Lease::None)
                .unwrap();
            to_made.set(buf);
        });
        duel.steps(20);
        let (lane, _, grant) = duel.raw.grants().pop().unwrap();
        let (lane, len) = if beyond { (lane, 33) } else { (1 - lane, 32) };
        duel.raw.write(lane, &grant, len);
        // The access breaks the lane it came on: the session ends, and with it what it had.
        duel.until(|duel| duel.side.stat("peers_down") == 1);
        let buf = made.take().unwrap();
        assert_eq!(buf.dma().first_not(0x33), None);
        assert_eq!(duel.ledger.all_live_keys(), 0);
        assert!(
            owner
                .events()
                .iter()
                .any(|event| matches!(event, Event::Zapped(_)))
        );
    }
}

#[test]
fn r12_a_revoke_of_another_generation_leaves_the_live_import_alone() {
    let mut duel = Duel::new(Part::quiet());
    let (puppet, id) = open(&mut duel, "holder");
    let header = to(&duel.raw, 0, id, NOBODY);
    let grant = wire_grant(5, 64);
    duel.raw.send(0, &header, &granting(&[grant]));
    duel.until(|duel| duel.side.used(|usage| usage.imports.into()) == 1);
    drop(puppet.events());
    for (epoch, generation) in [(8, 0), (9, 2)] {
        let grants = [GrantId {
            slot: 5,
            generation,
        }];
        let revoke = Frame::Revoke {
            epoch: Epoch(epoch),
            last: true,
            grants: List::from(&grants[..]),
        };
        duel.raw.send(0, &header, &revoke);
        duel.steps(10);
    }
    assert!(puppet.events().is_empty());
    // The peer's own word is still known to be about it: once.
    let grants = [grant.grant];
    let revoke = Frame::Revoke {
        epoch: Epoch(10),
        last: true,
        grants: List::from(&grants[..]),
    };
    duel.raw.send(0, &header, &revoke);
    duel.until(|duel| duel.side.used(|usage| usage.imports.into()) == 0);
    let revoked = |event: &Event| matches!(event, Event::Revoked(_));
    assert_eq!(
        puppet
            .events()
            .iter()
            .filter(|event| revoked(event))
            .count(),
        1
    );
}

/// SplitMix64.
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, most: u64) -> u64 {
        self.roll() % most
    }
}

/// Some frame, with names that are near to living ones.
fn some_frame(dice: &mut Dice, out: &mut [u8]) -> usize {
    let context = |dice: &mut Dice| WireContext {
        slot: [0, 1, 2, 3, 15, 16, u16::MAX][dice.below(7) as usize],
        generation: dice.below(4) as u32,
    };
    let id = |dice: &mut Dice| GrantId {
        slot: [0, 1, 63, 64, 255, 256, u32::MAX][dice.below(7) as usize],
        generation: dice.below(4) as u32,
    };
    let header = Header {
        src: context(dice),
        dst: context(dice),
        lane_credit: [64, 65, 200, 0, u32::MAX][dice.below(5) as usize],
        sequence: dice.roll() as u32,
    };
    let ids = [id(dice), id(dice), id(dice)];
    let epoch = Epoch(dice.below(1 << 22));
    let limits = [wire::CreditLimit {
        context: context(dice),
        limit: dice.below(40) as u32,
    }];
    let grants = [0, 1].map(|_| wire::Grant {
        grant: id(dice),
        ..wire_grant(0, 1 + dice.below(1 << 40))
    });
    let gone = wire::ContextGone {
        context: context(dice),
        quarantined_keys: dice.roll() as u32,
        quarantined_bytes: dice.roll(),
    };
    let found = wire::Found {
        context: ContextId::from_bits(dice.roll()),
        credit: dice.roll() as u32,
    };
    let frame = match dice.below(12) {
        0 => Frame::Message(&[1, 2, 3]),
        1 => granting(&grants[dice.below(2) as usize..]),
        2 | 3 => Frame::Revoke {
            epoch,
            last: dice.below(2) == 0,
            grants: List::from(&ids[..dice.below(4) as usize]),
        },
        4 => Frame::Revoked { epoch },
        5 => Frame::Refused { grant: ids[0] },
        6 => Frame::ImportsDropped {
            grants: List::from(&ids[..]),
        },
        7 => Frame::Credit {
            limits: List::from(&limits[..]),
        },
        8 => Frame::ContextGone(gone),
        9 => Frame::Landed {
            grant: ids[0],
            immediate: 3,
            bytes: dice.roll(),
        },
        10 => Frame::LookupReply {
            request: (dice.below(3) << 16 | dice.below(3)) as u32,
            found: (dice.below(2) == 0).then_some(found),
        },
        _ => Frame::Lookup {
            request: dice.roll() as u32,
            name: wire::Name::new("owner").unwrap(),
        },
    };
    wire::encode(&header, &frame, out).unwrap()
}

/// Contexts that go on whatever the peer does: they grant, look up, write and close again.
fn bustle(duel: &mut Duel, puppets: &[Puppet], dice: &mut Dice) {
    let puppet = &puppets[dice.below(puppets.len() as u64) as usize];
    let session = duel.session();
    let slot = dice.below(16) as u16;
    let remote = RemoteContext {
        peer: PeerId(0),
        session,
        id: ContextId {
            lcore: LcoreId(0),
            slot,
            generation: 1 + dice.below(3) as u32,
        },
    };
    let imports: Vec<Import> = puppet
        .events()
        .into_iter()
        .filter_map(|event| match event {
            Event::Granted(import) => Some(import),
            _ => None,
        })
        .collect();
    let what = dice.below(4);
    puppet.act(move |cx| {
        // Each may be refused: by a limit, or since the peer has lied about the target.
        let _ = match what {
            0 => cx
                .alloc(64)
                .map(|buf| {
                    cx.grant(&buf, 0..64, Rights::ALL, remote, Lease::None)
                        .is_ok()
                })
                .unwrap_or(false),
            1 => cx.send(remote, b"hello", 1).is_ok(),
            2 => cx.lookup(PeerId(0), "anybody", 1).is_ok(),
            _ => cx.flush(1).is_ok(),
        };
        for import in imports {
            if let Ok(buf) = cx.alloc(8) {
                let _ = cx.write_with_immediate(&import, 0, &[Local::prefix(&buf, 0)], 5, 2);
            }
        }
    });
}

#[test]
fn r12_random_and_mutated_frames_end_neither_the_engine_nor_a_bystander() {
    for seed in 0..60 {
        let mut dice = Dice(seed);
        let mut duel = Duel::new(Part::quiet());
        let names = ["owner", "second", "third"];
        let puppets: Vec<_> = names.map(|name| open(&mut duel, name).0).into();
        for _ in 0..300 {
            let mut bytes = [0; 512];
            let mut len = some_frame(&mut dice, &mut bytes);
            match dice.below(6) {
                0 => bytes[dice.below(len as u64) as usize] ^= 1 << dice.below(8),
                1 => len = dice.below(300) as usize,
                2 => bytes[..len].fill_with(|| dice.roll() as u8),
                _ => {}
            }
            let lane = dice.below(duel.raw.lanes.len() as u64) as usize;
            duel.raw.send_bytes(lane, &bytes[..len.max(1)]);
            bustle(&mut duel, &puppets, &mut dice);
            duel.steps(1 + dice.below(4) as usize);
        }
        assert_eq!(duel.side.stat("services_panicked"), 0);
        assert!(duel.side.stat("frames_malformed") + duel.side.stat("frames_refused") > 0);
        // Whatever it did, its contexts end and nothing stays.
        duel.side.engine.close_all();
        duel.until(|duel| {
            // Messages among them are handles on the contexts' memory.
            for puppet in &puppets {
                drop(puppet.events());
            }
            duel.side.engine.is_closed()
        });
        for name in names {
            let id = duel.side.id_of(name).unwrap();
            assert!(duel.side.reclaimed(id), "seed {seed}: {name}");
        }
        assert_eq!(duel.side.used(|usage| usage.ops), 0, "seed {seed}");
        assert_eq!(duel.side.engine.buffers_in_use(), 0, "seed {seed}");
        assert_eq!(duel.ledger.violations(pair::raw::check::Party::Caller), 0);
    }
}
