//! Clients at rest cost next to nothing, and none of them misses anything.

use crate::*;

/// As many as the engine takes.
const CLIENTS: usize = 16;

fn all_opened(pair: &mut SoftPair) -> Vec<(Client, ContextId)> {
    let names = (0..CLIENTS).map(|number| format!("client-{number}"));
    let mut clients: Vec<_> = names.map(|name| opened(pair, &name)).collect();
    pair.steps(100);
    for (client, _) in &mut clients {
        while client.poll_event().is_some() {}
    }
    clients
}

fn polls_of(pair: &mut SoftPair, steps: usize) -> u64 {
    let before = pair.left.stat("services_polled");
    pair.steps(steps);
    pair.left.stat("services_polled") - before
}

#[test]
fn clients_at_rest_are_polled_one_in_sixty_four_steps() {
    let mut pair = Pair::new();
    let mut clients = all_opened(&mut pair);
    assert_eq!(polls_of(&mut pair, 640), 10 * CLIENTS as u64);
    // Commands are taken in the step after they were sent, whichever that is.
    for round in 0..200_u64 {
        let at = round as usize % CLIENTS;
        pair.steps(1 + round as usize % 5);
        for client in [at, (at + 7) % CLIENTS] {
            let client = &mut clients[client].0;
            client.flush(round).unwrap();
        }
        pair.steps(2);
        for client in [at, (at + 7) % CLIENTS] {
            let client = &mut clients[client].0;
            let flushed = client.poll_event();
            let Some(ClientEvent::Event(Event::Flushed { token, .. })) = flushed else {
                panic!("{flushed:?} in round {round}");
            };
            assert_eq!(token, round);
        }
    }
    pair.steps(10);
    assert_eq!(polls_of(&mut pair, 640), 10 * CLIENTS as u64);
}

#[test]
fn r10_the_drop_of_a_client_at_rest_is_seen_at_once() {
    let mut pair = Pair::new();
    for (client, id) in all_opened(&mut pair) {
        drop(client);
        let closing = pair.left.stat("contexts_cordoned");
        pair.step();
        assert_eq!(pair.left.stat("contexts_cordoned"), closing + 1);
        pair.until(|pair| pair.left.reclaimed(id));
    }
}

#[test]
fn the_next_client_of_a_slot_is_served_though_the_last_one_rings_late() {
    let mut pair = Pair::new();
    let (old, id) = opened(&mut pair, "old");
    pair.left.engine.kill(id);
    pair.until(|pair| pair.left.reclaimed(id));
    let mut new = pair
        .left
        .engine
        .open_client(LcoreId(0), "new", 1, small_rings())
        .unwrap();
    pair.steps(10);
    drop(old);
    pair.steps(10);
    // It has not taken the word of its opening, so it can't ring.
    new.flush(1).unwrap();
    pair.steps(2);
    let events: Vec<_> = std::iter::from_fn(|| new.poll_event()).collect();
    let opened = |event: &ClientEvent| matches!(event, ClientEvent::Opened { context } if context.slot == id.slot);
    assert!(opened(&events[0]), "{events:?}");
    let flushed =
        |event: &ClientEvent| matches!(event, ClientEvent::Event(Event::Flushed { token: 1, .. }));
    assert!(events.iter().any(flushed), "{events:?}");
}

#[test]
fn credits_of_messages_that_a_client_at_rest_drops_go_back_at_once() {
    let Scene {
        mut pair,
        mut client,
        id,
        owner,
        import,
        ..
    } = scene();
    let to = RemoteContext { id, ..import.owner };
    for number in 0..9_u64 {
        let full = number == 8;
        owner.act(move |cx| assert_eq!(cx.send(to, b"held", number).is_err(), full));
    }
    pair.steps(20);
    owner.events();
    let held: Vec<_> = std::iter::from_fn(|| client.poll_event()).collect();
    assert_eq!(held.len(), 8);
    pair.steps(100);
    assert!(owner.events().is_empty());
    drop(held);
    pair.steps(5);
    let events = owner.events();
    assert!(matches!(events[..], [Event::Writable]), "{events:?}");
}
