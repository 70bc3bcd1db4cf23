//! Clients: a context driven from outside its lcore, by commands and events.

mod bells;
mod ends;
mod ops;
#[path = "../pair/mod.rs"]
mod pair;
mod pressure;

use keyfence::ids::{ContextId, LcoreId, PeerId, RemoteContext};
use keyfence::pmd::soft::SoftDevice;
use keyfence::{
    Buf, Client, ClientConfig, ClientEvent, ClientLookupError, ClientSendError, CommandError,
    EngineEvent, Event, Import, Lease, Locals, OpDone, OpKind, QuarantineReason, Rights, Status,
};
use pair::{Pair, Puppet};

type SoftPair = Pair<SoftDevice>;

fn small_rings() -> ClientConfig {
    ClientConfig {
        commands: 16,
        events: 16,
    }
}

/// The first event that `wanted` takes; others are dropped.
fn wait<T>(
    pair: &mut SoftPair,
    client: &mut Client,
    mut wanted: impl FnMut(ClientEvent) -> Option<T>,
) -> T {
    let mut found = None;
    pair.until(|_| {
        while let Some(event) = client.poll_event() {
            found = wanted(event);
            if found.is_some() {
                return true;
            }
        }
        false
    });
    found.unwrap()
}

fn opened(pair: &mut SoftPair, name: &str) -> (Client, ContextId) {
    let mut client = pair
        .left
        .engine
        .open_client(LcoreId(0), name, 1, small_rings())
        .unwrap();
    let id = wait(pair, &mut client, |event| match event {
        ClientEvent::Opened { context } => Some(context),
        _ => None,
    });
    (client, id)
}

fn resolve(pair: &mut SoftPair, client: &mut Client, name: &str) -> RemoteContext {
    client.lookup(PeerId(0), name, 1).unwrap();
    wait(pair, client, |event| match event {
        ClientEvent::Event(Event::Resolved { token: 1, context }) => Some(context.unwrap()),
        _ => None,
    })
}

fn allocate(pair: &mut SoftPair, client: &mut Client, len: usize) -> Buf {
    client.alloc(len, 2).unwrap();
    wait(pair, client, |event| match event {
        ClientEvent::Allocated { token: 2, result } => Some(result.unwrap()),
        _ => None,
    })
}

fn completed(pair: &mut SoftPair, client: &mut Client) -> (OpDone, Locals) {
    wait(pair, client, |event| match event {
        ClientEvent::Completed { done, locals } => Some((done, locals)),
        ClientEvent::Refused { why, .. } => panic!("refused: {why}"),
        _ => None,
    })
}

/// A client on the left with an import of 4096 bytes of a puppet's on the right.
struct Scene {
    pair: SoftPair,
    client: Client,
    id: ContextId,
    owner: Puppet,
    owner_id: RemoteContext,
    import: Import,
}

fn scene() -> Scene {
    let mut pair = Pair::new();
    let (mut client, id) = opened(&mut pair, "client");
    let owner = pair.right.puppet(0, "owner");
    pair.steps(10);
    let owner_id = resolve(&mut pair, &mut client, "owner");
    owner.act(|cx| cx.lookup(PeerId(0), "client", 1).unwrap());
    let mut holder = None;
    pair.until(|_| {
        if let Some(Event::Resolved { context, .. }) = owner.next_event() {
            holder = context;
        }
        holder.is_some()
    });
    let holder = holder.unwrap();
    owner.act(move |cx| {
        let buf = cx.alloc(4096).unwrap();
        buf.dma().fill(0);
        cx.grant(&buf, 0..4096, Rights::ALL, holder, Lease::None)
            .unwrap();
        // The grant holds the buffer; its handle is not needed.
    });
    let import = wait(&mut pair, &mut client, |event| match event {
        ClientEvent::Event(Event::Granted(import)) => Some(import),
        _ => None,
    });
    Scene {
        pair,
        client,
        id,
        owner,
        owner_id,
        import,
    }
}
