//! What a service's destructor drops goes home with its context's reclaim.

mod pair;

use keyfence::ids::PeerId;
use keyfence::{Buf, Context, Event, Service, Work};
use keyfence::{Lease, Rights};
use pair::Pair;

/// Keeps two buffers, one of them granted, until it is dropped.
#[derive(Default)]
struct Keeper {
    bufs: Vec<Buf>,
}

impl Service for Keeper {
    fn poll(&mut self, cx: &mut Context<'_>) -> Work {
        if self.bufs.is_empty() {
            self.bufs.extend((0..2).map(|_| cx.alloc(4096).unwrap()));
            cx.lookup(PeerId(0), "holder", 0).unwrap();
        }
        Work::Idle
    }

    fn on_event(&mut self, cx: &mut Context<'_>, event: Event) {
        if let Event::Resolved { context, .. } = event {
            let holder = context.expect("it lives");
            let granted = cx.grant(&self.bufs[0], 0..4096, Rights::ALL, holder, Lease::None);
            granted.unwrap();
        }
    }
}

#[test]
fn r1_buffers_dropped_by_the_destructor_go_home_with_step_5() {
    let mut pair = Pair::new();
    let holder = pair.right.puppet(0, "holder");
    pair.steps(10);
    let keeper = Box::new(Keeper::default());
    let engine = &mut pair.left.engine;
    engine
        .open(keyfence::ids::LcoreId(0), "keeper", 1, keeper)
        .unwrap();
    pair.until(|_| matches!(holder.next_event(), Some(Event::Granted(_))));
    let id = pair.left.id_of("keeper").unwrap();
    pair.left.engine.kill(id);
    pair.until(|pair| pair.left.stat("contexts_cordoned") == 1);
    let mut steps = 0;
    while !pair.left.reclaimed(id) {
        assert_eq!(pair.left.engine.buffers_in_use(), 2, "after {steps} steps");
        pair.step();
        steps += 1;
    }
    assert!(steps > 0, "the key had to be fenced first");
    assert_eq!(pair.left.engine.buffers_in_use(), 0);
}
