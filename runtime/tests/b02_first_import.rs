//! B02, R8: 70,000 grants on one slot, one after another, in three ways. What was handed out first opens nothing ever again, and no value of a key
//! is seen while its holder has not acknowledged its end, nor on another lane.

mod pair;

use std::collections::BTreeMap;

use keyfence::ids::{GrantId, LcoreId, RemoteContext};
use keyfence::pmd::{QpId, Rkey};
use keyfence::wire;
use keyfence::{Buf, Context, Event, Import, Lease, Local, Rights, Service, SubmitError, Work};
use keyfence_mempool::sync::{Arc, AtomicBool, AtomicU64, Ordering};
use pair::judged::{Court, Part, fast_limits};
use pair::raw::Duel;
use pair::scene::{ends, lookup};
use pair::{Puppet, Slot};

/// More than 16 bits' worth, so that no counter of so few bits is between the first and the last.
const ROUNDS: u64 = 70_000;

/// A window a lane, and as few grants and contexts as the case has.
fn one_slot(contexts: u32) -> Part {
    let mut limits = fast_limits();
    limits.lanes = 1;
    limits.windows = 1;
    limits.grants = 1;
    limits.contexts = contexts;
    Part {
        limits,
        ..Part::quiet()
    }
}

/// What owners and holders tell the test, in grants.
#[derive(Default)]
struct Board {
    /// Whose turn it is, of the owners.
    turn: AtomicU64,
    /// Grants that there are to be.
    wanted: AtomicU64,
    /// Grants that their holder has.
    arrived: AtomicU64,
    /// Grants that are to end.
    asked: AtomicU64,
    /// Grants whose end was told.
    zapped: AtomicU64,
    /// Bytes that a grant opens, by their first address.
    address: AtomicU64,
    /// Something was not as it must be.
    wrong: AtomicBool,
}

fn get(number: &AtomicU64) -> u64 {
    number.load(Ordering::Relaxed)
}

fn count(number: &AtomicU64) {
    number.fetch_add(1, Ordering::Relaxed);
}

/// Has one grant at a time, when it is its turn and the one slot is free, and takes it back when it is asked to.
struct Owner {
    me: u64,
    to: RemoteContext,
    board: Arc<Board>,
    buf: Option<Buf>,
    grant: Option<GrantId>,
}

impl Owner {
    fn is_my_turn(&self) -> bool {
        get(&self.board.turn) == self.me && get(&self.board.wanted) > get(&self.board.zapped)
    }
}

impl Service for Owner {
    fn poll(&mut self, cx: &mut Context<'_>) -> Work {
        if self.buf.is_none() {
            let buf = cx.alloc(64).unwrap();
            buf.dma().fill(0);
            self.buf = Some(buf);
        }
        let buf = self.buf.as_ref().unwrap();
        match self.grant {
            None if self.is_my_turn() => {
                let made = cx.grant(buf, 0..64, Rights::ALL, self.to, Lease::None);
                self.grant = made.ok();
                self.board.address.store(buf.address(), Ordering::Relaxed);
            }
            Some(grant) if get(&self.board.asked) > get(&self.board.zapped) => {
                // From the second time on it is on its way already.
                let _ = cx.revoke(grant);
                let _ = cx.flush(0);
            }
            _ => {}
        }
        Work::Idle
    }

    fn on_event(&mut self, _cx: &mut Context<'_>, event: Event) {
        if let Event::Zapped(grant) = event {
            let mine = self.grant.take() == Some(grant);
            if !mine || self.buf.as_ref().unwrap().dma().first_not(0).is_some() {
                self.board.wrong.store(true, Ordering::Relaxed);
            }
            count(&self.board.zapped);
        }
    }
}

/// Keeps the very first import and tries it at each later one.
struct Holder {
    board: Arc<Board>,
    first: Option<Import>,
    buf: Option<Buf>,
}

impl Holder {
    fn try_first(&mut self, cx: &mut Context<'_>, first: Import) {
        if self.buf.is_none() {
            let buf = cx.alloc(64).unwrap();
            buf.dma().fill(0xee);
            self.buf = Some(buf);
        }
        let local = [Local::prefix(self.buf.as_ref().unwrap(), 64)];
        let tries = [
            cx.write(&first, 0, &local, 1),
            cx.read(&first, 0, &local, 2),
            cx.fetch_add(&first, 0, 1, 3),
        ];
        let refused = |tried: &Result<(), SubmitError>| {
            matches!(tried, Err(SubmitError::Revoked | SubmitError::NoSuchImport))
        };
        if !tries.iter().all(refused) {
            self.board.wrong.store(true, Ordering::Relaxed);
        }
    }
}

impl Service for Holder {
    fn poll(&mut self, _cx: &mut Context<'_>) -> Work {
        Work::Wait
    }

    fn on_event(&mut self, cx: &mut Context<'_>, event: Event) {
        if let Event::Granted(import) = event {
            match self.first {
                Some(first) => self.try_first(cx, first),
                None => self.first = Some(import),
            }
            count(&self.board.arrived);
        }
    }
}

/// Where each value was seen, and the last one.
#[derive(Default)]
struct Values {
    lanes: BTreeMap<u32, Option<QpId>>,
    last: Option<Rkey>,
}

impl Values {
    /// A grant is open: its value was not the last one's, which has only just died, and never another lane's.
    fn see(&mut self, court: &Court, address: u64) {
        let key = court.right.first_live_key(address..address + 64);
        let key = key.expect("the grant that arrived is open");
        assert_eq!(court.right.live_keys(address..address + 64), 1);
        assert_ne!(self.last, Some(key.rkey));
        let lane = *self.lanes.entry(key.rkey.0).or_insert(key.qp);
        assert_eq!(lane, key.qp, "a value came back on another lane");
        self.last = Some(key.rkey);
    }
}

struct Rounds {
    court: Court,
    board: Arc<Board>,
    holder_id: RemoteContext,
    values: Values,
}

impl Rounds {
    fn new(contexts: u32) -> Self {
        let mut court = Court::new(one_slot(contexts), one_slot(contexts));
        let board = Arc::new(Board::default());
        let holder = Holder {
            board: Arc::clone(&board),
            first: None,
            buf: None,
        };
        let left = &mut court.pair.left.engine;
        left.open(LcoreId(0), "holder", 1, Box::new(holder))
            .unwrap();
        let asks = court.pair.right.puppet(0, "asks");
        court.pair.steps(10);
        let holder_id = lookup(&mut court.pair, &asks, "holder");
        let id = court.pair.right.id_of("asks").unwrap();
        court.pair.right.engine.kill(id);
        court.pair.until(|pair| pair.right.reclaimed(id));
        Self {
            court,
            board,
            holder_id,
            values: Values::default(),
        }
    }

    fn open(&mut self, me: u64) {
        let owner = Owner {
            me,
            to: self.holder_id,
            board: Arc::clone(&self.board),
            buf: None,
            grant: None,
        };
        let name = ["even", "odd"][me as usize % 2];
        let right = &mut self.court.pair.right.engine;
        right.open(LcoreId(0), name, 1, Box::new(owner)).unwrap();
    }

    /// The next grant arrives, and is seen.
    fn arrives(&mut self, round: u64) {
        let board = Arc::clone(&self.board);
        count(&board.wanted);
        self.court.pair.until(|_| get(&board.arrived) > round);
        assert!(!board.wrong.load(Ordering::Relaxed), "round {round}");
        self.values.see(&self.court, get(&board.address));
    }

    /// It is taken back, and its end is told.
    fn goes(&mut self, round: u64) {
        count(&self.board.asked);
        let board = Arc::clone(&self.board);
        self.court.pair.until(|_| get(&board.zapped) > round);
        let address = get(&board.address);
        assert_eq!(self.court.right.live_keys(address..address + 64), 0);
    }

    fn end(self) {
        let Self { court, values, .. } = self;
        assert!(!self.board.wrong.load(Ordering::Relaxed));
        assert!(
            values.lanes.len() <= 256,
            "one window's: {}",
            values.lanes.len()
        );
        for side in [&court.pair.left, &court.pair.right] {
            assert_eq!(side.stat("lanes_broken"), 0);
            assert_eq!(side.stat("services_panicked"), 0);
        }
        court.acquit();
    }
}

#[test]
fn b02_the_first_import_stays_dead_for_70000_rounds() {
    let mut rounds = Rounds::new(1);
    rounds.open(0);
    for round in 0..ROUNDS {
        rounds.arrives(round);
        rounds.goes(round);
    }
    rounds.end();
}

#[test]
fn b02_also_when_its_owner_is_another_each_time() {
    let mut rounds = Rounds::new(1);
    for round in 0..ROUNDS {
        rounds.open(0);
        rounds.arrives(round);
        // Its end ends the grant.
        let pair = &mut rounds.court.pair;
        let id = pair.right.id_of("even").unwrap();
        assert_eq!(id.slot, 0);
        pair.right.engine.kill(id);
        pair.until(|pair| pair.right.reclaimed(id));
        let address = get(&rounds.board.address);
        assert_eq!(rounds.court.right.live_keys(address..address + 64), 0);
        rounds.court.pair.right.events.clear();
    }
    rounds.end();
}

#[test]
fn b02_also_with_two_owners_in_turn() {
    let mut rounds = Rounds::new(2);
    rounds.open(0);
    rounds.open(1);
    for round in 0..ROUNDS {
        rounds.board.turn.store(round % 2, Ordering::Relaxed);
        rounds.arrives(round);
        rounds.goes(round);
    }
    rounds.end();
}

/// A raw peer's part: it acknowledges all that is taken back but for one grant.
struct Keeper {
    duel: Duel,
    owner: Puppet,
    kept: Option<GrantId>,
}

impl Keeper {
    /// Opens a grant; gives what the peer was told of it, and on which lane.
    fn grant(&mut self, slot: u16) -> (usize, wire::Grant) {
        let to = self.duel.holder(slot);
        let (buf, made) = (Slot::new(), Slot::new());
        let (to_buf, to_made) = (buf.clone(), made.clone());
        self.owner.act(move |cx| {
            let memory = cx.alloc(64).unwrap();
            to_made.set(cx.grant(&memory, 0..64, Rights::ALL, to, Lease::None));
            to_buf.set(memory);
        });
        let mut came = Vec::new();
        self.duel.until(|duel| {
            came = duel.raw.grants();
            !came.is_empty()
        });
        made.take().unwrap().unwrap();
        assert_eq!(came.len(), 1);
        let (lane, _, grant) = came.remove(0);
        (lane, grant)
    }

    fn revoke(&mut self, id: GrantId) {
        self.owner.act(move |cx| {
            cx.revoke(id).unwrap();
            cx.flush(0).unwrap();
        });
        let mut done = false;
        let (owner, kept) = (self.owner.clone(), self.kept);
        self.duel.until(|duel| {
            for (lane, epoch, last, grants) in duel.raw.revokes() {
                if last && !grants.iter().any(|grant| Some(*grant) == kept) {
                    duel.raw.acknowledge(lane, epoch);
                }
            }
            done |= ends(&owner.events(), id) == (1, 0);
            let parked = u64::from(kept.is_some());
            done && duel.side.parked() == parked
        });
    }
}

#[test]
fn b02_a_value_that_is_not_acknowledged_is_not_seen_and_then_on_its_lane_alone() {
    let mut part = one_slot(4);
    // The raw peer has two.
    part.limits.lanes = 2;
    part.limits.windows = 2;
    part.limits.grants = 2;
    let mut duel = Duel::new(part);
    let owner = duel.side.puppet(0, "owner");
    duel.steps(5);
    let mut keeper = Keeper {
        duel,
        owner,
        kept: None,
    };
    let (lane, first) = keeper.grant(0);
    keeper.kept = Some(first.grant);
    // The fence has to pass: nobody says that it is dead.
    keeper.revoke(first.grant);
    for round in 0..1_200 {
        let (_, grant) = keeper.grant(round % 2);
        assert_ne!(grant.rkey, first.rkey, "it was not acknowledged");
        keeper.revoke(grant.grant);
    }
    // Now it is, in answer to a reminder.
    keeper.kept = None;
    keeper.duel.until(|duel| {
        for (lane, epoch, ..) in duel.raw.revokes() {
            duel.raw.acknowledge(lane, epoch);
        }
        duel.side.parked() == 0
    });
    let mut again = 0;
    for round in 0..1_200 {
        let (on, grant) = keeper.grant(round % 2);
        if grant.rkey == first.rkey {
            assert_eq!(on, lane);
            again += 1;
        }
        keeper.revoke(grant.grant);
    }
    // Two windows share the 600 rounds of its lane, so the tag of each comes round.
    assert!(again > 0, "the value may be used again, and is in time");
}
