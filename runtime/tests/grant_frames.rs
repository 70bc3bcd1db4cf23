//! Grants that are made together share frames, behind their binds; those of other contexts have frames of their own.

mod pair;

use keyfence::ids::RemoteContext;
use keyfence::wire::{self, Frame, MAX_GRANTS};
use keyfence::{Lease, Rights};
use pair::judged::Part;
use pair::raw::Duel;
use pair::{Puppet, Slot};

/// Grants in one act, to these holders in turn; how many were made.
fn grant_all(duel: &mut Duel, owner: &Puppet, holders: Vec<RemoteContext>) {
    let wanted = holders.len();
    let made = Slot::new();
    let to_made = made.clone();
    owner.act(move |cx| {
        let buf = cx.alloc(4096).unwrap();
        let grants = holders.iter().map(|holder| {
            let granted = cx.grant(&buf, 0..64, Rights::ALL, *holder, Lease::None);
            granted.is_ok()
        });
        to_made.set(grants.filter(|made| *made).count());
    });
    duel.steps(50);
    assert_eq!(made.take(), Some(wanted));
}

/// What each frame of grants in the inbox has: its receiver's slot, and how many.
fn frames(duel: &mut Duel) -> Vec<(u16, usize)> {
    let of = |bytes: &[u8]| match wire::decode(bytes) {
        Ok((header, Frame::Grants { grants })) => Some((header.dst.slot, grants.len())),
        _ => None,
    };
    let inbox = duel.raw.inbox.drain(..);
    inbox.filter_map(|(_, bytes)| of(&bytes)).collect()
}

#[test]
fn grants_to_one_context_share_frames() {
    let mut duel = Duel::new(Part::quiet());
    let owner = duel.side.puppet(0, "owner");
    duel.steps(5);
    duel.raw.inbox.clear();
    let same = duel.holder(2);
    let count = 2 * MAX_GRANTS + 1;
    grant_all(&mut duel, &owner, vec![same; count]);
    assert_eq!(
        frames(&mut duel),
        [(2, MAX_GRANTS), (2, MAX_GRANTS), (2, 1)]
    );
}

#[test]
fn r12_a_frame_has_grants_to_one_context_alone() {
    let mut duel = Duel::new(Part::quiet());
    let owner = duel.side.puppet(0, "owner");
    duel.steps(5);
    duel.raw.inbox.clear();
    // Slots of the same parity have one lane in common, which keeps their order.
    let holders: Vec<_> = [2, 2, 4, 2, 4, 4].map(|slot| duel.holder(slot)).into();
    grant_all(&mut duel, &owner, holders);
    assert_eq!(frames(&mut duel), [(2, 2), (4, 1), (2, 1), (4, 2)]);
}

/// R5: the key of a grant that was taken back may be dead before its frame comes, and its use would break the lane. Who was never told is named all the same, so that
/// its value is acknowledged (R8).
#[test]
fn r5_a_grant_that_is_taken_back_before_its_frame_goes_out_is_not_told() {
    let mut duel = Duel::new(Part::quiet());
    let owner = duel.side.puppet(0, "owner");
    duel.steps(5);
    duel.raw.inbox.clear();
    let holder = duel.holder(2);
    let made = Slot::new();
    let to_made = made.clone();
    owner.act(move |cx| {
        let buf = cx.alloc(4096).unwrap();
        let mut grant = || {
            cx.grant(&buf, 0..64, Rights::ALL, holder, Lease::None)
                .unwrap()
        };
        let (kept, gone) = (grant(), grant());
        cx.revoke(gone).unwrap();
        cx.flush(0).unwrap();
        to_made.set((kept, gone));
    });
    duel.steps(50);
    let (kept, gone) = made.take().unwrap();
    let (mut told, mut revoked) = (Vec::new(), Vec::new());
    for (_, bytes) in duel.raw.inbox.drain(..) {
        match wire::decode(&bytes) {
            Ok((_, Frame::Grants { grants })) => told.extend(grants.iter().map(|it| it.grant)),
            Ok((_, Frame::Revoke { grants, .. })) => revoked.extend(grants.iter()),
            _ => {}
        }
    }
    assert_eq!((told, revoked), (vec![kept], vec![gone]));
}
