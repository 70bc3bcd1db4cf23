//! Contexts that know each other, and grants between them.

use keyfence::ids::{ContextId, GrantId, PeerId, RemoteContext};
use keyfence::pmd::Device;
use keyfence::{Buf, Event, Import, Lease, OpDone, Rights};

use super::{Pair, Puppet, Slot};

/// Looks a context of the peer up, from the side that `puppet` is on.
pub fn lookup<D: Device>(pair: &mut Pair<D>, puppet: &Puppet, name: &'static str) -> RemoteContext {
    puppet.act(move |cx| cx.lookup(PeerId(0), name, u64::MAX).unwrap());
    let mut found = None;
    pair.until(|_| {
        for event in puppet.events() {
            if let Event::Resolved { context, .. } = event {
                found = Some(context.expect("the context exists"));
            }
        }
        found.is_some()
    });
    found.unwrap()
}

/// A grant with all that is known of it on both sides. The buffer is the test's until it takes it out.
pub struct Granted {
    pub id: GrantId,
    pub import: Import,
    pub buf: Slot<Buf>,
    /// Addresses of the buffer.
    pub range: core::ops::Range<u64>,
}

/// Opens a buffer of `bytes` to the holder, for whatever there is.
pub fn grant<D: Device>(
    pair: &mut Pair<D>,
    owner: &Puppet,
    holder: &Puppet,
    holder_id: RemoteContext,
    bytes: usize,
) -> Granted {
    let what = (bytes, Rights::ALL);
    grant_with(pair, owner, (holder, holder_id), what)
}

/// Opens a buffer of so many bytes to the holder, with these rights.
pub fn grant_with<D: Device>(
    pair: &mut Pair<D>,
    owner: &Puppet,
    (holder, holder_id): (&Puppet, RemoteContext),
    (bytes, rights): (usize, Rights),
) -> Granted {
    let (buf, made) = (Slot::new(), Slot::new());
    let (to_buf, to_made) = (buf.clone(), made.clone());
    owner.act(move |cx| {
        let memory = cx.alloc(bytes).unwrap();
        let id = cx.grant(&memory, 0..bytes, rights, holder_id, Lease::Configured);
        let first = memory.address();
        to_made.set((id.unwrap(), first..first + bytes as u64));
        to_buf.set(memory);
    });
    let mut import = None;
    pair.until(|_| {
        for event in holder.events() {
            if let Event::Granted(granted) = event {
                import = Some(granted);
            }
        }
        import.is_some()
    });
    let (id, range) = made.take().unwrap();
    Granted {
        id,
        import: import.unwrap(),
        buf,
        range,
    }
}

/// An owner on the right and a holder on the left that know each other.
pub struct Scene {
    pub owner: Puppet,
    pub holder: Puppet,
    /// As the right sees the holder.
    pub holder_id: RemoteContext,
    /// As the left sees the owner.
    pub owner_id: RemoteContext,
}

impl Scene {
    pub fn new<D: Device>(pair: &mut Pair<D>) -> Self {
        let owner = pair.right.puppet(0, "owner");
        let holder = pair.left.puppet(0, "holder");
        pair.steps(10);
        Self {
            holder_id: lookup(pair, &owner, "holder"),
            owner_id: lookup(pair, &holder, "owner"),
            owner,
            holder,
        }
    }

    pub fn grant<D: Device>(&self, pair: &mut Pair<D>, bytes: usize) -> Granted {
        grant(pair, &self.owner, &self.holder, self.holder_id, bytes)
    }

    pub fn owner_context(&self) -> ContextId {
        self.owner_id.id
    }

    pub fn holder_context(&self) -> ContextId {
        self.holder_id.id
    }
}

/// The completions among some events.
pub fn completions(events: &[Event]) -> Vec<OpDone> {
    let done = |event: &Event| match event {
        Event::Completed(done) => Some(*done),
        _ => None,
    };
    events.iter().filter_map(done).collect()
}

/// How often a grant was reported as ended: (proven, in quarantine).
pub fn ends(events: &[Event], grant: GrantId) -> (usize, usize) {
    let count = |test: &dyn Fn(&Event) -> bool| events.iter().filter(|event| test(event)).count();
    (
        count(&|event| matches!(event, Event::Zapped(id) if *id == grant)),
        count(&|event| matches!(event, Event::GrantQuarantined(id) if *id == grant)),
    )
}
