//! What can't be brought about from outside: panics of the runtime itself, and reports that come after their time.

use std::panic::{AssertUnwindSafe, catch_unwind};

use keyfence_mempool::Policy;
use keyfence_mempool::sync::{Arc, AtomicU32, Ordering};
use keyfence_pmd::soft::{Fabric, SoftConfig, SoftDevice};
use keyfence_pmd::{Device, Lkey, QpId, Region, RegionId, Rights, Rkey};

use crate::config::{MemoryConfig, PoolConfig};
use crate::engine::state::Core;
use crate::engine::{Context, Engine, EngineBuilder, Lcore};
use crate::event::{EngineEvent, Event};
use crate::grant::import::{ImportEntry, ImportPhase, PeerGrant};
use crate::grant::keys::Key;
use crate::grant::table::Grant;
use crate::ids::{ContextId, GrantId, LaneId, LcoreId, PeerId, RemoteContext, SessionId};
use crate::lane::{Lane, LaneSetup, LaneSizes};
use crate::reclaim::{self, ContextIx, KeyIx, KeyState, Scope};
use crate::service::{Service, Work};

fn engine() -> (Engine<SoftDevice>, Lcore<<SoftDevice as Device>::Path>) {
    let memory = MemoryConfig {
        arena_bytes: 64 << 20,
        hugepages: Policy::Off,
        lock: Policy::Off,
        pools: vec![PoolConfig {
            buffer_bytes: 4096,
            count: 64,
        }],
        ..MemoryConfig::default()
    };
    let device = Fabric::new().device(SoftConfig::default()).unwrap();
    let builder = EngineBuilder::new("only", 1)
        .memory(memory)
        .peer("other", "local:other", 1);
    let mut engine = builder.build(device, 7).unwrap();
    let lcore = engine.take_lcore(LcoreId(0)).unwrap();
    (engine, lcore)
}

/// Runs one service for some steps; what the engine's owner is told.
fn run(service: impl Service + 'static) -> Vec<EngineEvent> {
    let (mut engine, mut lcore) = engine();
    engine
        .open(LcoreId(0), "service", 1, Box::new(service))
        .unwrap();
    let mut events = Vec::new();
    for now_ns in 1..20 {
        lcore.step(now_ns);
        engine.control(now_ns);
        while let Some(event) = engine.poll_event() {
            events.push(event);
        }
    }
    events
}

struct Broken;

impl Service for Broken {
    fn poll(&mut self, cx: &mut Context<'_>) -> Work {
        cx.within(|_| panic!("an invariant of the runtime"))
    }

    fn on_event(&mut self, _cx: &mut Context<'_>, _event: Event) {}
}

#[test]
fn r10_a_panic_of_the_runtime_is_not_booked_as_the_service_s() {
    let panic = catch_unwind(AssertUnwindSafe(|| run(Broken))).unwrap_err();
    let what = panic.downcast_ref::<&str>();
    assert_eq!(what, Some(&"an invariant of the runtime"));
}

/// Is to be told two things, and ends at the first.
struct Once {
    calls_after: Arc<AtomicU32>,
    panics: bool,
    asked: bool,
    over: bool,
}

impl Once {
    fn new(panics: bool) -> (Self, Arc<AtomicU32>) {
        let calls_after = Arc::new(AtomicU32::new(0));
        let once = Self {
            calls_after: Arc::clone(&calls_after),
            panics,
            asked: false,
            over: false,
        };
        (once, calls_after)
    }

    fn called(&self) {
        self.calls_after
            .fetch_add(self.over.into(), Ordering::Relaxed);
    }
}

impl Service for Once {
    fn poll(&mut self, cx: &mut Context<'_>) -> Work {
        self.called();
        if !core::mem::replace(&mut self.asked, true) {
            cx.flush(1).unwrap();
            cx.flush(2).unwrap();
        }
        Work::Idle
    }

    fn on_event(&mut self, cx: &mut Context<'_>, _event: Event) {
        self.called();
        self.over = true;
        assert!(!self.panics, "the service's own panic");
        cx.close();
    }

    fn takes_events(&mut self) -> bool {
        self.called();
        true
    }
}

#[test]
fn r10_a_service_is_not_called_again_after_its_panic_or_its_close() {
    for panics in [true, false] {
        let (once, calls_after) = Once::new(panics);
        let events = run(once);
        assert_eq!(calls_after.load(Ordering::Relaxed), 0, "panics: {panics}");
        let count =
            |test: fn(&EngineEvent) -> bool| events.iter().filter(|event| test(event)).count();
        let panicked = count(|event| matches!(event, EngineEvent::ServicePanicked { .. }));
        let reclaimed = count(|event| matches!(event, EngineEvent::Reclaimed { .. }));
        assert_eq!((panicked, reclaimed), (panics.into(), 1));
    }
}

/// A grant of context `context`, to a context that never was.
fn grant_of(core: &mut Core, context: u16) -> Grant {
    let owner = core.owner_tag(context);
    let buf = core.memory.pools[0].cache.get(owner).unwrap();
    Grant {
        context,
        holder: nobody(),
        lane: LaneId(0),
        key: None,
        keys_open: 0,
        keys_unproven: 0,
        keys_known: 0,
        buf: buf.id(),
        pool: 0,
        address: buf.address(),
        len: 64,
        rights: Rights::READ,
        lease_ns: None,
        made_ns: 0,
        retired: false,
        quarantined: false,
        ended: false,
    }
}

fn nobody() -> RemoteContext {
    RemoteContext {
        peer: PeerId(0),
        session: SessionId(1),
        id: ContextId {
            lcore: LcoreId(0),
            slot: 0,
            generation: 1,
        },
    }
}

fn key_of(grant: GrantId) -> Key {
    Key {
        grant: grant.slot,
        lane: LaneId(0),
        window: Some(0),
        rkey: Rkey(1),
        reminded: false,
        listed: false,
        charged: false,
    }
}

fn bind(core: &mut Core, grant: Grant) -> KeyIx {
    let id = core.grants.insert(grant).unwrap();
    let key = core.keys.insert(key_of(id)).unwrap().ix();
    core.grants.at_mut(id.slot).key_begun(key);
    core.drive(reclaim::Event::Bind {
        key,
        context: ContextIx(grant.context),
        lane: LaneId(0),
        scope: Scope::Queue,
    });
    key
}

#[test]
fn r4_a_deallocation_reported_late_says_nothing_about_the_slot_s_next_key() {
    let (_engine, mut lcore) = engine();
    let core = &mut lcore.core;
    let grant = grant_of(core, 0);
    let id = core.grants.insert(grant).unwrap();
    let old = core.keys.insert(key_of(id)).unwrap();
    core.keys.remove(old.ix());
    let key = bind(core, grant);
    assert_eq!(key, old.ix());
    for done in [true, false] {
        core.deallocated(old, done);
        assert_eq!(core.machine.key_state(key), KeyState::Binding);
    }
}

fn import_of(core: &mut Core, context: u16) {
    let quota = &mut core.contexts.get_mut(context).quota;
    quota.imports.take(1).unwrap();
    core.peers[0].quota.imports.take(1).unwrap();
    let entry = ImportEntry {
        context,
        lane: LaneId(0),
        grant: GrantId {
            slot: 0,
            generation: 1,
        },
        owner: nobody(),
        address: 0,
        len: 64,
        rkey: Rkey(1),
        rights: Rights::READ,
        phase: ImportPhase::Live,
        in_flight: 0,
        users: 0,
        fence: None,
        listed: 0,
        tell_owner: false,
    };
    core.imports.insert(entry).unwrap();
}

/// A lane that never comes up.
fn lane() -> Box<Lane> {
    let setup = LaneSetup {
        qp: QpId(0),
        peer: PeerId(0),
        session: SessionId(1),
        agreed_session: 1,
        number: 0,
        peer_lcore: LcoreId(0),
        repair: 0,
        inline_bytes: 0,
        arena: Region {
            id: RegionId(0),
            lkey: Lkey(0),
            rkey: Rkey(0),
        },
        windows: Vec::new(),
        sizes: LaneSizes {
            send_depth: 8,
            receive_depth: 8,
            contexts: 256,
            fences: 8,
            requests: 8,
            lookups: 8,
            answers: 8,
        },
    };
    let mut lane = Box::new(Lane::new(setup, 0));
    lane.link.peer_grants = vec![PeerGrant::Unknown].into_boxed_slice();
    lane
}

/// Grants and imports looked at for the kill of a context that has three of each, beside one that has `others`.
fn visits_of_a_kill(others: usize) -> (u64, u64) {
    let (_engine, mut lcore) = engine();
    let core = &mut lcore.core;
    core.lanes[0] = Some(lane());
    let victim = core.contexts.open("victim".to_owned(), 1).unwrap();
    let bystander = core.contexts.open("bystander".to_owned(), 1).unwrap();
    for at in 0..others + 3 {
        let context = if at < others { bystander } else { victim };
        let grant = grant_of(core, context);
        let quota = &mut core.contexts.get_mut(context).quota;
        quota.grants.take(1).unwrap();
        bind(core, grant);
        import_of(core, context);
    }
    core.close(victim);
    assert_eq!(core.closing.pop_front(), Some(victim));
    core.grants.visits.set(0);
    core.imports.visits.set(0);
    core.cordon(victim);
    core.take_epoch(victim);
    assert_eq!(core.imports.in_use() as usize, others);
    (core.grants.visits.get(), core.imports.visits.get())
}

#[test]
fn r5_a_kill_costs_what_the_context_has_and_not_what_the_tables_hold() {
    let (grants, imports) = visits_of_a_kill(0);
    assert!(grants <= 4 * 3 && imports <= 12 * 3, "{grants}, {imports}");
    assert_eq!(visits_of_a_kill(50), (grants, imports));
}
