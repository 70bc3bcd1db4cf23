//! How a client ends, and what becomes of what it held.

use crate::*;

#[test]
fn b21_a_dropped_client_is_reclaimed_with_its_operations_in_flight() {
    let Scene {
        mut pair,
        mut client,
        import,
        id,
        ..
    } = scene();
    for token in 0..4 {
        let buf = allocate(&mut pair, &mut client, 4096);
        client
            .write(&import, 0, Locals::one(buf, 0..4096), token)
            .unwrap();
    }
    drop(client);
    pair.until(|pair| pair.left.reclaimed(id));
    assert_eq!(pair.left.engine.buffers_in_use(), 0);
    assert_eq!(pair.left.stat("contexts_quarantined"), 0);
}

#[test]
fn r10_a_client_that_does_not_beat_is_reclaimed_and_one_that_beats_is_not() {
    let mut pair = Pair::new();
    let (mut lively, lively_id) = opened(&mut pair, "lively");
    let (silent, silent_id) = opened(&mut pair, "silent");
    let lease_ns = 1_000_000_000;
    for _ in 0..30 {
        lively.beat();
        pair.step_for(lease_ns / 20);
    }
    pair.until(|pair| pair.left.reclaimed(silent_id));
    assert!(!pair.left.reclaimed(lively_id));
    assert!(silent.is_closed() && !lively.is_closed());
    pair.step_for(2 * lease_ns);
    pair.until(|pair| pair.left.reclaimed(lively_id));
}

#[test]
fn r10_a_client_whose_thread_panics_is_reclaimed() {
    let mut pair = Pair::new();
    let (client, id) = opened(&mut pair, "client");
    let thread = std::thread::spawn(move || {
        let _mine = client;
        std::panic::resume_unwind(Box::new("planted"));
    });
    assert!(thread.join().is_err());
    pair.until(|pair| pair.left.reclaimed(id));
}

#[test]
fn r10_a_client_that_is_leaked_falls_silent_and_what_it_was_told_stays_in_quarantine() {
    let mut pair = Pair::new();
    let (mut client, id) = opened(&mut pair, "client");
    client.alloc(4096, 1).unwrap();
    pair.steps(10);
    // The buffer lies in an event that nobody will take.
    std::mem::forget(client);
    let mut ended = None;
    pair.until(|pair| {
        pair.now_ns += 1_000_000;
        ended = pair.left.events.iter().find_map(|event| match event {
            EngineEvent::Quarantined { context, why, .. } if *context == id => Some(*why),
            _ => None,
        });
        ended.is_some()
    });
    assert_eq!(ended, Some(QuarantineReason::HandleHeld));
    assert_eq!(pair.left.engine.buffers_in_use(), 1);
}

#[test]
fn commands_behind_which_a_client_closes_are_carried_out_and_those_of_a_dropped_one_are_not() {
    for closes in [true, false] {
        let Scene {
            mut pair,
            mut client,
            import,
            id,
            ..
        } = scene();
        let buf = allocate(&mut pair, &mut client, 4096);
        let before = pair.left.stat("ops_submitted");
        client
            .write(&import, 0, Locals::one(buf, 0..4096), 1)
            .unwrap();
        if closes {
            client.close().unwrap();
            pair.until(|_| client.is_closed());
        } else {
            drop(client);
        }
        pair.until(|pair| pair.left.reclaimed(id));
        let submitted = pair.left.stat("ops_submitted") - before;
        assert_eq!(submitted, u64::from(closes));
        assert_eq!(pair.left.engine.buffers_in_use(), 0);
    }
}

#[test]
fn r1_a_buffer_that_a_client_holds_ends_its_reclaim_as_handle_held_and_its_drop_is_the_late_proof()
{
    let mut pair = Pair::new();
    let (mut client, id) = opened(&mut pair, "client");
    let kept = allocate(&mut pair, &mut client, 4096);
    let given = allocate(&mut pair, &mut client, 4096);
    drop(given);
    pair.left.engine.kill(id);
    pair.until(|_| client.is_closed());
    pair.steps(100);
    assert!(!pair.left.reclaimed(id), "a handle is out");
    // The fence timeout passes.
    let mut ended = None;
    pair.until(|pair| {
        pair.now_ns += 1_000_000;
        ended = pair.left.events.iter().find_map(|event| match event {
            EngineEvent::Quarantined {
                context,
                bytes,
                why,
                keys,
                ..
            } if *context == id => Some((*bytes, *why, *keys)),
            _ => None,
        });
        ended.is_some()
    });
    assert_eq!(ended, Some((4096, QuarantineReason::HandleHeld, 0)));
    assert_eq!(pair.left.engine.buffers_in_use(), 1, "the rest is released");
    kept.write_at(0, b"still the client's").unwrap();
    drop(client);
    pair.steps(100);
    assert_eq!(pair.left.engine.buffers_in_use(), 1);
    drop(kept);
    pair.until(|pair| pair.left.engine.buffers_in_use() == 0);
    assert!(
        !pair.left.reclaimed(id),
        "R6: the late proof gives no second event"
    );
}

#[test]
fn a_client_that_finds_no_slot_is_closed_and_the_engine_says_why() {
    let mut pair: SoftPair = Pair::new();
    let mut clients = Vec::new();
    for number in 0..17 {
        let name = format!("client-{number}");
        let client = pair
            .left
            .engine
            .open_client(LcoreId(0), &name, 1, small_rings());
        clients.push(client.unwrap());
    }
    pair.steps(20);
    assert!(clients[16].is_closed() && !clients[15].is_closed());
    let refused = |event: &EngineEvent| matches!(event, EngineEvent::OpenFailed { name, why } if name == "client-16" && why.contains("16"));
    assert!(pair.left.events.iter().any(refused));
    let no_lcore = pair
        .left
        .engine
        .open_client(LcoreId(9), "client", 1, small_rings());
    assert!(no_lcore.is_err());
}
