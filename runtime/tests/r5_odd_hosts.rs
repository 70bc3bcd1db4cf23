//! Application code and hosts that do what nobody expects: panics whose payloads panic, clocks at their end, pauses of the whole process.

mod pair;

use keyfence::config::Timeouts;
use keyfence::ids::LcoreId;
use keyfence::{Context, EngineEvent, Event, Local, Service, Work};
use pair::Pair;
use pair::judged::{Court, MS, Part, short_timeouts};
use pair::scene::Scene;

/// A panic's payload whose destructor panics as well.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        // A second panic during an unwind would abort; this one comes after it.
        if !std::thread::panicking() {
            panic!("the payload's destructor");
        }
    }
}

struct PanicsInPoll;

impl Service for PanicsInPoll {
    fn poll(&mut self, _cx: &mut Context<'_>) -> Work {
        std::panic::panic_any(Bomb)
    }
    fn on_event(&mut self, _cx: &mut Context<'_>, _event: Event) {}
}

struct PanicsInDrop;

impl Service for PanicsInDrop {
    fn poll(&mut self, cx: &mut Context<'_>) -> Work {
        cx.close();
        Work::Idle
    }
    fn on_event(&mut self, _cx: &mut Context<'_>, _event: Event) {}
}

impl Drop for PanicsInDrop {
    fn drop(&mut self) {
        std::panic::panic_any(Bomb)
    }
}

/// Panics plainly when it is dropped, and does nothing else.
struct Heavy;

impl Service for Heavy {
    fn poll(&mut self, _cx: &mut Context<'_>) -> Work {
        Work::Wait
    }
    fn on_event(&mut self, _cx: &mut Context<'_>, _event: Event) {}
}

impl Drop for Heavy {
    fn drop(&mut self) {
        assert!(std::thread::panicking(), "a destructor that panics");
    }
}

fn is_reclaimed(pair: &Pair<impl keyfence::pmd::Device>, name: &str) -> bool {
    let id = pair.left.id_of(name);
    id.is_some_and(|id| pair.left.reclaimed(id))
}

#[test]
fn r5_a_panic_whose_payload_panics_when_dropped_ends_its_context_alone() {
    let mut pair = Pair::new();
    pair.left
        .engine
        .open(LcoreId(0), "bomb", 1, Box::new(PanicsInPoll))
        .unwrap();
    pair.until(|pair| is_reclaimed(pair, "bomb"));
}

#[test]
fn r5_a_destructor_whose_payload_panics_when_dropped_ends_its_context_alone() {
    let mut pair = Pair::new();
    pair.left
        .engine
        .open(LcoreId(0), "bomb", 1, Box::new(PanicsInDrop))
        .unwrap();
    pair.until(|pair| is_reclaimed(pair, "bomb"));
}

#[test]
fn r5_a_service_that_is_not_opened_and_panics_when_dropped_does_not_end_the_control_side() {
    let mut pair = Pair::new();
    for at in 0..16 {
        pair.left.puppet(0, &format!("full {at}"));
    }
    pair.steps(10);
    pair.left
        .engine
        .open(LcoreId(0), "one too many", 1, Box::new(Heavy))
        .unwrap();
    pair.until(|pair| {
        let mut events = pair.left.events.iter();
        events.any(|event| matches!(event, EngineEvent::OpenFailed { .. }))
    });
}

#[test]
fn b26_a_clock_at_its_end_does_not_end_the_lcore() {
    let mut pair = Pair::new();
    pair.left.lcores[0].step(u64::MAX);
    pair.left.lcores[0].step(u64::MAX);
}

#[test]
fn r10_a_pause_of_the_whole_process_ends_no_lease_of_a_holder_that_lives() {
    let timeouts = Timeouts {
        lease_ns: Some(10 * MS),
        ..short_timeouts()
    };
    let part = || Part {
        timeouts: timeouts.clone(),
        ..Part::quiet()
    };
    let mut court = Court::new(part(), part());
    let scene = Scene::new(&mut court.pair);
    let granted = scene.grant(&mut court.pair, 4096);
    court.pair.steps(5_000);
    // SIGSTOP, SIGCONT: nobody was stepped.
    wake_right_first(&mut court, 11 * MS);
    court.pair.steps(5_000);
    drop(granted);
    assert_eq!(court.pair.right.stat("leases_ended"), 0);
}

/// The threads of a process that goes on after a pause run again one after the other, microseconds apart.
fn wake_right_first(court: &mut Court, pause_ns: u64) {
    court.pair.now_ns += pause_ns;
    for _ in 0..100 {
        court.pair.now_ns += 1_000;
        let now_ns = court.pair.now_ns;
        court.pair.right.step(now_ns);
    }
}

/// A fence, an invalidation: all timers run while nobody is stepped.
#[test]
fn r5_a_pause_of_the_whole_process_in_a_reclaim_breaks_no_lane() {
    for pause_at in 0..20 {
        let mut court = Court::quiet();
        let scene = Scene::new(&mut court.pair);
        let granted = scene.grant(&mut court.pair, 1 << 20);
        court.pair.steps(50);
        let import = granted.import;
        scene.holder.act(move |cx| {
            let buf = cx.alloc(1 << 20).unwrap();
            for token in 0..8 {
                cx.write(&import, 0, &[Local::prefix(&buf, 1 << 20)], token)
                    .unwrap();
            }
        });
        court.pair.step();
        let id = scene.owner_context();
        drop(granted.buf.take());
        court.pair.right.engine.kill(id);
        court.pair.steps(pause_at);
        wake_right_first(&mut court, 3 * MS);
        court.pair.until(|pair| {
            pair.right.events.iter().any(|event| {
                matches!(event, EngineEvent::Reclaimed { context, .. } | EngineEvent::Quarantined { context, .. } if *context == id)
            })
        });
        court.pair.steps(2000);
        let broken = court.pair.left.stat("lanes_broken") + court.pair.right.stat("lanes_broken");
        assert_eq!(broken, 0, "paused {pause_at} steps behind the kill");
        court.acquit();
    }
}
