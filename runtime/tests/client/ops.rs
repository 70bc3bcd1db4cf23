//! What a client can ask for.

use crate::*;

#[test]
fn every_operation_of_a_context_is_one_of_a_client() {
    let Scene {
        mut pair,
        mut client,
        owner,
        owner_id,
        import,
        ..
    } = scene();
    let buf = allocate(&mut pair, &mut client, 64);
    buf.write_at(0, b"from another thread").unwrap();
    client
        .write(&import, 64, Locals::one(buf, 0..19), 10)
        .unwrap();
    let (done, locals) = completed(&mut pair, &mut client);
    assert_eq!(
        (done.token, done.kind, done.status, done.bytes),
        (10, OpKind::Write, Status::Ok, 19)
    );
    let buf = locals.into_buf().unwrap();
    buf.dma().fill(0);
    client
        .read(&import, 64, Locals::one(buf, 8..27), 11)
        .unwrap();
    let (done, locals) = completed(&mut pair, &mut client);
    assert_eq!((done.kind, done.status), (OpKind::Read, Status::Ok));
    let buf = locals.into_buf().unwrap();
    let mut bytes = [0; 19];
    buf.read_at(8, &mut bytes).unwrap();
    assert_eq!(&bytes, b"from another thread");

    let locals = Locals::one(buf, 0..8);
    client
        .write_with_immediate(&import, 0, locals, 77, 12)
        .unwrap();
    let (done, locals) = completed(&mut pair, &mut client);
    assert_eq!(
        (done.kind, done.status),
        (OpKind::WriteImmediate, Status::Ok)
    );
    let buf = locals.into_buf().unwrap();
    atomics_and_messages(&mut pair, &mut client, &import, owner_id, buf);
    what_the_owner_heard(&owner);
    pair.steps(10);
    assert_eq!(pair.left.engine.buffers_in_use(), 0);
}

fn atomics_and_messages(
    pair: &mut SoftPair,
    client: &mut Client,
    import: &Import,
    owner_id: RemoteContext,
    buf: Buf,
) {
    client.fetch_add(import, 128, 5, 13).unwrap();
    assert_eq!(completed(pair, client).0.value, 0);
    client.compare_swap(import, 128, 5, 9, 14).unwrap();
    assert_eq!(completed(pair, client).0.value, 5);
    client.send(owner_id, b"short", 15).unwrap();
    assert_eq!(completed(pair, client).0.kind, OpKind::Send);
    buf.write_at(0, b"long").unwrap();
    client
        .send_from(owner_id, Locals::one(buf, 0..4), 16)
        .unwrap();
    let (_, locals) = completed(pair, client);
    client.free(locals.into_buf().unwrap()).unwrap();
    client.max_message_bytes(owner_id, 17).unwrap();
    let most = wait(pair, client, |event| match event {
        ClientEvent::MaxMessageBytes { token: 17, bytes } => bytes,
        _ => None,
    });
    assert!(most > 1024 && most < 2048);
}

fn what_the_owner_heard(owner: &Puppet) {
    let heard = owner.events();
    let landed = |event: &Event| matches!(event, Event::Landed { immediate: 77, .. });
    assert_eq!(heard.iter().filter(|event| landed(event)).count(), 1);
    let texts: Vec<Vec<u8>> = heard
        .iter()
        .filter_map(|event| match event {
            Event::Message(message) => {
                let mut bytes = vec![0; message.len()];
                message.read_at(0, &mut bytes).then_some(bytes)
            }
            _ => None,
        })
        .collect();
    assert_eq!(texts, [b"short".to_vec(), b"long".to_vec()]);
}

#[test]
fn a_client_grants_revokes_and_flushes() {
    let Scene {
        mut pair,
        mut client,
        owner,
        owner_id,
        ..
    } = scene();
    let buf = allocate(&mut pair, &mut client, 4096);
    client
        .grant(buf, 0..4096, Rights::READ, owner_id, Lease::None, 20)
        .unwrap();
    let (grant, buf) = wait(&mut pair, &mut client, |event| match event {
        ClientEvent::GrantMade {
            token: 20,
            buf,
            result,
        } => Some((result.unwrap(), buf)),
        _ => None,
    });
    pair.until(|_| {
        owner
            .events()
            .iter()
            .any(|event| matches!(event, Event::Granted(_)))
    });
    client.revoke(grant).unwrap();
    client.flush(21).unwrap();
    let mut zapped = false;
    let quarantined = wait(&mut pair, &mut client, |event| match event {
        ClientEvent::Event(Event::Zapped(ended)) => {
            zapped = ended == grant;
            None
        }
        ClientEvent::Event(Event::Flushed {
            token: 21,
            quarantined,
        }) => Some(quarantined),
        _ => None,
    });
    assert!(zapped, "a flush comes behind what it flushes");
    assert_eq!(quarantined, 0);
    client.revoke(grant).unwrap();
    let refused = wait(&mut pair, &mut client, |event| match event {
        ClientEvent::RevokeRefused { grant, .. } => Some(grant),
        _ => None,
    });
    assert_eq!(refused, grant);
    drop(buf);
}

#[test]
fn bad_calls_are_refused_and_give_back_what_was_moved_in() {
    let Scene {
        mut pair,
        mut client,
        owner_id,
        import,
        id,
        ..
    } = scene();
    assert!(matches!(
        client.lookup(PeerId(0), "", 0),
        Err(ClientLookupError::Name(_))
    ));
    assert!(matches!(
        client.send(owner_id, &[0; 4096], 0),
        Err(ClientSendError::TooLong { len: 4096, .. })
    ));
    let buf = allocate(&mut pair, &mut client, 64);
    client
        .write(&import, 4090, Locals::one(buf, 0..8), 30)
        .unwrap();
    let buf = wait(&mut pair, &mut client, |event| match event {
        ClientEvent::Refused {
            token: 30, locals, ..
        } => locals.into_buf(),
        _ => None,
    });
    // Nothing is taken while nobody steps the lcore: the ring of 16 fills.
    for _ in 0..16 {
        client.flush(0).unwrap();
    }
    let full = client.write(&import, 0, Locals::one(buf, 0..8), 31);
    assert!(matches!(full, Err(CommandError::Full { commands: 16, .. })));
    let buf = full.unwrap_err().into_inner().into_buf().unwrap();
    pair.left.engine.kill(id);
    pair.until(|_| client.is_closed());
    let closed = client.free(buf);
    assert!(matches!(closed, Err(CommandError::Closed(_))));
}
