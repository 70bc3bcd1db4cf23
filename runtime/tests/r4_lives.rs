//! What comes back and when. R4: a window when its key is dead and not before. R5: memory to be zeroed, a budget a step.

mod pair;

use keyfence::config::MemoryConfig;
use keyfence::ids::{GrantId, LcoreId};
use keyfence::reclaim::KeyState;
use keyfence::{GrantError, Lease, Rights, Work};
use pair::judged::{Court, Part, US, fast_limits};
use pair::scene::{Scene, ends};
use pair::{Pair, Slot};

const BYTES: usize = 1 << 20;

#[test]
fn r4_a_window_is_free_only_when_its_key_is_dead() {
    let part = || {
        let mut limits = fast_limits();
        (limits.windows, limits.lanes) = (1, 1);
        Part {
            limits,
            ..Part::quiet()
        }
    };
    let mut court = Court::new(part(), part());
    let scene = Scene::new(&mut court.pair);
    let first = scene.grant(&mut court.pair, 4096);
    drop(scene.owner.events());
    scene.owner.act(move |cx| cx.revoke(first.id).unwrap());
    let (mut seen, mut refused) = (Vec::new(), 0);
    loop {
        let made: Slot<Result<GrantId, GrantError>> = Slot::new();
        let (to_made, holder) = (made.clone(), scene.holder_id);
        scene.owner.act(move |cx| {
            let buf = cx.alloc(64).unwrap();
            to_made.set(cx.grant(&buf, 0..64, Rights::ALL, holder, Lease::None));
        });
        let before = court.pair.right.lcores[0].census().next();
        court.pair.step();
        match made.take() {
            Some(Ok(id)) => {
                assert_eq!(id.slot, first.id.slot, "the slot was the last one freed");
                break;
            }
            Some(Err(_)) => refused += 1,
            None => {}
        }
        let state = before.expect("not dead, so in the census").state;
        if seen.last() != Some(&state) {
            seen.push(state);
        }
        assert!(refused < 10_000, "{seen:?}");
    }
    assert!(refused > 0);
    assert_eq!(court.right.live_keys(first.range.clone()), 0);
    assert!(seen.contains(&KeyState::Fencing), "{seen:?}");
    assert_eq!(ends(&scene.owner.events(), first.id), (1, 0));
    // What is said of the keys is recorded: each change follows the one before.
    let trace = court.pair.right.lcores[0].trace();
    let mut state = KeyState::Dead;
    for record in trace
        .iter()
        .filter(|record| record.change.key.0 == first.id.slot)
    {
        assert_eq!(record.change.from, state);
        assert!(record.change.from.may_become(record.change.to));
        state = record.change.to;
    }
    assert_ne!(state, KeyState::Dead);
    court.acquit();
}

#[test]
fn r5_released_memory_is_zeroed_within_the_budget_of_a_step_and_delays_no_event() {
    let mut limits = pair::small_limits();
    limits.zero_budget_bytes = 4096;
    let memory = MemoryConfig {
        zero_on_release: true,
        ..pair::small_memory()
    };
    let fabric = keyfence::pmd::soft::Fabric::new();
    let device = || fabric.device(keyfence::pmd::soft::SoftConfig::default());
    let mut pair = Pair::on(
        pair::builder("left", "right", 1)
            .limits(limits)
            .memory(memory),
        device().unwrap(),
        pair::builder("right", "left", 1),
        device().unwrap(),
    );
    let puppet = pair.left.puppet(0, "owner");
    let kept = Slot::new();
    let to_kept = kept.clone();
    puppet.act(move |cx| {
        let buf = cx.alloc(BYTES).unwrap();
        buf.dma().fill(0x77);
        to_kept.set(buf);
    });
    pair.steps(10);
    let id = pair.left.id_of("owner").unwrap();
    pair.left.engine.kill(id);
    pair.steps(2);
    let buf = kept.take().unwrap();
    let offset = (buf.address() - pair.left.engine.arena().address()) as usize;
    drop(buf);
    let zeros = |pair: &Pair<_>| {
        let arena = pair.left.engine.arena();
        let memory = arena.dma(offset, BYTES).unwrap();
        memory.first_not(0).unwrap_or(BYTES)
    };
    assert_eq!(zeros(&pair), 0);
    pair.steps(3);
    assert!(pair.left.reclaimed(id), "no event waits for the zeros");
    let mut done = zeros(&pair);
    while done < BYTES {
        assert_eq!(pair.left.engine.buffers_in_use(), 1, "not reused yet");
        pair.now_ns += US;
        let work = pair.left.lcores[0].step(pair.now_ns);
        assert_eq!(
            work,
            Work::Busy,
            "an lcore with bytes to zero does not sleep"
        );
        let now = zeros(&pair);
        assert_eq!(now - done, 4096);
        done = now;
    }
    assert_eq!(pair.left.engine.buffers_in_use(), 0);
    // What the last step did is what other threads can read, once there is nothing more to do.
    pair.steps(3);
    let steps = pair.left.engine.stats(LcoreId(0)).unwrap();
    assert!(pair.left.stat("steps") - steps.get("steps").unwrap() <= 3);
}
