//! A context whose engine uses a dead key: applications have none, so it is a device that does.

use keyfence::pmd::wrap::check::Ledger;
use keyfence::pmd::{Device, Remote};
use keyfence::{Import, Local, Rights};

use super::Pair;
use super::scene::{Scene, ends, grant_with};
use super::switched::Switches;

/// Bytes of each grant, and what its holder may do: windows of some adapters take no atomics.
pub const OPENED: (usize, Rights) = (4096, Rights::READ_WRITE);

/// Where the dead keys come from, and where they are used.
pub struct Books<'a> {
    /// The oracle of the owner's device.
    pub right: &'a Ledger,
    /// The offender's device.
    pub left: &'a Switches,
}

/// The offender: its device has it use a key that has died.
pub struct Offender {
    pub scene: Scene,
    /// Writes to it go by the dead key.
    pub import: Import,
}

impl Offender {
    pub fn new<D: Device>(pair: &mut Pair<D>, books: &Books<'_>) -> Self {
        let scene = Scene::new(pair);
        let holder = (&scene.holder, scene.holder_id);
        let dead = grant_with(pair, &scene.owner, holder, OPENED);
        let key = books.right.first_live_key(dead.range.clone()).unwrap();
        let id = dead.id;
        scene.owner.act(move |cx| {
            cx.revoke(id).unwrap();
            cx.flush(0).unwrap();
        });
        let mut events = Vec::new();
        pair.until(|_| {
            events.extend(scene.owner.events());
            ends(&events, id) == (1, 0)
        });
        let live = grant_with(pair, &scene.owner, holder, OPENED);
        *books.left.forged_within.lock().unwrap() = Some(live.range.clone());
        *books.left.forged.lock().unwrap() = Some(Remote {
            address: key.address,
            rkey: key.rkey,
        });
        Self {
            scene,
            import: live.import,
        }
    }

    /// Once, if it may.
    pub fn offend(&self) {
        let import = self.import;
        self.scene.holder.act(move |cx| {
            cx.resume();
            let buf = cx.alloc(8).unwrap();
            let _ = cx.write(&import, 0, &[Local::prefix(&buf, 8)], 0);
        });
    }
}
