//! B21: whatever is dropped right after a post, and in whatever order, nothing stray is accessed. The judge is the oracle on the device: when
//! a buffer is free it has no live key and no open work request.

mod pair;

use keyfence::ids::{LcoreId, PeerId, RemoteContext};
use keyfence::pmd::soft::{Fabric, SoftConfig, SoftDevice};
use keyfence::pmd::wrap::check::{Check, Ledger, Party};
use keyfence::{
    Buf, Client, ClientConfig, ClientEvent, Event, Import, Lease, Local, Locals, Rights,
};
use keyfence_mempool::sync::Arc;
use pair::{Pair, Puppet, Slot, builder};

type Checked = Check<SoftDevice>;

struct Scene {
    pair: Pair<Checked>,
    ledgers: [Arc<Ledger>; 2],
    holder: Puppet,
    owner: Puppet,
    owner_id: RemoteContext,
    import: Import,
    /// The owner's buffer, which is granted to the holder.
    granted: Buf,
}

const BYTES: usize = 1 << 20;

fn lookup(pair: &mut Pair<Checked>, puppet: &Puppet, name: &'static str) -> RemoteContext {
    puppet.act(move |cx| cx.lookup(PeerId(0), name, 1).unwrap());
    let mut found = None;
    pair.until(|_| {
        if let Some(Event::Resolved { context, .. }) = puppet.next_event() {
            found = context;
        }
        found.is_some()
    });
    found.unwrap()
}

fn scene() -> Scene {
    let fabric = Fabric::new();
    let device = || Check::new(fabric.device(SoftConfig::default()).unwrap());
    let (left, right) = (device(), device());
    let ledgers = [left.ledger(), right.ledger()];
    let mut pair = Pair::on(
        builder("left", "right", 1),
        left,
        builder("right", "left", 1),
        right,
    );
    let holder = pair.left.puppet(0, "holder");
    let owner = pair.right.puppet(0, "owner");
    pair.steps(10);
    let holder_id = lookup(&mut pair, &owner, "holder");
    let owner_id = lookup(&mut pair, &holder, "owner");
    let slot = Slot::new();
    let to = slot.clone();
    owner.act(move |cx| {
        let buf = cx.alloc(BYTES).unwrap();
        cx.grant(&buf, 0..BYTES, Rights::ALL, holder_id, Lease::None)
            .unwrap();
        to.set(buf);
    });
    let mut import = None;
    pair.until(|_| {
        if let Some(Event::Granted(granted)) = holder.next_event() {
            import = Some(granted);
        }
        import.is_some()
    });
    Scene {
        pair,
        ledgers,
        holder,
        owner,
        owner_id,
        import: import.unwrap(),
        granted: slot.take().unwrap(),
    }
}

fn range(buf: &Buf) -> core::ops::Range<u64> {
    buf.address()..buf.address() + buf.capacity() as u64
}

fn no_party_broke_the_contract(ledgers: &[Arc<Ledger>; 2]) {
    for ledger in ledgers {
        for party in [Party::Caller, Party::Device] {
            assert_eq!(ledger.violations(party), 0, "{:?}", ledger.reports());
        }
    }
}

#[test]
fn b21_a_buffer_dropped_right_after_a_post_is_reused_when_the_post_has_ended() {
    let mut scene = scene();
    let import = scene.import;
    let slot = Slot::new();
    let to = slot.clone();
    scene.holder.act(move |cx| {
        let buf = cx.alloc(BYTES).unwrap();
        cx.write(&import, 0, &[Local::prefix(&buf, BYTES)], 1)
            .unwrap();
        to.set(range(&buf));
        drop(buf);
    });
    scene.pair.step();
    let bytes = slot.take().unwrap();
    let mut was_open = false;
    let mut free = false;
    scene.pair.until(|scene_pair| {
        let open = scene.ledgers[0].open_work(bytes.clone()) > 0;
        was_open |= open;
        free = scene_pair.left.engine.buffers_in_use() == 0;
        assert!(!(open && free), "R1: a buffer is free while it is read");
        free
    });
    assert!(was_open);
    no_party_broke_the_contract(&scene.ledgers);
}

#[test]
fn b21_a_granted_buffer_dropped_with_a_write_on_its_way_is_reused_when_its_key_is_dead() {
    let mut scene = scene();
    let import = scene.import;
    scene.holder.act(move |cx| {
        let buf = cx.alloc(BYTES).unwrap();
        cx.write(&import, 0, &[Local::prefix(&buf, BYTES)], 1)
            .unwrap();
    });
    scene.pair.steps(2);
    let bytes = range(&scene.granted);
    drop(scene.granted);
    scene.pair.steps(2_000);
    assert_eq!(
        scene.pair.right.engine.buffers_in_use(),
        1,
        "the grant holds it"
    );
    assert!(scene.ledgers[1].live_keys(bytes.clone()) > 0);
    scene.owner.act(|cx| cx.close());
    scene.pair.until(|pair| {
        let live = scene.ledgers[1].live_keys(bytes.clone()) > 0;
        let free = pair.right.engine.buffers_in_use() == 0;
        assert!(!(live && free), "R1: a buffer is free while a key opens it");
        free
    });
    no_party_broke_the_contract(&scene.ledgers);
}

/// What a client's thread lets go of right after its posts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Part {
    Buffer,
    Client,
    Context,
}

const ORDERS: [[Part; 3]; 6] = [
    [Part::Buffer, Part::Client, Part::Context],
    [Part::Buffer, Part::Context, Part::Client],
    [Part::Client, Part::Buffer, Part::Context],
    [Part::Client, Part::Context, Part::Buffer],
    [Part::Context, Part::Buffer, Part::Client],
    [Part::Context, Part::Client, Part::Buffer],
];

fn client_event<T>(
    pair: &mut Pair<Checked>,
    client: &mut Client,
    mut wanted: impl FnMut(ClientEvent) -> Option<T>,
) -> T {
    let mut found = None;
    pair.until(|_| {
        found = client.poll_event().and_then(&mut wanted);
        found.is_some()
    });
    found.unwrap()
}

#[test]
fn b21_buffer_client_and_context_dropped_right_after_a_post_in_every_order() {
    for order in ORDERS {
        for steps_between in [0, 1, 3] {
            let mut scene = scene();
            let pair = &mut scene.pair;
            let config = ClientConfig::default();
            let opened = pair
                .left
                .engine
                .open_client(LcoreId(0), "client", 1, config);
            let mut client = opened.unwrap();
            let id = client_event(pair, &mut client, |event| match event {
                ClientEvent::Opened { context } => Some(context),
                _ => None,
            });
            let [posted, kept] = [1, 2].map(|token| {
                client.alloc(BYTES, token).unwrap();
                client_event(pair, &mut client, |event| match event {
                    ClientEvent::Allocated { result, .. } => Some(result.unwrap()),
                    _ => None,
                })
            });
            let ranges = [range(&posted), range(&kept)];
            client
                .send_from(scene.owner_id, Locals::one(posted, 0..1024), 3)
                .unwrap();
            let (mut client, mut kept) = (Some(client), Some(kept));
            for part in order {
                pair.steps(steps_between);
                match part {
                    Part::Buffer => drop(kept.take()),
                    Part::Client => drop(client.take()),
                    Part::Context => pair.left.engine.kill(id),
                }
            }
            pair.until(|pair| {
                let open = ranges
                    .iter()
                    .any(|bytes| scene.ledgers[0].open_work(bytes.clone()) > 0);
                let free = pair.left.engine.buffers_in_use() == 0;
                assert!(!(open && free), "R1, {order:?}");
                free && pair.left.reclaimed(id)
            });
            no_party_broke_the_contract(&scene.ledgers);
        }
    }
}
