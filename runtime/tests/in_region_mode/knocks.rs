//! What somebody costs who can reach the engine and has no secret (R6, R12): a queue pair for a time, and no registration.

#[path = "../pair/mod.rs"]
mod pair;

use keyfence::JoinRefusal;
use keyfence_mempool::sync::Ordering;
use pair::judged::Part;
use pair::raw::Duel;
use pair::switched::{off, on};

const SHARED: [u8; 32] = [7; 32];

/// The code of a refusal for `Busy`.
const BUSY: u8 = 4;

/// The engine is asked, by a peer that has not the secret.
fn asked() -> Duel {
    let mut duel = Duel::apart(Part::quiet(), "zed", Some(&SHARED));
    duel.raw.oath.secret = vec![8; 32];
    duel
}

/// What the engine has registered so far, and the protection domains and regions that there are.
fn cost(duel: &Duel) -> (usize, u64, u64) {
    let count = |which: &keyfence_mempool::sync::AtomicU64| which.load(Ordering::Relaxed);
    let switches = &duel.switches;
    let registered = switches.registered.lock().unwrap().len();
    (registered, count(&switches.pds), count(&switches.regions))
}

fn is_settled(duel: &mut Duel) {
    duel.until(|duel| duel.side.used(|usage| usage.lanes.into()) == 0);
    duel.steps(5);
    assert_eq!(duel.switches.qps.load(Ordering::Relaxed), 0, "R7");
}

/// A hello without the secret, or none at all.
fn knock(duel: &mut Duel, session: u32, says_hello: bool) {
    let lane = duel.raw.ask(session, 0);
    duel.until(|duel| !duel.raw.lanes[lane].reply.is_empty());
    if says_hello {
        duel.greet(lane);
    } else {
        duel.raw.break_lane(lane);
        // The engine learns of it by what it says itself.
        duel.steps(5);
    }
    is_settled(duel);
}

/// The raw peer asks for both lanes and is let in.
fn join(duel: &mut Duel, session: u32) {
    duel.raw.oath.secret = SHARED.to_vec();
    let ups = duel.ups();
    for number in 0..2 {
        let lane = duel.raw.ask(session, number);
        duel.until(|duel| !duel.raw.lanes[lane].reply.is_empty());
        duel.greet(lane);
        duel.steps(20);
    }
    duel.until(|duel| duel.ups() > ups);
}

#[test]
fn r6_a_knock_registers_nothing_and_what_it_cost_is_given_back() {
    let mut duel = asked();
    duel.steps(3);
    // For the first session, made at the start.
    let before = cost(&duel);
    assert_eq!(before, (1, 1, 1));
    for session in 0..40 {
        knock(&mut duel, 1 + session, session % 2 == 0);
        assert_eq!(cost(&duel), before);
    }
    let admissions = duel.side.engine.admissions();
    assert_eq!(admissions.sessions_unproven, 40);
    assert_eq!(admissions.hellos_refused, 20);
    // The peer has what the strangers had.
    join(&mut duel, 50);
    assert_eq!(cost(&duel), before);
    assert_eq!(duel.side.engine.admissions().sessions_unproven, 40);
}

#[test]
fn r12_the_domain_of_an_unproven_session_is_nobodys_while_a_queue_pair_is_left_in_it() {
    let mut duel = asked();
    duel.steps(3);
    on(&duel.switches.destroy_hangs);
    let lane = duel.raw.ask(1, 0);
    duel.until(|duel| !duel.raw.lanes[lane].reply.is_empty());
    duel.greet(lane);
    duel.until(|duel| !duel.refusals().is_empty());
    assert_eq!(duel.refusals(), [JoinRefusal::Unauthenticated]);
    duel.steps(5_000);
    // Nobody is let in meanwhile, so there is one at most a peer.
    duel.raw.ask(2, 0);
    duel.until(|duel| !duel.raw.rejected.is_empty());
    assert_eq!(duel.raw.rejected[0][4], BUSY);
    assert_eq!(duel.switches.qps.load(Ordering::Relaxed), 1);
    off(&duel.switches.destroy_hangs);
    is_settled(&mut duel);
    join(&mut duel, 3);
    assert_eq!(cost(&duel), (1, 1, 1));
}
