//! Grants from end to end: looked up, made, used, revoked, reclaimed.

mod pair;

use keyfence::ids::{GrantId, PeerId, RemoteContext};
use keyfence::pmd::soft::SoftDevice;
use keyfence::{Buf, Event, Import, Lease, Local, OpKind, Rights, Status, SubmitError};
use pair::{Pair, Puppet, Slot};

/// An owner on the right with one granted buffer, a holder on the left with its import.
struct Scene {
    pair: Pair<SoftDevice>,
    owner: Puppet,
    holder: Puppet,
    grant: GrantId,
    import: Import,
    buf: Slot<Buf>,
    holder_id: RemoteContext,
}

fn lookup(pair: &mut Pair<SoftDevice>, puppet: &Puppet, name: &'static str) -> RemoteContext {
    puppet.act(move |cx| cx.lookup(PeerId(0), name, 1).unwrap());
    let mut found = None;
    pair.until(|_| {
        while let Some(event) = puppet.next_event() {
            if let Event::Resolved { token: 1, context } = event {
                found = Some(context.expect("the context exists"));
            }
        }
        found.is_some()
    });
    found.unwrap()
}

fn scene(bytes: usize) -> Scene {
    let mut pair = Pair::new();
    let owner = pair.right.puppet(0, "owner");
    let holder = pair.left.puppet(0, "holder");
    pair.steps(10);
    let holder_id = lookup(&mut pair, &owner, "holder");
    let (buf, granted) = (Slot::new(), Slot::new());
    let (to_buf, to_grant) = (buf.clone(), granted.clone());
    owner.act(move |cx| {
        let memory = cx.alloc(bytes).unwrap();
        memory.dma().fill(0x11);
        to_grant.set(
            cx.grant(&memory, 0..bytes, Rights::ALL, holder_id, Lease::None)
                .unwrap(),
        );
        to_buf.set(memory);
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
        owner,
        holder,
        grant: granted.take().unwrap(),
        import: import.unwrap(),
        buf,
        holder_id,
    }
}

fn completion(pair: &mut Pair<SoftDevice>, puppet: &Puppet) -> keyfence::OpDone {
    let mut done = None;
    pair.until(|_| {
        while let Some(event) = puppet.next_event() {
            if let Event::Completed(op) = event {
                done = Some(op);
                break;
            }
        }
        done.is_some()
    });
    done.unwrap()
}

#[test]
fn a_write_lands_and_a_read_brings_it_back() {
    let mut scene = scene(4096);
    let import = scene.import;
    scene.holder.act(move |cx| {
        let from = cx.alloc(64).unwrap();
        from.write_at(0, b"fence").unwrap();
        cx.write(&import, 100, &[Local::prefix(&from, 5)], 7)
            .unwrap();
    });
    let done = completion(&mut scene.pair, &scene.holder);
    assert_eq!(
        (done.token, done.kind, done.status, done.bytes),
        (7, OpKind::Write, Status::Ok, 5)
    );
    let buf = scene.buf.take().unwrap();
    let mut landed = [0; 7];
    buf.read_at(99, &mut landed).unwrap();
    assert_eq!(&landed, b"\x11fence\x11");

    let read = Slot::new();
    let into = read.clone();
    scene.holder.act(move |cx| {
        let sink = cx.alloc(64).unwrap();
        cx.read(&import, 100, &[Local::prefix(&sink, 5)], 8)
            .unwrap();
        into.set(sink);
    });
    assert_eq!(
        completion(&mut scene.pair, &scene.holder).status,
        Status::Ok
    );
    let mut bytes = [0; 5];
    read.take().unwrap().read_at(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"fence");
}

#[test]
fn atomics_give_the_former_value() {
    let mut scene = scene(64);
    let import = scene.import;
    scene
        .holder
        .act(move |cx| cx.fetch_add(&import, 8, 5, 1).unwrap());
    let before = 0x1111_1111_1111_1111;
    assert_eq!(completion(&mut scene.pair, &scene.holder).value, before);
    scene
        .holder
        .act(move |cx| cx.compare_swap(&import, 8, before + 5, 42, 2).unwrap());
    let done = completion(&mut scene.pair, &scene.holder);
    assert_eq!((done.status, done.value), (Status::Ok, before + 5));
    assert_eq!(scene.buf.take().unwrap().dma().load_u64(8).unwrap(), 42);
}

#[test]
fn b43_misaligned_atomics_are_refused_before_they_are_posted() {
    let mut scene = scene(64);
    let import = scene.import;
    let refused = Slot::new();
    let errors = refused.clone();
    scene.holder.act(move |cx| {
        errors.set([1, 4, 64 - 7].map(|offset| cx.fetch_add(&import, offset, 1, 0).unwrap_err()));
    });
    scene.pair.steps(10);
    let [one, four, last] = refused.take().unwrap();
    assert!(matches!(one, SubmitError::Misaligned { .. }), "{one}");
    assert!(matches!(four, SubmitError::Misaligned { .. }), "{four}");
    assert!(matches!(last, SubmitError::OutsideImport { .. }), "{last}");
    assert_eq!(scene.pair.left.stat("ops_submitted"), 0);
}

#[test]
fn r1_after_zapped_the_key_is_dead_and_the_holder_knows() {
    let mut scene = scene(4096);
    let (grant, import) = (scene.grant, scene.import);
    scene.owner.act(move |cx| cx.revoke(grant).unwrap());
    let mut zapped = false;
    let owner = scene.owner.clone();
    scene.pair.until(|_| {
        zapped |= matches!(owner.next_event(), Some(Event::Zapped(id)) if id == grant);
        zapped
    });
    let revoked = scene.holder.events();
    assert!(
        matches!(revoked[..], [Event::Revoked(id)] if id == import.id),
        "{revoked:?}"
    );
    let refused = Slot::new();
    let error = refused.clone();
    scene.holder.act(move |cx| {
        let from = cx.alloc(8).unwrap();
        error.set(
            cx.write(&import, 0, &[Local::prefix(&from, 8)], 0)
                .unwrap_err(),
        );
    });
    scene.pair.steps(10);
    assert_eq!(refused.take().unwrap(), SubmitError::NoSuchImport);
    assert_eq!(scene.pair.right.stat("grants_zapped"), 1);
    assert_eq!(
        scene.pair.left.stat("lanes_broken") + scene.pair.right.stat("lanes_broken"),
        0
    );
}

#[test]
fn r10_a_killed_owner_is_reclaimed_and_its_memory_comes_back() {
    let mut scene = scene(4096);
    let id = scene.pair.right.id_of("owner").unwrap();
    assert_eq!(scene.pair.right.engine.buffers_in_use(), 1);
    drop(scene.buf.take());
    scene.pair.right.engine.kill(id);
    scene.pair.until(|pair| pair.right.reclaimed(id));
    scene.pair.steps(50);
    assert_eq!(scene.pair.right.engine.buffers_in_use(), 0);
    let events = scene.holder.events();
    assert!(matches!(events[0], Event::Revoked(_)), "{events:?}");
    assert_eq!(scene.pair.right.stat("grants_zapped"), 1);
    let _ = scene.holder_id;
}

#[test]
fn a_killed_holder_has_its_grants_retired_by_their_owner() {
    let mut scene = scene(4096);
    let id = scene.pair.left.id_of("holder").unwrap();
    scene.pair.left.engine.kill(id);
    scene.pair.until(|pair| pair.left.reclaimed(id));
    let (owner, grant) = (scene.owner.clone(), scene.grant);
    let mut events = Vec::new();
    scene.pair.until(|_| {
        events.extend(owner.events());
        events
            .iter()
            .any(|event| matches!(event, Event::Zapped(id) if *id == grant))
    });
    assert!(
        events.iter().any(|event| matches!(
            event,
            Event::ContextGone {
                quarantined_keys: 0,
                ..
            }
        )),
        "{events:?}"
    );
}
