//! A device without atomics: they are refused where they are asked for, before anything is posted.

mod pair;

use keyfence::pmd::Caps;
use keyfence::pmd::soft::{Fabric, SoftConfig, SoftDevice};
use keyfence::{GrantError, Lease, Rights, SubmitError};

use pair::scene::Scene;
use pair::switched::Switched;
use pair::{Pair, Slot, builder};

fn pair_saying(left: fn(&mut Caps), right: fn(&mut Caps)) -> Pair<Switched<SoftDevice>> {
    let fabric = Fabric::new();
    let device = |change| {
        let soft = fabric.device(SoftConfig::default()).unwrap();
        Switched::new(soft).0.saying(change)
    };
    let (left, right) = (device(left), device(right));
    Pair::on(
        builder("left", "right", 1),
        left,
        builder("right", "left", 1),
        right,
    )
}

#[test]
fn a_grant_of_atomics_is_refused_where_windows_give_none() {
    for lacking in [
        (|caps| caps.window_atomics = false) as fn(&mut Caps),
        |caps| caps.atomics = false,
    ] {
        let mut pair = pair_saying(|_| (), lacking);
        let scene = Scene::new(&mut pair);
        let holder = scene.holder_id;
        let seen = Slot::new();
        let to = seen.clone();
        scene.owner.act(move |cx| {
            let buf = cx.alloc(64).unwrap();
            let mut with = |rights| cx.grant(&buf, 0..64, rights, holder, Lease::Configured);
            to.set((with(Rights::ALL), with(Rights::READ_WRITE)));
        });
        pair.steps(10);
        let (all, plain) = seen.take().unwrap();
        assert_eq!(all.unwrap_err(), GrantError::NoAtomics);
        plain.unwrap();
    }
}

#[test]
fn an_atomic_is_refused_where_the_device_posts_none() {
    let mut pair = pair_saying(|caps| caps.atomics = false, |_| ());
    let scene = Scene::new(&mut pair);
    let import = scene.grant(&mut pair, 64).import;
    let seen = Slot::new();
    let to = seen.clone();
    scene.holder.act(move |cx| {
        let add = cx.fetch_add(&import, 0, 1, 1);
        let swap = cx.compare_swap(&import, 0, 0, 1, 2);
        let buf = cx.alloc(8).unwrap();
        let write = cx.write(&import, 0, &[keyfence::Local::prefix(&buf, 8)], 3);
        to.set((add, swap, write));
    });
    pair.steps(10);
    let (add, swap, write) = seen.take().unwrap();
    assert_eq!(add, Err(SubmitError::NoAtomics));
    assert_eq!(swap, Err(SubmitError::NoAtomics));
    write.unwrap();
}
