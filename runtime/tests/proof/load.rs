//! Contexts that do a million of everything. They keep what they share in statics: nothing here allocates or locks.

use keyfence::ids::{ContextId, GrantId, PeerId, RemoteContext, SessionId};
use keyfence::{Buf, Context, Event, Import, Lease, Local, OpKind, Rights, Service, Status, Work};
use keyfence_mempool::sync::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Operations in flight at a time, and grants.
const DEPTH: u64 = 16;

/// What the stepping loop and the services tell each other.
pub struct Board {
    /// An index of [`KINDS`].
    pub kind: AtomicU64,
    /// Operations wanted, submitted, and ended well.
    pub wanted: AtomicU64,
    pub submitted: AtomicU64,
    pub done: AtomicU64,
    /// Whatever went otherwise.
    pub failed: AtomicU64,
    /// Grants to make and revoke, made, and proven ended.
    pub revokes_wanted: AtomicU64,
    pub granted: AtomicU64,
    pub zapped: AtomicU64,
    /// The victim's peer, and whether it has made its grant.
    victim_to: [AtomicU64; 2],
    pub victim_ready: AtomicBool,
    pub victim_dies: AtomicBool,
    /// Whether the client can be looked up.
    pub caller_opened: AtomicBool,
    /// What is to be done once, where nothing may be.
    pub plant_yield: AtomicBool,
    pub plant_vec: AtomicBool,
}

pub static BOARD: Board = Board {
    kind: AtomicU64::new(0),
    wanted: AtomicU64::new(0),
    submitted: AtomicU64::new(0),
    done: AtomicU64::new(0),
    failed: AtomicU64::new(0),
    revokes_wanted: AtomicU64::new(0),
    granted: AtomicU64::new(0),
    zapped: AtomicU64::new(0),
    victim_to: [AtomicU64::new(0), AtomicU64::new(0)],
    victim_ready: AtomicBool::new(false),
    victim_dies: AtomicBool::new(false),
    caller_opened: AtomicBool::new(false),
    plant_yield: AtomicBool::new(false),
    plant_vec: AtomicBool::new(false),
};

pub const KINDS: [OpKind; 6] = [
    OpKind::Write,
    OpKind::Read,
    OpKind::Send,
    OpKind::WriteImmediate,
    OpKind::FetchAdd,
    OpKind::CompareSwap,
];

fn add(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

/// Submits operations of the kind on the board.
#[derive(Default)]
pub struct Holder {
    asked: bool,
    owner: Option<RemoteContext>,
    import: Option<Import>,
    buf: Option<Buf>,
    in_flight: u64,
}

impl Holder {
    fn submit(&self, cx: &mut Context<'_>, buf: &Buf, import: &Import) -> bool {
        let local = [Local::prefix(buf, 64)];
        let kind = KINDS[BOARD.kind.load(Relaxed) as usize];
        let submitted = match (kind, self.owner) {
            (OpKind::Write, _) => cx.write(import, 0, &local, 1),
            (OpKind::Read, _) => cx.read(import, 64, &local, 2),
            (OpKind::WriteImmediate, _) => cx.write_with_immediate(import, 128, &local, 7, 3),
            (OpKind::FetchAdd, _) => cx.fetch_add(import, 256, 1, 4),
            (OpKind::CompareSwap, _) => cx.compare_swap(import, 264, 0, 0, 5),
            (OpKind::Send, Some(owner)) => cx.send(owner, b"a million of these", 6),
            (OpKind::Send, None) => return false,
        };
        submitted.is_ok()
    }
}

impl Service for Holder {
    fn poll(&mut self, cx: &mut Context<'_>) -> Work {
        if !self.asked {
            self.asked = cx.lookup(PeerId(0), "owner", 0).is_ok();
        }
        if self.buf.is_none() {
            self.buf = cx.alloc(64).ok();
        }
        if BOARD.done.load(Relaxed) > 1000 && BOARD.plant_yield.load(Relaxed) {
            std::thread::yield_now();
        }
        if BOARD.done.load(Relaxed) > 1000 && BOARD.plant_vec.load(Relaxed) {
            drop(std::hint::black_box(Vec::<u8>::with_capacity(1)));
        }
        let (Some(buf), Some(import)) = (&self.buf, self.import) else {
            return Work::Idle;
        };
        while self.in_flight < DEPTH
            && BOARD.submitted.load(Relaxed) < BOARD.wanted.load(Relaxed)
            && self.submit(cx, buf, &import)
        {
            self.in_flight += 1;
            add(&BOARD.submitted);
        }
        Work::Busy
    }

    fn on_event(&mut self, _cx: &mut Context<'_>, event: Event) {
        match event {
            Event::Completed(done) => {
                self.in_flight -= 1;
                let good = done.status == Status::Ok;
                add(if good { &BOARD.done } else { &BOARD.failed });
            }
            Event::Granted(import) => {
                self.import.get_or_insert(import);
            }
            Event::Resolved { context, .. } => self.owner = context,
            _ => {}
        }
    }
}

/// Owns the memory that the holder works on; grants and revokes as often as the board says.
#[derive(Default)]
pub struct Owner {
    asked: bool,
    holder: Option<RemoteContext>,
    lasting: Option<GrantId>,
    asked_for_caller: bool,
    caller: Option<RemoteContext>,
    lent: Option<GrantId>,
    buf: Option<Buf>,
    fresh: [Option<GrantId>; DEPTH as usize],
    open: usize,
}

impl Owner {
    fn open_one(&mut self, cx: &mut Context<'_>, holder: Option<RemoteContext>) -> Option<GrantId> {
        let (buf, holder) = (self.buf.as_ref()?, holder?);
        cx.grant(buf, 0..4096, Rights::ALL, holder, Lease::None)
            .ok()
    }
}

impl Service for Owner {
    fn poll(&mut self, cx: &mut Context<'_>) -> Work {
        if !self.asked {
            self.asked = cx.lookup(PeerId(0), "holder", 0).is_ok();
        }
        if self.buf.is_none() {
            self.buf = cx.alloc(4096).ok();
        }
        if self.lasting.is_none() {
            self.lasting = self.open_one(cx, self.holder);
        }
        if !self.asked_for_caller && BOARD.caller_opened.load(Relaxed) {
            self.asked_for_caller = cx.lookup(PeerId(0), "caller", 1).is_ok();
        }
        if self.lent.is_none() {
            self.lent = self.open_one(cx, self.caller);
        }
        for at in 0..self.fresh.len() {
            if let Some(grant) = self.fresh[at].take() {
                if cx.revoke(grant).is_err() {
                    add(&BOARD.failed);
                }
            } else if self.open < self.fresh.len()
                && BOARD.granted.load(Relaxed) < BOARD.revokes_wanted.load(Relaxed)
                && let Some(grant) = self.open_one(cx, self.holder)
            {
                self.fresh[at] = Some(grant);
                self.open += 1;
                add(&BOARD.granted);
            }
        }
        Work::Busy
    }

    fn on_event(&mut self, _cx: &mut Context<'_>, event: Event) {
        match event {
            Event::Resolved { token: 0, context } => self.holder = context,
            Event::Resolved { context, .. } => self.caller = context,
            // The client that it was lent to has ended.
            Event::Zapped(grant) if self.lent == Some(grant) => {}
            Event::Zapped(_) => {
                self.open -= 1;
                add(&BOARD.zapped);
            }
            Event::GrantQuarantined(_) => add(&BOARD.failed),
            _ => {}
        }
    }
}

/// Has a grant out, and closes with operations in flight. It has no bytes, so that its destructor, which is the application's, frees none.
pub struct Victim;

impl Victim {
    fn to() -> RemoteContext {
        let [id, session] = [0, 1].map(|at: usize| BOARD.victim_to[at].load(Relaxed));
        RemoteContext {
            peer: PeerId(0),
            session: SessionId(session),
            id: ContextId::from_bits(id),
        }
    }
}

impl Service for Victim {
    fn poll(&mut self, cx: &mut Context<'_>) -> Work {
        if !BOARD.victim_ready.load(Relaxed) {
            // Refused while a question is open or no session stands: then again.
            let _ = cx.lookup(PeerId(0), "owner", 0);
        } else if BOARD.victim_dies.load(Relaxed) {
            for _ in 0..4 {
                if cx.send(Self::to(), b"last words", 0).is_err() {
                    add(&BOARD.failed);
                }
            }
            cx.close();
        }
        Work::Busy
    }

    fn on_event(&mut self, cx: &mut Context<'_>, event: Event) {
        if let Event::Resolved {
            context: Some(to), ..
        } = event
        {
            let made = cx
                .alloc(64)
                .is_ok_and(|buf| cx.grant(&buf, 0..64, Rights::ALL, to, Lease::None).is_ok());
            if made && !BOARD.victim_ready.load(Relaxed) {
                BOARD.victim_to[0].store(to.id.to_bits(), Relaxed);
                BOARD.victim_to[1].store(to.session.0, Relaxed);
                BOARD.victim_ready.store(true, Relaxed);
            }
        }
    }
}
