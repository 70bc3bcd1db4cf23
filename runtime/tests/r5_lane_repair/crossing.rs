//! What crosses a break: kills, revokes, questions, late calls, and contexts that go on too soon.

use std::sync::Arc;

use keyfence::ids::{LcoreId, PeerId, RemoteContext};
use keyfence::pmd::soft::SoftConfig;
use keyfence::{Context, Event, Import, Local, Service, Status, Work};
use keyfence_mempool::sync::Ordering;

use super::pair::scene::{Scene, ends, lookup};
use super::pair::switched::{off, on};
use super::pair::{REGIONS, Slot, small_limits};
use super::{
    Two, break_with_posted, done_of, is_down, left_alone, now, repairs, two, two_on, write,
};

#[test]
fn r5_a_grant_in_the_slot_of_one_that_ended_with_the_break_reaches_its_holder() {
    let (mut pair, switches) = two();
    let scene = Scene::new(&mut pair);
    let granted = scene.grant(&mut pair, 64);
    let (first, holder) = (granted.id, scene.holder_id);
    on(&switches[1].break_last);
    pair.until(|pair| pair.right.stat("lanes_broken") > 0);
    now(&mut pair, &scene.owner, move |cx| cx.revoke(first).unwrap());
    let mut events = Vec::new();
    // Proven by the destruction of its queue pair: the holder is not asked.
    pair.until(|_| {
        events.extend(scene.owner.events());
        ends(&events, first) == (1, 0)
    });
    let second = now(&mut pair, &scene.owner, move |cx| {
        let buf = cx.alloc(64).unwrap();
        let rights = keyfence::Rights::READ_WRITE;
        let id = cx.grant(&buf, 0..64, rights, holder, keyfence::Lease::None);
        (id.unwrap(), buf)
    });
    // The case that is meant; a region's value is known to its holder until that has given its word.
    assert_eq!(second.0.slot == first.slot, !REGIONS);
    let mut heard = Vec::new();
    pair.until(|_| {
        heard.extend(scene.holder.events());
        let granted = |event: &Event| matches!(event, Event::Granted(_));
        heard.iter().any(granted)
    });
    let revoked = |event: &&Event| matches!(event, Event::Revoked(id) if *id == granted.import.id);
    assert_eq!(heard.iter().filter(revoked).count(), 1);
    assert_eq!(pair.left.used(|usage| usage.imports.into()), 1);
}

#[test]
fn r7_messages_that_die_with_their_context_and_their_lane_give_their_credits_back() {
    let (mut pair, switches) = two();
    let scene = Scene::new(&mut pair);
    let most = u64::from(small_limits().context.messages);
    for _ in 0..most + 1 {
        let before = repairs(&pair);
        let dying = pair.left.puppet(0, "dying");
        pair.steps(5);
        let to = lookup(&mut pair, &dying, "owner");
        // Posted and not executed as it is cordoned: the other end does not step meanwhile.
        dying.act(move |cx| cx.send(to, b"never", 1).unwrap());
        left_alone(&mut pair, 1);
        dying.act(|cx| cx.close());
        left_alone(&mut pair, 1);
        assert!(pair.left.stat("cordons_with_ops_in_flight") > 0);
        break_with_posted(&mut pair, &switches);
        pair.until(|pair| repairs(pair) > before);
        let id = pair.left.id_of("dying").unwrap();
        pair.until(|pair| pair.left.reclaimed(id));
    }
    // All that it takes, at once.
    let to = scene.owner_id;
    now(&mut pair, &scene.holder, move |cx| {
        for token in 0..most {
            cx.send(to, b"comes", token).unwrap();
        }
    });
    let tokens: Vec<u64> = (0..most).collect();
    let statuses = done_of(&mut pair, &scene.holder, &tokens);
    assert!(statuses.iter().all(|status| *status == Status::Ok));
}

/// R2: what a break cut off may still be executed by the other end, until that says that its queue pair is dead. A context that is closed behind the break waits for it as one that was closed before.
#[test]
fn r2_what_a_break_cut_off_before_the_cordon_waits_for_its_targets_word() {
    let (mut pair, switches) = two();
    let scene = Scene::new(&mut pair);
    let granted = Arc::new(scene.grant(&mut pair, 4096));
    scene.holder.act(move |cx| write(cx, &granted, 7, 1, false));
    on(&switches[0].break_last);
    // The other end sees nothing of it. All that was ours ends with our queue pair.
    left_alone(&mut pair, 200);
    assert_eq!(pair.left.stat("lanes_broken"), 1);
    scene.holder.act(|cx| cx.close());
    left_alone(&mut pair, 200);
    let id = pair.left.id_of("holder").unwrap();
    assert!(!pair.left.reclaimed(id), "its target has not answered");
    pair.until(|pair| pair.left.reclaimed(id));
    assert!(!is_down(&pair) && repairs(&pair) == 1);
}

#[test]
fn r7_a_grant_without_a_key_ends_with_its_context() {
    let (mut pair, switches) = two();
    let scene = Scene::new(&mut pair);
    let granted = scene.grant(&mut pair, 64);
    drop(granted.buf.take());
    on(&switches[1].break_last);
    let keyless = |pair: &mut Two| {
        let mut census = pair.right.lcores[0].census();
        census.all(|grant| grant.state.is_proven())
    };
    pair.until(keyless);
    assert_eq!(pair.right.used(|usage| usage.grants.into()), 1);
    scene.owner.act(|cx| cx.close());
    let id = pair.right.id_of("owner").unwrap();
    pair.until(|pair| pair.right.reclaimed(id));
    // A region's value is the holder's to forget, which it says behind the repair.
    assert_eq!(
        pair.right.used(|usage| usage.grants.into()),
        u64::from(REGIONS)
    );
    // Its holder hears of that, whatever the break has cut off.
    let mut heard = Vec::new();
    pair.until(|_| {
        heard.extend(scene.holder.events());
        let gone =
            |event: &Event| matches!(event, Event::ContextGone { context, .. } if context.id == id);
        heard.iter().any(gone)
    });
    pair.until(|pair| pair.right.used(|usage| usage.grants.into()) == 0);
    assert_eq!(repairs(&pair), 1);
}

#[test]
fn r7_a_question_that_a_break_cuts_off_is_answered() {
    let (mut pair, switches) = two();
    let scene = Scene::new(&mut pair);
    scene
        .holder
        .act(|cx| cx.lookup(PeerId(0), "owner", 5).unwrap());
    break_with_posted(&mut pair, &switches);
    let mut heard = Vec::new();
    pair.until(|_| {
        heard.extend(scene.holder.events());
        let found = |event: &Event| {
            matches!(
                event,
                Event::Resolved {
                    token: 5,
                    context: Some(_)
                }
            )
        };
        heard.iter().any(found)
    });
}

#[test]
fn r7_a_repeated_write_whose_grant_is_taken_back_may_have_been_executed() {
    let (mut pair, switches) = two();
    let scene = Scene::new(&mut pair);
    let granted = Arc::new(scene.grant(&mut pair, 64));
    let (with, id) = (Arc::clone(&granted), granted.id);
    scene.holder.act(move |cx| write(cx, &with, 3, 1, true));
    break_with_posted(&mut pair, &switches);
    scene.owner.act(move |cx| cx.revoke(id).unwrap());
    assert_eq!(
        done_of(&mut pair, &scene.holder, &[1]),
        [Status::Indeterminate]
    );
    assert_eq!(repairs(&pair), 1);
}

/// Writes twice when it may, and says that it goes on, and something, at each end that it is told.
struct Hasty {
    to: RemoteContext,
    import: Option<Import>,
    may_write: Slot<()>,
    said: Vec<Status>,
    told: Slot<Vec<Status>>,
}

impl Service for Hasty {
    fn poll(&mut self, cx: &mut Context<'_>) -> Work {
        if let Some(import) = self.import
            && self.may_write.take().is_some()
        {
            for token in 0..2 {
                let buf = cx.alloc(8).unwrap();
                cx.write(&import, 0, &[Local::prefix(&buf, 8)], token)
                    .unwrap();
                cx.free(buf);
            }
        }
        Work::Idle
    }

    fn on_event(&mut self, cx: &mut Context<'_>, event: Event) {
        match event {
            Event::Granted(import) => self.import = Some(import),
            Event::Completed(done) => {
                self.said.push(done.status);
                cx.resume();
                if [0, 1, 11].contains(&done.token) {
                    cx.send(self.to, b"ready", 10 + done.token).unwrap();
                }
                if self.said.len() == 5 {
                    self.told.set(self.said.clone());
                }
            }
            _ => {}
        }
    }
}

#[test]
fn r5_a_context_goes_on_only_behind_all_that_it_was_told() {
    let (mut pair, switches) = two();
    let scene = Scene::new(&mut pair);
    let (may_write, told) = (Slot::new(), Slot::new());
    let hasty = Hasty {
        to: scene.owner_id,
        import: None,
        may_write: may_write.clone(),
        said: Vec::new(),
        told: told.clone(),
    };
    pair.left
        .engine
        .open(LcoreId(0), "hasty", 1, Box::new(hasty))
        .unwrap();
    pair.steps(10);
    let holder = lookup(&mut pair, &scene.owner, "hasty");
    let granted = now(&mut pair, &scene.owner, move |cx| {
        let buf = cx.alloc(64).unwrap();
        let rights = keyfence::Rights::READ_WRITE;
        cx.grant(&buf, 0..64, rights, holder, keyfence::Lease::None)
            .unwrap();
        buf
    });
    pair.steps(20);
    may_write.set(());
    break_with_posted(&mut pair, &switches);
    pair.until(|_| told.is_set());
    use Status::{Indeterminate, NotSent, Ok};
    // It could not know of the second write behind the first, nor of the second message behind the first.
    let wanted = [Indeterminate, Indeterminate, NotSent, NotSent, Ok];
    assert_eq!(told.take().unwrap(), wanted);
    drop(granted);
}

#[test]
fn r6_a_repair_that_waits_for_a_late_destruction_is_not_begun_again() {
    let (mut pair, switches) = two();
    on(&switches[0].destroy_hangs);
    on(&switches[0].break_last);
    pair.until(|pair| pair.left.stat("lanes_broken") > 0);
    // Several tries' time, and less than the session has.
    let step = |pair: &mut Two, ms: u64| (0..ms * 10).for_each(|_| pair.step_for(100_000));
    step(&mut pair, 500);
    let second = switches[0].last_qp.load(Ordering::Relaxed);
    step(&mut pair, 2_500);
    off(&switches[0].destroy_hangs);
    pair.until(|pair| repairs(pair) == 1);
    assert_eq!(switches[0].last_qp.load(Ordering::Relaxed), second);
    assert!(!is_down(&pair));
}

#[test]
fn r6_without_windows_for_all_grants_the_session_ends_and_regions_want_none() {
    let windows = small_limits().windows;
    let config = SoftConfig {
        max_windows: windows,
        ..SoftConfig::default()
    };
    // Those of the queue pair that broke are never given back.
    let (mut pair, switches) = two_on(&config);
    let scene = Scene::new(&mut pair);
    let granted = scene.grant(&mut pair, 64);
    on(&switches[1].dealloc_hangs);
    on(&switches[1].break_last);
    if REGIONS {
        // The old one stays where it is, in quarantine at last, and a new one is made.
        pair.until(|pair| repairs(pair) == 1);
        assert!(!is_down(&pair));
        return off(&switches[1].dealloc_hangs);
    }
    pair.until(|pair| is_down(pair) || pair.right.stat("lanes_broken") > 1);
    off(&switches[1].dealloc_hangs);
    let mut events = Vec::new();
    pair.until(|_| {
        events.extend(scene.owner.events());
        let (proven, quarantined) = ends(&events, granted.id);
        proven + quarantined == 1
    });
}
