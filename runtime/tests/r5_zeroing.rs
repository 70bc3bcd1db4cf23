//! R5, section 4 step 5: with `zero_on_release`, what a reclaim gives back is zero before anyone gets it; that takes a bounded part of each
//! step and delays no event.

mod pair;

use std::collections::BTreeSet;

use keyfence::config::MemoryConfig;
use keyfence::ids::{ContextId, LcoreId};
use keyfence::pmd::soft::{Fabric, SoftConfig, SoftDevice};
use keyfence::{AllocError, Buf, Context, EngineEvent, Event, QuarantineReason, Service, Work};
use pair::judged::{fast_limits, short_timeouts};
use pair::{Pair, Puppet, Side, Slot};

const BUDGET_BYTES: u64 = 4096;
const LARGE: usize = 1 << 20;
/// All that the pool has.
const LARGES: usize = 12;
const DIRT: u8 = 0xd7;

type Soft = Pair<SoftDevice>;

fn pair(zero_on_release: bool) -> Soft {
    let fabric = Fabric::new();
    let device = || fabric.device(SoftConfig::default()).unwrap();
    let mut limits = fast_limits();
    limits.zero_budget_bytes = BUDGET_BYTES;
    let builder = |name, peer| {
        let memory = MemoryConfig {
            zero_on_release,
            ..pair::small_memory()
        };
        pair::builder(name, peer, 1)
            .memory(memory)
            .limits(limits.clone())
            .timeouts(short_timeouts())
    };
    Pair::on(
        builder("left", "right"),
        device(),
        builder("right", "left"),
        device(),
    )
}

/// Takes all large buffers, fills them, and has them until its end; all but one if that is wanted elsewhere.
struct Hoarder {
    bufs: Vec<Buf>,
    gives: Option<Slot<Buf>>,
}

impl Service for Hoarder {
    fn poll(&mut self, cx: &mut Context<'_>) -> Work {
        while self.bufs.len() < LARGES
            && let Ok(buf) = cx.alloc(LARGE)
        {
            buf.dma().fill(DIRT);
            self.bufs.push(buf);
        }
        if let Some(slot) = self.gives.take() {
            slot.set(self.bufs.pop().unwrap());
        }
        Work::Wait
    }

    fn on_event(&mut self, _cx: &mut Context<'_>, _event: Event) {}
}

fn hoarder(pair: &mut Soft, gives: Option<Slot<Buf>>) -> ContextId {
    let bufs = Vec::new();
    let service = Box::new(Hoarder { bufs, gives });
    let engine = &mut pair.right.engine;
    engine.open(LcoreId(0), "hoarder", 1, service).unwrap();
    pair.steps(10);
    pair.right.id_of("hoarder").unwrap()
}

fn zeroing(side: &Side<SoftDevice>) -> u64 {
    side.used(|usage| usage.zeroing_bytes)
}

/// Kills a context; the steps until it is reclaimed.
fn steps_to_end(pair: &mut Soft, context: ContextId) -> usize {
    pair.right.engine.kill(context);
    let mut steps = 0;
    pair.until(|pair| {
        steps += 1;
        pair.right.reclaimed(context)
    });
    steps
}

/// What a context gets if it asks for a large buffer.
fn ask(pair: &mut Soft, puppet: &Puppet) -> Result<Buf, AllocError> {
    let got = Slot::new();
    let to_got = got.clone();
    puppet.act(move |cx| to_got.set(cx.alloc(LARGE)));
    pair.step();
    got.take().unwrap()
}

#[test]
fn r5_what_a_reclaim_gives_back_is_zeroed_at_a_bounded_pace_and_then_handed_out() {
    let mut pair = pair(true);
    let next = pair.right.puppet(0, "next");
    let context = hoarder(&mut pair, None);
    assert_eq!(zeroing(&pair.right), 0);
    pair.right.engine.kill(context);
    let (mut left_bytes, mut steps) = (0, 0);
    let mut bufs = Vec::new();
    for _ in 0..2 * LARGES * LARGE / BUDGET_BYTES as usize {
        let answer = ask(&mut pair, &next);
        let now_bytes = zeroing(&pair.right);
        if left_bytes > 0 {
            // Each step its share, no more and, while there is any, no less.
            assert_eq!(now_bytes, left_bytes - BUDGET_BYTES);
            steps += 1;
        }
        left_bytes = now_bytes;
        // Nobody has it before all of it is done, and its pool counts it as in use.
        let waiting = now_bytes.div_ceil(LARGE as u64) as usize;
        match answer {
            Ok(buf) => {
                assert_eq!(buf.dma().first_not(0), None);
                bufs.push(buf);
                assert!(bufs.len() + waiting <= LARGES);
            }
            Err(error) => assert!(matches!(error, AllocError::PoolEmpty { .. }), "{error:?}"),
        }
        if pair.right.reclaimed(context) {
            assert_eq!(
                pair.right.engine.buffers_in_use(),
                bufs.len() + waiting,
                "{now_bytes}"
            );
        }
        if bufs.len() == LARGES {
            break;
        }
    }
    // All but the share of the step in which the reclaim ended.
    assert_eq!(steps, (LARGES * LARGE) as u64 / BUDGET_BYTES - 1);
    let addresses: BTreeSet<_> = bufs.iter().map(Buf::address).collect();
    assert_eq!(addresses.len(), LARGES);
    assert_eq!(zeroing(&pair.right), 0);
}

#[test]
fn r5_zeroing_delays_neither_the_reclaim_nor_what_comes_after_it() {
    let steps = [false, true].map(|zero_on_release| {
        let mut pair = pair(zero_on_release);
        let first = hoarder(&mut pair, None);
        let reclaim = steps_to_end(&mut pair, first);
        assert_eq!(zeroing(&pair.right) > 0, zero_on_release);
        // The slot is free meanwhile, and another context comes, works and goes.
        let second = pair.right.puppet(0, "second");
        pair.steps(10);
        let id = pair.right.id_of("second").unwrap();
        assert_eq!(id.slot, first.slot);
        second.act(|cx| drop(cx.alloc(64).unwrap()));
        pair.steps(5);
        let small = steps_to_end(&mut pair, id);
        assert_eq!(zeroing(&pair.right) > 0, zero_on_release);
        (reclaim, small)
    });
    assert_eq!(steps[0], steps[1]);
}

#[test]
fn r1_what_a_handle_keeps_is_zeroed_after_its_drop_and_not_before() {
    let mut pair = pair(true);
    let next = pair.right.puppet(0, "next");
    let kept = Slot::new();
    let context = hoarder(&mut pair, Some(kept.clone()));
    let kept = kept.take().unwrap();
    pair.right.engine.kill(context);
    let quarantined = |pair: &mut Soft| {
        pair.right.events.iter().any(|event| {
            matches!(event, EngineEvent::Quarantined { context: known, why: QuarantineReason::HandleHeld, .. } if *known == context)
        })
    };
    pair.until(quarantined);
    pair.until(|pair| zeroing(&pair.right) == 0);
    assert_eq!(pair.right.engine.buffers_in_use(), 1);
    assert_eq!(kept.dma().first_not(DIRT), None);
    let address = kept.address();
    drop(kept);
    pair.until(|pair| zeroing(&pair.right) > 0);
    pair.until(|pair| pair.right.engine.buffers_in_use() == 0);
    let bufs: Vec<_> = (0..LARGES)
        .map(|_| ask(&mut pair, &next).unwrap())
        .collect();
    let back = bufs.iter().find(|buf| buf.address() == address).unwrap();
    assert_eq!(back.dma().first_not(0), None);
}
