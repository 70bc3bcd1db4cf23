//! A client that does not listen.

use keyfence_mempool::sync::{Arc, AtomicU64, Ordering};

use crate::*;

#[test]
fn b10_a_client_that_reads_no_events_holds_up_nobody_but_its_own_senders() {
    let Scene {
        mut pair,
        mut client,
        id,
        owner,
        import,
        ..
    } = scene();
    let to = RemoteContext { id, ..import.owner };
    let number = Arc::new(AtomicU64::new(0));
    let send_next = || {
        let number = Arc::clone(&number);
        owner.act(move |cx| {
            let next = number.load(Ordering::Relaxed);
            if next < 60 && cx.send(to, &next.to_le_bytes(), next).is_ok() {
                number.store(next + 1, Ordering::Relaxed);
            }
        });
    };
    for _ in 0..2_000 {
        client.beat();
        send_next();
        pair.step();
    }
    let sent = number.load(Ordering::Relaxed);
    assert!(sent < 60, "the sender has no more credits, after {sent}");
    let (mut other, _) = opened(&mut pair, "other");
    let from_other = resolve(&mut pair, &mut other, "owner");
    other.send(from_other, b"hello", 1).unwrap();
    assert_eq!(completed(&mut pair, &mut other).0.status, Status::Ok);
    let mut expected = 0;
    pair.until(|_| {
        send_next();
        while let Some(event) = client.poll_event() {
            if let ClientEvent::Event(Event::Message(message)) = event {
                let mut bytes = [0; 8];
                assert!(message.read_at(0, &mut bytes));
                assert_eq!(u64::from_le_bytes(bytes), expected, "in order, none lost");
                expected += 1;
            }
        }
        expected == 60
    });
}

#[test]
fn b10_notices_of_landed_data_wait_with_their_credits() {
    let Scene {
        mut pair,
        client: mut writer,
        owner,
        import,
        ..
    } = scene();
    // The owner is a second client on the other side, which reads nothing.
    let mut deaf = pair
        .right
        .engine
        .open_client(LcoreId(0), "deaf", 1, small_rings())
        .unwrap();
    wait(&mut pair, &mut deaf, |event| match event {
        ClientEvent::Event(Event::PeerUp(_)) => Some(()),
        _ => None,
    });
    let holder = resolve(&mut pair, &mut deaf, "client");
    let buf = allocate(&mut pair, &mut deaf, 64);
    deaf.grant(buf, 0..64, Rights::ALL, holder, Lease::None, 1)
        .unwrap();
    let second = wait(&mut pair, &mut writer, |event| match event {
        ClientEvent::Event(Event::Granted(granted)) if granted.id != import.id => Some(granted),
        _ => None,
    });
    let mut source = Some(allocate(&mut pair, &mut writer, 64));
    let (mut done, mut steps) = (0, 0);
    while steps < 20_000 {
        deaf.beat();
        if let Some(buf) = source.take() {
            writer
                .write_with_immediate(&second, 0, Locals::one(buf, 0..8), done, 5)
                .unwrap();
        }
        while let Some(event) = writer.poll_event() {
            match event {
                ClientEvent::Completed { locals, .. } => {
                    done += 1;
                    source = locals.into_buf();
                }
                ClientEvent::Refused { why, locals, .. } => {
                    assert!(why.is_back_pressure(), "{why}");
                    source = locals.into_buf();
                }
                _ => {}
            }
        }
        pair.step();
        steps += 1;
    }
    assert!(
        (8..64).contains(&done) && source.is_some(),
        "the writer runs out of credits, after {done}"
    );
    assert_eq!(pair.right.stat("contexts_deaf"), 0);
    let mut next = 0;
    pair.until(|_| {
        while let Some(event) = deaf.poll_event() {
            if let ClientEvent::Event(Event::Landed { immediate, .. }) = event {
                assert_eq!(immediate, next);
                next += 1;
            }
        }
        next == done
    });
    drop(owner);
}
